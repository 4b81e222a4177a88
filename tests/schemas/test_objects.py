"""The keywords of objects in combination: counts, names, patterns, and sibling schemas."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest

from eyas.core import GrammarError
from eyas.schemas import prepare
from tests.schemas.enforcing import allowed, check, matcher

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


NAMED = {"type": "object", "patternProperties": {"^x-": {"type": "string"}}}
BESIDE: list[tuple[Any, list[Any], list[Any]]] = [
    (
        {**NAMED, "dependentRequired": {"a": ["b"]}},
        [{}, {"c": 1}, {"b": 1}, {"a": 1, "b": 1}, {"x-a": "s"}],
        [{"a": 1}, {"x-a": 1}],
    ),
    ({**NAMED, "allOf": [{"maxProperties": 1}]}, [{}, {"c": 1}], [{"c": 1, "d": 1}, {"x-": 1}]),
    ({**NAMED, "allOf": [{"required": ["name"]}]}, [{"name": 1}], [{}, {"name": 1, "x-": 1}]),
    (
        {**NAMED, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
        [{}, {"c": 1}, {"a": 1, "b": 1}],
        [{"a": 1}, {"x-a": 1}],
    ),
    (
        {"type": "object", "properties": {"a": {"type": "integer"}}}
        | {"additionalProperties": {"type": "string"}}
        | {"anyOf": [{"required": ["z"]}, {"required": ["a"]}]},
        [{"z": "x"}, {"a": 1}, {"a": 1, "z": "x"}],
        [{}, {"z": 1}, {"b": "x"}, {"a": "x"}],
    ),
    (
        {"type": "object", "required": ["b"], "allOf": [{"required": ["a"]}], "maxProperties": 2}
        | {"additionalProperties": {"type": "integer"}},
        [{"b": 1, "a": 1}],
        [{"b": 1}, {"b": 1, "a": "x"}],
    ),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), BESIDE)
def test_an_object_stays_open_beside_other_schemas(
    schema: Any, valid: list[Any], invalid: list[Any]
) -> None:
    check(schema, valid, invalid)


def test_properties_come_in_the_order_of_the_schemas_that_list_them() -> None:
    """The properties of an applicator that precedes `properties` come first."""
    first: dict[str, Any] = {"allOf": [{"properties": {"a": {"type": "integer"}}}]}
    last: dict[str, Any] = {"properties": {"b": {"type": "integer"}}}
    for schema, order in (({**first, **last}, "ab"), ({**last, **first}, "ba")):
        texts = [f'{{"{one}":1,"{other}":1}}' for one, other in ("ab", "ba")]
        assert allowed(schema, texts) == [f'{{"{order[0]}":1,"{order[1]}":1}}']


@pytest.mark.parametrize(
    "applied",
    [
        {"allOf": [{"properties": {"b": {"const": 1}}}]},
        {"anyOf": [{"properties": {"b": {"const": 1}}}, {"required": ["c"]}]},
        {"oneOf": [{"properties": {"b": {"const": 1}}}, {"properties": {"b": {"const": 2}}}]},
        {"allOf": [{"if": {"properties": {"b": {"const": 1}}}, "then": {"required": ["a"]}}]},
        {"$ref": "#/$defs/x"},
    ],
    ids=lambda applied: next(iter(applied)),
)
def test_properties_that_other_schemas_refine_keep_their_order(applied: dict[str, Any]) -> None:
    """Also where these schemas stand before `properties`."""
    listed = {"properties": {name: {"type": "integer"} for name in "abc"}}
    definitions = {"$defs": {"x": {"properties": {"c": {"const": 1}}, "required": ["b"]}}}
    texts = ["{" + ",".join(f'"{name}":1' for name in names) + "}" for names in permutations("abc")]
    for schema in ({**applied, **listed}, {**listed, **applied}):
        assert allowed({**schema, **definitions}, texts) == texts[:1]


@pytest.mark.parametrize(
    ("pattern", "matched", "others"),
    [
        ("^(?!-)[a-z-]+$", ["a", "a-"], ["-a", "A"]),
        ("^(?!(?:in|is)$)[a-z]+$", ["i", "ins"], ["in", "is"]),
        ("^(?=.*[A-Z])(?!.*--).+$", ["aB", "B-"], ["b", "B--"]),
        ("^(?=b)a", [], ["a", "b"]),
    ],
)
def test_look_aheads_of_patterns_for_names_hold(
    pattern: str, matched: list[str], others: list[str]
) -> None:
    schema = {"type": "object", "patternProperties": {pattern: WHOLE}}
    closed = {**schema, "additionalProperties": False}
    check(closed, [{name: 1} for name in matched], [{name: 1} for name in others])
    texts = {"additionalProperties": {"type": "string"}}
    values = [{name: 1} for name in matched] + [{name: "x"} for name in others]
    wrong = [{name: "x"} for name in matched] + [{name: 1} for name in others]
    check({**schema, **texts}, values, wrong)


WHOLE = {"type": "integer"}
ON_NAMES: list[tuple[Any, list[Any], list[Any]]] = [
    (
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "type": "string"}}
        | {"additionalProperties": WHOLE},
        [{}, {"a": 1}, {"a": 1, "b": 2}],
        [{"a": "x"}, {"B": 1}, {"a": 1, "a1": 1}],
    ),
    (
        {"type": "object", "required": ["ab"], "additionalProperties": WHOLE}
        | {"propertyNames": {"maxLength": 2}},
        [{"ab": 1}, {"ab": 1, "c": 2}],
        [{}, {"ab": "x"}, {"ab": 1, "abc": 1}],
    ),
    (
        {"type": "object", "properties": {"ab": WHOLE, "z": WHOLE}, "additionalProperties": {}}
        | {"propertyNames": {"enum": ["a", "ab", 3]}},
        [{"ab": 2, "a": "x"}],
        [{"ab": "x"}, {"z": 1}, {"d": 1}],
    ),
    (
        {"type": "object", "propertyNames": {"const": "a"}, "required": ["a"]},
        [{"a": "x"}],
        [{}, {"b": 1}, {"a": 1, "b": 1}],
    ),
    (
        {"type": "object", "propertyNames": {"pattern": "^a"}, "additionalProperties": False},
        [{}],
        [{"a": 1}, {"b": 1}],
    ),
    (
        {"type": "object", "propertyNames": {"pattern": "^a"}, "required": ["ab"]}
        | {"additionalProperties": WHOLE, "maxProperties": 2},
        [{"ab": 1}, {"ab": 1, "a": 2}],
        [{}, {"ab": "x"}, {"a": 1}, {"ab": 1, "b": 1}, {"ab": 1, "a": 1, "aa": 1}],
    ),
    (
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": WHOLE},
        [{}, {"a": 1}],
        [{"a": "x"}],
    ),
    (
        {
            "type": "object",
            "propertyNames": {"$ref": "#/$defs/Color"},
            "additionalProperties": WHOLE,
        }
        | {"$defs": {"Color": {"enum": ["red", "blue"], "title": "Color", "type": "string"}}},
        [{}, {"red": 1, "blue": 2}],
        [{"red": "x"}, {"green": 1}],
    ),
    (
        {"type": "object", "propertyNames": {"pattern": "^a", "maxLength": 2, "description": "x"}},
        [{}, {"a": 1, "ab": 1}],
        [{"b": 1}, {"abc": 1}],
    ),
    ({"type": "object", "propertyNames": False}, [{}], [{"a": 1}]),
    (
        {"type": "object", "propertyNames": {"format": "json-pointer"}},
        [{"/a~0b": 1}, {"": 1}],
        [{"a": 1}, {"/~2": 1}],
    ),
    ({"type": "object", "propertyNames": {"type": "integer"}}, [{}], [{"1": 1}]),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), ON_NAMES)
def test_a_condition_on_names_leaves_their_schemas(
    schema: Any, valid: list[Any], invalid: list[Any]
) -> None:
    check(schema, valid, invalid)


NAMED_A = {"properties": {"a": WHOLE}}
ON_NAMES_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**NAMED_A, "propertyNames": {"anyOf": [{"pattern": "a"}, {"pattern": "b"}]}}, "/anyOf"),
    ({"propertyNames": {"allOf": [{"minLength": 2}, {"pattern": "^/"}]}}, "/allOf"),
    ({"propertyNames": {"format": "email"}}, "/format"),
    ({"propertyNames": {"format": "date", "minLength": 2}}, "/format"),
    ({**NAMED_A, "propertyNames": {"not": {}}}, "/not"),
    ({**NAMED_A, "propertyNames": {"pattern": "^[a-z]+$"}}, ""),
    ({"patternProperties": {"^x": WHOLE}, "propertyNames": {"pattern": "^[a-z]$"}}, ""),
    ({"patternProperties": {"^x": WHOLE}, "propertyNames": {"enum": ["xa"]}}, ""),
    ({"propertyNames": {"pattern": "^a+b+$", "maxLength": 3}}, "/pattern"),
    ({"propertyNames": {"enum": ["a"], "pattern": "b"}}, ""),
]


@pytest.mark.parametrize(("members", "below"), ON_NAMES_REFUSED)
def test_other_conditions_on_names_are_refused_or_left_out(
    members: dict[str, Any], below: str
) -> None:
    """A lenient schema loses this condition only."""
    schema = {"type": "object", **members}
    with pytest.raises(GrammarError, match=f"#/propertyNames{below}: ") as caught:
        prepare(schema, param="schema")
    assert caught.value.fault == "unsupported"
    assert "propertyNames, or list the properties" in caught.value.message
    left = prepare(schema, param="schema", lenient=True)
    assert left == prepare(
        {k: v for k, v in schema.items() if k != "propertyNames"}, param="schema"
    )


ABOVE: list[tuple[Any, list[Any], list[Any]]] = [
    (
        {"type": "object", "allOf": [{"properties": {"a": WHOLE}}], "minProperties": 1},
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
        [{}, {"a": "x"}],
    ),
    (
        {"type": "object", "anyOf": [{"properties": {"a": WHOLE}, "required": ["b"]}, {}]}
        | {"minProperties": 1},
        [{"a": 1}, {"c": 1}, {"b": 1}],
        [{}],
    ),
    (
        {"type": "object", "properties": {"a": WHOLE}, "$ref": "#/$defs/some"}
        | {"$defs": {"some": {"minProperties": 1}}},
        [{"a": 1}, {"b": "x"}],
        [{}, {"a": "x"}],
    ),
    (
        {"type": "object", "allOf": [{"properties": {"a": WHOLE}, "required": ["a"]}]}
        | {"maxProperties": 2},
        [{"a": 1}, {"a": 1, "b": 1}],
        [{}, {"a": 1, "b": 1, "c": 1}],
    ),
    (
        {"type": "object", "properties": {"a": WHOLE}, "allOf": [{"maxProperties": 0}]},
        [{}],
        [{"a": 1}, {"b": 1}],
    ),
    (
        {"type": "object", "properties": {"b": WHOLE}, "if": {"required": ["b"]}}
        | {"then": {"patternProperties": {"^a": {"type": "string"}}}},
        [{}, {"a": 1}, {"b": 1}, {"b": 1, "a": "x", "c": 2}],
        [{"b": "x"}, {"b": 1, "a": 1}],
    ),
    (
        {"type": "object", "patternProperties": {"^x": WHOLE}, "$ref": "#/$defs/base"}
        | {"$defs": {"base": {"properties": {"a": WHOLE}, "required": ["a"]}}}
        | {"properties": {"c": {"$ref": "#/$defs/base"}}},
        [{"a": 1}, {"a": 1, "c": {"a": 1, "x": "s"}, "x": 1}],
        [{"a": "x"}, {"a": 1, "x": "s"}, {"a": 1, "c": {"a": "x"}}],
    ),
    (
        {
            "type": "object",
            "allOf": [{"properties": {"b": WHOLE}}, {"propertyNames": {"pattern": "^b"}}],
        },
        [{}, {"b": 1, "bb": "x"}],
        [{"b": "x"}, {"a": 1}],
    ),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), ABOVE)
def test_schemas_of_one_object_know_each_others_names(
    schema: Any, valid: list[Any], invalid: list[Any]
) -> None:
    check(schema, valid, invalid)


@pytest.mark.parametrize("text", [r'{"b":1,"\u0061":1}', r'{"\u0062":"x"}', r'{"b":1,"\u0063":1}'])
def test_a_name_has_one_spelling_where_a_choice_closes(text: str) -> None:
    schema = {
        "type": "object",
        "properties": {"b": WHOLE},
        "if": {"required": ["b"]},
        "then": {"patternProperties": {"^a": {"type": "string"}}},
    }
    assert allowed(schema, [text, '{"b":1,"a":"x"}']) == ['{"b":1,"a":"x"}']


CLASHING: list[tuple[dict[str, Any], str]] = [
    (
        {"type": "object", "allOf": [{"properties": {"a": WHOLE}}], "maxProperties": 3},
        "#/maxProperties",
    ),
    (
        {"type": "object", "properties": {"a": WHOLE}, "items": {"$ref": "#/$defs/b"}}
        | {"allOf": [{"$ref": "#/$defs/b"}], "$defs": {"b": {"maxProperties": 3}}},
        "#/$defs/b/maxProperties",
    ),
    (
        {"type": "object", "allOf": [{"patternProperties": {"^a": WHOLE}}]}
        | {"patternProperties": {"b$": WHOLE}},
        "#/allOf/0/patternProperties",
    ),
    (
        {"type": "object", "propertyNames": {"maxLength": 3}}
        | {"if": {"required": ["a"]}, "then": {"propertyNames": {"pattern": "^a"}}},
        "#/propertyNames",
    ),
]


@pytest.mark.parametrize(("schema", "place"), CLASHING)
def test_what_cannot_be_joined_is_refused_with_its_place_or_left_out(
    schema: dict[str, Any], place: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        prepare(schema, param="schema")
    assert caught.value.fault == "unsupported"
    assert f" {place}: " in caught.value.message
    assert matcher(prepare(schema, param="schema", lenient=True)) is not None


def test_no_comma_follows_the_last_name_that_a_pattern_lists() -> None:
    schema = {
        "properties": {"a": {"type": "integer"}, "c": {"type": "boolean"}},
        "patternProperties": {"^(?:a|c)$": {"not": {"const": 1}}},
        "additionalProperties": False,
    }
    check({**schema, "type": "object"}, [{}, {"c": True}, {"a": 2, "c": True}], [{"a": 1}])
    automaton = matcher(prepare({**schema, "type": "object"}, param="schema"))
    assert automaton is not None
    assert automaton.validate_tokens(list(b'{"c":true,')) == len(b'{"c":true')


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "string", "maxLength": 2**63 - 1}, ["", "a"], [1]),
        ({"type": "string", "maxLength": 2**40, "pattern": "^a+$"}, ["aa"], ["b"]),
        ({"type": "array", "maxItems": 2**53}, [[], [1]], [1]),
        ({"type": "object", "maxProperties": 10**30}, [{}, {"a": 1}], [1]),
        ({"type": "object", "propertyNames": {"maxLength": 2**40}}, [{"a": 1}], [1]),
    ],
    ids=json.dumps,
)
def test_upper_counts_that_nothing_reaches_bar_nothing(
    schema: Any, valid: list[Any], invalid: list[Any]
) -> None:
    check(schema, valid, invalid)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"minimum": 1e-100}, [1, 0.5], [0, -1]),
        ({"exclusiveMinimum": 1e-300}, [1], [0]),
        ({"maximum": 1e-100}, [0, -1], [1, 0.5]),
        ({"exclusiveMaximum": 1e-100}, [0, -1], [1, 0.5]),
        ({"minimum": -1e-100}, [0, 1], [-1]),
        ({"exclusiveMinimum": -1e-100}, [0, 1], [-1]),
        ({"maximum": -1e-100}, [-1], [0, 1]),
    ],
    ids=json.dumps,
)
def test_bounds_very_near_to_zero_hold(
    schema: dict[str, Any], valid: list[Any], invalid: list[Any]
) -> None:
    check({"type": "number", **schema}, valid, invalid)
