"""A prepared schema allows the same values as the original, by an independent validator and by the
backend that enforces it."""

from __future__ import annotations

import datetime
import ipaddress
import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from eyas.core import GrammarError
from eyas.schemas import prepare
from tests.schemas.drawn import schemas, values
from tests.schemas.enforcing import check, lets_through, matcher
from tests.thorough import drawn


def prepared(schema: Any) -> str:
    try:
        return prepare(schema, param="schema")
    except GrammarError:
        assume(False)
        raise


@settings(max_examples=drawn(150, 400), deadline=None)
@given(schemas, st.lists(values, min_size=4, max_size=12))
def test_a_prepared_schema_allows_the_same(schema: dict[str, Any], instances: list[Any]) -> None:
    text = prepared(schema)
    before = jsonschema.Draft202012Validator(schema)
    after = jsonschema.Draft202012Validator(json.loads(text))
    automaton = matcher(text)
    for instance in instances:
        is_valid = before.is_valid(instance)
        assert after.is_valid(instance) == is_valid
        if automaton is not None and not is_valid:
            assert not lets_through(automaton, json.dumps(instance))


REWRITTEN: list[tuple[Any, list[Any], list[Any]]] = [
    ({"type": "object", "not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}]),
    (
        {"type": "object", "not": {"allOf": [{"required": ["a"]}, {"required": ["b"]}]}},
        [{"a": 1}, {"b": 1}],
        [{"a": 1, "b": 1}],
    ),
    ({"type": "string", "not": {"enum": ["log", "logs"]}}, ["lo", "logss", ""], ["log", "logs"]),
    ({"type": "integer", "not": {"const": 3}}, [2, 4], [3]),
    (
        {"not": {"not": {"type": "integer"}, "required": ["a"]}},
        [3, {}],
        ["x", 1.5, {"a": 1}],
    ),
    ({"not": {"type": "array"}}, [1, "a", {}], [[]]),
    ({"not": {"pattern": "^https?:"}}, ["", "http", 'x"'], ["http:", "https://x", 1]),
    (
        {"type": "string", "allOf": [{"not": {"pattern": "^a"}}, {"not": {"pattern": "z$"}}]},
        ["", "ba", "zb"],
        ["a", "bz"],
    ),
    ({"type": "string", "not": {"pattern": '^[^"]+$'}}, ["", '"', 'a"'], ["a", "\0", "\n"]),
    ({"type": "string", "pattern": "^(?!no-)"}, ["", "no", "x-no-"], ["no-", "no-x"]),
    (
        {"pattern": r"^(?=.*[A-Z])(?=.*\d)(?!.*--).{4,}$", "maxLength": 6},
        ["Ab-1", "-1aB-", 3],
        ["ab-1", "Abcd", "A--1", "Ab1", "Abcdef1"],
    ),
    ({"type": "string", "pattern": r"^(?!(?:no|[()|]+)$).+"}, ["now", "(a"], ["no", "()|"]),
    ({"not": {"type": "string", "pattern": "^a", "maxLength": 2}}, ["b", "aaa", 3], ["a", "ab"]),
    (
        {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "z$"}]},
        ["ab", "bz"],
        ["az", "b", 1],
    ),
    (
        {"type": "string", "if": {"pattern": "^v"}, "then": {"minLength": 2}},
        ["", "va", "a"],
        ["v"],
    ),
    (
        {"type": "object", "dependencies": {"a": ["b"]}, "properties": {"a": {}, "b": {}}},
        [{}, {"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        [{"a": 1}, {"b": "x"}],
        [{}, {"a": 1, "b": "x"}],
    ),
    (
        {
            "type": "object",
            "properties": {"kind": {"enum": ["a", "b"]}, "size": {"type": "integer"}},
            "required": ["kind"],
            "if": {"properties": {"kind": {"const": "a"}}},
            "then": {"required": ["size"]},
            "else": {"properties": {"size": False}},
        },
        [{"kind": "a", "size": 1}, {"kind": "b"}],
        [{"kind": "a"}, {"kind": "b", "size": 1}],
    ),
    (
        {"type": "object", "properties": {"a": {"type": "null"}}, "minProperties": 1},
        [{"a": None}, {"z": 1}, {"a": None, "z": 1}],
        [{}, {"a": 1}],
    ),
    (
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
        [[], ["b"], ["c", "a", "b"]],
        [["a", "a"], ["a", "b", "a"], ["d"]],
    ),
    ({"type": "array", "maxItems": 3, "contains": {"const": 1}}, [[1], [0, 0, 1]], [[], [0]]),
    ({"type": "object", "propertyNames": {"pattern": "^x"}}, [{}, {"xa": 1}], [{"a": 1}]),
    (
        {
            "type": "object",
            "properties": {"c": {"type": "integer"}},
            "allOf": [{"properties": {"b": {"type": "integer"}}}],
            "unevaluatedProperties": False,
        },
        [{"c": 1, "b": 2}, {}],
        [{"d": 1}],
    ),
    (
        {"type": "object", "patternProperties": {".*": {"type": "integer"}, "^a": {"minimum": 2}}},
        [{"b": 1}, {"a": 2}],
        [{"a": 1}, {"b": "x"}],
    ),
    ({"type": "string", "format": "colour"}, ["", "red"], [1]),
    (
        {"type": "string", "format": "uri-reference"},
        ["../a", "https://x.org/a?b#c", "/a", ""],
        ["a b", "1:a", "http://[", "\\"],
    ),
    ({"type": "string", "format": "json-pointer"}, ["", "/a~0b/1"], ["a", "/~2"]),
    (
        {"type": "string", "format": "iri"},
        ["http://[2001:db8::7334]:80/a", "http://a.b:80/e", "http://u:p@h/", "urn:x:y"],
        ["http://2001:0db8:85a3:0000:0000:8a2e:0370:7334", "/a"],
    ),
    (
        {"type": "string", "format": "time"},
        ["23:59:60Z", "00:00:00z", "12:30:59.5-03:00"],
        ["23:58:60Z", "10:59:60Z", "24:00:00Z", "12:00:00", "12:00:00+24:00"],
    ),
    (
        {"type": "string", "format": "date-time", "pattern": "^2"},
        ["2024-02-29T10:00:00Z", "2016-12-31t23:59:60Z"],
        ["2023-02-29T10:00:00Z", "2023-01-01T10:00:60Z", "1999-01-01T10:00:00Z"],
    ),
    ({"items": {"enum": [1, 1.0]}, "uniqueItems": True, "type": "array"}, [[], [1]], [[1, 1]]),
    (
        {"items": {"enum": [{"a": 1, "b": 2}, {"b": 2, "a": 1}]}, "uniqueItems": True}
        | {"type": "array", "minItems": 1},
        [[{"a": 1, "b": 2}]],
        [[{"a": 1, "b": 2}, {"b": 2, "a": 1}], [{"a": 1, "b": 2}] * 2],
    ),
    (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$id": "http://x.test/base/",
            "definitions": {
                "far": {"$id": "http://x.test/far/name.json", "type": "string"},
                "near": {"$id": "name.json", "type": "number"},
            },
            "allOf": [{"$id": "http://x.test/far/", "$ref": "name.json"}],
        },
        [1],
        ["a"],
    ),
    ({"type": "number", "maximum": 0.16, "multipleOf": 0.1}, [0.1, -0.5, 0], [0.2, 0.15]),
    (
        {"type": "number", "minimum": 0.05, "maximum": 0.95, "multipleOf": 0.1},
        [0.1, 0.5, 0.9],
        [0, 0.05, 1],
    ),
    (
        {"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 0.3, "multipleOf": 0.1},
        [0.2],
        [0.1, 0.25, 0.3],
    ),
    ({"multipleOf": 0.1, "minimum": 0.11, "maximum": 0.19}, ["a"], [0.1, 0.15, 0.2]),
    ({"items": {"enum": [1]}, "uniqueItems": True, "minItems": 2}, ["a", {}], [[1], [1, 1]]),
    ({"items": True, "unevaluatedItems": False}, [[1], []], []),
    ({"prefixItems": [{}], "unevaluatedItems": False}, [[1], []], [[1, 2]]),
    (
        {"properties": {"enum": {"$ref": "#/$defs/e"}, "const": {"$ref": "#/$defs/e"}, "a": {}}}
        | {"$defs": {"e": {"allOf": [{"$ref": "#/$defs/e"}]}}},
        [{"a": 1}, 1],
        [{"enum": 1}, {"const": 1}],
    ),
    ({"type": "number", "exclusiveMinimum": 1, "maximum": 1.5}, [1.25, 1.5], [1, 1.75]),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, [0.25, 0.375], [0, 0.5]),
    ({"type": "number", "minimum": -1.5, "exclusiveMaximum": -1}, [-1.25], [-1, -0.5]),
    (
        {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 1}
        | {"exclusiveMinimum": True},
        [2],
        [1],
    ),
    (
        {"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "string"}},
        [[], [1], [1, "a"]],
        [["a"], [1, 1]],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/none"}, "b": {"items": {"$ref": "#/$defs/none"}}},
            "$defs": {"none": {"allOf": [{"$ref": "#/$defs/text"}, {"type": ["integer", "null"]}]}}
            | {"text": {"type": "string"}},
        },
        [{}, {"b": []}, {"b": 1}],
        [{"a": "x"}, {"a": None}, {"b": ["x"]}],
    ),
    (
        {"oneOf": [{"type": "array", "items": {"type": t}} for t in ("string", "integer")]},
        [["a"], [1, 2], ["a", "b"]],
        [[], [1, "a"], [None]],
    ),
    (
        {
            "type": "array",
            "oneOf": [{"items": {"const": 1}}, {"items": {"const": 1}, "minItems": 2}],
        },
        [[], [1]],
        [[1, 1], [2]],
    ),
    (
        {
            "oneOf": [
                {"type": "object", "additionalProperties": {"type": t}} for t in ("string", "null")
            ]
        },
        [{"a": "x"}, {"a": None, "b": None}],
        [{}, {"a": "x", "b": None}],
    ),
    (
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {name: {"type": "array", "items": {"type": "string"}}},
                    "additionalProperties": False,
                }
                for name in "ab"
            ]
        },
        [{"a": []}, {"b": ["x"]}],
        [{}, {"a": [], "b": []}, {"a": [1]}],
    ),
    (
        {
            "type": "object",
            "oneOf": [
                {"required": ["a"], "properties": {"a": {"items": {"type": t}}}}
                for t in ("string", "integer")
            ],
            "properties": {"a": {"type": "array", "items": {"type": ["integer", "string"]}}},
            "additionalProperties": False,
        },
        [{"a": [1]}, {"a": ["x", "y"]}],
        [{"a": []}, {"a": [1, "x"]}, {}],
    ),
    (
        {"oneOf": [{"pattern": r"^(\d{1,3}\.){3}\d{1,3}$"}, {"enum": ["beta", "1.2.3.4"]}]},
        ["beta", "255.0.0.1", 1],
        ["1.2.3.4", "x"],
    ),
    (
        {
            "type": "string",
            "oneOf": [
                {"pattern": "^[0-9]+\\.\\S+$"},
                {"pattern": "^\\^[0-9]+\\.\\S+$"},
                {"enum": ["any"]},
            ],
        },
        ["1.x", "^1.x", "any"],
        ["x", "^1", "any "],
    ),
    (
        {
            "$id": "https://example.org/root",
            "$ref": "https://example.org/part#item",
            "$defs": {"x": {"$id": "/part", "$defs": {"y": {"$anchor": "item", "const": 1}}}},
        },
        [1],
        [2],
    ),
]


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"), REWRITTEN, ids=[json.dumps(r[0])[:60] for r in REWRITTEN]
)
def test_the_backend_enforces_what_is_rewritten(
    schema: dict[str, Any], valid: list[Any], invalid: list[Any]
) -> None:
    automaton = matcher(prepare(schema, param="schema"))
    assert automaton is not None
    for instance in valid:
        assert lets_through(automaton, json.dumps(instance)), instance
    for instance in invalid:
        assert not lets_through(automaton, json.dumps(instance)), instance


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (0, False), ([1], [True]), ({"a": 0}, {"a": False})]
)
def test_true_is_not_one(one: Any, other: Any) -> None:
    """Also when schemas that contain these values are compared."""
    both = {"^(a)$": {"const": one}, "^(a|b)$": {"const": other}}
    check({"patternProperties": both}, [{"b": other}, {}], [{"a": one}, {"a": other}, {"b": one}])
    denied = {"properties": {"a": {"enum": [one, "x"]}}, "required": ["a"]}
    known = {"type": "object", "properties": {"a": {"enum": [other, "x"]}}}
    if not isinstance(one, (list, dict)):
        check({**known, "not": denied}, [{}, {"a": other}], [{"a": one}, {"a": "x"}])


