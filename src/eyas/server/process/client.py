"""The engine client: the server's interface to an engine, and the engine process behind it.

Promises: every accepted request gets a last delta for each choice, or an exception, also when the
engine process ends. A reader that is slow gets merged deltas, and beyond a limit its request is
ended.
Does not know: HTTP, prompts as text.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol

import msgspec
import zmq
import zmq.asyncio

from eyas import wire
from eyas.children import python_command
from eyas.config import EngineConfig, EngineInfo
from eyas.core import ENDING_FIELDS, Delta, Request, RequestError, field_error
from eyas.logs import LogFormat
from eyas.server.formats import shift_marks
from eyas.server.http.codes import Code
from eyas.server.process.socket_folder import SocketFolder

log = logging.getLogger("eyas.server")

MAX_PENDING_TOKENS = 16_384
KILL_SECONDS, LOADING_KILL_SECONDS = 5.0, 1.0
"""How long the engine process may take to end; while it loads a model it reads no messages."""


State = Literal["starting", "ready", "restarting", "failed"]


class EngineUnavailable(Exception):
    """The engine cannot accept the request now. A message, if any, is for the client."""


class EngineOverloaded(EngineUnavailable):
    """Too many requests are waiting."""


class EngineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an engine.

    idle_seconds: since the engine last made a step or had no work. retry_seconds: when it may be
    ready, if it is not. loading: its progress until it is ready, if known. num_restarts: engines
    started after the first.
    """

    state: State
    reason: str = ""
    idle_seconds: float = 0.0
    retry_seconds: float = 1.0
    num_restarts: int = 0
    loading: wire.Loading | None = None
    last_step_seconds: float = 0.0
    stats: wire.EngineStats = msgspec.field(default_factory=wire.EngineStats)


