"""Names of properties, each of which can be spelled in one way.

Names that a schema does not list the backend takes with any escape, so "\\u0061" would be a name
beside the listed "a" and skip its schema. Names of patterns have escapes for control characters alone.

Promises: what a schema says of a name holds however that is spelled; the same names are allowed. Of one
object patterns that overlap are written out as patterns that do not. Of objects that must hold together
one is changed and the others stay as they are, because the backend wants all their patterns disjoint.
Does not know: keywords that the rewriter does not write.
"""

from __future__ import annotations

import re
from typing import Any

from eyas.schemas import automata
from eyas.schemas.context import Context
from eyas.schemas.ecma import read
from eyas.schemas.keywords import Schema, canonical
from eyas.schemas.limits import under
from eyas.schemas.patterns import ANYTHING, none_of
from eyas.schemas.trees import Node, PatternFault

_ANY_NAME = f"^{ANYTHING}$"
_CONTROL = re.compile("[\0-\x1f\x7f]")
_MAPS = ("properties", "patternProperties", "$defs")
_OF_OBJECTS = (
    *("properties", "patternProperties", "additionalProperties", "required"),
    *("minProperties", "maxProperties"),
)


def spelled(document: Schema, context: Context) -> Schema:
    """The document with one spelling for each name."""
    if isinstance(document, bool):
        return document
    return _Names(document, context).schema(document, "#", False)


