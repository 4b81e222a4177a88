"""The input of one step: a part of each scheduled sequence, and the slots that it writes.

Promises: a `PlannedBatch` is made while the step before it runs, from what the host knows (prompt
chunks) and from upper bounds of what that step may change. `PlannedBatch.begin` returns the
`Batch`, whose tensors are on the device.
Does not know: how a step is planned, requests, what is done with the results.

Legend: B rooted spans, W width, C prompt chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch

from eyas.cache.slots import NO_SLOTS, NULL_SLOT
from eyas.constraint.automaton import Automaton
from eyas.core import SamplingParams
from eyas.draft_tree import DraftTree
from eyas.ops.table import TableSequences
from eyas.runner.graphs import Stages, StepGraphs
from eyas.runner.step_inputs import (
    StepSizes,
    length_of,
    sizes_with_prompts,
)
from eyas.runner.table import SequenceTable
from eyas.sampling.params import BatchParams, SequenceParams
from eyas.transfer import send

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class Span:
    """A sequence's part of a step: `context_count` positions to store from `context_start`, and, if
    it has node slots, a draft tree whose node 0 is the sequence's last token.

    reserved: the reservation that context_slots and node_slots are parts of, in this order.
    wants_context_logits: whether log-probabilities of the prompt are needed.
    stored_slots: slots of the positions that the host knows to be stored or in flight.
    root_low, root_high: bounds of the root's position, equal if no step is in flight.
    snapshot: takes the sequence's state after the context rows; None if none is wanted. rank: that
    has the sequence's keys and values.
    """

    seat: int
    context_start: int
    context_count: int
    context_slots: np.ndarray
    node_slots: np.ndarray | None
    reserved: np.ndarray = field(default_factory=lambda: NO_SLOTS)
    wants_context_logits: bool = False
    stored_slots: np.ndarray = field(default_factory=lambda: NO_SLOTS)
    root_low: int = 0
    root_high: int = 0
    snapshot: int | None = None
    rank: int = 0

    @property
    def context_stop(self) -> int:
        """The position after the context rows."""
        return self.context_start + self.context_count


def num_context_rows(spans: Sequence[Span]) -> int:
    """Return the rows of the spans' prompt chunks."""
    return sum(span.context_count for span in spans)


