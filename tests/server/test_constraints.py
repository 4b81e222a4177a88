"""What a request's fields say of the output, as nodes of a grammar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eyas.core import GrammarError, RequestError
from eyas.grammar import SPACED, Choice, Json, Literal, Regex, Source
from eyas.server.constraints.fields import Constraint, constraint_of
from eyas.server.constraints.free_text import ControlTokenSplitter
from eyas.server.http.body import parse
from eyas.server.http.errors import ApiError
from eyas.server.request_models import ChatBody
from eyas.text import Tokenizer

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
LARK = "%llguidance {}\nstart: /[a-z]+/ ::= \n"
EBNF = 'root ::= "a" | "b"\n'
LLGUIDANCE = '{"grammars": [{"lark_grammar": "start: /x/"}]}'
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}


@pytest.fixture(scope="module")
def splitter(directory: Path) -> ControlTokenSplitter:
    return ControlTokenSplitter(Tokenizer.from_directory(directory))


def asked(splitter: ControlTokenSplitter, **fields: Any) -> Constraint | None:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    return constraint_of(parse(json.dumps(body).encode(), ChatBody), splitter)


def response_format(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", **fields}}}


SAYING: dict[str, list[dict[str, Any]]] = {
    "schema": [
        response_format(schema=SCHEMA),
        response_format(schema=SCHEMA, strict=True, description="y"),
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"json_schema": SCHEMA},
        {"json_schema": json.dumps(SCHEMA)},
        {"guided_json": SCHEMA, "guided_decoding_backend": "xgrammar"},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "disable_fallback": True}},
    ],
    "object": [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
        {"json_schema": {"type": "object"}},
    ],
    "regex": [
        {"regex": "a|b"},
        {"guided_regex": "a|b"},
        {"structured_outputs": {"regex": "a|b", "backend": "auto"}},
    ],
    "choice": [{"guided_choice": ["x", "y"]}, {"structured_outputs": {"choice": ["x", "y", "x"]}}],
    "ebnf": [{"ebnf": EBNF}, {"guided_grammar": EBNF}, {"structured_outputs": {"grammar": EBNF}}],
    "tag": [
        {"structural_tag": TAG},
        {"structural_tag": json.dumps(TAG)},
        {"structured_outputs": {"structural_tag": TAG}},
        {"response_format": TAG},
    ],
}


@pytest.mark.parametrize("name", SAYING)
def test_every_way_to_say_it_is_the_same_and_may_be_said_twice(
    splitter: ControlTokenSplitter, name: str
):
    ways = SAYING[name]
    nodes = [asked(splitter, **way).node for way in ways]
    assert len(set(nodes)) == 1
    for first in ways:
        for second in ways:
            if set(first).isdisjoint(second):
                assert asked(splitter, **first, **second).node == nodes[0]


def test_two_different_constraints_are_refused_with_both_names(splitter: ControlTokenSplitter):
    for name, ways in SAYING.items():
        for other, others in SAYING.items():
            if name == other or not set(ways[0]).isdisjoint(others[-1]):
                continue
            with pytest.raises(RequestError) as refused:
                asked(splitter, **ways[0], **others[-1])
            fields = [*ways[0], *others[-1]]
            assert sum(field in refused.value.message for field in fields) >= 2
    with pytest.raises(RequestError, match=r"structured_outputs.regex.*structured_outputs.json"):
        asked(splitter, structured_outputs={"json": SCHEMA, "regex": "x"})


def test_the_nodes_are_what_was_asked_for(splitter: ControlTokenSplitter):
    assert asked(splitter) is None
    assert asked(splitter, response_format={"type": "text"}) is None
    assert asked(splitter, regex=None, guided_json=None) is None
    node = asked(splitter, json_schema=SCHEMA).node
    assert isinstance(node, Json) and list(json.loads(node.schema)["properties"]) == ["b", "a"]
    assert asked(splitter, regex="(a|b)").node == Regex("(a|b)")
    assert asked(splitter, guided_choice=["<|im_end|>"]).node == Literal("<|im_end|>")
    assert asked(splitter, guided_choice=["a", "b"]).node == Choice((Literal("a"), Literal("b")))
    assert asked(splitter, **response_format(schema={}, strict=False)).node.lenient


@pytest.mark.parametrize(
    ("text", "syntax"),
    [
        (EBNF, "ebnf"),
        ("# gbnf\nroot ::= item+\nitem ::= [a-z]", "ebnf"),
        ("  my-rule ::= 'x'", "ebnf"),
        (LARK, "lark"),
        ("start: a\na: /::=/", "lark"),
        ('?start: "x"', "lark"),
        (LLGUIDANCE, "llguidance"),
        ("\n" + LLGUIDANCE, "llguidance"),
    ],
)
def test_a_grammar_shows_its_language(splitter: ControlTokenSplitter, text: str, syntax: str):
    for fields in ({"ebnf": text}, {"structured_outputs": {"grammar": text}}):
        assert asked(splitter, **fields).node == Source(syntax, text)


def spacing(splitter: ControlTokenSplitter, schema: Any = SCHEMA, **options: Any) -> Any:
    """separators and white_space."""
    node = asked(splitter, structured_outputs={"json": schema, **options}).node
    return node.separators, node.white_space


@pytest.mark.parametrize(
    ("pattern", "white_space"),
    [("", ""), ("[ ]?", "[ ]{0,1}"), (r"\s*", r"[ \t\n\r]{0,32}"), (r"\n?", r"[\n]{0,1}")],
)
def test_a_white_space_pattern_holds(
    splitter: ControlTokenSplitter, pattern: str, white_space: str
):
    assert spacing(splitter) == (None, None)
    assert spacing(splitter, disable_any_whitespace=True) == (SPACED, None)
    assert spacing(splitter, whitespace_pattern=pattern) == (None, white_space)
    found = asked(splitter, guided_json=SCHEMA, guided_whitespace_pattern=pattern)
    assert found.node.white_space == white_space
    outputs = {"json_object": True, "whitespace_pattern": pattern}
    assert asked(splitter, structured_outputs=outputs).node.white_space == white_space


@pytest.mark.parametrize(
    "pattern",
    [
        *(" ", "[ ]+", "[ ]{1,2}", "(", "x+", "x*", "(?P<a", "()", "[]*", r"[^ ]*", r"\S*"),
        *("(a?|b?)" * 22 + "(?=x)", "((a?|b?){4}){5}(?=x)", "[ ]*" * 60 + "x"),
    ],
)
@pytest.mark.timeout(120)  # running the worst would take for ever
def test_no_other_pattern_is_taken_and_none_is_run(splitter: ControlTokenSplitter, pattern: str):
    with pytest.raises(RequestError, match=r"whitespace_pattern: (must|has|allows)") as refused:
        spacing(splitter, whitespace_pattern=pattern)
    assert refused.value.param == "structured_outputs.whitespace_pattern"


def test_a_schemas_own_white_space_holds_where_the_request_says_nothing(
    splitter: ControlTokenSplitter,
):
    schema = {**SCHEMA, "x-guidance": {"whitespace_flexible": False}}
    for fields in (
        response_format(schema=schema),
        {"json_schema": json.dumps(schema)},
        {"guided_json": schema},
        {"response_format": {"type": "json_object", "schema": schema}},
        {"structural_tag": {"format": {"type": "json_schema", "json_schema": schema}}},
    ):
        assert asked(splitter, **fields).node.white_space == "", fields
    assert spacing(splitter, schema) == (None, "")
    assert spacing(splitter, schema, disable_any_whitespace=True) == (None, "")
    assert spacing(splitter, schema, whitespace_pattern=" ?") == (None, "[ ]{0,1}")


def test_a_schema_says_itself_that_it_is_lenient(splitter: ControlTokenSplitter):
    schema = {"type": "string", "format": "regex"}
    with pytest.raises(GrammarError, match="#/format"):
        asked(splitter, **response_format(schema=schema))
    lenient = {**schema, "x-guidance": {"lenient": True}}
    assert asked(splitter, **response_format(schema=lenient)).node.lenient
    asked(splitter, **response_format(schema={"x-guidance": {"lenient": True}}, strict=False))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"json": ""}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[" * 50_000}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a", "lark": "b"}}, "structured_outputs.lark"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice[0]"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": ""}}, "structured_outputs."),
        (
            {"structured_outputs": {"json": {}, "disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
        ),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"guided_json": [{}]}, "guided_json"),
        ({"json_schema": "null"}, "json_schema"),
        ({"json_schema": '{"a": 1e999}'}, "json_schema"),
        ({"json_schema": '{"a": NaN}'}, "json_schema"),
        ({"ebnf": ""}, "ebnf"),
        ({"ebnf": " \n"}, "ebnf"),
        ({"ebnf": "{}"}, "ebnf"),
        ({"ebnf": "{"}, "ebnf"),
        ({"ebnf": '{"type": "object"}'}, "ebnf"),
        ({"regex": ""}, "regex"),
        ({"regex": "x" * 70_000}, "regex"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "text", "json_schema": None, "x": 1}}, "response_format.x"),
        (
            {"response_format": {"type": "json_object", "triggers": ["x"]}},
            "response_format.triggers",
        ),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (response_format(schema=[]), "response_format.json_schema.schema"),
        (response_format(schema={}, name=""), "response_format.json_schema.name"),
        (response_format(schema={}, strict="yes"), "response_format.json_schema.strict"),
        (response_format(schema={"type": "strnig"}), "response_format.json_schema.schema"),
    ],
)
def test_what_is_no_constraint_is_refused_by_its_name(
    splitter: ControlTokenSplitter, fields: dict[str, Any], param: str
):
    with pytest.raises((RequestError, ApiError)) as refused:
        asked(splitter, **fields)
    assert str(refused.value.param).startswith(param)
    assert param.split("[")[0] in refused.value.message


def test_a_schema_that_cannot_be_enforced_is_a_typed_error(splitter: ControlTokenSplitter):
    unknown = {"type": "array", "items": {"type": "integer"}, "contains": {"not": {"const": 3}}}
    with pytest.raises(GrammarError) as refused:
        asked(splitter, **response_format(schema={**unknown, "minContains": 2}))
    assert refused.value.fault == "unsupported"
    assert refused.value.param == "response_format.json_schema.schema"


def test_half_a_surrogate_pair_in_a_schemas_text_is_refused(splitter: ControlTokenSplitter):
    with pytest.raises(ApiError, match=r"^json_schema\.const: holds half of a surrogate pair"):
        asked(splitter, json_schema='{"const": "\\ud800"}')
