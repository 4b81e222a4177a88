"""The interface of attention: the layout of a forward pass, and the protocol of a backend.

Promises: an `AttentionLayout` describes every forward pass (prompt chunk, plain token, chain, tree,
inner draft step). A backend plans a layout once and runs the plan for every layer. The output of a row
depends on its own prefix alone: keys are reduced in position order, whatever the layout.
Does not know: models, schedulers, where slots come from.

Legend: T rows of the forward, B sequences, W tree nodes, A seats, C columns (positions), N query
heads, G key/value heads, H head dim, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
class PromptChunks:
    """The prompt chunks of a forward pass as its device knows them, so that a CUDA graph of the pass
    can be replayed with others.

    runs_C3: int64; of each chunk its first row, counted from first_row, its first position and its
    number of rows. Chunks are in the order of their rows, without gaps; those without rows come last.
    first_row, num_rows: the rows of all chunks in the forward pass.
    """

    runs_C3: torch.Tensor
    first_row: int
    num_rows: int


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

    @property
    def device(self) -> torch.device:
        return self.rows_BW.device


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
    chunks: the prompt chunks where the device alone knows them; contexts are empty then.
    """

    slots_AC: torch.Tensor
    seats_B: torch.Tensor
    max_position: int
    contexts: tuple[ContextRun, ...] = ()
    nodes: NodeGrid | None = None
    chunks: PromptChunks | None = None

    def without_chunks(self) -> AttentionLayout:
        """Return the layout of the tree nodes alone."""
        seats_B = self.seats_B[: self.first_chunk_sequence]
        return replace(self, seats_B=seats_B, contexts=(), chunks=None)

    @property
    def prompt_rows(self) -> tuple[int, int] | None:
        """The first row of all prompt chunks and the row after the last; None without chunks."""
        if self.chunks is not None:
            return self.chunks.first_row, self.chunks.first_row + self.chunks.num_rows
        if not self.contexts:
            return None
        last = self.contexts[-1]
        return self.contexts[0].row, last.row + last.count

    @property
    def first_chunk_sequence(self) -> int:
        """The sequence of the first prompt chunk."""
        return 0 if self.nodes is None else len(self.nodes.rows_BW)

    def contexts_on_host(self) -> tuple[ContextRun, ...]:
        """Return the prompt chunks as the host knows them, which may have to wait for the device."""
        if self.chunks is None:
            return self.contexts
        first, row = self.first_chunk_sequence, self.chunks.first_row
        return tuple(
            ContextRun(first + number, row + offset, start, count)
            for number, (offset, start, count) in enumerate(self.chunks.runs_C3.tolist())
            if count
        )


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
class OutputRows:
    """The rows of a forward pass whose outputs are read: the first ones. In the last layer the others
    store keys and values, and nothing more is computed of them.

    num_rows: 0, or a count that `RowOrder.pad` returns. attend: their planned attention.
    """

    num_rows: int
    attend: Attend


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """The rows of a forward pass as a network reads them: padded, with their planned attention.

    tokens_T, positions_T: token ids and 0-based positions; T is a count that `RowOrder.pad` returns.
    rank_rows: number of rows of each rank, padding excluded; empty where ranks have no rows of their
    own. outputs: None if the outputs of all rows are read.
    """

    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    attend: Attend
    rank_rows: tuple[int, ...] = ()
    outputs: OutputRows | None = None


class AttentionBackend(Protocol):
    """An implementation of attention over a key/value store.

    kv: the store, with the states that plans read and update. plans_chunks: whether a forward pass may
    have prompt chunks that the device alone knows (`AttentionLayout.chunks`).
    """

    @property
    def kv(self) -> KVStore: ...

    @property
    def plans_chunks(self) -> bool: ...

    def plan(self, layout: AttentionLayout, write_slots_T: torch.Tensor) -> Attend:
        """Plan a forward pass, whose layers then share the plan. write_slots_T: the slot of each
        row."""
        ...
