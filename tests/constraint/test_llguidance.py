"""What only the default backend has: canonical grammars, times, user forms."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from eyas.constraint.ebnf import lark_of
from eyas.constraint.faults import described, fault_of
from eyas.core import GrammarError
from eyas.grammar import Choice, Concat, FreeText, Json, Literal, Marker, Regex, Source
from eyas.text import Tokenizer
from tests.constraint.walking import compiled, ends, letters_of, takes, tokens_of, walked

SCHEMA = (
    '{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},'
    '"required":["a","b"]}'
)


def _canonical(grammar: Any) -> Any:
    """Once the background thread is done."""
    for _ in range(12_000):
        if grammar.canonical:
            return grammar.canonical
        time.sleep(0.01)
    raise AssertionError("the canonical grammars never came")


def test_canonical_grammars_fix_the_white_space(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    grammar = compiled(llguidance_backend, Concat((Literal("x"), Json(SCHEMA))))
    spaced, tight = _canonical(grammar)
    loose, close = (letters_of(tokenizer, t) for t in ('x{"a": 1, "b": 2}', 'x{"a":1,"b":2}'))
    for canonical, own, other in ((spaced, loose, close), (tight, close, loose)):
        assert ends(canonical, own) and walked(canonical, own)[-1].num_deviations == 0
        assert walked(canonical, other)[-1].num_deviations > 0
    assert tokenizer.decode(spaced.start().forced(20)).startswith('x{"a": ')
    assert grammar.start().forced(20) == tokens_of(tokenizer, "x{")
    assert list(tight.canonical) == []


def test_only_free_white_space_has_canonical_grammars(llguidance_backend: Any) -> None:
    for root in (Regex("a+"), Json(SCHEMA, separators=(",", ":"))):
        grammar = compiled(llguidance_backend, root)
        assert list(grammar.canonical) == []
        time.sleep(0.05)
        assert list(grammar.canonical) == []


def test_a_grammar_says_what_its_compilation_took(llguidance_backend: Any) -> None:
    grammar = compiled(llguidance_backend, Json(SCHEMA))
    assert grammar.compile_seconds > 0 and grammar.first_mask_seconds > 0
    assert grammar.num_bytes > len(SCHEMA)


def test_lenient_leaves_out_what_cannot_be_enforced(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    schema = '{"type":"integer","not":{"const":3},"x-guidance":{"lenient":false}}'
    grammar = compiled(llguidance_backend, Json(schema, lenient=True))
    assert ends(grammar, tokens_of(tokenizer, "3")) and not takes(
        grammar, tokens_of(tokenizer, '"')
    )


SCHEMA_IN_LARK: dict[str, Any] = {
    "type": "object",
    "patternProperties": {"^a": {"type": "integer"}},
}


def written_with(schema: Any) -> list[Source]:
    """A schema inside both forms of grammars that can hold one."""
    own = json.dumps({"grammars": [{"name": "x", "json_schema": schema}]})
    return [Source("lark", f"start: %json {json.dumps(schema)}"), Source("llguidance", own)]


def test_a_schema_in_a_grammar_is_enforced_like_any_other(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    for source in written_with(
        {**SCHEMA_IN_LARK, "oneOf": [{"required": ["ab"]}, {"minItems": 1}]}
    ):
        grammar = compiled(llguidance_backend, source)
        assert ends(grammar, letters_of(tokenizer, '{"a":1}'))
        for text in (r'{"\u0061":"x"}', '{"a":"x"}', '{"ab":1}', '{     "a":1}'):
            assert not ends(grammar, letters_of(tokenizer, text))


@pytest.mark.parametrize(
    ("keywords", "fault", "place"),
    [
        ({"x-guidance": {"strict": True}}, "unsupported", "#/x-guidance/strict"),
        ({"properties": {"a": {"type": "strin"}}}, "invalid", "#/properties/a/type"),
        ({"format": "regex", "type": "string"}, "unsupported", "#/format"),
    ],
)
def test_a_schema_in_a_grammar_is_refused_like_any_other(
    llguidance_backend: Any, keywords: dict[str, Any], fault: str, place: str
) -> None:
    for source in written_with({**SCHEMA_IN_LARK, **keywords}):
        with pytest.raises(
            GrammarError, match=f"(line 1, column 8: %json|json_schema): {place}"
        ) as caught:
            compiled(llguidance_backend, source)
        assert caught.value.fault == fault


def test_llguidances_own_form_with_names_that_clash(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    own = json.dumps(
        {
            "grammars": [
                {"name": "eyas_0", "lark_grammar": 'start: "(" @number ")" // @no "@x"'},
                {"name": "number", "json_schema": {"type": "integer"}},
            ]
        }
    )
    other = own.replace("integer", "boolean")
    root = Concat((Source("llguidance", own), Literal(";"), Source("llguidance", other)))
    grammar = compiled(llguidance_backend, root)
    assert ends(grammar, letters_of(tokenizer, "(12);(true)"))
    assert not takes(grammar, letters_of(tokenizer, "(12);(1"))


def test_ebnf_escapes_and_comments(llguidance_backend: Any, tokenizer: Tokenizer) -> None:
    ebnf = '# a comment\nroot ::= "\\u00e9\\x41" [\\u0030-9] fooBar* # end\nfooBar ::= "/" | root\n'
    grammar = compiled(llguidance_backend, Source("ebnf", ebnf))
    assert ends(grammar, letters_of(tokenizer, "éA7//éA0"))
    assert not takes(grammar, letters_of(tokenizer, "eA"))


def test_ebnf_repeats_what_repeats(llguidance_backend: Any, tokenizer: Tokenizer) -> None:
    grammar = compiled(llguidance_backend, Source("ebnf", 'root ::= (("a"+)? "b"{2})* ((root?)+)?'))
    for text in ("", "bb", "aabbbbabb"):
        assert ends(grammar, letters_of(tokenizer, text))
    assert not takes(grammar, letters_of(tokenizer, "ba"))


ARITHMETIC = r"""root  ::= (expr "=" term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
EBNF_ENDS: list[tuple[str, list[str], list[str]]] = [
    (ARITHMETIC, ["1+2=3\n", "(a +b )*c=d \n", "x=1\n\ny=(2)\n"], ["1+2=3", "1=2 3\n", "=1\n"]),
    (
        'root ::= "(" root ")" | words " - " [0-9]\nwords ::= [a-z ]+',
        ["a b - 1", "(ab - 2)", "a  - 3"],
        ["a b- 1", " - 1 ", "(a - 1"],
    ),
    (
        'root ::= item root | "."\nitem ::= [a-z]+ tail? "!"?\ntail ::= "a" "b"*',
        ["xab!y.", "abbb.", "a!."],
        ["!.", "ab"],
    ),
]
"""Grammars with a rule whose texts could go on with what follows the rule."""


@pytest.mark.parametrize(("ebnf", "valid", "invalid"), EBNF_ENDS)
def test_a_rule_of_ebnf_takes_nothing_from_what_follows_it(
    backend: Any, tokenizer: Tokenizer, ebnf: str, valid: list[str], invalid: list[str]
) -> None:
    grammar = compiled(backend, Source("ebnf", ebnf))
    for text in (*valid, *invalid):
        for tokens in (letters_of(tokenizer, text), tokens_of(tokenizer, text)):
            assert ends(grammar, tokens) == (text in valid), text


def test_rules_of_ebnf_that_a_lexer_can_read_stay_terminals() -> None:
    """Masks of a rule's characters one by one take longer."""
    ebnf = r"""root ::= "[" ws (value ("," ws value)*)? "]" ws
value ::= root | "\"" [^"\n]* "\"" ws | number
number ::= "-"? [0-9]+ ("." [0-9]+)? ws
ws ::= [ \n]*
"""
    lark = lark_of(ebnf)
    assert "R2_NUMBER: " in lark and "R3_WS: " in lark
    assert lark.count(":") == 5


def test_ebnf_rules_may_have_any_names(llguidance_backend: Any, tokenizer: Tokenizer) -> None:
    """Those of Lark's own start, names that are one in Lark's, and alternatives on their own lines."""
    ebnf = 'root ::= start\nstart ::= "1" a-b\n  # between\n  | "2" aB AB\n\na-b ::= a_b\n'
    ebnf += 'a_b ::= "c" ab?\naB ::= "3"\nAB ::= root | "4"\nab ::= "5" root'
    grammar = compiled(llguidance_backend, Source("ebnf", ebnf))
    for text in ("1c", "1c51c", "234", "231c"):
        assert ends(grammar, letters_of(tokenizer, text))
    assert not takes(grammar, letters_of(tokenizer, "14"))


@pytest.mark.parametrize(
    ("ebnf", "message"),
    [
        ('root ::= "a"\nx ::= "c"\nroot ::= "b"', "Rule 'root' is there twice.*line 3"),
        ('root ::= "a" (root | [b] root){1,2}', "refers to itself on every path"),
    ],
)
def test_ebnf_that_means_nothing_is_invalid(
    llguidance_backend: Any, ebnf: str, message: str
) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        compiled(llguidance_backend, Source("ebnf", ebnf))
    assert caught.value.fault == "invalid"


def test_thousands_of_options_are_one_terminal(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    grammar = compiled(llguidance_backend, Choice(tuple(Literal(f"word {i}") for i in range(5000))))
    assert ends(grammar, tokens_of(tokenizer, "word 77"))
    assert not takes(grammar, tokens_of(tokenizer, "word 5000"))


def test_anchors_mean_the_whole_text(llguidance_backend: Any, tokenizer: Tokenizer) -> None:
    for pattern in ("^ab$", "ab", "^(ab)$", "(?i)^AB$", r"a\/?b", "a/?b"):
        grammar = compiled(llguidance_backend, Regex(pattern))
        assert ends(grammar, tokens_of(tokenizer, "ab"))
        assert not takes(grammar, tokens_of(tokenizer, "abc"))
    commented = compiled(llguidance_backend, Regex("(?x) a # first\n b"))
    assert ends(commented, tokens_of(tokenizer, "ab")) and not ends(
        commented, tokens_of(tokenizer, "a")
    )


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ('Unimplemented keys: ["not"]', "unsupported"),
        ("lexer error: too many expressions constructed", "too_complex"),
        ("Current row has 20001 items; max is 2000", "too_complex"),
        ("expected value", "invalid"),
        ("patternProperty regexes /a/ and /b/ are not disjoint", "unsupported"),
    ],
)
def test_the_librarys_words_have_a_fault(words: str, fault: str) -> None:
    assert fault_of(words) == fault
    assert described(None, words).fault == fault


