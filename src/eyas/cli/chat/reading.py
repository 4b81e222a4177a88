"""Read the messages of a chat.

Promises: a line is a message, unless it ends in a backslash, which continues it, or begins with three
quotation marks, which begin a message of several lines. This is the same in a terminal and
from a pipe. Does not know: what the messages mean.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eyas.cli.chat.view import ChatView

PROMPT, MORE = "> ", ". "
QUOTES = '"""'


def messages(view: ChatView) -> Iterator[str]:
    """Yield the messages of standard input, except those that are only white space."""
    if view.is_interactive:
        with suppress(ImportError):
            import readline  # noqa: F401, `input` edits lines with it
    while True:
        try:
            message = _message(view.is_interactive).strip()
        except KeyboardInterrupt:
            view.end_line()
            view.note("Ctrl-D or /quit ends the chat.")
            continue
        except EOFError:
            if view.is_interactive:
                view.end_line()
            return
        if message:
            yield message


def _message(is_interactive: bool) -> str:
    """Read a message. EOFError: there are no more."""
    line = _line(PROMPT, is_interactive)
    if line.startswith(QUOTES):
        return _quoted(line.removeprefix(QUOTES), is_interactive)
    lines = [line]
    with suppress(EOFError):
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1].removesuffix("\\")
            lines.append(_line(MORE, is_interactive))
    return "\n".join(lines)


def _quoted(first: str, is_interactive: bool) -> str:
    """Read the rest of a message in quotation marks, up to the end if they are not closed."""
    lines = [first]
    with suppress(EOFError):
        while not lines[-1].endswith(QUOTES):
            lines.append(_line(MORE, is_interactive))
    return "\n".join(lines).removesuffix(QUOTES)


def _line(prompt: str, is_interactive: bool) -> str:
    if is_interactive:
        return input(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\r\n")
