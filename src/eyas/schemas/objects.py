"""The keywords of objects, rewritten in those that the backend enforces.

In the backend a listed property that a pattern also matches has both schemas.

Promises: equivalences only; everything else is refused.
Does not know: arrays, references.
"""

from __future__ import annotations

from typing import Any, NoReturn

from eyas.schemas.counts import at_least, at_most
from eyas.schemas.keywords import Object, Schema
from eyas.schemas.limits import under
from eyas.schemas.name_spelling import both
from eyas.schemas.patterns import is_universal, listed_names
from eyas.schemas.property_names import Members, restrict_names
from eyas.schemas.rewriter_base import RewriterBase


def rewrite_object(
    rewriter: RewriterBase, schema: Object, path: str, out: Object, conditions: list[Schema]
) -> None:
    """Rewrite the object keywords of `schema` into `out` and into further `conditions`."""
    named: dict[str, Schema] = {
        name: rewriter.schema(child, under(path, "properties", name))
        for name, child in schema.get("properties", {}).items()
    }
    patterns: dict[str, Schema] = {
        pattern: rewriter.schema(child, under(path, "patternProperties", pattern))
        for pattern, child in schema.get("patternProperties", {}).items()
    }
    rest: Schema = True
    if "additionalProperties" in schema:
        rest = rewriter.schema(schema["additionalProperties"], under(path, "additionalProperties"))
    elif "unevaluatedProperties" in schema:
        rest, seen = rewriter.attempt(lambda: _unevaluated(rewriter, schema, path), (True, {}))
        if rest is not True:
            named = {**named, **{name: True for name in seen if name not in named}}
    for pattern in [pattern for pattern in patterns if is_universal(pattern)]:
        everywhere = patterns.pop(pattern)
        named = {name: both(child, everywhere) for name, child in named.items()}
        patterns = {other: both(child, everywhere) for other, child in patterns.items()}
        rest = everywhere
    _list_names(patterns, named)
    if patterns and rewriter.siblings.have_other_patterns(schema):
        patterns, rest = rewriter.attempt(
            lambda: _refuse(rewriter, under(path, "patternProperties")), ({}, True)
        )
    patterns = _for_backend(rewriter, patterns, under(path, "patternProperties"))
    required = list(dict.fromkeys(schema.get("required", ())))
    if "propertyNames" in schema:
        members: Members = (named, patterns, rest)
        named, patterns, rest = rewriter.attempt(
            lambda: restrict_names(rewriter, schema, path, members), members
        )
    siblings = rewriter.siblings.names(schema)
    group: Object = {}
    if named:
        group["properties"] = named
    if patterns:
        group["patternProperties"] = patterns
    if rest is not True and rest != {}:
        group["additionalProperties"] = rest
    if required:
        group["required"] = required
    if "maxProperties" in schema:
        most = int(schema["maxProperties"])
        rewriter.attempt(lambda: at_most(rewriter, most, path, siblings, group, conditions), None)
    if schema.get("minProperties"):
        least = int(schema["minProperties"])
        rewriter.attempt(lambda: at_least(rewriter, least, path, siblings, group, conditions), None)
    out.update(group)


def _for_backend(
    rewriter: RewriterBase, patterns: dict[str, Schema], keyword_path: str
) -> dict[str, Schema]:
    """Return the patterns in the backend's syntax."""
    written: dict[str, Schema] = {}

    def add(pattern: str, child: Schema) -> None:
        text = rewriter.context.name_pattern(pattern, under(keyword_path, pattern))
        written[text] = both(written.get(text, True), child)

    for pattern, child in patterns.items():
        rewriter.attempt(lambda pattern=pattern, child=child: add(pattern, child), None)
    return written


def _list_names(patterns: dict[str, Schema], named: dict[str, Schema]) -> None:
    """Move patterns that only list names, such as ^(a|b)$, to the properties."""
    for pattern in list(patterns):
        names = listed_names(pattern)
        if names is not None:
            child = patterns.pop(pattern)
            for name in names:
                named[name] = both(named.get(name, True), child)


def _refuse(rewriter: RewriterBase, keyword_path: str) -> NoReturn:
    message = "cannot be enforced beside other patterns for names of the same object; write all of "
    message += "them into one patternProperties, or list the properties"
    raise rewriter.context.unsupported(keyword_path, message)


def _unevaluated(
    rewriter: RewriterBase, schema: Object, path: str
) -> tuple[Schema, dict[str, None]]:
    """Return `unevaluatedProperties` as additionalProperties, and the names that the applied schemas
    list. Refused unless these are allOf and $ref to plain lists of properties."""
    keyword_path = under(path, "unevaluatedProperties")
    rest = rewriter.schema(schema["unevaluatedProperties"], keyword_path)
    seen: dict[str, None] = {}
    waiting: list[tuple[Any, int]] = [(schema, 0)]
    while rest is not True and rest != {} and waiting:
        node, depth = waiting.pop(0)
        if isinstance(node, bool):
            continue
        seen.update(dict.fromkeys(node.get("properties", {})))
        unclear = (
            *("anyOf", "oneOf", "if", "dependentSchemas", "dependencies", "patternProperties"),
            *("$dynamicRef", "$recursiveRef", "not"),
            *(("additionalProperties", "unevaluatedProperties") if depth else ()),
        )
        if depth > 8 or any(keyword in node for keyword in unclear):
            message = "can be enforced beside allOf and $ref to lists of properties only; use "
            message += "additionalProperties, with every property listed"
            raise rewriter.context.unsupported(keyword_path, message)
        waiting += [(part, depth + 1) for part in node.get("allOf", [])]
        if "$ref" in node:
            waiting.append((rewriter.context.resolve(node, path)[0], depth + 1))
    return rest, seen
