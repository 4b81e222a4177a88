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
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from eyas.schemas import automata
from eyas.schemas.context import Context
from eyas.schemas.ecma import read
from eyas.schemas.keywords import Schema, canonical, types_of, with_children
from eyas.schemas.limits import under
from eyas.schemas.patterns import ANYTHING, none_of
from eyas.schemas.trees import Node, PatternFault

_ANY_NAME = f"^{ANYTHING}$"
_CONTROL = re.compile("[\0-\x1f\x7f]")
_OF_OBJECTS = (
    *("properties", "patternProperties", "additionalProperties", "required"),
    *("minProperties", "maxProperties"),
)


def spelled(document: Schema, context: Context) -> Schema:
    """The document with one spelling for each name."""
    return document if isinstance(document, bool) else _Names(document, context).document()


def unspelled(schema: Any) -> Any:
    """Without the patterns for any name, for backends whose names have one spelling already."""
    if not isinstance(schema, dict):
        return schema
    if schema.get("patternProperties") == {_ANY_NAME: True}:
        left_out = ("patternProperties", "additionalProperties")
        schema = {key: child for key, child in schema.items() if key not in left_out}
    return with_children(schema, unspelled)


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


class _Closing(Enum):
    """Who lets no name through that it does not spell; the value marks definitions that are read so."""

    AS_NEEDED = ""
    ELSEWHERE = "-open"
    """Something that must hold as well."""
    HERE = "-closed"


