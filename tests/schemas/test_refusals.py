"""Malformed, unsupported and too large schemas: three errors, each with a path."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from eyas.core import GrammarError
from eyas.schemas import prepare


def refusal(schema: Any, **settings: bool) -> GrammarError:
    with pytest.raises(GrammarError) as caught:
        prepare(schema, param="response_format", **settings)
    assert caught.value.param == "response_format"
    assert caught.value.message.startswith("response_format: ")
    return caught.value


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"type": "strnig"}}}, "#/properties/a/type"),
        ({"properties": []}, "#/properties"),
        ({"items": {"$ref": "#/$defs/none"}}, "#/items/$ref"),
        ({"minimum": 3, "maximum": 2}, "#/minimum"),
        ({"anyOf": [{"enum": []}]}, "#/anyOf/0/enum"),
        ({"anyOf": []}, "#/anyOf"),
        ({"pattern": 3}, "#/pattern"),
        ({"not": {"minLength": -1}}, "#/not/minLength"),
        ({"required": "a"}, "#/required"),
        ({"multipleOf": 0}, "#/multipleOf"),
        ({"properties": {"a/b": 3}}, "#/properties/a~1b"),
        ({"const": "\ud800"}, "#/const"),
        ({"properties": {"a\0": {}}}, "#/properties"),
        ({"$ref": "#"}, "#"),
        ({"not": {}}, "#"),
        ({"type": "object", "required": ["a", "b"], "maxProperties": 1}, "#"),
        ({"type": "number", "multipleOf": 0.5, "minimum": 0.1, "maximum": 0.2}, "#"),
        (False, "#"),
        ([], "#"),
    ],
)
def test_malformed_schemas_are_invalid(schema: Any, place: str) -> None:
    for lenient in (False, True):
        error = refusal(schema, lenient=lenient)
        assert error.fault == "invalid"
        assert f" {place}: " in error.message


UNREAD: list[tuple[dict[str, Any], str]] = [
    ({"oneOf": [{"type": 5}, {"type": "string"}]}, "#/oneOf/0/type"),
    ({"oneOf": [{"type": [{}]}, {"type": "string"}]}, "#/oneOf/0/type"),
    ({"oneOf": [{"minimum": "a"}, {"type": "string"}]}, "#/oneOf/0/minimum"),
    ({"oneOf": [{"required": [[1]]}, {"type": "string"}]}, "#/oneOf/0/required"),
    ({"oneOf": [{"properties": 5}, {"type": "string"}]}, "#/oneOf/0/properties"),
    ({"oneOf": [{"enum": [{"a": 1}]}, {"enum": 5}]}, "#/oneOf/1/enum"),
    ({"not": {"type": "string"}, "allOf": [{"minimum": "x"}]}, "#/allOf/0/minimum"),
    ({"not": {"dependencies": {"a": {"type": 5}}}}, "#/not/dependencies/a/type"),
    ({"unevaluatedProperties": False, "allOf": [{"properties": 5}]}, "#/allOf/0/properties"),
    ({"unevaluatedProperties": False, "allOf": [{"$ref": 5}]}, "#/allOf/0/$ref"),
    ({"dependentRequired": {"a": ["b"]}, "allOf": [{"properties": 5}]}, "#/allOf/0/properties"),
    ({"else": {"type": 5}}, "#/else/type"),
    *(
        ({reader: {"$ref": "#/$defs/a"}, "then": {}, "$defs": {"a": part}}, f"#/$defs/a/{keyword}")
        for reader in ("not", "if", "items", "propertyNames")
        for keyword, part in (("type", {"type": 5}), ("properties", {"properties": [1]}))
    ),
]


@pytest.mark.parametrize(("schema", "place"), UNREAD, ids=[json.dumps(s) for s, _ in UNREAD])
def test_what_is_malformed_is_found_before_it_is_read(schema: Any, place: str) -> None:
    for lenient in (False, True):
        error = refusal(schema, lenient=lenient)
        assert error.fault == "invalid"
        assert f" {place}: " in error.message


@pytest.mark.parametrize("text", ["", "{", '{"minimum": NaN}', "[1,]"])
def test_text_that_is_not_json_is_invalid(text: str) -> None:
    assert refusal(text).fault == "invalid"


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"$ref": "https://example.org/schema"}, "#/$ref"),
        ({"type": "string", "not": {"pattern": "(?i)a"}}, "#/not"),
        ({"items": {"type": "string"}, "uniqueItems": True}, "#/uniqueItems"),
        ({"contains": {"const": 1}}, "#/contains"),
        ({"type": "string", "format": "regex"}, "#/format"),
        ({"$dynamicRef": "#a"}, "#/$dynamicRef"),
        ({"oneOf": [{"pattern": "(?i)a"}, {"pattern": "(?i)b"}]}, "#/oneOf/1"),
        ({"const": 2**53 + 1}, "#/const"),
        ({"minProperties": 2}, "#/minProperties"),
        ({"anyOf": [{}], "unevaluatedProperties": False}, "#/unevaluatedProperties"),
        ({"multipleOf": 1e-12}, "#/multipleOf"),
        ({"minLength": 2**40}, "#/minLength"),
        ({"type": "array", "minItems": 2**63}, "#/minItems"),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "oneOf": [
                    {
                        "$ref": "#/definitions/x",
                        "required": ["a"],
                    },  # keywords beside $ref are ignored in draft 7
                    {"$ref": "#/definitions/x", "properties": {"a": False}},
                ],
                "definitions": {"x": {"type": "object"}},
            },
            "#/oneOf/1",
        ),
    ],
)
def test_what_cannot_be_enforced_is_unsupported_or_left_out(schema: Any, place: str) -> None:
    error = refusal(schema)
    assert error.fault == "unsupported"
    assert f" {place}: " in error.message and '"x-guidance": {"lenient": true}' in error.message
    assert json.loads(prepare(schema, param="schema", lenient=True)) is not False


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def circle() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    schema["items"] = schema
    return schema


TOO_COMPLEX: dict[str, Any] = {
    "100k enum": {"enum": [f"v{i}" for i in range(100_000)]},
    "2000 optional properties": {"properties": {f"p{i}": {} for i in range(2000)}},
    "nesting 20000": nested(20_000),
    "nesting 20000, text": '{"items":' * 20_000 + "{}" + "}" * 20_000,
    "a circle of objects": circle(),
    "1 MB": {"description": "x" * (1 << 20)},
    "1 MB of text": json.dumps({"description": "x" * (1 << 20)}),
    "300 options that overlap": {
        "oneOf": [{"properties": {f"p{i}": {"minLength": 1}}} for i in range(300)]
    },
    "oneOf of oneOf": {
        "oneOf": [{"oneOf": [{"required": [f"{i}{j}"]} for j in range(30)]} for i in range(30)]
    },
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", TOO_COMPLEX)
def test_what_is_too_large_is_said_at_once(name: str) -> None:
    error = refusal(TOO_COMPLEX[name])
    assert error.fault == "too_complex"
    assert len(error.message) < 500


def test_hostile_schemas_that_are_small_pass() -> None:
    doubling: dict[str, Any] = {"$ref": "#/$defs/d0", "$defs": {"d24": {"type": "null"}}}
    for i in range(24):
        twice = [{"$ref": f"#/$defs/d{i + 1}"}] * 2
        doubling["$defs"][f"d{i}"] = {"type": "array", "prefixItems": twice}
    assert len(prepare(doubling, param="schema")) < 4000
    assert "100000" in prepare({"type": "string", "maxLength": 100_000}, param="schema")


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"enum": []}, "not an empty array"),
        ({"anyOf": {}}, "not an empty object"),
        ({"type": None}, "not null"),
        ({"minLength": True}, "not true"),
    ],
)
def test_a_complaint_shows_values_as_json_has_them(schema: Any, shown: str) -> None:
    assert refusal(schema).message.endswith(shown)


CHAINS: dict[str, Callable[[dict[str, Any], int], Any]] = {
    "bare": lambda link, i: link,
    "with a bound": lambda link, i: {**link, "minimum": i},
    "in a choice": lambda link, i: {"anyOf": [link, {"const": str(i)}]},
    "in a list": lambda link, i: {"allOf": [link, {"minimum": i}]},
    "with names": lambda link, i: {**link, "properties": {f"p{i}": {"type": "null"}}},
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_references_may_be_long(name: str) -> None:
    num = 950
    links = [{"$ref": f"#/$defs/d{i + 1}"} for i in range(num)]
    chain = {f"d{i}": CHAINS[name](link, i) for i, link in enumerate(links)}
    last = {"type": ["integer", "object"]}
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{num}": last}}
    assert len(json.loads(prepare(schema, param="schema"))["$defs"]) > num


def test_what_never_ends_is_cut_off_behind_a_long_chain() -> None:
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(60)}
    endless = {"type": "array", "items": {"$ref": "#/$defs/e"}, "minItems": 1}
    options = [{"$ref": "#/$defs/d0"}, {"$ref": "#/$defs/e"}]
    schema = {"anyOf": options, "$defs": {"e": endless, **chain, "d60": {"type": "null"}}}
    assert json.loads(prepare(schema, param="schema"))["anyOf"] == [{"$ref": "#/$defs/1"}, False]


def test_patterns_that_one_text_must_match_are_few() -> None:
    def pattern(i: int) -> dict[str, Any]:
        return {"type": "string", "pattern": f"a.*{chr(97 + i)}"}

    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}", **pattern(i)} for i in range(20)}
    for schema, place in (
        ({"properties": {"a": {"allOf": [pattern(i) for i in range(20)]}}}, "#/properties/a"),
        ({"allOf": [{"properties": {"a": pattern(i)}} for i in range(20)]}, "#/properties/a"),
        ({"allOf": [{"items": pattern(i)} for i in range(20)]}, "#/items"),
        ({"$ref": "#/$defs/d0", "$defs": {**chain, "d20": {}}}, "#/$defs/d7"),
    ):
        error = refusal(schema)
        assert error.fault == "too_complex"
        assert error.message.startswith(
            f"response_format: {place}: one text must match more than 12 patterns"
        )
    options = [{"properties": {"a": pattern(i), "b": {"const": i}}} for i in range(20)]
    prepare({"anyOf": options}, param="schema")


def test_a_type_that_a_choice_of_references_has_already_stands_nowhere() -> None:
    node = {
        "type": "object",
        "properties": {
            "next": {"type": ["object", "null"], "anyOf": [{"$ref": "#"}, {"type": "null"}]},
            "other": {"type": "object", "anyOf": [{"$ref": "#"}, {"type": "null"}]},
        },
    }
    named = json.loads(prepare(node, param="schema"))["properties"]
    assert named["next"] == {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    assert named["other"]["type"] == "object"


HOSTILE: dict[str, Any] = {
    "a long pattern": {"pattern": "a" * 200_000},
    "many groups": {"pattern": "(?:a)" * 40_000},
    "many classes": {"pattern": '[^"]' * 30_000},
    "many automata": {
        "prefixItems": [{"patternProperties": {f"(a|b)*a(a|b){{{i}}}": {}}} for i in range(500)]
    },
    "names that are like a pattern": {
        "patternProperties": {"(a|b)*a(a|b){10}": {"type": "null"}},
        "additionalProperties": {"type": "null"},
        "properties": {"ab" * 20 + str(i): {} for i in range(1000)},
    },
    "control characters": {"properties": {f"\n{i}": {"type": "null"} for i in range(900)}},
    "references that double": {
        "properties": {"a": {"type": "null"}},
        "$ref": "#/$defs/d0",
        "$defs": {
            **{f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)},
            "d40": {"properties": {"z": {"type": "null"}}},
        },
    },
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_patterns_and_names_take_bounded_time(name: str) -> None:
    for lenient in (False, True):
        with contextlib.suppress(GrammarError):
            prepare(HOSTILE[name], param="schema", lenient=lenient)
    # Without the bounds each takes minutes to hours.


def test_800_options_with_a_discriminator_are_quick() -> None:
    options = [
        {"type": "object", "required": ["kind"], "properties": {"kind": {"const": f"k{i}"}}}
        for i in range(800)
    ]
    assert len(json.loads(prepare({"oneOf": options}, param="schema"))["anyOf"]) == 800
