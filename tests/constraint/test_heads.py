"""Where runs of a draft begin: an automaton goes there at once, to where a walk comes by."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from eyas.constraint.automaton import Automaton
from eyas.grammar import Source
from eyas.text import Tokenizer
from tests.constraint.walking import compiled, tokens_of

WORDS = Source("lark", 'start: word+\nword: "ca" | "cat" | "at" | "tac" | "a" "c"\n')
NUM_DRAFTS = 80


def mask_of(backend: Any, state: Any) -> bytes:
    mask_1K = np.zeros((1, backend.vocabulary.num_mask_words), dtype=np.int32)
    backend.fill([state], mask_1K)
    return mask_1K.tobytes()


@pytest.mark.parametrize("is_forked", [False, True])
def test_runs_begin_where_a_walk_comes_by(
    llguidance_backend: Any, tokenizer: Tokenizer, is_forked: bool
) -> None:
    letters = [*(tokens_of(tokenizer, letter)[0] for letter in "cat"), tokenizer.eos_id]
    grammar = compiled(llguidance_backend, WORDS)
    draw = random.Random(1)
    num_legal = num_refused = 0
    for _ in range(NUM_DRAFTS):
        automaton, other = Automaton(grammar), Automaton(grammar)
        for each in (automaton, other):
            each.advance(tokens_of(tokenizer, "ca"))
        twin = automaton.fork() if is_forked else automaton
        parents = [-1, *(draw.choice([node, draw.randrange(node + 1)]) for node in range(9))]
        tokens = [draw.choice(letters) for _ in parents]
        runs = [(0,)] + [
            (node,) if draw.random() < 0.5 else (node, *_below(parents, node))
            for node in range(1, len(parents))
        ]
        covered: set[int] = set()
        runs = [run for run in runs if not covered & set(run) and not covered.update(run)]
        expected = other.walk(tokens, parents)
        found = twin.heads(tokens, parents, runs)
        for (first, *_), point in zip(runs, found, strict=True):
            above = expected[first]
            assert (point is None) == (above is None)
            if point is not None and above is not None:
                same = mask_of(llguidance_backend, above.state)
                assert mask_of(llguidance_backend, point.state) == same
            num_legal, num_refused = num_legal + (point is not None), num_refused + (point is None)
        assert found[0] is twin.root
        if is_forked:
            again = automaton.heads(tokens, parents, runs)
            assert all(a is b for a, b in zip(found, again, strict=True)), "twins share points"
    assert num_legal > 2 * NUM_DRAFTS and num_refused > NUM_DRAFTS


def _below(parents: list[int], node: int) -> list[int]:
    """A way down from a node, of first children."""
    found: list[int] = []
    while node in parents:
        node = parents.index(node)
        found.append(node)
    return found
