"""Schemas that xgrammar would enforce only partly are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eyas.core import GrammarError
from eyas.schemas import check_ignored, prepare, unspelled

IGNORED: list[tuple[dict[str, Any], str]] = [
    ({"allOf": [{"type": "object"}, {"required": ["a"]}]}, "#/allOf"),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}], "minimum": 3}, "#/minimum"),
    ({"enum": [1, "a"], "type": "string"}, "#/type"),
    ({"minLength": 2}, "#/minLength"),
    ({"type": "number", "multipleOf": 2}, "#/multipleOf"),
    ({"type": "string", "pattern": "^a+b+$", "maxLength": 2}, "#/maxLength"),
    ({"type": "string", "pattern": r"^\p{L}$"}, "#/pattern"),
    ({"type": "string", "pattern": "^(?i)a$"}, "#/pattern"),
    ({"type": "string", "pattern": "^(a$|b)"}, "#/pattern"),
    ({"type": "object", "required": ["a"]}, "#/required"),
    ({"type": "object", "patternProperties": {"^a": {"type": "null"}}}, "#/patternProperties"),
    ({"items": {"type": "object", "minProperties": 1}, "type": "array"}, "#/items/minProperties"),
    ({"$ref": "#/$defs/x", "minimum": 3, "$defs": {"x": {"type": "integer"}}}, "#/"),
]


@pytest.mark.parametrize(("schema", "place"), IGNORED, ids=[json.dumps(s) for s, _ in IGNORED])
def test_a_keyword_that_would_be_ignored_is_named(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(GrammarError) as caught:
        check_ignored(prepare(schema, param="schema"))
    assert caught.value.fault == "unsupported"
    assert caught.value.message.startswith(place)


def test_a_rewritten_keyword_is_told() -> None:
    named = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    schema = {"type": "object", "properties": named, "dependentRequired": {"a": ["b"]}}
    with pytest.raises(GrammarError, match="dependentRequired"):
        check_ignored(prepare(schema, param="schema"))


def test_properties_may_be_called_like_keywords() -> None:
    inner = {"type": "object", "properties": {"a": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"enum": inner, "const": inner}}
    assert unspelled(json.loads(prepare(schema, param="schema"))) == schema


def test_what_is_enforced_passes() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[a-z]+$"},
            "size": {"type": ["integer", "null"], "minimum": 1},
            "kind": {"type": "string", "enum": ["a", "b"]},
            "parts": {"type": "array", "items": {"$ref": "#"}, "maxItems": 3},
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    check_ignored(prepare(schema, param="schema"))
