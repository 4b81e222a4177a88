"""How many properties an object has.

Promises: equivalences only; what remains is refused. Numbers of properties are counted over names that
the schema lists, because a text may repeat a name that it does not list. The backend counts names
itself where none of those that this schema or one beside it lists is optional.
Does not know: other keywords than those that are written already.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

from eyas.schemas.beside import Said
from eyas.schemas.keywords import Schema
from eyas.schemas.limits import under
from eyas.schemas.patterns import none_of
from eyas.schemas.rewriting import Rewriting

_MAX_CASES = 64
_NOT_OBJECT = ["null", "boolean", "number", "string", "array"]


def at_most(
    rewriter: Rewriting,
    most: int,
    place: str,
    beside: Said,
    group: dict[str, Any],
    conditions: list[Schema],
) -> None:
    """maxProperties: which of the optional properties are not there."""
    spot = under(place, "maxProperties")
    optional, is_closed = _optional(group)
    kept = most - len(group.get("required", ()))
    if kept < 0:
        conditions.append({"type": _NOT_OBJECT})
        return
    if is_closed and kept >= len(optional):
        return
    if most == 0:
        group.clear()
        group["additionalProperties"] = False
        return
    if not is_closed and not optional and not beside.optional - set(group.get("required", ())):
        group["maxProperties"] = most
        return
    if not is_closed or comb(len(optional), kept) > _MAX_CASES:
        message = "cannot be enforced beside optional properties; list fewer, or leave it out"
        raise rewriter.context.unsupported(spot, message)
    rewriter.context.spend(spot, comb(len(optional), kept) * len(optional))
    conditions.append(
        {
            "anyOf": [
                {"properties": {name: False for name in optional if name not in names}}
                for names in combinations(optional, kept)
            ]
        }
    )


def at_least(
    rewriter: Rewriting,
    least: int,
    place: str,
    beside: Said,
    group: dict[str, Any],
    conditions: list[Schema],
) -> None:
    """minProperties: which of the optional properties are there. Behind `at_most`, which leaves its
    limit in the group only where none is optional."""
    spot = under(place, "minProperties")
    required: list[str] = group.get("required", [])
    optional, is_closed = _optional(group)
    listed = optional
    if not is_closed and (optional or beside.optional.difference(required)):
        listed = [*optional, *sorted(beside.names.difference(required, optional))]
    missing = least - len(required)
    if missing <= 0:
        return
    if is_closed and missing > len(optional):
        conditions.append({"type": _NOT_OBJECT})
        return
    if missing > 1 and not is_closed:
        message = (
            "more than one property beyond the required ones cannot be counted, because a text may "
            "repeat a name; list the properties, with additionalProperties false"
        )
        raise rewriter.context.unsupported(spot, message)
    if missing > 1 and comb(len(optional), missing) > _MAX_CASES:
        message = "allows too many choices of properties; make some required"
        raise rewriter.context.unsupported(spot, message)
    if not listed:
        group["minProperties"] = least
        return
    chosen = [list(names) for names in combinations(listed, missing)]
    rewriter.context.spend(spot, len(chosen) * missing)
    cases: list[Schema] = [{"type": _NOT_OBJECT}]
    if is_closed:
        cases += [{"required": names} for names in chosen]
    else:
        whole = {"type": "object", **group}
        rewriter.context.spend(spot, len(chosen) * len(listed))
        cases += [{**whole, "required": [*required, *names]} for names in chosen]
        cases.append(_one_more(rewriter, place, beside, group))
        group.clear()
    conditions.append({"anyOf": cases})


def _optional(group: dict[str, Any]) -> tuple[list[str], bool]:
    """The listed properties that may be there or not, and whether no other may."""
    required = group.get("required", ())
    named = group.get("properties", {}).items()
    is_closed = group.get("additionalProperties") is False and "patternProperties" not in group
    return [n for n, child in named if n not in required and child is not False], is_closed


def _one_more(rewriter: Rewriting, place: str, beside: Said, group: dict[str, Any]) -> Schema:
    """The required properties alone, and at least one that is not listed."""
    named, required = group.get("properties", {}), group.get("required", [])
    names = list(dict.fromkeys((*named, *required, *sorted(beside.names))))
    pattern = none_of(names)
    if pattern is None or "patternProperties" in group or beside.patterns:
        message = "cannot be enforced beside these properties; make one of them required"
        raise rewriter.context.unsupported(under(place, "minProperties"), message)
    rest = group.get("additionalProperties", True)
    alone = {name: named.get(name, rest) for name in required}
    return {
        "type": "object",
        "properties": alone,
        "required": required,
        "patternProperties": {pattern: rest},
        "additionalProperties": False,
        "minProperties": len(required) + 1,
    }
