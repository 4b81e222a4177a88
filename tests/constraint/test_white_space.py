"""White space in JSON is bounded, by both backends alike: all that is within the bound is legal, and
nothing beyond it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import product
from random import Random
from typing import Any

import pytest

from eyas.constraint import Vocabulary, build_backend
from eyas.constraint.base import Backend
from eyas.core import GrammarError
from eyas.grammar import SPACED, Concat, Json, Literal, Source, Spacing
from eyas.text import Tokenizer
from eyas.white_space import MAX_INDENTATION
from tests.constraint.walking import compiled, ends, legal_ids, letters_of, takes, walked
from tests.gaps import GAP, GAPS, TOO_MUCH, parts, spaced

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "whitespace{0, 77} \n": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "o": {"type": "object", "additionalProperties": False},
        "any": {},
        "of": {"const": {"z": 1, "l": [1, {}, "{ , :"]}},
        "one of": {"enum": [0, [], [2, [None]]]},
    },
    "required": ["a"],
    "additionalProperties": False,
}
VALUE = {
    "a": 1,
    "whitespace{0, 77} \n": [1, 2],
    "o": {},
    "any": {"b": [True, {}], "c": "x  y"},
    "of": {"z": 1, "l": [1, {}, "{ , :"]},
    "one of": [2, [None]],
}


def node(schema: Any = SCHEMA, **options: Any) -> Json:
    return Json(json.dumps(schema), **options)


@pytest.fixture(params=["llguidance", "xgrammar"])
def whole(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Callable[[Any, str], bool]:
    """Is a text an output of a node?"""
    backend = request.getfixturevalue(f"{request.param}_backend")
    grammars: dict[Any, Any] = {}

    def is_whole(root: Any, text: str) -> bool:
        if root not in grammars:
            grammars[root] = compiled(backend, root)
        return ends(grammars[root], letters_of(tokenizer, text))

    return is_whole


@pytest.mark.parametrize("indent", [None, 0, 1, 2, 4, "\t"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", " \n"])
def test_what_printers_write_is_legal(
    whole: Callable[[Any, str], bool], indent: Any, line_end: str
) -> None:
    assert whole(node(), json.dumps(VALUE, indent=indent).replace("\n", line_end))
    assert whole(node(), json.dumps(VALUE, separators=(",", ":")))


def test_all_within_the_bound_is_legal_and_nothing_beyond_it(
    whole: Callable[[Any, str], bool],
) -> None:
    for gap in GAPS:
        assert GAP.fullmatch(gap)
        assert whole(node(), spaced(lambda gap=gap: gap, VALUE)), repr(gap)
    random = Random(7)
    for _ in range(20):
        assert whole(node(), spaced(lambda: random.choice(GAPS), VALUE))
    first, *rest = parts({"a": 1, "o": {}, "any": [2, {"b": 3}]})
    for place, gap in product(range(len(rest)), TOO_MUCH):
        assert not GAP.fullmatch(gap)
        text = first + "".join((gap if i == place else "") + p for i, p in enumerate(rest))
        assert not whole(node(), text), repr(text)
    for gap in (" ", "\n"):
        assert not whole(node(), gap + json.dumps(VALUE))
        assert not whole(node(), json.dumps(VALUE) + gap)


def test_a_model_at_a_loss_runs_out_of_white_space(backend: Any, tokenizer: Tokenizer) -> None:
    """Who takes white space wherever it is legal has to go on after a few characters."""
    grammar = compiled(backend, node())
    white = [i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) in b" \t\n\r"]
    white = [i for i in white if tokenizer.token_bytes(i)]
    random = Random(3)
    state, row, text = grammar.start(), 0, "{"
    for token in letters_of(tokenizer, text):
        state = state.after(token)
    for _ in range(200):
        legal = legal_ids(backend, state)
        choice = sorted(legal & set(white)) or sorted(legal)
        token = random.choice(choice)
        data = tokenizer.token_bytes(token).decode()
        row = row + len(data) if token in white else 0
        text += data
        assert row <= MAX_INDENTATION + 3, repr(text)
        reached = state.after(token)
        if reached is None or text.count('"') % 2:  # inside a string blanks are the string's own
            break
        state = reached


@pytest.mark.parametrize(
    ("options", "legal", "illegal"),
    [
        ({"white_space": ""}, [""], GAPS[1:]),
        ({"white_space": "[ ]{0,1}"}, ["", " "], ["\n", "  ", "\t"]),
        ({"white_space": r"[ \t\n\r]{0,32}"}, [*GAPS, "\n\n", " " * 32], [" " * 33]),
        ({"white_space": r"[\n]|[ ]{0,2}"}, ["", "\n", "  "], ["\n ", "   "]),
        ({"separators": SPACED}, [], [*GAPS]),
    ],
)
def test_a_schema_has_its_own_white_space(
    whole: Callable[[Any, str], bool], options: dict[str, Any], legal: list[str], illegal: list[str]
) -> None:
    root = node(**options)
    for gap in legal:
        assert whole(root, spaced(lambda gap=gap: gap, VALUE)), repr(gap)
    for gap in illegal:
        assert not whole(root, spaced(lambda gap=gap: gap, VALUE)), repr(gap)
    is_usual = re.fullmatch(options.get("white_space", " "), " ") is not None
    assert whole(root, json.dumps(VALUE)) == is_usual


def test_separators_and_white_space_together(whole: Callable[[Any, str], bool]) -> None:
    root = node(separators=SPACED, white_space=r"[\n]{0,1}")
    assert whole(root, '{"a": 1, "o": {}}') and whole(root, '{\n"a": \n1\n, \n"o"\n: {\n}\n}')
    for text in ('{"a":1, "o": {}}', '{"a": 1,"o": {}}', '{ "a": 1}', '{"a":  1}', '{"a": 1\n\n}'):
        assert not whole(root, text), text


def test_separators_that_are_patterns(whole: Callable[[Any, str], bool]) -> None:
    root = node(separators=("[ ]{0,2},[ ]{0,2}", "(?:[ ]|[\\n][ ]{0,2}){0,1}:"))
    assert whole(root, '{"a":1  ,  "o":{},"any"\n  :[1, 2]}') and whole(root, '{"a" :1}')
    for text in ('{"a":1   ,"o":{}}', '{"a": 1}', '{ "a":1}', '{"a":1;"o":{}}', '{"a"  :1}'):
        assert not whole(root, text), text


@pytest.mark.parametrize("options", [{"white_space": "x*"}, {"separators": (";", ":")}])
def test_what_is_no_json_is_refused(backend: Any, options: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match="white space or the separators") as refused:
        compiled(backend, node(**options))
    assert refused.value.fault == "invalid"


@pytest.fixture(scope="module", params=["llguidance", "xgrammar"])
def compact(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> Iterator[Backend]:
    request.getfixturevalue(f"{request.param}_backend")  # skips where it is not installed
    seconds = {"deadline_seconds": 300.0}
    built = build_backend(request.param, vocabulary, spacing=Spacing("[ ]{0,1}"), **seconds)
    yield built
    built.close()


def test_a_backends_own_spacing_is_for_all_that_say_nothing(
    compact: Any, tokenizer: Tokenizer
) -> None:
    """Schemas between other parts and inside users' grammars too."""
    roots = [Concat((Literal("x"), node()))]
    if compact.name == "llguidance":
        text = json.dumps(SCHEMA)
        roots += [
            Source("lark", f'start: "x" %json {text}'),
            Source(
                "llguidance",
                '{"grammars": [{"lark_grammar": "start: \\"x\\" @s"}, {"name": "s", "json_schema": '
                f"{text}}}]}}",
            ),
        ]
    for root in roots:
        grammar = compiled(compact, root)
        assert ends(grammar, letters_of(tokenizer, 'x{ "a": 1 }'))
        assert not takes(grammar, letters_of(tokenizer, 'x{\n"a'))
        assert not takes(grammar, letters_of(tokenizer, 'x{  "a'))
    own = compiled(compact, node(white_space=r"[\n]{0,1}"))
    assert ends(own, letters_of(tokenizer, '{\n"a":1}'))
    assert not takes(own, letters_of(tokenizer, '{ "a"'))


