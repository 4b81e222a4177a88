"""Functions that a chat request offers, and which of them may or must be called.

Promises: what a dialect gets is checked: distinct names, parameters that are schemas of objects, a
choice among them. Does not know: how calls are written.
"""

from __future__ import annotations

from typing import NamedTuple

from eyas.core import RequestError
from eyas.dialect import CHOICES, ToolSpec, tool_specs
from eyas.server.request_models import AllowedToolChoice, ChatBody


class Offer(NamedTuple):
    """The tools of a request and the choice among them, as in `Wanted`."""

    tools: tuple[ToolSpec, ...]
    choice: str
    parallel: bool


def offered_tools(body: ChatBody) -> Offer:
    """RequestError (GrammarError for parameters that cannot be enforced) names the field."""
    choice, allowed = _choice(body)
    parallel = body.parallel_tool_calls is not False
    if choice == "none":
        return Offer((), choice, parallel)
    tools = [{"function": tool.function.model_dump(exclude_none=True)} for tool in body.tools or ()]
    specs = tool_specs(tools)
    if allowed is not None:
        specs = tuple(spec for spec in specs if spec.name in allowed)
    return Offer(specs, choice, parallel)


def _choice(body: ChatBody) -> tuple[str, frozenset[str] | None]:
    """ "none", "auto", "required" or a name; and the functions among which it chooses, None for all.
    Without tools nothing can be called."""
    choice = body.tool_choice
    if choice in (None, "none", "auto"):
        return (choice or "auto") if body.tools else "none", None
    if not body.tools:
        raise RequestError("tool_choice: needs tools to choose from", param="tool_choice")
    if choice == "required":
        return choice, None
    is_list = isinstance(choice, AllowedToolChoice)
    names = [named.function.name for named in (choice.allowed_tools.tools if is_list else [choice])]
    known = {tool.function.name for tool in body.tools}
    for name in names:
        if name in CHOICES:
            raise RequestError(
                f"tool_choice: a function must not be called {name!r}", param="tool_choice"
            )
        if name not in known:
            raise RequestError(
                f"tool_choice: no tool is called {name[:64]!r}; name one of tools",
                param="tool_choice",
            )
    return (choice.allowed_tools.mode, frozenset(names)) if is_list else (names[0], None)
