"""Integers of a few bits in words of 32, with a scale and a zero point for each group of columns.

Promises: a value is (number - zero point) x scale in float32, which is exact for scales of 16 bits.
Does not know: in which order a format packs them, names of tensors.

Legend: O rows (output features), I columns (input features), G groups of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from eyas.kernels.packed import STEP, Layout, PackedWeight
from eyas.models.formats.base import StoredTensor
from eyas.ops.dequantise import arrange

WORD_BITS = 32


def unpacked(
    words: torch.Tensor, bits: int, dim: int, order: Sequence[int] | None = None
) -> torch.Tensor:
    """Return the unsigned numbers in int32 words, as int32; dimension `dim` grows by 32 / bits.

    order: position of each number among those of its word, from the lowest bits on; None is ascending.
    """
    count = WORD_BITS // bits
    shape = (*words.shape[: dim + 1], count, *words.shape[dim + 1 :])
    numbers = torch.empty(shape, dtype=torch.int32, device=words.device)
    for index, position in enumerate(order or range(count)):
        shifted = words >> (bits * index)
        numbers.select(dim + 1, position).copy_(shifted.bitwise_and_((1 << bits) - 1))
    return numbers.flatten(dim, dim + 1)


def values(
    numbers_OI: torch.Tensor,
    zeros_OG: torch.Tensor | int,
    scales_OG: torch.Tensor,
    group_of_I: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return (number - zero point) x scale, float32 [O, I].

    group_of_I: the group of each column; None where each group is a run of columns of the same length.
    """
    if isinstance(zeros_OG, int):
        zeros_OG = torch.full_like(scales_OG, zeros_OG)
    values_OI, zeros_OG, scales_OG = numbers_OI.float(), zeros_OG.float(), scales_OG.float()
    if group_of_I is not None:
        values_OI.sub_(zeros_OG.index_select(1, group_of_I))
        return values_OI.mul_(scales_OG.index_select(1, group_of_I))
    values_OGI = values_OI.unflatten(1, (scales_OG.shape[1], -1))
    return values_OGI.sub_(zeros_OG.unsqueeze(2)).mul_(scales_OG.unsqueeze(2)).flatten(1)


def layout_of(bits: int, scales: StoredTensor, num_groups: int, num_columns: int) -> Layout | None:
    """Return the layout in which kernels take a weight whose groups are runs of columns."""
    columns = 0 if num_groups == 1 else num_columns // num_groups
    names: dict[str, Literal["float16", "bfloat16"]] = {"F16": "float16", "BF16": "bfloat16"}
    if bits != 4 or scales.dtype not in names or columns % STEP:
        return None
    return Layout("int4", 1, columns, names[scales.dtype])


def packed(
    numbers_OI: torch.Tensor,
    zeros_OG: torch.Tensor | int,
    scales_OG: torch.Tensor,
    layout: Layout,
    dtype: torch.dtype,
) -> PackedWeight:
    """Return the weight whose values `values` gives, as kernels take it."""
    words_OG = scales_OG.contiguous().view(torch.int16).int() & 0xFFFF
    words_OG |= (torch.zeros_like(words_OG) + zeros_OG) << 16
    return PackedWeight(layout, arrange(numbers_OI, "int4"), words_OG, numbers_OI.shape[1], dtype)


def stored_groups(group_of_I: torch.Tensor, entry: StoredTensor, count: int) -> torch.Tensor:
    """Return the group of each column as it is stored. ValueError: one is not below `count`."""
    group_of_I = group_of_I.long()
    if int(group_of_I.min()) < 0 or int(group_of_I.max()) >= count:
        raise ValueError(
            f"{entry.file}: tensor {entry.name!r} names groups beyond the {count} that have scales; "
            "download the checkpoint again"
        )
    return group_of_I