@dataclass(slots=True, eq=False)
class Batch:
    """A step's spans and tensors, once the verdict of the step before is on the device.

    spans: all spans; rooted: the spans with a root, in the order of every [B, ...] tensor of the
    step. width: the most nodes of a tree. levels: its most levels, which is the most tokens a step
    may add. seats_B, roots_B (position of node 0) and node_slots_BW are on the device. max_length:
    upper bound of any sequence's length once this step has landed. automata: of the rooted
    sequences, at their roots; None if no sequence is constrained or no drafter reads them. stages:
    CUDA graphs or recordings of the step, or None; with them B is a bucket, whose last rows are in the
    table's padding seat, and every tensor of the batch is static.
    chunks_C4: the prompt chunks, which have num_prompt_rows rows: seat, first row among those, first
    position and number of rows. prompt_stages: CUDA
    graphs of the stages that read prompt chunks, or None; with them the chunks are static too, and one
    of them is in the padding seat. names: of the stages that have run.
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
    chunks_C4: torch.Tensor
    num_prompt_rows: int
    prompt_stages: Stages | None
    names: set[Hashable] = field(default_factory=set)

    @property
    def num_rows(self) -> int:
        """The B of every [B, ...] tensor of the step: rooted sequences, and padding up to a bucket."""
        return len(self.seats_B)

    @property
    def in_table(self) -> TableSequences:
        """The rooted sequences, as operations read them."""
        table = self.table
        return TableSequences(
            table.tokens_AC,
            table.slots_AC,
            self.seats_B,
            self.roots_B,
            self.node_slots_BW,
            table.last_position,
        )

    @property
    def history_BL(self) -> torch.Tensor:
        """Tokens of the rooted sequences, up to the upper bound of all lengths."""
        return self.table.tokens_AC[self.seats_B, : self.max_length]

    @property
    def stores_context(self) -> bool:
        """Whether there are prompt chunks among the spans."""
        return self.num_prompt_rows > 0

    def stage(
        self,
        name: Hashable,
        key: Hashable,
        function: Callable[[], Result],
        *,
        reads_context: bool = False,
        reads_params: bool = True,
    ) -> Result:
        """Return what `function` returns, from a CUDA graph or a recording where the step has them.

        function: works on the device alone, and reads only this batch's tensors and results of
        other stages. name: of the stage; a step runs one stage of each name. key: identifies its
        shapes. reads_context: the stage also reads prompt chunks, where there are some. reads_params:
        it reads sampling parameters, whose kinds then identify it too.
        Raises RuntimeError if a stage of this name has run in this step.
        """
        if name in self.names:
            raise RuntimeError(
                f"a stage {name!r} has run in this step; a second one needs its own name"
            )
        self.names.add(name)
        stages = self.prompt_stages if reads_context and self.stores_context else self.stages
        if stages is None:
            return function()
        kinds = self.params.signature if reads_params else None
        return stages.run(name, (self.width, kinds, key), function)

    def to_static(self, tree: DraftTree) -> DraftTree:
        """Return `tree` in tensors that a later stage may read."""
        return tree if self.stages is None else self.stages.to_static(tree)

    def to_static_array(self, name: str, values: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Return numbers of the host in a tensor that a later stage may read.

        values: an array, or a tensor in pinned memory (`transfer.reachable`).
        """
        if self.stages is None:
            return send(values, self.table.device)
        return self.stages.graphs.to_static_array((name, self.num_rows), values)

    def to_static_array_async(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """`to_static_array`, concurrently with running work, which must not read the old values."""
        if self.stages is None:
            return send(values, self.table.device)
        return self.stages.graphs.to_static_array_async((name, self.num_rows), values)


class PlannedBatch:
    """The host's part of a batch, made before the device has finished the step before.

    The arguments are those of `Batch`; levels of 0 means as many as nodes. graphs: used if they serve
    steps of this size, the parameters of sampling can be captured, and the shape has occurred often
    enough; None runs the step without graphs.
    captures_at_once: capture the step even if its shape has not occurred. precedes_capture: its
    trees are captured when their shape occurs again; whether its prompt chunks are does not count.
    """

    def __init__(
        self,
        table: SequenceTable,
        spans: list[Span],
        params: BatchParams,
        width: int,
        max_length: int,
        graphs: StepGraphs | None = None,
        levels: int = 0,
        *,
        captures_at_once: bool = False,
    ) -> None:
        self._table = table
        self._spans = spans
        self._rooted = [span for span in spans if span.node_slots is not None]
        self._chunks = [span for span in spans if span.context_count]
        self._params = params
        self._levels = levels or width
        self._max_length = max_length
        self._graphs: StepGraphs | None = None
        self.precedes_capture = False
        self._captures_prompts = False
        self._is_prepared = False
        num, num_prompt_rows = len(self._rooted), num_context_rows(self._chunks)
        self._sizes = StepSizes(num, width, num_prompt_rows, len(self._chunks))
        if graphs is not None and params.is_capturable and graphs.serves(self._sizes):
            self._choose_graphs(graphs, at_once=captures_at_once)
        self._packed, self._chunks_C4 = self._pack(), self._pack_chunks()
        if self._graphs is not None:
            sizes = self._sizes
            self._graphs.send_inputs(sizes.num_sequences, sizes.width, self._packed)

    def _choose_graphs(self, graphs: StepGraphs, *, at_once: bool) -> None:
        """Decide whether the step runs from graphs, and take the sizes of these."""
        own, table, signature = self._sizes, self._table, self._params.signature
        length = min(length_of(self._max_length), table.num_columns)
        sizes = None
        if own.num_chunks and self._is_plain():
            sizes = sizes_with_prompts(own, graphs.limits.prompt_rows)
        if sizes is not None and sizes.num_prompt_rows - own.num_prompt_rows > table.last_position:
            sizes = None  # the rows of padding are positions of one sequence
        if sizes is not None and graphs.captures((sizes, length, signature), at_once=at_once):
            self._captures_prompts = True
        else:
            num = graphs.bucket(own.num_sequences) if sizes is None else sizes.num_sequences
            sizes = replace(own, num_sequences=num)
            shape = num, own.width, length, signature
            if not graphs.captures(shape, at_once=at_once):
                self.precedes_capture = True
                return
        self._graphs, self._sizes, self._max_length = graphs, sizes, length
        self._is_prepared = graphs.prepares and not at_once

    def _is_plain(self) -> bool:
        """Whether nothing but keys and values is wanted of the prompt chunks."""
        return not any(s.wants_context_logits or s.snapshot is not None for s in self._chunks)

    def _pack(self) -> np.ndarray:
        """Return the seats of all sequences with a tree, followed by the slots of their nodes."""
        num_rows, width = self._sizes.num_sequences, self._sizes.width
        packed = np.full(num_rows * (1 + width), NULL_SLOT, dtype=np.int64)
        packed[:num_rows] = self._table.padding_seat
        for b, span in enumerate(self._rooted):
            first = num_rows + b * width
            assert span.node_slots is not None
            packed[b] = span.seat
            packed[first : first + width] = span.node_slots
        return packed

    def _pack_chunks(self) -> np.ndarray:
        """Return the numbers of the prompt chunks (`Batch.chunks_C4`). The chunk behind the own ones
        has the rows of padding, if there are any, and those behind it have none."""
        sizes = self._sizes
        chunks_C4 = np.zeros((sizes.num_chunks, 4), dtype=np.int64)
        chunks_C4[:, 0], chunks_C4[:, 1] = self._table.prompt_padding_seat, sizes.num_prompt_rows
        row = 0
        for number, span in enumerate(self._chunks):
            chunks_C4[number] = span.seat, row, span.context_start, span.context_count
            row += span.context_count
        if missing := sizes.num_prompt_rows - row:
            chunks_C4[len(self._chunks), 1:] = row, 0, missing
        return chunks_C4

    def begin(self, automata: Sequence[Automaton | None] | None = None) -> Batch:
        """Return the batch, on the device."""
        sizes, table, params, graphs = self._sizes, self._table, self._params, self._graphs
        num_rows, width = sizes.num_sequences, sizes.width
        stages = prompt_stages = None
        if graphs is None:
            packed_X = send(self._packed, table.device)
            seats_B = packed_X[:num_rows]
            node_slots_BW = packed_X[num_rows:].view(num_rows, width)
            roots_B = table.lengths_A[seats_B] - 1
        else:
            inputs = graphs.take_inputs(num_rows, width, self._packed, table.lengths_A)
            seats_B, roots_B = inputs.seats_B, inputs.roots_B
            node_slots_BW = inputs.node_slots_BW
            params = graphs.params(num_rows, params)
            stages = graphs.of((num_rows, width, self._max_length))
            stages.is_prepared |= self._is_prepared
        if graphs is not None and self._captures_prompts:
            chunks_C4 = graphs.to_static_array("prompt chunks", self._chunks_C4)
            prompt_stages = graphs.of((sizes, self._max_length), stages)
            prompt_stages.is_prepared |= self._is_prepared
        elif sizes.num_chunks:
            chunks_C4 = send(self._chunks_C4, table.device)
        else:
            chunks_C4 = torch.empty((0, 4), dtype=torch.int64, device=table.device)
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
            chunks_C4=chunks_C4,
            num_prompt_rows=sizes.num_prompt_rows,
            prompt_stages=prompt_stages,
        )


def padding_batch(
    table: SequenceTable,
    vocab_size: int,
    num: int,
    width: int,
    length: int,
    temperature: float,
    graphs: StepGraphs | None,
    levels: int,
    num_prompt_rows: int = 0,
) -> PlannedBatch:
    """Return a batch of `num` sequences in the padding seat, which changes no sequence.

    num_prompt_rows: rows of a prompt chunk beside them.
    """
    nothing = np.full(width, NULL_SLOT, dtype=np.int64)
    spans = [
        Span(table.padding_seat, 0, 0, NO_SLOTS, nothing, root_low=1, root_high=1)
        for _ in range(num)
    ]
    if num_prompt_rows:
        slots = np.full(num_prompt_rows, NULL_SLOT, dtype=np.int64)
        spans.append(Span(table.prompt_padding_seat, 0, num_prompt_rows, slots, None))
    sequence = SequenceParams(SamplingParams(temperature=temperature), 0, 0, 1, frozenset())
    params = BatchParams([sequence] * num, vocab_size, table.device)
    return PlannedBatch(table, spans, params, width, length, graphs, levels, captures_at_once=True)
