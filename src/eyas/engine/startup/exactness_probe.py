"""Runs a model over one text in many ways, for the start-up self-check.

Promises: the variants are those of steps: chunks, single tokens, chains, trees and batches, called and
from CUDA graphs. Only the first slots of the cache are written.
Does not know: what the logits are compared with.

Legend: L positions of the text, V vocabulary, R logits rows, W nodes, A seats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from eyas.core import SamplingParams
from eyas.draft_tree import DraftTree
from eyas.runner.batch import Batch, PlannedBatch, Span
from eyas.runner.graphs import CaptureLimits, StepGraphs
from eyas.runner.rows import pack
from eyas.runner.runner import ModelRunner
from eyas.runner.table import SequenceTable
from eyas.sampling import BatchParams, SequenceParams


@dataclass(frozen=True, slots=True)
class Extent:
    """Which variants of a text are run.

    length: of the text. width: most nodes of a tree. chunks: sizes of the chunks that store the second
    copy of the text. starts: positions of single roots. batches: numbers of sequences. max_rows: of one
    forward pass. num_scratch: slots for nodes, and so most nodes of a batch. with_kernels: also run the
    variants that only differ with kernels. with_graphs: also run from CUDA graphs.
    """

    length: int
    width: int
    chunks: tuple[int, ...]
    starts: tuple[int, ...]
    batches: tuple[int, ...]
    max_rows: int
    num_scratch: int
    with_kernels: bool
    with_graphs: bool


REPLAYED_ROWS = 100
"""Rows of a prompt chunk in a CUDA graph."""

Variant = tuple[str, torch.Tensor, torch.Tensor]
"""A name, positions of the text [R] and their logits [R, V]."""


class Probe:
    """A random text, stored twice, and the variants of running the model over it.

    The first copy is stored in the largest chunks that are possible, the second in small and odd ones.
    All other variants read the second copy, and write nodes to slots that are not read afterwards.
    """

    def __init__(self, runner: ModelRunner, extent: Extent) -> None:
        self.runner = runner
        self.extent = extent
        self.device = device = runner.model.device
        self.vocab = runner.model.spec.vocab_size
        self.draw = np.random.default_rng(0)
        length, width = extent.length, extent.width
        self.tokens = self.draw.integers(0, self.vocab, size=length + 1)
        slots = np.arange(1, 2 * length + extent.num_scratch + 1, dtype=np.int64)
        self.copies = (slots[:length], slots[length : 2 * length])
        self.scratch = slots[2 * length :]
        self.num_seats = num_seats = max(extent.batches) + 1
        self.table = SequenceTable(num_seats, length + 1, width, device, runner.backend.kv.states)
        self._state_positions = [0] * num_seats
        text = self.tokens.tolist()
        for _ in range(num_seats):
            self.table.seat(text, self.copies[1])
        self.sequence_params = SequenceParams(SamplingParams(temperature=0), 0, 0, 1, frozenset())
        self.graphs: StepGraphs | None = None
        if extent.with_graphs:
            prompt_rows = extent.max_rows if runner.captures_prompts else 0
            limits = CaptureLimits(prompt_rows=prompt_rows)
            self.graphs = StepGraphs(device, limits, announcer=runner.leader)

    def reference(self) -> torch.Tensor:
        """Return the logits [L, V] of the text, computed in as few chunks as possible."""
        length, max_rows = self.extent.length, self.extent.max_rows
        chunks = [
            self._chunk(start, min(max_rows, length - start), self.copies[0])
            for start in range(0, length, max_rows)
        ]
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks)

    def variants(self) -> Iterator[Variant]:
        """Yield logits of rows of the same text, computed in other ways."""
        yield from self._chunks()
        for start in self.extent.starts:
            yield "a single token", *self._nodes([start], 1)
        if not self.extent.with_kernels:
            for start in self.extent.starts:
                yield "a chain", *self._nodes([start], self.extent.width)
                for num in self.extent.batches:
                    yield "a batch", *self._nodes(self._spread(num, 3), 3)
                yield "a tree", *self._nodes([start], self.extent.width, is_tree=True)
            return
        yield from self._batches()
        yield from self._batches_with_chunks()
        if self.graphs is not None:
            yield from self._replays()
        yield from self._most_rows()

    def _chunks(self) -> Iterator[Variant]:
        start, length, max_rows = 0, self.extent.length, self.extent.max_rows
        counts = iter(self.extent.chunks)
        while start < length:
            count = min(next(counts, length), max_rows, length - start)
            logits_RV = self._chunk(start, count, self.copies[1])
            yield f"a chunk of {count}", self._range(start, count), logits_RV
            start += count
        count = min(length - 5, max_rows)
        yield "an odd chunk", self._range(3, count), self._chunk(3, count, self.copies[1])

    def _batches(self) -> Iterator[Variant]:
        """Yield batches of roots, of chains and of trees, with sizes that need padding among them."""
        width = self.extent.width
        for num in self.extent.batches:
            yield f"a batch of {num}", *self._nodes(self._spread(num, 1), 1)
        max_nodes = min(self.extent.num_scratch, self.extent.max_rows)
        for w in sorted({min(w, width) for w in (2, 3, 5, 8, width)}):
            max_seqs = min(self.extent.batches[-1], max_nodes // w)
            for num in sorted({1, min(3, max_seqs), max_seqs}):
                yield f"chains {num} x {w}", *self._nodes(self._spread(num, w), w)
                yield f"trees {num} x {w}", *self._nodes(self._spread(num, w), w, is_tree=True)

    def _batches_with_chunks(self) -> Iterator[Variant]:
        """Yield batches of trees and a chunk."""
        length, width = self.extent.length, self.extent.width
        for w, count in ((width, 100), (1, 30), (1, length - 9)):
            num = max(
                1,
                min(
                    self.num_seats - 1,
                    5,
                    self.extent.max_rows // 2 // w,
                    self.extent.num_scratch // w,
                ),
            )
            start = max(0, length // 3 - count)
            count = min(count, length - start, self.extent.max_rows - num * w)
            if count > 0:
                chunk, starts = (start, count), self._spread(num, w)
                yield "a chunk in a batch", *self._nodes(starts, w, w > 1, chunk=chunk)

    def _replays(self) -> Iterator[Variant]:
        """Yield replays of a CUDA graph with different roots."""
        for num, w, is_tree in ((1, 1, False), (5, 1, False), (3, self.extent.width, True)):
            num = min(num, self.num_seats - 1)
            if num * w <= min(self.extent.max_rows // 2, self.extent.num_scratch):
                for _ in range(3):
                    starts = self._spread(num, w)
                    yield "a graph", *self._nodes(starts, w, is_tree, graphs=self.graphs)
        most = min(self.extent.max_rows - 1, self.extent.length - 1, REPLAYED_ROWS)
        if self.runner.captures_prompts and most > 2:
            for count in (most, most - 1, most - 2):
                start = int(self.draw.integers(0, self.extent.length - count))
                yield "a graph with a chunk", *self._chunk_and_root(start, count)

    def _most_rows(self) -> Iterator[Variant]:
        """Yield the last chunk of one forward pass of many chunks that has the most rows possible."""
        length, max_rows = self.extent.length, self.extent.max_rows
        counts = [length] * (max_rows // length) + [max_rows % length]
        counts = [count for count in counts if count][-self.num_seats :]
        self._restore(len(counts))
        spans = [self._span(a, 0, count, self.copies[1]) for a, count in enumerate(counts)]
        spans[-1] = replace(spans[-1], wants_context_logits=True)
        yield f"{sum(counts)} rows", self._range(0, counts[-1]), self._run(spans, 1, None, length)

    def _range(self, start: int, count: int) -> torch.Tensor:
        return torch.arange(start, start + count, device=self.device)

    def _spread(self, num: int, width: int) -> list[int]:
        """Return random positions for `num` roots."""
        highest = self.extent.length - width
        return self.draw.integers(1, highest + 1, size=num).tolist()

    def _span(self, seat: int, start: int, count: int, slots: np.ndarray) -> Span:
        return Span(seat, start, count, slots[start : start + count], None)

    def _chunk(self, start: int, count: int, slots: np.ndarray) -> torch.Tensor:
        """Return the logits of a chunk. slots: of the text's positions; those before it are stored."""
        self.table.write_slots(0, 0, slots)
        if self._state_positions[0] != start:
            self._begin([(0, start)], slots)
        self._state_positions[0] = start + count
        span = replace(self._span(0, start, count, slots), wants_context_logits=True)
        logits_RV = self._run([span], 1, None, start + count)
        self.table.write_slots(0, 0, self.copies[1])
        return logits_RV

    def _nodes(
        self,
        starts: Sequence[int],
        width: int,
        is_tree: bool = False,
        *,
        chunk: tuple[int, int] | None = None,
        graphs: StepGraphs | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a batch of chains or trees. Returns positions and logits of the nodes with the text's own
        tokens: all nodes of a chain, a random path of a tree; then those of the chunk.

        starts: positions of the roots. chunk: (first position, number of rows) of a chunk in the batch.
        """
        num = len(starts)
        last = (max(starts) if graphs is None else self.extent.length) + width + 1
        tokens_BW, parents_BW, rows, positions, spans = [], [], [], [], []
        free = self.scratch
        self._restore(num)
        for b, start in enumerate(starts):
            parents, path = random_tree(self.draw, width) if is_tree else chain_of(width)
            tokens_W = self.draw.integers(0, self.vocab, size=width)
            tokens_W[path] = self.tokens[start : start + len(path)]
            tokens_BW.append(tokens_W)
            parents_BW.append(parents)
            rows += [b * width + node for node in path]
            positions += range(start, start + len(path))
            spans.append(Span(b, start, 0, free[:0], free[b * width : (b + 1) * width]))
            self.table.lengths_A[b] = start + 1
        begun = list(enumerate(starts))
        if chunk is not None:
            start, count = chunk
            self.table.write_slots(num, 0, self.copies[1])
            begun.append((num, start))
            span = self._span(num, start, count, self.copies[1])
            spans.append(replace(span, wants_context_logits=True))
            rows += range(num * width, num * width + count)
            positions += range(start, start + count)
            last = max(last, start + count)
        self._begin(begun, self.copies[1])
        grids = (np.stack(tokens_BW), np.array(parents_BW, dtype=np.int64))
        logits_RV = self._run(spans, width, grids, last, is_chain=not is_tree, graphs=graphs)
        device = self.device
        picked_R = torch.tensor(rows, device=device)
        return torch.tensor(positions, device=device), logits_RV[picked_R]

    def _chunk_and_root(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a chunk from a graph together with the token after it, which sees it. Returns the
        position and logits of that token."""
        stop = start + count
        self._restore(1)
        self.table.lengths_A[0] = stop + 1
        span = replace(self._span(0, start, count, self.copies[1]), node_slots=self.scratch[:1])
        grids = np.array([[self.tokens[stop]]]), np.array([[-1]])
        logits_RV = self._run([span], 1, grids, self.extent.length + 2, graphs=self.graphs)
        return self._range(stop, 1), logits_RV[:1]

    def _begin(self, begun: Sequence[tuple[int, int]], slots: np.ndarray) -> None:
        """Run the text before given positions, in given seats, where layers have a state per sequence,
        which stored keys and values do not replace."""
        if self.runner.backend.kv.states is None:
            return
        self._state_positions = [-1] * self.num_seats
        spans: list[Span] = []
        room = self.extent.max_rows
        for seat, start in begun:
            if start > room:
                self._store(spans)
                spans, room = [], self.extent.max_rows
            done = 0
            while start - done > room:  # a text longer than a forward pass
                self._store([self._span(seat, done, room, slots)])
                done += room
            if start > done:
                spans.append(self._span(seat, done, start - done, slots))
                room -= start - done
        self._store(spans)

    def _store(self, spans: list[Span]) -> None:
        """Run one forward pass of chunks for what it stores."""
        if spans:
            last = max(span.context_stop for span in spans)
            self._forward(self._planned(spans, 1, 0, last).begin(), self._no_tree())

    def _restore(self, num: int) -> None:
        """Make the first `num` seats read the second copy again: chains overwrite slots of the
        table."""
        slots_L = torch.from_numpy(self.copies[1]).to(self.device)
        self.table.slots_AC[:num, : self.extent.length] = slots_L

    def _run(
        self,
        spans: list[Span],
        width: int,
        grids: tuple[np.ndarray, np.ndarray] | None,
        max_length: int,
        *,
        is_chain: bool = True,
        graphs: StepGraphs | None = None,
    ) -> torch.Tensor:
        """Run one forward pass. grids: tokens and parents [B, W] of the spans with a root."""
        num = 0 if grids is None else len(grids[0])
        batch = self._planned(spans, width, num, max_length, graphs).begin()
        if grids is None:
            tree = self._no_tree()
        else:
            padding = ((0, batch.num_rows - num), (0, 0))
            tokens_BW, parents_BW = (
                torch.from_numpy(np.pad(grid, padding, mode="edge")).to(self.device)
                for grid in grids
            )
            sizes_B = torch.full_like(tokens_BW[:, 0], width)
            tree = batch.to_static(DraftTree(tokens_BW, parents_BW, sizes_B, is_chain))
        forward = partial(self._logits, batch, tree)
        return batch.stage("forward", (width, is_chain), forward, reads_context=True)

    def _planned(
        self,
        spans: list[Span],
        width: int,
        num: int,
        max_length: int,
        graphs: StepGraphs | None = None,
    ) -> PlannedBatch:
        params = BatchParams([self.sequence_params] * num, self.vocab, self.device)
        return PlannedBatch(self.table, spans, params, width, max_length, graphs=graphs)

    def _no_tree(self) -> DraftTree:
        empty = torch.empty((0, 1), dtype=torch.int64, device=self.device)
        return DraftTree(empty, empty, empty[:, 0], is_chain=True)

    def _forward(self, batch: Batch, tree: DraftTree) -> torch.Tensor | None:
        with torch.inference_mode():
            return self.runner.forward(pack(batch, tree)).logits_RV

    def _logits(self, batch: Batch, tree: DraftTree) -> torch.Tensor:
        logits = self._forward(batch, tree)
        assert logits is not None
        # On a device the next forward writes to the same memory.
        return logits if logits.device.type == "cpu" else logits.clone()


def chain_of(width: int) -> tuple[list[int], list[int]]:
    """Return the parents of a chain's nodes, and its path: all nodes."""
    return list(range(-1, width - 1)), list(range(width))


def random_tree(draw: np.random.Generator, width: int) -> tuple[list[int], list[int]]:
    """Return the parents of a random tree's nodes, and a path from the root of about half of them."""
    parents, path = [-1], [0]
    for node in range(1, width):
        if draw.random() < 0.5 or node == 1:
            parents.append(path[-1])
            path.append(node)
        else:
            parents.append(int(draw.integers(0, node)))
    return parents, path
