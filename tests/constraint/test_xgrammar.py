"""What only the second backend has: a process that is killed, and the extra."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eyas.constraint import Vocabulary, build_backend
from eyas.core import GrammarError, GrammarsUnavailable
from eyas.grammar import (
    Choice,
    Concat,
    FreeText,
    Json,
    Literal,
    Marker,
    Node,
    OutputSpec,
    Regex,
    Source,
)
from eyas.schemas import prepare
from eyas.text import Tokenizer
from tests.constraint.walking import compiled, ends, letters_of, takes, tokens_of


def test_the_extra_is_named_where_it_is_missing(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(ValueError, match=r"eyas\[xgrammar\]"):
        build_backend("xgrammar", vocabulary)


def compiled_in_time(backend: Any, root: Node) -> Any:
    """Compile a small grammar, again where a busy machine took longer than the deadline."""
    for _ in range(100):
        with contextlib.suppress(GrammarError):
            return compiled(backend, root)
    return compiled(backend, root)


def test_a_compilation_that_takes_too_long_is_killed(
    xgrammar_backend: Any, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    backend: Any = build_backend("xgrammar", vocabulary, deadline_seconds=1.0)
    heavy = Json(json.dumps({"enum": [f"x{i}" for i in range(100_000)]}))
    with pytest.raises(GrammarError, match="json: compiling it took more than 1 second") as caught:
        backend.compile(OutputSpec(root=heavy, param="json"))
    assert caught.value.fault == "timeout"
    assert ends(compiled_in_time(backend, Regex("[0-9]")), tokens_of(tokenizer, "1"))
    backend.close()
    with pytest.raises(GrammarError, match="stopping"):
        compiled(backend, Regex("a"))


def test_without_a_process_for_it_who_asks_is_told_and_later_ones_are_served(
    xgrammar_backend: Any,
    vocabulary: Vocabulary,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend: Any = build_backend("xgrammar", vocabulary, deadline_seconds=60.0)
    start = subprocess.Popen

    def denied(*_: Any, **__: Any) -> Any:
        raise BlockingIOError("Resource temporarily unavailable")

    with contextlib.closing(backend):
        backend._compiler._process.kill()
        monkeypatch.setattr(subprocess, "Popen", denied)
        with pytest.raises(GrammarError, match="died"):
            compiled(backend, Regex("[0-9]"))
        for _ in range(2):
            with pytest.raises(GrammarsUnavailable, match="no process left"):
                compiled(backend, Regex("[0-9]"))
        monkeypatch.setattr(subprocess, "Popen", start)
        assert ends(compiled(backend, Regex("[0-9]")), tokens_of(tokenizer, "1"))


def test_a_process_that_is_started_while_the_backend_closes_is_ended(
    xgrammar_backend: Any, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = build_backend("xgrammar", vocabulary)
    compiler, started = backend._compiler, []
    spawn = compiler._spawn

    def closing_spawn() -> Any:
        started.append(spawn())
        backend.close()
        return started[-1]

    monkeypatch.setattr(compiler, "_spawn", closing_spawn)
    compiler._process.kill()  # the next question is refused, and starts another
    with pytest.raises(GrammarError, match=r"died|stopping"):
        compiled(backend, Regex("[0-9]"))
    (process,) = started
    assert process.poll() is not None


def test_a_process_that_takes_no_question_is_ended_at_the_deadline(
    xgrammar_backend: Any, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    backend: Any = build_backend("xgrammar", vocabulary, deadline_seconds=1.0)
    with contextlib.closing(backend):
        compiled_in_time(backend, Regex("a"))
        backend._compiler._process.send_signal(signal.SIGSTOP)
        larger_than_a_pipe = Choice(tuple(Literal(f"{index:020}") for index in range(8_000)))
        with pytest.raises(GrammarError, match="more than 1 seconds"):
            compiled(backend, larger_than_a_pipe)
        assert ends(compiled_in_time(backend, Regex("[0-9]")), tokens_of(tokenizer, "1"))


def test_a_keyword_that_it_ignores_is_refused(xgrammar_backend: Any, tokenizer: Tokenizer) -> None:
    schema = '{"type":"array","items":{"type":"integer"},"uniqueItems":true}'
    with pytest.raises(GrammarError, match="uniqueItems") as caught:
        xgrammar_backend.compile(OutputSpec(root=Json(schema), param="json_schema"))
    assert caught.value.fault == "unsupported" and caught.value.param == "json_schema"
    lenient = compiled(xgrammar_backend, Json(schema, lenient=True))
    assert ends(lenient, tokens_of(tokenizer, "[1, 1]"))


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"pattern": r"^1(?:\.2+)?$"}, ["1", "1.22"], ["12", "122", "1."]),
        ({"pattern": "^(?:b{1,2}|b)$"}, ["b", "bb"], ["bbb"]),
        ({"pattern": r"^\S$"}, ["a", '"', "\\"], ["\u00a0", "\u2003", " "]),
        ({"pattern": "^[^a]$"}, ["b", "\n", "é", "😀"], ["a", "bb"]),
        ({"pattern": "a$|^b"}, ["ba", "xa", "bx"], ["ax"]),
        ({"format": "ipv4"}, ["0.10.200.255"], ["00.1.1.1", "1.1.1.01", "1.1.1.256"]),
        ({"format": "hostname"}, ["A-b.example"], [f"{'a' * 64}.example", "a-.b"]),
        ({"format": "email"}, ["a.b+c@d.example"], ['"\\q"@d.example', "a..b@d.example", "a@-d"]),
    ],
    ids=json.dumps,
)
def test_strings_are_those_of_the_standard(
    xgrammar_backend: Any,
    tokenizer: Tokenizer,
    schema: dict[str, str],
    valid: list[str],
    invalid: list[str],
) -> None:
    text = prepare({"type": "string", **schema}, param="schema")
    grammar = compiled_in_time(xgrammar_backend, Json(text))
    texts = {value: json.dumps(value, ensure_ascii=False) for value in (*valid, *invalid)}
    taken = [value for value, text in texts.items() if ends(grammar, tokens_of(tokenizer, text))]
    assert taken == valid


@pytest.mark.parametrize(
    ("pattern", "valid", "invalid"),
    [
        (".", ["a", '"', "😀"], ["\n", "ab"]),
        ("(?s).", ["\n"], [""]),
        ("(?:(?:a*)*)*b|", ["aab", ""], ["ba"]),
        (r"(^\d|\S$)", ["1", "x"], [" ", "\u00a0"]),
    ],
)
def test_a_pattern_is_that_of_the_other_backend(
    xgrammar_backend: Any,
    tokenizer: Tokenizer,
    pattern: str,
    valid: list[str],
    invalid: list[str],
) -> None:
    grammar = compiled_in_time(xgrammar_backend, Regex(pattern))
    taken = [text for text in (*valid, *invalid) if ends(grammar, tokens_of(tokenizer, text))]
    assert taken == valid


@pytest.mark.parametrize("pattern", ["a$b", "[a-z&&[^b]]", "[[:alpha:]]", r"\p{L}", "(?i)a"])
def test_a_pattern_that_it_would_read_otherwise_is_refused(
    xgrammar_backend: Any, pattern: str
) -> None:
    with pytest.raises(GrammarError, match="regex: the regular expression is refused") as caught:
        xgrammar_backend.compile(OutputSpec(root=Regex(pattern), param="regex"))
    assert caught.value.fault == "unsupported"


def test_a_lenient_schema_leaves_out_a_pattern_that_cannot_be_written(
    xgrammar_backend: Any, tokenizer: Tokenizer
) -> None:
    text = prepare({"type": "string", "pattern": r"^\p{L}$"}, param="schema", lenient=True)
    grammar = compiled_in_time(xgrammar_backend, Json(text, lenient=True))
    assert ends(grammar, tokens_of(tokenizer, '"12"'))
    assert not ends(grammar, tokens_of(tokenizer, "12"))


def test_a_markers_token_is_not_text_elsewhere(xgrammar_backend: Any, tokenizer: Tokenizer) -> None:
    root = Concat((FreeText(until=(Marker("</think>", 4091),)), Json('{"type":"string"}')))
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


LOADED = """
import sys
from eyas.constraint.xgrammar_worker import light_library

