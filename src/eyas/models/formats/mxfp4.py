"""MXFP4 of gpt-oss: numbers of 4 bits (E2M1), 32 of which share a power of two (E8M0).

Promises: the values are exact in bfloat16, in the layout of the unquantised checkpoint, which is
the transposed one.
Does not know: experts beyond the shapes of their tensors.

Names: `X_blocks` with `X_scales` for a tensor `X`.
Legend: E experts, O output features, I input features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from eyas.models.config_file import ConfigFile
from eyas.models.formats.base import (
    StoredTensor,
    add,
    check_shape,
    check_type,
    take_pieces,
    visible,
    wrong_shape,
)

GROUP_BYTES = 16
"""Bytes of the 32 numbers that share a scale."""
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the lower three bits of a number; the fourth is the sign."""


@dataclass(frozen=True, slots=True)
class Mxfp4Experts:
    """A `Packing` of an expert tensor [E, I, O].

    pieces: "blocks" uint8 [E, O, I / 32, 16], a byte holds two neighbours, the first one in its
    lower half; "scales" uint8 [E, O, I / 32], the exponent plus 127.
    """

    pieces: Mapping[str, StoredTensor]

    @property
    def row_multiple(self) -> int:
        return 1

    def decode(self, pieces: Mapping[str, torch.Tensor], start: int, stop: int) -> torch.Tensor:
        numbers = torch.tensor((*MAGNITUDES, *(-value for value in MAGNITUDES))).bfloat16()
        byte = torch.arange(256)
        pairs = torch.stack((numbers[byte & 15], numbers[byte >> 4]), -1)
        values = pairs[pieces["blocks"][start:stop].int()].flatten(-2)
        scales = pieces["scales"][start:stop].view(torch.float8_e8m0fnu).bfloat16()
        return values.mul_(scales.unsqueeze(-1)).flatten(-2).transpose(1, 2)


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
                check_type(piece, ("U8",), "MXFP4 tensors")
            if len(blocks.shape) != 4 or blocks.shape[3] != GROUP_BYTES:
                raise wrong_shape(blocks, (*blocks.shape[:3], GROUP_BYTES), "the format (MXFP4)")
            check_shape(pieces["scales"], blocks.shape[:3], f"{blocks.name!r}")
            num_experts, num_rows, num_groups, _ = blocks.shape
            shape = (num_experts, num_groups * 2 * GROUP_BYTES, num_rows)
            add(tensors, StoredTensor(name, blocks.file, shape, "BF16", Mxfp4Experts(pieces)))
        return tensors
