"""What a loader sees of a checkpoint's tensors, however their values are stored.

Promises: a tensor whose values are stored in pieces (numbers of few bits, scales, zero points)
looks like any other; its `packing` says what the pieces are and gets the values back, some rows at
a time.
Does not know: what is in the files, which formats exist.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from eyas.kernels.packed import Layout, PackedWeight

DECODED_NUMBERS = 1 << 19
"""Numbers that are decoded at a time: few, so that a decoder's temporary tensors stay in the caches."""
KEPT_NUMBERS = 1 << 24
"""Numbers that are brought to a device at a time where they stay packed."""
ITEM_BYTES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
}
"""Bytes of a number, by safetensors' name of its type; all other types have one."""
SCALE_TYPES = ("F32", "BF16", "F16", "F8_E8M0")
UNREAD = frozenset(
    (
        *("input_scale", "input_scale_ub", "activation_scale", "input_zero_point"),
        *("output_scale", "output_zero_point", "q_scale", "k_scale", "v_scale", "kv_scale"),
        *("k_zero_point", "v_zero_point", "prob_scale"),
    )
)
"""Last parts of names of tensors that quantise activations, which is not done, or the cache, whose
scales `kv_scales` reads."""
CACHE_SCALES = frozenset(("k_scale", "v_scale", "kv_scale"))


@dataclass(frozen=True, slots=True)
class Packing(ABC):
    """How the values of one tensor are stored in several.

    pieces: the stored tensors, by their role for this packing.
    """

    pieces: Mapping[str, StoredTensor]

    @property
    def row_multiple(self) -> int:
        """Number of rows that can only be decoded together."""
        return 1

    @property
    def is_transposed(self) -> bool:
        """Whether `decode` returns the last two dimensions of the weight [..., O, I] in the other
        order."""
        return False

    @property
    @abstractmethod
    def layout(self) -> Layout | None:
        """The layout in which kernels take the weight [..., O, I]; None where they do not."""

    @abstractmethod
    def decode(self, pieces: Mapping[str, torch.Tensor], start: int, stop: int) -> torch.Tensor:
        """Return the values of rows `start` to `stop` of the first dimension, as float32 or bfloat16.

        pieces: the contents of all of `self.pieces`, by role. start, stop: multiples of
        `row_multiple`; stop may be the end. ValueError: the contents contradict each other.
        """

    @abstractmethod
    def pack(
        self,
        pieces: Mapping[str, torch.Tensor],
        start: int,
        stop: int,
        layout: Layout,
        dtype: torch.dtype,
        device: torch.device,
    ) -> PackedWeight:
        """Return rows `start` to `stop` as kernels take them, on `device`.

        layout: that of the packing, perhaps with fewer rows of a block. dtype: of the values.
        ValueError: as `decode`.
        """


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a checkpoint.

    file: that holds it, or the first of its pieces. dtype: safetensors' name, such as "BF16"; of a
    packed tensor, the type that holds its values without a further rounding. packing: None where
    the file holds the values themselves.
    """

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str
    packing: Packing | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes in the files."""
        if self.packing is not None:
            return sum(piece.num_bytes for piece in self.packing.pieces.values())
        return math.prod(self.shape) * ITEM_BYTES.get(self.dtype, 1)

    @property
    def files(self) -> frozenset[Path]:
        """The files that hold the tensor or its pieces."""
        if self.packing is None:
            return frozenset((self.file,))
        return frozenset(piece.file for piece in self.packing.pieces.values())

    def row_ranges(self, kept: Layout | None = None) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of the rows of a packed tensor that are decoded at a time, or that are
        brought to a device as they are. kept: the layout in which they stay packed."""
        assert self.packing is not None
        multiple, most = self.packing.row_multiple, DECODED_NUMBERS
        if kept is not None:
            multiple, most = (
                math.lcm(multiple, kept.rows if len(self.shape) == 2 else 1),
                KEPT_NUMBERS,
            )
        step = max(1, most // max(1, math.prod(self.shape[1:])) // multiple) * multiple
        for start in range(0, self.shape[0], step):
            yield start, min(start + step, self.shape[0])


class Format(Protocol):
    """What the `quantization_config` of a config.json says about how weights are stored.

    description: for the log. ignored: what the file asks for that is not done, for the log.
    """

    @property
    def description(self) -> str: ...

    @property
    def ignored(self) -> tuple[str, ...]: ...

    def logical(self, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Return the checkpoint's tensors, by name, with each group of pieces as one packed tensor.

        stored: the tensors in the files. Whether a weight is quantised is decided by how it is
        stored, so lists of layers that are not quantised are not needed.
        ValueError: a piece is missing, or of a wrong shape or type.
        """
        ...


