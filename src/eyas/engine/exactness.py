"""The start-up self-check: is a row's result on this machine the same bits however it is computed?

Promises: runs the real model through the real rooms: a text in one chunk, token by token, as chains, as
trees, beside neighbours, and compares logits bit for bit. What it cannot show it does not claim.
Does not know: which kernels ran.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from eyas.core import DraftTree, SamplingParams
from eyas.layers.row_order import RowOrderReport
from eyas.runner.batch import Batch, Span
from eyas.runner.rows import pack
from eyas.runner.runner import ModelRunner
from eyas.runner.table import SequenceTable
from eyas.sampling import BatchParams, RowSource

_LENGTH = 72
_WIDTH = 6


@dataclass(frozen=True, slots=True)
class Exactness:
    """exact: the claim; reason: what was shown, or what broke it."""

    exact: bool
    reason: str


def check_exactness(
    runner: ModelRunner, order: RowOrderReport, max_length: int, num_slots: int
) -> Exactness:
    """Uses the first slots of the cache, before anybody else does."""
    if not order.exact:
        return Exactness(False, order.reason)
    length = min(_LENGTH, max_length - 1, num_slots // 2 - _WIDTH)
    if length < 8:
        return Exactness(False, "the cache is too small for the self-check")
    probe = _Probe(runner, length)
    reference_LV = probe.whole()
    for name, start, logits_RV in probe.other_ways():
        expected = reference_LV[start : start + len(logits_RV)]
        if not torch.equal(logits_RV, expected):
            error = (logits_RV - expected).abs().max().item()
            return Exactness(False, f"{name} differs from one chunk (by up to {error:.1e})")
    return Exactness(
        True, f"chunks, single tokens, chains, trees and batches agree bit for bit; {order.reason}"
    )


class _Probe:
    """A random text and the ways to run it."""

    def __init__(self, runner: ModelRunner, length: int) -> None:
        self.runner = runner
        self.length = length
        device = runner.model.device
        vocab = runner.model.spec.vocab_size
        generator = np.random.default_rng(0)
        self.tokens = generator.integers(0, vocab, size=length + 1).tolist()
        self.others = generator.integers(0, vocab, size=length + 1).tolist()
        self.table = SequenceTable(2, length + 1, _WIDTH, device)
        self.slots = [
            np.arange(1, length + 1 + _WIDTH, dtype=np.int64),
            np.arange(length + 1 + _WIDTH, 2 * (length + _WIDTH) + 1, dtype=np.int64),
        ]
        self.seats = [
            self.table.seat(t, s[:length])
            for t, s in zip((self.tokens, self.others), self.slots, strict=True)
        ]
        source = RowSource(SamplingParams(temperature=0), 0, 0, 1, frozenset())
        self.params = {n: BatchParams([source] * n, vocab, device) for n in (0, 1, 2)}

    def whole(self) -> torch.Tensor:
        """[L, V] logits of the text in one chunk."""
        return self._chunk(0, 0, self.length)

    def other_ways(self) -> Iterator[tuple[str, int, torch.Tensor]]:
        """(name, first row, logits) of the same rows computed differently."""
        middle = self.length // 2
        yield "a second chunk", middle, self._chunk(0, middle, self.length - middle)
        yield "an odd chunk", 3, self._chunk(0, 3, self.length - 5)
        self._chunk(1, 0, self.length)
        for start in (1, middle, self.length - _WIDTH):
            yield "a single token", start, self._nodes([0], start, width=1)
            yield "a chain", start, self._nodes([0], start, width=_WIDTH)
            yield "a batch", start, self._nodes([0, 1], start, width=3)
            yield "a tree", start, self._tree(start)
        yield "the last chunk", 0, self._chunk(0, 0, self.length)

    def _chunk(self, which: int, start: int, count: int) -> torch.Tensor:
        slots = self.slots[which][start : start + count]
        span = Span(self.seats[which], start, count, slots, None, wants_context_logits=True)
        batch = Batch(self.table, [span], self.params[0], 1, start + count)
        empty = torch.empty((0, 1), dtype=torch.int64, device=self.table.device)
        tree = DraftTree(empty, empty, empty[:, 0], is_chain=True)
        return self._logits(batch, tree)

    def _nodes(self, which: list[int], start: int, width: int) -> torch.Tensor:
        """The text's own tokens from `start` as a chain; rows of the first sequence."""
        tokens = [(self.tokens, self.others)[i][start : start + width] for i in which]
        parents = [list(range(-1, width - 1))] * len(which)
        return self._grid(which, start, tokens, parents, is_chain=True)[:width]

    def _tree(self, start: int) -> torch.Tensor:
        """The same chain among branches that lead elsewhere."""
        own = self.tokens[start : start + 3]
        other = self.others[start : start + 3]
        tokens = [own[0], other[1], own[1], other[2], own[2], other[0]]
        parents = [-1, 0, 0, 1, 2, 2]
        return self._grid([0], start, [tokens], [parents], is_chain=False)[[0, 2, 4]]

    def _grid(
        self,
        which: list[int],
        start: int,
        tokens: list[list[int]],
        parents: list[list[int]],
        *,
        is_chain: bool,
    ) -> torch.Tensor:
        width = len(tokens[0])
        device = self.table.device
        spans = []
        for i in which:
            nodes = self.slots[i][start : start + width]
            if not is_chain:  # keep the text's own slots as they are
                nodes = np.concatenate((nodes[:1], self.slots[i][-_WIDTH:][1:]))
            seat = self.seats[i]
            self.table.lengths_A[seat] = start + 1
            spans.append(Span(seat, start, 0, nodes[:0], nodes))
        batch = Batch(self.table, spans, self.params[len(which)], width, start + width + 1)
        sizes = torch.full((len(which),), width, device=device)
        tree = DraftTree(
            torch.tensor(tokens).to(device), torch.tensor(parents).to(device), sizes, is_chain
        )
        logits = self._logits(batch, tree)
        if not is_chain:
            self._chunk(0, start, 1)
        return logits

    def _logits(self, batch: Batch, tree: DraftTree) -> torch.Tensor:
        with torch.inference_mode():
            logits = self.runner.forward(pack(batch, tree)).logits_RV
        assert logits is not None
        return logits
