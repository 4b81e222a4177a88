"""A process that compiles and renders chat templates.

Run as `python -m eyas.text.render_worker` with a socket as its standard input.

Promises: replies to each request, or exits: by a signal when the processor time is used up, or when
memory runs out. Exits when its parent closes the connection.
Does not know: messages, tokens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import resource
import signal
import socket

from jinja2 import TemplateError

from eyas.text.render_protocol import RenderRequest, ReplyKind, receive, send
from eyas.text.sandbox import CompiledTemplate, TemplateRefusal

MAX_TEMPLATES = 32
"""Compiled templates that are cached; the oldest is dropped first."""
MAX_MEMORY_BYTES = 1024 * 1024 * 1024


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the parent
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    with contextlib.suppress(OSError, ValueError):  # not every system supports this limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    templates: dict[int, CompiledTemplate] = {}
    with socket.socket(fileno=0) as connection, contextlib.suppress(EOFError, OSError, MemoryError):
        while True:
            reply = _reply(receive(connection, MAX_MEMORY_BYTES), templates)
            signal.setitimer(signal.ITIMER_PROF, 0)
            send(connection, reply)
            if reply[0] == ReplyKind.FULL:
                return


def _reply(data: bytes, templates: dict[int, CompiledTemplate]) -> bytes:
    try:
        kind, text = _handle(data, templates)
        return bytes([kind]) + text.encode("utf-8", "surrogatepass")
    except MemoryError:
        return bytes([ReplyKind.FULL])


def _handle(data: bytes, templates: dict[int, CompiledTemplate]) -> tuple[ReplyKind, str]:
    try:
        request = RenderRequest.decoded(data)
        signal.setitimer(signal.ITIMER_PROF, request.cpu_seconds)
        if request.source is not None:
            while len(templates) >= MAX_TEMPLATES:
                del templates[next(iter(templates))]
            templates[request.template_id] = CompiledTemplate(request.source)
        compiled = templates.get(request.template_id)
        if compiled is None:
            return ReplyKind.UNKNOWN, ""
        if request.variables is None:
            return ReplyKind.USES, json.dumps(dataclasses.asdict(compiled.uses))
        return ReplyKind.TEXT, compiled.render(request.variables, request.max_chars)
    except TemplateRefusal as error:
        return ReplyKind.REFUSED, str(error)
    except MemoryError:
        raise
    except TemplateError as error:
        return ReplyKind.FAILED, str(error)[:1000]
    except Exception as error:  # any error in a template is reported as its failure
        return ReplyKind.FAILED, f"{type(error).__name__}: {str(error)[:1000]}"


if __name__ == "__main__":
    main()
