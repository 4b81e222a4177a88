"""The keywords of objects, written out in those that the backend enforces.

A listed property that a pattern matches too has both schemas in the backend.

Promises: equivalences only; what remains is refused.
Does not know: arrays, references.
"""

from __future__ import annotations

from typing import Any, NoReturn

from eyas.schemas.counts import at_least, at_most
from eyas.schemas.keywords import Schema
from eyas.schemas.limits import under
from eyas.schemas.names import both
from eyas.schemas.patterns import is_universal, listed_names
from eyas.schemas.property_names import Members, restricted
from eyas.schemas.rewriting import Rewriting


def rewrite_object(
    rewriter: Rewriting,
    schema: dict[str, Any],
    place: str,
    out: dict[str, Any],
    conditions: list[Schema],
) -> None:
    """Adds to `out` and `conditions` what the object keywords of `schema` ask for."""
    named: dict[str, Schema] = {
        name: rewriter.schema(child, under(place, "properties", name))
        for name, child in schema.get("properties", {}).items()
    }
    patterns: dict[str, Schema] = {
        pattern: rewriter.schema(child, under(place, "patternProperties", pattern))
        for pattern, child in schema.get("patternProperties", {}).items()
    }
    rest: Schema = True
    if "additionalProperties" in schema:
        rest = rewriter.schema(schema["additionalProperties"], under(place, "additionalProperties"))
    elif "unevaluatedProperties" in schema:
        rest, seen = rewriter.attempt(lambda: _unevaluated(rewriter, schema, place), (True, {}))
        if rest is not True:
            named = {**named, **{name: True for name in seen if name not in named}}
    for pattern in [pattern for pattern in patterns if is_universal(pattern)]:
        everywhere = patterns.pop(pattern)
        named = {name: both(child, everywhere) for name, child in named.items()}
        patterns = {other: both(child, everywhere) for other, child in patterns.items()}
        rest = everywhere
    if len(patterns) > 1:
        _spell_out(patterns, named)
    if patterns and rewriter.beside.has_others(schema):
        clash = under(place, "patternProperties")
        patterns, rest = rewriter.attempt(lambda: _refuse(rewriter, clash), ({}, True))
    patterns = _translated(rewriter, patterns, under(place, "patternProperties"))
    required = list(dict.fromkeys(schema.get("required", ())))
    if "propertyNames" in schema:
        members: Members = (named, patterns, rest)
        named, patterns, rest = rewriter.attempt(
            lambda: restricted(rewriter, schema, place, members, required), members
        )
    beside = rewriter.beside.of(schema)
    group: dict[str, Any] = {}
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
        rewriter.attempt(lambda: at_most(rewriter, most, place, beside, group, conditions), None)
    if schema.get("minProperties"):
        least = int(schema["minProperties"])
        rewriter.attempt(lambda: at_least(rewriter, least, place, beside, group, conditions), None)
    out.update(group)


def _translated(rewriter: Rewriting, patterns: dict[str, Schema], spot: str) -> dict[str, Schema]:
    """The patterns as the backend takes them."""
    found: dict[str, Schema] = {}

    def add(pattern: str, child: Schema) -> None:
        text = rewriter.context.pattern(pattern, under(spot, pattern))
        found[text] = both(found.get(text, True), child)

    for pattern, child in patterns.items():
        rewriter.attempt(lambda pattern=pattern, child=child: add(pattern, child), None)
    return found


def _spell_out(patterns: dict[str, Schema], named: dict[str, Schema]) -> None:
    """Patterns that are lists of names become properties: patterns that overlap are refused."""
    for pattern in list(patterns):
        names = listed_names(pattern)
        if names is not None:
            child = patterns.pop(pattern)
            for name in names:
                named[name] = both(named.get(name, True), child)


def _refuse(rewriter: Rewriting, spot: str) -> NoReturn:
    message = "cannot be enforced beside other patterns for names of the same object; write all of "
    message += "them into one patternProperties, or list the properties"
    raise rewriter.context.unsupported(spot, message)


def _unevaluated(
    rewriter: Rewriting, schema: dict[str, Any], place: str
) -> tuple[Schema, dict[str, None]]:
    """additionalProperties in place of unevaluatedProperties, and the names that the schemas beside it
    list: exact where these are allOf and $ref to plain lists of properties."""
    spot = under(place, "unevaluatedProperties")
    rest = rewriter.schema(schema["unevaluatedProperties"], spot)
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
            raise rewriter.context.unsupported(spot, message)
        waiting += [(part, depth + 1) for part in node.get("allOf", [])]
        if "$ref" in node:
            waiting.append((rewriter.context.resolve(node, place)[0], depth + 1))
    return rest, seen
