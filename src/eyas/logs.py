"""The log of the server's processes: one line an event, no content of requests, nothing that forges a
line.

Promises: control characters are escaped; a line is text, its level coloured where it goes to a terminal
that shows colours, or one JSON object. Does not know: what is logged.
"""

from __future__ import annotations

import json
import logging
import os
import re
from datetime import UTC, datetime
from typing import IO, Literal

LogFormat = Literal["text", "json"]

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


class OneLineFormatter(logging.Formatter):
    """A message is one line, whatever is in it; tracebacks follow on lines of their own.

    with_colours: of the level alone.
    """

    def __init__(self, *, with_colours: bool = False) -> None:
        super().__init__(TEXT)
        self._with_colours = with_colours

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = _CONTROL.sub(lambda match: repr(match[0])[1:-1], super().formatMessage(record))
        if not self._with_colours:
            return line
        level = record.levelname
        return line.replace(f" {level} ", f" \x1b[{_COLOURS.get(level, '0')}m{level}\x1b[0m ", 1)


class JsonFormatter(logging.Formatter):
    """An object a line: time (UTC), level, logger, message; request_id where an event is about one
    request of a client's; exception, a traceback's text."""

    def format(self, record: logging.LogRecord) -> str:
        written = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = getattr(record, "request_id", None)
        if request_id is not None:
            written["request_id"] = request_id
        if record.exc_info:
            written["exception"] = self.formatException(record.exc_info)
        return json.dumps(written, ensure_ascii=True, default=str)


def configure(level: str, log_format: LogFormat = "text") -> None:
    """Log to standard error, unless the program has set up logging already."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(
            JsonFormatter()
            if log_format == "json"
            else OneLineFormatter(with_colours=shows_colours(handler.stream))
        )
        root.addHandler(handler)
        root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


def shows_colours(stream: IO[str]) -> bool:
    """Whether it is a terminal, and nobody said that it should stay plain (https://no-color.org)."""
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not is_plain
