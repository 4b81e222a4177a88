"""Functions that a chat request offers, and which of them may or must be called.

Promises: what a dialect gets is checked: distinct names, parameters that are schemas of objects, a
choice among them. Does not know: how calls are written.
"""

from __future__ import annotations

from typing import NamedTuple

from eyas.core import RequestError
from eyas.dialect import CHOICES, ToolSpec, tool_specs
from eyas.server.schema import ChatBody


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
    tools = [{"function": tool.function.model_dump(exclude_none=True)} for tool in body.tools or ()]
    return Offer(tool_specs(tools), choice, parallel)


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
    if name in CHOICES:
        raise RequestError(
            f"tool_choice: a function must not be called {name!r}", param="tool_choice"
        )
    if all(tool.function.name != name for tool in body.tools):
        raise RequestError(
            f"tool_choice: no tool is called {name[:64]!r}; name one of tools", param="tool_choice"
        )
    return name
