"""The drafter that grows trees with a drafting network: EAGLE and MTP heads, and draft models.

`propose` first computes the network's missing rows up to the roots, for all sequences in one forward
pass. Then each further pass expands one level: the frontiers of all sequences in one forward pass. So a
tree of `steps` levels costs `steps` passes of the network.

Promises: the network's rows are computed from committed tokens (for a head with the target's features,
never with its own). Inner nodes are stored in scratch slots, which no sequence owns.
Does not know: the target, how a tree is verified.

Legend: B sequences, P rows of a sequence in the first pass, K frontier nodes, T rows, F feature size,
U draft vocabulary, W nodes, D draft tokens from the root to a node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from eyas.attention.base import Layout, NodeGrid
from eyas.core import DraftTree, Verdict
from eyas.draft.base import Drafter, TreeShape, root_tokens, roots_alone
from eyas.draft.catch_up import (
    LONGEST_TAIL,
    CatchUpRows,
    MissingRun,
    RowTracker,
    run_rows,
    tail_rows,
)
from eyas.draft.grow import Frontier, Pool, rank
from eyas.draft.network import DraftNetwork
from eyas.kernels import usable
from eyas.runner.batch import Batch
from eyas.runner.rows import ForwardRows, committed
from eyas.runner.runner import Output
from eyas.sampling.process import SamplingRows


@dataclass(slots=True)
class _Growth:
    """The state of growing the trees of one batch.

    tails: the rows of the first pass. parents: [B, 1] of the roots, then [B, K] of each expanded level;
    with kernels one grid [B, W] of all levels so far. places_R: sequence and position of each node of
    the frontier, if a kernel computed them.
    """

    batch: Batch
    shape: TreeShape
    beta_B: torch.Tensor | None
    tails: CatchUpRows
    parents: list[torch.Tensor] = field(default_factory=list)
    places_R: tuple[torch.Tensor, torch.Tensor] | None = None


class TreeDrafter(Drafter):
    """Grows draft trees with a drafting network.

    network: the drafting network. shape: of the largest tree. first_scratch: first scratch slot of
    the network's store; there are `num_scratch(shape)` of them for each seat. max_rows: most missing
    rows of prompts that are computed in one step. trust: returns beta at a temperature
    (`DraftNetwork.beta`); None ranks candidates without noise.
    """

    def __init__(
        self,
        network: DraftNetwork,
        shape: TreeShape,
        *,
        first_scratch: int,
        max_rows: int,
        trust: Callable[[float], float] | None,
    ) -> None:
        self._network = network
        self._trust = trust
        self._first_scratch = first_scratch
        self._per_seat = num_scratch(shape)
        self._tracker = RowTracker(
            network.first_position, bool(network.taps), first_scratch, max_rows
        )
        self._proposed_for: Batch | None = None
        self.shape = shape
        self.taps = network.taps
        self.sources = ("head" if network.taps else "model",)

    @property
    def networks(self) -> tuple[DraftNetwork, ...]:
        return (self._network,)

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        self._proposed_for = batch
        self._tracker.forget(batch)
        # Without a draft the rows stay missing until a later step drafts.
        missing = self._tracker.missing(batch) if shape.steps else None
        caught_up = missing is not None and bool(missing.runs)
        if missing is not None and missing.runs:
            self._make_runs(batch, missing.runs)
        self._tracker.step(batch, missing)
        if missing is None or not any(missing.drafts):
            roots = batch.stage(("draft", self), "roots", lambda: roots_alone(batch))
            return replace(roots, caught_up=caught_up)
        drafts_B = None
        if not all(missing.drafts):
            drafts = np.ones(batch.num_rows, dtype=bool)
            drafts[: len(missing.drafts)] = missing.drafts
            drafts_B = batch.to_static_array("drafts", drafts)
        beta_B = self._betas(batch)
        longest = missing.longest if batch.stages is None else _bucket(missing.longest, batch)
        key = (shape, longest, drafts_B is None)
        draft = partial(self._draft, batch, shape, longest, drafts_B, beta_B)
        tree = batch.stage(("draft", self), key, draft)
        return replace(tree, caught_up=caught_up)

    def observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        if batch is not self._proposed_for:  # the step ran again, without this drafter
            self._tracker.forget(batch)
        if not self.taps:
            return
        key = (output.write_slots_T.data_ptr(), *(t.data_ptr() for t in output.taps))
        remember = partial(self._network.remember, output)
        batch.stage(("remember", self), key, remember, reads_context=True)

    def _make_runs(self, batch: Batch, runs: list[MissingRun]) -> None:
        """Compute the rows of all runs in one forward pass."""
        made = run_rows(self._tracker, batch, runs)
        slots_T = made.previous_slots_T
        self._network.forward(made.rows, None if slots_T is None else self._network.recall(slots_T))
        for run in runs:
            self._tracker.made_run(run, batch.table)

    def _betas(self, batch: Batch) -> torch.Tensor | None:
        """Return beta of each sequence; None if no sequence is ranked with noise."""
        if self._trust is None or not any(batch.params.noisy):
            return None
        betas = np.zeros(batch.num_rows, dtype=np.float32)
        for b, source in enumerate(batch.params.sources):
            betas[b] = self._trust(source.params.temperature)
        return batch.to_static_array("betas", betas)

    def _draft(
        self,
        batch: Batch,
        shape: TreeShape,
        longest: int,
        drafts_B: torch.Tensor | None,
        beta_B: torch.Tensor | None,
    ) -> DraftTree:
        """Compute the tails, and grow the trees from the roots."""
        tails = tail_rows(self._tracker, batch, longest, drafts_B)
        slots_T = tails.previous_slots_T
        features_TF = None if slots_T is None else self._network.recall(slots_T)
        logits_BU, states_TF = self._network.forward(tails.rows, features_TF)
        self._tracker.made_slots(tails.rows.write_slots_T)
        assert logits_BU is not None and tails.root_rows_B is not None
        states_BF = None if states_TF is None else states_TF[tails.root_rows_B]
        topk = min(shape.topk, self._network.draft_vocab_size)
        growth = _Growth(batch, TreeShape(shape.steps, topk, shape.nodes), beta_B, tails)
        tree = self._grow(growth, logits_BU, states_BF)
        if drafts_B is not None:
            tree.sizes_B = torch.where(drafts_B, tree.sizes_B, 1)
        return tree

    def _grow(
        self, growth: _Growth, logits_RU: torch.Tensor, states_RF: torch.Tensor | None
    ) -> DraftTree:
        """Expand the trees level by level. logits_RU, states_RF: of the roots."""
        shape, num = growth.shape, growth.batch.num_rows
        frontier = Frontier.of_roots(num, logits_RU.device)
        pool = Pool(shape.num_candidates)
        for depth in range(shape.steps):
            rows = self._sampling_rows(growth, frontier, depth)
            ids_RC, scores_RC = rank(
                logits_RU,
                self._network.target_ids_U,
                rows,
                growth.batch.params,
                growth.beta_B,
                shape.topk,
            )
            width = frontier.pool_BK.shape[1]
            frontier, parent_BK = pool.add(
                frontier,
                ids_RC.view(num, width, -1),
                scores_RC.view(num, width, -1),
                shape.topk,
            )
            if depth + 1 == shape.steps:
                break
            rows_of_level, states_RF = self._below(
                growth, frontier, parent_BK, states_RF, depth + 1
            )
            logits, states_RF = self._network.forward(rows_of_level, states_RF)
            assert logits is not None
            logits_RU = logits
        token_B = growth.tails.root_tokens_B
        root_B1 = root_tokens(growth.batch) if token_B is None else token_B.unsqueeze(1)
        return pool.tree(root_B1, shape.nodes, is_chain=shape.topk == 1)

    def _below(
        self,
        growth: _Growth,
        frontier: Frontier,
        parent_BK: torch.Tensor,
        states_RF: torch.Tensor | None,
        depth: int,
    ) -> tuple[ForwardRows, torch.Tensor | None]:
        """Return the rows of the frontier at `depth`, and the states of their parents, one a row.

        parent_BK: indices of the parents in the last frontier. states_RF: states of the last frontier.
        """
        if usable(parent_BK.device):
            return self._below_by_kernel(growth, frontier, parent_BK, states_RF)
        parents, (num, topk), device = growth.parents, parent_BK.shape, parent_BK.device
        if depth == 1:
            parents.append(torch.full((num, 1), -1, dtype=torch.int64, device=device))
            inner_BK = torch.zeros((num, 1), dtype=torch.int64, device=device)
        else:  # node ids of the last frontier
            first = 1 + (depth - 2) * topk
            inner_BK = torch.arange(first, first + topk, device=device).expand(num, -1)
        parents.append(inner_BK.gather(1, parent_BK))
        if states_RF is not None:
            size = states_RF.shape[1]
            states_RF = (
                states_RF.view(num, inner_BK.shape[1], size)
                .gather(1, parent_BK.unsqueeze(2).expand(-1, -1, size))
                .flatten(0, 1)
            )
        return self._level(growth, frontier, torch.cat(parents, dim=1), depth), states_RF

    def _level(
        self, growth: _Growth, frontier: Frontier, parents_BW: torch.Tensor, depth: int
    ) -> ForwardRows:
        """Return the rows of the frontier at `depth`.

        parents_BW: of all expanded nodes, the frontier's last.
        """
        batch, topk = growth.batch, growth.shape.topk
        num, width = parents_BW.shape
        device = parents_BW.device
        first_B1 = self._first_scratch + batch.seats_B.unsqueeze(1) * self._per_seat
        scratch_BS = first_B1 + torch.arange(width - 1, device=device)
        rows_BK = torch.arange(num * topk, device=device).view(num, topk)
        root_slots_B1 = batch.node_slots_BW[:, :1]
        slots_BW = torch.cat([root_slots_B1, scratch_BS], dim=1)
        own_slots_BK = slots_BW[:, width - topk :]
        positions_B = batch.roots_B + depth
        if topk == 1:
            batch.table.place_nodes(batch.seats_B, positions_B, own_slots_BK)
            nodes = NodeGrid(rows_BK, own_slots_BK, positions_B)
        else:
            grid_BW = torch.full_like(parents_BW, -1)
            grid_BW[:, width - topk :] = rows_BK
            nodes = NodeGrid(grid_BW, slots_BW, batch.roots_B, parents_BW)
        positions_T = positions_B.repeat_interleave(topk).clamp(max=batch.table.last_position)
        return ForwardRows(
            tokens_T=frontier.path_BKD[:, :, -1].reshape(-1),
            positions_T=positions_T,
            write_slots_T=own_slots_BK.reshape(-1),
            layout=_layout(batch, nodes),
            logits_rows_R=rows_BK.view(-1),
            num_leading=num * topk,
        )

    def _below_by_kernel(
        self,
        growth: _Growth,
        frontier: Frontier,
        parent_BK: torch.Tensor,
        states_RF: torch.Tensor | None,
    ) -> tuple[ForwardRows, torch.Tensor | None]:
        from eyas.kernels.levels import level_rows

        batch, table = growth.batch, growth.batch.table
        rows, grids, states_RF = level_rows(
            batch.seats_B,
            batch.roots_B,
            batch.node_slots_BW,
            frontier.path_BKD,
            parent_BK,
            growth.parents[0] if growth.parents else None,
            states_RF,
            table.slots_AC,
            self._first_scratch,
            self._per_seat,
            table.last_position,
            pdl=parent_BK.is_cuda,
        )
        growth.places_R = (rows.sequence_R, rows.position_R)
        if grids is None:
            own_slots_BK = rows.write_slots_R.view(parent_BK.shape)
            nodes = NodeGrid(rows.rows_R.view(parent_BK.shape), own_slots_BK, rows.position_R)
        else:
            growth.parents = [grids.parents_BW]
            nodes = NodeGrid(grids.rows_BW, grids.slots_BW, batch.roots_B, grids.parents_BW)
        rows_of_level = ForwardRows(
            tokens_T=rows.tokens_R,
            positions_T=rows.positions_R,
            write_slots_T=rows.write_slots_R,
            layout=_layout(batch, nodes),
            logits_rows_R=rows.rows_R,
            num_leading=len(rows.rows_R),
        )
        return rows_of_level, states_RF

    def _sampling_rows(
        self, growth: _Growth, frontier: Frontier, depth: int
    ) -> SamplingRows | None:
        """Return the sampling rows of the frontier; None if no sampling parameter has an effect."""
        if growth.batch.params.is_plain:
            return None
        batch, width = growth.batch, frontier.pool_BK.shape[1]
        history_BL, length_B = committed(batch)
        if depth == 0 and growth.tails.sequence_B is not None:
            growth.places_R = (growth.tails.sequence_B, batch.roots_B)
        if growth.places_R is not None and not any(batch.params.penalised):
            return SamplingRows(*growth.places_R, None, None, history_BL, length_B)
        path_RD = frontier.path_BKD.flatten(0, 1)
        return SamplingRows(
            sequence_R=torch.arange(len(path_RD), device=path_RD.device) // width,
            position_R=(batch.roots_B + depth).repeat_interleave(width),
            tokens_RD=path_RD if depth else None,
            is_ancestor_RD=torch.ones_like(path_RD, dtype=torch.bool) if depth else None,
            history_BL=history_BL,
            length_B=length_B,
        )


def _layout(batch: Batch, nodes: NodeGrid) -> Layout:
    return Layout(batch.table.slots_AC, batch.seats_B, batch.max_length - 1, nodes=nodes)


def num_scratch(shape: TreeShape) -> int:
    """Return the number of scratch slots for the inner nodes of one tree."""
    return max(0, shape.steps - 1) * shape.topk


def _bucket(longest: int, batch: Batch) -> int:
    """Return the number of rows of a tail that the graph is captured for: `longest` rounded up to what
    one step or two steps may add, or to a long tail."""
    usual = (batch.levels, 2 * batch.levels, max(2 * batch.width, LONGEST_TAIL))
    return next((rows for rows in usual if longest <= rows), longest)
