"""minProperties and maxProperties.

The backend counts properties if none of those that the schema and its siblings list is optional.
Otherwise choices over the listed names are written out. Names that are not listed are not counted,
because a text may repeat them.

Promises: equivalences only; everything else is refused.
Does not know: keywords that the rewriter has not written yet.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

from eyas.schemas.keywords import Object, Schema
from eyas.schemas.limits import under
from eyas.schemas.patterns import none_of
from eyas.schemas.rewriter_base import RewriterBase
from eyas.schemas.siblings import ObjectNames

_MAX_CASES = 64
_NOT_OBJECT = ["null", "boolean", "number", "string", "array"]


def at_most(
    rewriter: RewriterBase,
    most: int,
    path: str,
    siblings: ObjectNames,
    group: Object,
    conditions: list[Schema],
) -> None:
    """Rewrite maxProperties as a choice of which optional properties are absent."""
    keyword_path = under(path, "maxProperties")
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
    if not is_closed and not optional and not siblings.optional - set(group.get("required", ())):
        group["maxProperties"] = most
        return
    if not is_closed or comb(len(optional), kept) > _MAX_CASES:
        message = "cannot be enforced beside optional properties; list fewer, or leave it out"
        raise rewriter.context.unsupported(keyword_path, message)
    rewriter.context.spend(keyword_path, comb(len(optional), kept) * len(optional))
    conditions.append(
        {
            "anyOf": [
                {"properties": {name: False for name in optional if name not in names}}
                for names in combinations(optional, kept)
            ]
        }
    )


def at_least(
    rewriter: RewriterBase,
    least: int,
    path: str,
    siblings: ObjectNames,
    group: Object,
    conditions: list[Schema],
) -> None:
    """Rewrite minProperties as a choice of which optional properties are present. Called after
    `at_most`, which keeps its limit in the group only if no property is optional."""
    keyword_path = under(path, "minProperties")
    required: list[str] = group.get("required", [])
    optional, is_closed = _optional(group)
    listed = optional
    if not is_closed and (optional or siblings.optional.difference(required)):
        listed = [*optional, *sorted(siblings.names.difference(required, optional))]
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
        raise rewriter.context.unsupported(keyword_path, message)
    if missing > 1 and comb(len(optional), missing) > _MAX_CASES:
        message = "allows too many choices of properties; make some required"
        raise rewriter.context.unsupported(keyword_path, message)
    if not listed:
        group["minProperties"] = least
        return
    chosen = [list(names) for names in combinations(listed, missing)]
    rewriter.context.spend(keyword_path, len(chosen) * missing)
    cases: list[Schema] = [{"type": _NOT_OBJECT}]
    if is_closed:
        cases += [{"required": names} for names in chosen]
    else:
        whole = {"type": "object", **group}
        rewriter.context.spend(keyword_path, len(chosen) * len(listed))
        cases += [{**whole, "required": [*required, *names]} for names in chosen]
        cases.append(_one_more(rewriter, path, siblings, group))
        group.clear()
    conditions.append({"anyOf": cases})


def _optional(group: Object) -> tuple[list[str], bool]:
    """Return the listed properties that are optional, and whether no other properties are allowed."""
    required = group.get("required", ())
    named = group.get("properties", {}).items()
    is_closed = group.get("additionalProperties") is False and "patternProperties" not in group
    return [n for n, child in named if n not in required and child is not False], is_closed


def _one_more(rewriter: RewriterBase, path: str, siblings: ObjectNames, group: Object) -> Schema:
    """Return the case of the required properties and at least one that is not listed."""
    named, required = group.get("properties", {}), group.get("required", [])
    names = list(dict.fromkeys((*named, *required, *sorted(siblings.names))))
    pattern = none_of(names)
    if pattern is None or "patternProperties" in group or siblings.patterns:
        message = "cannot be enforced beside these properties; make one of them required"
        raise rewriter.context.unsupported(under(path, "minProperties"), message)
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
