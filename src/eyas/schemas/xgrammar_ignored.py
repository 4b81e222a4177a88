"""The check for keywords of a prepared schema that xgrammar would ignore.

Of $ref, const, enum, anyOf, allOf and type xgrammar 0.2.8 reads one in a schema object and ignores the
keywords beside it; of some keywords of one type it reads the first. It enforces a required property
only if `properties` lists it, and the keywords of a type only beside `type`.

Promises: if `check_ignored` returns, xgrammar enforces every keyword of the schema.
Does not know: the library itself; its behaviour was measured.
"""

from __future__ import annotations

import json
import re
from typing import Any

from eyas.core import GrammarError
from eyas.schemas.keywords import Object, has_type, types_of
from eyas.schemas.limits import under
from eyas.schemas.string_rules import string_rule

_LEADS = ("$ref", "const", "enum", "anyOf", "allOf", "type")
_OF_TYPE = {
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "object": ("properties", "additionalProperties", "required"),
}

_PLAIN_NAME = re.compile(r"[ !#-\[\]-~]*")
"""Of a property that other properties are told from."""
_REWRITTEN = " (if, not, oneOf, contains, dependentRequired and others become allOf and anyOf)"
"""The checked schema is a rewritten one, so its author may not know the keywords of the message."""


def check_ignored(schema_text: str) -> None:
    """Raise GrammarError (unsupported), with the path, for the first keyword that xgrammar would
    ignore."""
    root = json.loads(schema_text)
    waiting = [(root, "#")]
    if isinstance(root, dict):
        waiting += [(node, under("#", "$defs", k)) for k, node in root.get("$defs", {}).items()]
    while waiting:
        schema, path = waiting.pop()
        if schema is False:
            raise _ignored(path, "false")
        if isinstance(schema, dict):
            _check(schema, path)
            waiting += _children(schema, path)


def _check(schema: Object, path: str) -> None:
    keywords = [keyword for keyword in schema if keyword != "$defs"]
    leads = [keyword for keyword in _LEADS if keyword in schema]
    if not leads:
        if keywords:
            raise _ignored(under(path, keywords[0]), f"{keywords[0]} without a type beside it")
        return
    lead = leads[0]
    if lead in ("enum", "const") and leads[1:] == ["type"] and len(keywords) == 2:
        values = schema["enum"] if lead == "enum" else [schema["const"]]
        if all(has_type(value, types_of(schema)) for value in values):
            return
    if lead != "type":
        for keyword in keywords:
            if keyword != lead:
                reason = _REWRITTEN if lead in ("allOf", "anyOf") else ""
                raise _ignored(under(path, keyword), f"{keyword} beside {lead}{reason}")
        if lead == "allOf" and len(schema["allOf"]) > 1:
            raise _ignored(under(path, "allOf"), "allOf of several schemas")
        return
    types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    enforced = {keyword for name in types for keyword in _OF_TYPE.get(name, ())}
    for keyword in keywords:
        if keyword != "type" and keyword not in enforced:
            raise _ignored(under(path, keyword), keyword)
    _check_strings(schema, path)
    if schema.get("additionalProperties", True) is not False:
        for name in schema.get("properties", {}):
            if not _PLAIN_NAME.fullmatch(name):
                message = f"the schema of {name!r} where other properties are allowed"
                raise _ignored(under(path, "properties", name), message)
    for name in schema.get("required", ()):
        if name not in schema.get("properties", {}):
            raise _ignored(under(path, "required"), f"the required {name!r} without a property")


def _check_strings(schema: Object, path: str) -> None:
    pattern = schema.get("pattern")
    if pattern is None:
        if "format" in schema and ("minLength" in schema or "maxLength" in schema):
            raise _ignored(under(path, "format"), "format beside a length")
        return
    for keyword in ("format", "minLength", "maxLength"):
        if keyword in schema:
            raise _ignored(under(path, keyword), f"{keyword} beside pattern")
    try:
        string_rule(pattern)
    except ValueError as error:
        raise _ignored(under(path, "pattern"), str(error)) from None


def _children(schema: Object, path: str) -> list[tuple[Any, str]]:
    found: list[tuple[Any, str]] = []
    for keyword in ("allOf", "anyOf", "prefixItems"):
        listed = enumerate(schema.get(keyword, ()))
        found += [(child, under(path, keyword, i)) for i, child in listed]
    for name, child in schema.get("properties", {}).items():
        found.append((child, under(path, "properties", name)))
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            found.append((schema[keyword], under(path, keyword)))
    return found


def _ignored(path: str, what: str) -> GrammarError:
    message = f"{path}: xgrammar ignores {what}; use the llguidance backend, or leave it out"
    return GrammarError(message, "unsupported")
