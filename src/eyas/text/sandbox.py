"""Compiles and renders chat templates in a sandbox, inside a rendering process.

Promises: a template can only access the values that are passed to it. Limits of time and memory are
those of the process (`eyas.text.render_worker`).
Does not know: messages, tokens, processes.
"""

from __future__ import annotations

import datetime
import json
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from eyas.text.template_analysis import FieldUses, read_uses


class TemplateRefusal(Exception):
    """The template called raise_exception, or its text is too long; the message completes "the
    template"."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}`, which marks the assistant's text for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration is an instance attribute)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class CompiledTemplate:
    """One compiled template. uses: how it uses the fields of messages.

    The constructor raises jinja2's errors, and RecursionError or MemoryError for sources that are
    nested too deep.
    """

    def __init__(self, source: str) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _tojson
        variables: dict[str, Any] = environment.globals
        variables |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self.uses: FieldUses = read_uses(environment.parse(source))
        self._template = environment.from_string(source)

    def render(self, variables: dict[str, Any], max_chars: int) -> str:
        """Return the rendered text. TemplateRefusal, or any error that the template runs into."""
        pieces, num_chars = [], 0
        for piece in self._template.generate(**variables):
            num_chars += len(piece)
            if num_chars > max_chars:
                raise TemplateRefusal(f"renders to more than {max_chars} characters")
            pieces.append(piece)
        return "".join(pieces)


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
    raise TemplateRefusal(f"refuses the messages: {str(message)[:300]}")


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
