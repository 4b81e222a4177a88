"""The engine process: receives commands, runs steps, sends deltas.

Promises: every request gets an answer. Grammars are compiled on other threads while steps run. If a
step raises, the live requests end with an error and the loop continues, unless `Engine.check` fails.
The process ends when its parent process ends (its standard input closes), on a `Shutdown` command, or
with a `Failed` message that gives the reason.
Does not know: HTTP, tokenizers, how a step works.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Protocol

import msgspec
import zmq

from eyas import logs, wire
from eyas.children import freeze_loaded
from eyas.config import EngineConfig, EngineInfo
from eyas.constraint import Grammar
from eyas.core import STEP_FAILED, Delta, GrammarsBusy, GrammarsUnavailable, Request, RequestError
from eyas.grammar import OutputSpec

log = logging.getLogger("eyas.engine")

HEARTBEAT_SECONDS = 0.5
"""The longest time without a message to the server."""
REPORT_SECONDS, LOG_SECONDS = 0.5, 5.0
"""The shortest times between reports of the progress of loading, to the server and in the log."""
SEND_TIMEOUT_SECONDS = 60
"""A server that takes no message for so long is lost."""
MAX_COMMANDS_PER_STEP = 64
"""Commands that are read between two steps, so that many of them do not hold up running answers."""
MAX_QUEUED_MESSAGES = 10_000
"""Messages of the socket's queue in each direction."""
MAX_FAILED_STEPS = 3
"""Failed steps in a row after which the process ends, to be started again."""
CHECK_AFTER_IDLE_SECONDS = 1.0
"""After so long without work the engine's counts are checked."""

ENGINE_FAILED = "the engine failed; see the server's log"


class WorkerEngine(Protocol):
    """The methods of an engine that the worker calls."""

    @property
    def info(self) -> EngineInfo: ...
    def check_request(self, request: Request) -> None: ...
    def compile(self, spec: OutputSpec) -> Future[Grammar]: ...
    def add(self, request: Request, grammar: Grammar | None = None) -> None: ...
    def abort(self, request_id: str) -> None: ...
    def step(self) -> list[Delta]: ...
    def forget_prefixes(self) -> None: ...
    def has_work(self) -> bool: ...
    def stats(self) -> wire.EngineStats: ...
    def check(self) -> None: ...
    def check_ranks(self) -> None: ...
    def shutdown(self) -> None: ...


