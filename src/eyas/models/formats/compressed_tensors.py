"""compressed-tensors (llm-compressor): FP8, integers of 8 bits, packed integers of 4 or 8 bits.

Promises: the group of the configuration that a layer belongs to decides what its scales must look
like; formats and schemes that are not read are refused by name.
Does not know: how activations may be quantised: they are not.

Names: `X.weight` with `X.weight_scale` and perhaps `X.weight_zero_point`; or `X.weight_packed` with
`X.weight_scale`, and perhaps `X.weight_shape`, `X.weight_zero_point`, `X.weight_g_idx`.
Legend: O output features, I input features, G groups of them.
"""

from __future__ import annotations

import re
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
from eyas.models.formats.config import block_size, group_size
from eyas.models.formats.integers import WORD_BITS, IntegerPacking, check_words, unpacked
from eyas.models.formats.scaled import scaled_tensor

FORMATS = (
    *("float-quantized", "int-quantized", "naive-quantized", "pack-quantized"),
    "mixed-precision",
)
STRATEGIES = ("tensor", "channel", "group", "block")
TYPES = {("float", 8): ("F8_E4M3",), ("int", 8): ("I8",), ("int", 4): ("I8",)}
"""How a weight is stored where it is not packed, by its type and bits."""
STORED_TYPES = ("F8_E4M3", "F8_E5M2", "I8")


