"""Turn tree nodes into the rows of a forward pass: their tokens, positions and slots.

Promises: rows are ordered by sequence, then by node. Depths follow the parents.
Does not know: prompt chunks, models, which sequence owns a seat.

Legend: B sequences, W nodes of a tree, R node rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from eyas.draft_tree import DraftTree
from eyas.native.steps import compiled_steps
from eyas.ops.dispatch import Operation
from eyas.ops.grids import node_depths, place_chain, ragged_rows
from eyas.ops.table import TableSequences


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
def node_rows(tree: DraftTree, sequences: TableSequences) -> NodeRows:
    """Return the rows of all nodes.

    The slots of chains are written into the columns of their positions in the table. `by_torch` gives
    padding nodes no row; the kernel gives every node a row, since the host does not know the sizes.
    """
    width, device, parents_BW = tree.width, tree.device, tree.branch_parents
    seats_B, roots_B = sequences.seats_B, sequences.roots_B
    slots_BW = sequences.node_slots_BW[:, :width].contiguous()
    nodes_W = torch.arange(width, device=device)
    if parents_BW is None:
        positions_BW = roots_B.unsqueeze(1) + nodes_W
        place_chain(sequences.slots_AC, seats_B, roots_B, slots_BW)
    else:
        positions_BW = roots_B.unsqueeze(1) + node_depths(parents_BW)
    if width == 1:  # every tree has its root
        grid_BW, picked_R = torch.arange(len(seats_B), device=device).unsqueeze(1), None
    else:
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
        position_R.clamp(max=sequences.last_position),
        write_slots_R,
        sequence_R=picked_R // width if width > 1 else picked_R,
        node_R=picked_R % width if width > 1 else torch.zeros_like(picked_R),
        rows_R=torch.arange(len(picked_R), device=device),
        grid_BW=grid_BW,
        slots_BW=slots_BW,
    )


@node_rows.native
def _by_native(tree: DraftTree, sequences: TableSequences) -> NodeRows:
    steps = compiled_steps(tree.device)
    if steps is None:
        return NotImplemented
    rows, grid_BW, slots_BW = steps.node_rows(
        sequences, tree.tokens_BW, tree.branch_parents, tree.sizes_B
    )
    tokens_R, position_R, model_position_R, write_slots_R, sequence_R, node_R, rows_R = rows
    return NodeRows(
        tokens_R,
        position_R,
        model_position_R,
        write_slots_R,
        sequence_R,
        node_R,
        rows_R,
        grid_BW,
        slots_BW,
    )


@node_rows.kernel
def _by_kernel(tree: DraftTree, sequences: TableSequences) -> NodeRows:
    from eyas.kernels.node_rows import node_rows as launch

    numbers = launch(
        sequences.seats_B,
        sequences.roots_B,
        sequences.node_slots_BW,
        tree.tokens_BW,
        tree.branch_parents,
        sequences.slots_AC,
        sequences.last_position,
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
