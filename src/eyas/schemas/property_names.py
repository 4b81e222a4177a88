"""propertyNames, written out in the names, patterns and rest of its object.

Promises: equivalences only; what remains is refused.
Does not know: how the object's own schemas are rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eyas.core import GrammarError
from eyas.schemas import automata
from eyas.schemas.ecma import read
from eyas.schemas.formats import INEXPRESSIBLE, NATIVE, PATTERNS
from eyas.schemas.keywords import Schema, types_of
from eyas.schemas.limits import MAX_PROPERTIES, fail, under
from eyas.schemas.names import both, is_anything
from eyas.schemas.rewriting import Rewriting
from eyas.schemas.trees import Node, PatternFault

_UNCLEAR = ("anyOf", "oneOf", "not", "if", "$dynamicRef", "$recursiveRef", "extends", "disallow")

Members = tuple[dict[str, Schema], dict[str, Schema], Schema]
"""properties, patternProperties, additionalProperties."""


@dataclass(slots=True)
class _Rule:
    """What names must be: one of `names` (None: any), in all of `patterns`."""

    names: list[str] | None = None
    patterns: list[str] = field(default_factory=list)

    def keep(self, values: list[Any]) -> None:
        """Only these."""
        texts = dict.fromkeys(value for value in values if isinstance(value, str))
        known = texts if self.names is None else dict.fromkeys(self.names)
        self.names = [name for name in texts if name in known]


def restricted(
    rewriter: Rewriting, schema: dict[str, Any], place: str, members: Members, required: list[str]
) -> Members:
    """The members of an object under the condition on their names."""
    spot = under(place, "propertyNames")
    rule = _rule(rewriter, schema["propertyNames"], spot)
    named, patterns, rest = members
    if rule.names is None and not rule.patterns:
        return members
    texts = list(dict.fromkeys([*rule.patterns, *patterns]))
    trees = _trees(rewriter, texts, spot)
    budget = automata.Budget()
    matchers = {
        text: automata.Matcher(tree, budget) for text, tree in zip(texts, trees, strict=True)
    }

    def fits(text: str, name: str) -> bool:
        found = matchers[text].matches(name)
        if found is None:
            raise _unclear(rewriter, spot)
        return found

    def of_name(name: str) -> Schema:
        """What the value of a name must satisfy."""
        if not all(fits(text, name) for text in rule.patterns):
            return False
        hit = [child for text, child in patterns.items() if fits(text, name)]
        if name not in named and not hit:
            return rest
        found = named.get(name, True)
        for child in hit:
            found = both(found, child)
        return found

    if rule.names is not None:
        allowed = set(rule.names)
        if len(allowed) > MAX_PROPERTIES:
            message = f"allows {len(allowed)} names; the limit is {MAX_PROPERTIES}; use a pattern"
            raise fail(rewriter.context.param, spot, message, "too_complex")
        order = [*(name for name in named if name in allowed), *rule.names]
        return {name: of_name(name) for name in dict.fromkeys(order)}, {}, False
    if rewriter.beside.has_others(schema):
        raise _unclear(rewriter, spot)
    known = dict.fromkeys((*named, *required))
    kept = {name: of_name(name) for name in known}
    if len(texts) == 1 and (is_anything(rest) or not any(fits(texts[0], name) for name in known)):
        return kept, {} if rest is False else {texts[0]: rest}, False
    regions = automata.regions(trees, list(known), budget)
    if regions is None:
        raise _unclear(rewriter, spot)
    num_rules = len(rule.patterns)
    written: dict[str, Schema] = {}
    for held, pattern in regions.items():
        if all(held[:num_rules]):
            hit = [
                patterns[text]
                for text, is_hit in zip(texts, held, strict=True)
                if is_hit and text in patterns
            ]
            child: Schema = True if hit else rest
            for other in hit:
                child = both(child, other)
            written[pattern] = child
    return kept, {p: child for p, child in written.items() if child is not False}, False


def _rule(rewriter: Rewriting, schema: Schema, spot: str) -> _Rule:
    """What a schema says of strings, through $ref and allOf."""
    context = rewriter.context
    rule = _Rule()
    waiting: list[tuple[Any, str]] = [(schema, spot)]
    seen: set[int] = set()
    while waiting:
        node, place = waiting.pop(0)
        if isinstance(node, bool) or "string" not in types_of(node):
            if not isinstance(node, bool) or not node:
                rule.keep([])
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        for keyword in node:
            if keyword in _UNCLEAR:
                raise _unclear(rewriter, under(place, keyword))
        for keyword, values in (("enum", node.get("enum")), ("const", [node.get("const")])):
            if keyword in node:
                rule.keep(values)
        rule.patterns += _patterns(rewriter, node, place)
        waiting += [
            (part, under(place, "allOf", i)) for i, part in enumerate(node.get("allOf", ()))
        ]
        if "$ref" in node:
            waiting.append(context.resolve(node, place))
    rule.patterns = list(dict.fromkeys(rule.patterns))
    return rule


def _patterns(rewriter: Rewriting, node: dict[str, Any], place: str) -> list[str]:
    """The keywords of strings as patterns."""
    found = []
    if "pattern" in node:
        found.append(rewriter.context.pattern(node["pattern"], under(place, "pattern")))
    least, most = int(node.get("minLength", 0)), node.get("maxLength")
    if least or most is not None:
        found.append(f"^(?s:.){{{least},{'' if most is None else int(most)}}}$")
    name = node.get("format")
    if name in PATTERNS:
        found.append(PATTERNS[name])
    elif name in NATIVE or name in INEXPRESSIBLE:
        raise _unclear(rewriter, under(place, "format"))
    return found


def _trees(rewriter: Rewriting, texts: list[str], spot: str) -> list[Node]:
    try:
        return [read(text) for text in texts]
    except PatternFault:  # what only the backend can read
        raise _unclear(rewriter, spot) from None


def _unclear(rewriter: Rewriting, spot: str) -> GrammarError:
    message = "cannot be enforced on names here; use one pattern or an enum, or list the properties"
    return rewriter.context.unsupported(spot, message)
