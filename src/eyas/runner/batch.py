"""What one step works on: which part of which sequence, and the slots it was given.

Promises: a `PlannedBatch` is made from what the host knows for sure (prompt chunks) and from upper
bounds (everything that a step under way may still change), beside the step under way; it begins as a
`Batch`, whose tensors are on the device.
Does not know: how a plan is made, whose sequences these are, what becomes of them.

Legend: B rooted spans, W width.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

from eyas.cache.slots import NO_SLOTS, NULL_SLOT
from eyas.constraint.automaton import Automaton
from eyas.core import DraftTree, SamplingParams
from eyas.runner.graphs import Stages, StepGraphs, bucket_of, length_of
from eyas.runner.table import SequenceTable
from eyas.sampling.params import BatchParams, RowSource
from eyas.transfer import send

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class Span:
    """A sequence's part of a step: `context_count` positions to store from `context_start`, and, if
    it has node slots, a draft tree whose node 0 is the sequence's last token.

    wants_context_logits: prompt log-probabilities were asked for.
    stored_slots: slots of the positions that are stored or being stored, as far as the host knows.
    root_low, root_high: bounds of the root's position, equal where no step is under way.
    """

    seat: int
    context_start: int
    context_count: int
    context_slots: np.ndarray
    node_slots: np.ndarray | None
    wants_context_logits: bool = False
    stored_slots: np.ndarray = field(default_factory=lambda: NO_SLOTS)
    root_low: int = 0
    root_high: int = 0


@dataclass(slots=True, eq=False)
class Batch:
    """A step's spans and tensors, once the step before has its verdict.

    spans: all; rooted: those with a root, in the order of every [B, ...] tensor of the step.

    width: how many nodes a tree may have. levels: on how many levels, and so how many tokens a step may
    add. seats_B, roots_B (position of node 0) and node_slots_BW are on the device. max_length: upper
    bound of any sequence's length once this step has landed. automata: of the rooted sequences,
    standing at their roots; None where no sequence is constrained or no drafter reads them.
    stages: run from CUDA graphs; B is then a bucket, whose last rows sit in the table's padding seat,
    and everything a stage reads of the batch is static. names: of the stages that have run.
    """

    table: SequenceTable
    spans: list[Span]
    rooted: list[Span]
    params: BatchParams
    width: int
    levels: int
    max_length: int
    automata: Sequence[Automaton | None] | None
    stages: Stages | None
    seats_B: torch.Tensor
    roots_B: torch.Tensor
    node_slots_BW: torch.Tensor
    names: set[Hashable] = field(default_factory=set)

    @property
    def num_rows(self) -> int:
        """B of every [B, ...] tensor of the step: the rooted sequences, and what fills up a bucket."""
        return len(self.seats_B)

    @property
    def history_BL(self) -> torch.Tensor:
        """Committed tokens of the rooted sequences, up to the longest's upper bound."""
        return self.table.tokens_AC[self.seats_B, : self.max_length]

    @property
    def stores_context(self) -> bool:
        """Are there prompt chunks among the spans?"""
        return any(span.context_count for span in self.spans)

    def stage(
        self,
        name: Hashable,
        key: Hashable,
        function: Callable[[], Result],
        *,
        reads_context: bool = False,
    ) -> Result:
        """What `function` returns, which works on the device alone and reads nothing of the step but
        this batch's tensors and results of other stages. name: its place in a step, which runs one
        stage of a name; key: tells its shapes. reads_context: the stage is about prompt chunks too,
        where there are any, and then runs as it is. RuntimeError where a name runs again."""
        if name in self.names:
            raise RuntimeError(
                f"a stage {name!r} has run in this step; a second one needs its own name"
            )
        self.names.add(name)
        if self.stages is None or (reads_context and self.stores_context):
            return function()
        return self.stages.run(name, (self.width, key), function)

    def to_static(self, tree: DraftTree) -> DraftTree:
        """`tree` as a later stage may read it."""
        return tree if self.stages is None else self.stages.to_static(tree)

    def to_static_array(self, name: str, values: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Numbers of the host as a later stage may read them; a tensor is `transfer.reachable`."""
        if self.stages is None:
            return send(values, self.table.device)
        return self.stages.graphs.to_static_array((name, self.num_rows), values)

    def to_static_array_async(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """As `to_static_array`, beside the work under way, which must not read the old values."""
        if self.stages is None:
            return send(values, self.table.device)
        return self.stages.graphs.to_static_array_async((name, self.num_rows), values)


class PlannedBatch:
    """What the host can do of a batch ahead of the device; arguments are those of `Batch`, where levels
    of 0 are as many as nodes. graphs: of steps that can be captured."""

    def __init__(
        self,
        table: SequenceTable,
        spans: list[Span],
        params: BatchParams,
        width: int,
        max_length: int,
        graphs: StepGraphs | None = None,
        levels: int = 0,
    ) -> None:
        self._table = table
        self._spans = spans
        self._rooted = [span for span in spans if span.node_slots is not None]
        self._params = params
        self._width = width
        self._levels = levels or width
        self._max_length = max_length
        num = len(self._rooted)
        self._graphs = graphs if num and params.is_capturable else None
        self._num_rows = num if self._graphs is None else bucket_of(num)
        self._packed = self._pack()
        if self._graphs is not None:
            self._graphs.send_inputs(self._num_rows, width, self._packed)
            self._max_length = min(length_of(max_length), table.num_columns)

    def _pack(self) -> np.ndarray:
        """Seats of all rows, then the slots of their nodes."""
        num_rows, width = self._num_rows, self._width
        packed = np.full(num_rows * (1 + width), NULL_SLOT, dtype=np.int64)
        packed[:num_rows] = self._table.padding_seat
        for b, span in enumerate(self._rooted):
            first = num_rows + b * width
            assert span.node_slots is not None
            packed[b] = span.seat
            packed[first : first + width] = span.node_slots
        return packed

    def begin(self, automata: Sequence[Automaton | None] | None = None) -> Batch:
        """The batch, on the device."""
        num_rows, width, table, params = self._num_rows, self._width, self._table, self._params
        stages = None
        if self._graphs is None:
            packed_X = send(self._packed, table.device)
            seats_B = packed_X[:num_rows]
            node_slots_BW = packed_X[num_rows:].view(num_rows, width)
            roots_B = table.lengths_A[seats_B] - 1
        else:
            inputs = self._graphs.take_inputs(num_rows, width, self._packed, table.lengths_A)
            seats_B, roots_B = inputs.seats_B, inputs.roots_B
            node_slots_BW = inputs.node_slots_BW
            params = self._graphs.params(num_rows, params)
            stages = self._graphs.of((num_rows, width, self._max_length, params.signature))
        return Batch(
            table=table,
            spans=self._spans,
            rooted=self._rooted,
            params=params,
            width=width,
            levels=self._levels,
            max_length=self._max_length,
            automata=automata,
            stages=stages,
            seats_B=seats_B,
            roots_B=roots_B,
            node_slots_BW=node_slots_BW,
        )


def padding_batch(
    table: SequenceTable,
    vocab_size: int,
    num: int,
    width: int,
    length: int,
    temperature: float,
    graphs: StepGraphs,
    levels: int,
) -> PlannedBatch:
    """A batch of `num` sequences in the padding seat: running it leaves no trace."""
    nothing = np.full(width, NULL_SLOT, dtype=np.int64)
    spans = [
        Span(table.padding_seat, 0, 0, NO_SLOTS, nothing, root_low=1, root_high=1)
        for _ in range(num)
    ]
    source = RowSource(SamplingParams(temperature=temperature), 0, 0, 1, frozenset())
    params = BatchParams([source] * num, vocab_size, table.device)
    return PlannedBatch(table, spans, params, width, length, graphs, levels)
