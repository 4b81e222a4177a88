"""The two backends' masks, step by step; where they differ, the test says why."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from eyas.constraint import Vocabulary
from eyas.grammar import Concat, FreeText, Json, Literal, Marker, Node, Regex, Repeat, Source
from eyas.text import Tokenizer
from tests.constraint.walking import compiled, ends, masks, takes, tokens_of, walked

TIGHT = (", ", ": ")
LINKED = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
CASES: dict[str, tuple[Node, tuple[str | int, ...]]] = {
    "object": (
        Json(
            '{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},'
            '"required":["name","age"],"additionalProperties":false}',
            separators=TIGHT,
        ),
        ('{"name": "Ad\\né x\\\\", "age": -12}',),
    ),
    "open object": (
        Json('{"type":"object","additionalProperties":{"type":"integer"}}', separators=TIGHT),
        ('{"a": 1, "b": 2}',),
    ),
    "enum": (Json('{"enum":["red","green",3,null]}', separators=TIGHT), ('"green"',)),
    "array": (
        Json(
            '{"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":3}',
            separators=TIGHT,
        ),
        ("[true, false]",),
    ),
    "number": (Json('{"type":"number"}', separators=TIGHT), ("-12.5e+3",)),
    "range": (Json('{"type":"integer","minimum":1,"maximum":100}', separators=TIGHT), ("42",)),
    "pattern": (
        Json('{"type":"string","pattern":"^[a-z]{2,4}-[0-9]+$"}', separators=TIGHT),
        ('"ab-12"',),
    ),
    "length": (
        Json('{"type":"string","minLength":2,"maxLength":4}', separators=TIGHT),
        ('"abcd"',),
    ),
    "date": (Json('{"type":"string","format":"date"}', separators=TIGHT), ('"2024-02-29"',)),
    "linked": (
        Json(json.dumps(LINKED), separators=TIGHT),
        ('{"v": 1, "next": {"v": 2, "next": null}}',),
    ),
    "regex": (Regex("(Paris|Amsterdam)[0-9]{2,3}"), ("Amsterdam12",)),
    "reasoning": (
        Concat((FreeText(until=(Marker("</think>", 4091),)), Literal("\n\n{"))),
        ("so </ thi", 4091, "\n\n{"),
    ),
    "spelled": (
        Concat((FreeText(until=(Marker("<answer>"),)), Literal("ok"))),
        ("so <ans<answer>ok",),
    ),
    "without": (FreeText(without=(Marker("<tool_call>"),)), ("see <tool_cal l",)),
    "grammar": (Source("ebnf", 'root ::= ("a" | "b")+ "." root?'), ("ab.b.",)),
    "repeat": (
        Concat((Repeat(Literal("ab"), 1, 3), Marker("<x>", 4090), FreeText())),
        ("abab", 4090, "y"),
    ),
}


def _is_deletion(tokenizer: Tokenizer, token: int, before: str) -> bool:
    """The character DEL in a string: JSON allows it, llguidance leaves it out."""
    return b"\x7f" in tokenizer.token_bytes(token) and before.count('"') % 2 == 1


def _is_needless_escape(tokenizer: Tokenizer, token: int, before: str) -> bool:
    """\\/ and \\u escapes of printable characters: llguidance has one spelling for each character."""
    text = before + tokenizer.token_text(token)
    return re.search(r"\\(/|u)[^\"]{0,4}$", text) is not None


def _is_escape_in_counted(tokenizer: Tokenizer, token: int, before: str) -> bool:
    """A string with a length: xgrammar has no escapes in it."""
    return "\\" in tokenizer.token_text(token)


def _is_day_beyond_month(tokenizer: Tokenizer, token: int, before: str) -> bool:
    """30 February: llguidance knows how long months are."""
    return before.endswith("-02-") and tokenizer.token_text(token).startswith("3")


def _is_minus_zero(tokenizer: Tokenizer, token: int, before: str) -> bool:
    """-0 is an integer of JSON: xgrammar leaves it out."""
    return before.endswith("-") and tokenizer.token_text(token).startswith("0")


ONLY_XGRAMMAR: dict[str, tuple[Callable[[Tokenizer, int, str], bool], ...]] = {
    "object": (_is_deletion, _is_needless_escape),
    "open object": (_is_deletion, _is_needless_escape),
    "length": (_is_deletion,),
    "date": (_is_day_beyond_month,),
}
ONLY_LLGUIDANCE: dict[str, tuple[Callable[[Tokenizer, int, str], bool], ...]] = {
    "length": (_is_escape_in_counted,),
    "object": (_is_minus_zero,),
}


@pytest.mark.parametrize("name", CASES)
def test_both_backends_allow_the_same_but_for_what_is_explained(
    llguidance_backend: Any, xgrammar_backend: Any, tokenizer: Tokenizer, name: str
) -> None:
    root, pieces = CASES[name]
    tokens = tokens_of(tokenizer, *pieces)
    states = [walked(compiled(one, root), tokens) for one in (llguidance_backend, xgrammar_backend)]
    assert [len(walk) for walk in states] == [len(tokens) + 1] * 2
    first, second = masks(llguidance_backend, states[0]), masks(xgrammar_backend, states[1])
    for i in range(len(tokens) + 1):
        before = tokenizer.decode(tokens[:i], skip_special=False, continues=True)
        for difference, known in (
            (first[i] & ~second[i], ONLY_LLGUIDANCE),
            (second[i] & ~first[i], ONLY_XGRAMMAR),
        ):
            for token in np.nonzero(difference)[0].tolist():
                reasons = known.get(name, ())
                assert any(reason(tokenizer, token, before) for reason in reasons), (
                    before,
                    tokenizer.token_bytes(token),
                )


def test_a_string_with_a_length_holds_no_control_character(
    xgrammar_backend: Any, llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    for one in (xgrammar_backend, llguidance_backend):
        grammar = compiled(one, Json('{"type":"string","maxLength":9}'))
        assert ends(grammar, tokens_of(tokenizer, '"a b"'))
        for letter in ("\n", "\t", "\x01", "\x1f"):
            assert not takes(grammar, tokens_of(tokenizer, '"a' + letter))


def test_a_string_may_stand_before_any_text(
    xgrammar_backend: Any, llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    for one in (xgrammar_backend, llguidance_backend):
        root = Concat((Literal("<"), Json('{"type":"string"}'), Literal(">x")))
        grammar = compiled(one, root)
        states = walked(grammar, tokens_of(tokenizer, '<"a b'))
        assert ends(grammar, tokens_of(tokenizer, '<"a b">x'))
        allowed = masks(one, states[-1:])[0]
        closing = tokenizer.encode_text('">', continues=True)[0]
        assert allowed[closing]


def test_words_of_json_are_refused_by_both_at_the_same_place(
    xgrammar_backend: Any, llguidance_backend: Any, vocabulary: Vocabulary
) -> None:
    schema = Json(
        '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}'
    )
    texts = ('{"a": tru', '{"b', '{"a": 1, "a"', '{"a": 01', "[", '{"a": "')
    lengths = [
        [len(walked(compiled(one, schema), vocabulary.encode(text))) for text in texts]
        for one in (xgrammar_backend, llguidance_backend)
    ]
    assert lengths[0] == lengths[1]