class _Names:
    def __init__(self, document: dict[str, Any], context: Context) -> None:
        self._context = context
        self._budget = automata.Budget()
        self._root = {key: child for key, child in document.items() if key != "$defs"}
        self._targets: dict[str, Schema] = {"#": self._root}
        for name, node in document.get("$defs", {}).items():
            self._targets[f"#/$defs/{name}"] = node
        self._known: dict[tuple[Callable[[Any], bool], bool, int], bool] = {}
        self._asked: dict[str, tuple[str, _Closing]] = {}

    def document(self) -> Schema:
        """The root, with the definitions that it comes to."""
        out = self._schema(self._root, "#", _Closing.AS_NEEDED)
        definitions: dict[str, Schema] = {}
        while len(definitions) < len(self._asked):
            name = list(self._asked)[len(definitions)]
            reference, closing = self._asked[name]
            place = self._context.places.get(reference, reference)
            definitions[name] = self._schema(self._targets[reference], place, closing)
        return {**out, "$defs": definitions} if definitions else out

    def _schema(self, node: Any, place: str, closing: _Closing) -> Any:
        if node is True and closing is _Closing.HERE:
            node = {}
        if not isinstance(node, dict):
            return node
        closings = self._closings(node, closing)
        needs = closings[""] is _Closing.HERE
        if needs or "patternProperties" in node:
            node = self._written(node, place, needs)
        out: dict[str, Any] = {}
        for key, child in _together(node):
            spot = under(place, key)
            if key == "allOf":
                spots = [(under(spot, i), closings[f"allOf/{i}"]) for i in range(len(child))]
                out[key] = [self._schema(c, *how) for c, how in zip(child, spots, strict=True)]
            elif key == "anyOf":
                how = closings[key]
                out[key] = [self._schema(c, under(spot, i), how) for i, c in enumerate(child)]
            elif key == "$ref":
                out[key] = self._reference(child, closings[key])
            elif key == "prefixItems":
                out[key] = [self._alone(c, under(spot, i)) for i, c in enumerate(child)]
            elif key in ("properties", "patternProperties"):
                out[key] = {n: self._alone(c, under(spot, n)) for n, c in child.items()}
            elif key in ("items", "additionalProperties"):
                out[key] = self._alone(child, spot)
            else:
                out[key] = child
        return out

    def _alone(self, node: Any, place: str) -> Any:
        """A schema of values that no other one beside it judges."""
        return self._schema(node, place, _Closing.AS_NEEDED)

    def _reference(self, reference: str, closing: _Closing) -> str:
        """The definition, read so that it closes for others or leaves that to them."""
        target = self._targets[reference]
        is_same = closing is _Closing.HERE and self._closes(target)
        if is_same or (closing is _Closing.ELSEWHERE and not self._any(_is_open, target)):
            closing = _Closing.AS_NEEDED
        if reference == "#" and closing is _Closing.AS_NEEDED:
            return reference
        name = f"{reference.rpartition('/')[2].replace('#', 'root')}{closing.value}"
        self._asked.setdefault(name, (reference, closing))
        return f"#/$defs/{name}"

    def _closings(self, node: dict[str, Any], closing: _Closing) -> dict[str, _Closing]:
        """How the schema itself ("") closes, what it refers to, each of its allOf, its choice. One of
        them does it for all: the one with patterns, which those for any name would overlap."""
        parts = self._parts(node)
        keys = ["", *parts]
        if closing is _Closing.ELSEWHERE:
            return dict.fromkeys(keys, closing)
        rest = node.get("additionalProperties", True)
        if rest is False or "enum" in node or "const" in node:
            return dict.fromkeys(keys, _Closing.ELSEWHERE)
        opening = [key for key in parts if any(self._any(_is_open, part) for part in parts[key])]
        closer = None
        if closing is _Closing.HERE or opening or _is_open(node):
            closes = [""] * _is_open(node)
            closes += [key for key in parts if key != "anyOf" and self._closes(parts[key][0])]
            patterned = [""] * _has_patterns(node)
            patterned += [k for k in parts if any(self._any(_has_patterns, p) for p in parts[k])]
            own = [""] * (closing is _Closing.HERE)
            closer = next(iter((*patterned, *closes, *own)), None)
        if closer is None:
            return dict.fromkeys(keys, _Closing.AS_NEEDED)
        if "object" not in types_of(node):
            return dict.fromkeys(keys, _Closing.ELSEWHERE)
        return {key: _Closing.HERE if key == closer else _Closing.ELSEWHERE for key in keys}

    def _parts(self, node: dict[str, Any]) -> dict[str, list[Any]]:
        """The schemas that a schema applies to the same value."""
        found: dict[str, list[Any]] = {}
        if "$ref" in node:
            found["$ref"] = [self._targets[node["$ref"]]]
        found |= {f"allOf/{i}": [part] for i, part in enumerate(node.get("allOf", ()))}
        if "anyOf" in node:
            found["anyOf"] = node["anyOf"]
        return found

    def _closes(self, node: Any) -> bool:
        """Does it let no name through that it does not spell, once it is written by itself?"""
        return self._any(_is_closing, node, of_choices=False)

    def _any(self, test: Callable[[Any], bool], node: Any, *, of_choices: bool = True) -> bool:
        """Is it so for a schema, or for one that it applies to the same value? References are followed
        without recursion: they may form a chain of any length."""
        seen: set[int] = set()
        path: list[tuple[int, Iterator[Any]]] = [(0, iter((node,)))]
        while path:
            child = next(path[-1][1], None)
            if child is None:
                path.pop()
                continue
            if not isinstance(child, dict) or id(child) in seen:
                continue
            seen.add(id(child))
            found = self._known.get((test, of_choices, id(child)))
            if test(child) if found is None else found:
                above = {id(child), *(key for key, _ in path)}
                self._known.update(((test, of_choices, key), True) for key in above)
                return True
            if found is None:
                path.append((id(child), iter(self._applied(child, of_choices))))
        self._known.update(((test, of_choices, key), False) for key in seen)
        return False

    def _applied(self, node: dict[str, Any], of_choices: bool) -> list[Any]:
        """The schemas that it applies to the same value."""
        parts = self._parts(node)
        return [
            p for name, listed in parts.items() if of_choices or name != "anyOf" for p in listed
        ]

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


def _is_closing(node: dict[str, Any]) -> bool:
    return node.get("additionalProperties") is False or _is_open(node)


def _has_patterns(node: dict[str, Any]) -> bool:
    return "patternProperties" in node


def _trees(patterns: dict[str, Schema]) -> list[Node] | None:
    try:
        return [read(pattern) for pattern in patterns]
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
