"""From a batch and its trees to the rows of one forward pass.

Promises: tree nodes first (sequence by sequence), then prompt chunks; one layout describes them all,
whatever they are for. Padding nodes of a ragged batch are left out where the host can see them.
Does not know: models, what is done with the logits.

Legend: T rows, R logits rows (node rows, then wanted context rows), B rooted sequences, W nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eyas.attention.base import ContextRun, Layout, NodeGrid
from eyas.core import DraftTree
from eyas.kernels import usable
from eyas.runner.batch import Batch, Span
from eyas.sampling.process import SamplingRows
from eyas.transfer import send


@dataclass(slots=True, eq=False, kw_only=True)
class ForwardRows:
    """One forward's input; tensors of rows have no gaps.

    logits_rows_R: indices of the R rows whose logits are wanted, None when none are.
    num_leading: how many of those are the first rows of the forward, in order.
    """

    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    write_slots_T: torch.Tensor
    layout: Layout
    logits_rows_R: torch.Tensor | None
    num_leading: int = 0

    def __post_init__(self) -> None:
        self.tokens_T = self.tokens_T.contiguous()
        self.positions_T = self.positions_T.contiguous()
        self.write_slots_T = self.write_slots_T.contiguous()


@dataclass(slots=True, eq=False, kw_only=True)
class PackedRows(ForwardRows):
    """A step's forward and what its logits rows mean: first the tree nodes' (num_node_rows of them).

    node_R: node of each node row. context_runs: (span, number of wanted rows) in the order of the
    rest of the logits rows.
    """

    num_node_rows: int
    sampling: SamplingRows
    node_R: torch.Tensor
    context_runs: list[tuple[Span, int]]


def node_depths(parents_BW: torch.Tensor) -> torch.Tensor:
    """[B, W] distance from the root."""
    depths_BW = torch.zeros_like(parents_BW)
    for w in range(1, parents_BW.shape[1]):
        above = parents_BW[:, w : w + 1].clamp(min=0)
        depths_BW[:, w : w + 1] = depths_BW.gather(1, above) + 1
    return depths_BW


def ancestors(parents_BW: torch.Tensor) -> torch.Tensor:
    """bool [B, W, W]: [b, w, u] is whether node u is w or above it, the root excluded."""
    num, width = parents_BW.shape
    above_BWW = torch.zeros((num, width, width), dtype=torch.bool, device=parents_BW.device)
    batch_B = torch.arange(num, device=parents_BW.device)
    for w in range(1, width):
        above_BWW[:, w] = above_BWW[batch_B, parents_BW[:, w].clamp(min=0)]
        above_BWW[:, w, w] = True
    return above_BWW


def pack(batch: Batch, tree: DraftTree) -> PackedRows:
    """The rows of a step. The tree may be narrower than the batch allows."""
    table, device = batch.table, batch.table.device
    num_rooted = batch.num_rows
    nodes = _node_rows_by_kernel(batch, tree) if usable(device) else _node_rows(batch, tree)
    num_node_rows = len(nodes.tokens_R)
    parts = [[nodes.tokens_R, nodes.model_position_R, nodes.write_slots_R]]
    runs, seats, wanted, context_runs, row = [], [], [], [], num_node_rows
    for span in batch.spans:
        count = span.context_count
        if not count:
            continue
        stop = span.context_start + count
        parts.append(
            [
                table.tokens_AC[span.seat, span.context_start : stop],
                torch.arange(span.context_start, stop, device=device),
                send(span.context_slots, device),
            ]
        )
        runs.append(ContextRun(num_rooted + len(runs), row, span.context_start, count))
        seats.append(span.seat)
        if span.wants_context_logits:
            wanted.append(torch.arange(row, row + count, device=device))
            context_runs.append((span, count))
        row += count
    if runs:
        tokens_T, positions_T, write_slots_T = map(torch.cat, zip(*parts, strict=True))
    else:
        ((tokens_T, positions_T, write_slots_T),) = parts
    parents_BW = None if tree.is_chain else tree.parents_BW
    grid = NodeGrid(nodes.grid_BW, nodes.slots_BW, batch.roots_B, parents_BW)
    seats_B = torch.cat([batch.seats_B, send(seats, device)]) if seats else batch.seats_B
    layout = Layout(
        table.slots_AC, seats_B, batch.max_length - 1, tuple(runs), grid if num_rooted else None
    )
    logits_rows_R = torch.cat([nodes.rows_R, *wanted]) if wanted else nodes.rows_R
    return PackedRows(
        tokens_T=tokens_T,
        positions_T=positions_T,
        write_slots_T=write_slots_T,
        layout=layout,
        logits_rows_R=logits_rows_R if len(logits_rows_R) else None,
        num_leading=num_node_rows,
        num_node_rows=num_node_rows,
        sampling=_sampling_rows(batch, tree, nodes.sequence_R, nodes.node_R, nodes.position_R),
        node_R=nodes.node_R,
        context_runs=context_runs,
    )


@dataclass(slots=True, eq=False)
class _NodeRows:
    """The tree nodes' rows. position_R: where a node stands; model_position_R: the same, up to the
    table's last position. rows_R: 0, 1, ...; grid_BW, slots_BW: row and slot of every node."""

    tokens_R: torch.Tensor
    position_R: torch.Tensor
    model_position_R: torch.Tensor
    write_slots_R: torch.Tensor
    sequence_R: torch.Tensor
    node_R: torch.Tensor
    rows_R: torch.Tensor
    grid_BW: torch.Tensor
    slots_BW: torch.Tensor


