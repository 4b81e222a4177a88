"""Turn one more level of growing trees into the rows of a forward pass.

Promises: the inner nodes of a tree are numbered level after level, Q of them each, the root first;
their slots are the scratch slots of their seat, in that order.
Does not know: how candidates were ranked, what a state is.

Legend: B sequences, Q nodes of a level, R rows (B * Q), P draft tokens from below the root to a
node, W inner nodes down to this level (1 + P * Q), F size of a state, A seats, C columns
(positions).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from eyas.native.steps import compiled_steps
from eyas.ops.dispatch import Operation
from eyas.ops.grids import place_chain
from eyas.ops.table import TableSequences


class LevelRows(NamedTuple):
    """Of each row: its token; its position; the position limited to the last one of a rotary table;
    its slot; its sequence; its number."""

    tokens_R: torch.Tensor
    position_R: torch.Tensor
    model_position_R: torch.Tensor
    write_slots_R: torch.Tensor
    sequence_R: torch.Tensor
    rows_R: torch.Tensor


class InnerNodes(NamedTuple):
    """Of each inner node down to this level: its row (-1 above this level), its slot, its parent."""

    rows_BW: torch.Tensor
    slots_BW: torch.Tensor
    parents_BW: torch.Tensor


class Level(NamedTuple):
    """inner: None for chains. states_RF: for each row the state of the node above it."""

    rows: LevelRows
    inner: InnerNodes | None
    states_RF: torch.Tensor | None


@Operation
def level_rows(
    paths_BQP: torch.Tensor,
    above_BQ: torch.Tensor,
    parents_BW: torch.Tensor | None,
    states_RF: torch.Tensor | None,
    sequences: TableSequences,
    first_scratch: int,
    per_seat: int,
) -> Level:
    """Return the rows of the level at depth P of each tree.

    paths_BQP: tokens from below the root to each node. above_BQ: the index of each node's parent in
    the level above. parents_BW: `InnerNodes.parents_BW` of the level above; None below the roots.
    states_RF: of the level above, one a sequence below the roots; None where the network has none.
    first_scratch, per_seat: the first scratch slot, and how many a seat has.

    With Q = 1 the trees are chains: states are returned as they are, and each slot is written into
    the column of its position in the table.
    """
    num, topk, depth = paths_BQP.shape
    device, width = paths_BQP.device, 1 + depth * topk
    seats_B, roots_B = sequences.seats_B, sequences.roots_B
    first_B1 = first_scratch + seats_B.unsqueeze(1) * per_seat
    slots_BW = torch.cat(
        [sequences.node_slots_BW[:, :1], first_B1 + torch.arange(width - 1, device=device)], dim=1
    )
    own_slots_BQ = slots_BW[:, width - topk :]
    positions_B = roots_B + depth
    position_R = positions_B.repeat_interleave(topk)
    row_R = torch.arange(num * topk, device=device)
    rows = LevelRows(
        tokens_R=paths_BQP[:, :, -1].reshape(-1),
        position_R=position_R,
        model_position_R=position_R.clamp(max=sequences.last_position),
        write_slots_R=own_slots_BQ.reshape(-1),
        sequence_R=row_R // topk,
        rows_R=row_R,
    )
    if topk == 1:
        place_chain(sequences.slots_AC, seats_B, positions_B, own_slots_BQ)
        return Level(rows, None, states_RF)
    if depth == 1:
        above_BW = torch.full((num, 1), -1, dtype=torch.int64, device=device)
        nodes_BQ = torch.zeros((num, 1), dtype=torch.int64, device=device)
    else:
        assert parents_BW is not None
        above_BW, first = parents_BW, 1 + (depth - 2) * topk
        nodes_BQ = torch.arange(first, first + topk, device=device).expand(num, -1)
    grid_BW = torch.full((num, width), -1, dtype=torch.int64, device=device)
    grid_BW[:, width - topk :] = row_R.view(num, topk)
    inner = InnerNodes(
        grid_BW, slots_BW, torch.cat([above_BW, nodes_BQ.gather(1, above_BQ)], dim=1)
    )
    if states_RF is not None:
        states_RF = _of_parents(states_RF, above_BQ)
    return Level(rows, inner, states_RF)


@level_rows.native
def _by_native(
    paths_BQP: torch.Tensor,
    above_BQ: torch.Tensor,
    parents_BW: torch.Tensor | None,
    states_RF: torch.Tensor | None,
    sequences: TableSequences,
    first_scratch: int,
    per_seat: int,
) -> Level:
    steps = compiled_steps(paths_BQP.device)
    if steps is None:
        return NotImplemented
    rows, inner = steps.level_rows(
        sequences, paths_BQP, above_BQ, parents_BW, first_scratch, per_seat
    )
    if inner is None:
        return Level(LevelRows(*rows), None, states_RF)
    if states_RF is not None:
        states_RF = _of_parents(states_RF, above_BQ)
    return Level(LevelRows(*rows), InnerNodes(*inner), states_RF)


@level_rows.kernel
def _by_kernel(
    paths_BQP: torch.Tensor,
    above_BQ: torch.Tensor,
    parents_BW: torch.Tensor | None,
    states_RF: torch.Tensor | None,
    sequences: TableSequences,
    first_scratch: int,
    per_seat: int,
) -> Level:
    from eyas.kernels.level_rows import level_rows as launch

    rows, inner, below_RF = launch(
        sequences.seats_B,
        sequences.roots_B,
        sequences.node_slots_BW,
        paths_BQP,
        above_BQ,
        parents_BW,
        states_RF,
        sequences.slots_AC,
        first_scratch,
        per_seat,
        sequences.last_position,
        pdl=paths_BQP.is_cuda,
    )
    return Level(LevelRows(*rows), None if inner is None else InnerNodes(*inner), below_RF)


def _of_parents(states_RF: torch.Tensor, above_BQ: torch.Tensor) -> torch.Tensor:
    """Return the state of the node above each node of a level, [B * Q, F]."""
    num, size = len(above_BQ), states_RF.shape[1]
    above_BQF = above_BQ.unsqueeze(2).expand(-1, -1, size)
    return states_RF.view(num, -1, size).gather(1, above_BQF).flatten(0, 1)
