"""The targets of `$ref`.

Promises: finds JSON pointers, anchors and embedded resources ($id) within one document; refuses a
reference that leads out of the document or to nothing. References of `root` are absolute, so that its
parts keep their meaning wherever they are written. A $dynamicRef or $recursiveRef with one possible
target in the document is a $ref there.
Does not know: what schemas mean.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from eyas.core import GrammarError
from eyas.schemas.keywords import children
from eyas.schemas.limits import fail, shortened, under

_ROOT = "https://schema.invalid/"


class References:
    """The targets of one document's references. root: a copy of the document with absolute ones."""

    def __init__(self, document: Any, draft: int, param: str) -> None:
        self.root = _copied(document)
        self.param = param
        self._draft = draft
        self._id = "$id" if draft >= 6 else "id"
        self._resources: dict[str, tuple[Any, str]] = {}
        self._anchors: dict[str, tuple[Any, str]] = {}
        self._found: dict[str, tuple[Any, str]] = {}
        self._dynamic: dict[str | bool, list[dict[str, Any]]] = {}
        self._resources[_ROOT] = (self.root, "#")
        self._scan()

    def resolve(self, reference: str, path: str) -> tuple[Any, str]:
        """Return the target of a reference at `path`, and the target's path. GrammarError."""
        if reference not in self._found:
            self._found[reference] = self._target(reference, path)
        return self._found[reference]

    def _target(self, reference: str, path: str) -> tuple[Any, str]:
        try:
            address, fragment = urldefrag(_absolute(reference, _ROOT))
        except ValueError:
            raise self._nowhere(reference, path) from None
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get(f"{address}#{fragment}")
            if found is None and address in self._resources:
                raise self._nowhere(reference, path)
        else:
            found = self._resources.get(address)
        if found is None:
            message = f"{_shown(reference)} leads out of the schema; put its target under $defs"
            raise fail(self.param, under(path, "$ref"), message, "unsupported")
        node, keyword_path = found
        for step in fragment.split("/")[1:] if fragment.startswith("/") else ():
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and step in node:
                node = node[step]
            elif isinstance(node, list) and step.isdecimal() and int(step) < len(node):
                node = node[int(step)]
            else:
                raise self._nowhere(reference, path)
            keyword_path = under(keyword_path, step)
        if not isinstance(node, (dict, bool)):
            message = f"{_shown(reference)} leads to {shortened(node)}, which is no schema"
            raise fail(self.param, under(path, "$ref"), message, "invalid")
        return node, keyword_path

    def _nowhere(self, reference: str, path: str) -> GrammarError:
        message = f"{_shown(reference)} leads nowhere; define its target under $defs"
        return fail(self.param, under(path, "$ref"), message, "invalid")

    def _scan(self) -> None:
        """Record every resource and anchor, and make references absolute."""
        dynamic: list[tuple[dict[str, Any], str]] = []
        waiting = [(self.root, "#", _ROOT)]
        while waiting:
            node, path, base = waiting.pop()
            if not isinstance(node, dict):
                continue
            # Before draft 2019 the keywords beside a $ref are ignored.
            is_blind = self._draft <= 7 and "$ref" in node and node is not self.root
            named = None if is_blind else node.get(self._id)
            if isinstance(named, str) and named and not named.startswith("#"):
                try:
                    base = urldefrag(urljoin(base, named))[0]
                except ValueError:
                    message = f"{shortened(named)} is not an address; remove it"
                    keyword_path = under(path, self._id)
                    raise fail(self.param, keyword_path, message, "invalid") from None
                self._resources.setdefault(base, (node, path))
            if isinstance(node.get("$ref"), str):
                with suppress(ValueError):  # raised where it is followed
                    node["$ref"] = _absolute(node["$ref"], base)
            for keyword in ("$anchor", "$dynamicAnchor", self._id):
                anchor = node.get(keyword)
                if isinstance(anchor, str) and (keyword != self._id or anchor.startswith("#")):
                    self._anchors.setdefault(f"{base}#{anchor.removeprefix('#')}", (node, path))
            for keyword in ("$dynamicAnchor", "$recursiveAnchor"):
                name = node.get(keyword)
                if isinstance(name, (str, bool)) and name:
                    self._dynamic.setdefault(name, []).append(node)
            if "$dynamicRef" in node or "$recursiveRef" in node:
                dynamic.append((node, base))
            below = children(node, path, with_definitions=True)
            waiting.extend((child, child_path, base) for child, child_path in below)
        for node, base in dynamic:
            self._make_static(node, base)

    def _make_static(self, node: dict[str, Any], base: str) -> None:
        """Replace a $dynamicRef or $recursiveRef by a $ref, unless its target depends on the schemas
        that lead to it: then it stays, and is refused where it is rewritten."""
        keyword = "$dynamicRef" if "$dynamicRef" in node else "$recursiveRef"
        reference = node[keyword]
        if "$ref" in node or not isinstance(reference, str):
            return
        try:
            reference = _absolute(reference, base)
            target, _ = self._target(reference, "#")
        except (GrammarError, ValueError):
            return
        name: Any = True
        if keyword == "$dynamicRef":
            name = target.get("$dynamicAnchor") if isinstance(target, dict) else None
        is_named = name is True or unquote(reference).endswith(f"#{name}")
        others = self._dynamic.get(name, []) if is_named and isinstance(name, (str, bool)) else []
        is_dynamic = any(other is target for other in others)
        if not is_dynamic or len(others) == 1:
            del node[keyword]
            node["$ref"] = reference


def _copied(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _copied(child) for key, child in node.items()}
    return [_copied(child) for child in node] if isinstance(node, (list, tuple)) else node


def _absolute(reference: str, base: str) -> str:
    return f"{base}{reference}" if reference.startswith("#") else urljoin(base, reference)


def _shown(reference: str) -> str:
    return shortened(reference.removeprefix(_ROOT))
