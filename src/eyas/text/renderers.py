"""Renders chat templates with limits, in separate processes.

A template is a program that comes with a checkpoint. It can be slow or large in many ways: nested
loops, a filter that pads to 10^9 characters, lists that double. Only a process can be ended at any
moment.

Promises: a template that exceeds a limit of time or memory, in compiling or rendering, is an error,
and the next request is served. The overhead of a render is some tenths of a millisecond.
Does not know: messages, tokens.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from eyas.children import python_command
from eyas.core import field_error
from eyas.text.render_protocol import RenderRequest, ReplyKind, receive, send
from eyas.text.template_analysis import FieldUses

MAX_TEMPLATE_CHARS = 1024 * 1024
MAX_RENDERED_CHARS = 32 * 1024 * 1024
COMPILE_SECONDS = 20.0
DEADLINE_SECONDS = 5.0
"""Limit of processor time for a render. Wall time would fail renders on a busy machine."""
MAX_WAIT_SECONDS = 120.0
"""Limit of wall time, for a process that gets no processor time."""
MAX_IDLE = 2
"""Idle processes that stay alive. With more callers at once, more processes are started."""
_template_ids = itertools.count()


class _LimitExceeded(Exception):
    """The process exceeded a limit and gave no reply; the message completes "the template ..."."""


class BoundedTemplate:
    """One chat template. uses: how it uses the fields of messages.

    The constructor raises ValueError if the source cannot be compiled within the limits.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ValueError(f"the chat template has more than {MAX_TEMPLATE_CHARS} characters")
        self._source = source
        self._template_id = next(_template_ids)
        try:
            kind, text = self._request(None, COMPILE_SECONDS, 0)
        except _LimitExceeded as exceeded:
            raise ValueError(
                f"the chat template {exceeded} to compile; take a smaller one"
            ) from exceeded
        if kind is not ReplyKind.USES:
            raise ValueError(f"the chat template cannot be compiled: {text}")
        self.uses = FieldUses(**json.loads(text))

    def render(self, variables: dict[str, Any], *, max_chars: int = MAX_RENDERED_CHARS) -> str:
        """Return the rendered text. RequestError if the template refuses, fails or exceeds a limit."""
        try:
            kind, text = self._request(variables, DEADLINE_SECONDS, max_chars)
        except _LimitExceeded as exceeded:
            kind, text = ReplyKind.REFUSED, f"{exceeded} to render"
        except (TypeError, ValueError) as error:
            raise field_error(
                "messages", f"must be plain data, as JSON has it ({error})"
            ) from error
        if kind is ReplyKind.REFUSED:
            raise field_error("messages", f"the model's chat template {text}")
        if kind is not ReplyKind.TEXT:
            raise field_error(
                "messages",
                "the model's chat template cannot render them; "
                "check roles, their order and every field's type",
            ) from RuntimeError(text)
        return text

    def _request(
        self, variables: dict[str, Any] | None, cpu_seconds: float, max_chars: int
    ) -> tuple[ReplyKind, str]:
        request = RenderRequest(self._template_id, None, variables, cpu_seconds, max_chars)
        with _pool_of(os.getpid()).process() as renderer:
            kind, text = renderer.request(request)
            if kind is ReplyKind.UNKNOWN:
                kind, text = renderer.request(replace(request, source=self._source))
        return kind, text


class _RenderProcess:
    """One rendering process. is_usable: it can take another request."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(MAX_WAIT_SECONDS)
        self.is_usable = True
        with theirs:
            try:
                self._process = subprocess.Popen(
                    python_command("eyas.text.render_worker"),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            except OSError:
                self._socket.close()
                raise

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def request(self, request: RenderRequest) -> tuple[ReplyKind, str]:
        """Send the request and return the reply. _LimitExceeded if the process exceeded a limit."""
        data = request.encoded()
        self.is_usable = False
        try:
            send(self._socket, data)
            reply = receive(self._socket, 8192 + 4 * request.max_chars)
        except TimeoutError as error:
            raise _LimitExceeded("takes too long") from error
        except (EOFError, OSError) as error:
            status = self.close()
            if status > 0:
                raise RuntimeError(
                    f"the process that renders chat templates ended with status {status}; try "
                    "python -m eyas.text.render_worker"
                ) from error
            is_late = status == -signal.SIGPROF
            raise _LimitExceeded(
                "takes too long" if is_late else "takes too much memory"
            ) from error
        kind = ReplyKind(reply[0])
        if kind is ReplyKind.FULL:
            raise _LimitExceeded("takes too much memory")
        self.is_usable = True
        return kind, reply[1:].decode("utf-8", "surrogatepass")

    def close(self) -> int:
        """Wait shortly for the process to exit, else kill it. Return its exit status."""
        self._socket.close()
        try:
            return self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class _RenderProcessPool:
    """A pool of rendering processes."""

    def __init__(self) -> None:
        self._idle: list[_RenderProcess] = []
        self._lock = threading.Lock()

    @contextmanager
    def process(self) -> Iterator[_RenderProcess]:
        """Take an idle process, or start one; put it back afterwards if it is usable."""
        with self._lock:
            renderer = self._idle.pop() if self._idle else None
        if renderer is not None and not renderer.is_alive:
            renderer.close()
            renderer = None
        renderer = renderer or _RenderProcess()
        try:
            yield renderer
        finally:
            with self._lock:
                stays_idle = renderer.is_usable and len(self._idle) < MAX_IDLE
                if stays_idle:
                    self._idle.append(renderer)
            if not stays_idle:
                renderer.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for renderer in idle:
            renderer.close()


@functools.cache
def _pool_of(pid: int) -> _RenderProcessPool:
    """Return the pool of this process. A forked child gets its own. The pool is closed at exit."""
    pool = _RenderProcessPool()
    atexit.register(pool.close)
    return pool
