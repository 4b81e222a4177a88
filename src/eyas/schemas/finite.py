"""Parts of a schema that no finite value satisfies, such as an object that requires itself.

Promises: what remains has the same values; a choice into such a part, from which no text could be
finished, is gone.
Does not know: keywords that the rewriter does not write.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from eyas.schemas.keywords import Schema, common_types, types_of, with_children

_MAX_STEPS = 500_000
"""Schemas that are looked at; only who refers to what has just been found is looked at again."""


def without_endless(document: Schema) -> Schema:
    """The document with every reference to an endless definition replaced by false; false where the
    whole of it is endless."""
    if isinstance(document, bool):
        return document
    definitions = document.get("$defs", {})
    schemas = {"#": {key: child for key, child in document.items() if key != "$defs"}}
    schemas |= {f"#/$defs/{name}": node for name, node in definitions.items()}
    users: dict[str, list[str]] = {name: [] for name in schemas}
    sizes: dict[str, int] = {}
    for name, node in schemas.items():
        named, sizes[name] = _references(node)
        for other in named:
            users[other].append(name)
    finite: set[str] = set()
    waiting = dict.fromkeys(schemas)  # in order, each once
    steps_left = _MAX_STEPS
    while waiting:
        name, _ = waiting.popitem()
        steps_left -= sizes[name]
        if steps_left < 0:
            return document  # too much to follow: nothing is taken out
        if _can_end(schemas[name], finite):
            finite.add(name)
            waiting.update((user, None) for user in users[name] if user not in finite)
    if "#" not in finite:
        return False
    if len(finite) < len(schemas):
        document = _cut(document, schemas.keys() - finite)
        for name in schemas.keys() - finite:
            del document["$defs"][name.rpartition("/")[2]]
        if not document["$defs"]:
            del document["$defs"]
    return document


def _references(schema: Schema) -> tuple[set[str], int]:
    """What a schema and those below it refer to, and how many they are."""
    found: set[str] = set()
    num_schemas = 0
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        num_schemas += 1
        if isinstance(node, dict):
            if "$ref" in node:
                found.add(node["$ref"])
            with_children(node, waiting.append)
    return found, num_schemas


def _can_end(schema: Schema, finite: set[str]) -> bool:
    """Has it a finite value, when references to `finite` have one?"""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and schema["$ref"] not in finite:
        return False
    if not all(_can_end(part, finite) for part in schema.get("allOf", ())):
        return False
    if "anyOf" in schema and not any(_can_end(option, finite) for option in schema["anyOf"]):
        return False
    types = types_of(schema)
    for part in schema.get("allOf", ()):
        types = common_types(types, types_of(part)) if isinstance(part, dict) else types
    if types - {"object", "array"}:
        return True
    return ("object" in types and _object_can_end(schema, finite)) or (
        "array" in types and _array_can_end(schema, finite)
    )


def _object_can_end(schema: dict[str, Any], finite: set[str]) -> bool:
    named = schema.get("properties", {})
    return all(_can_end(named.get(name, True), finite) for name in schema.get("required", ()))


def _array_can_end(schema: dict[str, Any], finite: set[str]) -> bool:
    least = schema.get("minItems", 0)
    prefix = schema.get("prefixItems", [])
    needed = prefix[:least]
    if least > len(prefix):
        needed = [*needed, schema.get("items", True)]
    return all(_can_end(child, finite) for child in needed)


def _cut(node: Any, endless: Set[str]) -> Any:
    if not isinstance(node, dict):
        return node
    if node.get("$ref") in endless:
        return False
    return with_children(node, lambda child: _cut(child, endless))
