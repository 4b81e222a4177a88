"""Positions and paths of tree nodes, which all layers of a forward pass share.

Promises: one launch a forward pass. Slots of a node's path are stored backwards, its own first: the
key at position p of a node at position n is at n - p, however deep the node is.
Does not know: heads, layers.

Legend: B sequences, W nodes of a tree, P steps up a path, T rows of the forward.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.launch import block_of, enter, launch_options


@triton.jit(do_not_specialize=["num_nodes", "num_rows"])
def node_paths_kernel(
    rows_BW,
    roots_B,
    parents_BW,
    node_slots_BW,
    positions_BW,
    nodes_T,
    paths_BWP,
    num_nodes,
    num_rows,
    WIDTH: tl.constexpr,
    IS_TREE: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a sequence, one element a node: all walk up to their roots at once."""
    enter(PDL)
    b = tl.program_id(0).to(tl.int64)
    node_W = tl.arange(0, WIDTH)
    is_node = node_W < num_nodes
    at_W = b * num_nodes + node_W
    root = tl.load(roots_B + b)
    row_W = tl.load(rows_BW + at_W, mask=is_node, other=-1)
    depth_W = node_W.to(tl.int64)
    if IS_TREE:
        depth_W = tl.full((WIDTH,), -1, tl.int64)
        above_W = tl.where(is_node, node_W, -1).to(tl.int64)
        step = 0
        while (step < num_nodes) & (tl.max(above_W, 0) >= 0):
            is_above = above_W >= 0
            source = b * num_nodes + above_W
            slot_W = tl.load(node_slots_BW + source, mask=is_above, other=0)
            parent_W = tl.load(parents_BW + source, mask=is_above, other=-1)
            tl.store(paths_BWP + at_W * num_nodes + step, slot_W, mask=is_above)
            depth_W += is_above.to(tl.int64)
            above_W = parent_W
            step += 1
    is_row = is_node & (row_W >= 0) & (row_W < num_rows)
    tl.store(positions_BW + at_W, tl.where(is_row, root + depth_W, -1), mask=is_node)
    tl.store(nodes_T + row_W, at_W, mask=is_row)


def node_paths(
    rows_BW: torch.Tensor,
    roots_B: torch.Tensor,
    parents_BW: torch.Tensor | None,
    node_slots_BW: torch.Tensor,
    num_rows: int,
    *,
    pdl: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """positions_BW of the nodes that have a row (-1 for others), nodes_T = the flat index of each row's
    node (-1 where there is none; as many rows as nodes are one each), paths_BWP of a tree: slots from
    each node up to its root.

    Reference: `node_paths` in tests/kernels/test_attention_paths.py.
    """
    num, width = rows_BW.shape
    device = rows_BW.device
    rows_BW, roots_B = rows_BW.contiguous(), roots_B.contiguous()
    positions_BW = torch.empty((num, width), dtype=torch.int64, device=device)
    nodes_T = torch.empty((num_rows,), dtype=torch.int64, device=device)
    if num_rows != num * width:
        nodes_T.fill_(-1)
    paths_BWP = None
    if parents_BW is not None:
        parents_BW, node_slots_BW = parents_BW.contiguous(), node_slots_BW.contiguous()
        paths_BWP = torch.empty((num, width, width), dtype=torch.int64, device=device)
    node_paths_kernel[(num,)](
        rows_BW,
        roots_B,
        rows_BW if parents_BW is None else parents_BW,
        node_slots_BW,
        positions_BW,
        nodes_T,
        positions_BW if paths_BWP is None else paths_BWP,
        width,
        num_rows,
        WIDTH=block_of(width),
        IS_TREE=parents_BW is not None,
        PDL=pdl,
        num_warps=1 if width <= 32 else 4,
        **launch_options(pdl),
    )
    return positions_BW, nodes_T, paths_BWP
