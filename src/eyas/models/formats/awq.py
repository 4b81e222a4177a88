"""AWQ in its GEMM layout: integers of 4 bits, packed along the rows of the transposed weight.

Promises: other versions of the format (GEMV, Marlin, ...) are refused by name.
Does not know: activations scaled by AWQ, whose tensors no family here has.

Names: `X.qweight`, `X.qzeros`, `X.scales` for `X.weight`.
Legend: O output features, I input features, G groups of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from eyas.models.config_file import ConfigFile
from eyas.models.formats.base import (
    StoredTensor,
    add,
    check_groups,
    check_shape,
    check_type,
    take_pieces,
    visible,
)
from eyas.models.formats.config import group_size
from eyas.models.formats.integers import IntegerPacking, check_words, unpacked

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of its 8 columns each 4 bits of a word hold, from the lowest bits on."""


@dataclass(frozen=True, slots=True)
class AwqGemm(IntegerPacking):
    """The packing of a weight [O, I].

    pieces: "words" int32 [I, O / 8], "zeros" int32 [G, O / 8], "scales" [G, O]. bits: 4.
    """

    def integers(
        self,
        pieces: Mapping[str, torch.Tensor],
        start: int,
        stop: int,
        device: torch.device | str = "cpu",
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        words = slice(start // len(ORDER), stop // len(ORDER))
        numbers_OI = unpacked(pieces["words"][:, words].to(device).T.contiguous(), 4, 0, ORDER)
        zeros_OG = unpacked(pieces["zeros"][:, words].to(device).T.contiguous(), 4, 0, ORDER)
        return numbers_OI, zeros_OG, pieces["scales"][:, start:stop].to(device).T.contiguous()


@dataclass(frozen=True, slots=True)
class Awq:
    """`quant_method: awq`. group_size: input features that share a scale; -1 for all."""

    group_size: int
    ignored: tuple[str, ...] = ()

    @classmethod
    def read(cls, config: ConfigFile) -> Awq:
        """Read the fields of `quant_method: awq`. ValueError: one of them is not supported."""
        for field in ("version", "format"):
            value = config.values.get(field) or "gemm"
            if str(value).lower() != "gemm":
                raise config.error(field, f"{value!r} is not supported (the layout 'gemm' is)")
        config.require("bits", 4, 4, "4 is")
        config.require("zero_point", True, True, "weights with zero points are")
        return cls(group_size(config))

    @property
    def description(self) -> str:
        return f"AWQ, 4 bits in groups of {self.group_size}"

    def logical(self, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        tensors = visible(stored)
        for name, words in stored.items():
            module, _, last = name.rpartition(".")
            if last != "qweight":
                continue
            roles = {"words": "qweight", "zeros": "qzeros", "scales": "scales"}
            pieces = take_pieces(tensors, words, {r: f"{module}.{n}" for r, n in roles.items()})
            check_words(pieces, "AWQ")
            check_type(pieces["zeros"], ("I32",), "packed numbers")
            num_columns, num_words = words.shape
            num_groups = check_groups(words, num_columns, self.group_size)
            why = f"{words.name!r} and group_size of quantization_config"
            check_shape(pieces["zeros"], (num_groups, num_words), why)
            check_shape(pieces["scales"], (num_groups, num_words * len(ORDER)), why)
            shape = (num_words * len(ORDER), num_columns)
            packing = AwqGemm(pieces, 4, num_groups, num_columns, False)
            add(tensors, StoredTensor(f"{module}.weight", words.file, shape, "F32", packing))
        return tensors
