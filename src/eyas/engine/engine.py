"""The engine: one step for every kind of work. This is the page to read first.

A step comes in two halves. `launch` plans a batch, lets the drafter propose a tree for each sequence,
runs the model over all rows, masks them, verifies, and advances the device's own state; `land` waits
for the result and tells the sequences. With `num_flights` = 1 the next launch goes out before the last
one landed; with 0 they are called one after the other. Automata read landed tokens, so a step with a
constrained sequence lands what is under way, on a device while its own forward runs.

Promises: the tokens of a request depend on its prompt, parameters and seed alone; a row's fault ends
that row's request and no other; whatever a client sends, the step goes on.
Does not know: HTTP, text formats, model families, what a drafter does inside.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import torch

from eyas.cache import CacheManager
from eyas.config import EngineInfo
from eyas.constraint import CompilePool, Grammar
from eyas.constraint.automaton import Automaton
from eyas.core import Delta, DraftTree, Request, RequestError, Verdict
from eyas.draft import Drafter, RootDrafter, StepReport
from eyas.engine.admission import check_request
from eyas.engine.commit import STEP_FAILED, Committer
from eyas.engine.flight import Flight, Landed
from eyas.engine.masks import MaskThreads, TreeMasks
from eyas.engine.metrics import Metrics
from eyas.engine.prompts import score_prompts
from eyas.engine.scheduler import Plan, Scheduler
from eyas.engine.sequence import Sequence, Status
from eyas.engine.stops import StopChecker, TextSink
from eyas.engine.verifier import verify
from eyas.grammar import OutputSpec
from eyas.kernels import usable
from eyas.runner.batch import Batch, nobodys_batch
from eyas.runner.graphs import StepGraphs
from eyas.runner.rows import PackedRows, pack
from eyas.runner.runner import ModelRunner, Output
from eyas.runner.table import SequenceTable
from eyas.sampling import BatchParams, RowSource
from eyas.wire import EngineStats

log = logging.getLogger(__name__)


class Engine:
    """add, abort, step. make_sink: makes an incremental detokenizer that skips special tokens or
    not; None without a tokenizer. grammars: compiles what outputs are to be; None where none can be.
    mask_seconds: when a step's masks take longer, the rest of its draft is left out. token_bytes: what
    a token stands for. control_ids: tokens that a request can have marked in its text."""

    def __init__(
        self,
        *,
        runner: ModelRunner,
        cache: CacheManager,
        table: SequenceTable,
        drafter: Drafter,
        scheduler: Scheduler,
        info: EngineInfo,
        num_flights: int,
        make_sink: Callable[[bool], TextSink] | None = None,
        grammars: CompilePool | None = None,
        mask_seconds: float = 0.05,
        token_bytes: Callable[[int], bytes] = lambda token: b"",
        control_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.runner = runner
        self.cache = cache
        self.table = table
        self.drafter = drafter
        self.scheduler = scheduler
        self.info = info
        self.num_flights = num_flights
        self.metrics = Metrics()
        self._make_sink = make_sink
        self._grammars = grammars
        self._mask_seconds = mask_seconds
        self._token_bytes = token_bytes
        self._control_ids = control_ids
        self._mask_threads = MaskThreads(table.device)
        self._graphs = StepGraphs(table.device) if usable(table.device) else None
        self.verify = verify
        fallback = () if isinstance(drafter, RootDrafter) else (RootDrafter(),)
        self._drafters: tuple[Drafter, ...] = (drafter, *fallback)
        self._flights: deque[Flight] = deque()
        self._requests: dict[str, list[Sequence]] = {}
        self._ready: list[Delta] = []
        self._committer = Committer(scheduler, cache, self.metrics)
        self._num_added = 0
        self._landed_at = 0.0
        self._params_key: tuple[int, ...] = ()
        self._params = BatchParams([], info.vocab_size, table.device)

    def step(self) -> list[Delta]:
        """One step of work; the deltas that became final."""
        flight = self.launch()
        if flight is not None:
            self._flights.append(flight)
        if self._flights and (flight is None or len(self._flights) > self.num_flights):
            self._ready += self.land(self._flights.popleft())
        deltas, self._ready = self._ready, []
        for delta in deltas:
            self._forget_if_done(delta)
        return deltas

    def launch(self) -> Flight | None:
        """Plan a step and put it under way; None when there is nothing to do before a landing."""
        plan = self.scheduler.next()
        if plan is None:
            return None
        flight = Flight(plan, time.perf_counter())
        for drafter in self._drafters:
            try:
                with torch.inference_mode():
                    self._run(plan, flight, drafter)
            except Exception:
                log.exception("a step failed with the drafter %s", type(drafter).__name__)
                flight.error = STEP_FAILED
                self.metrics.num_failed_steps += 1
            else:
                flight.error = None
                break
        self._depart(flight)
        return flight

    def _depart(self, flight: Flight) -> None:
        try:
            flight.depart()
        except Exception:
            log.exception("a step's results cannot be read; its requests end with an error")
            flight.error = STEP_FAILED
            self.metrics.num_failed_steps += 1

    def _run(self, plan: Plan, flight: Flight, drafter: Drafter) -> None:
        """One step up to its verdict. Nothing is changed before it, so a step that failed with what a
        drafter proposed runs again without a draft."""
        batch = self._batch(plan, drafter)
        flight.drafted = proposed = drafter.propose(batch)
        tree = batch.hold(proposed)
        masks = self._masks(plan, tree)
        if masks is not None and masks.walks_ahead:
            self._walk(plan, masks)
            tree = masks.tree
        rows, output = self._forward(batch, tree)
        if masks is not None:
            masks.watch_forward()
            if not masks.walks_ahead:
                self._walk(plan, masks)
            flight.refusals = masks.refusals
        mask_RK = None if masks is None else batch.hold_array("mask", masks.finish())
        flight.prompt_rows = score_prompts(plan, rows, output, self.table)
        if not batch.rooted:
            self._observe(batch, output, None)
            return
        verdict = self._settle(batch, tree, rows, output, mask_RK)
        flight.tree, flight.verdict, flight.drafter = tree, verdict, drafter
        self._observe(batch, output, verdict)

    def _forward(self, batch: Batch, tree: DraftTree) -> tuple[PackedRows, Output]:
        """The rows of a step, and what the model makes of them."""

        def forward() -> tuple[PackedRows, Output]:
            rows = pack(batch, tree)
            return rows, self.runner.forward(rows, self.drafter.taps)

        return batch.stage(("forward", *_key(tree)), forward, reads_context=True)

    def _settle(
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
            verdict = self.verify(logits_RV, tree, rows, batch, mask_RK)
            places = (batch.seats_B, batch.roots_B, verdict, batch.node_slots_BW[:, : tree.width])
            self.table.advance(*places, is_chain=tree.is_chain)
            return verdict

        key = ("verdict", id(self.verify), logits_RV.data_ptr(), mask_RK is not None, *_key(tree))
        return batch.stage(key, settle, reads_context=True)

    @torch.inference_mode()
    def prepare(self, num: int, width: int, length: int, temperature: float) -> None:
        """Run, and so capture, a step of `num` sequences of up to `length` tokens; it is nobody's."""
        assert self._graphs is not None, "only a device has something to prepare"
        asked = (self.info.vocab_size, num, width, length, temperature, self._graphs)
        batch = nobodys_batch(self.table, *asked)
        tree = batch.hold(self.drafter.propose(batch))
        rows, output = self._forward(batch, tree)
        verdict = self._settle(batch, tree, rows, output, None)
        self.drafter.observe(batch, output, verdict)

    def _batch(self, plan: Plan, drafter: Drafter) -> Batch:
        params = self._batch_params(plan)
        is_constrained = any(sequence.constraint is not None for sequence in plan.rooted)

        def automata() -> list[Automaton | None]:
            self._land_all()
            return [
                sequence.constraint if sequence.status is Status.RUNNING else None
                for sequence in plan.rooted
            ]

        return Batch(
            self.table,
            plan.spans,
            params,
            plan.width,
            plan.max_length,
            automata if is_constrained else None,
            self._graphs if drafter is self.drafter else None,
        )

    def _masks(self, plan: Plan, tree: DraftTree) -> TreeMasks | None:
        """What the automata will say of a step's trees; None where nobody is constrained."""
        if all(sequence.constraint is None for sequence in plan.rooted):
            return None
        asked = (self.info.vocab_size, self._mask_seconds, self.metrics.grammar)
        return TreeMasks(tree, *asked, self._mask_threads)

    def _walk(self, plan: Plan, masks: TreeMasks) -> None:
        """Follow the trees from where the sequences stand once everything has landed."""
        self._land_all()
        masks.walk(plan.rooted)
        masks.begin()

    def _land_all(self) -> None:
        while self._flights:
            self._ready += self.land(self._flights.popleft())

    def _observe(self, batch: Batch, output: Output, verdict: Verdict | None) -> None:
        """The drafter sees every step, also one that ran without its draft."""
        try:
            self.drafter.observe(batch, output, verdict)
        except Exception:
            log.exception("the drafter failed to observe a step")

    def land(self, flight: Flight) -> list[Delta]:
        """Wait for a step's result and tell its sequences: the only place that waits."""
        deltas = self._committer.commit(flight)
        self._report(flight)
        return deltas

    def _report(self, flight: Flight) -> None:
        """Tell the drafter what became of its tree."""
        now, before = time.perf_counter(), self._landed_at
        self._landed_at = now
        landed, tree, drafter = flight.landed, flight.drafted, flight.drafter
        if flight.error is not None or landed is None or tree is None or drafter is None:
            return
        is_pure = not any(span.context_count for span in flight.plan.spans)
        seconds = now - max(flight.started, before) if is_pure else None
        accepted = [landed.sources_of(b) for b in range(len(landed.counts))]
        try:
            drafter.learn(StepReport(tree, landed.counts, _sizes(tree, landed), seconds, accepted))
        except Exception:
            log.exception("the drafter failed to learn from a step")

    def compile(self, spec: OutputSpec) -> Future[Grammar]:
        """Start compiling what an output is to be, off this thread. The future may hold a
        GrammarError."""
        if self._grammars is None:
            raise RequestError("output: this engine cannot enforce grammars", param=spec.param)
        return self._grammars.compile(spec)

    def add(self, request: Request, grammar: Grammar | None = None) -> None:
        """Take up a request. Raises RequestError, with nothing changed, when it can never be served.

        grammar: the request's output, compiled; waited for here if it is not given.
        """
        if request.id in self._requests:
            raise RequestError(f"request id {request.id!r} is in use", param="id")
        self.check_request(request)
        params = request.params
        if request.output is not None and grammar is None:
            grammar = self.compile(request.output).result()
        seed = params.seed if params.seed is not None else secrets.randbits(53)
        max_length = min(
            self.info.max_model_len,
            len(request.prompt_token_ids) + (params.max_tokens or self.info.max_model_len),
        )
        first = None
        if grammar is not None:
            assert request.output is not None
            first = Automaton(grammar, request.output.budget, self._token_bytes)
        sequences: list[Sequence] = []
        for index in range(params.n):
            sequences.append(
                Sequence(
                    request=request,
                    index=index,
                    order=self._num_added + index,
                    seed=seed,
                    tokens=list(request.prompt_token_ids),
                    num_prompt_tokens=len(request.prompt_token_ids),
                    max_length=max_length,
                    stops=self._stop_checker(request, max_length),
                    constraint=first.fork() if first is not None and index else first,
                    leader=sequences[0] if sequences else None,
                )
            )
        self._num_added += len(sequences)
        self._requests[request.id] = sequences
        for sequence in sequences:
            sequence.usage.num_prompt_tokens = sequence.num_prompt_tokens
            self.scheduler.add(sequence)

    def abort(self, request_id: str) -> None:
        """End a request now; its last deltas say so. An unknown id is no error."""
        for sequence in self._requests.get(request_id, ()):
            if sequence.status is not Status.FINISHED:
                self._ready.append(self._committer.end(sequence, "abort"))

    def has_work(self) -> bool:
        """Is there anything to step for?"""
        return bool(self._requests or self._flights or self._ready)

    def stats(self) -> EngineStats:
        """Counts for `/metrics`."""
        return self.metrics.stats(self.scheduler, self.cache, self._grammars)

    def check(self) -> None:
        """Raises AssertionError when a slot is lost or held twice."""
        self.cache.check()

    def shutdown(self) -> None:
        """Forget everything; nothing may be stepped afterwards."""
        self._flights.clear()
        self._requests.clear()
        if self._grammars is not None:
            self._grammars.close()
        self._mask_threads.close()

    def _batch_params(self, plan: Plan) -> BatchParams:
        """Parameters of the rooted sequences, kept while the same ones step together."""
        rooted = plan.rooted
        key = tuple(sequence.order for sequence in rooted)
        if key != self._params_key:
            sources = [self._row_source(sequence) for sequence in rooted]
            self._params = BatchParams(sources, self.info.vocab_size, self.table.device)
            self._params_key = key
        return self._params

    def _row_source(self, sequence: Sequence) -> RowSource:
        return RowSource(
            sequence.request.params,
            sequence.seed,
            sequence.index,
            sequence.num_prompt_tokens,
            sequence.stops.barred_token_ids,
        )

    def _stop_checker(self, request: Request, max_length: int) -> StopChecker:
        make_sink = self._make_sink
        skip = request.params.skip_special_tokens
        return StopChecker(
            request.params,
            frozenset(self.info.eos_token_ids),
            max_length - len(request.prompt_token_ids),
            None if make_sink is None else lambda: make_sink(skip),
            self._control_ids if request.with_marks else frozenset(),
        )

    def check_request(self, request: Request) -> None:
        """Everything that can be refused is refused here, before any work."""
        check_request(request, self.info, has_text=self._make_sink is not None)

    def _forget_if_done(self, delta: Delta) -> None:
        sequences = self._requests.get(delta.request_id)
        if delta.finish_reason is None or sequences is None:
            return
        if all(s.status is Status.FINISHED for s in sequences):
            del self._requests[delta.request_id]


def _sizes(tree: DraftTree, landed: Landed) -> list[int]:
    """How many nodes the drafter proposed, what a grammar refused included."""
    if tree.sizes_B.device.type == "cpu":
        return tree.sizes_B.tolist()
    return landed.sizes  # nothing is left out on a device


def _key(tree: DraftTree) -> tuple[int, bool, int]:
    return tree.width, tree.is_chain, tree.tokens_BW.data_ptr()
