"""Conversion of OpenAI's `tools` to `ToolSpec`.

Promises: names are distinct and parameters are schemas of objects; errors name the field.
Does not know: how calls are written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
        if not name or not is_text(name) or name in specs or name in CHOICES:
            reason = "is there twice" if name in specs else "cannot be a function's name"
            raise field_error(f"{param}.name", f"{name!r} {reason}")
        specs[name] = _tool(name, function, f"{param}.parameters")
    return tuple(specs.values())


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
