"""The border between reasoning and answer, however its marker arrives."""

from __future__ import annotations

from typing import Any

import pytest

from eyas.grammar import Choice, Concat, FreeText, Json, Literal, Marker, Node, Regex, Repeat
from eyas.text import Tokenizer
from tests.constraint.walking import compiled, ends, legal_ids, letters_of, takes, tokens_of, walked

THINK_ID = 4091
SCHEMA = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
BOTH = Marker("</think>", THINK_ID)
TOKEN = Marker("</think>", THINK_ID, spelled=False)
TEXT = Marker("<answer>")
HARMONY = Marker("<|channel|>final<|message|>")


def _reasoning(marker: Marker, answer: Node | None = None) -> Node:
    return Concat((FreeText(until=(marker,)), answer or Json(SCHEMA)))


def test_a_control_token_ends_the_reasoning(backend: Any, tokenizer: Tokenizer) -> None:
    for marker in (BOTH, TOKEN):
        grammar = compiled(backend, _reasoning(marker))
        assert ends(grammar, tokens_of(tokenizer, "well, </thin", THINK_ID, '{"a": 1}'))
        assert not takes(grammar, tokens_of(tokenizer, "well", THINK_ID, "sorry"))
        assert not takes(grammar, tokens_of(tokenizer, THINK_ID, THINK_ID))


def test_ordinary_tokens_may_spell_the_marker(backend: Any, tokenizer: Tokenizer) -> None:
    grammar = compiled(backend, _reasoning(BOTH))
    for begin in ("hm </", "</thi</", "<</"):
        spelled = tokens_of(tokenizer, begin, "think", ">")
        assert ends(grammar, [*spelled, *tokens_of(tokenizer, '{"a": 1}')])
        assert not takes(grammar, [*spelled, *tokens_of(tokenizer, "sorry")])
        assert not takes(grammar, [*spelled, *tokens_of(tokenizer, "</")])


def test_the_marker_and_the_answer_may_share_a_token(backend: Any, tokenizer: Tokenizer) -> None:
    straddling = [
        i
        for i in range(tokenizer.vocab_size)
        if tokenizer.token_bytes(i).startswith(b">") and len(tokenizer.token_bytes(i)) > 1
    ]
    assert straddling, "the tokenizer has a token that begins with the marker's last letter"
    for token in straddling:
        rest = tokenizer.token_bytes(token)[1:].decode()
        grammar = compiled(backend, _reasoning(BOTH, Literal(rest + "!")))
        assert ends(grammar, tokens_of(tokenizer, "x </", "think", token, "!"))
        other = compiled(backend, _reasoning(BOTH, Literal("?" + rest)))
        assert not takes(other, tokens_of(tokenizer, "x </", "think", token))


def test_a_token_only_marker_is_not_ended_by_its_text(backend: Any, tokenizer: Tokenizer) -> None:
    grammar = compiled(backend, _reasoning(TOKEN))
    assert takes(grammar, letters_of(tokenizer, "</think>sorry"))
    assert ends(grammar, tokens_of(tokenizer, "</", "think", ">", THINK_ID, '{"a": 1}'))


@pytest.mark.parametrize("marker", [TEXT, HARMONY], ids=["short", "long"])
def test_a_text_marker_with_false_starts(
    backend: Any, tokenizer: Tokenizer, marker: Marker
) -> None:
    grammar = compiled(backend, _reasoning(marker, Literal("{}")))
    for length in range(1, len(marker.text)):
        text = f"so {marker.text[:length]} {marker.text[:length]}{marker.text}"
        assert ends(grammar, letters_of(tokenizer, text + "{}"))
        assert not takes(grammar, letters_of(tokenizer, text + "x"))
        assert ends(grammar, tokens_of(tokenizer, text + "{}"))


@pytest.mark.parametrize("marker", [BOTH, TOKEN, TEXT], ids=["both", "token", "text"])
def test_neither_the_end_nor_another_control_token_comes_inside_reasoning(
    backend: Any, tokenizer: Tokenizer, marker: Marker
) -> None:
    grammar = compiled(backend, _reasoning(marker))
    wanted = set() if marker.token_id is None else {marker.token_id}
    for state in walked(grammar, tokens_of(tokenizer, "why </thi <answ not")):
        assert legal_ids(backend, state) & tokenizer.control_ids == wanted


def test_one_of_several_markers_ends_a_text(backend: Any, tokenizer: Tokenizer) -> None:
    root = Concat((FreeText(until=(BOTH, TEXT, Marker("<x>", 4090))), Literal("!")))
    grammar = compiled(backend, root)
    for pieces in (("a", THINK_ID, "!"), ("a<answer>!",), ("a<x>!",), ("a", 4090, "!")):
        assert ends(grammar, tokens_of(tokenizer, *pieces))
    assert not takes(grammar, tokens_of(tokenizer, "a<answer>x"))


def test_reasoning_may_be_left_out(backend: Any, tokenizer: Tokenizer) -> None:
    opened = Concat((Marker("<think>", 4090), FreeText(until=(BOTH,))))
    root = Concat((Repeat(opened, 0, 1), Regex(r"\n{0,2}"), Json(SCHEMA)))
    grammar = compiled(backend, root)
    assert ends(grammar, tokens_of(tokenizer, '{"a": 1}'))
    assert ends(grammar, tokens_of(tokenizer, 4090, "hm", THINK_ID, '\n\n{"a": 1}'))
    assert ends(grammar, tokens_of(tokenizer, "<think>hm", THINK_ID, '{"a": 1}'))
    assert not takes(grammar, tokens_of(tokenizer, 4090, "hm", THINK_ID, "\n\n\n"))


def test_text_and_calls_take_turns(backend: Any, tokenizer: Tokenizer) -> None:
    call, end = Marker("<tool_call>", 4092), Marker("</tool_call>", 4093)
    one = Concat(
        (
            FreeText(until=(call,)),
            Literal('\n{"name": "f", "arguments": '),
            Json(SCHEMA),
            Literal("}\n"),
            end,
        )
    )
    grammar = compiled(backend, Concat((Repeat(one), FreeText(without=(call,)))))
    body = '\n{"name": "f", "arguments": {"a": 1}}\n'
    assert ends(grammar, tokens_of(tokenizer, "just text with <tool_"))
    assert ends(grammar, tokens_of(tokenizer, "a", 4092, body, 4093, 4092, body, 4093, "b"))
    assert ends(grammar, tokens_of(tokenizer, "a<tool_call>" + body + "</tool_call>b"))
    assert not ends(grammar, tokens_of(tokenizer, "a", 4092, body))
    assert not takes(grammar, tokens_of(tokenizer, "a<tool_call>x"))


def test_calls_that_differ_in_their_schema(backend: Any, tokenizer: Tokenizer) -> None:
    other = (
        '{"type":"object","properties":{"b":{"type":"string"}},"required":["b"],'
        '"additionalProperties":false}'
    )
    calls = Choice(
        tuple(
            Concat((Literal(f'{{"name": "{name}", "arguments": '), Json(schema), Literal("}")))
            for name, schema in (("first", SCHEMA), ("second", other))
        )
    )
    grammar = compiled(backend, calls)
    assert ends(grammar, tokens_of(tokenizer, '{"name": "first", "arguments": {"a": 1}}'))
    assert ends(grammar, tokens_of(tokenizer, '{"name": "second", "arguments": {"b": "x"}}'))
    assert not takes(grammar, tokens_of(tokenizer, '{"name": "second", "arguments": {"a": 1}}'))
