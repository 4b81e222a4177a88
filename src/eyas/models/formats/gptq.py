"""GPTQ: integers packed along the columns of a weight, which may belong to groups in any order.

Promises: the first version of the format, whose zero points are stored minus 1, and the second;
`desc_act`.
Does not know: Marlin's layout, which is refused.

Names: `X.qweight`, `X.qzeros`, `X.scales`, `X.g_idx` for `X.weight`.
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
from eyas.models.formats.integers import WORD_BITS, IntegerPacking, check_words, unpacked

ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
"""What is added to a stored zero point, by the format's version."""


@dataclass(frozen=True, slots=True)
class GptqColumns(IntegerPacking):
    """The packing of a weight [O, I].

    pieces: "words" int32 [I / n, O], "zeros" int32 [G, O / n], "scales" [G, O], where n = 32 /
    bits, and perhaps "groups" int32 [I], the group of each column. zero_offset: added within the
    bits of a number.
    """

    zero_offset: int

    def integers(
        self,
        pieces: Mapping[str, torch.Tensor],
        start: int,
        stop: int,
        device: torch.device | str = "cpu",
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        count = self.row_multiple
        words = pieces["words"][:, start:stop].to(device).T.contiguous()
        zero_words = pieces["zeros"][:, start // count : stop // count].to(device).T.contiguous()
        zeros_OG = unpacked(zero_words, self.bits, 0)
        zeros_OG = (zeros_OG + self.zero_offset).bitwise_and_((1 << self.bits) - 1)
        scales_OG = pieces["scales"][:, start:stop].to(device).T.contiguous()
        return unpacked(words, self.bits, 1), zeros_OG, scales_OG


@dataclass(frozen=True, slots=True)
class Gptq:
    """`quant_method: gptq`. group_size: input features that share a scale; -1 for all.

    needs_groups: whether features were sorted (`desc_act`), so that the group of each must be
    stored.
    """

    bits: int
    group_size: int
    zero_offset: int
    needs_groups: bool
    ignored: tuple[str, ...] = ()

    @classmethod
    def read(cls, config: ConfigFile) -> Gptq:
        """Read the fields of `quant_method: gptq`. ValueError: one of them is not supported."""
        version = config.values.get("checkpoint_format") or "gptq"
        if config.flag("is_marlin_format"):
            version = "marlin"
        if version not in ZERO_OFFSETS:
            versions = " and ".join(ZERO_OFFSETS)
            raise config.error(
                "checkpoint_format", f"{version!r} is not supported ({versions} are)"
            )
        bits = config.count("bits")
        if bits not in (4, 8):
            raise config.error("bits", f"{bits} is not supported (4 and 8 are)")
        overrides = [key for key in config.nested("dynamic").values if not key.startswith("-:")]
        if overrides:
            raise config.error(
                "dynamic", f"gives {overrides[0]!r} settings of its own, which is not supported"
            )
        return cls(bits, group_size(config), ZERO_OFFSETS[version], config.flag("desc_act"))

    @property
    def description(self) -> str:
        return f"GPTQ, {self.bits} bits in groups of {self.group_size}"

    def logical(self, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        tensors = visible(stored)
        count = WORD_BITS // self.bits
        for name, words in stored.items():
            module, _, last = name.rpartition(".")
            if last != "qweight":
                continue
            roles = {"words": "qweight", "zeros": "qzeros", "scales": "scales", "groups": "g_idx"}
            names = {role: f"{module}.{end}" for role, end in roles.items()}
            pieces = take_pieces(tensors, words, names, () if self.needs_groups else ("groups",))
            check_words(pieces, "GPTQ")
            check_type(pieces["zeros"], ("I32",), "packed numbers")
            shape = (words.shape[1], words.shape[0] * count)
            num_groups = check_groups(words, shape[1], self.group_size)
            why = f"{words.name!r}, bits and group_size of quantization_config"
            check_shape(pieces["scales"], (num_groups, shape[0]), why)
            check_shape(pieces["zeros"], (num_groups, shape[0] // count), why)
            if "groups" in pieces:
                check_type(pieces["groups"], ("I32", "I64"), "groups of columns")
                check_shape(pieces["groups"], shape[1:], why)
            packing = GptqColumns(
                pieces, self.bits, num_groups, shape[1], self.needs_groups, self.zero_offset
            )
            add(tensors, StoredTensor(f"{module}.weight", words.file, shape, "F32", packing))
        return tensors