def visible(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors without those in `UNREAD`."""
    return {k: v for k, v in stored.items() if k.rpartition(".")[2] not in UNREAD}


def without_cache_scales(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors of a checkpoint whose weights are not quantised, without the scales of its
    cache."""
    return {k: v for k, v in stored.items() if k.rpartition(".")[2] not in CACHE_SCALES}


def take_pieces(
    tensors: dict[str, StoredTensor],
    first: StoredTensor,
    names: Mapping[str, str],
    optional: Collection[str] = (),
) -> dict[str, StoredTensor]:
    """Remove the pieces that belong together from `tensors`, and return them by role.

    first: the piece that was found. names: of all pieces, by role. optional: roles that may be
    missing.
    """
    missing = [name for role, name in names.items() if name not in tensors and role not in optional]
    if missing:
        raise ValueError(
            f"{first.file.parent} lacks tensor {missing[0]!r}, without which {first.name!r} cannot be "
            "read; the checkpoint is incomplete: download it again"
        )
    return {role: tensors.pop(name) for role, name in names.items() if name in tensors}


def add(tensors: dict[str, StoredTensor], tensor: StoredTensor) -> None:
    """Add a packed tensor. ValueError: there is another one of its name."""
    if tensor.name in tensors:
        raise ValueError(
            f"{tensor.file}: the checkpoint holds {tensor.name!r} twice, quantised and not; remove "
            "one of them"
        )
    tensors[tensor.name] = tensor


def check_type(piece: StoredTensor, types: Collection[str], what: str) -> None:
    """Refuse a piece that is stored in another type. what: the piece, for the message."""
    if piece.dtype not in types:
        raise ValueError(
            f"{piece.file}: tensor {piece.name!r} is stored as {piece.dtype}, but {what} must be "
            f"{' or '.join(types)}; use another quantised or the unquantised checkpoint of the model"
        )


def check_shape(piece: StoredTensor, expected: tuple[int, ...], why: str) -> None:
    """Refuse a piece of another shape. why: what asks for the expected one."""
    if piece.shape != expected:
        raise wrong_shape(piece, expected, why)


def wrong_shape(piece: StoredTensor, expected: tuple[int, ...], why: str) -> ValueError:
    """Return the error of a piece of another shape. why: what asks for the expected one."""
    return ValueError(
        f"{piece.file}: tensor {piece.name!r} has shape {list(piece.shape)}, expected "
        f"{list(expected)} by {why}; config.json and weights are of different models, or the "
        "checkpoint is damaged: download it again"
    )


def check_groups(first: StoredTensor, num_columns: int, group_size: int) -> int:
    """Return the number of groups of columns. ValueError: their size does not divide the row.

    group_size: -1 for whole rows. first: a piece of the weight, for the message.
    """
    if group_size == -1:
        return 1
    if num_columns % group_size:
        raise ValueError(
            f"{first.file}: the rows of {first.name!r} have {num_columns} numbers, which groups of "
            f"{group_size} (group_size of quantization_config) do not divide; use a checkpoint with "
            "another group size"
        )
    return num_columns // group_size
