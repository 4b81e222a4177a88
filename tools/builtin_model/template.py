"""Render the chat template of the built-in model as transformers does.

Promises: the same text as `apply_chat_template` with the shipped template. Does not know: tokens.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATE_FILE = Path(__file__).parent / "chat_template.jinja"


def _tojson(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = _tojson
    return environment.from_string(TEMPLATE_FILE.read_text())


def render(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] = (),
    *,
    add_generation_prompt: bool = False,
    enable_thinking: bool = True,
) -> str:
    """Return the text of a conversation, with the start of the next answer if requested."""
    return _template().render(
        messages=messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        enable_thinking=enable_thinking,
        raise_exception=_raise,
    )
