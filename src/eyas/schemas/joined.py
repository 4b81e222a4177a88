"""What the backend joins into one schema: references with something beside them, and patterns.

It writes what a joined reference leads to where that stands, so that none may lead back to itself; and
a text that several patterns must match costs it time that doubles with each.

Promises: no prepared schema has many patterns for one text; each schema is looked at a few times,
however references double and whatever chains they form.
Does not know: keywords that the rewriter does not write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from eyas.schemas.context import Context
from eyas.schemas.keywords import Schema
from eyas.schemas.limits import fail, under

MAX_PATTERNS = 12
"""That one text must match: llguidance 1.9.1 takes a minute over 20 to say that it cannot."""
_MAX_HELD, _MAX_GROUPS = 64, 5_000
"""Schemas that hold together, and such groups of them; the backend gives up on more by itself."""
_APPLIED = re.compile(r"(?:/(?:allOf|anyOf)/\d+)+$")

_Part = tuple[Any, bool, str]
"""A schema, whether it is joined with others, where it stands."""


def check_joined(document: Schema, context: Context) -> None:
    """GrammarError where more patterns meet than the backend can compare."""
    if isinstance(document, dict):
        _Joined(document).check_patterns(context)


def leading_back(document: Schema) -> str | None:
    """Where in a prepared schema a reference with something beside it leads back to where it stands:
    its place, or the end of that. The backend joins what it must; this finds what it may."""
    found = _Joined(document).leading_back() if isinstance(document, dict) else None
    name, _, rest = (found or "").partition("\n")
    if name == "#":
        return f"#{rest}"
    return f"...{rest}" if rest else None


class _Joined:
    """Places are the name of a definition, a line's end, and the way from there."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._targets: dict[str, Any] = {"#": document}
        for name, node in document.get("$defs", {}).items():
            self._targets[f"#/$defs/{name}"] = node

    def leading_back(self) -> str | None:
        """Goes along all that is written where it stands; what a bare reference leads to is not."""
        found: list[str] = []
        for _ in self._finished(found.append, with_bare=False):
            if found:
                return _APPLIED.sub("", found[0])
        return None

    def check_patterns(self, context: Context) -> None:
        """Counts those that one text must match: of schemas, and of properties of the same name."""
        counts: dict[int, int] = {}
        groups: list[tuple[list[Any], str]] = []
        for node, place in self._finished(lambda place: None, with_bare=True):
            options = [counts.get(id(part), 0) for part in node.get("anyOf", ())]
            parts = self._held(node)
            num = ("pattern" in node) + sum(counts.get(id(part), 0) for part in parts)
            counts[id(node)] = num + (max(options) if len(options) > 1 else 0)
            groups.append(([node], place))
        seen: set[frozenset[int]] = set()
        num_all = sum("pattern" in node for [node], _ in groups)
        while groups and num_all > MAX_PATTERNS:
            nodes, place = groups.pop()
            if sum(counts.get(id(node), 0) for node in nodes) > MAX_PATTERNS:
                name, _, rest = _APPLIED.sub("", place).partition("\n")
                bare = re.sub(r"-(?:open|closed)$", "", name).replace("#/$defs/root", "#")
                spot = context.places.get(bare, bare) + rest
                message = (
                    f"one text must match more than {MAX_PATTERNS} patterns; put them into fewer"
                )
                raise fail(context.param, spot, message, "too_complex")
            is_alone = len(nodes) == 1 and not self._held(nodes[0])
            for spot, children in () if is_alone else self._same(nodes).items():
                key = frozenset(map(id, children))
                if len(key) > 1 and key not in seen and len(seen) < _MAX_GROUPS:
                    seen.add(key)
                    groups.append((children, place + spot))

    def _held(self, node: dict[str, Any]) -> list[Any]:
        """What else must hold where a schema does."""
        options = node.get("anyOf", ())
        parts = [*node.get("allOf", ()), *(options if len(options) == 1 else ())]
        return [*parts, self._targets[node["$ref"]]] if "$ref" in node else parts

    def _same(self, nodes: list[Any]) -> dict[str, list[Any]]:
        """The schemas that judge the same part of a value, where all of `nodes` hold."""
        found: dict[str, list[Any]] = {}
        waiting, seen = list(nodes), set(map(id, nodes))
        while waiting and len(seen) < _MAX_HELD:
            node = waiting.pop()
            if isinstance(node, dict):
                for child, is_joined, spot in self._parts(node, False, "", with_bare=False):
                    if not is_joined and not _APPLIED.search(spot):
                        found.setdefault(spot, []).append(child)
                held = [part for part in self._held(node) if id(part) not in seen]
                seen.update(map(id, held))
                waiting += held
        return found

    def _finished(
        self, back: Callable[[str], None], *, with_bare: bool
    ) -> Iterator[tuple[dict[str, Any], str]]:
        """Every schema with its place, behind those that it is made of. back: is told of a reference
        that leads to what is not finished. with_bare: through bare references as well."""
        open_ones: set[tuple[int, bool]] = set()
        done: set[tuple[int, bool]] = set()
        for name, root in self._targets.items():
            path: list[tuple[dict[str, Any], bool, str, Iterator[_Part]]] = []
            found: _Part | None = (root, False, f"{name}\n")
            while found is not None or path:
                if found is None:
                    node, is_joined, place, _ = path.pop()
                    open_ones.discard((id(node), is_joined))
                    done.add((id(node), is_joined))
                    yield node, place
                else:
                    node, is_joined, place = found
                    key = (id(node), is_joined)
                    if key in open_ones:
                        back(next(spot for above, _, spot, _ in reversed(path) if "$ref" in above))
                    elif isinstance(node, dict) and key not in done:
                        open_ones.add(key)
                        parts = self._parts(node, is_joined, place, with_bare)
                        path.append((node, is_joined, place, parts))
                found = next(path[-1][3], None) if path else None

    def _parts(
        self, node: dict[str, Any], is_joined: bool, place: str, with_bare: bool
    ) -> Iterator[_Part]:
        in_place = ("$ref" in node) + len(node.get("allOf", ())) + ("anyOf" in node)
        is_joined = is_joined or in_place > 1
        is_joined = is_joined or bool(node.keys() - {"$ref", "allOf", "anyOf", "$defs"})
        for keyword in ("properties", "patternProperties"):
            for name, child in node.get(keyword, {}).items():
                yield child, False, under(place, keyword, name)
        for keyword in ("items", "additionalProperties"):
            yield node.get(keyword), False, under(place, keyword)
        for i, child in enumerate(node.get("prefixItems", ())):
            yield child, False, under(place, "prefixItems", i)
        for keyword in ("allOf", "anyOf"):
            for i, child in enumerate(node.get(keyword, ())):
                yield child, is_joined, under(place, keyword, i)
        if "$ref" in node and (is_joined or with_bare):
            yield self._targets[node["$ref"]], is_joined, f"{node['$ref']}\n"
