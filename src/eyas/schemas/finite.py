"""Parts of a schema that no finite value satisfies, such as an object that requires itself.

Promises: what remains has the same values; a choice into such a part, from which no text could be
finished, is gone.
Does not know: keywords that the rewriter does not write.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from eyas.schemas.keywords import Schema, common_types, types_of, with_children

_MAX_ROUNDS = 40


def without_endless(document: Schema) -> Schema:
    """The document with every reference to an endless definition replaced by false; false where the
    whole of it is endless."""
    if isinstance(document, bool):
        return document
    definitions = document.get("$defs", {})
    schemas = {"#": document} | {f"#/$defs/{name}": node for name, node in definitions.items()}
    finite: set[str] = set()
    for _ in range(_MAX_ROUNDS):
        found = {
            name
            for name, node in reversed(schemas.items())
            if name not in finite and _can_end(node, finite)
        }
        if not found:
            break
        finite |= found
    else:
        return document  # too long a chain to follow: nothing is taken out
    if "#" not in finite:
        return False
    if len(finite) < len(schemas):
        document = _cut(document, schemas.keys() - finite)
        for name in schemas.keys() - finite:
            del document["$defs"][name.rpartition("/")[2]]
        if not document["$defs"]:
            del document["$defs"]
    return document


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
