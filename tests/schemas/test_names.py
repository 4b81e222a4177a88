"""Each property name has one spelling, so that no value escapes its schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eyas.core import GrammarError
from eyas.schemas import prepare, unspelled
from tests.schemas.enforcing import allowed, lets_through, matcher

WHOLE = {"type": "integer"}
CASES: list[tuple[Any, list[str], list[str]]] = [
    (
        {"type": "object", "properties": {"a": WHOLE}},
        ['{"a":1}', '{"b":"x"}', '{"é":"x"}', r'{"\n":1}', r'{"\"":1}', '{"a":1,"b":"x"}'],
        ['{"a":"x"}', r'{"\u0061":"x"}', r'{"a":1,"\u0061":"x"}', r'{"b\/":1}'],
    ),
    (
        {"type": "object", "properties": {"é": WHOLE}},
        ['{"é":1}'],
        [r'{"\u00e9":"x"}', r'{"\u00E9":1}'],
    ),
    (
        {"type": "object", "properties": {"secret": False}},
        ['{"a":1}'],
        ['{"secret":1}', r'{"\u0073ecret":1}'],
    ),
    (
        {"type": "object", "properties": {"\n": WHOLE, "a": WHOLE}},
        [r'{"\n":1}', '{"b":"x"}', r'{"\t":"x"}'],
        [r'{"\n":"x"}', r'{"\u000a":"x"}', r'{"\u000A":"x"}', '{"a":"x"}'],
    ),
    (
        {"type": "object", "properties": {"a": WHOLE}, "additionalProperties": {"type": "string"}},
        ['{"a":1}', '{"b":"x"}', '{"aa":"x"}', '{"":"x"}'],
        ['{"a":"x"}', '{"b":1}', r'{"\u0061":"x"}'],
    ),
    (
        {"type": "object", "patternProperties": {"^x": WHOLE}},
        ['{"x":1}', '{"xy":1,"a":"x"}', '{"":"x"}'],
        ['{"x":"s"}', r'{"\u0078":"s"}'],
    ),
    (
        {
            "type": "object",
            "properties": {"xa": {"minimum": 2}, "b": WHOLE},
            "patternProperties": {"^x": WHOLE},
            "additionalProperties": {"type": "null"},
        },
        ['{"xa":2,"b":1}', '{"xb":1}', '{"c":null}'],
        ['{"xa":1}', '{"xa":"x"}', '{"b":null}', '{"c":1}', r'{"\u0062":null}', r'{"\u0078":null}'],
    ),
    (
        {"type": "object", "patternProperties": {"^a": WHOLE, "b$": {"minimum": 2}, "[0-9]": {}}},
        ['{"a":1}', '{"b":2}', '{"ab":2}', '{"c":"x"}', '{"a0":1}'],
        ['{"a":"x"}', '{"b":1}', '{"ab":1}', '{"a1b":1}', r'{"\u0061":"x"}'],
    ),
    (
        {
            "type": "object",
            "patternProperties": {"a*": WHOLE, "aaa*": {"maximum": 20}},
            "additionalProperties": False,
        },
        ['{"a":21}', '{"aaa":20}', '{"foobar":1}'],
        ['{"aaa":21}', '{"b":"x"}'],
    ),
    (
        {"type": "object", "not": {"required": ["a"]}},
        ['{"b":1}', "{}"],
        ['{"a":1}', r'{"\u0061":1}'],
    ),
    (
        {
            "type": "object",
            "properties": {"a": WHOLE},
            "allOf": [{"properties": {"b": WHOLE}}, {"$ref": "#/$defs/c"}, {"required": ["d"]}],
            "anyOf": [{"properties": {"e": WHOLE}}, {"required": ["f"]}],
            "$defs": {"c": {"properties": {"c": WHOLE}}},
        },
        ['{"a":1,"b":1,"c":1,"d":"x"}', '{"e":1,"d":1}', '{"d":1,"f":1,"e":"x"}'],
        [rf'{{"d":1,"\u006{n}":"x"}}' for n in (1, 2, 3, 5)] + ['{"d":1,"e":"x"}', '{"a":1}'],
    ),
    (
        {
            "allOf": [
                {
                    "type": "object",
                    "properties": {"a": WHOLE},
                    "additionalProperties": {"minimum": 0},
                },
                {"properties": {"b": WHOLE}},
            ]
        },
        ['{"a":-1,"b":1}', '{"c":1}', '{"c":"x"}'],
        ['{"b":-1}', '{"a":"x"}', r'{"\u0061":"x"}', r'{"\u0062":"x"}', '{"c":-1}'],
    ),
    ({"type": "object"}, [r'{"\n":1}', '{"a":1}'], [r'{"\u0061":1}']),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), CASES, ids=[str(c[0])[:60] for c in CASES])
def test_a_name_has_one_spelling(schema: Any, valid: list[str], invalid: list[str]) -> None:
    assert allowed(schema, [*valid, *invalid]) == valid


def test_the_usual_objects_stay_small() -> None:
    """Open objects get one common pattern, closed objects get none."""
    open_one = {"type": "object", "properties": {f"p{i}": WHOLE for i in range(100)}}
    (pattern,) = json.loads(prepare(open_one, param="schema"))["patternProperties"]
    assert pattern == "^(?s:.)*$"
    for schema in ({**open_one, "additionalProperties": False}, {"type": "object"}):
        assert json.loads(prepare(schema, param="schema")) == schema
    assert unspelled(json.loads(prepare({"items": open_one}, param="schema"))) == {
        "items": open_one
    }


def test_names_with_control_characters_beside_patterns_are_refused_or_left() -> None:
    schema = {"properties": {"\n": WHOLE}, "patternProperties": {"^x": WHOLE}, "type": "object"}
    with pytest.raises(GrammarError, match=r"#/patternProperties: .* control") as caught:
        prepare(schema, param="schema")
    assert caught.value.fault == "unsupported"
    assert matcher(prepare(schema, param="schema", lenient=True)) is not None


def test_patterns_that_are_too_much_are_refused_with_their_place_or_left() -> None:
    schema = {"items": {"type": "object", "patternProperties": {"(a|b)*a(a|b){30}": WHOLE}}}
    with pytest.raises(GrammarError) as caught:
        prepare(schema, param="schema")
    assert caught.value.fault == "unsupported"
    assert caught.value.message.startswith("schema: #/items/patternProperties: ")
    automaton = matcher(prepare(schema, param="schema", lenient=True))
    assert automaton is not None and lets_through(automaton, '[{"c":"x"}]')
