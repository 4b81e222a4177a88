"""The engine: one step for every kind of work. This is the page to read first.

A step comes in two halves. `launch` plans a batch, lets the drafter propose a tree for each sequence,
runs the model over all rows, masks them, verifies, and advances the device's own state; `land` waits
for the result and tells the sequences. With `num_flights` = 1 the next launch goes out before the last
one landed; with 0 they are called one after the other.

Promises: the tokens of a request depend on its prompt, parameters and seed alone; a row's fault ends
that row's request and no other; whatever a client sends, the step goes on.
Does not know: HTTP, text formats, model families, what a drafter does inside.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
import torch

from eyas.cache import CacheManager
from eyas.config import EngineInfo
from eyas.constraint import ConstraintCompiler
from eyas.core import Delta, DraftTree, Request, RequestError, Verdict
from eyas.draft import Drafter, RootDrafter, StepReport
from eyas.engine.commit import STEP_FAILED, Committer
from eyas.engine.flight import Flight, PromptRows
from eyas.engine.masks import fill_masks
from eyas.engine.metrics import Metrics
from eyas.engine.scheduler import Plan, Scheduler
from eyas.engine.sequence import Sequence, Status
from eyas.engine.stops import StopChecker, TextSink
from eyas.engine.verifier import raw_logprobs, verify
from eyas.runner.batch import Batch
from eyas.runner.rows import PackedRows, pack
from eyas.runner.runner import ModelRunner, Output
from eyas.runner.table import SequenceTable
from eyas.sampling import BatchParams, RowSource
from eyas.wire import EngineStats

log = logging.getLogger(__name__)


class Engine:
    """add, abort, step. make_sink: makes an incremental detokenizer that skips special tokens or
    not; None without a tokenizer. compilers: what output specifications this engine can enforce."""

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
        compilers: Mapping[str, ConstraintCompiler] | None = None,
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
        self._compilers = dict(compilers or {})
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
        """One step up to its verdict. Nothing is changed before the verdict, so a step that failed
        with what a drafter proposed runs again without a draft."""
        batch = Batch(self.table, plan.spans, self._batch_params(plan), plan.width, plan.max_length)
        tree = drafter.propose(batch)
        rows = pack(batch, tree)
        output = self.runner.forward(rows, self.drafter.taps)
        mask_RK, flight.is_legal_BW = self._masks(plan, tree, rows)
        flight.prompt_rows = self._score_prompts(plan, rows, output)
        if not batch.rooted:
            self._observe(batch, output, None)
            return
        assert output.logits_RV is not None
        logits_RV = output.logits_RV[: rows.num_node_rows]
        verdict = verify(logits_RV, tree, rows, batch, mask_RK)
        self.table.advance(
            batch.seats_B,
            batch.roots_B,
            verdict,
            batch.node_slots_BW[:, : tree.width],
            is_chain=tree.is_chain,
        )
        flight.tree, flight.verdict, flight.drafter = tree, verdict, drafter
        self._observe(batch, output, verdict)

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
        landed, tree, drafter = flight.landed, flight.tree, flight.drafter
        if flight.error is not None or landed is None or tree is None or drafter is None:
            return
        is_pure = not any(span.context_count for span in flight.plan.spans)
        seconds = now - max(flight.started, before) if is_pure else None
        try:
            drafter.learn(StepReport(tree, landed.counts, landed.sizes, seconds))
        except Exception:
            log.exception("the drafter failed to learn from a step")

    def add(self, request: Request) -> None:
        """Take up a request. Raises RequestError, with nothing changed, when it can never be served."""
        if request.id in self._requests:
            raise RequestError(f"request id {request.id!r} is in use", param="id")
        self._check(request)
        params = request.params
        seed = params.seed if params.seed is not None else secrets.randbits(53)
        max_length = min(
            self.info.max_model_len,
            len(request.prompt_token_ids) + (params.max_tokens or self.info.max_model_len),
        )
        first = None
        if request.output is not None:
            first = self._compilers[request.output.kind].compile(request.output)
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
        return self.metrics.stats(self.scheduler, self.cache)

    def check(self) -> None:
        """Raises AssertionError when a slot is lost or held twice."""
        self.cache.check()

    def shutdown(self) -> None:
        """Forget everything; nothing may be stepped afterwards."""
        self._flights.clear()
        self._requests.clear()

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

    def _masks(
        self, plan: Plan, tree: DraftTree, rows: PackedRows
    ) -> tuple[torch.Tensor | None, np.ndarray | None]:
        """Mask words of the node rows, and which nodes are legal. Automata read landed tokens, so
        flights land first here."""
        rooted = plan.rooted
        if all(sequence.constraint is None for sequence in rooted):
            return None, None
        while self._flights:
            self._ready += self.land(self._flights.popleft())
        return fill_masks(rooted, tree, rows, self.info.vocab_size)

    def _score_prompts(self, plan: Plan, rows: PackedRows, output: Output) -> dict[int, PromptRows]:
        """Log-probabilities of prompt tokens, for the chunks that asked for them."""
        scored: dict[int, PromptRows] = {}
        at = rows.num_node_rows
        for span, count in rows.context_runs:
            assert output.logits_RV is not None
            i = plan.spans.index(span)
            num_top = plan.sequences[i].request.params.prompt_logprobs or 0
            first = span.context_start + 1
            token_ids = self.table.tokens_AC[span.seat, first : first + count].clone()
            logits_RV = output.logits_RV[at : at + count]
            scored[i] = PromptRows(token_ids, *raw_logprobs(logits_RV, token_ids, num_top))
            at += count
        return scored

    def _stop_checker(self, request: Request, max_length: int) -> StopChecker:
        make_sink = self._make_sink
        skip = request.params.skip_special_tokens
        return StopChecker(
            request.params,
            frozenset(self.info.eos_token_ids),
            max_length - len(request.prompt_token_ids),
            None if make_sink is None else lambda: make_sink(skip),
        )

    def _check(self, request: Request) -> None:
        """Everything that can be refused is refused here, before any work."""
        prompt, params, info = request.prompt_token_ids, request.params, self.info
        if not prompt:
            raise RequestError("the prompt is empty; give at least one token", param="prompt")
        if len(prompt) >= info.max_model_len:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens, but this model's context holds "
                f"{info.max_model_len} and at least one is needed for the answer; shorten the prompt",
                param="prompt",
            )
        if not all(type(i) is int and 0 <= i < info.vocab_size for i in prompt):
            raise RequestError(
                f"prompt token ids must be whole numbers from 0 to {info.vocab_size - 1}",
                param="prompt",
            )
        for name, ids in (
            ("logit_bias", params.logit_bias),
            ("stop_token_ids", params.stop_token_ids),
        ):
            if any(i >= info.vocab_size for i in ids):
                raise RequestError(
                    f"{name}: token ids must be below the vocabulary size {info.vocab_size}",
                    param=name,
                )
        if params.stop and self._make_sink is None:
            raise RequestError("stop: this engine has no tokenizer to find strings", param="stop")
        if request.output is not None and request.output.kind not in self._compilers:
            raise RequestError(
                f"output: this engine cannot enforce {request.output.kind!r}", param="output"
            )

    def _forget_if_done(self, delta: Delta) -> None:
        sequences = self._requests.get(delta.request_id)
        if delta.finish_reason is None or sequences is None:
            return
        if all(s.status is Status.FINISHED for s in sequences):
            del self._requests[delta.request_id]
