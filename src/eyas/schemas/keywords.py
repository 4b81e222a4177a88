"""The keywords of JSON Schema: which hold schemas, which types they apply to, their drafts.

Does not know: what can be enforced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Set
from typing import Any

from eyas.schemas.limits import under

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
ALL = frozenset(("null", "boolean", "number", "string", "array", "object"))
"""Every type; number covers integer."""

IN_PLACE = ("allOf", "anyOf", "oneOf")
ONE_SCHEMA = (
    *("additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then"),
    *("else", "unevaluatedProperties", "unevaluatedItems"),
)
SCHEMA_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
COUNTS = (
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
)
MAX_COUNT = 2**31
"""More than any output has. Upper counts above are left out; backends do not read all of them."""
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
PAIRS = (
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
    ("minimum", "maximum"),
)

KEYWORD_TYPES = {
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), "string"),
    **dict.fromkeys((*BOUNDS, "multipleOf"), "number"),
    **dict.fromkeys(("minItems", "maxItems", "items", "prefixItems", "additionalItems"), "array"),
    **dict.fromkeys(("uniqueItems", "contains", "minContains", "maxContains"), "array"),
    **dict.fromkeys(("unevaluatedItems",), "array"),
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties"), "object"),
    **dict.fromkeys(("required", "minProperties", "maxProperties", "propertyNames"), "object"),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), "object"),
    **dict.fromkeys(("unevaluatedProperties",), "object"),
}
"""The type that a keyword applies to; values of other types satisfy it."""

SINCE = {
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), 2019),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), 2019),
    "prefixItems": 2020,
}
"""The first draft that knows a keyword."""

Object = dict[str, Any]
"""A schema that is not true or false."""
Schema = Object | bool


def draft_of(schema: Any) -> int:
    """Return the draft that a root schema names: 3, 4, 6, 7, 2019 or 2020 (the default)."""
    named = schema.get("$schema") if isinstance(schema, dict) else None
    if isinstance(named, str):
        for mark, draft in (
            *(("draft-03", 3), ("draft-04", 4), ("draft-05", 4), ("draft-06", 6)),
            *(("draft-07", 7), ("2019-09", 2019)),
        ):
            if mark in named:
                return draft
    return 2020


def types_of(schema: Object) -> frozenset[str]:
    """Return the types that `type` allows."""
    named = schema.get("type")
    if named is None:
        return ALL
    types = frozenset((named,)) if isinstance(named, str) else frozenset(named)
    return types - {"integer"} if "number" in types else types


def common_types(one: frozenset[str], other: Set[str]) -> frozenset[str]:
    """Return the types that both allow; number covers integer."""
    both = one & other
    if ("integer" in one and "number" in other) or ("number" in one and "integer" in other):
        both |= {"integer"}
    return both


def type_of(value: Any) -> str:
    """Return the type of a JSON value; integral numbers are integers."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def children(schema: Object, path: str, *, with_definitions: bool = False) -> list[tuple[Any, str]]:
    """Return the schemas directly below one, with their paths."""
    found: list[tuple[Any, str]] = []
    definitions = ("$defs", "definitions") if with_definitions else ()
    for keyword in (*ONE_SCHEMA, "items"):
        if isinstance(schema.get(keyword), (dict, bool)):
            found.append((schema[keyword], under(path, keyword)))
    for keyword in (*IN_PLACE, "items", "prefixItems"):
        if isinstance(schema.get(keyword), list):
            found += [(child, under(path, keyword, i)) for i, child in enumerate(schema[keyword])]
    for keyword in (
        *("properties", "patternProperties", "dependentSchemas"),
        *(*definitions, "dependencies"),
    ):
        if isinstance(schema.get(keyword), dict):
            members = schema[keyword].items()
            is_mixed = keyword == "dependencies"  # names as well
            members = [m for m in members if not (is_mixed and isinstance(m[1], (list, str)))]
            found += [(child, under(path, keyword, name)) for name, child in members]
    return found


def with_children(schema: Object, change: Callable[[Any], Any]) -> Object:
    """Return a rewritten schema with `change` applied to the schemas directly below it."""
    out: Object = {}
    for keyword, child in schema.items():
        if keyword in ("properties", "patternProperties", "$defs"):
            out[keyword] = {name: change(each) for name, each in child.items()}
        elif keyword in ("allOf", "anyOf", "prefixItems"):
            out[keyword] = [change(each) for each in child]
        else:
            out[keyword] = change(child) if keyword in ("items", "additionalProperties") else child
    return out


def has_type(value: Any, types: frozenset[str]) -> bool:
    """Whether a value has one of these types."""
    name = type_of(value)
    return name in types or (name == "integer" and "number" in types)


def canonical(value: Any) -> str:
    """Return the same text for values that are equal in JSON Schema (in Python, True == 1)."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return f"[{','.join(canonical(item) for item in value)}]"
    if isinstance(value, dict):
        members = sorted(f"{json.dumps(key)}:{canonical(item)}" for key, item in value.items())
        return f"{{{','.join(members)}}}"
    return json.dumps(value)
