"""The keywords of arrays, rewritten in those that the backend enforces.

Promises: equivalences only. `uniqueItems` is enforced for items with few possible values, `contains`
for short arrays; everything else is refused.
Does not know: objects, references.
"""

from __future__ import annotations

from itertools import permutations
from math import perm

from eyas.schemas.keywords import SINCE, Object, Schema, canonical, types_of
from eyas.schemas.limits import under
from eyas.schemas.rewriter_base import RewriterBase

_MAX_LISTED = 128
"""Distinct arrays that are written out as an enum for `uniqueItems`."""
_MAX_PLACES = 16
"""The largest `maxItems` beside `contains`."""


def rewrite_array(
    rewriter: RewriterBase, schema: Object, path: str, out: Object, conditions: list[Schema]
) -> None:
    """Rewrite the array keywords of `schema` into `out` and into further `conditions`."""
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
            and not rewriter.attempt(lambda: _is_known(rewriter, "prefixItems", path), False)
        ):
            prefix = []
    if "unevaluatedItems" in schema and rest_key not in schema:
        if _has_applicators(schema):
            rewriter.attempt(lambda: _refuse(rewriter, path, "unevaluatedItems"), None)
        else:
            rest, rest_key = schema["unevaluatedItems"], "unevaluatedItems"
    if prefix:
        out["prefixItems"] = [
            rewriter.schema(child, under(path, prefix_key, i)) for i, child in enumerate(prefix)
        ]
    if rest is not True:
        out["items"] = rewriter.schema(rest, under(path, rest_key))
    for keyword in ("minItems", "maxItems"):
        if schema.get(keyword):
            out[keyword] = int(schema[keyword])
        elif keyword in schema and keyword == "maxItems":
            out[keyword] = 0
    if "array" not in types_of(schema):
        return
    if schema.get("uniqueItems"):
        rewriter.attempt(
            lambda: _unique(rewriter, schema, path, rest, bool(prefix), conditions), None
        )
    if "contains" in schema:
        rewriter.attempt(lambda: _contains(rewriter, schema, path, out, conditions), None)


def _unique(
    rewriter: RewriterBase,
    schema: Object,
    path: str,
    items: Schema,
    has_prefix: bool,
    conditions: list[Schema],
) -> None:
    keyword_path = under(path, "uniqueItems")
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
            rewriter.context.spend(keyword_path, len(listed) * max(most, 1))
            other = ["null", "boolean", "number", "string", "object"]
            arrays: list[Schema] = [{"enum": listed}] if listed else []
            conditions.append({"anyOf": [{"type": other}, *arrays]})
            return
    message = "cannot be enforced for items with many values; set maxItems to 1, or leave it out"
    raise rewriter.context.unsupported(keyword_path, message)


def _contains(
    rewriter: RewriterBase, schema: Object, path: str, out: Object, conditions: list[Schema]
) -> None:
    keyword_path = under(path, "contains")
    wanted = rewriter.schema(schema["contains"], keyword_path)
    least = int(schema.get("minContains", 1))
    if least == 0 and not rewriter.attempt(lambda: _is_known(rewriter, "minContains", path), False):
        least = 1
    if "maxContains" in schema or least > 1:
        keyword = "maxContains" if "maxContains" in schema else "minContains"
        message = "how often an item occurs cannot be enforced; use prefixItems"
        raise rewriter.context.unsupported(under(path, keyword), message)
    if least == 0:
        return
    if wanted is True or wanted == {}:
        out["minItems"] = max(1, out.get("minItems", 0))
        return
    if schema.get("maxItems", 2**53) > _MAX_PLACES:
        message = f"can be enforced with maxItems up to {_MAX_PLACES} only; set it, or use items"
        raise rewriter.context.unsupported(keyword_path, message)
    paths: list[Schema] = [{"type": ["null", "boolean", "number", "string", "object"]}]
    for i in range(int(schema["maxItems"])):
        rewriter.context.spend(keyword_path, i + 1)
        first = [True] * i + [wanted]
        paths.append({"type": "array", "minItems": i + 1, "prefixItems": first})
    conditions.append({"anyOf": paths})


def _is_known(rewriter: RewriterBase, keyword: str, path: str) -> bool:
    """Return True if the schema's draft has `keyword`, which allows more values than the draft does
    without it; else GrammarError (unsupported)."""
    if SINCE[keyword] <= rewriter.context.draft:
        return True
    message = (
        f"is not known to the draft that $schema names, and would allow what that refuses; name "
        f"draft {SINCE[keyword]} or a later one"
    )
    raise rewriter.context.unsupported(under(path, keyword), message)


def _has_applicators(schema: Object) -> bool:
    """Whether other schemas may apply to the items as well."""
    applicators = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "contains", "not")
    return any(keyword in schema for keyword in applicators)


def _refuse(rewriter: RewriterBase, path: str, keyword: str) -> None:
    message = "cannot be enforced beside allOf, anyOf and the like; write items out"
    raise rewriter.context.unsupported(under(path, keyword), message)
