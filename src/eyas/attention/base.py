"""The door of attention: what a forward covers, how a backend is called.

Promises: a `Layout` describes every forward (prompt chunk, plain token, chain, tree, inner draft
step); a backend turns it into a plan once and runs the plan for every layer. The output of a row
depends on its own prefix alone: keys are reduced in position order, whatever the layout.
Does not know: models, schedulers, where slots come from.

Legend: T rows of the forward, B sequences, W tree nodes, A seats, C columns (positions), N query heads,
G key/value heads, H head dim, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class ContextRun:
    """Rows [row, row + count) of the forward are positions [start, start + count) of `sequence`."""

    sequence: int
    row: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class NodeGrid:
    """The tree nodes of a forward.

    rows_BW: row of each node, -1 for padding. slots_BW: where its key and value are written to.
    roots_B: position of node 0. parents_BW: None for chains, whose nodes' slots stand in the layout's
    slots_AC as well.
    """

    rows_BW: torch.Tensor
    slots_BW: torch.Tensor
    roots_B: torch.Tensor
    parents_BW: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """What one forward covers.

    slots_AC: the sequence table: slot of each stored position, context rows of this forward included
        (int64; entries past a sequence's end are any valid slot).
    seats_B: the row of slots_AC of each sequence. Those with tree nodes come first, in the order of
        `nodes`; then one for every prompt chunk.
    max_position: upper bound of any position in the forward (host), so buffers can be sized
        without asking the device.
    contexts: prompt chunks, known to the host. nodes: None where no sequence has any.
    """

    slots_AC: torch.Tensor
    seats_B: torch.Tensor
    max_position: int
    contexts: tuple[ContextRun, ...] = ()
    nodes: NodeGrid | None = None


@dataclass(frozen=True, slots=True)
class KVDestination:
    """Where a layer's keys and values go: row t of the forward to kv_S2GH[slots_T[t]], whose views
    keys_SGH and values_SGH are. What is written must be finite (`finite`)."""

    kv_S2GH: torch.Tensor
    slots_T: torch.Tensor
    keys_SGH: torch.Tensor
    values_SGH: torch.Tensor

    @classmethod
    def of(cls, kv_S2GH: torch.Tensor, slots_T: torch.Tensor) -> KVDestination:
        return cls(kv_S2GH, slots_T, kv_S2GH.select(1, 0), kv_S2GH.select(1, 1))


class Attend(Protocol):
    """A plan bound to a cache, as a model's layers see it: a layer first stores its rows' keys and
    values in `destination`, then calls for the answers."""

    def destination(self, layer: int) -> KVDestination: ...

    def __call__(self, layer: int, q_TNH: torch.Tensor) -> torch.Tensor:
        """[T, N, H] in q's dtype."""
        ...


def finite(x: torch.Tensor) -> torch.Tensor:
    """`x` with zeros for what is no finite number: 0 times infinity is not 0, so a masked key would
    spread to rows that must not see it, and from shared slots to other requests."""
    return x.nan_to_num(0.0, 0.0, 0.0)


class AttentionBackend(Protocol):
    """plan once per forward, run once per layer."""

    def plan(self, layout: Layout, write_slots_T: torch.Tensor) -> Attend: ...
