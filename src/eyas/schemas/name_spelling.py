"""One spelling for each property name.

The backend allows every escape in names that a schema does not list, so "\\u0061" would be another name
than the listed "a" and skip its schema. Names that match a pattern have escapes for control characters
only, so open objects get a pattern for all their other names.

Promises: the schemas of a name apply to every spelling of it; the same names are allowed. Overlapping
patterns of one object are rewritten as disjoint patterns. Of several objects that must hold together
only one is changed, because the backend requires all their patterns to be disjoint.
Does not know: keywords that the rewriter does not write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from eyas.schemas import automata
from eyas.schemas.context import Context
from eyas.schemas.keywords import Object, Schema, canonical, types_of, with_children
from eyas.schemas.limits import under
from eyas.schemas.pattern_parser import read
from eyas.schemas.pattern_tree import Node, PatternFault
from eyas.schemas.patterns import ANYTHING, none_of

_ANY_NAME = f"^{ANYTHING}$"
_TOO_LARGE = (
    "names that no pattern matches cannot be told apart from those that one does; set "
    "additionalProperties to false, or use simpler or fewer names"
)
_CONTROL_NAMES = (
    "patterns for names cannot be enforced beside listed names with control characters; remove these "
    "names or the patterns"
)
_CONTROL = re.compile("[\0-\x1f\x7f]")
_OF_OBJECTS = (
    *("properties", "patternProperties", "additionalProperties", "required"),
    *("minProperties", "maxProperties"),
)


def with_one_spelling(document: Schema, context: Context) -> Schema:
    """Return the document with one spelling for each name."""
    return document if isinstance(document, bool) else _NameSpelling(document, context).document()


def unspelled(schema: Any) -> Any:
    """Return a schema without the patterns for any name, for backends whose names have one spelling."""
    if not isinstance(schema, dict):
        return schema
    if schema.get("patternProperties") == {_ANY_NAME: True}:
        left_out = ("patternProperties", "additionalProperties")
        schema = {key: child for key, child in schema.items() if key not in left_out}
    return with_children(schema, unspelled)


def both(one: Schema, other: Schema) -> Schema:
    """Return a schema for what both allow."""
    if one is False or other is False:
        return False
    if is_anything(one):
        return other
    return (
        one if is_anything(other) or canonical(one) == canonical(other) else {"allOf": [one, other]}
    )


def is_anything(schema: Schema) -> bool:
    """Whether a schema allows every value."""
    return schema is True or schema == {}


class _NameClosing(Enum):
    """Which of several schemas that hold together closes the object: it allows only names that it
    spells. The value is the suffix of the definition for that case."""

    AS_NEEDED = ""
    ELSEWHERE = "-open"
    """Another schema that must hold as well."""
    HERE = "-closed"


class _NameSpelling:
    """The rewriting of one document."""

    def __init__(self, document: Object, context: Context) -> None:
        self._context = context
        self._budget = automata.Budget()
        self._root = {key: child for key, child in document.items() if key != "$defs"}
        self._targets: dict[str, Schema] = {"#": self._root}
        for name, node in document.get("$defs", {}).items():
            self._targets[f"#/$defs/{name}"] = node
        self._known: dict[tuple[Callable[[Any], bool], bool, int], bool] = {}
        self._requested: dict[str, tuple[str, _NameClosing]] = {}

    def document(self) -> Schema:
        """Return the root with all definitions that it reaches."""
        out = self._schema(self._root, "#", _NameClosing.AS_NEEDED)
        definitions: dict[str, Schema] = {}
        while len(definitions) < len(self._requested):
            name = list(self._requested)[len(definitions)]
            reference, closing = self._requested[name]
            path = self._context.paths.get(reference, reference)
            definitions[name] = self._schema(self._targets[reference], path, closing)
        return {**out, "$defs": definitions} if definitions else out

    def _schema(self, node: Any, path: str, closing: _NameClosing) -> Any:
        if node is True and closing is _NameClosing.HERE:
            node = {}
        if not isinstance(node, dict):
            return node
        closings = self._closings(node, closing)
        needs_all = closings[""] is _NameClosing.HERE
        if needs_all or "patternProperties" in node:
            node = self._written(node, path, needs_all)
        out: Object = {}
        for key, child in _grouped_members(node):
            keyword_path = under(path, key)
            if key in ("allOf", "anyOf"):
                how = [closings[f"allOf/{i}" if key == "allOf" else key] for i in range(len(child))]
                out[key] = [
                    self._schema(c, under(keyword_path, i), how[i]) for i, c in enumerate(child)
                ]
            elif key == "$ref":
                out[key] = self._reference(child, closings[key])
            elif key == "prefixItems":
                out[key] = [self._alone(c, under(keyword_path, i)) for i, c in enumerate(child)]
            elif key in ("properties", "patternProperties"):
                out[key] = {n: self._alone(c, under(keyword_path, n)) for n, c in child.items()}
            elif key in ("items", "additionalProperties"):
                out[key] = self._alone(child, keyword_path)
            else:
                out[key] = child
        return out

    def _alone(self, node: Any, path: str) -> Any:
        """Rewrite a schema without siblings."""
        return self._schema(node, path, _NameClosing.AS_NEEDED)

    def _reference(self, reference: str, closing: _NameClosing) -> str:
        """Return the reference to the definition that closes the object, or leaves that to siblings."""
        target = self._targets[reference]
        is_same = closing is _NameClosing.HERE and self._closes(target)
        if is_same or (closing is _NameClosing.ELSEWHERE and not self._any(_is_open, target)):
            closing = _NameClosing.AS_NEEDED
        if reference == "#" and closing is _NameClosing.AS_NEEDED:
            return reference
        name = f"{reference.rpartition('/')[2].replace('#', 'root')}{closing.value}"
        self._requested.setdefault(name, (reference, closing))
        return f"#/$defs/{name}"

    def _closings(self, node: Object, closing: _NameClosing) -> dict[str, _NameClosing]:
        """Return how the schema itself ("") closes, its reference, each part of its allOf, its choice.
        One closes for all: if possible the one with patterns, which _ANY_NAME would overlap."""
        parts = self._parts(node)
        keys = ["", *parts]
        if closing is _NameClosing.ELSEWHERE:
            return dict.fromkeys(keys, closing)
        rest = node.get("additionalProperties", True)
        if rest is False or "enum" in node or "const" in node:
            return dict.fromkeys(keys, _NameClosing.ELSEWHERE)
        opening = [key for key in parts if any(self._any(_is_open, part) for part in parts[key])]
        closer = None
        if closing is _NameClosing.HERE or opening or _is_open(node):
            closes = [""] * _is_open(node)
            closes += [key for key in parts if key != "anyOf" and self._closes(parts[key][0])]
            patterned = [""] * _has_patterns(node)
            patterned += [k for k in parts if any(self._any(_has_patterns, p) for p in parts[k])]
            own = [""] * (closing is _NameClosing.HERE)
            closer = next(iter((*patterned, *closes, *own)), None)
        if closer is None:
            return dict.fromkeys(keys, _NameClosing.AS_NEEDED)
        if "object" not in types_of(node):
            return dict.fromkeys(keys, _NameClosing.ELSEWHERE)
        return {key: _NameClosing.HERE if key == closer else _NameClosing.ELSEWHERE for key in keys}

    def _parts(self, node: Object) -> dict[str, list[Any]]:
        """Return the schemas that a schema applies to the same value, by keyword."""
        found: dict[str, list[Any]] = {}
        if "$ref" in node:
            found["$ref"] = [self._targets[node["$ref"]]]
        found |= {f"allOf/{i}": [part] for i, part in enumerate(node.get("allOf", ()))}
        if "anyOf" in node:
            found["anyOf"] = node["anyOf"]
        return found

    def _closes(self, node: Any) -> bool:
        """Whether a schema, rewritten alone, allows only names that it spells."""
        return self._any(_is_closing, node, of_choices=False)

    def _any(self, test: Callable[[Any], bool], node: Any, *, of_choices: bool = True) -> bool:
        """Whether `test` holds for a schema or one that it applies to the same value. Iterative, as
        references may form a chain of any length."""
        seen: set[int] = set()
        stack: list[tuple[int, Iterator[Any]]] = [(0, iter((node,)))]
        while stack:
            child = next(stack[-1][1], None)
            if child is None:
                stack.pop()
                continue
            if not isinstance(child, dict) or id(child) in seen:
                continue
            seen.add(id(child))
            found = self._known.get((test, of_choices, id(child)))
            if test(child) if found is None else found:
                above = {id(child), *(key for key, _ in stack)}
                self._known.update(((test, of_choices, key), True) for key in above)
                return True
            if found is None:
                stack.append((id(child), iter(self._applied(child, of_choices))))
        self._known.update(((test, of_choices, key), False) for key in seen)
        return False

    def _applied(self, node: Object, of_choices: bool) -> list[Any]:
        """Return the schemas that a schema applies to the same value."""
        parts = self._parts(node)
        return [
            p for name, listed in parts.items() if of_choices or name != "anyOf" for p in listed
        ]

    def _written(self, node: Object, path: str, needs_all: bool) -> Object:
        """Return the object with patterns that do not overlap. needs_all: its other names are spelled
        by a pattern as well, and no names remain open."""
        named, patterns = node.get("properties", {}), node.get("patternProperties", {})
        rest = node.get("additionalProperties", True)
        rest = True if is_anything(rest) else rest
        control = [name for name in named if _CONTROL.search(name)]
        if not patterns:
            excluded = control if rest is True else list(named)
            others = none_of(excluded) if excluded else _ANY_NAME
            if others is None:
                return self._refuse(node, under(path, "additionalProperties"), _TOO_LARGE)
            return {**node, "patternProperties": {others: rest}, "additionalProperties": False}
        keyword_path = under(path, "patternProperties")
        if control:
            return self._refuse(node, keyword_path, _CONTROL_NAMES)
        trees = _trees(patterns)
        regions = None if trees is None else automata.regions(trees, (), self._budget)
        written = dict(patterns)
        if regions is not None and any(sum(matches) > 1 for matches in regions):
            written = _split(regions, list(patterns.values()))
        if not needs_all:
            return {**node, "patternProperties": written}
        if trees is not None and rest is not True:
            regions = automata.regions(trees, list(named), self._budget)
        if regions is None:
            return self._refuse(node, keyword_path, _TOO_LARGE)
        others = regions.get((False,) * len(patterns))
        if others is not None:
            written[others] = rest
        return {**node, "patternProperties": written, "additionalProperties": False}

    def _refuse(self, node: Object, path: str, message: str) -> Object:
        """GrammarError (unsupported); a lenient request keeps the object as it is."""
        if self._context.lenient:
            return node
        raise self._context.unsupported(path, message)


def _grouped_members(node: Object) -> list[tuple[str, Any]]:
    """Return the members of a schema with the object keywords next to each other: the backend reads
    the keywords before and after an applicator as two schemas."""
    group = [key for key in _OF_OBJECTS if key in node]
    first = "properties" if "properties" in group else next((k for k in node if k in group), None)
    keys = [k for key in node for k in (group if key == first else () if key in group else (key,))]
    return [(key, node[key]) for key in keys]


def _is_open(node: Object) -> bool:
    """Whether another spelling of a name could skip its schema."""
    rest = node.get("additionalProperties", True)
    if rest is False:
        return False
    named = [*node.get("properties", {}).values(), *node.get("patternProperties", {}).values()]
    return any(not is_anything(child) for child in named) or (bool(named) and not is_anything(rest))


def _is_closing(node: Object) -> bool:
    return node.get("additionalProperties") is False or _is_open(node)


def _has_patterns(node: Object) -> bool:
    return "patternProperties" in node


def _trees(patterns: dict[str, Schema]) -> list[Node] | None:
    try:
        return [read(pattern) for pattern in patterns]
    except PatternFault:  # a pattern that only the backend can read
        return None


def _split(regions: dict[tuple[bool, ...], str], children: list[Schema]) -> dict[str, Schema]:
    """Return, for each combination of matching patterns, a pattern with all their schemas."""
    written: dict[str, Schema] = {}
    for matches, pattern in regions.items():
        own: Schema = True
        for child, is_hit in zip(children, matches, strict=True):
            own = both(own, child) if is_hit else own
        if any(matches):
            written[pattern] = own
    return written
