"""What is malformed in a schema, found before anything else reads it.

Promises: every schema that the root leads to, through $ref as well, holds values of the right JSON
types and no pair of bounds that contradict each other. What nothing leads to is not looked at.
Does not know: what can be enforced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eyas.core import GrammarError
from eyas.schemas.context import Context
from eyas.schemas.keywords import (
    BOUNDS,
    COUNTS,
    IN_PLACE,
    ONE_SCHEMA,
    PAIRS,
    SCHEMA_MAPS,
    TYPES,
    children,
    types_of,
)
from eyas.schemas.limits import fail, shortened, under


def check_document(context: Context) -> None:
    """Raises where a schema is malformed. A property that says `required` of itself, as in draft 3, is
    written into the list of its object."""
    found = _reachable(context)
    nodes = [node for node, _ in found if isinstance(node, dict)]
    _list_required(nodes)
    checker = _Checker(context)
    for node, place in found:
        checker.check(node, place)
    for node in nodes:
        if isinstance(node.get("required"), bool):
            del node["required"]  # it says nothing here
    context.schemas = nodes


def _reachable(context: Context) -> list[tuple[Any, str]]:
    found: list[tuple[Any, str]] = []
    waiting = [(context.root, "#")]
    seen: set[int] = set()
    for node, place in waiting:
        if id(node) in seen and isinstance(node, dict):
            continue
        seen.add(id(node))
        found.append((node, place))
        if not isinstance(node, dict):
            continue
        waiting += children(node, place)
        if isinstance(node.get("$ref"), str):
            try:
                waiting.append(context.resolve(node, place))
            except GrammarError as error:
                if error.fault != "unsupported":  # what leads out of the document is told later
                    raise
    return found


def _list_required(nodes: list[dict[str, Any]]) -> None:
    said: list[tuple[dict[str, Any], str]] = []
    for node in nodes:
        named = node.get("properties")
        for name, child in named.items() if isinstance(named, dict) else ():
            if isinstance(child, dict) and isinstance(child.get("required"), bool):
                said += [(node, name)] * child.pop("required")
    for node, name in said:
        listed = node.setdefault("required", [])
        if isinstance(listed, list):
            listed.append(name)


class _Checker:
    """Finds what is malformed in one schema object (not in those below it)."""

    def __init__(self, context: Context) -> None:
        self._param = context.param
        self._is_oldest = context.draft == 3

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
        if isinstance(value, bool) and (self._is_oldest or "object" not in types_of(schema)):
            return  # it judges objects alone, and in draft 3 what stands in one
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
        return fail(self._param, place, message, "invalid")


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
