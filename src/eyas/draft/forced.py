"""Drafts of text that a grammar leaves no choice about, added to another drafter's tree.

Wherever the tree ends at a place where only one text can follow (a field's name, closing braces, the
rest of an enum's only value), that text's tokens are added. Where only white space is free, the usual
white space is proposed. A forced span below another drafter's nodes lets one step take a value and the
next field's name together. Another drafter's nodes inside a forced text stay, since that drafter knows
better how the model cuts the text into tokens.

Promises: only proposals: they are verified like any other node, so a wrong guess at the model's white
space or at its tokens costs rows, never the output.
Does not know: grammars, networks.

Legend: B sequences, W nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from eyas.constraint.automaton import Automaton
from eyas.draft.base import MAX_REMEMBERED, Drafter, DrafterWrapper, StepReport, TreeShape, chain
from eyas.draft.blend import merge, widened_scores
from eyas.draft_tree import DraftTree
from eyas.runner.batch import Batch
from eyas.transfer import send

MAX_SPAN = 24
"""Most tokens of one span."""
DEVICE_WIDTHS = (5, 9, 1 + MAX_SPAN)
"""Nodes of a tree of spans on a device: few widths, so that few shapes of steps are captured."""


@dataclass(frozen=True, slots=True)
class _Extended:
    """A tree made from another drafter's, and the number of nodes that the other tree had for each
    sequence."""

    tree: DraftTree
    inner: DraftTree
    sizes: list[int]


class ForcedDrafter(DrafterWrapper):
    """inner: its trees are extended. nodes: most forced nodes, beside the inner drafter's."""

    def __init__(self, inner: Drafter, nodes: int) -> None:
        super().__init__(inner)
        self._nodes = nodes
        self._remembered: deque[_Extended] = deque(maxlen=MAX_REMEMBERED)
        self.sources = (*inner.sources, "forced")
        self.shape = replace(inner.shape, extra=nodes)

    @property
    def reads_automata(self) -> bool:
        return True

    def preferred_shape(
        self, num_sequences: int, num_constrained: int = 0, num_prompt_rows: int = 0
    ) -> TreeShape:
        preferred = self._inner.preferred_shape(num_sequences, num_constrained, num_prompt_rows)
        extra = self._nodes if num_constrained else 0
        return preferred if preferred.extra == extra else replace(preferred, extra=extra)

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        inner = self._inner.propose(batch, shape.alone)
        if batch.automata is None or not batch.rooted or batch.width == 1:
            return inner
        extended = _extend(inner, batch, batch.automata, len(self._inner.sources), self._nodes)
        if extended is None:
            return inner
        self._remembered.append(_Extended(extended, inner, _sizes(inner)))
        return extended

    def learn(self, report: StepReport) -> None:
        """Report to the inner drafter its own nodes alone."""
        for known in self._remembered:
            if known.tree is report.tree:
                forced = len(self._inner.sources)
                counts = [
                    min(count, 1 + sum(source != forced for source in path))
                    for count, path in zip(report.counts, report.accepted, strict=True)
                ]
                sizes = list(map(min, known.sizes, report.sizes))
                report = replace(report, tree=known.inner, counts=counts, sizes=sizes)
                break
        self._inner.learn(report)


def _extend(
    tree: DraftTree,
    batch: Batch,
    automata: Sequence[Automaton | None],
    source: int,
    most: int,
) -> DraftTree | None:
    """Return the tree with forced spans, at most `most` new nodes a sequence; None where there are
    none.

    On a device the tree's tokens are not known yet, so spans follow the root alone.
    """
    num, width = tree.tokens_BW.shape
    sees_tree = tree.tokens_BW.device.type == "cpu"
    sizes = tree.sizes_B.tolist() if sees_tree else [1] * num
    tokens = tree.tokens_BW.tolist() if sees_tree else [[0]] * num
    parents = tree.parents_BW.tolist() if sees_tree else [[-1]] * num
    grown = [
        _Growing(own[:size], above[:size])
        for own, above, size in zip(tokens, parents, sizes, strict=True)
    ]
    for growing, automaton, size in zip(grown, automata, sizes, strict=False):
        if automaton is None:
            continue
        spans = automaton.forced(growing.tokens, growing.parents, MAX_SPAN)
        for node, span in spans.items():
            growing.add(node, span, min(batch.width, size + most))
    if all(len(each.tokens) == size for each, size in zip(grown, sizes, strict=True)):
        return None
    if tree.source_BW is None:
        tree.source_BW = torch.zeros_like(tree.tokens_BW)
    if not sees_tree:
        longest = max(len(each.tokens) for each in grown)
        usual = next(length for length in DEVICE_WIDTHS if length >= longest)
        spans = _as_tree(grown, tree.tokens_BW.device, usual)
        return merge(tree, spans, source, min(batch.width, width + most))
    extended = _as_tree(grown, tree.tokens_BW.device)
    columns_W = torch.arange(min(width, extended.width))
    source_BW = torch.full_like(extended.tokens_BW, source)
    source_BW[:, : len(columns_W)] = torch.where(
        columns_W < tree.sizes_B.unsqueeze(1), tree.source_BW[:, : len(columns_W)], source
    )
    extended.source_BW = source_BW
    extended.score_BW = widened_scores(tree, extended.width)
    return extended


def _as_tree(grown: list[_Growing], device: torch.device, width: int = 0) -> DraftTree:
    width = max(width, *(len(each.tokens) for each in grown))
    tokens_BW = send([_padded(each.tokens, width) for each in grown], device)
    sizes_B = send([len(each.tokens) for each in grown], device)
    if all(each.is_chain for each in grown):
        return chain(tokens_BW, sizes_B)
    parents_BW = send([_padded(each.parents, width) for each in grown], device)
    return DraftTree(tokens_BW, parents_BW, sizes_B, is_chain=False)


class _Growing:
    """One sequence's tree, as a trie."""

    def __init__(self, tokens: list[int], parents: list[int]) -> None:
        self.tokens, self.parents = tokens, parents
        self._children = {
            (parent, token): node
            for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))
            if node
        }

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def add(self, node: int, span: list[int], limit: int) -> None:
        """Add a branch below a node, as far as `limit` permits."""
        for token in span:
            child = self._children.get((node, token))
            if child is None:
                if len(self.tokens) >= limit:
                    return
                child = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(node)
                self._children[node, token] = child
            node = child


def _sizes(tree: DraftTree) -> list[int]:
    """Return the nodes of each tree; on a device, where the host cannot see them, the most there may
    be."""
    if tree.sizes_B.device.type == "cpu":
        return tree.sizes_B.tolist()
    return [tree.width] * len(tree.sizes_B)


def _padded(values: list[int], width: int) -> list[int]:
    return values + [0] * (width - len(values))
