"""Limits of the backend on schemas that it merges: references with siblings, and patterns.

The backend copies the target of a reference with siblings to where the reference stands, so such a
reference must not lead back to itself. Each further pattern that one text must match doubles its time.

Promises: no prepared schema has many patterns for one text. Each schema is visited a few times only,
even if references multiply or form long chains.
Does not know: keywords that the rewriter does not write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from eyas.schemas.context import Context
from eyas.schemas.keywords import Object, Schema
from eyas.schemas.limits import fail, under

MAX_PATTERNS = 12
"""Patterns that one text must match: llguidance 1.9.1 takes a minute to refuse 20 of them."""
_MAX_HELD, _MAX_GROUPS = 64, 5_000
"""Schemas that hold together, and groups of such schemas; the backend refuses more by itself."""
_APPLIED = re.compile(r"(?:/(?:allOf|anyOf)/\d+)+$")

_Part = tuple[Any, bool, str]
"""A schema, whether it is merged with others, its path."""


def check_pattern_counts(document: Schema, context: Context) -> None:
    """Raise GrammarError (too_complex) if one text must match more than MAX_PATTERNS patterns."""
    if isinstance(document, dict):
        _MergedSchemas(document).check_patterns(context)


def leading_back(document: Schema) -> str | None:
    """Return the path (or its end) of a reference with siblings that leads back to itself, if there is
    one in a prepared schema. The backend merges fewer references than this search follows."""
    found = _MergedSchemas(document).leading_back() if isinstance(document, dict) else None
    name, _, rest = (found or "").partition("\n")
    if name == "#":
        return f"#{rest}"
    return f"...{rest}" if rest else None


class _MergedSchemas:
    """Traversals of one document. A path here is a definition's name, "\\n", and the path from it."""

    def __init__(self, document: Object) -> None:
        self._targets: Object = {"#": document}
        for name, node in document.get("$defs", {}).items():
            self._targets[f"#/$defs/{name}"] = node

    def leading_back(self) -> str | None:
        """Return the path of a merged reference that leads back to itself. References without siblings
        are not followed, since the backend does not copy their targets."""
        found: list[str] = []
        for _ in self._finished(found.append, with_bare=False):
            if found:
                return _APPLIED.sub("", found[0])
        return None

    def check_patterns(self, context: Context) -> None:
        """Count the patterns that one text must match, in schemas and in the same part of a value."""
        counts: dict[int, int] = {}
        groups: list[tuple[list[Any], str]] = []
        for node, path in self._finished(lambda path: None, with_bare=True):
            options = [counts.get(id(part), 0) for part in node.get("anyOf", ())]
            parts = self._held_together(node)
            num = ("pattern" in node) + sum(counts.get(id(part), 0) for part in parts)
            counts[id(node)] = num + (max(options) if len(options) > 1 else 0)
            groups.append(([node], path))
        seen: set[frozenset[int]] = set()
        num_all = sum("pattern" in node for [node], _ in groups)
        while groups and num_all > MAX_PATTERNS:
            nodes, path = groups.pop()
            if sum(counts.get(id(node), 0) for node in nodes) > MAX_PATTERNS:
                name, _, rest = _APPLIED.sub("", path).partition("\n")
                bare = re.sub(r"-(?:open|closed)$", "", name).replace("#/$defs/root", "#")
                keyword_path = context.paths.get(bare, bare) + rest
                message = (
                    f"one text must match more than {MAX_PATTERNS} patterns; put them into fewer"
                )
                raise fail(context.param, keyword_path, message, "too_complex")
            is_alone = len(nodes) == 1 and not self._held_together(nodes[0])
            for keyword_path, children in () if is_alone else self._schemas_by_part(nodes).items():
                key = frozenset(map(id, children))
                if len(key) > 1 and key not in seen and len(seen) < _MAX_GROUPS:
                    seen.add(key)
                    groups.append((children, path + keyword_path))

    def _held_together(self, node: Object) -> list[Any]:
        """Return the other schemas that must hold where a schema does."""
        options = node.get("anyOf", ())
        parts = [*node.get("allOf", ()), *(options if len(options) == 1 else ())]
        return [*parts, self._targets[node["$ref"]]] if "$ref" in node else parts

    def _schemas_by_part(self, nodes: list[Any]) -> dict[str, list[Any]]:
        """Return, where all of `nodes` hold, the schemas for each part of the value by its path."""
        found: dict[str, list[Any]] = {}
        waiting, seen = list(nodes), set(map(id, nodes))
        while waiting and len(seen) < _MAX_HELD:
            node = waiting.pop()
            if isinstance(node, dict):
                for child, is_merged, keyword_path in self._parts(node, False, "", with_bare=False):
                    if not is_merged and not _APPLIED.search(keyword_path):
                        found.setdefault(keyword_path, []).append(child)
                held = [part for part in self._held_together(node) if id(part) not in seen]
                seen.update(map(id, held))
                waiting += held
        return found

    def _finished(
        self, back: Callable[[str], None], *, with_bare: bool
    ) -> Iterator[tuple[Object, str]]:
        """Yield every schema with its path, after the schemas in it.

        back: called with the path of a reference to a schema that is not finished. with_bare: follow
        references without siblings as well.
        """
        open_ones: set[tuple[int, bool]] = set()
        done: set[tuple[int, bool]] = set()
        for name, root in self._targets.items():
            stack: list[tuple[Object, bool, str, Iterator[_Part]]] = []
            found: _Part | None = (root, False, f"{name}\n")
            while found is not None or stack:
                if found is None:
                    node, is_merged, path, _ = stack.pop()
                    open_ones.discard((id(node), is_merged))
                    done.add((id(node), is_merged))
                    yield node, path
                else:
                    node, is_merged, path = found
                    key = (id(node), is_merged)
                    if key in open_ones:
                        back(
                            next(
                                keyword_path
                                for above, _, keyword_path, _ in reversed(stack)
                                if "$ref" in above
                            )
                        )
                    elif isinstance(node, dict) and key not in done:
                        open_ones.add(key)
                        parts = self._parts(node, is_merged, path, with_bare)
                        stack.append((node, is_merged, path, parts))
                found = next(stack[-1][3], None) if stack else None

    def _parts(self, node: Object, is_merged: bool, path: str, with_bare: bool) -> Iterator[_Part]:
        in_place = ("$ref" in node) + len(node.get("allOf", ())) + ("anyOf" in node)
        is_merged = is_merged or in_place > 1
        is_merged = is_merged or bool(node.keys() - {"$ref", "allOf", "anyOf", "$defs"})
        for keyword in ("properties", "patternProperties"):
            for name, child in node.get(keyword, {}).items():
                yield child, False, under(path, keyword, name)
        for keyword in ("items", "additionalProperties"):
            yield node.get(keyword), False, under(path, keyword)
        for i, child in enumerate(node.get("prefixItems", ())):
            yield child, False, under(path, "prefixItems", i)
        for keyword in ("allOf", "anyOf"):
            for i, child in enumerate(node.get(keyword, ())):
                yield child, is_merged, under(path, keyword, i)
        if "$ref" in node and (is_merged or with_bare):
            yield self._targets[node["$ref"]], is_merged, f"{node['$ref']}\n"
