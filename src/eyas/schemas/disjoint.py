"""Proofs that no value satisfies two schemas.

Promises: `are_disjoint` is True only if no value satisfies both; False means unknown. A keyword that
is not understood never makes schemas disjoint.
Does not know: how schemas are rewritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

from eyas.core import GrammarError
from eyas.schemas.context import Context
from eyas.schemas.keywords import ALL, Object, Schema, canonical, common_types, has_type, types_of

_MAX_CALLS = 3_000
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is known of the values that a complement is taken among.

    names: possible property names (is_closed: no others are possible). holding: ids of schemas that
    all values satisfy. properties: for each property, schemas that its value satisfies. items and
    members: schemas that every item of an array and every property's value satisfies.
    """

    types: frozenset[str] = ALL
    names: frozenset[str] = frozenset()
    is_closed: bool = False
    holding: frozenset[int] = frozenset()
    properties: dict[str, list[Schema]] = field(default_factory=dict)
    items: Sequence[Schema] = ()
    members: Sequence[Schema] = ()


@dataclass(slots=True)
class _SchemaFacts:
    """What holds for every value that satisfies several schemas together."""

    types: frozenset[str] = ALL
    values: list[Any] | None = None
    required: set[str] = field(default_factory=set)
    properties: dict[str, list[Schema]] = field(default_factory=dict)
    allowed: set[str] | None = None
    choices: list[list[Schema]] = field(default_factory=list)
    low: dict[str, float] = field(default_factory=dict)
    high: dict[str, float] = field(default_factory=dict)
    patterns: list[str] = field(default_factory=list)
    first_item: list[Schema] = field(default_factory=list)
    items: list[Schema] = field(default_factory=list)
    members: list[Schema] = field(default_factory=list)
    holding: set[int] = field(default_factory=set)