library = light_library()
heavy = [n for n in ("torch", "transformers.utils", "triton") if sys.modules.get(n)]
print(hasattr(library, "GrammarCompiler"), getattr(library, "is_whole", False), *heavy)
"""


def loaded(*paths: Path) -> list[str]:
    """Does the library compile, is it the whole package of below, what heavy was imported?"""
    path = os.pathsep.join([*map(str, paths), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", LOADED],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.split()


def test_the_process_that_compiles_goes_without_torch() -> None:
    pytest.importorskip("xgrammar")
    assert loaded() == ["True", "False"]


def test_a_library_that_wants_torch_to_compile_is_taken_whole(tmp_path: Path) -> None:
    """As one of another version may."""
    (tmp_path / "torch.py").write_text("")
    package = tmp_path / "xgrammar"
    package.mkdir()
    (package / "__init__.py").write_text("from .compiler import GrammarCompiler\nis_whole = True")
    (package / "exception.py").write_text("")
    (package / "load_binding.py").write_text("")
    (package / "compiler.py").write_text("import torch\nGrammarCompiler = None")
    assert loaded(tmp_path) == ["True", "True", "torch"]


@pytest.mark.parametrize("text", ["größe", "éa", "a\u0085b", "ÿ0", "é\\x41"])
def test_a_letter_before_digits_of_a_code_stays_itself(
    xgrammar_backend: Any, tokenizer: Tokenizer, text: str
) -> None:
    """The library writes such a letter in two digits, and would read more."""
    quoted = json.dumps(text, ensure_ascii=False)
    closed = {"type": "object", "properties": {text: {}}, "additionalProperties": False}
    for schema, value in (({"enum": [text, 1]}, quoted), (closed, f"{{{quoted}: 1}}")):
        grammar = compiled(xgrammar_backend, Json(prepare(schema, param="schema")))
        assert ends(grammar, letters_of(tokenizer, value))
    source = compiled(xgrammar_backend, Source("ebnf", f"root ::= {quoted}"))
    assert ends(source, letters_of(tokenizer, text))


@pytest.mark.parametrize("name", ["é", 'q"t', "a\\b"])
def test_a_name_that_others_are_not_told_from_is_refused(
    xgrammar_backend: Any, tokenizer: Tokenizer, name: str
) -> None:
    schema = {"type": "object", "properties": {name: {"type": "integer"}}}
    text = prepare(schema, param="schema")
    with pytest.raises(GrammarError, match="where other properties are allowed") as caught:
        compiled(xgrammar_backend, Json(text))
    assert caught.value.fault == "unsupported"
    closed = prepare({**schema, "additionalProperties": False}, param="schema")
    grammar = compiled(xgrammar_backend, Json(closed))
    assert ends(grammar, letters_of(tokenizer, json.dumps({name: 1}, ensure_ascii=False)))


@pytest.mark.parametrize("schema", [{}, {"maxLength": 1}, {"pattern": "^[^a]$"}], ids=json.dumps)
def test_no_string_has_halves_of_pairs_or_control_characters(
    xgrammar_backend: Any, schema: dict[str, Any]
) -> None:
    tokens = [bytes([byte]) for byte in range(256)]
    vocabulary = Vocabulary(
        [*tokens, b"<e>"], frozenset({256}), (256,), 257, lambda t: [*t.encode()]
    )
    with contextlib.closing(build_backend("xgrammar", vocabulary)) as backend:
        text = prepare({"type": "string", **schema}, param="schema")
        grammar = compiled(backend, Json(text))
        assert ends(grammar, [*'"é"'.encode()])
        for data in (b'"\xed\xa0\x80', b'"\x01'):
            assert not takes(grammar, [*data])
        assert not takes(compiled(backend, FreeText()), [*b"\xed\xa0\x80"])


def test_what_is_forced_inside_of_a_character_is_not_proposed(
    xgrammar_backend: Any, tokenizer: Tokenizer
) -> None:
    grammar = compiled(xgrammar_backend, Literal("é!"))
    first, *rest = letters_of(tokenizer, "é!")
    state = grammar.start().after(first)
    assert state.forced(4) == []
    assert ends(grammar, [first, *rest])
