"""The keywords of objects together: counts, names, patterns, and the schemas beside them."""

from __future__ import annotations

from typing import Any

import pytest

from eyas.core import GrammarError
from eyas.schemas import prepare
from tests.schemas.enforcing import check

COUNTED: list[tuple[Any, list[Any], list[Any]]] = [
    (
        {"type": "object", "properties": {"a": False}, "minProperties": 1, "maxProperties": 1},
        [{"b": 1}],
        [{}, {"a": 1}, {"b": 1, "c": 2}],
    ),
    (
        {"type": "object", "required": ["a"], "properties": {"a": {}, "b": False}}
        | {"minProperties": 2, "maxProperties": 2},
        [{"a": 1, "c": 2}],
        [{"a": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 2, "d": 3}],
    ),
    (
        {"type": "object", "properties": {"a": False, "b": {}}, "minProperties": 1},
        [{"b": 1}, {"c": 1}, {"b": 1, "c": 1}],
        [{}, {"a": 1}],
    ),
    ({"required": ["a", "b"], "maxProperties": 1}, [1, []], [{}, {"a": 1}, {"a": 1, "b": 2}]),
    (
        {"properties": {"a": {}}, "additionalProperties": False, "minProperties": 2},
        [1, []],
        [{}, {"a": 1}],
    ),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), COUNTED)
def test_both_limits_on_the_number_of_properties_hold(
    schema: Any, valid: list[Any], invalid: list[Any]
) -> None:
    check(schema, valid, invalid)


DRAFT_3 = {"$schema": "http://json-schema.org/draft-03/schema#"}


@pytest.mark.parametrize("named", [{}, DRAFT_3])
def test_a_property_that_says_required_of_itself_is_required(named: dict[str, str]) -> None:
    properties = {
        "a": {"type": "string", "required": True},
        "b": {"type": "object", "required": True, "properties": {"c": {"required": False}}},
    }
    check(
        {**named, "type": "object", "properties": properties},
        [{"a": "x", "b": {}}],
        [{}, {"a": "x"}, {"b": {}}],
    )


def test_in_draft_3_required_says_nothing_elsewhere() -> None:
    check({**DRAFT_3, "items": {"type": "object", "required": True}}, [[], [{}]], [[1]])
    with pytest.raises(GrammarError, match="#/items/required: must be a list of property names"):
        prepare({"items": {"type": "object", "required": True}}, param="schema")
