"""What every backend promises: masks, states, ends."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest

from eyas.constraint import Vocabulary, build_backend
from eyas.core import GrammarError
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
    Repeat,
    Source,
)
from eyas.text import Tokenizer
from tests.constraint.walking import (
    compiled,
    ends,
    legal_ids,
    letters_of,
    masks,
    takes,
    tokens_of,
    walked,
)

PERSON = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
THINK = Marker("</think>", 4091)
CALL, CALL_END = Marker("<tool_call>", 4092), Marker("</tool_call>", 4093)

WALKS: dict[str, tuple[Node, tuple[str | int, ...]]] = {
    "literal": (Literal("Paris é\n"), ("Paris é\n",)),
    "regex": (Regex("(Paris|Amsterdam)[0-9]{2,3}"), ("Amsterdam12",)),
    "schema": (Json(PERSON), ('{"name": "Ada", "age": 36, "tags": ["red"]}',)),
    "fixed": (Json(PERSON, separators=(",", ":")), ('{"name":"Ada","age":36}',)),
    "reasoning": (
        Concat((FreeText(until=(THINK,)), Literal("\n\n"), Json(PERSON))),
        ("so </ thi", 4091, '\n\n{"name": "B", "age": 1}'),
    ),
    "calls": (
        Concat(
            (
                Repeat(
                    Concat(
                        (
                            FreeText(until=(Marker("<tool_call>", 4092, spelled=False),)),
                            Literal('\n{"arguments": '),
                            Json(PERSON),
                            Literal("}\n"),
                            Marker("</tool_call>", 4093, spelled=False),
                        )
                    )
                ),
                FreeText(),
            )
        ),
        ("I look", 4092, '\n{"arguments": {"name": "a", "age": 2}}\n', 4093, "done"),
    ),
    "grammar": (Source("ebnf", 'root ::= [a-z]+ ", " root | "end"'), ("ab, c, end",)),
    "grammar that repeats never": (
        Source("ebnf", 'root ::= ("a"){0} "b" (x{0,0} | "c")\nx ::= "q" x?'),
        ("bc",),
    ),
}


@pytest.mark.parametrize("name", WALKS)
def test_a_mask_is_what_trying_every_token_says(
    backend: Any, tokenizer: Tokenizer, name: str
) -> None:
    root, pieces = WALKS[name]
    grammar = compiled(backend, root)
    states = walked(grammar, tokens_of(tokenizer, *pieces))
    assert len(states) == len(tokens_of(tokenizer, *pieces)) + 1
    filled = masks(backend, states)
    for state, row in zip(states[::3], filled[::3], strict=True):
        tried = [state.after(token) is not None for token in range(len(row))]
        assert np.nonzero(row)[0].tolist() == np.nonzero(tried)[0].tolist()


@pytest.mark.parametrize("name", WALKS)
def test_what_is_walked_through_is_allowed_by_the_mask_before(
    backend: Any, tokenizer: Tokenizer, name: str
) -> None:
    root, pieces = WALKS[name]
    tokens = tokens_of(tokenizer, *pieces)
    states = walked(compiled(backend, root), tokens)
    filled = masks(backend, states)
    assert all(filled[i, token] for i, token in enumerate(tokens))
    assert filled[-1, tokenizer.eos_id]


@pytest.mark.parametrize("name", WALKS)
def test_padding_and_nameless_ids_are_never_legal(
    backend: Any, tokenizer: Tokenizer, name: str
) -> None:
    root, pieces = WALKS[name]
    states = walked(compiled(backend, root), tokens_of(tokenizer, *pieces))
    assert not masks(backend, states)[:, tokenizer.vocab_size :].any()
    for token in (-1, tokenizer.vocab_size, backend.vocabulary.vocab_size, 2**31 - 1):
        assert states[0].after(token) is None


def test_no_control_token_is_legal_inside_strings_and_free_text(
    backend: Any, tokenizer: Tokenizer
) -> None:
    control = sorted(tokenizer.control_ids)
    in_string = walked(compiled(backend, Json(PERSON)), tokens_of(tokenizer, '{"name": "Ada L'))
    assert not masks(backend, in_string)[:, control].any()
    root = Concat((FreeText(until=(THINK,), without=(CALL,)), Literal("x")))
    in_text = walked(compiled(backend, root), tokens_of(tokenizer, "hello wor"))
    assert len(in_text) > 2
    allowed = masks(backend, in_text)[:, control]
    assert allowed[:, control.index(4091)].all() and allowed.sum() == len(in_text)
    other = Concat((Literal("ab"), CALL, FreeText(), CALL_END))
    in_call = walked(compiled(backend, other), [*tokens_of(tokenizer, "ab"), 4092, 300])
    assert set(np.nonzero(masks(backend, in_call)[-1])[0]) & set(control) == {4093}


def test_the_end_comes_once_and_nothing_after_it(backend: Any, tokenizer: Tokenizer) -> None:
    grammar = compiled(backend, Literal("ab"))
    eos = tokenizer.eos_id
    assert eos is not None
    assert grammar.start().after(eos) is None
    last = walked(grammar, tokens_of(tokenizer, "ab"))[-1]
    assert legal_ids(backend, last) == {eos}
    ended = last.after(eos)
    assert legal_ids(backend, ended) == set()
    assert ended.after(eos) is None and ended.after(300) is None and ended.forced(4) == []


def test_every_end_token_ends(tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary.of(tokenizer, tokenizer.vocab_size, [4089, 4087])
    backend: Any = build_backend("llguidance", vocabulary)
    last = walked(compiled(backend, Regex("a+")), tokens_of(tokenizer, "a"))[-1]
    assert {4087, 4089} <= legal_ids(backend, last)
    assert all(legal_ids(backend, last.after(eos)) == set() for eos in (4087, 4089))
    backend.close()


def test_a_state_stays_what_it_is(backend: Any, tokenizer: Tokenizer) -> None:
    grammar = compiled(backend, Json(PERSON))
    states = walked(grammar, tokens_of(tokenizer, '{"name": "Ada", "age": 36}'))
    before = masks(backend, states)
    for state in states:
        for token in (5, 300, 4091, 4089):
            state.after(token)
        state.forced(8)
    assert (masks(backend, states) == before).all()
    assert (masks(backend, [state for state in states for _ in range(2)])[::2] == before).all()


def test_several_threads_fill_the_same(
    vocabulary: Vocabulary, llguidance_backend: Any, tokenizer: Tokenizer
) -> None:
    backend: Any = build_backend("llguidance", vocabulary, 2)
    tokens = tokens_of(tokenizer, '{"name": "Ada", "age": 36}')
    walks = [walked(compiled(one, Json(PERSON)), tokens) for one in (backend, llguidance_backend)]
    assert (masks(backend, walks[0]) == masks(llguidance_backend, walks[1])).all()
    backend.close()


def test_a_fresh_start_allows_the_same(backend: Any, tokenizer: Tokenizer) -> None:
    grammar = compiled(backend, Json(PERSON))
    state = grammar.start(fresh=True)
    for token in tokens_of(tokenizer, '{"name": "Ada'):
        state = state.after(token)
    usual = walked(grammar, tokens_of(tokenizer, '{"name": "Ada'))[-1]
    assert legal_ids(backend, state) == legal_ids(backend, usual)


def test_masks_and_walks_may_happen_at_the_same_time(backend: Any, tokenizer: Tokenizer) -> None:
    grammar = compiled(backend, Json(PERSON))
    states = walked(grammar, tokens_of(tokenizer, '{"name": "Ada", "age": 36}'))
    expected = masks(backend, states)
    wrong: list[str] = []

    def fill_often() -> None:
        for _ in range(200):
            if (masks(backend, states) != expected).any():
                wrong.append("a mask changed")

    threads = [threading.Thread(target=fill_often) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        assert walked(grammar, tokens_of(tokenizer, '{"name": "Ada"'))[-1].forced(4) is not None
        assert all(state.after(4091) is None for state in states)
    for thread in threads:
        thread.join()
    assert wrong == []


def test_forced_text_is_proposed(backend: Any, tokenizer: Tokenizer) -> None:
    tight = compiled(backend, Json(PERSON, separators=(",", ":")))
    forced = tight.start().forced(16)
    assert tokenizer.decode(forced).startswith('{"name":')
    assert takes(tight, forced) and tight.start().forced(2) == forced[:2]
    assert compiled(backend, FreeText()).start().forced(4) == []


def test_a_control_token_is_forced_by_its_id(llguidance_backend: Any, tokenizer: Tokenizer) -> None:
    root = Concat((Literal("ab"), Marker("</think>", 4091, False), Literal("cd")))
    grammar = compiled(llguidance_backend, root)
    forced = grammar.start().forced(16)
    assert forced == tokens_of(tokenizer, "ab", 4091, "cd")
    assert ends(grammar, forced)


def test_a_choice_an_optional_part_and_counts(backend: Any, tokenizer: Tokenizer) -> None:
    root = Concat((Choice((Literal("a"), Literal("b"))), Repeat(Literal("x"), 1, 2), Literal("!")))
    grammar = compiled(backend, root)
    for text in ("ax!", "bxx!"):
        assert ends(grammar, letters_of(tokenizer, text))
    for text in ("a!", "bxxx", "x"):
        assert not takes(grammar, letters_of(tokenizer, text))
    assert ends(
        compiled(backend, Concat((Repeat(THINK, 0, 0), Literal("a")))), letters_of(tokenizer, "a")
    )


def test_parts_side_by_side_match_wherever_their_border_lies(
    backend: Any, tokenizer: Tokenizer
) -> None:
    grammar = compiled(backend, Concat((Regex("[a-z]+"), Literal("end"), Regex("[0-9]*"))))
    for text in ("fooend", "xend7", "endend"):
        assert ends(grammar, letters_of(tokenizer, text))
    assert not ends(grammar, letters_of(tokenizer, "foo"))
    ebnf = compiled(backend, Source("ebnf", 'root ::= [a-z]+ "end"'))
    assert ends(ebnf, letters_of(tokenizer, "fooend"))


@pytest.mark.parametrize("text", ['a\n\t"\\/é😀', "'[({|*+?.^$", "//x", "#", "\x01\x7f", " "])
def test_a_literal_is_that_text(backend: Any, tokenizer: Tokenizer, text: str) -> None:
    grammar = compiled(backend, Literal(text))
    assert ends(grammar, letters_of(tokenizer, text))
    assert not takes(grammar, letters_of(tokenizer, text + "a"))


def test_free_text_never_holds_what_it_must_not(backend: Any, tokenizer: Tokenizer) -> None:
    grammar = compiled(backend, FreeText(without=(CALL, Marker("[x]*", None))))
    for text in ("a <tool_cal <tool", "[x] *", "<<tool_call", "é😀"):
        assert ends(grammar, letters_of(tokenizer, text))
    assert not takes(grammar, letters_of(tokenizer, "a <<tool_call>"))
    assert not takes(grammar, letters_of(tokenizer, "a [x[x]*"))


def test_schemas_keep_their_white_space_to_themselves(backend: Any, tokenizer: Tokenizer) -> None:
    root = Concat((Literal("<"), Json('{"type": "integer"}'), Literal("\n>")))
    grammar = compiled(backend, root)
    assert ends(grammar, letters_of(tokenizer, "<12\n>"))
    assert not takes(grammar, letters_of(tokenizer, "<12>"))
    free = compiled(backend, Json(PERSON))
    tight = compiled(backend, Json(PERSON, separators=(", ", ": ")))
    loose_text = letters_of(tokenizer, '{ "name":"A",\n"age": 1}')
    assert ends(free, loose_text) and not takes(tight, loose_text)
    assert ends(tight, letters_of(tokenizer, '{"name": "A", "age": 1}'))


def test_a_users_lark_keeps_its_own_names(backend: Any, tokenizer: Tokenizer) -> None:
    lark = 'start: "a" t0 eyas_0\nt0: "b"\neyas_0: T0 | "x" // "c"\nT0: /[0-9]\\/+/\n'
    root = Concat((Literal("<"), Source("lark", lark), Literal(">")))
    grammar = compiled(backend, root)
    assert ends(grammar, letters_of(tokenizer, "<ab7//>"))
    assert ends(grammar, letters_of(tokenizer, "<abx>"))
    assert not takes(grammar, letters_of(tokenizer, "<abc"))


@pytest.mark.parametrize("lark", ["start: <|im_end|>", "start: <[*]>", 'start: "x" <[4089]>'])
def test_a_users_grammar_cannot_name_a_control_token(backend: Any, lark: str) -> None:
    with pytest.raises(GrammarError, match=r"line 1, column .* control token") as caught:
        compiled(backend, Source("lark", lark))
    assert caught.value.fault == "unsupported"


def test_a_grammar_that_nothing_matches_is_refused(backend: Any) -> None:
    for root in (Source("ebnf", 'root ::= "a" root'), Source("lark", 'start: "a" start')):
        with pytest.raises(GrammarError) as caught:
            compiled(backend, Source(root.syntax, root.text.replace('"a" ', "")))
        assert caught.value.fault == "invalid"


@pytest.mark.parametrize(
    "lark",
    [
        'start: "a" start',
        "start: a\na: b+ | (c | a)\nb: a\nc: b~1..2",
        '// a: "x"\nstart: "a:" [X] start\nX: "x"',
    ],
)
def test_a_grammar_that_no_text_ends_is_refused(backend: Any, lark: str) -> None:
    with pytest.raises(GrammarError, match="refers to itself on every path") as caught:
        compiled(backend, Source("lark", lark))
    assert caught.value.fault == "invalid"


@pytest.mark.parametrize(
    "lark",
    [
        'start: "a" start?',
        "start: b~0..3 /a:/\nb: b",
        'start: ("a" | start "b")',
        'start: "start: "',
    ],
)
def test_a_grammar_that_some_text_ends_is_taken(llguidance_backend: Any, lark: str) -> None:
    assert compiled(llguidance_backend, Source("lark", lark))


def test_an_error_names_the_field(backend: Any) -> None:
    with pytest.raises(GrammarError, match=r"^guided_regex: .*position") as caught:
        backend.compile(OutputSpec(root=Regex("(Paris|Amsterdam}"), param="guided_regex"))
    assert caught.value.param == "guided_regex" and caught.value.fault == "invalid"


def test_a_regex_means_what_it_means_alone(backend: Any, tokenizer: Tokenizer) -> None:
    """Alternatives that repeat each other, over which llguidance fails where groups capture."""
    grammar = compiled(backend, Regex(r"(\w|(a|\w))/[(](b|[)])"))
    for text in ("a/(b", "_/()"):
        assert ends(grammar, letters_of(tokenizer, text))
    for text in ("é", "a/?", "a/:"):
        assert not takes(grammar, letters_of(tokenizer, text))


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match="'outlines'; choose one of llguidance, xgrammar"):
        build_backend("outlines", Vocabulary([b"a", b"b"], frozenset(), (1,), 2, lambda text: []))
    with pytest.raises(ValueError, match=r"generation_config\.json"):
        Vocabulary([b"a"], frozenset(), (), 1, lambda text: [])
