"""The parts of a step between planning and landing: prepare, draft and forward, masks, verdict.

`eyas.engine.engine.Engine.step` calls them in order.

Promises: a step whose draft or forward pass fails runs again without a draft, since no state changes
before its verdict. If that fails too, or if a later part fails, `Flight.error` is set, and the requests
of the step end with an error when it lands.
Does not know: which sequences run in a step, the order of the parts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch

from eyas.core import STEP_FAILED
from eyas.draft import Drafter, RootDrafter, StepReport
from eyas.draft_tree import DraftTree, Verdict
from eyas.engine.flight import Flight, Forward, Landed
from eyas.engine.masks import Masking, TreeMasks
from eyas.engine.metrics import Metrics
from eyas.engine.prompts import score_prompts
from eyas.engine.scheduler import StepPlan
from eyas.engine.sequence import Sequence, Status
from eyas.engine.stage_timer import StageTimer
from eyas.engine.verifier import Verify
from eyas.runner.batch import Batch, PlannedBatch, padding_batch
from eyas.runner.graphs import StepGraphs
from eyas.runner.rows import PackedRows, pack
from eyas.runner.runner import ModelRunner, Output
from eyas.runner.table import SequenceTable
from eyas.sampling import BatchParams, SequenceParams
from eyas.transfer import Outbox

T = TypeVar("T")

log = logging.getLogger(__name__)


class Launcher:
    """Runs the parts of a step.

    mask_seconds: time limit for the masks of one step; draft nodes without a mask by then are not used.
    verify: computes the verdicts. drafters: the drafter, then the root drafter, which is used for a
    step in which the first one fails. graphs: None if no step is captured.
    """

    def __init__(
        self,
        runner: ModelRunner,
        table: SequenceTable,
        drafter: Drafter,
        vocab_size: int,
        *,
        mask_seconds: float,
        verify: Verify,
        graphs: StepGraphs | None,
    ) -> None:
        self._verify = verify
        fallback = () if isinstance(drafter, RootDrafter) else (RootDrafter(),)
        self.drafters: tuple[Drafter, ...] = (drafter, *fallback)
        self.runner = runner
        self.table = table
        self.metrics = Metrics()
        self._vocab_size = vocab_size
        self._outbox = Outbox(table.device)
        self._landed_at = 0.0
        self.masking = Masking(vocab_size, mask_seconds, self.metrics.grammar, self._outbox)
        self.graphs = graphs
        self.timer: StageTimer | None = None
        """Set where the stages "propose" and "forward" are measured."""
        self._params_key: tuple[int, ...] = ()
        self._params = BatchParams([], vocab_size, table.device)

    @property
    def _num_captured(self) -> int:
        return 0 if self.graphs is None else self.graphs.num_captured

    @torch.inference_mode()
    def prepare(self, plan: StepPlan) -> Flight:
        """Start a flight and build the host side of its batch, while earlier steps may still run."""
        flight = Flight(plan, time.perf_counter(), self._num_captured)
        if any(sequence.automaton is not None for sequence in plan.rooted):
            is_read_by_drafter = self.drafters[0].reads_automata and plan.width > 1
            flight.is_constrained = True
            flight.reads_automata = is_read_by_drafter or self.masking.prunes
        try:
            flight.planned = self._plan_batch(plan, self.graphs)
        except Exception:
            self._note_failure("a step could not be prepared")
        return flight

    @torch.inference_mode()
    def draft_and_forward(self, flight: Flight) -> None:
        """Draft the trees and run the model over all rows of the step; if that fails, without a draft.

        On a CPU the nodes that a grammar refuses are removed before the forward pass. If
        `flight.reads_automata`, all earlier steps must have landed.
        """
        for drafter in self.drafters:
            try:
                planned = flight.planned or self._plan_batch(flight.plan, None)
                self._draft_and_forward(flight, planned, drafter)
            except Exception:
                self._note_failure("a step failed with the drafter %s", type(drafter).__name__)
                flight.planned = None
            else:
                flight.drafter = drafter
                return
        self._give_up(flight)

    def _draft_and_forward(self, flight: Flight, planned: PlannedBatch, drafter: Drafter) -> None:
        """Set `proposed`, `tree`, `masks` and `forward` of a flight."""
        plan = flight.plan
        self._outbox.settle()  # stages overwrite the results of the step before
        automata = None
        if flight.reads_automata:
            automata = [
                sequence.automaton if sequence.status is Status.RUNNING else None
                for sequence in plan.rooted
            ]
        batch = planned.begin(automata)
        flight.proposed = self._timed("propose", lambda: drafter.propose(batch, plan.shape))
        _limit_nodes(flight.proposed, batch, plan)
        tree = batch.to_static(flight.proposed)
        masks = None
        if flight.is_constrained:
            masks = TreeMasks(self.masking, tree)
            if self.masking.prunes:
                masks.find_legal(plan.rooted)
                masks.begin()
                tree = batch.to_static(masks.tree)
        rows, output = self._timed("forward", lambda: self._run_model(batch, tree))
        for span in plan.spans:
            if span.snapshot is not None:
                self.table.save_state(span.seat, span.snapshot)
        if masks is not None:
            masks.fill_until(self._outbox.ending())
        flight.tree, flight.masks, flight.forward = tree, masks, Forward(batch, rows, output)

    @torch.inference_mode()
    def begin_masks(self, flight: Flight) -> None:
        """Walk the trees and start filling the masks while the forward pass runs.

        Does nothing if the step needs no masks, or if they were started before the forward pass. The
        automata must have moved over the tokens of all earlier steps.
        """
        if not flight.waits_for_masks:
            return
        assert flight.masks is not None
        try:
            flight.masks.find_legal(flight.plan.rooted)
            flight.masks.begin()
        except Exception:
            self._note_failure("a step failed in its masks")
            self._give_up(flight)

    @torch.inference_mode()
    def verify(self, flight: Flight) -> None:
        """Wait for the masks, compute the verdict and start copying the results to the host.

        Does nothing if that was done already.
        """
        if flight.is_sent:
            return
        try:
            assert flight.forward is not None and not flight.waits_for_masks, "no forward pass"
            self._finish_forward(flight, flight.forward)
        except Exception:
            self._note_failure("a step failed in its verdict")
            self._give_up(flight)
            return
        batch, output = flight.forward.batch, flight.forward.output
        try:
            flight.send_results(self._outbox)
        except Exception:
            self._note_failure("a step's results cannot be read; its requests end with an error")
            self._give_up(flight)
        # Launched after the copy, so that the host does not wait for the drafter's work.
        self._observe(batch, output, flight.verdict)

    def _timed(self, name: str, stage: Callable[[], T]) -> T:
        return stage() if self.timer is None else self.timer.run(name, stage)

    def _run_model(self, batch: Batch, tree: DraftTree) -> tuple[PackedRows, Output]:
        """Pack the rows of a step and run the model over them."""
        taps = self.drafters[0].taps

        def forward() -> tuple[PackedRows, Output]:
            rows = pack(batch, tree)
            return rows, self.runner.forward(rows, taps)

        # Of the parameters only penalties are read, and with them the parameters as a whole.
        is_penalised = any(batch.params.penalised)
        key = (taps, is_penalised, *_tree_key(tree))
        return batch.stage("forward", key, forward, reads_context=True, reads_params=is_penalised)

    def _finish_forward(self, flight: Flight, forward: Forward) -> None:
        """Set `prompt_rows` and `verdict` of a flight from its forward pass."""
        batch, rows, output = forward.batch, forward.rows, forward.output
        mask_RK = None
        if flight.masks is not None:
            mask_RK = batch.to_static_array_async("mask", flight.masks.finish())
        flight.prompt_rows = score_prompts(flight.plan, rows, output, self.table)
        if batch.rooted:
            assert flight.tree is not None
            flight.verdict = self._run_verifier(batch, flight.tree, rows, output, mask_RK)

    def _give_up(self, flight: Flight) -> None:
        """Mark a flight as failed: its requests end with an error when it lands."""
        flight.error = STEP_FAILED
        flight.is_sent, flight.forward = True, None
        if self.table.states is not None:  # no request goes on from what the step has left
            self.table.states.is_updating = False

    def _note_failure(self, message: str, *details: object) -> None:
        log.exception(message, *details)
        self.metrics.num_failed_steps += 1

    def _run_verifier(
        self,
        batch: Batch,
        tree: DraftTree,
        rows: PackedRows,
        output: Output,
        mask_RK: torch.Tensor | None,
    ) -> Verdict:
        """Compute the verdict, and write the accepted tokens to the sequence table on the device."""
        assert output.logits_RV is not None
        logits_RV = output.logits_RV[: rows.num_node_rows]

        def verify_and_advance() -> Verdict:
            verdict = self._verify(logits_RV, tree, rows, batch, mask_RK)
            self.table.advance(batch.in_table, verdict, is_chain=tree.is_chain)
            return verdict

        key = (logits_RV.data_ptr(), mask_RK is not None, *_tree_key(tree))
        return batch.stage("verdict", key, verify_and_advance, reads_context=True)

    def _observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        """Give the drafter the hidden states of a step, even if the step ran without its draft."""
        try:
            self.drafters[0].observe(batch, output, verdict)
        except Exception:
            log.exception("the drafter failed to observe a step")

    def learn(self, flight: Flight) -> float | None:
        """Report a landed step to its drafter: the time it took, and which nodes were accepted.

        Returns that time, in seconds from the landing of the step before, or from the step's start. It
        is None if a graph was captured meanwhile, or is captured in later steps: those take less time.
        """
        now = time.perf_counter()
        taken: float | None = now - max(flight.started, self._landed_at)
        self._landed_at = now
        is_early = flight.planned is not None and flight.planned.precedes_capture
        if is_early or self._num_captured != flight.num_captured:
            taken = None
        landed, tree, drafter = flight.landed, flight.proposed, flight.drafter
        has_failed = flight.error is not None or flight.verdict is None
        if has_failed or landed is None or tree is None or drafter is None:
            return taken
        num_prompt_rows = flight.plan.num_prompt_rows
        seconds = None if num_prompt_rows else taken
        if seconds is not None:
            self.masking.step_seconds.append(seconds)
        counts = [outcome.count for outcome in landed.outcomes]
        accepted = [outcome.accepted_sources for outcome in landed.outcomes]
        try:
            sizes = _proposed_sizes(tree, landed)
            numbers = [sequence.order for sequence in flight.plan.rooted]
            drafter.learn(
                StepReport(tree, counts, sizes, seconds, accepted, numbers, num_prompt_rows)
            )
        except Exception:
            log.exception("the drafter failed to learn from a step")
        return taken

    @torch.inference_mode()
    def run_padding(
        self, num: int, width: int, length: int, temperature: float, num_prompt_rows: int = 0
    ) -> None:
        """Run a step of `num` sequences of up to `length` tokens in the padding seat, which leaves no
        state behind; where steps are captured, its CUDA graphs are. num_prompt_rows: rows of prompts
        that the step stores besides."""
        drafter = self.drafters[0]
        shape = drafter.shape.within(width)
        vocab_size, graphs = self._vocab_size, self.graphs
        batch = padding_batch(
            self.table,
            vocab_size,
            num,
            width,
            length,
            temperature,
            graphs,
            shape.levels,
            num_prompt_rows,
        ).begin()
        tree = batch.to_static(drafter.propose(batch, shape))
        rows, output = self._run_model(batch, tree)
        verdict = self._run_verifier(batch, tree, rows, output, None)
        drafter.observe(batch, output, verdict)

    def _plan_batch(self, plan: StepPlan, graphs: StepGraphs | None) -> PlannedBatch:
        return PlannedBatch(
            self.table,
            plan.spans,
            self._batch_params(plan),
            plan.width,
            plan.max_length,
            graphs,
            plan.shape.levels,
        )

    def _batch_params(self, plan: StepPlan) -> BatchParams:
        """Return the parameters of the rooted sequences, cached while the same ones step together."""
        rooted = plan.rooted
        key = tuple(sequence.order for sequence in rooted)
        if key != self._params_key:
            sequences = [_sequence_params(sequence) for sequence in rooted]
            self._params = BatchParams(sequences, self._vocab_size, self.table.device)
            self._params_key = key
        return self._params


def _limit_nodes(tree: DraftTree, batch: Batch, plan: StepPlan) -> None:
    """Cut trees to the nodes that their requests allow. Parents come before their children, so the
    first nodes of a tree are a tree."""
    limits = [sequence.request.max_draft_nodes for sequence in plan.rooted]
    if all(limit is None or limit >= tree.width for limit in limits):
        return
    limit_B = np.full(batch.num_rows, tree.width)
    for b, limit in enumerate(limits):
        limit_B[b] = tree.width if limit is None else limit
    tree.sizes_B.clamp_(max=batch.to_static_array("node limits", limit_B))


def _sequence_params(sequence: Sequence) -> SequenceParams:
    return SequenceParams(
        sequence.request.params,
        sequence.seed,
        sequence.index,
        sequence.num_prompt_tokens,
        sequence.stops.barred_token_ids,
    )


def _proposed_sizes(tree: DraftTree, landed: Landed) -> list[int]:
    """Return the number of nodes that the drafter proposed, by sequence.

    On a CPU the verified tree may lack nodes that a grammar refused. On a device none are removed, and
    the sizes of the outcomes are read, which are on the host already.
    """
    if tree.sizes_B.device.type == "cpu":
        return tree.sizes_B.tolist()
    return [outcome.size for outcome in landed.outcomes]


def _tree_key(tree: DraftTree) -> tuple[int, bool, int, int]:
    """Return what identifies a tree's tensors in the key of a captured stage, and on a CPU, where
    padding has no rows, the number of nodes."""
    num_nodes = 0
    if tree.sizes_B.device.type == "cpu" and tree.width > 1:
        num_nodes = int(tree.sizes_B.sum())
    return tree.width, tree.is_chain, tree.tokens_BW.data_ptr(), num_nodes
