"""Conversion of OpenAI's `tools` to `ToolSpec`.

Promises: names are distinct and parameters are schemas of objects; errors name the field.
Does not know: how calls are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from eyas.core import GrammarError, field_error, is_text
from eyas.dialect.base import ToolSpec
from eyas.schemas import prepare

NO_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
CHOICES = ("none", "auto", "required")
_NAME = re.compile(r"""[^\s\x00-\x1f\x7f<>{}\[\]|"'\\]+""")
"""Functions' names: without white space and the signs that end a name in the models' calls."""


def tool_specs(tools: Sequence[Mapping[str, Any]] | None) -> tuple[ToolSpec, ...]:
    """Convert tools of the form {"type": "function", "function": {name, parameters, strict}}.

    Keywords that cannot be enforced are left out of functions that are not strict. RequestError, or
    GrammarError for parameters that cannot be enforced.
    """
    specs: dict[str, ToolSpec] = {}
    for place, tool in enumerate(tools or ()):
        param = f"tools[{place}].function"
        function = tool.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise field_error(param, 'must be {"type": "function", "function": {"name": ...}}')
        name = function["name"]
        if (reason := _fault_of(name, specs)) is not None:
            raise field_error(f"{param}.name", f"{name!r} {reason}")
        specs[name] = _tool(name, function, f"{param}.parameters")
    return tuple(specs.values())


def _fault_of(name: str, known: Collection[str]) -> str | None:
    """Return what is wrong with a function's name, if anything is. known: names before it."""
    if name in known:
        return "is there twice"
    if name in CHOICES:
        return "cannot be a function's name: tool_choice has another meaning for it"
    if not _NAME.fullmatch(name) or not is_text(name):
        return "cannot be a function's name; use letters, digits, underscores, dots and dashes"
    return None


def _tool(name: str, function: Mapping[str, Any], param: str) -> ToolSpec:
    schema = function.get("parameters")
    schema = NO_PARAMETERS if schema is None else schema
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise GrammarError(
            f"{param}: must be a schema of an object; arguments are one", "invalid", param=param
        )
    strict = bool(function.get("strict"))
    # Without `type` a schema allows values of every type.
    text = prepare({"type": "object", **schema}, param=param, lenient=not strict)
    return ToolSpec(name, json.loads(text), strict)
