"""The log format of the server's processes: one line an event, as text or JSON.

Promises: control characters are escaped, so no message can forge a line. In text the level is coloured
if the output is a terminal that shows colours.
Does not know: what is logged.
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
    """Formats a record as one line of text. What the record has in `lines`, a list, and a traceback
    follow on lines of their own, which are indented.

    with_colours: whether the level is coloured.
    """

    def __init__(self, *, with_colours: bool = False) -> None:
        super().__init__(TEXT)
        self._with_colours = with_colours

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = _escaped(super().formatMessage(record))
        if self._with_colours:
            level = record.levelname
            colour = _COLOURS.get(level, "0")
            line = line.replace(f" {level} ", f" \x1b[{colour}m{level}\x1b[0m ", 1)
        return "\n    ".join([line, *map(_escaped, getattr(record, "lines", ()))])


class JsonFormatter(logging.Formatter):
    """Formats a record as one line with a JSON object: time (UTC), level, logger and message;
    request_id if the event is about one request of a client; what the record has in `fields`, a
    dict; exception with the text of a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = getattr(record, "request_id", None)
        if request_id is not None:
            entry["request_id"] = request_id
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=True, default=str)


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


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


def configured() -> tuple[str, LogFormat]:
    """Return the level and the format that this process logs with, for its child processes."""
    root = logging.getLogger()
    is_json = any(isinstance(handler.formatter, JsonFormatter) for handler in root.handlers)
    level = logging.getLevelName(logging.getLogger("eyas").getEffectiveLevel()).lower()
    return level, "json" if is_json else "text"


def shows_colours(stream: IO[str]) -> bool:
    """Whether a stream is a terminal with colours, not switched off (https://no-color.org)."""
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not is_plain
