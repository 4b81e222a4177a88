"""The interface of drafters: a drafter proposes a draft tree for each sequence with a root in a batch.

Promises: the output does not depend on what a drafter proposes. A drafter decides only how many tokens
one step can yield.
Does not know: the target's logits of the same step, sampling parameters beyond `batch.params`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from eyas.draft.network import DraftNetwork
from eyas.draft.prefix_rows import PrefixRows
from eyas.draft_tree import DraftTree, Verdict
from eyas.runner.batch import Batch
from eyas.runner.runner import Output

MAX_REMEMBERED = 4
"""Proposed trees that a drafter remembers until their steps land: more than are ever in flight."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    """The largest size of a draft tree.

    steps: levels below the root. topk: children that each node proposes; 1 is a chain. nodes: nodes of
    the tree, the root included, chosen by score. extra: nodes that another drafter may add to the tree.
    """

    steps: int
    topk: int
    nodes: int
    extra: int = 0

    @property
    def width(self) -> int:
        """Most nodes of the tree, extra ones included."""
        return self.nodes + self.extra

    @property
    def levels(self) -> int:
        """Most levels of the tree, that of the root included. This is also the most tokens that a step
        can add to a sequence."""
        return min(self.width, 1 + self.steps + self.extra)

    @property
    def num_candidates(self) -> int:
        """Nodes that are generated below the root; the best `nodes - 1` of them make the tree."""
        return self.topk + (self.steps - 1) * self.topk**2 if self.steps else 0

    def capped(self, other: TreeShape) -> TreeShape:
        """Return this shape cut to the steps, children and nodes of `other`, without extra nodes."""
        steps, topk = min(self.steps, other.steps), min(self.topk, other.topk)
        return TreeShape(steps, topk, min(self.nodes, other.nodes))

    def within(self, width: int) -> TreeShape:
        """Return this shape cut to at most `width` nodes in all. A chain gets one node a level."""
        nodes = min(width, self.nodes)
        if self.topk == 1:
            nodes = min(nodes, self.steps + 1)
        extra = min(self.extra, width - nodes)
        return TreeShape(min(self.steps, nodes - 1), self.topk, nodes, extra)

    @property
    def alone(self) -> TreeShape:
        """This shape without extra nodes."""
        return replace(self, extra=0)


@dataclass(frozen=True, slots=True)
class StepReport:
    """The result of a landed step, for drafters that adapt to it. Lists have one entry a rooted
    sequence.

    tree: as the drafter proposed it. counts: tokens that the step chose; -1 if it chose none. sizes:
    proposed nodes, the root and nodes that a grammar refused included. seconds: wall time of the
    step; None if the step also stored prompt chunks, captured a graph, or ran before its shape is
    captured. accepted: for each accepted node, from the root down, the source that proposed it (an
    index into `Drafter.sources`). sequences: a number that the sequence has in all steps, and no other
    sequence. num_prompt_rows: rows of prompt chunks in the step.
    """

    tree: DraftTree
    counts: Sequence[int]
    sizes: Sequence[int]
    seconds: float | None
    accepted: Sequence[Sequence[int]]
    sequences: Sequence[int]
    num_prompt_rows: int = 0


class Drafter(ABC):
    """Proposes draft trees. Subclasses implement `propose`.

    sources: names of what proposes nodes; `DraftTree.source_BW` holds indices into it. taps: layers of
    the target whose hidden states `observe` receives. shape: of the largest tree that it proposes.
    """

    sources: tuple[str, ...] = ("draft",)
    taps: tuple[int, ...] = ()
    shape: TreeShape = TreeShape(0, 1, 1)

    @property
    def name(self) -> str:
        """Its name in logs and in `EngineInfo.drafter`."""
        return type(self).__name__

    @property
    def reads_automata(self) -> bool:
        """Whether `propose` reads `Batch.automata`. If so, a step of a constrained sequence lands
        before the next one is drafted."""
        return False

    @property
    def networks(self) -> tuple[DraftNetwork, ...]:
        """The neural networks that it runs."""
        return ()

    @property
    def prefix_rows(self) -> PrefixRows | None:
        """What its network stores of a prefix; None without a network."""
        return None

    @property
    def width(self) -> int:
        """Most nodes that it proposes, the root included."""
        return self.shape.width

    def preferred_shape(
        self, num_sequences: int, num_constrained: int = 0, num_prompt_rows: int = 0
    ) -> TreeShape:
        """Return the tree shape that it prefers for the next step. A shape of one node means no draft.

        num_sequences: sequences with a root in the step. num_constrained: sequences with a grammar
        among all that may join the step, waiting ones included. num_prompt_rows: rows of prompt chunks
        that the step may have beside the trees.
        """
        return self.shape

    @abstractmethod
    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        """Return a tree no larger than `shape` for each sequence with a root.

        Also called for batches of prompt chunks only, so that a drafting network can process them. Its
        tensors are best made where `batch.seats_B` is; on the CPU they are copied.
        shape: the preferred shape, cut to the capacity of the step (`batch.width`).
        """

    def num_missing(self, batch: Batch) -> int:
        """Return the number of rows that it must compute before it can draft for the sequences of a
        batch that it has proposed for. It may be less where prefixes are shared."""
        return 0

    def observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        """Receive the target's hidden states of a step. verdict: None if no sequence had a root."""
        return None

    def learn(self, report: StepReport) -> None:
        """Receive the result of a step whose tree this drafter proposed, once it has landed."""
        return None


class DrafterWrapper(Drafter):
    """Forwards all calls to another drafter. Subclasses override some of them."""

    def __init__(self, inner: Drafter) -> None:
        self._wrap(inner)

    def _wrap(self, inner: Drafter) -> None:
        self._inner = inner
        self.sources, self.taps, self.shape = inner.sources, inner.taps, inner.shape

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def reads_automata(self) -> bool:
        return self._inner.reads_automata

    @property
    def networks(self) -> tuple[DraftNetwork, ...]:
        return self._inner.networks

    @property
    def prefix_rows(self) -> PrefixRows | None:
        return self._inner.prefix_rows

    def preferred_shape(
        self, num_sequences: int, num_constrained: int = 0, num_prompt_rows: int = 0
    ) -> TreeShape:
        return self._inner.preferred_shape(num_sequences, num_constrained, num_prompt_rows)

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        return self._inner.propose(batch, shape)

    def num_missing(self, batch: Batch) -> int:
        return self._inner.num_missing(batch)

    def observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        self._inner.observe(batch, output, verdict)

    def learn(self, report: StepReport) -> None:
        self._inner.learn(report)


def chain(tokens_BW: torch.Tensor, sizes_B: torch.Tensor) -> DraftTree:
    """Return a tree in which the parent of each node is the node before it."""
    width = tokens_BW.shape[1]
    parents_W = torch.arange(-1, width - 1, device=tokens_BW.device)
    return DraftTree(tokens_BW, parents_W.expand(tokens_BW.shape[0], -1), sizes_B, is_chain=True)


def roots_alone(batch: Batch) -> DraftTree:
    """Return a tree of one node, the root, for each sequence."""
    root_B1 = root_tokens(batch)
    return chain(root_B1, torch.ones_like(root_B1[:, 0]))


def root_tokens(batch: Batch) -> torch.Tensor:
    """Return the last token [B, 1] of each sequence with a root."""
    return batch.table.tokens_AC[batch.seats_B, batch.roots_B].unsqueeze(1)
