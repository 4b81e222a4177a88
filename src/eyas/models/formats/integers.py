"""Integers of a few bits in words of 32, with a scale and a zero point for each group of columns.

Promises: a value is (number - zero point) x scale in float32, which is exact for scales of 16 bits.
Does not know: in which order a format packs them, names of tensors.

Legend: O rows (output features), I columns (input features), G groups of columns.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from eyas.kernels.packed import STEP, Layout, PackedWeight
from eyas.models.formats.base import SCALE_TYPES, Packing, StoredTensor, check_type, wrong_shape
from eyas.ops.dequantise import arrange

WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class IntegerPacking(Packing):
    """The packing of a weight [O, I] of integers.

    pieces: "scales", perhaps "groups" [I] (the group of each column), and others. num_groups,
    num_columns: G and I. is_sorted: whether groups are other than runs of columns.
    """

    bits: int
    num_groups: int
    num_columns: int
    is_sorted: bool

    @property
    def row_multiple(self) -> int:
        return WORD_BITS // self.bits

    @property
    def layout(self) -> Layout | None:
        columns = 0 if self.num_groups == 1 else self.num_columns // self.num_groups
        names: dict[str, Literal["float16", "bfloat16"]] = {"F16": "float16", "BF16": "bfloat16"}
        name = names.get(self.pieces["scales"].dtype)
        if self.is_sorted or self.bits != 4 or name is None or columns % STEP:
            return None
        return Layout("int4", 1, columns, name)

    def decode(self, pieces: Mapping[str, torch.Tensor], start: int, stop: int) -> torch.Tensor:
        group_of_I = None
        if "groups" in pieces:
            group_of_I = _stored_groups(pieces["groups"], self.pieces["groups"], self.num_groups)
        return _values(*self.integers(pieces, start, stop), group_of_I)

    def pack(
        self,
        pieces: Mapping[str, torch.Tensor],
        start: int,
        stop: int,
        layout: Layout,
        dtype: torch.dtype,
        device: torch.device,
    ) -> PackedWeight:
        if "groups" in pieces:
            _check_runs(pieces["groups"], self.pieces["groups"], self.num_groups)
        numbers_OI, zeros_OG, scales_OG = self.integers(pieces, start, stop, device)
        words_OG = scales_OG.contiguous().view(torch.int16).int() & 0xFFFF
        words_OG |= (torch.zeros_like(words_OG) + zeros_OG) << 16
        return PackedWeight(
            layout, arrange(numbers_OI, "int4"), words_OG, numbers_OI.shape[1], dtype
        )

    @abstractmethod
    def integers(
        self,
        pieces: Mapping[str, torch.Tensor],
        start: int,
        stop: int,
        device: torch.device | str = "cpu",
    ) -> tuple[torch.Tensor, torch.Tensor | int, torch.Tensor]:
        """Return numbers [O, I], zero points [O, G] or the one of all, and scales [O, G]."""


def check_words(pieces: Mapping[str, StoredTensor], title: str) -> None:
    """Refuse words that are no matrix, and pieces of other types. title: of the format, for errors."""
    words = pieces["words"]
    check_type(words, ("I32",), "packed numbers")
    check_type(pieces["scales"], SCALE_TYPES, "scales")
    if len(words.shape) != 2:
        raise wrong_shape(words, (*words.shape, 1)[:2], f"the format ({title})")


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


def _values(
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


def _stored_groups(group_of_I: torch.Tensor, entry: StoredTensor, count: int) -> torch.Tensor:
    """Return the group of each column as it is stored. ValueError: one is not below `count`."""
    group_of_I = group_of_I.long()
    if int(group_of_I.min()) < 0 or int(group_of_I.max()) >= count:
        raise ValueError(
            f"{entry.file}: tensor {entry.name!r} names groups beyond the {count} that have scales; "
            "download the checkpoint again"
        )
    return group_of_I


def _check_runs(group_of_I: torch.Tensor, entry: StoredTensor, num_groups: int) -> None:
    size = len(group_of_I) // num_groups
    if not torch.equal(group_of_I.long(), torch.arange(len(group_of_I)) // size):
        raise ValueError(
            f"{entry.file}: tensor {entry.name!r} sorts the columns, but desc_act of "
            "quantization_config is false; set it to true"
        )
