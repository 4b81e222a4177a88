"""The drafter that grows trees with a drafting network: EAGLE and MTP heads, and draft models.

`propose` first computes the network's missing rows up to the roots, for all sequences in one forward
pass. Then each further pass expands one level: the frontiers of all sequences in one forward pass. So a
tree of `steps` levels costs `steps` passes of the network.

Promises: the network's rows are computed from committed tokens (for a head with the target's features,
never with its own). Inner nodes are stored in scratch slots, which no sequence owns.
Does not know: the target, how a tree is verified.

Legend: B sequences, Q frontier nodes, T rows, R rows with logits, F feature size, U draft vocabulary, C
candidates, W nodes, P rows of a sequence in the first pass, or draft tokens from the root to a node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from eyas.attention.base import AttentionLayout, NodeGrid
from eyas.draft.base import Drafter, TreeShape, roots_alone
from eyas.draft.catch_up import (
    LONGEST_TAIL,
    MissingRun,
    RowTracker,
    run_pass,
    tail_pass,
)
from eyas.draft.grow import Frontier, Pool, best_tokens
from eyas.draft.network import DraftNetwork
from eyas.draft.prefix_rows import PrefixRows
from eyas.draft_tree import DraftTree, Verdict
from eyas.ops.level_rows import level_rows
from eyas.runner.batch import Batch
from eyas.runner.rows import ForwardRows, committed
from eyas.runner.runner import Output
from eyas.sampling.process import SamplingRows


@dataclass(slots=True)
class _Growth:
    """The state of growing the trees of a batch.

    places_R: sequence and position of the frontier's nodes. parents_BW: of all inner nodes so far; None
    while there are none below the roots, and for chains.
    """

    batch: Batch
    shape: TreeShape
    beta_B: torch.Tensor | None
    places_R: tuple[torch.Tensor, torch.Tensor]
    root_tokens_B: torch.Tensor
    parents_BW: torch.Tensor | None = None


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

    @property
    def prefix_rows(self) -> PrefixRows:
        return PrefixRows(self._network, self._tracker)

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        self._proposed_for = batch
        self._tracker.forget(batch)
        if batch.stages is not None:
            self._network.store_held()  # a replay stores what its recording did
        # Without a draft the rows stay missing until a later step drafts.
        missing = self._tracker.missing(batch) if shape.steps else None
        num_caught_up = 0
        if missing is not None and missing.runs:
            self._make_runs(batch, missing.runs)
            num_caught_up = sum(run.stop - run.start for run in missing.runs)
        self._tracker.step(batch, missing)
        if missing is None or not any(missing.drafts):
            roots = batch.stage(
                ("draft", self), "roots", lambda: roots_alone(batch), reads_params=False
            )
            return replace(roots, num_caught_up=num_caught_up)
        drafts_B = None
        if not all(missing.drafts):
            drafts = np.ones(batch.num_rows, dtype=bool)
            drafts[: len(missing.drafts)] = missing.drafts
            drafts_B = batch.to_static_array("drafts", drafts)
        beta_B = self._betas(batch)
        longest, num_rows = missing.longest, missing.num_rows
        if batch.stages is not None and batch.stages.graphs.fills_up:
            longest, num_rows = _bucket(longest, batch), 0  # all tails have as many
        key = (shape, longest, num_rows, drafts_B is None)
        draft = partial(self._draft, batch, shape, longest, drafts_B, beta_B)
        if _may_run_again(batch):
            self._tracker.save(batch.table)
        tree, made_slots_T = batch.stage(("draft", self), key, draft)
        self._tracker.made_slots(made_slots_T)
        return replace(tree, num_caught_up=num_caught_up)

    def num_missing(self, batch: Batch) -> int:
        return self._tracker.num_missing(batch)

    def observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        if batch is not self._proposed_for:  # the step ran again, without this drafter
            self._tracker.forget(batch)
        if not self.taps:
            return
        key = (output.write_slots_T.data_ptr(), *(t.data_ptr() for t in output.taps))
        # A replay of a later step overwrites the output of this one.
        may_hold = batch.stages is None and output.write_slots_T.device.type == "cpu"
        remember = partial(self._network.remember, output, may_hold=may_hold)
        batch.stage(("remember", self), key, remember, reads_context=True)

    def _make_runs(self, batch: Batch, runs: list[MissingRun]) -> None:
        """Compute the rows of all runs in one forward pass."""
        rows, previous_slots_T = run_pass(batch, runs)
        self._network.forward(rows, self._network.recall(previous_slots_T))
        for run in runs:
            self._tracker.made_run(run, batch.table)

    def _betas(self, batch: Batch) -> torch.Tensor | None:
        """Return beta of each sequence; None if no sequence is ranked with noise."""
        if self._trust is None or not any(batch.params.noisy):
            return None
        betas = np.zeros(batch.num_rows, dtype=np.float32)
        for b, sequence in enumerate(batch.params.sequences):
            betas[b] = self._trust(sequence.params.temperature)
        return batch.to_static_array("betas", betas)

    def _draft(
        self,
        batch: Batch,
        shape: TreeShape,
        longest: int,
        drafts_B: torch.Tensor | None,
        beta_B: torch.Tensor | None,
    ) -> tuple[DraftTree, torch.Tensor]:
        """Compute the tails, and grow the trees from the roots. Returns the trees, and the slots of the
        tails' rows."""
        if _may_run_again(batch):
            self._tracker.restore()
        rows, tails = tail_pass(self._tracker, batch, longest, drafts_B)
        features_TF = self._network.recall(tails.previous_slots_T)
        logits_BU, states_TF = self._network.forward(rows, features_TF)
        assert logits_BU is not None
        states_BF = None if states_TF is None else states_TF[tails.root_rows_B]
        topk = min(shape.topk, self._network.draft_vocab_size)
        growth = _Growth(
            batch,
            TreeShape(shape.steps, topk, shape.nodes),
            beta_B,
            (tails.sequence_B, batch.roots_B),
            tails.root_tokens_B,
        )
        tree = self._grow(growth, logits_BU, states_BF)
        if drafts_B is not None:
            tree.sizes_B = torch.where(drafts_B, tree.sizes_B, 1)
        return tree, rows.write_slots_T

    def _grow(
        self, growth: _Growth, logits_RU: torch.Tensor, states_RF: torch.Tensor | None
    ) -> DraftTree:
        """Expand the trees level by level. logits_RU, states_RF: of the roots."""
        shape, num = growth.shape, growth.batch.num_rows
        frontier = Frontier.of_roots(num, logits_RU.device)
        pool = Pool(shape.num_candidates)
        for depth in range(shape.steps):
            rows = self._sampling_rows(growth, frontier)
            ids_RC, scores_RC = best_tokens(
                logits_RU,
                self._network.target_ids_U,
                rows,
                growth.batch.params,
                growth.beta_B,
                shape.topk,
            )
            width = frontier.pool_BQ.shape[1]
            frontier, parent_BQ = pool.add(
                frontier,
                ids_RC.view(num, width, -1),
                scores_RC.view(num, width, -1),
                shape.topk,
            )
            if depth + 1 == shape.steps:
                break
            rows_of_level, states_RF = self._below(growth, frontier, parent_BQ, states_RF)
            logits, states_RF = self._network.forward(rows_of_level, states_RF)
            assert logits is not None
            logits_RU = logits
        root_B1 = growth.root_tokens_B.unsqueeze(1)
        return pool.tree(root_B1, shape.nodes, is_chain=shape.topk == 1)

    def _below(
        self,
        growth: _Growth,
        frontier: Frontier,
        parent_BQ: torch.Tensor,
        states_RF: torch.Tensor | None,
    ) -> tuple[ForwardRows, torch.Tensor | None]:
        """Return the rows of the frontier, and for each the state [F] of the node above it.
        parent_BQ: the index of that node in the last frontier, whose states are given."""
        batch = growth.batch
        level = level_rows(
            frontier.path_BQP,
            parent_BQ,
            growth.parents_BW,
            states_RF,
            batch.in_table,
            self._first_scratch,
            self._per_seat,
        )
        rows, inner = level.rows, level.inner
        growth.places_R = (rows.sequence_R, rows.position_R)
        if inner is None:
            shape = parent_BQ.shape
            nodes = NodeGrid(
                rows.rows_R.view(shape), rows.write_slots_R.view(shape), rows.position_R
            )
        else:
            growth.parents_BW = inner.parents_BW
            nodes = NodeGrid(inner.rows_BW, inner.slots_BW, batch.roots_B, inner.parents_BW)
        rows_of_level = ForwardRows(
            tokens_T=rows.tokens_R,
            positions_T=rows.model_position_R,
            write_slots_T=rows.write_slots_R,
            layout=_layout(batch, nodes),
            logits_rows_R=rows.rows_R,
            num_leading=len(rows.rows_R),
        )
        return rows_of_level, level.states_RF

    def _sampling_rows(self, growth: _Growth, frontier: Frontier) -> SamplingRows | None:
        """Return where the frontier's nodes stand; None where no parameter of sampling acts."""
        if growth.batch.params.is_plain:
            return None
        batch = growth.batch
        history_BL, length_B = committed(batch)
        sequence_R, position_R = growth.places_R
        path_RP = is_ancestor_RP = None
        if frontier.path_BQP.shape[2] and any(batch.params.penalised):
            path_RP = frontier.path_BQP.flatten(0, 1)
            is_ancestor_RP = torch.ones_like(path_RP, dtype=torch.bool)
        return SamplingRows(sequence_R, position_R, path_RP, is_ancestor_RP, history_BL, length_B)


def _layout(batch: Batch, nodes: NodeGrid) -> AttentionLayout:
    return AttentionLayout(batch.table.slots_AC, batch.seats_B, batch.max_length - 1, nodes=nodes)


def _may_run_again(batch: Batch) -> bool:
    """Whether a stage of this step may end before it is done, and is run again then."""
    return batch.stages is not None and batch.stages.graphs.may_end_early


def num_scratch(shape: TreeShape) -> int:
    """Return the number of scratch slots for the inner nodes of one tree."""
    return max(0, shape.steps - 1) * shape.topk


def _bucket(longest: int, batch: Batch) -> int:
    """Return the number of rows of a tail that the graph is captured for: `longest` rounded up to what
    one step or two steps may add, or to a long tail."""
    usual = (batch.levels, 2 * batch.levels, max(2 * batch.width, LONGEST_TAIL))
    return next((rows for rows in usual if longest <= rows), longest)
