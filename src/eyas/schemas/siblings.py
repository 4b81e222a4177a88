"""The property names in schemas that apply to the same object ("siblings").

The backend merges the objects of schemas that hold together. It counts the properties of the merged
object only if none of the listed properties is optional, and its patterns must not overlap.

Promises: schemas that may hold together are treated as holding together, through $ref and every
applicator. If the search would take too long, the result is empty and the backend decides.
Does not know: how schemas are rewritten.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from eyas.core import GrammarError
from eyas.schemas.context import Context
from eyas.schemas.keywords import Object, canonical, types_of
from eyas.schemas.patterns import is_universal, listed_names

_MAX_STEPS = 10_000
_ASKING = frozenset(("minProperties", "maxProperties", "patternProperties", "propertyNames"))
"""Keywords whose rewriting needs the names of siblings."""


@dataclass(frozen=True, slots=True)
class ObjectNames:
    """The property names in one or more schemas.

    names: listed properties that are not false. optional: the listed properties that are not
    required. patterns: for each schema with patterns for names, one canonical text of all of them.
    """

    names: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()

    def __or__(self, other: ObjectNames) -> ObjectNames:
        return ObjectNames(
            self.names | other.names, self.optional | other.optional, self.patterns | other.patterns
        )


class Siblings:
    """The names in the siblings of each schema of one document."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._steps_left = _MAX_STEPS
        self._within: dict[int, ObjectNames] = {}
        self._outside: dict[int, ObjectNames] = {}
        if any(_ASKING & node.keys() for node in context.schemas):
            self._propagate()

    def names(self, schema: Object) -> ObjectNames:
        """Return the names in the siblings of a schema, its own keywords left out."""
        parts, options = self._applied(schema)
        names = self._outside.get(id(schema), ObjectNames())
        for part in (*parts, *options):
            names |= self._names_within(part)
        return names if self._steps_left > 0 else ObjectNames()

    def refine(self, schema: Object) -> bool:
        """Whether schemas that a schema applies to the same object name some of its `properties`."""
        own = schema.get("properties", {}).keys()
        parts, options = self._applied(schema) if own else ([], [])
        return any(own & self._names_within(part).names for part in (*parts, *options))

    def have_other_patterns(self, schema: Object) -> bool:
        """Whether siblings have patterns for names that differ from those of the schema."""
        return bool(self.names(schema).patterns - _own_names(schema).patterns)

    def _propagate(self) -> None:
        """Pass names from schemas down to those that they apply, until nothing changes."""
        waiting = [(node, ObjectNames()) for node in self._context.schemas]
        while waiting and self._steps_left > 0:
            node, outside = waiting.pop()
            self._steps_left -= 1
            known = self._outside.get(id(node))
            outside = outside if known is None else known | outside
            if outside == known:
                continue
            self._outside[id(node)] = outside
            parts, options = self._applied(node)
            within = [self._names_within(part) for part in parts]
            own = outside | _own_names(node)
            for i, part in enumerate(parts):
                others = own
                for names in (*within[:i], *within[i + 1 :], *map(self._names_within, options)):
                    others |= names
                waiting.append((part, others))
            for names in within:
                own |= names
            waiting += [(option, own) for option in options]

    def _names_within(self, schema: Object) -> ObjectNames:
        """Return the names in a schema and in all schemas that it applies to the same object."""
        if id(schema) not in self._within:
            names, seen, waiting = ObjectNames(), {id(schema)}, [schema]
            while waiting and self._steps_left > 0:
                node = waiting.pop()
                self._steps_left -= 1
                names |= _own_names(node)
                parts, options = self._applied(node)
                for child in (*parts, *options):
                    if id(child) not in seen:
                        seen.add(id(child))
                        waiting.append(child)
            self._within[id(schema)] = names
        return self._within[id(schema)]

    def _applied(self, schema: Object) -> tuple[list[Object], list[Object]]:
        """Return the schemas that a schema applies to the same value: those that may all hold, and
        the options of its choices. Names under `not` need no entry: its complement requires or
        forbids them."""
        parts = [schema.get(keyword) for keyword in ("if", "then", "else")]
        parts += schema.get("allOf", ())
        for keyword in ("dependentSchemas", "dependencies"):
            parts += schema.get(keyword, {}).values()
        if "$ref" in schema:
            with suppress(GrammarError):  # raised again where the reference is rewritten
                parts.append(self._context.resolve(schema, "#")[0])
        options = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
        return _open_objects(parts), _open_objects(options)


def _open_objects(schemas: list[Any]) -> list[Object]:
    """Return the schemas that allow objects without listing them as values."""
    return [
        schema
        for schema in schemas
        if isinstance(schema, dict)
        and "enum" not in schema
        and "const" not in schema
        and "object" in types_of(schema)
    ]


def _own_names(schema: Object) -> ObjectNames:
    """Return the names in the schema's own keywords."""
    listed = {name for name, child in schema.get("properties", {}).items() if child is not False}
    patterns = [p for p in schema.get("patternProperties", ()) if not is_universal(p)]
    if len(patterns) > 1:  # patterns that list names are rewritten as properties
        listed.update(name for pattern in patterns for name in listed_names(pattern) or ())
        patterns = [pattern for pattern in patterns if listed_names(pattern) is None]
    rule = schema.get("propertyNames", True)
    if isinstance(rule, dict):
        values = [*rule.get("enum", ()), *([rule["const"]] if "const" in rule else ())]
        listed.update(name for name in values if isinstance(name, str))
        if not values and rule:
            patterns.append(canonical(rule))
    required = frozenset(schema.get("required", ()))
    text = frozenset([canonical(sorted(patterns))]) if patterns else frozenset()
    return ObjectNames(frozenset(listed) | required, frozenset(listed) - required, text)
