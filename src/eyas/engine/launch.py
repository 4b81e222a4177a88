"""The stages of a step: prepare, draft and forward, masks, verdict. The engine owns their order.

Promises: a step whose draft or forward fails runs again without a draft, since nothing is changed
before its verdict; one that fails all the same, or later, says so in `Flight.error` and lands.
Does not know: which sequence runs when, what happens between the stages.
"""

from __future__ import annotations

import logging
import time

import torch

from eyas.config import EngineInfo
from eyas.constraint.automaton import Automaton
from eyas.core import DraftTree, Verdict
from eyas.draft import Drafter, RootDrafter, StepReport
from eyas.engine.commit import STEP_FAILED
from eyas.engine.flight import Flight, Forward, Landed
from eyas.engine.masks import Masking, TreeMasks
from eyas.engine.metrics import Metrics
from eyas.engine.prompts import score_prompts
from eyas.engine.scheduler import StepPlan
from eyas.engine.sequence import Sequence, Status
from eyas.engine.verifier import Verify
from eyas.kernels import usable
from eyas.runner.batch import Batch, PlannedBatch, padding_batch
from eyas.runner.graphs import StepGraphs
from eyas.runner.rows import PackedRows, pack
from eyas.runner.runner import ModelRunner, Output
from eyas.runner.table import SequenceTable
from eyas.sampling import BatchParams, RowSource
from eyas.transfer import Outbox

log = logging.getLogger(__name__)


