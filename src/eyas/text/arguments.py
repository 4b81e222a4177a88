"""Arguments of tool calls, as objects and as text.

Promises: text that is no JSON object, or too large to be worth one, stays text.
Does not know: templates, tools.
"""

from __future__ import annotations

import json
from typing import Any

MAX_STRUCTURE = 200_000
"""Objects, arrays and members; what stands in strings may count as well."""


def as_object(arguments: Any) -> Any:
    """What OpenAI writes as JSON in a string."""
    if not isinstance(arguments, str) or sum(map(arguments.count, "[{:")) > MAX_STRUCTURE:
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def as_text(arguments: Any) -> Any:
    """What OpenAI would write."""
    try:
        return (
            json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments
        )
    except (TypeError, ValueError, RecursionError):
        return arguments
