"""Turn a batch and its trees into the rows of one forward pass.

Promises: tree nodes come first, sequence by sequence, then prompt chunks; one layout describes all
of them. Padding nodes of a ragged batch have no rows on a CPU.
Does not know: models, what is done with the logits.

Legend: T rows, R logits rows (node rows, then wanted context rows), B rooted sequences, W nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eyas.attention.base import AttentionLayout, ContextRun, NodeGrid, PromptChunks
from eyas.draft_tree import DraftTree
from eyas.ops.node_rows import node_rows
from eyas.ops.prompt_rows import prompt_rows
from eyas.runner.batch import Batch, Span
from eyas.sampling.process import SamplingRows


@dataclass(slots=True, eq=False, kw_only=True)
class ForwardRows:
    """The input of one forward pass; its tensors of rows are contiguous.

    logits_rows_R: indices of the R rows whose logits are computed; None if there are none.
    num_leading: how many of them are the first rows of the forward pass, in order. num_outputs: how
    many rows have outputs that are read: the first ones, which are the layout's nodes; None is all.
    ranks: of each sequence of the layout, where ranks have sequences of their own; empty is the first
    rank's.
    """

    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    write_slots_T: torch.Tensor
    layout: AttentionLayout
    logits_rows_R: torch.Tensor | None
    num_leading: int = 0
    num_outputs: int | None = None
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.tokens_T = self.tokens_T.contiguous()
        self.positions_T = self.positions_T.contiguous()
        self.write_slots_T = self.write_slots_T.contiguous()


@dataclass(slots=True, eq=False, kw_only=True)
class PackedRows(ForwardRows):
    """The forward pass of a step; its first num_node_rows logits rows belong to tree nodes.

    node_R: node of each node row. context_runs: (span, number of logits rows) of prompt chunks, in the
    order of the remaining logits rows.
    """

    num_node_rows: int
    sampling: SamplingRows
    node_R: torch.Tensor
    context_runs: list[tuple[Span, int]]


def ancestors(parents_BW: torch.Tensor) -> torch.Tensor:
    """Return bool [B, W, W]: whether node u is w or an ancestor of w, at [b, w, u]; false for the
    root."""
    num, width = parents_BW.shape
    above_BWW = torch.zeros((num, width, width), dtype=torch.bool, device=parents_BW.device)
    batch_B = torch.arange(num, device=parents_BW.device)
    for w in range(1, width):
        above_BWW[:, w] = above_BWW[batch_B, parents_BW[:, w].clamp(min=0)]
        above_BWW[:, w, w] = True
    return above_BWW


def pack(batch: Batch, tree: DraftTree) -> PackedRows:
    """Return the rows of a step. The tree may be narrower than the batch allows."""
    table, device = batch.table, batch.table.device
    num_rooted = batch.num_rows
    nodes = node_rows(tree, batch.in_table)
    num_node_rows = len(nodes.tokens_R)
    rows = [nodes.tokens_R, nodes.model_position_R, nodes.write_slots_R]
    runs, wanted, context_runs, row = [], [], [], num_node_rows
    ranks = [span.rank for span in batch.rooted]
    ranks += [0] * (num_rooted - len(ranks))
    for span in batch.spans:
        count = span.context_count
        if not count:
            continue
        runs.append(ContextRun(num_rooted + len(runs), row, span.context_start, count))
        ranks.append(span.rank)
        if span.wants_context_logits:
            wanted.append(torch.arange(row, row + count, device=device))
            context_runs.append((span, count))
        row += count
    seats_B, chunks = batch.seats_B, None
    if batch.stores_context:
        num_prompt_rows, seats_C = batch.num_prompt_rows, batch.chunks_C4[:, 0]
        runs_C3 = batch.chunks_C4[:, 1:]
        prompts = prompt_rows(seats_C, runs_C3, num_prompt_rows, table.tokens_AC, table.slots_AC)
        rows = [torch.cat(pair) for pair in zip(rows, prompts, strict=True)]
        seats_B = torch.cat([seats_B, seats_C])
        if batch.prompt_stages is not None:  # the host's runs are those of this step alone
            chunks, runs = PromptChunks(runs_C3, num_node_rows, num_prompt_rows), []
    tokens_T, positions_T, write_slots_T = rows
    grid = NodeGrid(nodes.grid_BW, nodes.slots_BW, batch.roots_B, tree.branch_parents)
    layout = AttentionLayout(
        table.slots_AC,
        seats_B,
        batch.max_length - 1,
        tuple(runs),
        grid if num_rooted else None,
        chunks,
    )
    logits_rows_R = torch.cat([nodes.rows_R, *wanted]) if wanted else nodes.rows_R
    return PackedRows(
        tokens_T=tokens_T,
        positions_T=positions_T,
        write_slots_T=write_slots_T,
        layout=layout,
        logits_rows_R=logits_rows_R if len(logits_rows_R) else None,
        num_leading=num_node_rows,
        num_outputs=None if wanted or not batch.stores_context else num_node_rows,
        ranks=tuple(ranks),
        num_node_rows=num_node_rows,
        sampling=_sampling_rows(batch, tree, nodes.sequence_R, nodes.node_R, nodes.position_R),
        node_R=nodes.node_R,
        context_runs=context_runs,
    )


def committed(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the committed tokens [B, L] of each sequence and their number [B].

    Only penalties read them, so both are empty if no sequence has any.
    """
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
    """Return what the sampler reads of each node row; its ancestors only if penalties act."""
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
