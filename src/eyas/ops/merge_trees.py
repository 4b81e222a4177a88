"""Add the nodes of one draft tree to another, as tries are merged.

Promises: a continuation that both trees hold is one node; nodes below one that did not fit are
left out.
Does not know: which drafter proposed the trees.

Legend: B sequences, W nodes of the merged tree, E nodes of the tree that is added.
"""

from __future__ import annotations

import torch

from eyas.draft_tree import DraftTree
from eyas.ops.dispatch import Operation


@Operation
def merge_trees(into: DraftTree, tree: DraftTree, source: int, most_nodes: int) -> DraftTree:
    """Return the trees `into`, whose nodes have sources, with the nodes of `tree` that they lack, at
    most `most_nodes` nodes each; without scores.

    source: of the added nodes. Rows may be views (a chain's parents are one row for all). On a CPU
    the result is as wide as its largest tree; on a device as wide as it could be, since the host
    does not know the sizes.
    """
    assert into.source_BW is not None
    num, device, width = len(into.sizes_B), into.device, _widest(into, tree, most_nodes)
    padding = (0, width - into.width + 1)  # the last column is for nodes that do not fit
    tokens_BW = torch.nn.functional.pad(into.tokens_BW, padding)
    parents_BW = torch.nn.functional.pad(into.parents_BW, padding)
    source_BW = torch.nn.functional.pad(into.source_BW, padding)
    sizes_B = into.sizes_B.clone()
    columns_W = torch.arange(width + 1, device=device)
    place_BE = torch.zeros_like(tree.tokens_BW)  # new node -> node of the merged tree, -1: none
    for w in range(1, tree.width):
        above_B1 = place_BE.gather(1, tree.parents_BW[:, w : w + 1].clamp(min=0))
        token_B1 = tree.tokens_BW[:, w : w + 1]
        is_same_BW = (parents_BW == above_B1) & (tokens_BW == token_B1) & (columns_W > 0)
        is_same_BW &= columns_W < sizes_B.unsqueeze(1)
        is_known_B = is_same_BW.any(dim=1)
        known_B = is_same_BW.to(torch.int64).argmax(dim=1)
        wanted_B = (w < tree.sizes_B) & (above_B1.squeeze(1) >= 0)
        is_new_B = wanted_B & ~is_known_B & (sizes_B < width)
        at_B1 = torch.where(is_new_B, sizes_B, width).unsqueeze(1)
        tokens_BW.scatter_(1, at_B1, token_B1)
        parents_BW.scatter_(1, at_B1, above_B1.clamp(min=0))
        source_BW.scatter_(1, at_B1, torch.full_like(at_B1, source))
        found_B = torch.where(is_known_B, known_B, torch.where(is_new_B, sizes_B, -1))
        place_BE[:, w] = torch.where(wanted_B, found_B, -1)
        sizes_B = sizes_B + is_new_B
    if device.type == "cpu":
        width = int(sizes_B.max()) if num else 1
    parents_BW = parents_BW[:, :width]
    is_chain = width == 1 or (device.type == "cpu" and _is_chain(parents_BW, sizes_B))
    if is_chain:
        parents_BW = torch.arange(-1, width - 1, device=device).expand(num, -1)
    return DraftTree(tokens_BW[:, :width], parents_BW, sizes_B, is_chain, source_BW[:, :width])


@merge_trees.kernel
def _by_kernel(into: DraftTree, tree: DraftTree, source: int, most_nodes: int) -> DraftTree:
    from eyas.kernels.merge_trees import merge_trees as launch

    assert into.source_BW is not None
    width = _widest(into, tree, most_nodes)
    tokens_BW, parents_BW, source_BW, sizes_B = launch(
        (into.tokens_BW, into.parents_BW, into.source_BW, into.sizes_B),
        (tree.tokens_BW, tree.parents_BW, tree.sizes_B),
        source,
        width,
    )
    return DraftTree(tokens_BW, parents_BW, sizes_B, width == 1, source_BW)


def _widest(into: DraftTree, tree: DraftTree, most_nodes: int) -> int:
    """The most nodes that a merged tree can have."""
    return max(into.width, min(most_nodes, into.width + tree.width - 1))


def _is_chain(parents_BW: torch.Tensor, sizes_B: torch.Tensor) -> bool:
    before_W = torch.arange(-1, parents_BW.shape[1] - 1)
    real_BW = before_W + 1 < sizes_B.unsqueeze(1)
    return bool(((parents_BW == before_W) | ~real_BW).all())
