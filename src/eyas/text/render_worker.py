"""A process that compiles and renders chat templates, and may end over any of them.

Promises: answers each question, or ends: after so much of the processor's time (by a signal, whatever
it is in the middle of), or for want of memory. Runs no longer than whoever asks.
Does not know: messages, tokens. Run as `python -m eyas.text.render_worker`, a socket at its input.
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
from eyas.text.sandbox import Compiled, TemplateRefusal

MAX_KEPT = 32
"""Templates that are compiled at a time; the one that came first goes first."""
MAX_MEMORY_BYTES = 1024 * 1024 * 1024


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, for whoever asks
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    with contextlib.suppress(OSError, ValueError):  # not every system can bound it
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    templates: dict[int, Compiled] = {}
    with socket.socket(fileno=0) as connection, contextlib.suppress(EOFError, OSError, MemoryError):
        while True:
            answer = _answer(receive(connection, MAX_MEMORY_BYTES), templates)
            signal.setitimer(signal.ITIMER_PROF, 0)
            send(connection, answer)
            if answer[0] == ReplyKind.FULL:
                return


def _answer(data: bytes, templates: dict[int, Compiled]) -> bytes:
    try:
        kind, text = _judged(data, templates)
        return bytes([kind]) + text.encode("utf-8", "surrogatepass")
    except MemoryError:
        return bytes([ReplyKind.FULL])


def _judged(data: bytes, templates: dict[int, Compiled]) -> tuple[ReplyKind, str]:
    try:
        question = RenderRequest.decoded(data)
        signal.setitimer(signal.ITIMER_PROF, question.cpu_seconds)
        if question.source is not None:
            while len(templates) >= MAX_KEPT:
                del templates[next(iter(templates))]
            templates[question.place] = Compiled(question.source)
        compiled = templates.get(question.place)
        if compiled is None:
            return ReplyKind.UNKNOWN, ""
        if question.variables is None:
            return ReplyKind.USES, json.dumps(dataclasses.asdict(compiled.uses))
        return ReplyKind.TEXT, compiled.render(question.variables, question.max_chars)
    except TemplateRefusal as error:
        return ReplyKind.REFUSED, str(error)
    except MemoryError:
        raise
    except TemplateError as error:
        return ReplyKind.FAILED, str(error)[:1000]
    except Exception as error:  # whatever a template runs into is its own fault
        return ReplyKind.FAILED, f"{type(error).__name__}: {str(error)[:1000]}"


if __name__ == "__main__":
    main()
