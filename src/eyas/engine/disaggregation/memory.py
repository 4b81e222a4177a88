"""What an engine stores of a prefix, as rows of bytes, in one order that two engines share.

A row's *place* is the number of its token's slot; in layers with a window that have fewer slots, that
of its window slot; and the number of a snapshot in the states of sequences.

Promises: `layout` is equal for two engines if and only if the rows of one mean the same in the other:
model files, angles of positions, order of sums, number formats, and the drafting network's tensors.
Does not know: sockets, which slots belong to a prompt.

Legend: P places, X bytes of a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from eyas.engine.engine import Engine
from eyas.models.digest import model_digest

VERSION = 4
"""Of the messages and of the order of rows."""

Places = tuple[np.ndarray, np.ndarray, np.ndarray]
"""The places of a part of a prefix: slots, in order of position; window slots of the last of them,
which the query after the prefix sees; the snapshot after it, if there is one."""


def num_places(places: Places) -> tuple[int, ...]:
    """Return the numbers of places of each kind."""
    return tuple(map(len, places))


class SlotMemory:
    """The tensors of an engine by place: the target's keys and values, the drafting network's, the
    states.

    groups: for each kind of places, uint8 tensors [P, X]. layout: a digest of what the rows mean.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.device = engine.table.device
        kv, states = engine.runner.backend.kv, engine.table.states
        of_slots, of_windows = [], []
        for layer, tensor in enumerate(kv.layers):
            (of_slots if kv.window_slots(layer) is None else of_windows).append(tensor)
        self._rows = engine.drafter.prefix_rows
        if self._rows is not None:
            of_slots += self._rows.tensors()
        of_states = [] if states is None else states.snapshot_tensors()
        groups = [[t for t in group if len(t)] for group in (of_slots, of_windows, of_states)]
        self.groups = [[t.flatten(1).view(torch.uint8) for t in group] for group in groups]
        self.layout = _layout(engine, groups)

    def places(self, slots: np.ndarray, snapshot: int | None) -> Places:
        """Return the places of the last positions of a prefix. snapshot: after it; None where there is
        none."""
        windows = self.engine.cache.windows
        seen = slots[:0] if windows is None else slots[max(0, len(slots) - windows.reach) :]
        own = seen if windows is None else windows.places(seen)
        states = [snapshot] if snapshot is not None and len(slots) else []
        return slots, own, np.array(states, dtype=np.int64)

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


def _layout(engine: Engine, groups: Sequence[Sequence[torch.Tensor]]) -> str:
    info = engine.info
    parts = [
        str(VERSION),
        info.architecture,
        str(info.num_parameters),
        str(info.vocab_size),
        info.dtype,
        info.kv_cache_dtype,
        f"sums in a tree: {engine.runner.model.shard.by_tree}",
        *engine.runner.model.angle_digests,
        model_digest(Path(info.directory)) if info.directory else "",
        *(
            f"{kind} {tensor.dtype}{tuple(tensor.shape[1:])}"
            for kind, tensors in enumerate(groups)
            for tensor in tensors
        ),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