class _Link:
    """The socket to the HTTP process, and the pipe that closes when that process ends.

    address: of the socket. lifeline: file descriptor of the pipe's reading end.
    """

    def __init__(self, address: str, lifeline: int) -> None:
        self._lifeline = lifeline
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDHWM, MAX_QUEUED_MESSAGES)
        self._socket.setsockopt(zmq.RCVHWM, MAX_QUEUED_MESSAGES)
        self._socket.setsockopt(zmq.SNDTIMEO, SEND_TIMEOUT_SECONDS * 1000)
        self._socket.setsockopt(zmq.LINGER, 2000)
        self._socket.connect(address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(lifeline, zmq.POLLIN)
        self._wake_end, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._poller.register(self._wake_end, zmq.POLLIN)
        self.is_parent_gone = False

    def wake(self) -> None:
        """Make a waiting `receive` return. Can be called from any thread."""
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._waker, b".")

    def send(self, reply: wire.Reply) -> None:
        """Send a message. Blocks while the parent process reads nothing; after `SEND_TIMEOUT_SECONDS`
        the parent counts as gone."""
        try:
            self._socket.send(wire.encode(reply))
        except zmq.Again:
            log.error("the HTTP process has read nothing for %d s", SEND_TIMEOUT_SECONDS)
            self.is_parent_gone = True

    def receive(self, timeout_seconds: float) -> list[wire.Command]:
        """Wait up to `timeout_seconds` for commands. Returns at most `MAX_COMMANDS_PER_STEP` of
        them."""
        ready = dict(self._poller.poll(int(timeout_seconds * 1000)))
        if self._lifeline in ready and not os.read(self._lifeline, 4096):
            self.is_parent_gone = True
        if self._wake_end in ready:
            os.read(self._wake_end, 4096)
        commands: list[wire.Command] = []
        while self._socket in ready and len(commands) < MAX_COMMANDS_PER_STEP:
            try:
                commands.append(wire.decode_command(self._socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                break
            except msgspec.DecodeError:
                log.exception("a command could not be read and was left out")
        return commands

    def close(self) -> None:
        self._socket.close()
        self._context.term()
        for end in (self._wake_end, self._waker):
            os.close(end)


class LoadingReports:
    """Reports the progress of loading: on the link at most every `REPORT_SECONDS`, in the log at most
    every `LOG_SECONDS`, and in both at the start and the end of each stage.

    Has the signature of `eyas.models.Progress`.
    """

    def __init__(
        self, send: Callable[[wire.Reply], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._send = send
        self._clock = clock
        self._stage = ""
        self._sent_at = self._logged_at = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now, is_edge = self._clock(), stage != self._stage or done == total > 0
        self._stage = stage
        loading = wire.Loading(stage, done, total)
        if is_edge or now - self._sent_at >= REPORT_SECONDS:
            self._sent_at = now
            self._send(loading)
        if is_edge or now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            size = f" of {total / 2**20:,.0f} MiB" if total else ""
            log.info("%s%s", loading, size)


class Worker:
    """Connects one engine with one link. `run` returns the exit status of the process."""

    def __init__(self, engine: WorkerEngine, link: _Link) -> None:
        self._engine = engine
        self._link = link
        self._live: dict[str, set[int]] = {}
        self._compiling: dict[str, tuple[Request, Future[Grammar]]] = {}
        self._num_failed_steps = 0
        self._last_step_seconds = 0.0
        self._should_stop = False
        self._idle_since: float | None = None

    def run(self) -> int:
        """Handle commands and run steps until told to stop, or until the parent process ends."""
        engine, link = self._engine, self._link
        link.send(wire.Ready(engine.info))
        next_heartbeat = 0.0
        while not (link.is_parent_gone or self._should_stop):
            engine.check_ranks()
            has_work = engine.has_work()
            for command in link.receive(0.0 if has_work else HEARTBEAT_SECONDS / 2):
                self._handle(command)
            self._add_compiled()
            if engine.has_work():
                self._idle_since = time.monotonic()
                self._step()
            else:
                self._check_when_idle()
            if time.monotonic() >= next_heartbeat:
                link.send(wire.Heartbeat(engine.stats(), self._last_step_seconds))
                next_heartbeat = time.monotonic() + HEARTBEAT_SECONDS
        return 0

    def _handle(self, command: wire.Command) -> None:
        match command:
            case wire.Submit(request):
                self._submit(request)
            case wire.Abort(request_id):
                if (waiting := self._compiling.pop(request_id, None)) is not None:
                    waiting[1].cancel()
                if self._live.pop(request_id, None) is not None:
                    self._engine.abort(request_id)
            case wire.ForgetPrefixes():
                self._engine.forget_prefixes()
            case wire.Shutdown():
                self._should_stop = True

    def _submit(self, request: Request) -> None:
        if request.id in self._live or request.id in self._compiling:
            message = "id: a request with this id is running"
            self._link.send(wire.Refused(request.id, message, "id"))
        elif request.output is None:
            self._add(request, None)
        else:
            try:
                self._engine.check_request(request)
                future = self._engine.compile(request.output)
            except Exception as error:
                self._refuse(request, error)
                return
            self._compiling[request.id] = (request, future)
            future.add_done_callback(lambda _: self._link.wake())

    def _add_compiled(self) -> None:
        """Add the requests whose grammars are compiled."""
        for request, future in list(self._compiling.values()):
            if not future.done():
                continue
            del self._compiling[request.id]
            try:
                grammar = future.result()
            except (Exception, CancelledError) as error:
                self._refuse(request, error)
            else:
                self._add(request, grammar)

    def _add(self, request: Request, grammar: Grammar | None) -> None:
        try:
            self._engine.add(request, grammar)
        except Exception as error:
            self._refuse(request, error)
        else:
            self._live[request.id] = set(range(request.params.n))

    def _refuse(self, request: Request, error: BaseException) -> None:
        if isinstance(error, GrammarsUnavailable):
            refusal = wire.Refused(request.id, error.message, error.param, "unavailable")
        elif isinstance(error, GrammarsBusy):
            refusal = wire.Refused(request.id, error.message, error.param, "overloaded")
        elif isinstance(error, RequestError):
            refusal = wire.Refused(request.id, error.message, error.param, code=error.code)
        else:
            log.error("request %s could not be added", request.id, exc_info=error)
            refusal = wire.Refused(request.id, ENGINE_FAILED, None, "internal")
        self._link.send(refusal)

    def _step(self) -> None:
        started = time.perf_counter()
        try:
            deltas = self._engine.step()
        except Exception:
            log.exception("a step failed; its %d requests end with an error", len(self._live))
            deltas = self._end_all()
        else:
            self._num_failed_steps = 0
        self._last_step_seconds = time.perf_counter() - started
        for delta in deltas:
            if delta.finish_reason is not None and delta.request_id in self._live:
                unfinished = self._live[delta.request_id]
                unfinished.discard(delta.index)
                if not unfinished:
                    del self._live[delta.request_id]
        if deltas:
            self._link.send(wire.Deltas(deltas))

    def _check_when_idle(self) -> None:
        """Check the engine once after each period of work. Raises AssertionError if it is not sound."""
        if self._idle_since is None:
            return
        if time.monotonic() - self._idle_since > CHECK_AFTER_IDLE_SECONDS:
            self._idle_since = None
            self._engine.check()

    def _end_all(self) -> list[Delta]:
        """Abort all requests. Returns an error delta for every live choice.

        Raises if the engine is not sound afterwards, or if too many steps have failed in a row.
        """
        deltas = [
            Delta(request_id=request_id, index=index, finish_reason="error", error=STEP_FAILED)
            for request_id, unfinished in self._live.items()
            for index in sorted(unfinished)
        ]
        self._num_failed_steps += 1
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            self._link.send(wire.Deltas(deltas))
            raise RuntimeError(f"{self._num_failed_steps} steps failed in a row")
        for request_id in list(self._live):
            self._engine.abort(request_id)
        self._engine.check()
        return deltas


def main(build: Callable[[EngineConfig, LoadingReports], WorkerEngine] | None = None) -> int:
    """Read the setup from standard input, build the engine, and run it until told to stop.

    build: makes an engine from its configuration and reports its progress; None is
    `eyas.engine.startup.build.build_engine`, in its role. Returns the exit status.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides when this process ends
        signal.signal(number, signal.SIG_IGN)
    lifeline = sys.stdin.fileno()
    setup = wire.decode_setup(read_line(lifeline))
    logs.configure(setup.log_level, setup.log_format)
    link = _Link(setup.address, lifeline)
    engine = None
    try:
        build = build or partial(_build, link.wake)
        engine = build(setup.config, LoadingReports(link.send))
        freeze_loaded()
        return Worker(engine, link).run()
    except Exception as error:
        is_for_users = engine is None and isinstance(error, ValueError)
        level = logging.DEBUG if is_for_users else logging.ERROR
        log.log(level, "the engine process ends", exc_info=True)
        link.send(wire.Failed(str(error) if is_for_users else ENGINE_FAILED))
        return 1
    finally:
        if engine is not None:
            engine.shutdown()
        link.close()


def _build(
    wake: Callable[[], None], config: EngineConfig, progress: LoadingReports
) -> WorkerEngine:
    """Build the engine, in its role. wake: makes a waiting worker look for work."""
    from eyas.engine.startup.build import build_engine

    engine = build_engine(config, progress)
    if config.disaggregation.role == "both":
        return engine
    from eyas.engine.disaggregation import DisaggregatedEngine

    return DisaggregatedEngine(engine, config.disaggregation, wake)


def read_line(descriptor: int) -> bytes:
    """Read one line byte by byte, so that what follows it stays in the pipe."""
    line = bytearray()
    while byte := os.read(descriptor, 1):
        if byte == b"\n":
            break
        line += byte
    return bytes(line)


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    # A normal exit of the interpreter can crash while another thread still compiles a grammar.
    os._exit(status)
