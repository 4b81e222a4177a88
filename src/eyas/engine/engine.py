"""The engine: one step for every kind of work. Read this module first.

A step has these parts: the scheduler plans it (`Scheduler.next`); the launcher drafts, runs the model,
fills grammar masks and verifies (`eyas.engine.launch`); the committer lands it, which means that it
reads the results on the host and applies them to the sequences (`eyas.engine.commit`). A step that was
launched and has not landed is a flight.

On a GPU the next step is launched before the last one has landed (`num_flights` = 1), so it is planned
from upper bounds of the sequences' lengths. With `num_flights` = 0, as on a CPU, each step lands before
the next one is planned.

Promises: the tokens of a request depend on its prompt, parameters and seed alone; a fault in one row
ends the request of that row and no other; no input of a client stops the engine.
Does not know: HTTP, text formats, model families, how a drafter works.
"""

from __future__ import annotations

from concurrent.futures import Future

from eyas.cache import CacheManager
from eyas.config import EngineInfo
from eyas.constraint import CompilePool, Grammar
from eyas.core import Delta, Request, RequestError
from eyas.engine.admission import check_request, new_sequences
from eyas.engine.commit import Committer
from eyas.engine.flight import Flight
from eyas.engine.grammars import obstacle
from eyas.engine.kv_events import EventPublisher
from eyas.engine.launch import Launcher
from eyas.engine.rank_group import Ranks
from eyas.engine.scheduler import Scheduler
from eyas.engine.sequence import Sequence, Status
from eyas.grammar import OutputSpec
from eyas.text import Tokenizer
from eyas.text.tokenizer import NO_TOKENIZER
from eyas.wire import EngineStats


