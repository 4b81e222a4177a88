"""The keywords of arrays, written out in those that the backend enforces.

Promises: equivalences only. `uniqueItems` is kept where items have few possible values, `contains`
where arrays are short; what remains is refused.
Does not know: objects, references.
"""

from __future__ import annotations

from itertools import permutations
from math import perm
from typing import Any

from eyas.schemas.keywords import SINCE, Schema, canonical, types_of
from eyas.schemas.limits import under
from eyas.schemas.rewriting import Rewriting

_MAX_LISTED = 128
"""Arrays that are written out one by one."""
_MAX_PLACES = 16
"""Items of an array that `contains` looks at."""


def rewrite_array(
    rewriter: Rewriting,
    schema: dict[str, Any],
    place: str,
    out: dict[str, Any],
    conditions: list[Schema],
) -> None:
    """Adds to `out` and `conditions` what the array keywords of `schema` ask for."""
    items = schema.get("items", True)
    if isinstance(items, list):
        prefix, prefix_key = items, "items"
        rest, rest_key = schema.get("additionalItems", True), "additionalItems"
    else:
        prefix, prefix_key = schema.get("prefixItems", []), "prefixItems"
        rest, rest_key = items, "items"
        if (
            prefix
            and "items" in schema
            and not rewriter.attempt(lambda: _is_known(rewriter, "prefixItems", place), False)
        ):
            prefix = []
    if "unevaluatedItems" in schema and rest_key not in schema:
        if _has_applicators(schema):
            rewriter.attempt(lambda: _refuse(rewriter, place, "unevaluatedItems"), None)
        else:
            rest, rest_key = schema["unevaluatedItems"], "unevaluatedItems"
    if prefix:
        out["prefixItems"] = [
            rewriter.schema(child, under(place, prefix_key, i)) for i, child in enumerate(prefix)
        ]
    if rest is not True:
        out["items"] = rewriter.schema(rest, under(place, rest_key))
    for keyword in ("minItems", "maxItems"):
        if schema.get(keyword):
            out[keyword] = int(schema[keyword])
        elif keyword in schema and keyword == "maxItems":
            out[keyword] = 0
    if "array" not in types_of(schema):
        return
    if schema.get("uniqueItems"):
        rewriter.attempt(
            lambda: _unique(rewriter, schema, place, rest, bool(prefix), conditions), None
        )
    if "contains" in schema:
        rewriter.attempt(lambda: _contains(rewriter, schema, place, out, conditions), None)


def _unique(
    rewriter: Rewriting,
    schema: dict[str, Any],
    place: str,
    items: Schema,
    has_prefix: bool,
    conditions: list[Schema],
) -> None:
    spot = under(place, "uniqueItems")
    most = schema.get("maxItems", 2**53)
    if most <= 1 or rewriter.disjointness.types([schema]).isdisjoint({"array"}):
        return
    values = None if has_prefix else rewriter.disjointness.values([items])
    if values is not None:
        values = list({canonical(value): value for value in values}.values())
        least, most = int(schema.get("minItems", 0)), int(min(most, len(values)))
        is_short = len(values) <= _MAX_LISTED and (most <= 2 or len(values) <= 8)
        if is_short and sum(perm(len(values), n) for n in range(least, most + 1)) <= _MAX_LISTED:
            listed = [list(a) for n in range(least, most + 1) for a in permutations(values, n)]
            rewriter.context.spend(spot, len(listed) * max(most, 1))
            other = ["null", "boolean", "number", "string", "object"]
            arrays: list[Schema] = [{"enum": listed}] if listed else []
            conditions.append({"anyOf": [{"type": other}, *arrays]})
            return
    message = "cannot be enforced for items with many values; set maxItems to 1, or leave it out"
    raise rewriter.context.unsupported(spot, message)


def _contains(
    rewriter: Rewriting,
    schema: dict[str, Any],
    place: str,
    out: dict[str, Any],
    conditions: list[Schema],
) -> None:
    spot = under(place, "contains")
    wanted = rewriter.schema(schema["contains"], spot)
    least = int(schema.get("minContains", 1))
    if least == 0 and not rewriter.attempt(
        lambda: _is_known(rewriter, "minContains", place), False
    ):
        least = 1
    if "maxContains" in schema or least > 1:
        keyword = "maxContains" if "maxContains" in schema else "minContains"
        message = "how often an item occurs cannot be enforced; use prefixItems"
        raise rewriter.context.unsupported(under(place, keyword), message)
    if least == 0:
        return
    if wanted is True or wanted == {}:
        out["minItems"] = max(1, out.get("minItems", 0))
        return
    if schema.get("maxItems", 2**53) > _MAX_PLACES:
        message = f"can be enforced with maxItems up to {_MAX_PLACES} only; set it, or use items"
        raise rewriter.context.unsupported(spot, message)
    places: list[Schema] = [{"type": ["null", "boolean", "number", "string", "object"]}]
    for i in range(int(schema["maxItems"])):
        rewriter.context.spend(spot, i + 1)
        first = [True] * i + [wanted]
        places.append({"type": "array", "minItems": i + 1, "prefixItems": first})
    conditions.append({"anyOf": places})


def _is_known(rewriter: Rewriting, keyword: str, place: str) -> bool:
    """Does the schema's draft know a keyword that lets more through than its draft would without it?"""
    if SINCE[keyword] <= rewriter.context.draft:
        return True
    message = (
        f"is not known to the draft that $schema names, and would allow what that refuses; name "
        f"draft {SINCE[keyword]} or a later one"
    )
    raise rewriter.context.unsupported(under(place, keyword), message)


def _has_applicators(schema: dict[str, Any]) -> bool:
    """Could other schemas at this place judge items as well?"""
    applicators = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "contains", "not")
    return any(keyword in schema for keyword in applicators)


def _refuse(rewriter: Rewriting, place: str, keyword: str) -> None:
    message = "cannot be enforced beside allOf, anyOf and the like; write items out"
    raise rewriter.context.unsupported(under(place, keyword), message)