def unspelled(schema: Any) -> Any:
    """Without the patterns for any name, for backends whose names have one spelling already."""
    if isinstance(schema, list):
        return [unspelled(child) for child in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("patternProperties") == {_ANY_NAME: True}:
        left_out = ("patternProperties", "additionalProperties")
        schema = {key: child for key, child in schema.items() if key not in left_out}
    return {
        key: child if key in ("enum", "const") else unspelled(child)
        for key, child in schema.items()
    }


def both(one: Schema, other: Schema) -> Schema:
    """What both allow."""
    if one is False or other is False:
        return False
    if is_anything(one):
        return other
    return (
        one if is_anything(other) or canonical(one) == canonical(other) else {"allOf": [one, other]}
    )


def is_anything(schema: Schema) -> bool:
    """Does it say nothing?"""
    return schema is True or schema == {}


class _Names:
    def __init__(self, document: dict[str, Any], context: Context) -> None:
        self._context = context
        self._budget = automata.Budget()
        self._closing: dict[int, bool] = {}
        self._targets: dict[str, Schema] = {"#": document}
        for name, node in document.get("$defs", {}).items():
            self._targets[f"#/$defs/{name}"] = node

    def schema(self, node: Any, place: str, is_closed: bool) -> Any:
        """is_closed: something that must hold as well lets no name through that it does not spell."""
        if not isinstance(node, dict):
            return node
        has_patterns = "patternProperties" in node
        if has_patterns or ("properties" in node and not is_closed):
            parts = [*node.get("allOf", ()), self._targets.get(node.get("$ref", ""), True)]
            is_closed = is_closed or any(map(self._closes, parts))
            needs = _is_open(node) and not is_closed
            if needs or has_patterns:
                node = self._written(node, place, needs)
        is_closed = is_closed or node.get("additionalProperties") is False
        out: dict[str, Any] = {}
        for key, child in _together(node):
            spot = under(place, key)
            if key == "allOf":
                out[key] = self._conjoined(child, spot, is_closed)
            elif key == "anyOf":
                out[key] = [self.schema(c, under(spot, i), is_closed) for i, c in enumerate(child)]
            elif key == "prefixItems":
                out[key] = [self.schema(c, under(spot, i), False) for i, c in enumerate(child)]
            elif key in _MAPS:
                out[key] = {n: self.schema(c, under(spot, n), False) for n, c in child.items()}
            elif key in ("items", "additionalProperties"):
                out[key] = self.schema(child, spot, False)
            else:
                out[key] = child
        return out

    def _conjoined(self, parts: list[Any], spot: str, is_closed: bool) -> list[Any]:
        """Of the parts that must all hold the first that can closes for the others."""
        closing = [i for i, part in enumerate(parts) if self._closes(part)]
        first = None if is_closed or not closing else closing[0]
        return [
            self.schema(part, under(spot, i), is_closed or (first is not None and i != first))
            for i, part in enumerate(parts)
        ]

    def _closes(self, node: Any) -> bool:
        """Does it let no name through that it does not spell, once it is written by itself?"""
        if not isinstance(node, dict):
            return False
        if id(node) not in self._closing:
            self._closing[id(node)] = False  # what leads back to itself adds nothing
            target = self._targets.get(node.get("$ref", ""), True)
            self._closing[id(node)] = (
                node.get("additionalProperties") is False
                or _is_open(node)
                or any(map(self._closes, [*node.get("allOf", ()), target]))
            )
        return self._closing[id(node)]

    def _written(self, node: dict[str, Any], place: str, needs: bool) -> dict[str, Any]:
        """needs: other names than its patterns' come as well, and must be spelled."""
        named, patterns = node.get("properties", {}), node.get("patternProperties", {})
        rest = node.get("additionalProperties", True)
        odd = [name for name in named if _CONTROL.search(name)]
        if not patterns and not odd and is_anything(rest):
            return {**node, "patternProperties": {_ANY_NAME: True}, "additionalProperties": False}
        trees = _trees(patterns)
        regions = None if trees is None else automata.regions(trees, odd, self._budget)
        others = _none if regions is None else regions.get((False,) * len(patterns))
        if needs and not is_anything(rest):
            if patterns:
                found = (
                    None if trees is None else automata.regions(trees, list(named), self._budget)
                )
                others = _none if found is None else found.get((False,) * len(patterns))
            else:
                others = none_of(named) or _none
        if (regions is None and odd) or (needs and others is _none):
            if self._context.lenient:
                return node
            message = (
                "names that no pattern matches cannot be told apart from those that one does; "
            )
            message += "set additionalProperties to false, or use simpler or fewer names"
            key = "patternProperties" if patterns else "additionalProperties"
            raise self._context.unsupported(under(place, key), message)
        written = dict(patterns)
        overlap = regions is not None and any(sum(held) > 1 for held in regions)
        if regions is not None and (overlap or odd):
            written = _apart(regions, list(patterns.values()))
        named = dict(named)
        matchers = [automata.Matcher(tree, self._budget) for tree in trees or ()]
        for name in odd:  # regions leave them out
            for child, matcher in zip(patterns.values(), matchers, strict=True):
                if matcher.matches(name) is not False:
                    named[name] = both(named[name], child)
        out = {**node, **({"properties": named} if named else {}), "patternProperties": written}
        if needs:
            out["additionalProperties"] = False
            if isinstance(others, str):
                written[others] = True if is_anything(rest) else rest
        return out


def _together(node: dict[str, Any]) -> list[tuple[str, Any]]:
    """The members of a schema, those of objects side by side where the first of them stands: the
    backend reads what stands before and behind an applicator apart, each with what is left out of
    the other as open as it stands."""
    group = [key for key in _OF_OBJECTS if key in node]
    first = "properties" if "properties" in group else next((k for k in node if k in group), None)
    keys = [k for key in node for k in (group if key == first else () if key in group else (key,))]
    return [(key, node[key]) for key in keys]


_none = object()
"""No pattern could be found."""


def _is_open(node: dict[str, Any]) -> bool:
    """Could a name that is spelled in another way skip its schema?"""
    rest = node.get("additionalProperties", True)
    if rest is False:
        return False
    named = [*node.get("properties", {}).values(), *node.get("patternProperties", {}).values()]
    return any(not is_anything(child) for child in named) or (bool(named) and not is_anything(rest))


def _trees(patterns: dict[str, Schema]) -> list[Node] | None:
    try:
        return [read(pattern)[0] for pattern in patterns]
    except PatternFault:  # what only the backend can read
        return None


def _apart(regions: dict[tuple[bool, ...], str], children: list[Schema]) -> dict[str, Schema]:
    """Each combination of patterns with all their schemas."""
    written: dict[str, Schema] = {}
    for held, pattern in regions.items():
        own: Schema = True
        for child, is_hit in zip(children, held, strict=True):
            own = both(own, child) if is_hit else own
        if any(held):
            written[pattern] = own
    return written
