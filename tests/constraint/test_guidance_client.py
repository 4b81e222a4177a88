"""Grammars as the client library guidance writes them for servers: what is taken, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eyas.core import GrammarError
from eyas.grammar import Source
from eyas.schemas import grammar_source
from eyas.text import Tokenizer
from tests.constraint.walking import compiled, ends, letters_of, takes

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
USUAL = {
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
    "lenient": False,
}
"""What it sends with every schema."""


def of_schema(attributes: str = "capture", schema: Any = SCHEMA, **options: Any) -> str:
    """guidance.json("person", schema=...)"""
    body = json.dumps({**schema, "x-guidance": {**USUAL, **options}}, indent=2)
    named = f"person[{attributes}]" if attributes else "person"
    return f"%llguidance {{}}\n\nstart: person\n\n{named}: %json {body}\n\n"


FREE = {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}
SPREAD = '{\n  "name": "A",\n  "age": 3\n}'
TEXTS: dict[str, tuple[str, list[str], list[str]]] = {
    "a schema": (
        of_schema(),
        ['{"name": "A", "age": 3}'],
        ['{"name":"A","age":3}', SPREAD, '{"name": "A", "age":  3}', '{"name": "A", "age": "3"}'],
    ),
    "without a name": (of_schema(""), ['{"name": "A", "age": 3}'], ['{"name": 1, "age": 3}']),
    "white space": (
        of_schema(**FREE),
        ['{"name": "A", "age": 3}', '{"name":"A","age":3}', SPREAD],
        ['{  "name": "A", "age": 3}', '{\n\n"name": "A", "age": 3}'],
    ),
    "a white space pattern": (
        of_schema(**{**FREE, "whitespace_pattern": r"[ \n]{1,3}"}),
        ['{"name":"A","age":3}', '{\n "name": "A",\n\n\n"age":3}'],
        ['{"name":    "A","age":3}', '{\t"name":"A","age":3}'],
    ),
    "separators": (
        of_schema(item_separator=",", key_separator=":"),
        ['{"name":"A","age":3}'],
        ['{"name": "A", "age": 3}'],
    ),
    "a lenient schema": (
        of_schema(schema={"type": "string", "format": "regex"}, lenient=True),
        ['"a("'],
        ["1"],
    ),
    "no schema": (of_schema(schema={"type": "object"}), ['{"a": [1, 2]}'], ["[1]", '{"a":1}']),
    "two schemas": (
        of_schema().replace("start: person", 'start: "a: " person " b: " q')
        + "q[capture]: %json "
        + json.dumps({"type": "array", "items": SCHEMA, "x-guidance": {**USUAL, **FREE}}, indent=2),
        [
            'a: {"name": "A", "age": 3} b: []',
            'a: {"name": "A", "age": 3} b: [ {"name":"","age":4}]',
        ],
        ['a: {"name":"A","age":3} b: []'],
    ),
    "options": (
        '%llguidance {"no_forcing": true, "allow_invalid_utf8": false}\n%ignore / /\nstart: "a" "b"',
        ["ab", "a b"],
        ["a\tb"],
    ),
    "any text": ("%llguidance {}\n\nstart: x\nx[capture]: X\nX: /(?s:.*)/\n", ["so\n{"], []),
    "a pattern": (
        "%llguidance {}\n\nstart: x\nx[capture]: X\nX: /\\d+\\/\\d+/\n",
        ["12/3"],
        ["12/", "a"],
    ),
    "at most so many tokens": (
        "%llguidance {}\n\nstart: x\nx[capture, max_tokens=3]: X\nX: /(?s:.*)/\n",
        ["abc"],
        ["abcd"],
    ),
    "text up to a suffix": (
        '%llguidance {}\n\nstart: "A " x " B"\nx[capture, suffix="."]: X\nX: /[a-z]*/\n',
        ["A bc. B"],
        ["A bc B", "A b.c. B"],
    ),
    "two pieces of a list": (
        '%llguidance {}\n\nstart: x "," x_1\nx[capture="__LIST_APPEND:x"]: X\nX: /a+/\n'
        'x_1[capture="__LIST_APPEND:x"]: X_1\nX_1: /b+/\n',
        ["aa,b"],
        ["a,a"],
    ),
    "a choice": (
        '%llguidance {}\n\nstart: "I think " city "!"\ncity[capture]: CITY\n\n'
        'CITY: "Paris"\n     | "The \\"Hague\\""\n\n',
        ["I think Paris!", 'I think The "Hague"!'],
        ["I think Rome!"],
    ),
    "repetitions": (
        "%llguidance {}\n\nstart: START\nSTART: ONE_OR_MORE OPTIONAL AT_MOST_N_REPEATS\n"
        'ONE_OR_MORE: SELECT+\n\nSELECT: "a"\n     | "b"\n\nOPTIONAL: "!"?\n'
        "AT_MOST_N_REPEATS: SELECT{0,3}\n",
        ["abba!ab"],
        ["!", "a!abab"],
    ),
    "a part of a text": (
        "%llguidance {}\n\nstart: START\nSTART: SUBSTRING\n\nSUBSTRING: %regex {\n"
        '  "substring_chunks": [\n    "the",\n    " ",\n    "quick",\n    " ",\n    "fox"\n  ]\n}\n\n',
        ["quick fox", "the"],
        ["the fox"],
    ),
    "a nested grammar": (
        '%llguidance {}\n\nstart: lark\n\nlark: %lark {\n%llguidance {}\n  start: "a" NUM\n'
        "  NUM: /[0-9]+/\n  %ignore / +/\n}\n\n",
        ["a12", "a  12"],
        ["a", "ab"],
    ),
    "recursion": (
        '%llguidance {}\n\nstart: capture "\\n"\n\ncapture[capture="e"]: NUMBER\n     | "(" expr ")"\n'
        "     | expr SELECT expr\n\nNUMBER: REGEX\nREGEX: /[0-9]+/\n\nexpr: NUMBER\n"
        '     | "(" expr ")"\n     | expr SELECT expr\n\nSELECT: "+"\n     | "*"\n\n',
        ["(1+2)*3\n"],
        ["1+\n", "(1\n"],
    ),
}
STOP, HEAT, LIMIT = "stop is not supported", "temperature is not supported", "max_tokens would end"
REFUSED: dict[str, tuple[str, str]] = {
    "not enforceable": (
        of_schema(schema={"type": "string", "format": "regex"}),
        "line 5, column 18: %json: #/format",
    ),
    "unknown": (of_schema(strict=True), "line 5, column 18: %json: #/x-guidance/strict: is not"),
    "no JSON": (of_schema(item_separator=";"), "#/x-guidance/item_separator: must be ','"),
    "temperature of a schema": (
        of_schema("capture, temperature=0.7"),
        f"line 5, column 17: {HEAT}",
    ),
    "tokens of a schema": (of_schema("capture, max_tokens=50"), f"line 5, column 17: {LIMIT}"),
    "tokens of a nested grammar": (
        '%llguidance {}\n\nstart: s\ns[capture="]", max_tokens=5]: %lark {\nstart: "a"\n}\n',
        f"line 4, column 16: {LIMIT}",
    ),
    "temperature": (
        "%llguidance {}\n\nstart: x\nx[capture, temperature=0.5]: X\nX: /(?s:.*)/\n",
        f"line 4, column 12: {HEAT}",
    ),
    "stop": (
        '%llguidance {}\n\nstart: x\nx[capture, stop="\\n"]: X\nX: /(?s:.*)/\n',
        f"line 4, column 12: {STOP}.*use suffix or lazy",
    ),
    "stop by a pattern": (
        '%llguidance {}\n\nstart: x\nx[capture, stop=/\\.\\s/, stop_capture="y"]: X\nX: /(?s:.*)/\n',
        f"line 4, column 12: {STOP}",
    ),
    "a control token": ("%llguidance {}\n\nstart: <|im_end|>\n", "names a control token"),
    "a control token below": ("start: s\ns: %lark {\nstart: <|im_end|>\n}", "control token"),
    "invalid text": (
        '%llguidance {"allow_invalid_utf8": true}\nstart: /(?s-u:.)*/',
        "line 1, column 1: %llguidance: allow_invalid_utf8 is not supported",
    ),
    "an option that is for a whole grammar": (
        '%llguidance {"allow_initial_skip": true}\n%ignore / /\nstart: "a"',
        "line 1, column 1: %llguidance: allow_initial_skip is not supported",
    ),
    "an unknown option": (
        '%llguidance {"skip_repetition": "once"}\n%ignore / {1,3}/\nstart: "a" "b"',
        "line 1, column 1: %llguidance: skip_repetition is not supported",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_guidance_writes_is_taken(
    llguidance_backend: Any, tokenizer: Tokenizer, name: str
) -> None:
    text, legal, illegal = TEXTS[name]
    source = grammar_source(text, "grammar")
    assert source == Source("lark", text)
    grammar = compiled(llguidance_backend, source)
    for output in legal:
        assert ends(grammar, letters_of(tokenizer, output)), output
    for output in illegal:
        assert not ends(grammar, letters_of(tokenizer, output)), output


WITHOUT_JSON = ("options", "a choice", "repetitions", "a part of a text", "a pattern", "recursion")


@pytest.mark.parametrize("name", TEXTS)
def test_the_other_library_takes_it_or_says_that_it_does_not(
    xgrammar_backend: Any, tokenizer: Tokenizer, name: str
) -> None:
    text, legal, illegal = TEXTS[name]
    fault = None
    try:
        grammar = compiled(xgrammar_backend, grammar_source(text, "grammar"))
    except GrammarError as error:
        fault = error.fault
    if fault is not None:
        assert name not in WITHOUT_JSON and fault in ("unsupported", "invalid")
        return
    for output in legal:
        assert ends(grammar, letters_of(tokenizer, output)), output
    for output in illegal:
        assert not ends(grammar, letters_of(tokenizer, output)), output


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_be_enforced_is_refused_by_name(llguidance_backend: Any, name: str) -> None:
    text, message = REFUSED[name]
    with pytest.raises(GrammarError, match=message) as refused:
        compiled(llguidance_backend, grammar_source(text, "grammar"))
    assert refused.value.fault in ("unsupported", "invalid")


def test_an_option_in_a_text_is_no_option(llguidance_backend: Any, tokenizer: Tokenizer) -> None:
    text = 'start: "[stop=" /[,]max_tokens=3]: %json/ // [temperature=1]\n'
    grammar = compiled(llguidance_backend, Source("lark", text))
    assert takes(grammar, letters_of(tokenizer, "[stop=,max_tokens=3"))
