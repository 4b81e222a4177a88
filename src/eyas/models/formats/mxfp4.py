"""MXFP4: numbers of 4 bits (E2M1), 32 of which share a power of two (E8M0).

Promises: the values are exact in bfloat16. gpt-oss' tensors come in the layout of its unquantised
checkpoint, which is the transposed one.
Does not know: experts beyond the shapes of their tensors; which weights of an FP8 checkpoint are in
FP4 (`fp8` does).

Names of gpt-oss: `X_blocks` with `X_scales` for a tensor `X`.
Legend: E experts, O output features, I input features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from eyas.kernels.packed import Layout, PackedWeight
from eyas.models.config_file import ConfigFile
from eyas.models.formats.base import (
    Packing,
    StoredTensor,
    add,
    check_shape,
    check_type,
    take_pieces,
    visible,
    wrong_shape,
)
from eyas.ops.dequantise import FP4_VALUES, arrange

GROUP_BYTES = 16
"""Bytes of the 32 numbers that share a scale."""
LAYOUT = Layout("mxfp4", 1, 2 * GROUP_BYTES)
BYTES = 1 << 17
"""Bytes that are looked up at a time: few, so that their indices stay in the caches."""


@dataclass(frozen=True, slots=True)
class Mxfp4Rows(Packing):
    """The packing of a weight [O, I].

    pieces: "weight" int8 [O, I / 2], a byte holds two neighbours, the first one in its lower half;
    "scale" [O, I / 32], float8_e8m0fnu.
    """

    def decode(self, pieces: Mapping[str, torch.Tensor], start: int, stop: int) -> torch.Tensor:
        values = number_pairs(pieces["weight"][start:stop].view(torch.uint8))
        scales = pieces["scale"][start:stop].bfloat16()
        return values.unflatten(-1, (-1, 2 * GROUP_BYTES)).mul_(scales.unsqueeze(-1)).flatten(-2)

    @property
    def layout(self) -> Layout:
        return LAYOUT

    def pack(
        self,
        pieces: Mapping[str, torch.Tensor],
        start: int,
        stop: int,
        layout: Layout,
        dtype: torch.dtype,
        device: torch.device,
    ) -> PackedWeight:
        numbers, scales = (
            pieces[role][start:stop].view(torch.uint8).to(device) for role in ("weight", "scale")
        )
        return kept(numbers, scales, dtype)


def mxfp4_rows(name: str, pieces: Mapping[str, StoredTensor]) -> StoredTensor:
    """Return the logical tensor of a weight and its scales. ValueError: they do not fit."""
    weight = pieces["weight"]
    check_type(pieces["scale"], ("F8_E8M0",), "scales of FP4")
    if len(weight.shape) != 2 or weight.shape[1] % GROUP_BYTES:
        raise wrong_shape(weight, (*weight.shape[:1], GROUP_BYTES), "the format (FP4)")
    num_rows, num_bytes = weight.shape
    check_shape(pieces["scale"], (num_rows, num_bytes // GROUP_BYTES), f"{weight.name!r}")
    return StoredTensor(name, weight.file, (num_rows, 2 * num_bytes), "BF16", Mxfp4Rows(pieces))


@dataclass(frozen=True, slots=True)
class Mxfp4Experts(Packing):
    """The packing of an expert tensor [E, I, O].

    pieces: "blocks" uint8 [E, O, I / 32, 16], a byte holds two neighbours, the first one in its
    lower half; "scales" uint8 [E, O, I / 32], the exponent plus 127.
    """

    def decode(self, pieces: Mapping[str, torch.Tensor], start: int, stop: int) -> torch.Tensor:
        values = number_pairs(pieces["blocks"][start:stop])
        scales = pieces["scales"][start:stop].view(torch.float8_e8m0fnu).bfloat16()
        return values.mul_(scales.unsqueeze(-1)).flatten(-2).transpose(1, 2)

    @property
    def is_transposed(self) -> bool:
        return True

    @property
    def layout(self) -> Layout:
        return LAYOUT

    def pack(
        self,
        pieces: Mapping[str, torch.Tensor],
        start: int,
        stop: int,
        layout: Layout,
        dtype: torch.dtype,
        device: torch.device,
    ) -> PackedWeight:
        blocks, scales = (pieces[role][start:stop].to(device) for role in ("blocks", "scales"))
        return kept(blocks.flatten(-2), scales, dtype)


def kept(pairs: torch.Tensor, exponents: torch.Tensor, dtype: torch.dtype) -> PackedWeight:
    """Return a weight whose bytes hold neighbours [..., O, I / 2], and exponents [..., O, I / 32]."""
    numbers = torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2)
    words = F.pad(exponents, (0, -exponents.shape[-1] % 4)).contiguous().view(torch.int32)
    return PackedWeight(LAYOUT, arrange(numbers, "mxfp4"), words, numbers.shape[-1], dtype)


def number_pairs(packed: torch.Tensor) -> torch.Tensor:
    """Return the two numbers of each byte [..., n], the lower bits first: bfloat16 [..., 2 n]."""
    numbers = torch.tensor(FP4_VALUES).bfloat16()
    byte = torch.arange(256)
    pairs = torch.stack((numbers[byte & 15], numbers[byte >> 4]), -1)
    table = pairs.view(torch.int32).flatten()  # an element is a pair: one look-up for both
    found = torch.empty(packed.numel(), dtype=torch.int32)
    for bytes_, into in zip(packed.flatten().split(BYTES), found.split(BYTES), strict=True):
        torch.index_select(table, 0, bytes_.int(), out=into)
    return found.view(torch.bfloat16).view(*packed.shape[:-1], 2 * packed.shape[-1])


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """`quant_method: mxfp4`."""

    ignored: tuple[str, ...] = ()

    @classmethod
    def read(cls, config: ConfigFile) -> Mxfp4:
        """Read the fields of `quant_method: mxfp4`, of which none changes the layout."""
        return cls()

    @property
    def description(self) -> str:
        return "MXFP4"

    def logical(self, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        tensors = visible(stored)
        for name, blocks in stored.items():
            if not name.endswith("_blocks"):
                continue
            name = name.removesuffix("_blocks")
            names = {"blocks": f"{name}_blocks", "scales": f"{name}_scales"}
            pieces = take_pieces(tensors, blocks, names)
            for piece in pieces.values():
                check_type(piece, ("U8",), "MXFP4's pieces")
            if len(blocks.shape) != 4 or blocks.shape[3] != GROUP_BYTES:
                raise wrong_shape(blocks, (*blocks.shape[:3], GROUP_BYTES), "the format (MXFP4)")
            check_shape(pieces["scales"], blocks.shape[:3], f"{blocks.name!r}")
            num_experts, num_rows, num_groups, _ = blocks.shape
            shape = (num_experts, num_groups * 2 * GROUP_BYTES, num_rows)
            add(tensors, StoredTensor(name, blocks.file, shape, "BF16", Mxfp4Experts(pieces)))
        return tensors
