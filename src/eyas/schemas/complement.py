"""What a schema does not allow, as schemas.

Promises: every value of an alternative fails the schema. `gaps` names the types of which some values
fail the schema and stand in no alternative, with the keyword that is to blame, for callers to refuse.
Does not know: how schemas that must hold are rewritten; it asks its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

from eyas.schemas.context import Context
from eyas.schemas.formats import INEXPRESSIBLE, NATIVE, PATTERNS
from eyas.schemas.keywords import (
    ALL,
    KEYWORD_TYPES,
    SINCE,
    Schema,
    canonical,
    common_types,
    types_of,
)
from eyas.schemas.limits import under
from eyas.schemas.numbers import least, most
from eyas.schemas.patterns import none_of

_MAX_DEPTH = 10


@dataclass(frozen=True, slots=True)
class Around:
    """What is known of the values in question. names: property names that can come (is_closed: and no
    other can). holding: ids of schemas that they all satisfy; properties: schemas that a property's
    value satisfies."""

    types: frozenset[str] = ALL
    names: frozenset[str] = frozenset()
    is_closed: bool = False
    holding: frozenset[int] = frozenset()
    properties: dict[str, list[Schema]] = field(default_factory=dict)


@dataclass(slots=True)
class Complement:
    """alternatives: a value of any of them fails the schema; gaps: type -> (place, keyword)."""

    alternatives: list[Schema] = field(default_factory=list)
    gaps: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, other: Complement) -> None:
        """The alternatives and gaps of both."""
        self.alternatives += other.alternatives
        self.gaps = {**other.gaps, **self.gaps}

    def schema(self) -> Schema:
        """One schema for all alternatives."""
        if not self.alternatives:
            return False
        return self.alternatives[0] if len(self.alternatives) == 1 else {"anyOf": self.alternatives}

    def gap_in(self, types: Iterable[str]) -> tuple[str, str] | None:
        """The place and keyword to blame where values of these types are missing."""
        wide = {"number" if name == "integer" else name for name in types}
        blamed = [gap for name, gap in self.gaps.items() if name in wide]
        return blamed[0] if blamed else None


class Complements:
    """Complements of the schemas of one document.

    rewritten: what a schema that must hold becomes.
    """

    def __init__(self, context: Context, rewritten: Callable[[Schema, str], Schema]) -> None:
        self._context = context
        self._rewritten = rewritten

    def of(self, schema: Schema, place: str, around: Around, depth: int = 0) -> Complement:
        """What `schema` does not allow, among values that `around` allows."""
        self._context.spend(place)
        found = Complement()
        types = around.types
        if id(schema) in around.holding:
            return found
        if isinstance(schema, bool):
            if not schema:
                found.alternatives.append(True if types == ALL else {"type": sorted(types)})
            return found
        if depth > _MAX_DEPTH:
            found.gaps = dict.fromkeys(ALL, (place, "$ref"))
            return found
        if "type" in schema:
            found.add(_other_types(schema, place, types))
        inner = (around, depth + 1)
        for keyword in schema:
            spot = under(place, keyword)
            kind = KEYWORD_TYPES.get(keyword)
            if kind is not None and not _meet(types_of(schema), types, kind):
                continue  # values of that type fail for their type already, or cannot come
            if SINCE.get(keyword, 0) > self._context.draft:
                for name in (kind,) if kind else ALL:
                    found.gaps.setdefault(name, (spot, keyword))
            elif keyword in _SIMPLE:
                _SIMPLE[keyword](schema, spot, found)
            elif keyword in _HANDLERS:
                _HANDLERS[keyword](self, schema, spot, found, inner)
            elif kind is not None or keyword in _UNKNOWN:
                for name in (kind,) if kind else ALL:
                    found.gaps.setdefault(name, (spot, keyword))
        if (
            "$ref" in schema
            and self._context.draft <= 7
            and _ASSERTING & (schema.keys() - {"$ref"})
        ):
            found.alternatives.clear()  # such drafts ignore what stands beside a reference
            found.gaps = dict.fromkeys(ALL, (under(place, "$ref"), "$ref"))
            _HANDLERS["$ref"](self, schema, under(place, "$ref"), found, inner)
        found.alternatives = [o for o in found.alternatives if _can_come(o, types)]
        return found

    def _any_of(self, schema: dict[str, Any], spot: str, found: Complement, inner: _Inner) -> None:
        parts = [self.of(o, under(spot, i), *inner) for i, o in enumerate(schema["anyOf"])]
        found.add(self._all(parts))

    def _all_of(self, schema: dict[str, Any], spot: str, found: Complement, inner: _Inner) -> None:
        for i, part in enumerate(schema["allOf"]):
            found.add(self.of(part, under(spot, i), *inner))

    def _one_of(self, schema: dict[str, Any], spot: str, found: Complement, inner: _Inner) -> None:
        options = schema["oneOf"]
        found.add(self._all([self.of(o, under(spot, i), *inner) for i, o in enumerate(options)]))
        for (i, one), (j, other) in combinations(enumerate(options), 2):
            both = [self._rewritten(one, under(spot, i)), self._rewritten(other, under(spot, j))]
            found.alternatives.append({"allOf": both})

    def _not(self, schema: dict[str, Any], spot: str, found: Complement, inner: _Inner) -> None:
        found.alternatives.append(self._rewritten(schema["not"], spot))

    def _if(self, schema: dict[str, Any], spot: str, found: Complement, inner: _Inner) -> None:
        condition = self._rewritten(schema["if"], spot)
        place = spot.removesuffix("/if")
        otherwise = self.of(schema["if"], spot, *inner)
        for keyword, held in (("then", condition), ("else", otherwise.schema())):
            if keyword in schema:
                failed = self.of(schema[keyword], under(place, keyword), *inner)
                if failed.alternatives:
                    found.alternatives.append({"allOf": [held, failed.schema()]})
                found.gaps = {**failed.gaps, **found.gaps}
        if "else" in schema:
            found.gaps = {**otherwise.gaps, **found.gaps}

    def _ref(self, schema: dict[str, Any], spot: str, found: Complement, inner: _Inner) -> None:
        target, place = self._context.resolve(schema, spot.removesuffix("/$ref"))
        found.add(self.of(target, place, *inner))

    def _required(self, schema: dict[str, Any], spot: str, found: Complement, _: _Inner) -> None:
        for name in dict.fromkeys(schema["required"]):
            found.alternatives.append({"type": "object", "properties": {name: False}})

    def _properties(
        self, schema: dict[str, Any], spot: str, found: Complement, inner: _Inner
    ) -> None:
        around, depth = inner
        for name, child in schema["properties"].items():
            known = map(canonical, around.properties.get(name, ()))
            if canonical(child) in known:
                continue
            failed = self.of(child, under(spot, name), Around(), depth)
            if failed.alternatives:
                found.alternatives.append(_with_property(name, failed.schema()))
            if failed.gaps:
                found.gaps.setdefault("object", next(iter(failed.gaps.values())))

    def _additional(
        self, schema: dict[str, Any], spot: str, found: Complement, inner: _Inner
    ) -> None:
        around, depth = inner
        known = schema.get("properties", {})
        has_patterns = bool(schema.get("patternProperties"))
        failed = self.of(schema["additionalProperties"], spot, Around(), depth)
        if not failed.alternatives and not failed.gaps:
            return
        others = sorted(around.names - set(known))
        if failed.alternatives and not has_patterns:
            for name in others:
                found.alternatives.append(_with_property(name, failed.schema()))
        if has_patterns or not around.is_closed or (others and failed.gaps):
            found.gaps.setdefault("object", (spot, "additionalProperties"))

    def _items(self, schema: dict[str, Any], spot: str, found: Complement, inner: _Inner) -> None:
        items = schema["items"]
        prefix = items if isinstance(items, list) else schema.get("prefixItems", [])
        rest = schema.get("additionalItems", True) if isinstance(items, list) else items
        if isinstance(items, list):
            self._prefix({"prefixItems": items}, spot, found, inner)
        if rest is False:
            found.alternatives.append({"type": "array", "minItems": len(prefix) + 1})
        elif rest is not True and rest:
            found.gaps.setdefault("array", (spot, "items"))

    def _prefix(self, schema: dict[str, Any], spot: str, found: Complement, inner: _Inner) -> None:
        for i, child in enumerate(schema["prefixItems"]):
            failed = self.of(child, under(spot, i), Around(), inner[1])
            if failed.alternatives:
                wrong: dict[str, Any] = {"type": "array", "minItems": i + 1}
                found.alternatives.append({**wrong, "prefixItems": [True] * i + [failed.schema()]})
            if failed.gaps:
                found.gaps.setdefault("array", next(iter(failed.gaps.values())))

    def _contains(
        self, schema: dict[str, Any], spot: str, found: Complement, inner: _Inner
    ) -> None:
        if schema.get("minContains", 1) != 1 or "maxContains" in schema:
            found.gaps.setdefault("array", (spot, "contains"))
            return
        failed = self.of(schema["contains"], spot, Around(), inner[1])
        found.alternatives.append({"type": "array", "items": failed.schema()})
        if failed.gaps:
            found.gaps.setdefault("array", next(iter(failed.gaps.values())))

    def _dependent(
        self, schema: dict[str, Any], spot: str, found: Complement, inner: _Inner
    ) -> None:
        for name, needed in schema["dependentRequired"].items():
            for other in needed:
                found.alternatives.append(
                    {"type": "object", "required": [name], "properties": {other: False}}
                )

    def _all(self, parts: list[Complement]) -> Complement:
        """What is in every one of them."""
        both = Complement()
        for part in parts:
            both.gaps = {**part.gaps, **both.gaps}
        if all(part.alternatives for part in parts):
            schemas = [part.schema() for part in parts]
            both.alternatives.append(schemas[0] if len(schemas) == 1 else {"allOf": schemas})
        return both


_Inner = tuple[Around, int]


def _can_come(alternative: Schema, types: frozenset[str]) -> bool:
    """Could a value of these types satisfy it, as far as its own `type` says?"""
    if isinstance(alternative, bool) or not isinstance(alternative.get("type"), str):
        return alternative is not False
    return bool(common_types(types, {alternative["type"]}))


def _with_property(name: str, schema: Schema) -> Schema:
    return {"type": "object", "required": [name], "properties": {name: schema}}


def _meet(own: frozenset[str], types: frozenset[str], kind: str) -> bool:
    """Are values of `kind` among both?"""
    return bool(common_types(own, {kind}) and common_types(types, {kind}))


def _other_types(schema: dict[str, Any], place: str, types: frozenset[str]) -> Complement:
    own = types_of(schema)
    found = Complement()
    others = types - own - ({"integer"} if "number" in own else set())
    if "integer" in own and "number" in others:
        others -= {"number"}
        found.gaps["number"] = (under(place, "type"), "type")
    if others:
        found.alternatives.append({"type": sorted(others)})
    return found


def _values(values: list[Any], spot: str, found: Complement) -> None:
    """All values but these."""
    strings = [value for value in values if isinstance(value, str)]
    numbers = sorted(
        {
            value
            for value in values
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
    )
    for name, listed in (("array", list), ("object", dict)):
        if any(isinstance(value, listed) for value in values):
            found.gaps.setdefault(name, (spot, spot.rpartition("/")[2]))
        else:
            found.alternatives.append({"type": name})
    pattern = none_of(strings) if strings else None
    if not strings:
        found.alternatives.append({"type": "string"})
    elif pattern is None:
        found.gaps.setdefault("string", (spot, spot.rpartition("/")[2]))
    else:
        found.alternatives.append({"type": "string", "pattern": pattern})
    if not numbers:
        found.alternatives.append({"type": "number"})
    else:
        for low, high in pairwise((None, *numbers, None)):
            above = {} if low is None else least(low, excluded=True, integer=False)
            below = {} if high is None else most(high, excluded=True, integer=False)
            if above is not None and below is not None:
                found.alternatives.append({"type": "number", **above, **below})
    others = [v for v in (False, True, None) if not any(value is v for value in values)]
    if others:
        found.alternatives.append({"enum": others})


def _below(kind: str, bound: str) -> _Simple:
    """The complement of a lower limit on a count."""

    def write(schema: dict[str, Any], spot: str, found: Complement) -> None:
        limit = schema[spot.rpartition("/")[2]]
        if limit > 0:
            found.alternatives.append({"type": kind, bound: int(limit) - 1})

    return write


def _above(kind: str, bound: str) -> _Simple:
    """The complement of an upper limit on a count."""

    def write(schema: dict[str, Any], spot: str, found: Complement) -> None:
        limit = schema[spot.rpartition("/")[2]]
        found.alternatives.append({"type": kind, bound: int(limit) + 1})

    return write


def _beyond(excluding: str, opposite: Callable[..., dict[str, Any] | None]) -> _Simple:
    """The complement of a bound on numbers; drafts 3 and 4 have exclusion as a flag beside it."""

    def write(schema: dict[str, Any], spot: str, found: Complement) -> None:
        keyword = spot.rpartition("/")[2]
        if isinstance(schema[keyword], bool):
            return
        is_inclusive = schema.get(excluding) is True or keyword == excluding
        bound = opposite(schema[keyword], excluded=not is_inclusive, integer=False)
        if bound is not None:
            found.alternatives.append({"type": "number", **bound})

    return write


def _format(schema: dict[str, Any], spot: str, found: Complement) -> None:
    if schema["format"] in NATIVE | INEXPRESSIBLE or schema["format"] in PATTERNS:
        found.gaps.setdefault("string", (spot, "format"))


def _unique(schema: dict[str, Any], spot: str, found: Complement) -> None:
    if schema["uniqueItems"]:
        found.gaps.setdefault("array", (spot, "uniqueItems"))


def _const(schema: dict[str, Any], spot: str, found: Complement) -> None:
    _values([schema["const"]], spot, found)


def _enum(schema: dict[str, Any], spot: str, found: Complement) -> None:
    _values(schema["enum"], spot, found)


_Simple = Callable[[dict[str, Any], str, Complement], None]
_SIMPLE: dict[str, _Simple] = {
    "minLength": _below("string", "maxLength"),
    "maxLength": _above("string", "minLength"),
    "minItems": _below("array", "maxItems"),
    "maxItems": _above("array", "minItems"),
    "minimum": _beyond("exclusiveMinimum", most),
    "exclusiveMinimum": _beyond("exclusiveMinimum", most),
    "maximum": _beyond("exclusiveMaximum", least),
    "exclusiveMaximum": _beyond("exclusiveMaximum", least),
    "format": _format,
    "uniqueItems": _unique,
    "const": _const,
    "enum": _enum,
}
_HANDLERS: dict[str, Callable[..., None]] = {
    "anyOf": Complements._any_of,
    "allOf": Complements._all_of,
    "oneOf": Complements._one_of,
    "not": Complements._not,
    "if": Complements._if,
    "$ref": Complements._ref,
    "required": Complements._required,
    "properties": Complements._properties,
    "additionalProperties": Complements._additional,
    "items": Complements._items,
    "prefixItems": Complements._prefix,
    "contains": Complements._contains,
    "dependentRequired": Complements._dependent,
    "additionalItems": lambda *_: None,  # `items` has said it already
}
_ASSERTING = {"type", *KEYWORD_TYPES, *_SIMPLE, *_HANDLERS}
_UNKNOWN = ("$dynamicRef", "$recursiveRef", "extends", "disallow")
