"""What a prefix stores by slot, as rows of bytes, in one order that two engines share.

Promises: `layout` is equal for two engines if and only if the rows of one mean the same in the other:
model files, number formats, and the drafting network's tensors.
Does not know: sockets, which slots belong to a prompt.

Legend: S slots, X bytes of a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from eyas.engine.engine import Engine

VERSION = 1
"""Of the messages and of the order of rows."""
EDGE_BYTES = 2**16
"""Bytes at the beginning and at the end of each weight file that tell models apart."""


class SlotMemory:
    """The tensors of an engine by slot: the target's keys and values, then the drafting network's.

    rows_SX: uint8, one tensor for each. layout: a digest of what the rows mean.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.device = engine.table.device
        tensors = list(engine.runner.backend.kv.layers)
        self._rows = engine.drafter.prefix_rows
        if self._rows is not None:
            tensors += self._rows.tensors()
        tensors = [tensor for tensor in tensors if len(tensor)]
        self.rows_SX = [tensor.flatten(1).view(torch.uint8) for tensor in tensors]
        self.layout = _layout(engine, tensors)

    def settle(self) -> torch.cuda.Event | None:
        """Store what is still to be stored, and return the event after which the slots hold it; None
        on a CPU, where they do."""
        if self._rows is not None:
            self._rows.tensors()
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def num_made(self, slots: np.ndarray) -> int:
        """Return how many leading positions of a prefix have rows of the drafting network."""
        return 0 if self._rows is None else self._rows.num_made(slots)

    def mark(self, slots: np.ndarray, num_made: int) -> None:
        """Note that the first `num_made` of these slots hold rows of the drafting network."""
        if self._rows is not None:
            self._rows.mark(slots, num_made)

    def num_bytes(self, num_slots: int) -> int:
        """Return the bytes that so many slots hold."""
        return num_slots * sum(rows_SX.shape[1] for rows_SX in self.rows_SX)


def runs_of(slots: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield (position, first slot, number) of each contiguous run of slots."""
    if not len(slots):
        return
    starts = np.flatnonzero(np.diff(slots, prepend=slots[0] - 2) != 1)
    for start, stop in zip(starts, [*starts[1:], len(slots)], strict=True):
        yield int(start), int(slots[start]), int(stop - start)


def prompt_digest(tokens: list[int]) -> str:
    """Return what identifies a prompt."""
    return hashlib.sha256(np.asarray(tokens, dtype="<i8").tobytes()).hexdigest()


def _layout(engine: Engine, tensors: list[torch.Tensor]) -> str:
    info = engine.info
    parts = [
        str(VERSION),
        info.architecture,
        str(info.num_parameters),
        str(info.vocab_size),
        info.dtype,
        info.kv_cache_dtype,
        *(f"{tensor.dtype}{tuple(tensor.shape[1:])}" for tensor in tensors),
    ]
    digest = hashlib.sha256("\n".join(parts).encode())
    files = Path(info.directory).glob("*.safetensors") if info.directory else ()
    for file in sorted(files):
        size = file.stat().st_size
        with file.open("rb") as weights:
            digest.update(f"{file.name} {size}".encode() + weights.read(EDGE_BYTES))
            weights.seek(max(0, size - EDGE_BYTES))
            digest.update(weights.read(EDGE_BYTES))
    return digest.hexdigest()
