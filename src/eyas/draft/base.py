"""The door of drafting: a drafter proposes a tree for every rooted sequence of a batch.

Promises: whatever a drafter proposes, the output stays what it would be without it; a drafter decides
only how many tokens one step can yield.
Does not know: the target's logits before they are there, sampling parameters beyond `batch.params`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from eyas.core import DraftTree, Verdict
from eyas.draft.network import DraftNetwork
from eyas.runner.batch import Batch
from eyas.runner.runner import Output

MAX_REMEMBERED = 4
"""Trees that a drafter may know again once their steps have landed: more than are ever under way."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    """How large a tree may grow. steps: levels below the root; topk: children that a node proposes
    (1 is a chain); nodes: all of them, the root included, kept by score. extra: nodes that somebody
    else may add to it."""

    steps: int
    topk: int
    nodes: int
    extra: int = 0

    @property
    def width(self) -> int:
        """Most nodes of the whole tree."""
        return self.nodes + self.extra

    @property
    def levels(self) -> int:
        """Most levels of the whole tree, the root's among them, and so most tokens of a step."""
        return min(self.width, 1 + self.steps + self.extra)

    @property
    def num_candidates(self) -> int:
        """Nodes that are grown below the root, of which the best are kept."""
        return self.topk + (self.steps - 1) * self.topk**2 if self.steps else 0

    def capped(self, other: TreeShape) -> TreeShape:
        """The same, in no respect larger than `other`, and nobody else's."""
        steps, topk = min(self.steps, other.steps), min(self.topk, other.topk)
        return TreeShape(steps, topk, min(self.nodes, other.nodes))

    def within(self, width: int) -> TreeShape:
        """The same for at most `width` nodes; a chain has no more nodes than levels below its root."""
        nodes = min(width, self.nodes)
        if self.topk == 1:
            nodes = min(nodes, self.steps + 1)
        extra = min(self.extra, width - nodes)
        return TreeShape(min(self.steps, nodes - 1), self.topk, nodes, extra)

    @property
    def alone(self) -> TreeShape:
        """The same without what somebody else may add."""
        return replace(self, extra=0)


@dataclass(frozen=True, slots=True)
class StepReport:
    """A landed step, for drafters that learn from it. counts: tokens that each rooted sequence got.

    sizes: nodes that were proposed, the root included, what a grammar refused as well. seconds: how
    long the step took; None where it did other work too. accepted: who had proposed (an index into the
    drafter's sources) each accepted node of a sequence, from the root down.
    """

    tree: DraftTree
    counts: Sequence[int]
    sizes: Sequence[int]
    seconds: float | None
    accepted: Sequence[Sequence[int]] = ()


class Drafter(ABC):
    """taps: hidden states of the target it wants to observe. shape: of the largest tree it grows.
    sources: names of what proposes, by the numbers of `DraftTree.source_BW`."""

    sources: tuple[str, ...] = ("draft",)
    taps: tuple[int, ...] = ()
    shape: TreeShape = TreeShape(0, 1, 1)

    @property
    def reads_automata(self) -> bool:
        """Does it look at `Batch.automata`? Then steps of constrained sequences land before it drafts
        for them again."""
        return False

    @property
    def networks(self) -> tuple[DraftNetwork, ...]:
        """The networks it runs, most drafters none."""
        return ()

    @property
    def width(self) -> int:
        """Most nodes it ever proposes, the root included."""
        return self.shape.width

    def preferred_shape(self, num_sequences: int, num_constrained: int = 0) -> TreeShape:
        """How large a tree it wants for a step of so many rooted sequences; one node is not to draft.
        num_constrained: sequences with a grammar among all that may step, new ones included."""
        return self.shape

    @abstractmethod
    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        """A tree no larger than `shape` for each rooted sequence; also called for batches that store
        prompt chunks only, so that a drafter with rows of its own keeps up. shape: what it wished for,
        cut to what the step has room for (`batch.width`)."""

    def observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        """See what the target made of a step; no verdict where no sequence was rooted."""
        return None

    def learn(self, report: StepReport) -> None:
        """Hear what became of a tree, once its step has landed."""
        return None


class DrafterWrapper(Drafter):
    """Another drafter, for who changes some of what it does."""

    def __init__(self, inner: Drafter) -> None:
        self._wrap(inner)

    def _wrap(self, inner: Drafter) -> None:
        self._inner = inner
        self.sources, self.taps, self.shape = inner.sources, inner.taps, inner.shape

    @property
    def reads_automata(self) -> bool:
        return self._inner.reads_automata

    @property
    def networks(self) -> tuple[DraftNetwork, ...]:
        return self._inner.networks

    def preferred_shape(self, num_sequences: int, num_constrained: int = 0) -> TreeShape:
        return self._inner.preferred_shape(num_sequences, num_constrained)

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        return self._inner.propose(batch, shape)

    def observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        self._inner.observe(batch, output, verdict)

    def learn(self, report: StepReport) -> None:
        self._inner.learn(report)


def chain(tokens_BW: torch.Tensor, sizes_B: torch.Tensor) -> DraftTree:
    """A tree in which every node continues the one before it."""
    width = tokens_BW.shape[1]
    parents_W = torch.arange(-1, width - 1, device=tokens_BW.device)
    return DraftTree(tokens_BW, parents_W.expand(tokens_BW.shape[0], -1), sizes_B, is_chain=True)


def roots_alone(batch: Batch) -> DraftTree:
    """Trees of nothing but their roots."""
    root_B1 = root_tokens(batch)
    return chain(root_B1, torch.ones_like(root_B1[:, 0]))


def root_tokens(batch: Batch) -> torch.Tensor:
    """[B, 1] the last known token of each rooted sequence."""
    return batch.table.tokens_AC[batch.seats_B, batch.roots_B].unsqueeze(1)