def test_dates_are_those_of_the_calendar() -> None:
    automaton = matcher(prepare({"type": "string", "format": "date"}, param="schema"))
    assert automaton is not None
    for year in (0, 1, 4, 100, 400, 1900, 1999, 2000, 2023, 2024, 2100, 9996, 9999):
        for month in range(14):
            for day in (0, 1, 9, 10, 28, 29, 30, 31, 32):
                try:
                    datetime.date(year, month, day)
                    is_date = True
                except ValueError:
                    is_date = False
                text = f'"{year:04}-{month:02}-{day:02}"'
                assert lets_through(automaton, text) == is_date, text


def test_ipv6_addresses_are_those_of_the_standard() -> None:
    automaton = matcher(prepare({"type": "string", "format": "ipv6"}, param="schema"))
    assert automaton is not None
    drawn = random.Random(3)
    texts = ["::ffff:192.168.0.1", "1::d6:192.168.0.1", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7::"]
    for num in range(3000):
        parts = ["", "1", "ab", "FFFF", "10000", "1.2.3.4", "256.1.1.1"]
        texts.append(":".join(drawn.choice(parts[: 2 + num % 6]) for _ in range(num % 10 + 1)))
    for text in texts:
        try:
            is_address = bool(ipaddress.IPv6Address(text))
        except ValueError:
            is_address = False
        assert lets_through(automaton, json.dumps(text)) == is_address, text


def test_options_that_reference_different_types_are_told_apart() -> None:
    schema = {
        "oneOf": [{"$ref": "#/$defs/name"}, {"type": "null"}],
        "$defs": {"name": {"type": "string"}, "unused": {"not": {"format": "regex"}}},
    }
    rewritten = json.loads(prepare(schema, param="schema"))
    assert [sorted(option) for option in rewritten["anyOf"]] == [["$ref"], ["type"]]
    assert list(rewritten["$defs"].values()) == [{"type": "string"}]


def test_many_options_of_one_value_are_told_apart() -> None:
    options = [{"const": f"v{i}", "title": "a value"} for i in range(1000)]
    assert len(json.loads(prepare({"oneOf": options}, param="schema"))["anyOf"]) == 1000
    twice = json.loads(prepare({"oneOf": [*options[:20], {"const": "v3"}]}, param="schema"))
    automaton = matcher(json.dumps(twice))
    assert automaton is not None
    assert lets_through(automaton, '"v4"') and not lets_through(automaton, '"v3"')


def test_a_choice_that_could_never_end_is_gone() -> None:
    schema = {
        "anyOf": [{"$ref": "#/$defs/loop"}, {"type": "null"}],
        "$defs": {
            "loop": {
                "type": "object",
                "required": ["a"],
                "properties": {"a": {"$ref": "#/$defs/loop"}},
            }
        },
    }
    automaton = matcher(prepare(schema, param="schema"))
    assert automaton is not None
    assert lets_through(automaton, "null")
    assert automaton.deep_copy().validate_tokens(list(b"{")) == 0


def test_properties_keep_their_order() -> None:
    schema = {"properties": {"z": {}, "a": {}, "m": {}}, "required": ["a"], "type": "object"}
    assert list(json.loads(prepare(schema, param="schema"))["properties"]) == ["z", "a", "m"]