class Launcher:
    """verify: gives the verdicts. drafters: in the order in which they are tried. max_graph_batch:
    sequences of the largest step that is captured; None is any. graphs: None where no step is, as on a
    CPU."""

    def __init__(
        self,
        runner: ModelRunner,
        table: SequenceTable,
        drafter: Drafter,
        info: EngineInfo,
        metrics: Metrics,
        mask_seconds: float,
        verify: Verify,
        max_graph_batch: int | None = None,
    ) -> None:
        self._verify = verify
        fallback = () if isinstance(drafter, RootDrafter) else (RootDrafter(),)
        self.drafters: tuple[Drafter, ...] = (drafter, *fallback)
        self._runner = runner
        self._table = table
        self._info = info
        self._metrics = metrics
        self._outbox = Outbox(table.device)
        self._landed_at = 0.0
        self.masking = Masking(info.vocab_size, mask_seconds, metrics.grammar, self._outbox)
        most = table.num_seats if max_graph_batch is None else max_graph_batch
        self.max_graph_batch = min(most, table.num_seats)
        captures = usable(table.device) and self.max_graph_batch > 0
        self.graphs = StepGraphs(table.device) if captures else None
        self._params_key: tuple[int, ...] = ()
        self._params = BatchParams([], info.vocab_size, table.device)

    @torch.inference_mode()
    def prepare(self, plan: StepPlan) -> Flight:
        """A planned step, with all that the host can do of it beside the steps under way."""
        flight = Flight(plan, time.perf_counter())
        if any(sequence.automaton is not None for sequence in plan.rooted):
            is_drafted = self.drafters[0].reads_automata and plan.width > 1
            flight.is_constrained = True
            flight.reads_automata = is_drafted or self.masking.walks_ahead
        try:
            is_captured = len(plan.rooted) <= self.max_graph_batch
            flight.planned = self._planned(plan, self.graphs if is_captured else None)
        except Exception:
            self._note_failure("a step could not be prepared")
            flight.num_failed += 1
        return flight

    @torch.inference_mode()
    def draft_and_forward(self, flight: Flight) -> None:
        """Draft, prune where the host sees the tree in time, and run the model over all rows; without a
        draft where that fails. Where `flight.reads_automata`, all steps before it have landed."""
        for drafter in self.drafters[flight.num_failed :]:
            try:
                planned = flight.planned or self._planned(flight.plan, None)
                flight.forward = self._draft_and_forward(flight, planned, drafter)
            except Exception:
                self._note_failure("a step failed with the drafter %s", type(drafter).__name__)
                flight.num_failed += 1
                flight.planned = None
            else:
                flight.drafter = drafter
                return
        self._give_up(flight)

    def _draft_and_forward(
        self, flight: Flight, planned: PlannedBatch, drafter: Drafter
    ) -> Forward:
        plan = flight.plan
        self._outbox.settle()  # stages write their results where the last step's are
        automata = None
        if flight.reads_automata:
            automata = [_running_automaton(sequence) for sequence in plan.rooted]
        batch = planned.begin(automata)
        flight.drafted = proposed = drafter.propose(batch, plan.shape)
        tree = batch.to_static(proposed)
        masks = None
        if flight.is_constrained:
            masks = TreeMasks(self.masking, tree)
            if self.masking.walks_ahead:
                masks.walk(plan.rooted)
                masks.begin()
                tree = masks.tree
        rows, output = self._forward(batch, tree)
        return Forward(batch, tree, rows, output, masks)

    @torch.inference_mode()
    def begin_masks(self, flight: Flight) -> None:
        """Walk the trees and start filling masks, beside the forward, where that is still to be done.
        All steps before this one have landed, so that automata stand at its roots."""
        if not flight.waits_for_masks:
            return
        assert flight.forward is not None and flight.forward.masks is not None
        try:
            flight.forward.masks.walk(flight.plan.rooted)
            flight.forward.masks.begin()
        except Exception:
            self._note_failure("a step failed in its masks")
            self._give_up(flight)

    @torch.inference_mode()
    def verify(self, flight: Flight) -> None:
        """Wait for the masks, give the verdict, and send the results to the host; nothing where that
        was done."""
        if flight.has_departed:
            return
        try:
            assert flight.forward is not None and not flight.waits_for_masks, "it was broken off"
            verdict = self._settle(flight, flight.forward)
        except Exception:
            self._note_failure("a step failed in its verdict")
            self._give_up(flight)
            return
        batch, output = flight.forward.batch, flight.forward.output
        self._depart(flight)  # what the drafter makes of the step need not be waited for
        self._observe(batch, output, verdict)

    def _settle(self, flight: Flight, forward: Forward) -> Verdict | None:
        batch, tree, masks = forward.batch, forward.tree, forward.masks
        rows, output = forward.rows, forward.output
        mask_RK = None
        flight.masks = masks
        if masks is not None:
            mask_RK = batch.to_static_array_async("mask", masks.finish())
        flight.prompt_rows = score_prompts(flight.plan, rows, output, self._table)
        if not batch.rooted:
            return None
        flight.tree = tree
        flight.verdict = self._verdict(batch, tree, rows, output, mask_RK)
        return flight.verdict

    def _depart(self, flight: Flight) -> None:
        try:
            flight.depart(self._outbox)
        except Exception:
            self._note_failure("a step's results cannot be read; its requests end with an error")
            self._give_up(flight)

    def _give_up(self, flight: Flight) -> None:
        """Its requests end with an error when it lands."""
        flight.error = STEP_FAILED
        flight.has_departed, flight.forward = True, None

    def _note_failure(self, message: str, *details: object) -> None:
        log.exception(message, *details)
        self._metrics.num_failed_steps += 1

    def _forward(self, batch: Batch, tree: DraftTree) -> tuple[PackedRows, Output]:
        """The rows of a step, and what the model makes of them."""

        taps = self.drafters[0].taps

        def forward() -> tuple[PackedRows, Output]:
            rows = pack(batch, tree)
            return rows, self._runner.forward(rows, taps)

        return batch.stage("forward", (taps, *_key(tree)), forward, reads_context=True)

    def _verdict(
        self,
        batch: Batch,
        tree: DraftTree,
        rows: PackedRows,
        output: Output,
        mask_RK: torch.Tensor | None,
    ) -> Verdict:
        """The verdict, and the device's own state after it."""
        assert output.logits_RV is not None
        logits_RV = output.logits_RV[: rows.num_node_rows]

        def settle() -> Verdict:
            verdict = self._verify(logits_RV, tree, rows, batch, mask_RK)
            places = (batch.seats_B, batch.roots_B, verdict, batch.node_slots_BW[:, : tree.width])
            self._table.advance(*places, is_chain=tree.is_chain)
            return verdict

        key = (logits_RV.data_ptr(), mask_RK is not None, *_key(tree))
        return batch.stage("verdict", key, settle, reads_context=True)

    def _observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        """The drafter sees every step, also one that ran without its draft."""
        try:
            self.drafters[0].observe(batch, output, verdict)
        except Exception:
            log.exception("the drafter failed to observe a step")

    def learn(self, flight: Flight) -> None:
        """From a step that has landed: how long it took, and what became of its tree."""
        now, before = time.perf_counter(), self._landed_at
        self._landed_at = now
        landed, tree, drafter = flight.landed, flight.drafted, flight.drafter
        has_failed = flight.error is not None or flight.verdict is None
        if has_failed or landed is None or tree is None or drafter is None:
            return
        is_pure = not any(span.context_count for span in flight.plan.spans)
        seconds = now - max(flight.started, before) if is_pure else None
        if seconds is not None:
            self.masking.step_seconds.append(seconds)
        counts = [outcome.count for outcome in landed.outcomes]
        accepted = [outcome.accepted_sources for outcome in landed.outcomes]
        try:
            drafter.learn(StepReport(tree, counts, _sizes(tree, landed), seconds, accepted))
        except Exception:
            log.exception("the drafter failed to learn from a step")

    @torch.inference_mode()
    def capture(self, num: int, width: int, length: int, temperature: float) -> None:
        """Run, and so capture, a step of `num` sequences of up to `length` tokens; it is nobody's."""
        assert self.graphs is not None, "only a device has something to prepare"
        drafter = self.drafters[0]
        shape = drafter.shape.within(width)
        asked = (self._info.vocab_size, num, width, length, temperature, self.graphs, shape.levels)
        batch = padding_batch(self._table, *asked).begin()
        tree = batch.to_static(drafter.propose(batch, shape))
        rows, output = self._forward(batch, tree)
        verdict = self._verdict(batch, tree, rows, output, None)
        self.drafters[0].observe(batch, output, verdict)

    def _planned(self, plan: StepPlan, graphs: StepGraphs | None) -> PlannedBatch:
        return PlannedBatch(
            self._table,
            plan.spans,
            self._batch_params(plan),
            plan.width,
            plan.max_length,
            graphs,
            plan.shape.levels,
        )

    def _batch_params(self, plan: StepPlan) -> BatchParams:
        """Parameters of the rooted sequences, kept while the same ones step together."""
        rooted = plan.rooted
        key = tuple(sequence.order for sequence in rooted)
        if key != self._params_key:
            sources = [_row_source(sequence) for sequence in rooted]
            self._params = BatchParams(sources, self._info.vocab_size, self._table.device)
            self._params_key = key
        return self._params


def _running_automaton(sequence: Sequence) -> Automaton | None:
    return sequence.automaton if sequence.status is Status.RUNNING else None


def _row_source(sequence: Sequence) -> RowSource:
    return RowSource(
        sequence.request.params,
        sequence.seed,
        sequence.index,
        sequence.num_prompt_tokens,
        sequence.stops.barred_token_ids,
    )


def _sizes(tree: DraftTree, landed: Landed) -> list[int]:
    """How many nodes the drafter proposed, what a grammar refused included."""
    # nothing is left out on a device
    on_cpu = tree.sizes_B.device.type == "cpu"
    return tree.sizes_B.tolist() if on_cpu else [outcome.size for outcome in landed.outcomes]


def _key(tree: DraftTree) -> tuple[int, bool, int]:
    return tree.width, tree.is_chain, tree.tokens_BW.data_ptr()
