"""Whatever is sent: a clear error or a right grammar, in bounded time, and the next one works."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from eyas.constraint import ConstraintFailure
from eyas.constraint.llguidance_states import LlguidanceState
from eyas.core import GrammarError
from eyas.grammar import Concat, Json, Literal, Node, OutputSpec, Regex, Repeat, Source
from eyas.text import Tokenizer
from tests.constraint.walking import compiled, ends, masks, takes, tokens_of, walked


def _doubled(depth: int, leaf: str, times: int = 2) -> str:
    """Terminals, each of which names the next so many times."""
    links = [f"T{i}: {' '.join([f'T{i + 1}'] * times)}" for i in range(depth)]
    return "\n".join(["start: T0", *links, f"T{depth}: {leaf}"])


LONG_AND_ENDLESS = "\n".join(
    [
        "start: r0 endless",
        *(f"r{i}: r{i + 1}" for i in range(60)),
        'r60: "a"',
        'endless: endless "a"',
    ]
)

REFUSED: dict[str, tuple[Node, str, str]] = {
    "unbalanced": (Regex("(Paris|Amsterdam}"), "invalid", "position 0.*unclosed"),
    "position": (Regex("a/b/c[/"), "invalid", "position 5"),
    "lone backslash": (Regex("a\\"), "invalid", "backslash at position 1"),
    "NUL in a pattern": (Regex("a\0"), "invalid", "NUL character at position 1"),
    "NUL in a literal": (Literal("a\0"), "invalid", "NUL"),
    "look-ahead": (Regex("(?=a)b"), "unsupported", "look-around"),
    "backreference": (Regex(r"(a)\1"), "unsupported", "backreferences"),
    "word border": (Regex(r"\bfoo"), "unsupported", "are not supported"),
    "empty schema": (Json(""), "invalid", "line 1 column 1"),
    "half a schema": (Json('{"type":'), "invalid", "not valid JSON"),
    "not a schema": (Json("[1]"), "invalid", "JSON object"),
    "false": (Json("false"), "invalid", "false"),
    "unknown type": (Json('{"type":"strnig"}'), "invalid", "strnig"),
    "not a number": (Json('{"const":NaN}'), "invalid", "NaN"),
    "dangling": (Json('{"$ref":"#/$defs/x"}'), "invalid", "x"),
    "remote": (Json('{"$ref":"http://other/x"}'), "unsupported", "http://other/x.*defs"),
    "keywords": (Json('{"not":{},"contains":{}}'), "unsupported", "contains, not"),
    "own options": (Json('{"x-guidance":{"lenient":true},"not":{}}'), "unsupported", "not"),
    "pattern": (Json('{"type":"string","pattern":"^(?!a).*$"}'), "unsupported", "look-around"),
    "recursive": (Json('{"$ref":"#"}'), "invalid", "refers to itself"),
    "half a pair": (Json('{"const":"\\ud800"}'), "invalid", "surrogate"),
    "half a pair itself": (Regex("a\ud800"), "invalid", "surrogate pair at position 1"),
    "100k options": (
        Json(json.dumps({"enum": [f"x{i}" for i in range(100_000)]})),
        "too_complex",
        "smaller",
    ),
    "nested 200": (Json('{"items":' * 200 + "{}" + "}" * 200), "too_complex", "recursion"),
    "nested 20000": (Json('{"items":' * 20_000 + "{}" + "}" * 20_000), "too_complex", "nested"),
    "counts": (Repeat(Literal("a"), 3, 2), "invalid", "3 to 2"),
    "panic": (Regex("^[é-ü]|[é-ü]$"), "invalid", "the grammar library failed on it"),
    "panic in a terminal": (
        Source("lark", "start: T\nT: /^[é-ü]|[é-ü]$|x/"),
        "invalid",
        "the grammar library failed on it",
    ),
    "panic beside others": (
        Concat((Literal("a"), Source("lark", "start: /^[é-ü]|[é-ü]$|x/"))),
        "invalid",
        "the grammar library failed on it",
    ),
    "lark": (Source("lark", 'start: "a" b\nb: "c'), "invalid", "line 2, column 6"),
    "lark name": (Source("lark", 'start: "a" b'), "invalid", "line 1, column 8.*b"),
    "no start": (Source("lark", 'a: "b"'), "invalid", "start"),
    "ebnf": (Source("ebnf", 'root ::= "a'), "invalid", "line 1"),
    "ebnf name": (Source("ebnf", "root ::= b"), "invalid", "'b'"),
    "ebnf end": (Source("ebnf", 'root ::= "a\\'), "invalid", "ends in the middle"),
    "ebnf nested": (Source("ebnf", "root ::= " + "(" * 3000), "too_complex", "nested"),
    "no root": (Source("ebnf", 'x ::= "a"'), "invalid", "root"),
    "too long": (Source("ebnf", 'root ::= "a"' + " " * 300_000), "too_complex", "at most"),
    "own form": (Source("llguidance", "x"), "invalid", "not valid JSON"),
    "own reference": (
        Source("llguidance", '{"grammars":[{"lark_grammar":"start: @q"}]}'),
        "invalid",
        "line 1, column 8.*@q",
    ),
    "doubled terminals": (
        Source("lark", _doubled(3000, "/[a-z]/")),
        "too_complex",
        "name each other",
    ),
    "wide terminals": (
        Source("lark", _doubled(12, "/[a-z]/", 300)),
        "too_complex",
        "name each other",
    ),
    "doubled rules that are terminals": (
        Source("ebnf", _doubled(3000, "[a-z]").replace("start:", "root:").replace(":", " ::=")),
        "too_complex",
        "in EBNF every rule",
    ),
    "doubled in its own form": (
        Source(
            "llguidance", json.dumps({"grammars": [{"lark_grammar": _doubled(3000, "/[a-z]/")}]})
        ),
        "too_complex",
        "name each other",
    ),
    "a rule that is a terminal": (
        Source("lark", _doubled(13, '"a"') + "\nr[lazy]: " + "T0 " * 10_000),
        "too_complex",
        "name each other",
    ),
    "ignored terminals": (
        Source("lark", _doubled(13, '"a"') + "\n%ignore " + "T0 " * 10_000),
        "too_complex",
        "name each other",
    ),
    "intersections": (
        Source("lark", "start: A\nA: " + " & ".join(f"/.*a.*{c}.*/" for c in "bcdefghijklmnop")),
        "too_complex",
        "more than 8 & and ~",
    ),
    "intersections with more than words": (
        Source("lark", "start: A\nA: /[a-z]+/" + ' & ~"a" /.*b.*/' * 5),
        "too_complex",
        "more than 8 & and ~",
    ),
    "endless behind a long chain": (
        Source("lark", LONG_AND_ENDLESS),
        "invalid",
        "refers to itself on every path",
    ),
    "a contradiction": (
        Json('{"const":{"a":1},"type":"string"}'),
        "invalid",
        "no value satisfies the schema .*contradict each other",
    ),
    "a reference back with something beside it": (
        Json('{"type":"object","properties":{"next":{"$ref":"#","required":["next"]}}}'),
        "unsupported",
        "leads back to where it stands .#/properties/next.",
    ),
    "backtracking": (
        Source("lark", 'start: a "x"\na[stop="y"]: /.*/'),
        "unsupported",
        "line 2.*suffix",
    ),
}
CHAIN = range(9000)
"""Of rules or references, each of which names the next: the library follows it by calling itself."""
LINKS = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in CHAIN[:6000]}
ACCEPTED: dict[str, tuple[Node, str]] = {
    "chain of rules": (
        Source(
            "lark",
            "start: r0\nr9000: WORD\nWORD: /[a-z]+/\n"
            + "\n".join(f"r{i}: r{i + 1}" for i in CHAIN),
        ),
        "abc",
    ),
    "chain of optional rules": (
        Source(
            "lark",
            'start: r0\nr9000: "a"\n' + "\n".join(f'r{i}: "a" r{i + 1} | "b"' for i in CHAIN),
        ),
        "aab",
    ),
    "chain of terminals": (
        Source("lark", 'start: T0\nT9000: "abc"\n' + "\n".join(f"T{i}: T{i + 1}" for i in CHAIN)),
        "abc",
    ),
    "chain in EBNF": (
        Source(
            "ebnf",
            'root ::= r0\nr9000 ::= "abc"\n' + "\n".join(f"r{i} ::= r{i + 1}" for i in CHAIN),
        ),
        "abc",
    ),
    "chain of references": (
        Json(json.dumps({"$ref": "#/$defs/d0", "$defs": {**LINKS, "d6000": {"type": "integer"}}})),
        "12",
    ),
    "maxLength": (Json('{"type":"string","maxLength":100000}'), '"abc"'),
    "long count": (Regex("[a-z]{1,10000}"), "abc"),
    "2000 properties": (
        Json(json.dumps({"type": "object", "properties": {f"k{i}": {} for i in range(2000)}})),
        '{"k7": 1, "k1999": 2}',
    ),
    "20000 words": (
        Source("lark", "start: WORD\nWORD: " + " | ".join(f'"word {i}"' for i in range(12_000))),
        "word 77",
    ),
    "words barred one by one": (
        Source("lark", "start: A\nA: /[a-z]+/" + "".join(f' & ~"word{i}"i' for i in range(50))),
        "word",
    ),
    "numbers": (Json('{"const":0.1250}'), "0.125"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_enforced_is_refused_with_its_place(
    llguidance_backend: Any, tokenizer: Tokenizer, name: str
) -> None:
    root, fault, message = REFUSED[name]
    with pytest.raises(GrammarError, match=f"^regex: .*{message}") as caught:
        llguidance_backend.compile(OutputSpec(root=root, param="regex"))
    assert caught.value.fault == fault
    assert len(caught.value.message) < 600
    assert "start:" not in caught.value.message and "eyas" not in caught.value.message
    good = compiled(llguidance_backend, Regex("(Paris|Amsterdam)"))
    assert ends(good, tokens_of(tokenizer, "Paris"))


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_large_but_right_is_enforced(
    llguidance_backend: Any, tokenizer: Tokenizer, name: str
) -> None:
    root, text = ACCEPTED[name]
    grammar = compiled(llguidance_backend, root)
    assert ends(grammar, tokens_of(tokenizer, text))
    assert not takes(grammar, tokens_of(tokenizer, "!"))
    assert grammar.start(fresh=True).after_all(tokens_of(tokenizer, text)) is not None


def test_a_megabyte_of_schema_is_bounded(llguidance_backend: Any, tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "description": "x" * 2**20, "properties": {"a": {"type": "null"}}}
    grammar = compiled(llguidance_backend, Json(json.dumps(schema)))
    assert ends(grammar, tokens_of(tokenizer, '{"a": null}'))


def test_a_limit_in_mid_output_fails_that_state_alone(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    heavy = compiled(llguidance_backend, Regex("(.{1,1000}){1,1000}"))
    light = compiled(llguidance_backend, Json('{"type":"integer"}'))
    state, failed = heavy.start(), None
    for _ in range(300):
        try:
            state = state.after(tokens_of(tokenizer, "a")[0])
        except ConstraintFailure:
            failed = "after"
            break
        mask_NK = np.zeros((3, llguidance_backend.vocabulary.num_mask_words), dtype=np.int32)
        if llguidance_backend.fill([light.start(), state, light.start()], mask_NK) == [1]:
            failed = "fill"
            assert not mask_NK[1].any()
            assert (mask_NK[0] == mask_NK[2]).all() and mask_NK[0].any()
            with pytest.raises(ConstraintFailure):
                state.after(300)
            break
    assert failed is not None, "the pattern is meant to be over the library's limits"
    expected = masks(llguidance_backend, [light.start()])
    assert (masks(llguidance_backend, walked(light, [])) == expected).all()


class Panic(BaseException):
    """How a library written in Rust says that it is at its end."""


class Panicking:
    """A matcher of which one method panics; its copies do so too."""

    def __init__(self, matcher: Any, method: str) -> None:
        self._matcher, self._method = matcher, method

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            raise Panic("on purpose")
        if name == "deep_copy":
            return lambda: Panicking(self._matcher.deep_copy(), self._method)
        return getattr(self._matcher, name)


@pytest.mark.parametrize(
    "method", ["deep_copy", "try_consume_tokens", "compute_ff_bytes", "validate_tokens"]
)
def test_a_panic_in_mid_output_is_a_failure_like_a_limit(
    llguidance_backend: Any, tokenizer: Tokenizer, method: str
) -> None:
    grammar = compiled(llguidance_backend, Json('{"type":"integer"}'))
    tokens = tokens_of(tokenizer, "12")

    def state() -> Any:
        matcher: Any = Panicking(grammar.start().copy(), method)
        return LlguidanceState(grammar, matcher, is_shared=False)

    steps: dict[str, Callable[[], Any]] = {
        "after": lambda: state().after(tokens[0]),
        "after_all": lambda: state().after_all(tokens),
        "become": lambda: state().become(tokens),
        "forced": lambda: state().forced(8),
        "num_legal": lambda: state().num_legal(tokens),
    }
    broken = {
        "deep_copy": {"after", "after_all", "forced"},
        "try_consume_tokens": {"after", "after_all", "become"},
        "compute_ff_bytes": {"forced"},
        "validate_tokens": {"num_legal"},
    }[method]
    for name, step in steps.items():
        if name in broken:
            with pytest.raises(ConstraintFailure):
                step()
        else:
            assert step() is not None


def test_two_hundred_schemas_at_once(llguidance_backend: Any, tokenizer: Tokenizer) -> None:
    grammars = [
        compiled(
            llguidance_backend,
            Json(
                json.dumps(
                    {
                        "type": "object",
                        "properties": {f"k{i}": {"type": "integer"}},
                        "required": [f"k{i}"],
                    }
                )
            ),
        )
        for i in range(200)
    ]
    for i in (0, 77, 199):
        assert ends(grammars[i], tokens_of(tokenizer, f'{{"k{i}": 1}}'))
        assert not takes(grammars[i], tokens_of(tokenizer, '{"z'))


@pytest.mark.parametrize(
    ("root", "fault"),
    [
        (Regex("(Paris|Amsterdam}"), "invalid"),
        (Regex("(?=a)b"), "unsupported"),
        (Json(""), "invalid"),
        (Json("7"), "invalid"),
        (Source("ebnf", 'root ::= "a'), "invalid"),
        (Source("llguidance", "{}"), "unsupported"),
        (Json('{"items":' * 20_000 + "{}" + "}" * 20_000), "too_complex"),
    ],
    ids=["regex", "look-ahead", "empty", "no schema", "ebnf", "own form", "nested"],
)
def test_xgrammar_refuses_too(
    xgrammar_backend: Any, tokenizer: Tokenizer, root: Node, fault: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        compiled(xgrammar_backend, root)
    assert caught.value.fault == fault
    good = compiled(xgrammar_backend, Concat((Literal("a"), Regex("[0-9]"))))
    assert ends(good, tokens_of(tokenizer, "a1"))