class Disjointness:
    """Proofs that schemas share no value, for one document."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._calls = _MAX_CALLS
        self._known: dict[tuple[int, ...], tuple[list[Schema], _SchemaFacts]] = {}

    def are_disjoint(self, one: Sequence[Schema], other: Sequence[Schema]) -> bool:
        """Whether certainly no value satisfies all of `one` and all of `other`."""
        return self._are_apart(list(one), list(other), _MAX_DEPTH)

    def all_told_apart(self, options: Sequence[Schema]) -> bool:
        """Whether all options list their values, or require one property whose values they list, and
        these values differ from option to option: a fast test for many options."""
        if _share_none(self.values([option]) for option in options):
            return True
        if not all(self.types([option]) == {"object"} for option in options):
            return False
        shared = set.intersection(*(self.names([option])[2] for option in options))
        return any(
            _share_none(
                self.values(self._facts([option]).properties.get(name, [True]))
                for option in options
            )
            for name in sorted(shared)
        )

    def types(self, schemas: Sequence[Schema]) -> frozenset[str]:
        """Return types that values of all these schemas can have."""
        return self._facts(list(schemas)).types

    def values(self, schemas: Sequence[Schema]) -> list[Any] | None:
        """Return all values that can satisfy these schemas if they are listed, else None."""
        facts = self._facts(list(schemas))
        if facts.values is not None:
            return [value for value in facts.values if has_type(value, facts.types)]
        if facts.types <= {"boolean", "null"}:
            listed = {"boolean": [False, True], "null": [None]}
            return [value for name in sorted(facts.types) for value in listed[name]]
        return None

    def names(self, schemas: Sequence[Schema]) -> tuple[set[str], set[str] | None, set[str]]:
        """Return the property names in these schemas, the names that their objects are limited to
        (None: no limit), and the required names."""
        facts = self._facts(list(schemas))
        return set(facts.properties) | facts.required, facts.allowed, facts.required

    def assumptions(self, schemas: Sequence[Schema], mentioning: Schema) -> Assumptions:
        """Return what holds for values that satisfy all of `schemas`. If these do not limit property
        names, the names in `mentioning` are possible too."""
        facts = self._facts(list(schemas))
        if facts.allowed is not None:
            names = facts.allowed
        else:
            names = set(facts.properties) | facts.required | self.names([mentioning])[0]
        return Assumptions(
            facts.types,
            frozenset(names),
            facts.allowed is not None,
            frozenset(facts.holding),
            facts.properties,
            facts.items,
            facts.members,
        )

    def _are_apart(self, one: list[Schema], other: list[Schema], depth: int) -> bool:
        self._calls -= 1
        if depth == 0 or self._calls < 0:
            return False
        if any(schema is False for schema in (*one, *other)):
            return True
        a, b = self._facts(one), self._facts(other)
        types = common_types(a.types, b.types)
        if not types or self._values_apart(a, b):
            return True
        if all(self._of_type_apart(name, a, b, depth) for name in types):
            return True
        for left, right in ((a, other), (b, one)):
            rest = one if left is a else other
            for options in left.choices:
                if len(options) <= 64 and all(
                    self._are_apart([option, *_without(rest, options)], right, depth - 1)
                    for option in options
                ):
                    return True
        return False

    def _values_apart(self, a: _SchemaFacts, b: _SchemaFacts) -> bool:
        for listed, facts in ((a, b), (b, a)):
            if listed.values is None:
                continue
            fitting = [value for value in listed.values if has_type(value, listed.types)]
            fitting = [value for value in fitting if has_type(value, facts.types)]
            if facts.values is not None:
                keys = {canonical(value) for value in facts.values}
                fitting = [value for value in fitting if canonical(value) in keys]
            for pattern in facts.patterns:
                matches = partial(self._context.may_match, pattern)
                fitting = [v for v in fitting if not isinstance(v, str) or matches(v)]
            if not fitting:
                return True
        return False

    def _of_type_apart(self, name: str, a: _SchemaFacts, b: _SchemaFacts, depth: int) -> bool:
        """Whether certainly no value of this type satisfies both."""
        name = "number" if name == "integer" else name
        bound = _max_bound(name, a, b)
        if bound is not None and bound[0] > bound[1]:
            return True
        if name == "array":
            least = max(a.low.get(name, 0), b.low.get(name, 0))
            return least > 0 and self._are_apart(
                a.first_item or [True], b.first_item or [True], depth - 1
            )
        if name == "string":
            pairs = product(a.patterns, b.patterns)
            return any(self._context.are_patterns_apart(*pair) for pair in pairs)
        if name != "object":
            return False
        for key in sorted(a.required | b.required):
            if any(f.allowed is not None and key not in f.allowed for f in (a, b)):
                return True
            left, right = a.properties.get(key), b.properties.get(key)
            if any(schemas and False in schemas for schemas in (left, right)):
                return True
            if left and right and self._are_apart(left, right, depth - 1):
                return True
        return False

    def _facts(self, schemas: list[Schema]) -> _SchemaFacts:
        """Collect the keywords that must all hold, through $ref and allOf."""
        key = tuple(map(id, schemas))
        if key in self._known:
            return self._known[key][1]
        facts = _SchemaFacts()
        self._known[key] = (schemas, facts)
        seen: set[int] = set()
        waiting = list(schemas)
        while waiting:
            schema = waiting.pop()
            if schema is False:
                facts.types = frozenset()
            if not isinstance(schema, dict) or id(schema) in seen or len(seen) > 64:
                continue
            seen.add(id(schema))
            facts.holding.add(id(schema))
            if self._context.draft > 7 or "$ref" not in schema:  # before, its siblings are ignored
                self._read(schema, facts)
                if isinstance(schema.get("allOf"), list):
                    waiting.extend(schema["allOf"])
            if isinstance(schema.get("$ref"), str):
                try:
                    waiting.append(self._context.resolve(schema, "#")[0])
                except GrammarError:
                    continue  # raised again where the schema is rewritten
        return facts

    def _read(self, schema: Object, facts: _SchemaFacts) -> None:
        types = types_of(schema)
        facts.types = common_types(facts.types, types)
        for values in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
            if isinstance(values, list):
                keys = {canonical(value) for value in values}
                known = values if facts.values is None else facts.values
                facts.values = [value for value in known if canonical(value) in keys]
        if isinstance(schema.get("pattern"), str):
            facts.patterns.append(schema["pattern"])
        if isinstance(schema.get("required"), list):
            facts.required.update(schema["required"])
        properties = schema.get("properties", {})
        for name, child in properties.items():
            facts.properties.setdefault(name, []).append(child)
        if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
            names = set(properties)
            facts.allowed = names if facts.allowed is None else facts.allowed & names
        if (
            "additionalProperties" in schema
            and not properties
            and not schema.get("patternProperties")
        ):
            facts.members.append(schema["additionalProperties"])
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list):
                facts.choices.append(schema[keyword])
        for name, low, high in (
            ("number", "minimum", "maximum"),
            ("string", "minLength", "maxLength"),
            ("array", "minItems", "maxItems"),
            ("object", "minProperties", "maxProperties"),
        ):
            if low in schema:
                facts.low[name] = max(schema[low], facts.low.get(name, float("-inf")))
            if high in schema:
                facts.high[name] = min(schema[high], facts.high.get(name, float("inf")))
        prefix = schema.get("prefixItems") or schema.get("items")
        first = prefix[0] if isinstance(prefix, list) and prefix else schema.get("items")
        if isinstance(first, (dict, bool)):
            facts.first_item.append(first)
        if isinstance(schema.get("items"), (dict, bool)) and "prefixItems" not in schema:
            facts.items.append(schema["items"])


def _share_none(lists: Iterable[list[Any] | None]) -> bool:
    """Whether no value is in two of the lists. False if one is empty or unknown."""
    seen: set[str] = set()
    for values in lists:
        own = {canonical(value) for value in values or ()}
        if not own or own & seen:
            return False
        seen |= own
    return True


def _max_bound(name: str, a: _SchemaFacts, b: _SchemaFacts) -> tuple[float, float] | None:
    lows = [facts.low[name] for facts in (a, b) if name in facts.low]
    highs = [facts.high[name] for facts in (a, b) if name in facts.high]
    return (max(lows), min(highs)) if lows and highs else None


def _without(schemas: list[Schema], options: list[Schema]) -> list[Schema]:
    """Return the schemas without the choice between `options`."""
    kept: list[Schema] = []
    for schema in schemas:
        if isinstance(schema, dict):
            schema = {k: v for k, v in schema.items() if v is not options}
        kept.append(schema)
    return kept