def test_a_canonical_grammar_overlooks_other_white_space(
    llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    """A line's end where the grammar has a blank costs a deviation, not the spans to come; what is no
    white space is refused as ever."""
    schema = {
        "type": "object",
        "properties": {"first_name": {"type": "integer"}, "last_name": {"type": "boolean"}},
        "required": ["first_name", "last_name"],
        "additionalProperties": False,
    }
    grammar = compiled(llguidance_backend, Json(json.dumps(schema)))
    state: Any = _canonical(grammar)[0].start()
    assert tokenizer.decode(state.forced(32), continues=True) == '{"first_name": '
    for token in tokens_of(tokenizer, '{\n  "first_name":7,\n  "'):
        state = state.after(token)
        assert state is not None
    assert state.num_deviations > 0
    assert tokenizer.decode(state.forced(32), continues=True).startswith("last_name")
    assert state.after(tokens_of(tokenizer, "x")[0]) is None


@pytest.mark.parametrize(
    "texts",
    [
        ["".join("ab"[(i >> k) & 1] for k in range(10)) for i in range(12, 1000, 97)],
        ["x" * 5000],
        [f"{i:03d}" * 4 for i in range(500)],
    ],
)
def test_markers_that_multiply_are_refused_in_time(
    llguidance_backend: Any, texts: list[str]
) -> None:
    with pytest.raises(GrammarError) as caught:
        compiled(llguidance_backend, FreeText(until=tuple(Marker(text) for text in texts)))
    assert caught.value.fault == "too_complex"
