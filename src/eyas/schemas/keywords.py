"""What the keywords of JSON Schema look like: the malformed ones are found here.

Promises: a schema object that passes holds values of the right JSON types, and no pair of bounds that
contradict each other.
Does not know: what can be enforced.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from eyas.core import GrammarError
from eyas.schemas.limits import fail, shortened, under

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
"""The type whose values a keyword judges; values of other types pass."""

SINCE = {
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), 2019),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), 2019),
    "prefixItems": 2020,
}
"""The first draft that knows a keyword."""

Schema = dict[str, Any] | bool


def draft_of(schema: Any) -> int:
    """The draft that a root schema names: 3, 4, 6, 7, 2019 or 2020."""
    named = schema.get("$schema") if isinstance(schema, dict) else None
    if isinstance(named, str):
        for mark, draft in (
            *(("draft-03", 3), ("draft-04", 4), ("draft-05", 4), ("draft-06", 6)),
            *(("draft-07", 7), ("2019-09", 2019)),
        ):
            if mark in named:
                return draft
    return 2020


def types_of(schema: dict[str, Any]) -> frozenset[str]:
    """The types that `type` lets through."""
    named = schema.get("type")
    if named is None:
        return ALL
    types = frozenset((named,)) if isinstance(named, str) else frozenset(named)
    return types - {"integer"} if "number" in types else types


def type_of(value: Any) -> str:
    """The type of a JSON value; integral numbers are integers."""
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


def children(schema: dict[str, Any], place: str) -> list[tuple[Any, str]]:
    """The schemas directly below one, with their places; definitions are left out."""
    found: list[tuple[Any, str]] = []
    for keyword in (*ONE_SCHEMA, "items"):
        if isinstance(schema.get(keyword), (dict, bool)):
            found.append((schema[keyword], under(place, keyword)))
    for keyword in (*IN_PLACE, "items", "prefixItems"):
        if isinstance(schema.get(keyword), list):
            found += [(child, under(place, keyword, i)) for i, child in enumerate(schema[keyword])]
    for keyword in ("properties", "patternProperties", "dependentSchemas"):
        if isinstance(schema.get(keyword), dict):
            members = schema[keyword].items()
            found += [(child, under(place, keyword, name)) for name, child in members]
    return found


def has_type(value: Any, types: frozenset[str]) -> bool:
    """Is a value of one of these types?"""
    name = type_of(value)
    return name in types or (name == "integer" and "number" in types)


def canonical(value: Any) -> str:
    """Equal for values that JSON Schema calls equal. Python's own == takes true for 1."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return f"[{','.join(canonical(item) for item in value)}]"
    if isinstance(value, dict):
        members = sorted(f"{json.dumps(key)}:{canonical(item)}" for key, item in value.items())
        return f"{{{','.join(members)}}}"
    return json.dumps(value)


class Checker:
    """Finds what is malformed in one schema object (not in those below it)."""

    def __init__(self, param: str) -> None:
        self.param = param

    def check(self, schema: Any, place: str) -> None:
        """Raises where a keyword's value is not what the standard asks for."""
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise self._bad(place, f"a schema is an object or a boolean, not {shortened(schema)}")
        has_counts = has_bounds = False
        for keyword, value in schema.items():
            if keyword in _SHAPES:
                right, is_right = _SHAPES[keyword]
                if not is_right(value):
                    raise self._wrong(schema, place, keyword, right)
            elif keyword == "type":
                self._check_type(value, under(place, "type"))
            elif keyword == "required":
                self._check_required(schema, place)
            elif keyword in ("dependentRequired", "dependencies"):
                self._check_dependencies(schema, place)
            has_counts = has_counts or keyword in COUNTS
            has_bounds = has_bounds or keyword in BOUNDS or keyword == "multipleOf"
        if has_counts or has_bounds:
            self._check_numbers(schema, place)

    def _check_type(self, value: Any, place: str) -> None:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names:
            raise self._bad(place, f"must name a type, not {shortened(value)}")
        for name in names:
            if not isinstance(name, str) or name not in TYPES:
                message = f"{shortened(name)} is not a type; use one of {', '.join(TYPES)}"
                raise self._bad(place, message)

    def _check_required(self, schema: dict[str, Any], place: str) -> None:
        value = schema.get("required", [])
        if isinstance(value, bool) and "object" not in types_of(schema):
            return  # draft 3, where the property itself said so; it judges objects alone
        if not _is_names(value):
            raise self._wrong(schema, place, "required", "a list of property names")

    def _check_numbers(self, schema: dict[str, Any], place: str) -> None:
        for keyword in COUNTS:
            value = schema.get(keyword, 0)
            is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            if isinstance(value, bool) or not is_whole or not 0 <= value < 2**53:
                raise self._wrong(schema, place, keyword, "a whole number from 0")
        for keyword in BOUNDS:
            value = schema.get(keyword, 0)
            if isinstance(value, bool) and keyword.startswith("exclusive"):
                continue  # draft 4
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise self._wrong(schema, place, keyword, "a number")
        step = schema.get("multipleOf", 1)
        if isinstance(step, bool) or not isinstance(step, (int, float)) or step <= 0:
            raise self._wrong(schema, place, "multipleOf", "a number above 0")
        for low, high in PAIRS:
            if low in schema and high in schema and schema[low] > schema[high]:
                message = f"{low} {schema[low]} is above {high} {schema[high]}"
                raise self._bad(under(place, low), f"{message}; nothing can satisfy both")

    def _check_dependencies(self, schema: dict[str, Any], place: str) -> None:
        for keyword in ("dependentRequired", "dependencies"):
            value = schema.get(keyword, {})
            if not isinstance(value, dict):
                raise self._wrong(schema, place, keyword, "an object")
            for name, needed in value.items():
                is_schema = keyword == "dependencies" and isinstance(needed, (dict, bool))
                if not is_schema and not _is_names(needed):
                    spot = under(place, keyword, name)
                    raise self._bad(spot, f"must be property names, not {shortened(needed)}")

    def _wrong(self, schema: dict[str, Any], place: str, keyword: str, right: str) -> GrammarError:
        message = f"must be {right}, not {shortened(schema[keyword])}"
        return self._bad(under(place, keyword), message)

    def _bad(self, place: str, message: str) -> GrammarError:
        return fail(self.param, place, message, "invalid")


def _is_schema(value: Any) -> bool:
    return isinstance(value, (dict, bool))


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_filled_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


_SHAPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(ONE_SCHEMA, ("a schema", _is_schema)),
    **dict.fromkeys(SCHEMA_MAPS, ("an object of schemas", lambda value: isinstance(value, dict))),
    **dict.fromkeys(IN_PLACE, ("a list of schemas with at least one", _is_filled_list)),
    "prefixItems": ("a list of schemas", _is_list),
    "items": ("a schema", lambda value: isinstance(value, (dict, bool, list))),
    "enum": ("a list with at least one value", _is_filled_list),
    **dict.fromkeys(("pattern", "format", "$ref"), ("a string", lambda v: isinstance(v, str))),
    "uniqueItems": ("true or false", lambda value: isinstance(value, bool)),
}
"""What a keyword's value must be, and whether it is."""


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
