"""Add the nodes of one draft tree to another, as tries are merged.

Promises: a continuation that both trees hold is one node; nodes below one that did not fit are
left out.
Does not know: which drafter proposed the trees.

Legend: B sequences, W nodes of the merged tree, E nodes of the tree that is added.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from eyas.ops.dispatch import Operation


class MergedTrees(NamedTuple):
    """source_BW: which tree each node is from. is_chain: whether every node is known to follow the
    one before it."""

    tokens_BW: torch.Tensor
    parents_BW: torch.Tensor
    source_BW: torch.Tensor
    sizes_B: torch.Tensor
    is_chain: bool


@Operation
def merge_trees(
    tokens_BW: torch.Tensor,
    parents_BW: torch.Tensor,
    source_BW: torch.Tensor,
    sizes_B: torch.Tensor,
    new_tokens_BE: torch.Tensor,
    new_parents_BE: torch.Tensor,
    new_sizes_B: torch.Tensor,
    new_source: int,
    most_nodes: int,
) -> MergedTrees:
    """Return the first trees with the nodes of the new ones that they lack, at most `most_nodes`
    nodes each.

    new_source: the source of added nodes. Rows may be views (a chain's parents are one row for
    all). On a CPU the result is as wide as its largest tree; on a device as wide as it could be,
    since the host does not know the sizes.
    """
    num, old_width = tokens_BW.shape
    device, new_width = tokens_BW.device, new_tokens_BE.shape[1]
    width = _widest(old_width, new_width, most_nodes)
    padding = (0, width - old_width + 1)  # the last column is for nodes that do not fit
    tokens_BW = torch.nn.functional.pad(tokens_BW, padding)
    parents_BW = torch.nn.functional.pad(parents_BW, padding)
    source_BW = torch.nn.functional.pad(source_BW, padding)
    sizes_B = sizes_B.clone()
    columns_W = torch.arange(width + 1, device=device)
    place_BE = torch.zeros_like(new_tokens_BE)  # new node -> node of the merged tree, -1: none
    for w in range(1, new_width):
        above_B1 = place_BE.gather(1, new_parents_BE[:, w : w + 1].clamp(min=0))
        token_B1 = new_tokens_BE[:, w : w + 1]
        is_same_BW = (parents_BW == above_B1) & (tokens_BW == token_B1) & (columns_W > 0)
        is_same_BW &= columns_W < sizes_B.unsqueeze(1)
        is_known_B = is_same_BW.any(dim=1)
        known_B = is_same_BW.to(torch.int64).argmax(dim=1)
        wanted_B = (w < new_sizes_B) & (above_B1.squeeze(1) >= 0)
        is_new_B = wanted_B & ~is_known_B & (sizes_B < width)
        at_B1 = torch.where(is_new_B, sizes_B, width).unsqueeze(1)
        tokens_BW.scatter_(1, at_B1, token_B1)
        parents_BW.scatter_(1, at_B1, above_B1.clamp(min=0))
        source_BW.scatter_(1, at_B1, torch.full_like(at_B1, new_source))
        found_B = torch.where(is_known_B, known_B, torch.where(is_new_B, sizes_B, -1))
        place_BE[:, w] = torch.where(wanted_B, found_B, -1)
        sizes_B = sizes_B + is_new_B
    if device.type == "cpu":
        width = int(sizes_B.max()) if num else 1
    parents_BW = parents_BW[:, :width]
    is_chain = width == 1 or (device.type == "cpu" and _is_chain(parents_BW, sizes_B))
    if is_chain:
        parents_BW = torch.arange(-1, width - 1, device=device).expand(num, -1)
    return MergedTrees(tokens_BW[:, :width], parents_BW, source_BW[:, :width], sizes_B, is_chain)


@merge_trees.kernel
def _by_kernel(
    tokens_BW: torch.Tensor,
    parents_BW: torch.Tensor,
    source_BW: torch.Tensor,
    sizes_B: torch.Tensor,
    new_tokens_BE: torch.Tensor,
    new_parents_BE: torch.Tensor,
    new_sizes_B: torch.Tensor,
    new_source: int,
    most_nodes: int,
) -> MergedTrees:
    from eyas.kernels.merge import merge_trees as launch

    width = _widest(tokens_BW.shape[1], new_tokens_BE.shape[1], most_nodes)
    merged = launch(
        (tokens_BW, parents_BW, source_BW, sizes_B),
        (new_tokens_BE, new_parents_BE, new_sizes_B),
        new_source,
        width,
    )
    return MergedTrees(*merged, is_chain=width == 1)


def _widest(old_width: int, new_width: int, most_nodes: int) -> int:
    """The most nodes that a merged tree can have."""
    return max(old_width, min(most_nodes, old_width + new_width - 1))


def _is_chain(parents_BW: torch.Tensor, sizes_B: torch.Tensor) -> bool:
    before_W = torch.arange(-1, parents_BW.shape[1] - 1)
    real_BW = before_W + 1 < sizes_B.unsqueeze(1)
    return bool(((parents_BW == before_W) | ~real_BW).all())
