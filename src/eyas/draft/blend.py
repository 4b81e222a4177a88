"""A blend: the trees of several drafters merged into one, as a trie.

Promises: a continuation that two drafters propose becomes one node, which records the first of them as
its source. If the nodes do not suffice, each drafter gets an equal share, and the drafters named first
get what the others leave.
Does not know: how the drafters draft.

Legend: B sequences, W nodes of the merged tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from eyas.core import DraftTree, Verdict
from eyas.draft.base import Drafter, StepReport, TreeShape, roots_alone
from eyas.draft.network import DraftNetwork
from eyas.kernels import usable
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

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        nodes = shape.nodes
        trees = [
            source.propose(batch, source.shape.capped(shape).within(nodes))
            for source in self._sources
        ]
        caught_up = any(tree.caught_up for tree in trees)
        roots = roots_alone(batch)
        merged = replace(roots, source_BW=torch.zeros_like(roots.tokens_BW), caught_up=caught_up)
        if nodes == 1 or max(tree.width for tree in trees) == 1:
            return merged
        share = (nodes - 1) // len(trees)
        reserved = [min(tree.width - 1, share) for tree in trees]
        for i, tree in enumerate(trees):
            limit = nodes - sum(reserved[i + 1 :])
            merged = merge(merged, tree, i, max(limit, merged.width))
        return merged

    def observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        for source in self._sources:
            source.observe(batch, output, verdict)

    def learn(self, report: StepReport) -> None:
        for source in self._sources:
            source.learn(report)


def merge(into: DraftTree, tree: DraftTree, source: int, width: int) -> DraftTree:
    """Return `into` with the nodes of `tree` that it lacks, at most `width` nodes in all.

    source: recorded for the new nodes. Nodes whose parent did not fit are left out too.
    """
    num, old_width = into.tokens_BW.shape
    device = into.tokens_BW.device
    grown = max(old_width, min(width, old_width + tree.width - 1))
    if usable(device):
        return _merge_by_kernel(into, tree, source, grown)
    tokens_BW = torch.nn.functional.pad(into.tokens_BW, (0, grown - old_width + 1))
    parents_BW = torch.nn.functional.pad(into.parents_BW, (0, grown - old_width + 1))
    assert into.source_BW is not None
    source_BW = torch.nn.functional.pad(into.source_BW, (0, grown - old_width + 1))
    sizes_B = into.sizes_B.clone()
    columns_W = torch.arange(
        grown + 1, device=device
    )  # the last column takes nodes that do not fit
    place_BW = torch.zeros_like(
        tree.tokens_BW
    )  # node of `tree` -> node of the merged one, -1: none
    for w in range(1, tree.width):
        above_B1 = place_BW.gather(1, tree.parents_BW[:, w : w + 1].clamp(min=0))
        token_B1 = tree.tokens_BW[:, w : w + 1]
        is_same_BW = (parents_BW == above_B1) & (tokens_BW == token_B1) & (columns_W > 0)
        is_same_BW &= columns_W < sizes_B.unsqueeze(1)
        is_known_B = is_same_BW.any(dim=1)
        known_B = is_same_BW.to(torch.int64).argmax(dim=1)
        wanted_B = (w < tree.sizes_B) & (above_B1.squeeze(1) >= 0)
        is_new_B = wanted_B & ~is_known_B & (sizes_B < grown)
        at_B1 = torch.where(is_new_B, sizes_B, grown).unsqueeze(1)
        tokens_BW.scatter_(1, at_B1, token_B1)
        parents_BW.scatter_(1, at_B1, above_B1.clamp(min=0))
        source_BW.scatter_(1, at_B1, torch.full_like(at_B1, source))
        found_B = torch.where(is_known_B, known_B, torch.where(is_new_B, sizes_B, -1))
        place_BW[:, w] = torch.where(wanted_B, found_B, -1)
        sizes_B = sizes_B + is_new_B
    if device.type == "cpu":
        grown = int(sizes_B.max()) if num else 1
    parents_BW = parents_BW[:, :grown]
    is_chain = grown == 1 or (device.type == "cpu" and _is_chain(parents_BW, sizes_B))
    if is_chain:
        parents_BW = torch.arange(-1, grown - 1, device=device).expand(num, -1)
    return replace(
        into,
        tokens_BW=tokens_BW[:, :grown],
        parents_BW=parents_BW,
        sizes_B=sizes_B,
        is_chain=is_chain,
        source_BW=source_BW[:, :grown],
    )


def _merge_by_kernel(into: DraftTree, tree: DraftTree, source: int, grown: int) -> DraftTree:
    """Do the work of `merge` in one launch. The result is always `grown` nodes wide."""
    from eyas.kernels.merge import merge_trees

    assert into.source_BW is not None
    tokens_BW, parents_BW, source_BW, sizes_B = merge_trees(
        (into.tokens_BW, into.parents_BW, into.source_BW, into.sizes_B),
        (tree.tokens_BW, tree.parents_BW, tree.sizes_B),
        source,
        grown,
    )
    return replace(
        into,
        tokens_BW=tokens_BW,
        parents_BW=parents_BW,
        sizes_B=sizes_B,
        is_chain=grown == 1,
        source_BW=source_BW,
    )


def _is_chain(parents_BW: torch.Tensor, sizes_B: torch.Tensor) -> bool:
    """Whether the parent of every real node is the node before it."""
    before_W = torch.arange(-1, parents_BW.shape[1] - 1)
    real_BW = before_W + 1 < sizes_B.unsqueeze(1)
    return bool(((parents_BW == before_W) | ~real_BW).all())
