"""Structural tags in both written forms, and what they cannot say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eyas.core import GrammarError
from eyas.grammar import (
    Choice,
    Concat,
    FreeText,
    Literal,
    Marker,
    Node,
    Regex,
    Repeat,
    Source,
)
from eyas.server.constraints.free_text import ControlTokenSplitter
from eyas.server.constraints.json_schema import schema_node
from eyas.server.constraints.structural_tag import structural_tag
from eyas.text import Tokenizer

OBJECT = {"type": "object"}
JSON = schema_node(OBJECT, "x")
SCHEMA = {"type": "json_schema", "json_schema": OBJECT}
ANY = {"type": "any_text"}


@pytest.fixture(scope="module")
def splitter(directory: Path) -> ControlTokenSplitter:
    tokenizer = Tokenizer.from_directory(directory)
    return ControlTokenSplitter(tokenizer, [tokenizer.control_id("<|im_end|>")])


@pytest.fixture(scope="module")
def markers(directory: Path) -> dict[str, Marker]:
    tokenizer = Tokenizer.from_directory(directory)
    return {token.text: Marker(token.text, token.id) for token in tokenizer.control_tokens}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def of(splitter: ControlTokenSplitter, form: Any) -> Node:
    return structural_tag({"type": "structural_tag", "format": form}, splitter, "field")


def test_simple_formats(splitter: ControlTokenSplitter):
    assert of(splitter, const("abc")) == Literal("abc")
    assert of(splitter, SCHEMA) == JSON
    assert of(splitter, {**SCHEMA, "style": "json", "any_order": False}) == JSON
    assert of(splitter, {"type": "regex", "pattern": "a+"}) == Regex("a+")
    assert of(splitter, {"type": "grammar", "grammar": "root ::= 'a'"}) == Source(
        "ebnf", "root ::= 'a'"
    )
    assert of(splitter, ANY) == FreeText()
    assert of(splitter, {**ANY, "excludes": ["</x>"]}) == FreeText(without=(Marker("</x>"),))


def test_combined_formats(splitter: ControlTokenSplitter):
    a, b = Literal("a"), Literal("b")
    both = [const("a"), const("b")]
    assert of(splitter, {"type": "sequence", "elements": both}) == Concat((a, b))
    assert of(splitter, {"type": "or", "elements": both}) == Choice((a, b))
    assert of(splitter, {"type": "optional", "content": const("a")}) == Repeat(a, 0, 1)
    assert of(splitter, {"type": "plus", "content": const("a")}) == Repeat(a, 1, None)
    assert of(splitter, {"type": "star", "content": const("a")}) == Repeat(a, 0, None)
    repeat = {"type": "repeat", "content": const("a"), "min": 2}
    assert of(splitter, {**repeat, "max": 3}) == Repeat(a, 2, 3)
    assert of(splitter, {**repeat, "max": -1}) == Repeat(a, 2, None)


def test_control_tokens_in_a_format_are_markers(
    splitter: ControlTokenSplitter, markers: dict[str, Marker]
):
    node = of(splitter, tag('<tool_call>\n{"a": ', SCHEMA, "}\n</tool_call>"))
    assert node == Concat(
        (
            markers["<tool_call>"],
            Literal('\n{"a": '),
            JSON,
            Literal("}\n"),
            markers["</tool_call>"],
        )
    )
    # A token that ends the answer cannot stand inside it.
    assert of(splitter, const("<|im_end|>")) == Literal("<|im_end|>")


def test_free_text_ends_where_its_tag_does(
    splitter: ControlTokenSplitter, markers: dict[str, Marker]
):
    thought = of(splitter, tag("<think>", ANY, "</think>\n"))
    assert thought == Concat(
        (markers["<think>"], FreeText(until=(markers["</think>"],)), Literal("\n"))
    )
    either = of(splitter, tag("<a>", {**ANY, "excludes": ["x"]}, ["</a>", "</b>"]))
    free = FreeText(until=(Marker("</a>"), Marker("</b>")), without=(Marker("x"),))
    assert either == Concat((Literal("<a>"), free))
    then = of(splitter, {"type": "sequence", "elements": [ANY, const("!"), SCHEMA]})
    assert then == Concat((FreeText(until=(Marker("!"),)), JSON))
    assert of(splitter, tag("<a>", ANY, "")) == Concat((Literal("<a>"), FreeText()))


def test_triggered_tags_stand_in_free_text(splitter: ControlTokenSplitter):
    form = {
        "type": "triggered_tags",
        "triggers": ["<f=", "<g="],
        "tags": [tag("<f=one>", SCHEMA, "</f>"), tag("<g=x>", SCHEMA, "</g>")],
    }
    f, g = Marker("<f="), Marker("<g=")
    one = Concat((FreeText(until=(f,), without=(g,)), Literal("one>"), JSON, Literal("</f>")))
    other = Concat((FreeText(until=(g,), without=(f,)), Literal("x>"), JSON, Literal("</g>")))
    dispatch, tail = Choice((one, other)), FreeText(without=(f, g))
    assert of(splitter, form) == Concat((Repeat(dispatch, 0), tail))
    assert of(splitter, {**form, "at_least_one": True}) == Concat((Repeat(dispatch, 1), tail))
    first = {**form, "stop_after_first": True}
    assert of(splitter, first) == Choice((dispatch, tail))
    assert of(splitter, {**first, "at_least_one": True}) == dispatch


def test_the_older_form_is_triggered_tags(splitter: ControlTokenSplitter):
    new = {
        "type": "triggered_tags",
        "triggers": ["<f="],
        "tags": [tag("<f=one>", SCHEMA, "</f>"), tag("<f=two>", SCHEMA, "</f>")],
    }
    old = {
        "type": "structural_tag",
        "triggers": ["<f="],
        "structures": [
            {"begin": "<f=one>", "schema": OBJECT, "end": "</f>"},
            {"begin": "<f=two>", "schema": '{"type": "object"}', "end": "</f>"},
        ],
    }
    assert structural_tag(old, splitter, "field") == of(splitter, new)


def test_tags_with_a_separator(splitter: ControlTokenSplitter):
    one = Concat((Literal("<a>"), JSON, Literal("</a>")))
    form = {
        "type": "tags_with_separator",
        "tags": [{"begin": "<a>", "content": SCHEMA, "end": "</a>"}],
        "separator": ",",
    }
    several = Concat((one, Repeat(Concat((Literal(","), *one.parts)))))
    assert of(splitter, form) == Repeat(several, 0, 1)
    assert of(splitter, {**form, "at_least_one": True}) == several
    assert of(splitter, {**form, "stop_after_first": True, "at_least_one": True}) == one


def deep(levels: int) -> dict[str, Any]:
    form: dict[str, Any] = const("x")
    for _ in range(levels):
        form = {"type": "star", "content": form}
    return form


@pytest.mark.parametrize(
    ("tags", "place"),
    [
        ([{"begin": "y", "schema": {}, "end": "y"}], r"structures\[0\]\.begin"),
        ([{"begin": "x", "schema": {}, "end": 5}], r"structures\[0\]\.end"),
    ],
)
def test_a_refusal_names_the_field_of_the_written_form(
    splitter: ControlTokenSplitter, tags: list[Any], place: str
):
    with pytest.raises(GrammarError, match=rf"^field\.{place}: "):
        structural_tag({"structures": tags, "triggers": ["x"]}, splitter, "field")
    form = {"type": "triggered_tags", "triggers": ["x"], "tags": [tag("y", SCHEMA, "y")]}
    with pytest.raises(GrammarError, match=r"^field\.format\.tags\[0\]\.begin: "):
        of(splitter, form)


REFUSED: list[tuple[Any, str]] = [
    (5, "invalid"),
    ({"type": "structural_tag"}, "invalid"),
    ({"type": "json_schema", "format": ANY}, "invalid"),
    ({"format": ANY, "triggers": ["x"]}, "invalid"),
    ({"structures": [], "triggers": ["x"]}, "invalid"),
    ({"structures": [5], "triggers": ["x"]}, "invalid"),
    ({"structures": [{"begin": "x", "end": "y"}], "triggers": ["x"]}, "invalid"),
    ({"structures": [{"begin": "y", "schema": {}, "end": "y"}], "triggers": ["x"]}, "invalid"),
    ({"structures": [{"begin": "xx", "schema": {}, "end": 5}], "triggers": ["x"]}, "invalid"),
    (
        {"structures": [{"begin": "xx", "schema": {}, "end": "y"}], "triggers": ["x", "xx"]},
        "invalid",
    ),
    *(
        ({"format": form}, fault)
        for form, fault in [
            (None, "invalid"),
            ([], "invalid"),
            ({}, "invalid"),
            ({"type": ["x"]}, "unsupported"),
            ({"type": "qwen_xml_parameter", "json_schema": {}}, "unsupported"),
            ({"type": "token", "token": 5}, "unsupported"),
            ({"type": "const_string"}, "invalid"),
            ({"type": "const_string", "value": 5}, "invalid"),
            ({**const("x"), "unknown": 1}, "unsupported"),
            ({**SCHEMA, "style": "qwen_xml"}, "unsupported"),
            ({**SCHEMA, "any_order": True}, "unsupported"),
            ({**ANY, "max_tokens": 5}, "unsupported"),
            ({**ANY, "excludes": [""]}, "invalid"),
            ({**ANY, "excludes": "x"}, "invalid"),
            ({"type": "sequence", "elements": []}, "invalid"),
            ({"type": "sequence", "elements": [ANY, SCHEMA]}, "unsupported"),
            ({"type": "sequence", "elements": [ANY, ANY]}, "unsupported"),
            ({"type": "star", "content": ANY}, "unsupported"),
            ({"type": "repeat", "content": const("x"), "min": -1, "max": 1}, "invalid"),
            ({"type": "repeat", "content": const("x"), "min": 3, "max": 2}, "invalid"),
            ({"type": "repeat", "content": const("x"), "min": 0, "max": 10**9}, "invalid"),
            ({"type": "repeat", "content": const("x"), "min": True, "max": 2}, "invalid"),
            (tag("a", ANY, "x<think>"), "unsupported"),
            (tag("a", SCHEMA, []), "invalid"),
            (
                {"type": "triggered_tags", "triggers": ["a"], "tags": [5]},
                "invalid",
            ),
            (
                {"type": "triggered_tags", "triggers": ["a"], "tags": [tag("a", ANY, "")]},
                "unsupported",
            ),
            (
                {
                    "type": "triggered_tags",
                    "triggers": ["a"],
                    "tags": [{**tag("ab", SCHEMA, "c"), "unknown": 1}],
                },
                "unsupported",
            ),
            (
                {
                    "type": "triggered_tags",
                    "triggers": ["a"],
                    "tags": [tag("ab", SCHEMA, "c")],
                    "at_least_one": 1,
                },
                "invalid",
            ),
            (deep(40), "too_complex"),
            ({"type": "or", "elements": [const(str(k)) for k in range(5000)]}, "too_complex"),
        ]
    ),
]


@pytest.mark.parametrize(("value", "fault"), REFUSED)
def test_what_cannot_be_said_is_a_typed_error_that_names_the_field(
    splitter: ControlTokenSplitter, value: Any, fault: str
):
    with pytest.raises(GrammarError) as refused:
        structural_tag(value, splitter, "field")
    assert refused.value.fault == fault
    assert refused.value.param == "field"
    assert refused.value.message.startswith("field") and len(refused.value.message) < 500
