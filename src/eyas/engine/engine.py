"""The engine: one step for every kind of work. This is the page to read first.

A step is planned (`Scheduler.next`), drafted and run through the model, masked, verified
(`eyas.engine.launch` has these stages) and landed: its results are read and told to the sequences. On a
device the next step goes out before the last one has landed (`num_flights` = 1), so it is planned from
upper bounds; with 0 a step lands before the next is planned.

Promises: the tokens of a request depend on its prompt, parameters and seed alone; a row's fault ends
that row's request and no other; whatever a client sends, the step goes on.
Does not know: HTTP, text formats, model families, what a drafter does inside.
"""

from __future__ import annotations

import secrets
from concurrent.futures import Future

from eyas.cache import CacheManager
from eyas.config import EngineInfo
from eyas.constraint import CompilePool, Grammar
from eyas.constraint.automaton import Automaton
from eyas.core import Delta, Request, RequestError, SamplingParams
from eyas.draft import Drafter
from eyas.engine.admission import check_request
from eyas.engine.commit import Committer
from eyas.engine.flight import Flight
from eyas.engine.launch import Launcher
from eyas.engine.metrics import Metrics
from eyas.engine.scheduler import Scheduler
from eyas.engine.sequence import Sequence, Status
from eyas.engine.stops import StopChecker, TextSink
from eyas.engine.verifier import Verify
from eyas.grammar import OutputSpec
from eyas.runner.runner import ModelRunner
from eyas.runner.table import SequenceTable
from eyas.text import Detokenizer, Tokenizer
from eyas.text.tokenizer import NO_TOKENIZER
from eyas.wire import EngineStats


class Engine:
    """add, abort, step. tokenizer: None where prompts and answers are token ids. grammars: compiles
    what outputs are to be; None where none can be. mask_seconds: when a step's masks take longer, the
    rest of its draft is left out. verify: gives the verdicts. max_graph_batch: as
    `eyas.config.SchedulerConfig` has it."""

    def __init__(
        self,
        *,
        runner: ModelRunner,
        cache: CacheManager,
        table: SequenceTable,
        drafter: Drafter,
        scheduler: Scheduler,
        info: EngineInfo,
        tokenizer: Tokenizer | None,
        grammars: CompilePool | None,
        mask_seconds: float,
        verify: Verify,
        max_graph_batch: int | None = None,
    ) -> None:
        self.runner = runner
        self.cache = cache
        self.table = table
        self.drafter = drafter
        self.scheduler = scheduler
        self.info = info
        self.num_flights = info.num_flights
        self.metrics = Metrics()
        self._tokenizer = tokenizer
        self._grammars = grammars
        self.launcher = Launcher(
            runner, table, drafter, info, self.metrics, mask_seconds, verify, max_graph_batch
        )
        self._in_flight: Flight | None = None
        self._requests: dict[str, list[Sequence]] = {}
        self._ready: list[Delta] = []
        self._committer = Committer(scheduler, cache, self.metrics)
        self._num_added = 0

    def step(self) -> list[Delta]:
        """One step of work; the deltas that became final."""
        previous, current = self._in_flight, None
        plan = self.scheduler.next()
        if plan is not None:
            current = self.launcher.prepare(plan)
        if previous is not None:
            self.launcher.verify(previous)  # waits for its masks
        self._in_flight = current
        if current is not None:
            if current.reads_automata:  # they must stand where `previous` has ended
                self._land(previous)
                previous = None
            self.launcher.draft_and_forward(current)
            if not current.waits_for_masks:
                self.launcher.verify(current)
        self._land(previous, current)
        if current is not None and self.num_flights == 0:
            self.launcher.verify(current)
            self._in_flight = None
            self._land(current)
        return self._delivered()

    def _land(self, flight: Flight | None, following: Flight | None = None) -> None:
        """Wait for a step's results and tell its sequences. following: the step after it, whose masks
        are begun as soon as automata stand at its roots."""
        if flight is not None:
            self._committer.read(flight)
        if following is not None:
            self.launcher.begin_masks(following)
        if flight is not None:
            self._ready += self._committer.commit(flight)
            self.launcher.learn(flight)

    def _delivered(self) -> list[Delta]:
        """The deltas that are ready, which leave the engine."""
        deltas, self._ready = self._ready, []
        for delta in deltas:
            self._forget_if_done(delta)
        return deltas

    def compile(self, spec: OutputSpec) -> Future[Grammar]:
        """Start compiling what an output is to be, off this thread. The future may hold a
        GrammarError."""
        if self._grammars is None:
            lacks = "this model has no end-of-sequence token, with which an output would end"
            lacks = NO_TOKENIZER if self._tokenizer is None else lacks
            raise RequestError(
                f"{spec.param}: outputs cannot be constrained: {lacks}", param=spec.param
            )
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
        room = self.info.max_model_len - len(request.prompt_token_ids)
        num_wanted = room if params.max_tokens is None else min(room, params.max_tokens)
        # Where nothing is wanted one token is chosen all the same, and dropped.
        max_length = len(request.prompt_token_ids) + max(1, num_wanted)
        first = None
        if grammar is not None:
            assert request.output is not None
            of_tokens = () if self._tokenizer is None else (self._tokenizer.token_bytes,)
            first = Automaton(grammar, request.output.budget, *of_tokens)
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
                    automaton=first.fork() if first is not None and index else first,
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
        return bool(self._requests or self._in_flight or self._ready)

    def stats(self) -> EngineStats:
        """Counts for `/metrics`."""
        return self.metrics.stats(self.scheduler, self.cache, self._grammars)

    def check(self) -> None:
        """Raises AssertionError when a slot is lost or held twice."""
        self.cache.check()

    def shutdown(self) -> None:
        """Forget everything; nothing may be stepped afterwards."""
        self._in_flight = None
        self._requests.clear()
        if self._grammars is not None:
            self._grammars.close()
        self.launcher.masking.close()

    def _stop_checker(self, request: Request, max_length: int) -> StopChecker:
        marked: frozenset[int] = frozenset()
        if request.with_marks and self._tokenizer is not None:
            marked = self._tokenizer.control_ids
        return StopChecker(
            request.params,
            frozenset(self.info.eos_token_ids),
            max_length - len(request.prompt_token_ids),
            self._new_sink(request.params),
            marked,
        )

    def _new_sink(self, params: SamplingParams) -> TextSink | None:
        if self._tokenizer is None:
            return None
        return Detokenizer(self._tokenizer, params.skip_special_tokens, continues=True)

    def check_request(self, request: Request) -> None:
        """Everything that can be refused is refused here, before any work."""
        check_request(request, self.info, self._tokenizer)

    def _forget_if_done(self, delta: Delta) -> None:
        sequences = self._requests.get(delta.request_id)
        if delta.finish_reason is None or sequences is None:
            return
        if all(s.status is Status.FINISHED for s in sequences):
            del self._requests[delta.request_id]
