"""What only the second backend has: a process that is killed, and the extra."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest

from eyas.constraint import Vocabulary, build_backend
from eyas.core import GrammarError
from eyas.grammar import FreeText, Json, Marker, OutputSpec, Regex, Series
from eyas.schemas import prepare
from eyas.text import Tokenizer
from tests.constraint.walking import compiled, ends, letters_of, takes, tokens_of


def test_the_extra_is_named_where_it_is_missing(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(ValueError, match=r"eyas\[xgrammar\]"):
        build_backend("xgrammar", vocabulary)


def test_a_compilation_that_takes_too_long_is_killed(
    xgrammar_backend: Any, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    backend: Any = build_backend("xgrammar", vocabulary, deadline_seconds=1.0)
    assert ends(compiled(backend, Regex("[0-9]")), tokens_of(tokenizer, "1"))
    begin = time.monotonic()
    heavy = Json(json.dumps({"enum": [f"x{i}" for i in range(100_000)]}))
    with pytest.raises(GrammarError, match="json: compiling it took more than 1 second") as caught:
        backend.compile(OutputSpec(root=heavy, param="json"))
    assert caught.value.fault == "timeout" and time.monotonic() - begin < 10
    assert ends(compiled(backend, Regex("[0-9]")), tokens_of(tokenizer, "1"))
    backend.close()
    with pytest.raises(GrammarError, match="stopping"):
        compiled(backend, Regex("a"))


def test_a_keyword_that_it_ignores_is_refused(xgrammar_backend: Any, tokenizer: Tokenizer) -> None:
    schema = '{"type":"array","items":{"type":"integer"},"uniqueItems":true}'
    with pytest.raises(GrammarError, match="uniqueItems") as caught:
        xgrammar_backend.compile(OutputSpec(root=Json(schema), param="json_schema"))
    assert caught.value.fault == "unsupported" and caught.value.param == "json_schema"
    lenient = compiled(xgrammar_backend, Json(schema, lenient=True))
    assert ends(lenient, tokens_of(tokenizer, "[1, 1]"))


def test_a_markers_token_is_not_text_elsewhere(xgrammar_backend: Any, tokenizer: Tokenizer) -> None:
    root = Series((FreeText(until=(Marker("</think>", 4091),)), Json('{"type":"string"}')))
    grammar = compiled(xgrammar_backend, root)
    tokens = tokens_of(tokenizer, "a", 4091, '"x')
    state = grammar.start()
    for token in tokens:
        state = state.after(token)
    assert state.after(4091) is None and state.after(4090) is None
    assert state.after(tokens_of(tokenizer, "y")[0]) is not None


def test_a_listed_name_has_one_spelling_here_too(
    xgrammar_backend: Any, tokenizer: Tokenizer
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    grammar = compiled(xgrammar_backend, Json(prepare(schema, param="schema")))
    for text in ('{"a": 1}', '{"b": "x"}', '{"b": "\\n\\u0001"}'):
        assert ends(grammar, letters_of(tokenizer, text)), text
    for text in ('{"a": "x"}', r'{"\u0061": "x"}', r'{"b": "\u0061"}', r'{"b\/": 1}'):
        assert not takes(grammar, letters_of(tokenizer, text)), text
