"""Rendering chat templates in bounds, in processes of their own.

A template is a program that came with a checkpoint, and there are many ways to be slow and large: loops
in loops, a filter that pads to 10^9 characters, lists of one list over and over. A process can be ended
in the middle of any of them.

Promises: a template that takes too long or too much memory, to compile or to render, is an error, and
the next one is served; a render costs its own time and some tenths of a millisecond.
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
from eyas.core import RequestError
from eyas.text.render_protocol import RenderRequest, ReplyKind, receive, send
from eyas.text.template_analysis import FieldUses

MAX_TEMPLATE_CHARS = 1024 * 1024
MAX_RENDERED_CHARS = 32 * 1024 * 1024
COMPILE_SECONDS = 20.0
DEADLINE_SECONDS = 5.0
"""Of the processor's time, which a busy machine does not shorten."""
MAX_WAIT_SECONDS = 120.0
"""For a process that is not given any."""
MAX_IDLE = 2
"""Processes that are kept; as many as there are callers at once may be started."""
_numbers = itertools.count()


class _Overrun(Exception):
    """There is no answer; the text says why."""


class BoundedTemplate:
    """One template. uses: what it does with the fields of messages.

    ValueError from the constructor names a mistake in its source.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ValueError(f"the chat template has more than {MAX_TEMPLATE_CHARS} characters")
        self._source = source
        self._place = next(_numbers)
        try:
            kind, said = self._ask(None, COMPILE_SECONDS, 0)
        except _Overrun as overrun:
            raise ValueError(
                f"the chat template {overrun} to compile; take a smaller one"
            ) from overrun
        if kind is not ReplyKind.USES:
            raise ValueError(f"the chat template cannot be compiled: {said}")
        self.uses = FieldUses(**json.loads(said))

    def render(self, variables: dict[str, Any], *, max_chars: int = MAX_RENDERED_CHARS) -> str:
        """The rendered text. RequestError if the template refuses or exceeds its bounds."""
        try:
            kind, said = self._ask(variables, DEADLINE_SECONDS, max_chars)
        except _Overrun as overrun:
            kind, said = ReplyKind.REFUSED, f"{overrun} to render"
        except (TypeError, ValueError) as error:
            raise RequestError(
                f"messages: must be plain data, as JSON has it ({error})", param="messages"
            ) from error
        if kind is ReplyKind.REFUSED:
            raise RequestError(f"messages: the model's chat template {said}", param="messages")
        if kind is not ReplyKind.TEXT:
            raise RequestError(
                "messages: the model's chat template cannot render them; "
                "check roles, their order and every field's type",
                param="messages",
            ) from RuntimeError(said)
        return said

    def _ask(
        self, variables: dict[str, Any] | None, cpu_seconds: float, max_chars: int
    ) -> tuple[ReplyKind, str]:
        question = RenderRequest(self._place, None, variables, cpu_seconds, max_chars)
        with _renderers_of(os.getpid()).one() as renderer:
            kind, said = renderer.ask(question)
            if kind is ReplyKind.UNKNOWN:
                kind, said = renderer.ask(replace(question, source=self._source))
        return kind, said


class _Renderer:
    """One process. is_usable: it may be asked something else."""

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

    def ask(self, question: RenderRequest) -> tuple[ReplyKind, str]:
        """Its answer. _Overrun where there is none."""
        data = question.encoded()
        self.is_usable = False
        try:
            send(self._socket, data)
            answer = receive(self._socket, 8192 + 4 * question.max_chars)
        except TimeoutError as error:
            raise _Overrun("takes too long") from error
        except (EOFError, OSError) as error:
            status = self.close()
            if status > 0:
                raise RuntimeError(
                    f"the process that renders chat templates ended with status {status}; try "
                    "python -m eyas.text.render_worker"
                ) from error
            is_late = status == -signal.SIGPROF
            raise _Overrun("takes too long" if is_late else "takes too much memory") from error
        kind = ReplyKind(answer[0])
        if kind is ReplyKind.FULL:
            raise _Overrun("takes too much memory")
        self.is_usable = True
        return kind, answer[1:].decode("utf-8", "surrogatepass")

    def close(self) -> int:
        """Ends the process, if it has not ended by itself; its exit status."""
        self._socket.close()
        try:
            return self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class _Renderers:
    """The processes that have nothing to do."""

    def __init__(self) -> None:
        self._idle: list[_Renderer] = []
        self._lock = threading.Lock()

    @contextmanager
    def one(self) -> Iterator[_Renderer]:
        """A process, new if none is idle."""
        with self._lock:
            renderer = self._idle.pop() if self._idle else None
        if renderer is not None and not renderer.is_alive:
            renderer.close()
            renderer = None
        renderer = renderer or _Renderer()
        try:
            yield renderer
        finally:
            with self._lock:
                is_kept = renderer.is_usable and len(self._idle) < MAX_IDLE
                if is_kept:
                    self._idle.append(renderer)
            if not is_kept:
                renderer.close()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for renderer in idle:
            renderer.close()


@functools.cache
def _renderers_of(pid: int) -> _Renderers:
    """Those of this process: after a fork a process starts its own. They end with it."""
    renderers = _Renderers()
    atexit.register(renderers.close)
    return renderers
