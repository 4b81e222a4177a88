"""Removal of parts of a schema that no finite value satisfies, such as an object that requires itself.

Promises: the result allows the same values, without choices from which no text could be finished.
Does not know: keywords that the rewriter does not write.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from eyas.schemas.keywords import Object, Schema, common_types, types_of, with_children

_MAX_STEPS = 500_000
"""Schemas that are visited; a definition is visited again if one that it refers to became finite."""


def without_endless(document: Schema) -> Schema:
    """Return the document with every reference to an endless definition replaced by false, or false if
    the root is endless."""
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
            return document  # too large to follow: nothing is removed
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
    """Return the references of a schema and all below it, and the number of these schemas."""
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
    """Whether a schema has a finite value, given that the definitions `finite` have one."""
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


def _object_can_end(schema: Object, finite: set[str]) -> bool:
    named = schema.get("properties", {})
    return all(_can_end(named.get(name, True), finite) for name in schema.get("required", ()))


def _array_can_end(schema: Object, finite: set[str]) -> bool:
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
