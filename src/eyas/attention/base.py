"""The interface of attention: the layout of a forward pass, and the protocol of a backend.

Promises: an `AttentionLayout` describes every forward pass (prompt chunk, plain token, chain, tree,
inner draft step). A backend plans a layout once and runs the plan for every layer. The output of a row
depends on its own prefix alone: keys are reduced in position order, whatever the layout.
Does not know: models, schedulers, where slots come from.

Legend: T rows of the forward, B sequences, W tree nodes, A seats, C columns (positions), N query
heads, G key/value heads, H head dim, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from eyas.cache.kv import KVStore
from eyas.ops.compress import Compression
from eyas.ops.delta_rule import DeltaRule
from eyas.ops.rotate_and_store import KVDestination


@dataclass(frozen=True, slots=True)
class ContextRun:
    """A prompt chunk: rows [row, row + count) of the forward pass are positions [start, start +
    count) of `sequence`."""

    sequence: int
    row: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class NodeGrid:
    """The tree nodes of a forward pass.

    rows_BW: row of each node, -1 for padding. slots_BW: the slot of its key and value. roots_B:
    position of node 0. parents_BW: None for chains, whose slots are in the layout's slots_AC too.
    """

    rows_BW: torch.Tensor
    slots_BW: torch.Tensor
    roots_B: torch.Tensor
    parents_BW: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """The rows of one forward pass, and the slots of what they attend to.

    slots_AC: the sequence table: slot of each stored position, context rows of this pass included
        (int64; entries past a sequence's end are any valid slot).
    seats_B: the row of slots_AC of each sequence. Those with tree nodes come first, in the order of
        `nodes`; then one for every prompt chunk.
    max_position: upper bound of any position, known to the host, so that buffers can be sized without
        waiting for the device.
    contexts: prompt chunks, known to the host. nodes: None if no sequence has any.
    """

    slots_AC: torch.Tensor
    seats_B: torch.Tensor
    max_position: int
    contexts: tuple[ContextRun, ...] = ()
    nodes: NodeGrid | None = None


class Attend(Protocol):
    """The planned attention of a forward pass, as a model's layers use it.

    A layer first stores its rows' keys and values in `destination`, then calls the object with its
    queries; a layer with a state calls `recur` instead.
    """

    def destination(self, layer: int) -> KVDestination:
        """Return where this layer's keys and values are stored."""
        ...

    def __call__(
        self, layer: int, q_TNH: torch.Tensor, sinks_N: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the attention output [T, N, H] in q's dtype; H is the width of values, which may be
        less than that of queries (`LayerStore.output_dim`).

        sinks_N: the layer's sinks, float32: a logit for each query head that takes part in the softmax
        of every row and has no value. None if the layer has none.
        """
        ...

    def compress(
        self,
        layer: int,
        inputs_TX: torch.Tensor,
        q_TNH: torch.Tensor,
        sinks_N: torch.Tensor | None,
        compression: Compression,
    ) -> torch.Tensor:
        """Store the rows of a layer with compressed entries, make the entries that they complete, and
        return the output of attention [T, N, H] (`ops.compress`).

        inputs_TX: what is stored for each row (`CompressedStore.widths`), entries excluded.
        """
        ...

    def recur(self, layer: int, inputs_TX: torch.Tensor, rule: DeltaRule) -> torch.Tensor:
        """Update the states of a layer that has one per sequence, with the inputs of the rows
        (`ops.delta_rule`), and return its output, float32 [T, N, D]."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """The rows of a forward pass as a network reads them: padded, with their planned attention.

    tokens_T, positions_T: token ids and 0-based positions; T is a count that `RowOrder.pad` returns.
    rank_rows: number of rows of each rank, padding excluded; empty where ranks have no rows of their
    own.
    """

    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    attend: Attend
    rank_rows: tuple[int, ...] = ()


class AttentionBackend(Protocol):
    """An implementation of attention over a key/value store.

    kv: the store, with the states that plans read and update.
    """

    @property
    def kv(self) -> KVStore: ...

    def plan(self, layout: AttentionLayout, write_slots_T: torch.Tensor) -> Attend:
        """Plan a forward pass, whose layers then share the plan. write_slots_T: the slot of each
        row."""
        ...