class EngineClient(Protocol):
    """What the server needs of an engine."""

    @property
    def info(self) -> EngineInfo | None:
        """None until the engine is ready."""
        ...

    def generate(self, request: Request) -> AsyncIterator[Delta]:
        """Yield the deltas of all choices, until each has a finish_reason. Closing the iterator aborts.

        Raises RequestError, EngineOverloaded or EngineUnavailable before the first delta.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """Abort a request. Does nothing if the id is unknown."""
        ...

    async def forget_prefixes(self) -> None:
        """Evict the cached prefixes that no running request uses, before later requests are read."""
        ...

    def health(self) -> EngineHealth:
        """Return the state of the engine, without waiting for it."""
        ...


def add_to(earlier: Delta, later: Delta) -> None:
    """Append `later` to `earlier`, which becomes the delta of both."""
    earlier.token_ids.extend(later.token_ids)
    earlier.marks.extend(shift_marks(later.marks, len(earlier.text)))
    earlier.text += later.text
    earlier.draft_trees.extend(later.draft_trees)
    if later.logprobs is not None:
        earlier.logprobs = (earlier.logprobs or []) + later.logprobs
    if later.prompt_logprobs is not None:
        earlier.prompt_logprobs = later.prompt_logprobs
    for name in ENDING_FIELDS:
        setattr(earlier, name, getattr(later, name))


class _DeltaBuffer:
    """The deltas of one request that its reader has not taken yet, merged to one per choice."""

    def __init__(self, request: Request) -> None:
        self.request_id = request.id
        self.client = request.client
        self.unfinished = set(range(request.params.n))
        self._pending: dict[int, Delta] = {}
        self._failure: Exception | None = None
        self._num_tokens = 0
        self._arrived = asyncio.Event()

    def put(self, delta: Delta) -> bool:
        """Add a delta. Return whether the number of waiting tokens is within the limit."""
        if delta.index not in self.unfinished:
            return True
        if delta.finish_reason is not None:
            self.unfinished.discard(delta.index)
        if delta.index in self._pending:
            add_to(self._pending[delta.index], delta)
        else:
            self._pending[delta.index] = delta
        self._num_tokens += len(delta.token_ids)
        self._arrived.set()
        return self._num_tokens <= MAX_PENDING_TOKENS

    def refuse(self, failure: Exception) -> None:
        """End all choices; `take` raises `failure`."""
        self.unfinished.clear()
        self._failure = failure
        self._arrived.set()

    def end(self, code: Code) -> None:
        """End every unfinished choice with an error."""
        for index in sorted(self.unfinished):
            last = Delta(request_id=self.request_id, index=index, finish_reason="error")
            last.error, last.code = code.message, code.word
            self.put(last)

    async def take(self) -> Sequence[Delta]:
        """Return all waiting deltas. Waits until there is one; empty at the end."""
        while not self._pending:
            if self._failure is not None:
                raise self._failure
            if not self.unfinished:
                return ()
            await self._arrived.wait()
            self._arrived.clear()
        taken, self._pending, self._num_tokens = list(self._pending.values()), {}, 0
        return taken


class EngineProcess:
    """One engine process, connected by a private ipc socket. `supervisor` starts the next one.

    command: run instead of `python -m eyas.engine.worker`; reads a `wire.Setup` from its standard
    input. start_ended: set when it is ready, or has failed.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        max_queued: int = 1024,
        max_queued_each: int | None = None,
        log_level: str = "info",
        log_format: LogFormat = "text",
        command: Sequence[str] | None = None,
    ) -> None:
        self._config = config
        self._max_queued = max_queued
        self._max_queued_each = max_queued if max_queued_each is None else max_queued_each
        self._log = (log_level, log_format)
        self._command = list(command or python_command("eyas.engine.worker"))
        self._buffers: dict[str, _DeltaBuffer] = {}
        self._info: EngineInfo | None = None
        self._failure: str | None = None
        self._loading: wire.Loading | None = None
        self._stats = wire.EngineStats()
        self._last_step_seconds = 0.0
        self._last_active = time.monotonic()
        self._process: asyncio.subprocess.Process | None = None
        self._folder: SocketFolder | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False
        self.start_ended = asyncio.Event()
        self.failed = asyncio.Event()

    @property
    def info(self) -> EngineInfo | None:
        return self._info if self._failure is None else None

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    def health(self) -> EngineHealth:
        state: State = "ready" if self._info else "starting"
        return EngineHealth(
            state="failed" if self._failure is not None else state,
            reason=self._failure or "",
            idle_seconds=time.monotonic() - self._last_active,
            loading=None if self._info else self._loading,
            last_step_seconds=self._last_step_seconds,
            stats=self._stats,
        )

    async def start(self) -> None:
        """Start the process, which becomes ready later. OSError or ValueError if it cannot be
        started."""
        self._folder = SocketFolder()
        address = self._folder.address
        try:
            self._context = zmq.asyncio.Context()
            self._socket = self._context.socket(zmq.PAIR)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.SNDHWM, 0)
            self._socket.bind(address)
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"no socket for it: {error}") from error
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, start_new_session=True
        )
        level, log_format = self._log
        setup = wire.Setup(
            config=self._config, address=address, log_level=level, log_format=log_format
        )
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(wire.encode_setup(setup) + b"\n")
            await self._process.stdin.drain()
        self._tasks = [
            asyncio.create_task(self._read_replies()),
            asyncio.create_task(self._watch_process()),
        ]

    async def close(self) -> None:
        """Tell the process to end, and kill it if it does not. Running requests end with an error."""
        self._is_closing = True
        self._fail("the engine process was told to end")
        if self._process is not None and self._process.returncode is None:
            await self._send(wire.Shutdown())
            if self._process.stdin is not None:
                self._process.stdin.close()
            try:
                seconds = KILL_SECONDS if self._info else LOADING_KILL_SECONDS
                await asyncio.wait_for(self._process.wait(), seconds)
            except TimeoutError:
                level = logging.WARNING if self._info else logging.INFO
                log.log(level, "the engine process does not end and is killed")
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            self._context.term()
        if self._folder is not None:
            self._folder.remove()

    def kill(self) -> None:
        """Kill the process without ending its requests."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        if self._folder is not None:
            self._folder.remove()

    async def generate(self, request: Request) -> AsyncIterator[Delta]:
        if self._failure is not None or self._info is None:
            raise EngineUnavailable
        if request.id in self._buffers:
            raise field_error("id", "a request with this id is under way")
        num_queued = num_of_client = request.params.n
        for buffer in self._buffers.values():
            num_queued += len(buffer.unfinished)
            num_of_client += len(buffer.unfinished) * (buffer.client == request.client)
        if num_queued > self._max_queued or num_of_client > self._max_queued_each:
            raise EngineOverloaded
        buffer = self._buffers[request.id] = _DeltaBuffer(request)
        try:
            await self._send(wire.Submit(request))
            while deltas := await buffer.take():
                for delta in deltas:
                    yield delta
        finally:
            del self._buffers[request.id]
            if buffer.unfinished:
                # Shielded, since the caller is usually being cancelled here.
                await asyncio.shield(self._send(wire.Abort(request.id)))

    async def abort(self, request_id: str) -> None:
        buffer = self._buffers.get(request_id)
        if buffer is not None and buffer.unfinished:
            buffer.end(Code.ANSWER_ENDED)
            await self._send(wire.Abort(request_id))

    async def forget_prefixes(self) -> None:
        await self._send(wire.ForgetPrefixes())

    async def _send(self, command: wire.Command) -> None:
        if self._socket is not None and not self._socket.closed:
            # Without a connected peer a blocking send would wait. An ended process needs no command.
            with contextlib.suppress(zmq.ZMQError):
                await self._socket.send(wire.encode(command), zmq.DONTWAIT)

    async def _read_replies(self) -> None:
        assert self._socket is not None
        while True:
            try:
                reply = wire.decode_reply(await self._socket.recv())
            except msgspec.DecodeError:
                log.exception("a reply of the engine could not be decoded and is ignored")
                continue
            await self._handle_reply(reply)

    async def _handle_reply(self, reply: wire.Reply) -> None:
        match reply:
            case wire.Deltas(deltas):
                self._last_active = time.monotonic()
                for delta in deltas:
                    buffer = self._buffers.get(delta.request_id)
                    if buffer is not None and not buffer.put(delta):
                        buffer.end(Code.CLIENT_TOO_SLOW)
                        await self._send(wire.Abort(delta.request_id))
            case wire.Heartbeat(stats, last_step_seconds):
                has_work = stats.num_running + stats.num_waiting > 0
                if not has_work or stats.num_steps != self._stats.num_steps:
                    self._last_active = time.monotonic()
                self._stats, self._last_step_seconds = stats, last_step_seconds
            case wire.Loading():
                self._loading = reply
            case wire.Ready(info):
                self._last_active = time.monotonic()
                self._info = info
                self.start_ended.set()
            case wire.Refused(request_id, message, param, refusal, code):
                failures = {
                    "invalid": RequestError(message, param=param, code=code),
                    "overloaded": EngineOverloaded(),
                    "unavailable": EngineUnavailable(message),
                    "internal": EngineUnavailable(),
                }
                if request_id in self._buffers:
                    self._buffers[request_id].refuse(failures[refusal])
            case wire.Failed(reason):
                self._fail(reason)

    async def _watch_process(self) -> None:
        assert self._process is not None
        status = await self._process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its child processes
        await asyncio.sleep(0.1)  # its last messages may still arrive
        if not self._is_closing:
            self._fail(f"the engine process has ended (status {status})")

    def _fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason
        for buffer in self._buffers.values():
            buffer.end(Code.ANSWER_LOST)
        self.start_ended.set()
        self.failed.set()
