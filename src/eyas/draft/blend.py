"""A blend: the trees of several drafters merged into one, as a trie.

Promises: a continuation that two drafters propose becomes one node, which records the first of them as
its source. If the nodes do not suffice, each drafter gets an equal share, and the drafters named first
get what the others leave.
Does not know: how the drafters draft.

Legend: B sequences, W nodes of the merged tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from eyas.draft.base import Drafter, StepReport, TreeShape, roots_alone
from eyas.draft.network import DraftNetwork
from eyas.draft.prefix_rows import PrefixRows
from eyas.draft_tree import DraftTree, Verdict
from eyas.ops.merge_trees import merge_trees
from eyas.runner.batch import Batch
from eyas.runner.runner import Output


class BlendDrafter(Drafter):
    """Merges the trees of several drafters.

    sources: the drafters; at most one of them may read taps. nodes: most nodes of the merged tree, the
    root included. Raises ValueError if several sources read taps.
    """

    def __init__(self, sources: Sequence[Drafter], nodes: int) -> None:
        readers = [source for source in sources if source.taps]
        if len(readers) > 1:
            raise ValueError("a blend takes one drafter that reads the target's hidden states")
        self._sources = tuple(sources)
        self.taps = readers[0].taps if readers else ()
        self.sources = tuple(source.sources[0] for source in sources)
        steps = max(source.shape.steps for source in sources)
        self.shape = TreeShape(steps, max(source.shape.topk for source in sources), nodes)

    @property
    def reads_automata(self) -> bool:
        return any(source.reads_automata for source in self._sources)

    @property
    def networks(self) -> tuple[DraftNetwork, ...]:
        return tuple(network for source in self._sources for network in source.networks)

    @property
    def prefix_rows(self) -> PrefixRows | None:
        """Those of the source with a network, of which there is at most one."""
        rows = [source.prefix_rows for source in self._sources]
        return next((each for each in rows if each is not None), None)

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        nodes = shape.nodes
        trees = [
            source.propose(batch, source.shape.capped(shape).within(nodes))
            for source in self._sources
        ]
        num_caught_up = sum(tree.num_caught_up for tree in trees)
        roots = roots_alone(batch)
        source_BW = torch.zeros_like(roots.tokens_BW)
        merged = replace(roots, source_BW=source_BW, num_caught_up=num_caught_up)
        if nodes == 1 or max(tree.width for tree in trees) == 1:
            return merged
        share = (nodes - 1) // len(trees)
        reserved = [min(tree.width - 1, share) for tree in trees]
        for i, tree in enumerate(trees):
            limit = nodes - sum(reserved[i + 1 :])
            merged = merge(merged, tree, i, max(limit, merged.width))
        return merged

    def num_missing(self, batch: Batch) -> int:
        return sum(source.num_missing(batch) for source in self._sources)

    def observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        for source in self._sources:
            source.observe(batch, output, verdict)

    def learn(self, report: StepReport) -> None:
        for source in self._sources:
            source.learn(report)


def merge(into: DraftTree, tree: DraftTree, source: int, width: int) -> DraftTree:
    """`into` with the nodes of `tree` that it lacks, at most `width` nodes; new ones are `source`'s.
    Nodes below one that found no room are left out."""
    merged = merge_trees(into, tree, source, width)
    merged.num_caught_up = into.num_caught_up
    merged.score_BW = widened_scores(into, merged.width)
    return merged


def widened_scores(tree: DraftTree, width: int) -> torch.Tensor | None:
    """Return the scores [B, W] of a tree to which nodes without a score were added; None if it has
    none."""
    if tree.score_BW is None:
        return None
    columns_W = torch.arange(width, device=tree.score_BW.device)
    score_BW = torch.nn.functional.pad(tree.score_BW, (0, max(0, width - tree.width)))[:, :width]
    return score_BW.masked_fill(columns_W >= tree.sizes_B.unsqueeze(1), math.nan)