@pytest.mark.parametrize(
    ("root", "ways"),
    [
        (node(), ['{"a": 1, "o": {}}', '{"a":1,"o":{}}']),
        (node(white_space="[ ]{0,1}"), ['{"a": 1, "o": {}}', '{"a":1,"o":{}}']),
        (node(white_space=r"[\n]{0,1}"), ['{"a":1,"o":{}}']),
        (node(separators=SPACED, white_space=r"[\n]{0,1}"), ['{"a": 1, "o": {}}']),
        (node(separators=("[ ]{0,1},", ":"), white_space="[ ]{0,1}"), []),
        (node(white_space=""), []),
        (node(separators=SPACED), []),
        (Concat((node(), node(white_space=r"[\n]{0,1}"))), ['{"a": 1}{"a":1}', '{"a":1}{"a":1}']),
    ],
)
def test_canonical_trees_allow_less(
    llguidance_backend: Any, tokenizer: Tokenizer, root: Any, ways: list[str]
) -> None:
    from eyas.constraint.canonical import canonical_trees

    trees = canonical_trees(root, Spacing())
    assert len(trees) == len(ways)
    grammar = compiled(llguidance_backend, root)
    for tree, way in zip(trees, ways, strict=True):
        letters = letters_of(tokenizer, way)
        assert ends(compiled(llguidance_backend, tree), letters) and ends(grammar, letters)
        for other in ways:
            if other != way:
                assert not ends(compiled(llguidance_backend, tree), letters_of(tokenizer, other))
        for gap in ("\n", "  "):
            spread = letters_of(tokenizer, way.replace(":", ":" + gap))
            assert len(walked(compiled(llguidance_backend, tree), spread)) < len(spread)
