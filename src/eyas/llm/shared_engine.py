"""An engine that several threads of a process step in turns.

Promises: the deltas of a request reach whoever opened it, whichever thread stepped the engine. A thread
that steps again and again lets those that wait go first. Ctrl-C interrupts no step. A forked process
and a closed engine are refused.
Does not know: prompts, what answers are used for.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from eyas.core import Delta, Request
from eyas.engine.engine import Engine
from eyas.runner.device import selected
from eyas.signals import interrupts_held_back


class SharedEngine:
    """`engine`, until it is closed. Raises ValueError in a forked process and after `close`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._inboxes: dict[str, deque[Delta]] = {}
        self._left: deque[str] = deque()
        self._process = os.getpid()
        self._is_closed = False
        self._next_turn, self._engine_lock = threading.Lock(), threading.Lock()

    def close(self) -> None:
        """Shut the engine down. Requests that are running raise ValueError."""
        if os.getpid() == self._process and not self._is_closed:
            with self._turn():
                self._is_closed = True
                self.engine.shutdown()

    def replace(self, engine: Engine) -> None:
        """Use another engine from now on. Raises ValueError if requests are running."""
        with self._turn():
            if self.engine.has_work():
                raise ValueError("the engine cannot be replaced while requests are running")
            self.engine = engine

    def open(self, request: Request) -> None:
        """Add a request to the engine, with an inbox for its deltas."""
        self._require_usable()
        grammar = None
        if request.output is not None:
            self.engine.check_request(request)  # before its grammar is compiled
            grammar = self.engine.compile(request.output).result()
        with self._turn():
            self.engine.add(request, grammar)
            self._inboxes[request.id] = deque()

    def abort(self, request: Request) -> None:
        """End a request now. Its last delta still comes."""
        with self._turn():
            self.engine.abort(request.id)

    def end(self, request: Request) -> None:
        """Remove a request's inbox, and abort the request if it is running. The garbage collector may
        call this anywhere, also inside a step."""
        if self._inboxes.pop(request.id, None) is not None:
            self._left.append(request.id)
            self._end_left()

    def deltas(self, request: Request) -> Iterator[Delta]:
        """Yield a request's deltas, stepping the engine as needed. Deltas of other open requests are
        put into their inboxes."""
        inbox = self._inboxes[request.id]
        num_open = request.params.n
        while num_open:
            while not inbox:
                with self._turn():
                    if not inbox:  # another thread may have stepped
                        self._step()
            delta = inbox.popleft()
            num_open -= delta.finish_reason is not None
            yield delta

    def _step(self) -> None:
        """Step the engine, and put the deltas into the inboxes of their requests."""
        for delta in self.engine.step():
            inbox = self._inboxes.get(delta.request_id)
            if inbox is not None:
                inbox.append(delta)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Give the engine to one thread at a time. A thread that steps it again and again lets those
        that wait go first: they hold `_next_turn` while they wait. Ctrl-C waits for the end of the
        turn, so that no step is left in its middle. Raises ValueError if the engine cannot be used."""
        self._require_usable()
        with interrupts_held_back():
            with self._next_turn:
                self._engine_lock.acquire()
            try:
                self._require_usable()
                with selected(self.engine.table.device):
                    yield
            finally:
                self._engine_lock.release()
                self._end_left()

    def _end_left(self) -> None:
        """End the requests that nobody reads any more; while a thread has the engine, it does this when
        it gives the engine back."""
        while self._left and self._engine_lock.acquire(blocking=False):
            try:
                while self._left:
                    self.engine.abort(self._left.popleft())
            finally:
                self._engine_lock.release()

    def _require_usable(self) -> None:
        """Raise ValueError in a forked process, whose copy of the engine lacks its threads, and after
        `close`."""
        if os.getpid() != self._process:
            raise ValueError(
                f"this LLM belongs to process {self._process}, and this process was forked from it; "
                "make an LLM in each process"
            )
        if self._is_closed:
            raise ValueError("this LLM is closed; make another one")
