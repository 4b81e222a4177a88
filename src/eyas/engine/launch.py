"""How a step goes out: a draft tree for each sequence, the forward, masks, the verdict.

A flight goes all the way at once, but for one that waits for masks of trees which a device drafts: its
draft and its forward go out first, and its verdict once the masks are there, which are filled while the
forward runs. What comes after it on the device is planned meanwhile.

Promises: a flight that fails with what a drafter proposed goes out again without a draft, since nothing
is changed before its verdict; one that fails all the same says so. Automata are read only once all
flights before theirs have landed.
Does not know: who asked for what, which sequence runs when.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto

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
from eyas.engine.scheduler import Plan
from eyas.engine.sequence import Sequence, Status
from eyas.engine.verifier import Verify
from eyas.kernels import usable
from eyas.runner.batch import Batch, PlannedBatch, nobodys_batch
from eyas.runner.graphs import StepGraphs
from eyas.runner.rows import PackedRows, pack
from eyas.runner.runner import ModelRunner, Output
from eyas.runner.table import SequenceTable
from eyas.sampling import BatchParams, RowSource
from eyas.transfer import Outbox

log = logging.getLogger(__name__)


class Until(Enum):
    """How far a flight is to go. STARTED: its forward is under way; MASKED: and its masks are being
    filled; SETTLED: and its verdict."""

    STARTED = auto()
    MASKED = auto()
    SETTLED = auto()


class Launcher:
    """land_before: lands the flights that went out before one. verify: gives the verdicts. drafters: in
    the order in which they are tried. graphs: None on a CPU."""

    def __init__(
        self,
        runner: ModelRunner,
        table: SequenceTable,
        drafter: Drafter,
        info: EngineInfo,
        metrics: Metrics,
        mask_seconds: float,
        verify: Verify,
        land_before: Callable[[Flight], None],
    ) -> None:
        self._verify = verify
        fallback = () if isinstance(drafter, RootDrafter) else (RootDrafter(),)
        self.drafters: tuple[Drafter, ...] = (drafter, *fallback)
        self._runner = runner
        self._table = table
        self._info = info
        self._metrics = metrics
        self._land_before = land_before
        self._outbox = Outbox(table.device)
        self._landed_at = 0.0
        self.masking = Masking(info.vocab_size, mask_seconds, metrics.grammar, self._outbox)
        self.graphs = StepGraphs(table.device) if usable(table.device) else None
        self._params_key: tuple[int, ...] = ()
        self._params = BatchParams([], info.vocab_size, table.device)

    def board(self, plan: Plan) -> Flight:
        """A flight, and what can be done for it while the one before it waits for its masks. What fails
        here is done again when it starts."""
        flight = Flight(plan, time.perf_counter())
        with suppress(Exception), torch.inference_mode():
            flight.planned = self._planned(flight, self.drafters[0])
        return flight

    def advance(self, flight: Flight, until: Until) -> None:
        """Have a flight go so far, unless it is there already; a flight that does not wait for masks
        goes all the way."""
        while not flight.has_departed:
            try:
                with torch.inference_mode():
                    is_settled = self._advance(flight, until)
            except Exception:
                drafter = self.drafters[flight.num_failed]
                log.exception("a step failed with the drafter %s", type(drafter).__name__)
                self._metrics.num_failed_steps += 1
                flight.num_failed += 1
                flight.forward = None
                if flight.num_failed == len(self.drafters):
                    flight.error = STEP_FAILED
                    self._depart(flight)
            else:
                if not is_settled:
                    return

    def _advance(self, flight: Flight, until: Until) -> bool:
        """Nothing is changed before its verdict; whether it has that."""
        if flight.forward is None:
            flight.forward = self._start(flight, self.drafters[flight.num_failed])
        masks = flight.forward.masks
        if masks is not None and not self.masking.walks_ahead:
            if until is Until.STARTED:
                return False
            if not masks.has_begun:
                self._walk(flight, masks)
            if until is Until.MASKED:
                return False
        self._settle(flight, flight.forward)
        return True

    def _depart(self, flight: Flight) -> None:
        try:
            flight.depart(self._outbox)
        except Exception:
            log.exception("a step's results cannot be read; its requests end with an error")
            flight.error = STEP_FAILED
            self._metrics.num_failed_steps += 1

    def _start(self, flight: Flight, drafter: Drafter) -> Forward:
        plan = flight.plan
        self._outbox.settle()  # stages write their results where the last step's are
        planned, flight.planned = flight.planned, None
        batch = (planned or self._planned(flight, drafter)).begin()
        flight.drafted = proposed = drafter.propose(batch, plan.shape)
        tree = batch.hold(proposed)
        masks = None
        if any(sequence.automaton is not None for sequence in plan.rooted):
            masks = TreeMasks(self.masking, tree)
            if self.masking.walks_ahead:
                self._walk(flight, masks)
                tree = masks.tree
        rows, output = self._forward(batch, tree)
        return Forward(batch, tree, rows, output, masks)

    def _settle(self, flight: Flight, forward: Forward) -> None:
        batch, tree, masks = forward.batch, forward.tree, forward.masks
        rows, output = forward.rows, forward.output
        mask_RK = None
        flight.masks = masks
        if masks is not None:
            mask_RK = batch.bring_array("mask", masks.finish())
        flight.prompt_rows = score_prompts(flight.plan, rows, output, self._table)
        verdict = None
        if batch.rooted:
            verdict = self._verdict(batch, tree, rows, output, mask_RK)
            flight.tree, flight.verdict = tree, verdict
            flight.drafter = self.drafters[flight.num_failed]
        self._depart(flight)  # what the drafter makes of the step need not be waited for
        self._observe(batch, output, verdict)

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
        if flight.error is not None or landed is None or tree is None or drafter is None:
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
    def prepare(self, num: int, width: int, length: int, temperature: float) -> None:
        """Run, and so capture, a step of `num` sequences of up to `length` tokens; it is nobody's."""
        assert self.graphs is not None, "only a device has something to prepare"
        drafter = self.drafters[0]
        shape = drafter.shape.within(width)
        asked = (self._info.vocab_size, num, width, length, temperature, self.graphs, shape.levels)
        batch = nobodys_batch(self._table, *asked).begin()
        tree = batch.hold(drafter.propose(batch, shape))
        rows, output = self._forward(batch, tree)
        verdict = self._verdict(batch, tree, rows, output, None)
        self.drafters[0].observe(batch, output, verdict)

    def _planned(self, flight: Flight, drafter: Drafter) -> PlannedBatch:
        plan = flight.plan
        params = self._batch_params(plan)
        is_constrained = any(sequence.automaton is not None for sequence in plan.rooted)

        def automata() -> list[Automaton | None]:
            self._land_before(flight)
            return [
                sequence.automaton if sequence.status is Status.RUNNING else None
                for sequence in plan.rooted
            ]

        return PlannedBatch(
            self._table,
            plan.spans,
            params,
            plan.width,
            plan.max_length,
            automata if is_constrained else None,
            self.graphs if drafter is self.drafters[0] else None,
            plan.shape.levels,
        )

    def _walk(self, flight: Flight, masks: TreeMasks) -> None:
        """Follow the trees from where the sequences stand once everything has landed."""
        self._land_before(flight)
        masks.walk(flight.plan.rooted)
        masks.begin()

    def _batch_params(self, plan: Plan) -> BatchParams:
        """Parameters of the rooted sequences, kept while the same ones step together."""
        rooted = plan.rooted
        key = tuple(sequence.order for sequence in rooted)
        if key != self._params_key:
            sources = [_row_source(sequence) for sequence in rooted]
            self._params = BatchParams(sources, self._info.vocab_size, self._table.device)
            self._params_key = key
        return self._params


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