def _node_rows(batch: Batch, tree: DraftTree) -> _NodeRows:
    table, width = batch.table, tree.width
    device = table.device
    node_slots_BW = batch.node_slots_BW[:, :width].contiguous()
    if tree.is_chain:
        positions_BW = batch.roots_B.unsqueeze(1) + torch.arange(width, device=device)
        table.place_nodes(batch.seats_B, batch.roots_B, node_slots_BW)
    else:
        positions_BW = batch.roots_B.unsqueeze(1) + node_depths(tree.parents_BW)
    node_rows_BW, picked_R = ragged_rows(
        torch.arange(width, device=device) < tree.sizes_B.unsqueeze(1)
    )
    columns = [tree.tokens_BW.reshape(-1), positions_BW.reshape(-1), node_slots_BW.reshape(-1)]
    if picked_R is None:
        picked_R = node_rows_BW.view(-1)
    else:
        columns = [column[picked_R] for column in columns]
    tokens_R, position_R, write_slots_R = columns
    return _NodeRows(
        tokens_R,
        position_R,
        position_R.clamp(max=table.last_position),
        write_slots_R,
        sequence_R=picked_R // width if width > 1 else picked_R,
        node_R=picked_R % width if width > 1 else torch.zeros_like(picked_R),
        rows_R=torch.arange(len(picked_R), device=device),
        grid_BW=node_rows_BW,
        slots_BW=node_slots_BW,
    )


def _node_rows_by_kernel(batch: Batch, tree: DraftTree) -> _NodeRows:
    from eyas.kernels.rows import node_rows

    table, shape = batch.table, tree.tokens_BW.shape
    rows = node_rows(
        batch.seats_B,
        batch.roots_B,
        batch.node_slots_BW,
        tree.tokens_BW,
        None if tree.is_chain else tree.parents_BW,
        table.slots_AC,
        table.last_position,
        pdl=table.device.type == "cuda",
    )
    return _NodeRows(
        *rows, grid_BW=rows.rows_R.view(shape), slots_BW=rows.write_slots_R.view(shape)
    )


def ragged_rows(real_BW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """[B, W] the row of each entry of a ragged grid, -1 for padding, and the flat indices of those that
    are none; None where all are real."""
    if not bool(real_BW.all()):
        rows_BW = torch.where(real_BW, (real_BW.view(-1).cumsum(0) - 1).view_as(real_BW), -1)
        return rows_BW, real_BW.view(-1).nonzero().squeeze(1)
    return torch.arange(real_BW.numel(), device=real_BW.device).view(real_BW.shape), None


def committed(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Committed tokens [B, L] of each sequence and how many they are; nothing where no penalties act,
    which alone look at them."""
    if not any(batch.params.penalised):
        return batch.table.tokens_AC[:0], batch.table.lengths_A[:0]
    return batch.history_BL, batch.roots_B + 1


def _sampling_rows(
    batch: Batch,
    tree: DraftTree,
    sequence_R: torch.Tensor,
    node_R: torch.Tensor,
    position_R: torch.Tensor,
) -> SamplingRows:
    """What the sampler needs to know of each node row; ancestors only where penalties act."""
    history_BL, length_B = committed(batch)
    if tree.width == 1 or not any(batch.params.penalised):
        return SamplingRows(sequence_R, position_R, None, None, history_BL, length_B)
    if tree.is_chain:
        columns_W = torch.arange(tree.width, device=node_R.device)
        is_ancestor_RW = (columns_W <= node_R.unsqueeze(1)) & (columns_W > 0)
    else:
        is_ancestor_RW = ancestors(tree.parents_BW)[sequence_R, node_R]
    tokens_RW = tree.tokens_BW[sequence_R]
    return SamplingRows(sequence_R, position_R, tokens_RW, is_ancestor_RW, history_BL, length_B)
