"""The complement of a schema: the values that it does not allow, as schemas.

Promises: every value of an alternative fails the schema. If some values of a type fail the schema but
are in no alternative, `gaps` has the type and the keyword that causes it, and the caller must refuse.
Does not know: how schemas are rewritten; the caller passes a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

from eyas.schemas.context import Context
from eyas.schemas.disjoint import Assumptions, Disjointness
from eyas.schemas.formats import INEXPRESSIBLE, NATIVE, PATTERNS
from eyas.schemas.keywords import (
    ALL,
    KEYWORD_TYPES,
    SINCE,
    Object,
    Schema,
    canonical,
    common_types,
    types_of,
)
from eyas.schemas.limits import under
from eyas.schemas.numbers import least, most
from eyas.schemas.patterns import none_of

_MAX_DEPTH = 10


@dataclass(slots=True)
class Complement:
    """alternatives: schemas whose values fail the schema. gaps: type -> (path, keyword)."""

    alternatives: list[Schema] = field(default_factory=list)
    gaps: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, other: Complement) -> None:
        """Add the alternatives and gaps of another complement."""
        self.alternatives += other.alternatives
        self.gaps = {**other.gaps, **self.gaps}

    def add_gap(self, kind: str, keyword_path: str) -> None:
        """Record a gap of a keyword, unless the type has one."""
        self.gaps.setdefault(kind, (keyword_path, keyword_path.rpartition("/")[2]))

    def take_gap(self, kind: str, inner: Complement) -> None:
        """Record a gap of a part of the value, if there is one."""
        for gap in inner.gaps.values():
            self.gaps.setdefault(kind, gap)

    def schema(self) -> Schema:
        """Return one schema for all alternatives."""
        if not self.alternatives:
            return False
        return self.alternatives[0] if len(self.alternatives) == 1 else {"anyOf": self.alternatives}

    def gap_in(self, types: Iterable[str]) -> tuple[str, str] | None:
        """Return the path and keyword of a gap in these types, if there is one."""
        wide = {"number" if name == "integer" else name for name in types}
        return next((gap for name, gap in self.gaps.items() if name in wide), None)


class Complements:
    """Complements of the schemas of one document. rewritten: rewrites a schema that must hold."""

    def __init__(
        self,
        context: Context,
        disjointness: Disjointness,
        rewritten: Callable[[Schema, str], Schema],
    ) -> None:
        self._context = context
        self._disjointness = disjointness
        self._rewritten = rewritten

    def of(self, schema: Schema, path: str, assumptions: Assumptions, depth: int = 0) -> Complement:
        """Return the values that `schema` does not allow, among those that satisfy `assumptions`."""
        self._context.spend(path)
        result = Complement()
        types = assumptions.types
        if id(schema) in assumptions.holding:
            return result
        if isinstance(schema, bool):
            if not schema:
                result.alternatives.append(True if types == ALL else {"type": sorted(types)})
            return result
        if depth > _MAX_DEPTH:
            result.gaps = dict.fromkeys(ALL, (path, "$ref"))
            return result
        if "type" in schema:
            result.add(_other_types(schema, path, types))
        inner = (assumptions, depth + 1)
        for keyword in schema:
            keyword_path = under(path, keyword)
            kind = KEYWORD_TYPES.get(keyword)
            if kind is not None and not _share(types_of(schema), types, kind):
                continue  # values of this type are not allowed anyway, or not possible
            if SINCE.get(keyword, 0) > self._context.draft:
                for name in (kind,) if kind else ALL:
                    result.add_gap(name, keyword_path)
            elif keyword in _SIMPLE:
                _SIMPLE[keyword](schema, keyword_path, result)
            elif keyword in _HANDLERS:
                _HANDLERS[keyword](self, schema, keyword_path, result, inner)
            elif kind is not None or keyword in _UNKNOWN:
                for name in (kind,) if kind else ALL:
                    result.add_gap(name, keyword_path)
        if (
            "$ref" in schema
            and self._context.draft <= 7
            and _ASSERTING & (schema.keys() - {"$ref"})
        ):
            result.alternatives.clear()  # these drafts ignore the siblings of $ref
            result.gaps = dict.fromkeys(ALL, (under(path, "$ref"), "$ref"))
            _HANDLERS["$ref"](self, schema, under(path, "$ref"), result, inner)
        result.alternatives = [o for o in result.alternatives if _is_possible(o, types)]
        return result

    def _any_of(self, schema: Object, keyword_path: str, result: Complement, inner: _Inner) -> None:
        parts = [self.of(o, under(keyword_path, i), *inner) for i, o in enumerate(schema["anyOf"])]
        result.add(self._all(parts))

    def _all_of(self, schema: Object, keyword_path: str, result: Complement, inner: _Inner) -> None:
        for i, part in enumerate(schema["allOf"]):
            result.add(self.of(part, under(keyword_path, i), *inner))

    def _one_of(self, schema: Object, keyword_path: str, result: Complement, inner: _Inner) -> None:
        options = schema["oneOf"]
        result.add(
            self._all([self.of(o, under(keyword_path, i), *inner) for i, o in enumerate(options)])
        )
        for (i, one), (j, other) in combinations(enumerate(options), 2):
            both = [
                self._rewritten(one, under(keyword_path, i)),
                self._rewritten(other, under(keyword_path, j)),
            ]
            result.alternatives.append({"allOf": both})

    def _not(self, schema: Object, keyword_path: str, result: Complement, inner: _Inner) -> None:
        result.alternatives.append(self._rewritten(schema["not"], keyword_path))

    def _ref(self, schema: Object, keyword_path: str, result: Complement, inner: _Inner) -> None:
        target, path = self._context.resolve(schema, keyword_path.removesuffix("/$ref"))
        result.add(self.of(target, path, *inner))

    def _required(self, schema: Object, keyword_path: str, result: Complement, _: _Inner) -> None:
        for name in dict.fromkeys(schema["required"]):
            result.alternatives.append({"type": "object", "properties": {name: False}})

    def _properties(
        self, schema: Object, keyword_path: str, result: Complement, inner: _Inner
    ) -> None:
        assumptions, depth = inner
        for name, child in schema["properties"].items():
            known = assumptions.properties.get(name, ())
            is_possible = name in assumptions.names or not assumptions.is_closed
            if not is_possible or canonical(child) in map(canonical, known):
                continue
            inside = self._disjointness.assumptions(known, child)
            failed = self.of(child, under(keyword_path, name), inside, depth)
            if failed.alternatives:
                result.alternatives.append(_with_property(name, failed.schema()))
            result.take_gap("object", failed)

    def _additional(
        self, schema: Object, keyword_path: str, result: Complement, inner: _Inner
    ) -> None:
        assumptions, depth = inner
        known, rest = schema.get("properties", {}), schema["additionalProperties"]
        has_patterns = bool(schema.get("patternProperties"))
        if not known and not has_patterns and not assumptions.properties and assumptions.members:
            if canonical(rest) in map(canonical, assumptions.members):
                return
            if self._disjointness.are_disjoint(assumptions.members, [rest]):
                result.alternatives.append({"type": "object", "minProperties": 1})
                return
        failed = self.of(rest, keyword_path, Assumptions(), depth)
        if not failed.alternatives and not failed.gaps:
            return
        others = sorted(assumptions.names - set(known))
        if failed.alternatives and not has_patterns:
            for name in others:
                result.alternatives.append(_with_property(name, failed.schema()))
        if has_patterns or not assumptions.is_closed or (others and failed.gaps):
            result.add_gap("object", keyword_path)

    def _items(self, schema: Object, keyword_path: str, result: Complement, inner: _Inner) -> None:
        items = schema["items"]
        prefix = items if isinstance(items, list) else schema.get("prefixItems", [])
        rest = schema.get("additionalItems", True) if isinstance(items, list) else items
        if isinstance(items, list):
            self._prefix({"prefixItems": items}, keyword_path, result, inner)
        if rest is False:
            result.alternatives.append({"type": "array", "minItems": len(prefix) + 1})
            return
        known = inner[0].items
        if rest is True or not rest or canonical(rest) in map(canonical, known):
            return
        if not prefix and known and self._disjointness.are_disjoint(known, [rest]):
            result.alternatives.append({"type": "array", "minItems": 1})
            return
        result.add_gap("array", keyword_path)

    def _prefix(self, schema: Object, keyword_path: str, result: Complement, inner: _Inner) -> None:
        for i, child in enumerate(schema["prefixItems"]):
            failed = self.of(child, under(keyword_path, i), Assumptions(), inner[1])
            if failed.alternatives:
                wrong: Object = {"type": "array", "minItems": i + 1}
                result.alternatives.append({**wrong, "prefixItems": [True] * i + [failed.schema()]})
            result.take_gap("array", failed)

    def _contains(
        self, schema: Object, keyword_path: str, result: Complement, inner: _Inner
    ) -> None:
        if schema.get("minContains", 1) != 1 or "maxContains" in schema:
            result.add_gap("array", keyword_path)
            return
        failed = self.of(schema["contains"], keyword_path, Assumptions(), inner[1])
        result.alternatives.append({"type": "array", "items": failed.schema()})
        result.take_gap("array", failed)

    def _pattern(self, schema: Object, keyword_path: str, result: Complement, _: _Inner) -> None:
        found = self._context.unmatched(schema["pattern"], keyword_path)
        if found is None:
            result.add_gap("string", keyword_path)
        elif found:
            result.alternatives.append({"type": "string", "pattern": found})

    def _all(self, parts: list[Complement]) -> Complement:
        """Return the intersection of complements."""
        both = Complement()
        for part in parts:
            both.gaps = {**part.gaps, **both.gaps}
        if all(part.alternatives for part in parts):
            schemas = [part.schema() for part in parts]
            both.alternatives.append(schemas[0] if len(schemas) == 1 else {"allOf": schemas})
        return both


_Inner = tuple[Assumptions, int]


def _is_possible(alternative: Schema, types: frozenset[str]) -> bool:
    """Whether the `type` of an alternative allows one of these types."""
    if isinstance(alternative, bool) or not isinstance(alternative.get("type"), str):
        return alternative is not False
    return bool(common_types(types, {alternative["type"]}))


def _with_property(name: str, schema: Schema) -> Schema:
    return {"type": "object", "required": [name], "properties": {name: schema}}


def _share(own: frozenset[str], types: frozenset[str], kind: str) -> bool:
    """Whether both sets of types contain `kind`."""
    return bool(common_types(own, {kind}) and common_types(types, {kind}))


def _other_types(schema: Object, path: str, types: frozenset[str]) -> Complement:
    own = types_of(schema)
    result = Complement()
    others = types - own - ({"integer"} if "number" in own else set())
    if "integer" in own and "number" in others:
        others -= {"number"}
        result.gaps["number"] = (under(path, "type"), "type")
    if others:
        result.alternatives.append({"type": sorted(others)})
    return result


def _values(values: list[Any], keyword_path: str, result: Complement) -> None:
    """Add all values except these."""
    strings = [value for value in values if isinstance(value, str)]
    numbers = sorted({value for value in values if type(value) in (int, float)})
    for name, listed in (("array", list), ("object", dict)):
        if any(isinstance(value, listed) for value in values):
            result.add_gap(name, keyword_path)
        else:
            result.alternatives.append({"type": name})
    pattern = none_of(strings)
    if pattern is None:
        result.add_gap("string", keyword_path)
    else:
        result.alternatives.append({"type": "string", **({"pattern": pattern} if strings else {})})
    for low, high in pairwise((None, *numbers, None)):
        above = {} if low is None else least(low, excluded=True, integer=False)
        below = {} if high is None else most(high, excluded=True, integer=False)
        if above is not None and below is not None:
            result.alternatives.append({"type": "number", **above, **below})
    others = [v for v in (False, True, None) if not any(value is v for value in values)]
    if others:
        result.alternatives.append({"enum": others})


def _count(kind: str, bound: str, step: int) -> _Simple:
    """Return the handler of a limit on a count: its complement is `bound`, `step` away from it."""

    def write(schema: Object, keyword_path: str, result: Complement) -> None:
        limit = int(schema[keyword_path.rpartition("/")[2]]) + step
        if limit >= 0:
            result.alternatives.append({"type": kind, bound: limit})

    return write


def _beyond(excluding: str, opposite: Callable[..., Object | None]) -> _Simple:
    """Return the handler of a bound on numbers; in drafts 3 and 4 exclusion is a flag."""

    def write(schema: Object, keyword_path: str, result: Complement) -> None:
        keyword = keyword_path.rpartition("/")[2]
        if isinstance(schema[keyword], bool):
            return
        is_inclusive = schema.get(excluding) is True or keyword == excluding
        bound = opposite(schema[keyword], excluded=not is_inclusive, integer=False)
        if bound is not None:
            result.alternatives.append({"type": "number", **bound})

    return write


def _format(schema: Object, keyword_path: str, result: Complement) -> None:
    if schema["format"] in NATIVE | INEXPRESSIBLE or schema["format"] in PATTERNS:
        result.add_gap("string", keyword_path)


def _unique(schema: Object, keyword_path: str, result: Complement) -> None:
    if schema["uniqueItems"]:
        result.add_gap("array", keyword_path)


def _const(schema: Object, keyword_path: str, result: Complement) -> None:
    _values([schema["const"]], keyword_path, result)


def _enum(schema: Object, keyword_path: str, result: Complement) -> None:
    _values(schema["enum"], keyword_path, result)


_Simple = Callable[[Object, str, Complement], None]
_SIMPLE: dict[str, _Simple] = {
    "minLength": _count("string", "maxLength", -1),
    "maxLength": _count("string", "minLength", 1),
    "minItems": _count("array", "maxItems", -1),
    "maxItems": _count("array", "minItems", 1),
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
    "$ref": Complements._ref,
    "required": Complements._required,
    "properties": Complements._properties,
    "additionalProperties": Complements._additional,
    "items": Complements._items,
    "prefixItems": Complements._prefix,
    "contains": Complements._contains,
    "pattern": Complements._pattern,
    "additionalItems": lambda *_: None,  # handled with `items`
}
_ASSERTING = {"type", "if", *KEYWORD_TYPES, *_SIMPLE, *_HANDLERS}
_UNKNOWN = ("if", "$dynamicRef", "$recursiveRef", "extends", "disallow")
"""Keywords without a type whose complement is not written: a gap in every type."""
