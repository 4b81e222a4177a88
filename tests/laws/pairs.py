"""A prefill engine and a decode engine in one process, which hand prompts over through a socket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import msgspec

from eyas.config import DisaggregationConfig, KVTransport
from eyas.core import Delta, KVHandle, Request
from eyas.draft import Drafter
from eyas.engine.disaggregation import DisaggregatedEngine
from eyas.engine.engine import Engine
from tests.laws.world import Answer, Answers, Setting, assert_clean, new_engine

PATIENCE_SECONDS = 120
"""How long a test waits for what comes at once on a machine that does nothing else."""


@dataclass
class Side:
    """One of the two. inner: its engine. woken: set when a thread has done something."""

    engine: DisaggregatedEngine
    inner: Engine
    woken: threading.Event

    def run(
        self, requests: Sequence[Request], arrivals: Mapping[int, Sequence[Request]] | None = None
    ) -> tuple[Answers, list[Delta]]:
        """Step until every request has ended. Returns the answers, and their last deltas."""
        answers: Answers = {}
        last: list[Delta] = []
        late, step = dict(arrivals or {}), 0

        def add(request: Request) -> None:
            self.engine.add(request)
            answers.update({(request.id, index): Answer() for index in range(request.params.n)})

        for request in requests:
            add(request)
        while late or any(answer.finish_reason is None for answer in answers.values()):
            for request in late.pop(step, ()):
                add(request)
            step += 1
            if not self.engine.has_work() and not late:
                assert self.woken.wait(PATIENCE_SECONDS), "nothing moves"
            self.woken.clear()
            for delta in self.engine.step():
                answers[delta.request_id, delta.index].absorb(delta)
                last += [delta] if delta.finish_reason is not None else []
            self.engine.check()
        return answers, last

    def settle(self) -> None:
        """Step until nothing is held any more."""
        for _ in range(PATIENCE_SECONDS * 100):
            if self.engine.has_work():
                self.engine.step()
            elif not len(self.engine.offers):
                break
            else:
                self.woken.wait(0.01)
        assert_clean(self.inner)


@dataclass
class Pair:
    """Two engines of one model."""

    prefill: Side
    decode: Side

    def offer(self, request: Request) -> KVHandle:
        """Compute the prompt of a request; its handle."""
        params = msgspec.structs.replace(request.params, n=1, max_tokens=1, min_tokens=0)
        alone = msgspec.structs.replace(request, params=params, offers_kv=True)
        _, (last,) = self.prefill.run([alone])
        assert last.kv_handle is not None, last.error
        return last.kv_handle

    def taking(self, request: Request) -> Request:
        """The request as it goes to the decode engine, its prompt being computed."""
        return msgspec.structs.replace(request, kv_handle=self.offer(request))


@contextmanager
def new_pair(
    setting: Setting,
    drafter: Callable[[Setting], Drafter],
    *,
    prefill: Setting | None = None,
    transport: KVTransport = "tcp",
    hold_seconds: float = 300.0,
    timeout_seconds: float = 120.0,
) -> Iterator[Pair]:
    """prefill: how that side runs, `setting` with room for everything if it is None."""
    made: list[Side] = []
    roomy = replace(setting, num_slots=2048, max_num_seqs=16)
    try:
        for role, chosen in (("prefill", prefill or roomy), ("decode", setting)):
            config = DisaggregationConfig(
                role=role,  # type: ignore[arg-type]
                transport=transport,
                hold_seconds=hold_seconds,
                timeout_seconds=timeout_seconds,
            )
            inner, woken = new_engine(chosen, drafter(chosen)), threading.Event()
            made.append(Side(DisaggregatedEngine(inner, config, woken.set), inner, woken))
        yield Pair(*made)
    finally:
        for side in made:
            side.engine.shutdown()
