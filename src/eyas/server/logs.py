"""The server's log: one line an event, no content of requests, nothing that forges a line.

Promises: control characters are escaped. Does not know: what is logged.
"""

from __future__ import annotations

import logging
import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class OneLineFormatter(logging.Formatter):
    """A message is one line, whatever is in it; tracebacks follow on lines of their own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return _CONTROL.sub(lambda match: repr(match[0])[1:-1], super().formatMessage(record))


def configure(level: str) -> None:
    """Log to standard error, unless the program has set up logging already."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(OneLineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