class Engine:
    """Requests in, deltas out: `add`, `abort`, `step`.

    tokenizer: None if prompts and answers are token ids only. grammars: compiles output grammars; None
    if outputs cannot be constrained. publisher: publishes the content of the prefix cache; None if
    nobody is told. ranks: the other ranks; None where there are none.
    """

    def __init__(
        self,
        *,
        cache: CacheManager,
        scheduler: Scheduler,
        launcher: Launcher,
        info: EngineInfo,
        tokenizer: Tokenizer | None,
        grammars: CompilePool | None,
        publisher: EventPublisher | None,
        ranks: Ranks | None,
    ) -> None:
        self.cache = cache
        self.scheduler = scheduler
        self.launcher = launcher
        self.runner, self.table = launcher.runner, launcher.table
        self.drafter, self.metrics = launcher.drafters[0], launcher.metrics
        self.info = info
        self.num_flights = info.num_flights
        self._tokenizer = tokenizer
        self.grammars = grammars
        self._publisher = publisher
        self.ranks = ranks
        self._in_flight: Flight | None = None
        self._requests: dict[str, list[Sequence]] = {}
        self._ready: list[Delta] = []
        self._committer = Committer(scheduler, cache, self.metrics)
        self._num_added = 0

    def step(self) -> list[Delta]:
        """Run one step and return the deltas that became final.

        `previous` is the step that the last call launched and did not land; `current` is the step of
        this call.
        """
        previous, current = self._in_flight, None
        plan = self.scheduler.next()
        if plan is not None:
            current = self.launcher.prepare(plan)
        if previous is not None:
            self.launcher.verify(previous)  # waits for the masks of `previous`
        self._in_flight = current
        if current is not None:
            if current.reads_automata:  # they must first move over the tokens of `previous`
                self._land(previous)
                previous = None
            self.launcher.draft_and_forward(current)
            if not current.waits_for_masks:  # it has none, or they were started before the forward
                self.launcher.verify(current)
        self._land(previous, current)
        if current is not None and self.num_flights == 0:
            self.launcher.verify(current)
            self._in_flight = None
            self._land(current)
        return self._take_deltas()

    def _land(self, flight: Flight | None, following: Flight | None = None) -> None:
        """Wait for the results of `flight`, if there is one, and apply them to its sequences.

        following: the step after it. Its masks are started as soon as the results are read: they depend
        on the automata only, which move when results are read.
        """
        if flight is not None:
            self._committer.read(flight)
            if self.ranks is not None:  # what a lost rank has left unfinished is no result
                self.ranks.group.check()
        if following is not None:
            self.launcher.begin_masks(following)
        if flight is not None:
            self._ready += self._committer.commit(flight)
            seconds = self.launcher.learn(flight)
            if seconds is not None:
                self.scheduler.learn(flight.plan, seconds)

    def _take_deltas(self) -> list[Delta]:
        """Return the deltas that are ready, and forget the requests that have finished."""
        self._publish()
        deltas, self._ready = self._ready, []
        for delta in deltas:
            sequences = self._requests.get(delta.request_id)
            if delta.finish_reason is None or sequences is None:
                continue
            if all(sequence.status is Status.FINISHED for sequence in sequences):
                del self._requests[delta.request_id]
        return deltas

    def forget_prefixes(self) -> None:
        """Evict all prefixes that no running request uses."""
        self.cache.forget_prefixes()
        self._publish()

    def _publish(self) -> None:
        """Publish what changed in the prefix cache."""
        if self._publisher is not None:
            self._publisher.publish()

    def compile(self, spec: OutputSpec) -> Future[Grammar]:
        """Start compiling the grammar of an output on another thread.

        Raises RequestError if this model's outputs cannot be constrained. The future may hold a
        GrammarError.
        """
        if self.grammars is None:
            reason = obstacle(self._tokenizer, self.info.eos_token_ids)
            if self._tokenizer is None:
                reason = NO_TOKENIZER
            raise RequestError(
                f"{spec.param}: outputs cannot be constrained: {reason}", param=spec.param
            )
        return self.grammars.compile(spec)

    def add(self, request: Request, grammar: Grammar | None = None) -> None:
        """Accept a request. Raises RequestError, with nothing changed, if it can never be served.

        grammar: the compiled grammar of `request.output`. If it is None and the request has an output
        specification, this call compiles it and waits.
        """
        if request.id in self._requests:
            raise RequestError(f"request id {request.id!r} is in use", param="id")
        self.check_request(request)
        if request.output is not None and grammar is None:
            grammar = self.compile(request.output).result()
        sequences = new_sequences(request, grammar, self.info, self._tokenizer, self._num_added)
        self._num_added += len(sequences)
        self.metrics.num_asked_tokens += len(request.prompt_token_ids)
        self._requests[request.id] = sequences
        for sequence in sequences:
            self.scheduler.add(sequence)

    def abort(self, request_id: str) -> None:
        """End a request now; `step` returns its last deltas. An unknown id is not an error."""
        for sequence in self._requests.get(request_id, ()):
            if sequence.status is not Status.FINISHED:
                self._ready.append(self._committer.end(sequence, "abort"))

    def has_work(self) -> bool:
        """Whether `step` has anything to do or to return."""
        return bool(self._requests or self._in_flight or self._ready)

    def stats(self) -> EngineStats:
        """Return the counts and gauges for `/metrics`."""
        return self.metrics.stats(self.scheduler, self.cache, self.grammars)

    def check(self) -> None:
        """Raise AssertionError if a cache slot is lost or held twice."""
        self.cache.check()

    def check_ranks(self) -> None:
        """Raise GroupLost if another rank of this engine has ended or is lost."""
        if self.ranks is not None:
            self.ranks.check()

    def shutdown(self) -> None:
        """Drop all requests, stop the worker threads and end the other ranks. The engine cannot be used
        afterwards."""
        if self.ranks is not None:
            self.ranks.close()
        self._in_flight = None
        self._requests.clear()
        if self.grammars is not None:
            self.grammars.close()
        self.launcher.masking.close()
        if self._publisher is not None:
            self._publisher.close()

    def check_request(self, request: Request) -> None:
        """Raise RequestError if this engine can never serve the request."""
        check_request(request, self.info, self._tokenizer)
