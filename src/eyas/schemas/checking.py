"""The check for malformed schemas, made before any other code reads them.

Promises: every schema reachable from the root, through $ref as well, has values of the right JSON
types and no pair of contradicting bounds. Unreachable definitions are not checked.
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
    MAX_COUNT,
    ONE_SCHEMA,
    PAIRS,
    SCHEMA_MAPS,
    TYPES,
    Object,
    children,
    types_of,
)
from eyas.schemas.limits import fail, shortened, under


def check_document(context: Context) -> None:
    """Raise GrammarError for a malformed schema. Write draft 3's forms as later drafts do: `"required":
    true` of a property as an entry of its object's list, a dependency on one name as a list."""
    schemas = _reachable(context)
    nodes = [node for node, _ in schemas if isinstance(node, dict)]
    if context.draft == 3:
        _list_dependencies(nodes)
    _list_required(nodes)
    checker = _Checker(context)
    for node, path in schemas:
        checker.check(node, path)
    for node in nodes:
        if isinstance(node.get("required"), bool):
            del node["required"]  # a boolean means nothing outside of properties
    context.schemas = nodes


def _reachable(context: Context) -> list[tuple[Any, str]]:
    """Return every schema reachable from the root once, with its path."""
    found: list[tuple[Any, str]] = []
    waiting = [(context.root, "#")]
    seen: set[int] = set()
    for node, path in waiting:
        if id(node) in seen and isinstance(node, dict):
            continue
        seen.add(id(node))
        found.append((node, path))
        if not isinstance(node, dict):
            continue
        waiting += children(node, path)
        if isinstance(node.get("$ref"), str):
            try:
                waiting.append(context.resolve(node, path))
            except GrammarError as error:
                if error.fault != "unsupported":  # refused where the reference is rewritten
                    raise
    return found


def _list_required(nodes: list[Object]) -> None:
    marked: list[tuple[Object, str]] = []
    for node in nodes:
        named = node.get("properties")
        for name, child in named.items() if isinstance(named, dict) else ():
            if isinstance(child, dict) and isinstance(child.get("required"), bool):
                marked += [(node, name)] * child.pop("required")
    for node, name in marked:
        listed = node.setdefault("required", [])
        if isinstance(listed, list):
            listed.append(name)


def _list_dependencies(nodes: list[Object]) -> None:
    for node in nodes:
        named = node.get("dependencies")
        if isinstance(named, dict):
            lists = {name: [needed] for name, needed in named.items() if isinstance(needed, str)}
            named.update(lists)


class _Checker:
    """Checks one schema object, without those below it."""

    def __init__(self, context: Context) -> None:
        self._is_lenient = context.lenient
        self._param = context.param
        self._is_oldest = context.draft == 3

    def check(self, schema: Any, path: str) -> None:
        """Raise GrammarError (invalid) for a keyword whose value has the wrong form."""
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise self._bad(path, f"a schema is an object or a boolean, not {shortened(schema)}")
        has_counts = has_bounds = False
        for keyword, value in schema.items():
            if keyword in _SHAPES:
                right, is_right = _SHAPES[keyword]
                if not is_right(value):
                    raise self._wrong(schema, path, keyword, right)
            elif keyword == "type":
                self._check_type(value, under(path, "type"))
            elif keyword == "required":
                self._check_required(schema, path)
            elif keyword in ("dependentRequired", "dependencies"):
                self._check_dependencies(schema, path)
            has_counts = has_counts or keyword in COUNTS
            has_bounds = has_bounds or keyword in BOUNDS or keyword == "multipleOf"
        if has_counts or has_bounds:
            self._check_numbers(schema, path)

    def _check_type(self, value: Any, path: str) -> None:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names:
            raise self._bad(path, f"must name a type, not {shortened(value)}")
        for name in names:
            if not isinstance(name, str) or name not in TYPES:
                message = f"{shortened(name)} is not a type; use one of {', '.join(TYPES)}"
                raise self._bad(path, message)

    def _check_required(self, schema: Object, path: str) -> None:
        value = schema.get("required", [])
        if isinstance(value, bool) and (self._is_oldest or "object" not in types_of(schema)):
            return  # without effect on other types; in draft 3 moved to the object's list
        if not _is_names(value):
            raise self._wrong(schema, path, "required", "a list of property names")

    def _check_numbers(self, schema: Object, path: str) -> None:
        for keyword in COUNTS:
            value = schema.get(keyword, 0)
            is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            if isinstance(value, bool) or not is_whole or value < 0:
                raise self._wrong(schema, path, keyword, "a whole number from 0")
            if keyword.startswith("min") and value > MAX_COUNT and not self._is_lenient:
                message = f"{shortened(value)} is more than any output has; lower it"
                raise fail(self._param, under(path, keyword), message, "unsupported")
        for keyword in BOUNDS:
            value = schema.get(keyword, 0)
            if isinstance(value, bool) and keyword.startswith("exclusive"):
                continue  # draft 4
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise self._wrong(schema, path, keyword, "a number")
        step = schema.get("multipleOf", 1)
        if isinstance(step, bool) or not isinstance(step, (int, float)) or step <= 0:
            raise self._wrong(schema, path, "multipleOf", "a number above 0")
        for low, high in PAIRS:
            if low in schema and high in schema and schema[low] > schema[high]:
                message = f"{low} {schema[low]} is above {high} {schema[high]}"
                raise self._bad(under(path, low), f"{message}; nothing can satisfy both")

    def _check_dependencies(self, schema: Object, path: str) -> None:
        for keyword in ("dependentRequired", "dependencies"):
            value = schema.get(keyword, {})
            if not isinstance(value, dict):
                raise self._wrong(schema, path, keyword, "an object")
            for name, needed in value.items():
                is_schema = keyword == "dependencies" and isinstance(needed, (dict, bool))
                if not is_schema and not _is_names(needed):
                    keyword_path = under(path, keyword, name)
                    raise self._bad(
                        keyword_path, f"must be property names, not {shortened(needed)}"
                    )

    def _wrong(self, schema: Object, path: str, keyword: str, right: str) -> GrammarError:
        message = f"must be {right}, not {shortened(schema[keyword])}"
        return self._bad(under(path, keyword), message)

    def _bad(self, path: str, message: str) -> GrammarError:
        return fail(self._param, path, message, "invalid")


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
"""For each keyword the required form of its value, in words and as a predicate."""


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
