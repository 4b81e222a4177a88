"""Functions that a chat request offers, and which of them may or must be called.

Promises: what a dialect gets is checked: distinct names, parameters that are schemas of objects, a
choice among them. Does not know: how calls are written.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from eyas.core import GrammarError, RequestError
from eyas.dialect.base import ToolSpec
from eyas.schemas import prepare
from eyas.server.schema import ChatBody, Function

NO_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


class Offer(NamedTuple):
    """The tools of a request and the choice among them, as in `Wanted`."""

    tools: tuple[ToolSpec, ...]
    choice: str
    parallel: bool


def offered_tools(body: ChatBody) -> Offer:
    """RequestError (GrammarError for parameters that cannot be enforced) names the field."""
    choice = _choice(body)
    parallel = body.parallel_tool_calls is not False
    if choice == "none":
        return Offer((), choice, parallel)
    names: set[str] = set()
    tools = []
    for place, tool in enumerate(body.tools or ()):
        param = f"tools[{place}].function"
        if tool.function.name in names:
            raise RequestError(
                f"{param}.name: {tool.function.name!r} is there twice; give each its own name",
                param=f"{param}.name",
            )
        names.add(tool.function.name)
        tools.append(_tool(tool.function, f"{param}.parameters"))
    return Offer(tuple(tools), choice, parallel)


def _choice(body: ChatBody) -> str:
    """ "none", "auto", "required" or a name. Without tools nothing can be called."""
    choice = body.tool_choice
    if choice in (None, "none", "auto"):
        return (choice or "auto") if body.tools else "none"
    if not body.tools:
        raise RequestError("tool_choice: needs tools to choose from", param="tool_choice")
    if choice == "required":
        return choice
    name: str = choice.function.name
    if name in ("none", "auto", "required"):
        raise RequestError(
            f"tool_choice: a function must not be called {name!r}", param="tool_choice"
        )
    if all(tool.function.name != name for tool in body.tools):
        raise RequestError(
            f"tool_choice: no tool is called {name[:64]!r}; name one of tools", param="tool_choice"
        )
    return name


def _tool(function: Function, param: str) -> ToolSpec:
    schema = function.parameters if function.parameters is not None else NO_PARAMETERS
    if schema.get("type", "object") != "object":
        raise GrammarError(
            f"{param}.type: must be 'object'; arguments are an object", "invalid", param=param
        )
    # Without its type a schema allows values of every type.
    schema = {"type": "object", **schema}
    strict = bool(function.strict)
    prepared = prepare(schema, param=param, lenient=not strict)
    return ToolSpec(function.name, json.loads(prepared), strict)
