"""The drafter of a user, whose trees are checked before the model reads them.

Promises: a tree that cannot be computed, or whose fields mean something else, is a ValueError that
names the field; the step then runs without a draft. On a GPU, where the host would have to wait for the
numbers, they are brought within their bounds instead; tensors on the CPU are copied there. A drafter
that fails again and again is not asked any more.
Does not know: how a tree is proposed.

Legend: B sequences, W nodes.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from eyas.draft.base import Drafter, DrafterWrapper, TreeShape, root_tokens, roots_alone
from eyas.draft_tree import DraftTree
from eyas.runner.batch import Batch

log = logging.getLogger(__name__)

MOST_FAILURES = 8
"""How often in a row a drafter may fail."""
ROOT_ALONE = TreeShape(0, 1, 1)


class CheckedDrafter(DrafterWrapper):
    """Forwards to a drafter, and checks what it returns. ValueError: its shape holds no tree."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        shape = inner.shape
        if shape.steps < 0 or shape.topk < 1 or shape.nodes < 1 or shape.extra < 0:
            raise ValueError(
                f"drafter: its shape {shape} holds no tree; a root alone is {ROOT_ALONE}"
            )
        self._num_failures = 0

    @property
    def _is_given_up(self) -> bool:
        return self._num_failures >= MOST_FAILURES

    def preferred_shape(
        self, num_sequences: int, num_constrained: int = 0, num_prompt_rows: int = 0
    ) -> TreeShape:
        if self._is_given_up:
            return ROOT_ALONE
        try:
            preferred = super().preferred_shape(num_sequences, num_constrained, num_prompt_rows)
            return preferred.within(self.shape.width)
        except Exception:
            self._note_failure()
            log.exception("the drafter %s failed to choose a shape", self.name)
            return ROOT_ALONE

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        if self._is_given_up:
            return roots_alone(batch)
        try:
            tree = checked(super().propose(batch, shape), batch, len(self.sources))
        except Exception:
            self._note_failure()
            raise
        self._num_failures = 0
        return tree

    def _note_failure(self) -> None:
        self._num_failures += 1
        if self._is_given_up:
            log.error(
                "the drafter %s has failed %d times in a row and is not asked any more",
                self.name,
                self._num_failures,
            )


def checked(tree: DraftTree, batch: Batch, num_sources: int) -> DraftTree:
    """Return a tree whose fields are those of `DraftTree`. Raises ValueError, or TypeError."""
    if not isinstance(tree, DraftTree):
        raise TypeError(f"a drafter returns a DraftTree, not {type(tree).__name__}")
    roots_B1 = root_tokens(batch)
    num, width = tree.tokens_BW.shape if tree.tokens_BW.ndim == 2 else (0, 0)
    if not 1 <= width <= batch.width or num != batch.num_rows:
        raise ValueError(
            f"tokens_BW has the shape {tuple(tree.tokens_BW.shape)}; this step has "
            f"{batch.num_rows} sequences and trees of 1 to {batch.width} nodes"
        )
    device, moved = roots_B1.device, {}
    for name, shape, dtype in (
        ("tokens_BW", (num, width), torch.int64),
        ("parents_BW", (num, width), torch.int64),
        ("sizes_B", (num,), torch.int64),
        ("source_BW", (num, width), torch.int64),
        ("score_BW", (num, width), torch.float32),
    ):
        given = getattr(tree, name)
        if given is None and name in ("source_BW", "score_BW"):
            continue
        places = (device.type, "cpu")
        if (tuple(given.shape), given.dtype) != (shape, dtype) or given.device.type not in places:
            raise ValueError(
                f"{name} is {given.dtype} {tuple(given.shape)} on {given.device}; it must be {dtype} "
                f"{shape} on {device}"
            )
        moved[name] = given.to(device)
    tree = replace(tree, **moved)
    if roots_B1.is_cuda:
        return within_bounds(tree, roots_B1, batch.params.vocab_size, num_sources)
    check_numbers(tree, roots_B1, batch.params.vocab_size, num_sources)
    return tree


def check_numbers(
    tree: DraftTree, roots_B1: torch.Tensor, vocab_size: int, num_sources: int
) -> None:
    """Raise ValueError for a number outside of its bounds."""
    width = tree.width
    before_W = torch.arange(width) - 1
    is_node_BW = torch.arange(width) < tree.sizes_B.unsqueeze(1)
    parents_BW, tokens_BW = tree.parents_BW[:, 1:], tree.tokens_BW
    is_parent_BW = (parents_BW >= 0) & (parents_BW <= before_W[1:])
    if tree.is_chain:
        is_parent_BW = parents_BW == before_W[1:]
    for holds, text in (
        ((tree.sizes_B >= 1) & (tree.sizes_B <= width), f"sizes_B must be within 1 and {width}"),
        (tokens_BW[:, :1] == roots_B1, "node 0 of a tree is the sequence's last token"),
        (
            (tokens_BW >= 0) & (tokens_BW < vocab_size) | ~is_node_BW,
            f"tokens_BW must be ids below {vocab_size}",
        ),
        (
            is_parent_BW | ~is_node_BW[:, 1:],
            "parents_BW of a chain are the nodes before"
            if tree.is_chain
            else "parents_BW must be nodes before their children, and is_chain false",
        ),
    ):
        if not bool(holds.all()):
            raise ValueError(text)
    sources_BW = tree.source_BW
    if sources_BW is not None:
        good_BW = (sources_BW >= 0) & (sources_BW < num_sources) | ~is_node_BW
        if not bool(good_BW[:, 1:].all()):
            raise ValueError(f"source_BW must be indices of the drafter's {num_sources} sources")


def within_bounds(
    tree: DraftTree, roots_B1: torch.Tensor, vocab_size: int, num_sources: int
) -> DraftTree:
    """Return a tree with its numbers brought within their bounds. The host does not wait for them."""
    width = tree.width
    before_W = torch.arange(width, device=tree.device) - 1
    parents_BW = torch.minimum(tree.parents_BW.clamp(min=0), before_W)
    sources_BW = tree.source_BW
    return replace(
        tree,
        tokens_BW=torch.cat([roots_B1, tree.tokens_BW[:, 1:].clamp(0, vocab_size - 1)], dim=1),
        parents_BW=before_W.expand_as(parents_BW) if tree.is_chain else parents_BW,
        sizes_B=tree.sizes_B.clamp(1, width),
        source_BW=None if sources_BW is None else sources_BW.clamp(0, num_sources - 1),
    )