@dataclass(frozen=True, slots=True)
class PackedRows(IntegerPacking):
    """The packing of a weight [O, I].

    pieces: "words" int32 [O, I / n], "scales" [O, G], where n = 32 / bits, and perhaps "shape" (O,
    I), "zeros" (int32 [O / n, G] packed, or int8 [O, G]) and "groups" [I], the group of each
    column. Numbers and packed zero points are stored with half of their range added.
    """

    def integers(
        self,
        pieces: Mapping[str, torch.Tensor],
        start: int,
        stop: int,
        device: torch.device | str = "cpu",
    ) -> tuple[torch.Tensor, torch.Tensor | int, torch.Tensor]:
        numbers_OI = unpacked(pieces["words"][start:stop].to(device), self.bits, 1)
        self._check_shape(pieces, [len(pieces["words"]), numbers_OI.shape[1]])
        zeros_OG: torch.Tensor | int = 1 << (self.bits - 1)
        if "zeros" in pieces:
            zeros_OG = self._zeros(pieces["zeros"], start, stop).to(device)
        return numbers_OI, zeros_OG, pieces["scales"][start:stop].to(device)

    def _zeros(self, stored: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        if stored.dtype != torch.int32:
            return stored[start:stop].int() + (1 << (self.bits - 1))
        count = self.row_multiple
        words = stored[start // count : -(-stop // count)]
        return unpacked(words, self.bits, 0)[: stop - start]

    def _check_shape(self, pieces: Mapping[str, torch.Tensor], expected: list[int]) -> None:
        if "shape" in pieces and pieces["shape"].tolist() != expected:
            entry = self.pieces["shape"]
            raise ValueError(
                f"{entry.file}: tensor {entry.name!r} says {pieces['shape'].tolist()}, but there are "
                f"{expected} packed numbers; rows whose length is no multiple of {self.row_multiple} "
                "are not supported: use the unquantised checkpoint"
            )


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the weights of a group of layers are stored.

    kind: "float" or "int". group_size: columns that share a scale, for the strategy "group". block:
    rows and columns that do, for "block". needs_zeros, needs_groups: whether zero points, and the
    group of each column, must be stored.
    """

    kind: str
    bits: int
    strategy: str
    group_size: int = -1
    block: tuple[int, int] | None = None
    needs_zeros: bool = False
    needs_groups: bool = False

    @classmethod
    def read(cls, config: ConfigFile) -> Scheme:
        """Read the object under `weights`. ValueError: it is not supported."""
        kind, bits = str(config.values.get("type", "int")), config.count("num_bits", 8)
        if (kind, bits) not in TYPES:
            known = ", ".join(f"{bits} bits {kind}" for kind, bits in TYPES)
            raise config.error(
                "num_bits", f"{bits} of type {kind!r} is not supported ({known} are)"
            )
        size = config.values.get("group_size")
        implied = "tensor" if size is None else "channel" if size == -1 else "group"
        strategy = config.values.get("strategy") or implied
        if strategy not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise config.error("strategy", f"{strategy!r} is not supported ({known} are)")
        block = block_size(config, "block_structure")
        if strategy == "block" and block is None:
            raise config.error("block_structure", "is missing, which the strategy 'block' needs")
        return cls(
            kind,
            bits,
            strategy,
            group_size(config) if strategy == "group" else -1,
            block if strategy == "block" else None,
            not config.flag("symmetric", True),
            config.values.get("actorder") in ("group", True),
        )

    def __str__(self) -> str:
        size = f" of {self.group_size}" if self.strategy == "group" else ""
        size = f" of {self.block[0]} x {self.block[1]}" if self.block else size
        return f"{self.bits}-bit {self.kind} with a scale for each {self.strategy}{size}"

    @property
    def needed(self) -> set[str]:
        """Roles of pieces that not every scheme has, of those that this one has."""
        zeros = {"zeros"} if self.needs_zeros else set()
        return zeros | ({"groups"} if self.needs_groups else set())

    def plain(self, name: str, pieces: Mapping[str, StoredTensor]) -> StoredTensor:
        """Return the logical tensor of a weight that is stored number by number."""
        weight, block = pieces["weight"], self.block
        if block is None:
            block = {"tensor": (0, 0), "channel": (1, 0), "group": (1, self.group_size)}[
                self.strategy
            ]
        if self.strategy == "group":
            check_groups(weight, weight.shape[-1], self.group_size)
        why = f"the strategy {self.strategy!r} of quantization_config"
        return scaled_tensor(name, pieces, [block], why, TYPES[self.kind, self.bits])

    def packed(self, name: str, pieces: Mapping[str, StoredTensor]) -> StoredTensor:
        """Return the logical tensor of a weight whose numbers are packed into words."""
        words = pieces["words"]
        check_words(pieces, "pack-quantized")
        if self.kind != "int" or self.strategy not in ("channel", "group"):
            raise ValueError(
                f"{words.file}: tensor {words.name!r} is packed, but quantization_config describes it "
                f"as {self}; packed weights are integers with a scale for each channel or group: "
                "download both again"
            )
        count = WORD_BITS // self.bits
        num_rows, num_columns = words.shape[0], words.shape[1] * count
        num_groups = check_groups(words, num_columns, self.group_size)
        why = f"{words.name!r}, num_bits and group_size of quantization_config"
        check_shape(pieces["scales"], (num_rows, num_groups), why)
        if (zeros := pieces.get("zeros")) is not None:
            check_type(zeros, ("I32", "I8"), "zero points")
            packed_rows = -(-num_rows // count) if zeros.dtype == "I32" else num_rows
            check_shape(zeros, (packed_rows, num_groups), why)
        if (groups := pieces.get("groups")) is not None:
            check_type(groups, ("I32", "I64"), "groups of columns")
            check_shape(groups, (num_columns,), why)
        if (shape := pieces.get("shape")) is not None:
            check_shape(shape, (2,), "the format (pack-quantized)")
        packing = PackedRows(pieces, self.bits, num_groups, num_columns, "groups" in pieces)
        return StoredTensor(name, words.file, (num_rows, num_columns), "F32", packing)


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """`quant_method: compressed-tensors`. groups: targets and scheme of each of its groups."""

    groups: tuple[tuple[tuple[str, ...], Scheme], ...]
    ignored: tuple[str, ...]

    @classmethod
    def read(cls, config: ConfigFile) -> CompressedTensors | None:
        """Read the fields of the method; None where it describes the cache alone.

        ValueError: one of them is not supported.
        """
        describes_cache = bool(config.nested("kv_cache_scheme").values)
        if describes_cache and not config.nested("config_groups").values:
            return None
        _check_format(config)
        if config.nested("transform_config").values:
            raise config.error("transform_config", "is not supported: it rotates activations")
        sparsity = config.nested("sparsity_config")
        sparsity.require("format", "dense", "dense", "dense is")
        groups: list[tuple[tuple[str, ...], Scheme]] = []
        ignored: list[str] = []
        for name in config.nested("config_groups").values:
            group = config.nested("config_groups").nested(name)
            _check_format(group)
            if group.values.get("weights") is not None:
                groups.append((_targets(group), Scheme.read(group.nested("weights"))))
            for field in ("input_activations", "output_activations"):
                if activations := group.nested(field).values:
                    kind = "dynamic" if activations.get("dynamic") else "static"
                    ignored.append(f"{kind} {activations.get('num_bits', 8)}-bit {field}")
        if not groups:
            raise config.error("config_groups", "describes no weights; the file is incomplete")
        if describes_cache:
            ignored.append("kv_cache_scheme (--kv-cache-dtype fp8_e4m3 reads its scales)")
        return cls(tuple(groups), tuple(dict.fromkeys(ignored)))

    @property
    def description(self) -> str:
        return "; ".join(dict.fromkeys(str(scheme) for _, scheme in self.groups))

    def logical(self, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        tensors = visible(stored)
        for name, first in stored.items():
            module, _, last = name.rpartition(".")
            scale, zero = f"{module}.weight_scale", f"{module}.weight_zero_point"
            if last == "weight_packed":
                scheme = self._scheme_of(module, first)
                names = {
                    "words": name,
                    "scales": scale,
                    "shape": f"{module}.weight_shape",
                    "zeros": zero,
                    "groups": f"{module}.weight_g_idx",
                }
                optional = {"shape", "zeros", "groups"} - scheme.needed
                pieces = take_pieces(tensors, first, names, optional)
                add(tensors, scheme.packed(f"{module}.weight", pieces))
            elif last == "weight" and (scale in stored or first.dtype in STORED_TYPES):
                scheme = self._scheme_of(module, first)
                names = {"weight": name, "scale": scale, "zeros": zero}
                pieces = take_pieces(tensors, first, names, {"zeros"} - scheme.needed)
                add(tensors, scheme.plain(name, pieces))
        return tensors

    def _scheme_of(self, module: str, first: StoredTensor) -> Scheme:
        """Return the scheme of the group that names a layer, else of one that names a class."""
        for targets, scheme in self.groups:
            if any(_names_layer(target, module) for target in targets):
                return scheme
        for targets, scheme in self.groups:
            if any(_is_class(target) for target in targets):
                return scheme
        raise ValueError(
            f"{first.file}: tensor {first.name!r} is quantised, but no group of config_groups in "
            "config.json's quantization_config has its layer among the targets; download both again"
        )


def _is_class(target: str) -> bool:
    return not target.startswith("re:") and target[:1].isupper()


def _names_layer(target: str, module: str) -> bool:
    if target.startswith("re:"):
        return re.match(target.removeprefix("re:"), module) is not None
    return target == module


def _check_format(config: ConfigFile) -> None:
    value = config.values.get("format")
    if value is not None and value not in FORMATS:
        raise config.error("format", f"{value!r} is not supported ({', '.join(FORMATS)} are)")


def _targets(group: ConfigFile) -> tuple[str, ...]:
    targets = group.values.get("targets")
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise group.error(
            "targets", f"must be a list of names of layers or classes, not {targets!r}"
        )
    for target in targets:
        try:
            re.compile(target.removeprefix("re:"))
        except re.error as error:
            raise group.error("targets", f"holds {target!r}, no regular expression") from error
    return tuple(targets)
