"""What is legal in a draft, by both libraries: what a walk by copies reaches."""

from __future__ import annotations

import random
from typing import Any

import pytest

from eyas.constraint.automaton import Automaton
from eyas.grammar import Source
from eyas.text import Tokenizer
from tests.constraint.test_backends import WALKS
from tests.constraint.walking import compiled, tokens_of

WORDS = Source("lark", 'start: word+\nword: "ca" | "cat" | "at" | "tac" | "a" "c"\n')
NUM_DRAFTS = 60


def reached(root: Any, tokens: list[int], parents: list[int]) -> list[Any]:
    """By node, each by a copy of the state above it."""
    states = [root]
    for token, above in zip(tokens[1:], parents[1:], strict=True):
        states.append(None if states[above] is None else states[above].after(token))
    return states


@pytest.mark.parametrize("name", ["words", *WALKS])
def test_legal_is_what_a_walk_reaches(backend: Any, tokenizer: Tokenizer, name: str) -> None:
    """With ends, tokens behind an end, and ids that no token has."""
    root, pieces = WALKS.get(name) or (WORDS, ("catacatcacat",))
    if name == "words" and backend.name == "xgrammar":
        root = Source("ebnf", 'root ::= word+\nword ::= "ca" | "cat" | "at" | "tac"\n')
    text = [*tokens_of(tokenizer, *pieces), tokenizer.eos_id]
    grammar = compiled(backend, root)
    draw = random.Random(name)
    num_legal = num_refused = num_ends = 0
    for _ in range(NUM_DRAFTS):
        place = draw.randrange(len(text))
        automaton = Automaton(grammar)
        automaton.advance(text[:place])
        parents = [-1, *(draw.choice([node, draw.randrange(node + 1)]) for node in range(9))]
        depths = [0]
        for above in parents[1:]:
            depths.append(depths[above] + 1)
        tokens = [0]
        for depth in depths[1:]:
            others = [tokenizer.eos_id, -1, 2**31 - 1, draw.randrange(tokenizer.vocab_size + 60)]
            right = text[min(place + depth, len(text)) - 1]
            tokens.append(right if draw.random() < 0.7 else draw.choice([*others, *text]))
        states = reached(automaton.root, tokens, parents)
        assert automaton.legal(tokens, parents) == [state is not None for state in states]
        again = reached(automaton.root, tokens, parents)
        assert [state is None for state in again] == [state is None for state in states]
        num_legal += sum(state is not None for state in states[1:])
        num_refused += sum(state is None for state in states)
        num_ends += sum(
            t == tokenizer.eos_id and s is not None for t, s in zip(tokens, states, strict=True)
        )
    assert num_legal > NUM_DRAFTS and num_refused > NUM_DRAFTS and num_ends > 0


def test_a_text_that_nothing_can_follow_may_end(backend: Any, tokenizer: Tokenizer) -> None:
    """The library then takes no token, not even the end that its mask allows."""
    grammar = compiled(backend, WALKS["schema"][0])
    automaton = Automaton(grammar)
    automaton.advance(tokens_of(tokenizer, *WALKS["schema"][1]))
    end = tokenizer.eos_id
    assert end is not None
    assert automaton.legal([0, end, end, 5], [-1, 0, 1, 0]) == [True, True, False, False]
