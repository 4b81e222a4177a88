"""The tools of a chat request, and which of them may or must be called.

Promises: the tools for a dialect are checked: their names are distinct, their parameters are schemas of
objects, and the choice is one of them. Does not know: how calls are written.
"""

from __future__ import annotations

from eyas.core import field_error
from eyas.dialect import CHOICES, Wanted, tool_specs
from eyas.server.request_models import AllowedToolChoice, ChatBody
from eyas.server.template_inputs import template_tools


def wanted_tools(body: ChatBody) -> Wanted:
    """Return the requirements on the output that concern tools. RequestError names the field;
    GrammarError is one for parameters that cannot be enforced."""
    choice, allowed = _choice(body)
    parallel = body.parallel_tool_calls is not False
    if choice == "none":
        return Wanted(choice=choice, parallel=parallel)
    specs = tool_specs(template_tools(body.tools))
    if allowed is not None:
        specs = tuple(spec for spec in specs if spec.name in allowed)
    return Wanted(tools=specs, choice=choice, parallel=parallel)


def _choice(body: ChatBody) -> tuple[str, frozenset[str] | None]:
    """Return the choice ("none", "auto", "required" or a name), and the names that it allows; None
    for all."""
    choice = body.tool_choice
    if choice in (None, "none", "auto"):
        return (choice or "auto") if body.tools else "none", None
    if not body.tools:
        raise field_error("tool_choice", "needs tools to choose from")
    if choice == "required":
        return choice, None
    is_allowed_list = isinstance(choice, AllowedToolChoice)
    names = [
        tool_choice.function.name
        for tool_choice in (choice.allowed_tools.tools if is_allowed_list else [choice])
    ]
    tool_names = {tool.function.name for tool in body.tools}
    for name in names:
        if name in CHOICES:
            raise field_error("tool_choice", f"a function must not be called {name!r}")
        if name not in tool_names:
            raise field_error("tool_choice", f"no tool is called {name[:64]!r}; name one of tools")
    return (choice.allowed_tools.mode, frozenset(names)) if is_allowed_list else (names[0], None)
