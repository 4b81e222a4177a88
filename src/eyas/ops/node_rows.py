"""Turn tree nodes into the rows of a forward pass: their tokens, positions and slots.

Promises: rows are ordered by sequence, then by node. Depths follow the parents.
Does not know: prompt chunks, models, which sequence owns a seat.

Legend: B sequences, W nodes of a tree, R node rows, A seats, C columns (positions).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from eyas.core import DraftTree
from eyas.ops.dispatch import Operation
from eyas.ops.grids import node_depths, place_chain, ragged_rows


class NodeRows(NamedTuple):
    """The rows of tree nodes.

    position_R: the node's position; model_position_R: the same, limited to the last position of a
    rotary table; sequence_R, node_R: whose row it is; rows_R: 0, 1, ... grid_BW: the row of each
    node, -1 for a node without one. slots_BW: the slot of each node.
    """

    tokens_R: torch.Tensor
    position_R: torch.Tensor
    model_position_R: torch.Tensor
    write_slots_R: torch.Tensor
    sequence_R: torch.Tensor
    node_R: torch.Tensor
    rows_R: torch.Tensor
    grid_BW: torch.Tensor
    slots_BW: torch.Tensor


@Operation
def node_rows(
    seats_B: torch.Tensor,
    roots_B: torch.Tensor,
    node_slots_BW: torch.Tensor,
    tree: DraftTree,
    slots_AC: torch.Tensor,
    last_position: int,
) -> NodeRows:
    """Return the rows of all nodes.

    seats_B, roots_B: the row of `slots_AC` of each sequence, and the position of its root.
    node_slots_BW: its first W columns are read; those of chains are written into the columns of
    their positions in `slots_AC`. `by_torch` gives padding nodes no row; the kernel gives every node
    a row, since the host does not know the sizes.
    """
    width, device, parents_BW = tree.width, tree.device, tree.branch_parents
    slots_BW = node_slots_BW[:, :width].contiguous()
    nodes_W = torch.arange(width, device=device)
    if parents_BW is None:
        positions_BW = roots_B.unsqueeze(1) + nodes_W
        place_chain(slots_AC, seats_B, roots_B, slots_BW)
    else:
        positions_BW = roots_B.unsqueeze(1) + node_depths(parents_BW)
    grid_BW, picked_R = ragged_rows(nodes_W < tree.sizes_B.unsqueeze(1))
    columns = [tree.tokens_BW.reshape(-1), positions_BW.reshape(-1), slots_BW.reshape(-1)]
    if picked_R is None:
        picked_R = grid_BW.view(-1)
    else:
        columns = [column[picked_R] for column in columns]
    tokens_R, position_R, write_slots_R = columns
    return NodeRows(
        tokens_R,
        position_R,
        position_R.clamp(max=last_position),
        write_slots_R,
        sequence_R=picked_R // width if width > 1 else picked_R,
        node_R=picked_R % width if width > 1 else torch.zeros_like(picked_R),
        rows_R=torch.arange(len(picked_R), device=device),
        grid_BW=grid_BW,
        slots_BW=slots_BW,
    )


@node_rows.kernel
def _by_kernel(
    seats_B: torch.Tensor,
    roots_B: torch.Tensor,
    node_slots_BW: torch.Tensor,
    tree: DraftTree,
    slots_AC: torch.Tensor,
    last_position: int,
) -> NodeRows:
    from eyas.kernels.rows import node_rows as launch

    numbers = launch(
        seats_B,
        roots_B,
        node_slots_BW,
        tree.tokens_BW,
        tree.branch_parents,
        slots_AC,
        last_position,
        pdl=tree.tokens_BW.is_cuda,
    )
    tokens_R, position_R, model_position_R, write_slots_R, sequence_R, node_R, rows_R = numbers
    return NodeRows(
        tokens_R,
        position_R,
        model_position_R,
        write_slots_R,
        sequence_R,
        node_R,
        rows_R,
        grid_BW=rows_R.view(tree.tokens_BW.shape),
        slots_BW=write_slots_R.view(tree.tokens_BW.shape),
    )
