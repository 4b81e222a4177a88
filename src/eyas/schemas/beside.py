"""What other schemas that judge the same object say of its names.

The backend joins objects that must hold together into one. It counts the properties of that only where
none of the listed ones is optional, and its patterns must not overlap.

Promises: what may hold together is taken to hold together, through $ref and every applicator; where it
would take too long to find out, nothing is said, and the backend has the last word.
Does not know: how schemas are rewritten.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from eyas.core import GrammarError
from eyas.schemas.context import Context
from eyas.schemas.keywords import canonical, types_of
from eyas.schemas.patterns import is_universal, listed_names

_MAX_STEPS = 10_000
_ASKING = frozenset(("minProperties", "maxProperties", "patternProperties", "propertyNames"))


@dataclass(frozen=True, slots=True)
class Said:
    """names: that are listed, and may come. optional: those that need not. patterns: one text for the
    patterns of each schema that has some."""

    names: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()

    def __or__(self, other: Said) -> Said:
        return Said(
            self.names | other.names, self.optional | other.optional, self.patterns | other.patterns
        )


class Beside:
    """What is said beside the schemas of one document."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._steps_left = _MAX_STEPS
        self._known: dict[int, Said] = {}
        self._above: dict[int, Said] = {}
        if any(_ASKING & node.keys() for node in context.schemas):
            self._follow()

    def of(self, schema: dict[str, Any]) -> Said:
        """What others say."""
        parts, options = self._in_place(schema)
        found = self._above.get(id(schema), Said())
        for part in (*parts, *options):
            found |= self._said(part)
        return found if self._steps_left > 0 else Said()

    def has_others(self, schema: dict[str, Any]) -> bool:
        """Have others patterns for names, and not the same ones?"""
        return bool(self.of(schema).patterns - _own(schema).patterns)

    def _follow(self) -> None:
        """Carries what is said above down, until that is nothing new."""
        waiting = [(node, Said()) for node in self._context.schemas]
        while waiting and self._steps_left > 0:
            node, above = waiting.pop()
            self._steps_left -= 1
            known = self._above.get(id(node))
            above = above if known is None else known | above
            if above == known:
                continue
            self._above[id(node)] = above
            parts, options = self._in_place(node)
            inside = [self._said(part) for part in parts]
            own = above | _own(node)
            for i, part in enumerate(parts):
                others = own
                for said in (*inside[:i], *inside[i + 1 :], *map(self._said, options)):
                    others |= said
                waiting.append((part, others))
            for said in inside:
                own |= said
            waiting += [(option, own) for option in options]

    def _said(self, schema: dict[str, Any]) -> Said:
        """By a schema and all that it applies to the same object."""
        if id(schema) not in self._known:
            found, seen, waiting = Said(), {id(schema)}, [schema]
            while waiting and self._steps_left > 0:
                node = waiting.pop()
                self._steps_left -= 1
                found |= _own(node)
                parts, options = self._in_place(node)
                for child in (*parts, *options):
                    if id(child) not in seen:
                        seen.add(id(child))
                        waiting.append(child)
            self._known[id(schema)] = found
        return self._known[id(schema)]

    def _in_place(
        self, schema: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The schemas that it applies to the same value: all that may hold, and those that it chooses
        from. What is under `not` is required or barred when it is written."""
        parts = [schema.get(keyword) for keyword in ("if", "then", "else")]
        parts += schema.get("allOf", ())
        for keyword in ("dependentSchemas", "dependencies"):
            parts += schema.get(keyword, {}).values()
        if "$ref" in schema:
            with suppress(GrammarError):  # told where it is rewritten
                parts.append(self._context.resolve(schema, "#")[0])
        options = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
        return _objects(parts), _objects(options)


def _objects(schemas: list[Any]) -> list[dict[str, Any]]:
    """Those that let objects through which they do not list."""
    found = [schema for schema in schemas if isinstance(schema, dict)]
    found = [schema for schema in found if "enum" not in schema and "const" not in schema]
    return [schema for schema in found if "object" in types_of(schema)]


def _own(schema: dict[str, Any]) -> Said:
    """By its own keywords."""
    named = {name for name, child in schema.get("properties", {}).items() if child is not False}
    patterns = [p for p in schema.get("patternProperties", ()) if not is_universal(p)]
    if len(patterns) > 1:  # those that are lists of names are written as properties
        named.update(name for pattern in patterns for name in listed_names(pattern) or ())
        patterns = [pattern for pattern in patterns if listed_names(pattern) is None]
    rule = schema.get("propertyNames", True)
    if isinstance(rule, dict):
        listed = [*rule.get("enum", ()), *([rule["const"]] if "const" in rule else ())]
        named.update(name for name in listed if isinstance(name, str))
        if not listed and rule:
            patterns.append(canonical(rule))
    required = frozenset(schema.get("required", ()))
    text = frozenset([canonical(sorted(patterns))]) if patterns else frozenset()
    return Said(frozenset(named) | required, frozenset(named) - required, text)
