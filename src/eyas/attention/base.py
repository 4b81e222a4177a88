"""The doors of attention: what a layer stores, what a forward covers, how a backend is called.

Promises: a `Layout` describes every forward (prompt chunk, plain token, chain, tree, inner draft
step); a backend turns it into a plan once and runs the plan for every layer. The output of a row
depends on its own prefix alone: keys are reduced in position order, whatever the layout.
Does not know: models, schedulers, where slots come from.

Legend: T rows of the forward, B sequences, W tree nodes, L positions, N query heads, G key/value
heads, H head dim, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from eyas.cache.store import LayerStore

__all__ = ["Attend", "AttentionBackend", "ContextRun", "LayerStore", "Layout"]


@dataclass(frozen=True, slots=True)
class ContextRun:
    """Rows [row, row + count) of the forward are positions [start, start + count) of `sequence`."""

    sequence: int
    row: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Layout:
    """What one forward covers.

    slots_BL: slot of each stored position, context rows of this forward included (int64; entries
        past a sequence's end are any valid slot). The sequences with tree nodes come first, in the
        order of every [B, ...] tensor below.
    contexts: prompt chunks, known to the host.
    node_rows_BW: row of each tree node, -1 for padding; None when no span reaches its root.
    node_slots_BW: slot each node's key and value are written to.
    root_positions_B: position of node 0.
    parents_BW: None for chains.
    max_position: upper bound of any position in the forward (host), so buffers can be sized
        without asking the device.
    """

    slots_BL: torch.Tensor
    contexts: tuple[ContextRun, ...]
    node_rows_BW: torch.Tensor | None
    node_slots_BW: torch.Tensor | None
    root_positions_B: torch.Tensor | None
    parents_BW: torch.Tensor | None
    max_position: int


class Attend(Protocol):
    """A plan bound to a cache, as a model's layers see it."""

    def __call__(
        self, layer: int, q_TNH: torch.Tensor, k_TGH: torch.Tensor, v_TGH: torch.Tensor
    ) -> torch.Tensor:
        """Store k and v of these rows, then attend; returns [T, N, H] in q's dtype."""
        ...


class AttentionBackend(Protocol):
    """plan once per forward, run once per layer."""

    def plan(self, layout: Layout, write_slots_T: torch.Tensor) -> Attend: ...
