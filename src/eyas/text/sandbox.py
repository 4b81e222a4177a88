"""Rendering a model's chat template in bounds: sandboxed, limited in time and in size.

Promises: a template can reach nothing but the values it was given; a render that takes too long or
grows too large is a RequestError; anything else that goes wrong in it as well.
Does not know: tokens.
"""

from __future__ import annotations

import datetime
import json
import threading
import time
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from eyas.core import RequestError
from eyas.text.fields import read_uses

MAX_RENDERED_CHARS = 32 * 1024 * 1024
MAX_REPEATED_CHARS = 1024 * 1024
DEADLINE_SECONDS = 5.0


class _TemplateRefusal(Exception):
    """The template itself called raise_exception, or went over its time or size."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration is an instance attribute)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox that looks at the clock whenever a template reads, calls or multiplies."""

    intercepted_binops = frozenset(["*", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
        )
        self.current = threading.local()

    def check_time(self) -> None:
        if time.monotonic() > getattr(self.current, "deadline", float("inf")):
            raise _TemplateRefusal("takes too long to render")

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.check_time()
        return super().getitem(obj, argument)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        self.check_time()
        return super().call(*args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self.check_time()
        if operator == "**" and not (abs(left) <= 10**6 and 0 <= right <= 16):
            raise _TemplateRefusal("raises numbers to too high a power")
        for one, other in ((left, right), (right, left)):
            if isinstance(one, (str, list, tuple)) and len(one) * other > MAX_REPEATED_CHARS:
                raise _TemplateRefusal("repeats a text too often")
        return super().call_binop(context, operator, left, right)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> NoReturn:
    raise _TemplateRefusal(f"refuses the messages: {str(message)[:300]}")


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


class BoundedTemplate:
    """One compiled template. uses: what it does with the fields of messages.

    ValueError from the constructor names a mistake in its source.
    """

    def __init__(self, source: str) -> None:
        self._environment = _BoundedEnvironment()
        self._environment.filters["tojson"] = _tojson
        variables: dict[str, Any] = self._environment.globals
        variables |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        try:
            self.uses = read_uses(self._environment.parse(source))
            self._template = self._environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ValueError(f"the chat template cannot be compiled: {error}") from error

    def render(self, variables: dict[str, Any], *, max_chars: int = MAX_RENDERED_CHARS) -> str:
        """The rendered text. RequestError if the template refuses or exceeds its bounds."""
        pieces, num_chars = [], 0
        self._environment.current.deadline = time.monotonic() + DEADLINE_SECONDS
        try:
            for piece in self._template.generate(**variables):
                self._environment.check_time()
                num_chars += len(piece)
                if num_chars > max_chars:
                    raise _TemplateRefusal(f"renders to more than {max_chars} characters")
                pieces.append(piece)
        except _TemplateRefusal as error:
            raise RequestError(
                f"messages: the model's chat template {error}", param="messages"
            ) from error
        except Exception as error:  # a row's fault is that row's, whatever the template runs into
            raise RequestError(
                "messages: the model's chat template cannot render them; "
                "check roles, their order and every field's type",
                param="messages",
            ) from error
        finally:
            self._environment.current.deadline = float("inf")
        return "".join(pieces)
