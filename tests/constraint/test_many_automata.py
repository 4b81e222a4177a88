"""Masks are those of the tokens before them, whatever was drafted, late, forked or in use meanwhile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest

from eyas.constraint import build_backend
from eyas.constraint.automaton import Automaton
from eyas.constraint.filling import Filling
from eyas.constraint.mask_batch import MaskRequest
from eyas.engine.branches import Branch, requested
from eyas.engine.startup.exactness_probe import random_tree
from eyas.grammar import Budget
from eyas.text import Tokenizer
from tests.constraint.test_draft_matchers import MORE_ALIKE
from tests.constraint.walking import compiled, letters_of
from tests.thorough import only_thorough

NUM_STEPS = 150
LONGEST = 40
"""Tokens after which a writer gives way to a new one."""
TIMES = (10.0, 10.0, 10.0, 0.001, 0.0002)
"""Seconds that a step waits for drafts; many calls are left behind."""


class Truth:
    """Masks by a matcher for each text, which nobody else uses."""

    def __init__(self, vocabulary: Any) -> None:
        self.backend: Any = build_backend("llguidance", vocabulary, 1)
        self.grammar = compiled(self.backend, MORE_ALIKE)
        self.end = vocabulary.eos_token_ids[0]
        self._known: dict[tuple[int, ...], np.ndarray] = {}
        self._legal: dict[tuple[int, ...], list[int]] = {}

    def mask(self, tokens: Sequence[int]) -> np.ndarray:
        """[K]; zeros where the text is not legal, or over."""
        key = tuple(tokens)
        if key not in self._known:
            mask_1K = np.zeros((1, self.backend.vocabulary.num_mask_words), dtype=np.int32)
            state = self.grammar.start().after_all(key)
            if state is not None and state.matcher is not None:
                assert self.backend.fill([state], mask_1K) == []
            self._known[key] = mask_1K[0]
        return self._known[key]

    def legal(self, tokens: Sequence[int]) -> list[int]:
        key = tuple(tokens)
        if key not in self._legal:
            bits = np.unpackbits(self.mask(tokens).view(np.uint8), bitorder="little")
            self._legal[key] = np.nonzero(bits)[0].tolist()
        return self._legal[key]


class Writer:
    """An automaton and what it has read."""

    def __init__(self, automaton: Automaton, tokens: Sequence[int] = ()) -> None:
        self.automaton = automaton
        self.tokens = list(tokens)

    def fork(self) -> Writer:
        return Writer(self.automaton.fork(), self.tokens)

    def chain(self, draw: random.Random, truth: Truth, others: list[int], row: int) -> MaskRequest:
        draft: list[int] = []
        for _ in range(draw.randrange(12)):
            draft.append(some_token(draw, truth, others, [*self.tokens, *draft]))
        root = self.automaton.root
        return MaskRequest(root, row, tuple(draft), has_spare_row=True)

    def tree(
        self, draw: random.Random, truth: Truth, others: list[int], row: int
    ) -> tuple[list[Branch], list[list[int]]]:
        """The branches of a random tree's legal nodes, and the text at each node."""
        parents, _ = random_tree(
            np.random.default_rng(draw.randrange(10**6)), draw.randrange(1, 14)
        )
        texts, tokens = [self.tokens], [0]
        for above in parents[1:]:
            tokens.append(some_token(draw, truth, others, texts[above]))
            texts.append([*texts[above], tokens[-1]])
        legal = self.automaton.legal(tokens, list(parents))
        if self.automaton.budget is None:
            for node, above in enumerate(parents[1:], start=1):
                is_legal = legal[above] and tokens[node] in truth.legal(texts[above])
                assert legal[node] == is_legal, texts[node]
        return requested(self.automaton.root, tokens, list(parents), legal, row), texts

    def go_on(self, draw: random.Random, truth: Truth) -> bool:
        """Read a few tokens; False at the end."""
        chosen: list[int] = []
        for _ in range(draw.randrange(1, 5)):
            legal = truth.legal([*self.tokens, *chosen])
            legal = [token for token in legal if token != truth.end or draw.random() < 0.1]
            token = draw.choice(legal) if legal else None
            if token is None:
                break
            path = [*chosen, token]
            if not self.automaton.legal([0, *path], range(-1, len(path)))[-1]:  # by its budget
                break
            chosen.append(token)
            if token == truth.end:
                break
        if chosen:
            self.automaton.advance(chosen)
            self.tokens += chosen
            assert self.automaton.num_replays == 0, "no limit is near"
        return bool(chosen) and chosen[-1] != truth.end and len(self.tokens) < LONGEST


def some_token(draw: random.Random, truth: Truth, others: list[int], tokens: Sequence[int]) -> int:
    legal = truth.legal(tokens)
    return draw.choice(legal) if legal and draw.random() < 0.8 else draw.choice(others)


def check_chain(truth: Truth, request: MaskRequest, tokens: Sequence[int], mask_RK: Any) -> int:
    """Returns how many masks there were to check."""
    num = 0
    while True:
        text = [*tokens, *request.tokens[:num]]
        assert np.array_equal(mask_RK[request.row + num], truth.mask(text)), (
            tokens,
            request.tokens,
        )
        if num == len(request.tokens) or request.tokens[num] not in truth.legal(text):
            break
        num += 1
    assert request.num_legal == num or not request.tokens
    return num + 1


@pytest.mark.parametrize(
    ("num_threads", "seed"), [(1, 0), (3, 1), *only_thorough((1, 1), (1, 2), (3, 0), (3, 2))]
)
def test_masks_are_those_of_the_tokens_before_them(
    vocabulary: Any, tokenizer: Tokenizer, seed: int, num_threads: int
) -> None:
    draw = random.Random(f"{seed} {num_threads}")
    truth, letters = Truth(vocabulary), letters_of(tokenizer, "athcoei")
    others = [*letters, tokenizer.eos_id, -1, 2**31 - 1]
    backend: Any = build_backend("llguidance", vocabulary, num_threads)
    grammar = compiled(backend, MORE_ALIKE)
    writers: list[Writer] = []
    num_masks = num_left = 0
    with ThreadPoolExecutor(3) as threads:
        for _ in range(NUM_STEPS):
            while len(writers) < 3:
                budget = None
                if draw.random() < 0.3:
                    budget = Budget(draw.randrange(4, 60), ends=(), closing=(letters[0],))
                writers.append(Writer(Automaton(grammar, budget)))
            if draw.random() < 0.1 and len(writers) < 5:
                writers.append(draw.choice(writers).fork())
            first: list[MaskRequest] = []
            others_of: list[list[MaskRequest]] = []
            chains: list[tuple[MaskRequest, list[int]]] = []
            trees: list[tuple[list[Branch], list[list[int]]]] = []
            row = 0
            is_chain = draw.random() < 0.5
            for writer in writers:
                if is_chain:
                    if draw.random() < 0.5:
                        backend.expect([writer.automaton.root])
                    request = writer.chain(draw, truth, others, row)
                    chains.append((request, list(writer.tokens)))
                    first.append(request)
                    row += 1 + max(1, len(request.tokens))
                    continue
                branches, texts = writer.tree(draw, truth, others, row)
                trees.append((branches, texts))
                first.append(branches[0].request)
                others_of.append([branch.request for branch in branches[1:]])
                row += sum(len(branch.nodes) for branch in branches)
            turns = zip_longest(*others_of)
            later = [[request for request in turn if request is not None] for turn in turns]
            mask_RK = np.zeros((row + 1, vocabulary.num_mask_words), dtype=np.int32)
            filling = Filling(first, later, mask_RK, draw.choice(TIMES))
            if draw.random() < 0.6:
                filling.start(threads)
            if filling.wait():
                for request, text in chains:
                    num_masks += check_chain(truth, request, text, mask_RK)
                for branch, texts in ((branch, texts) for each, texts in trees for branch in each):
                    for i, node in enumerate(branch.nodes):
                        if not branch.request.is_late:
                            row = branch.request.row + i
                            assert np.array_equal(mask_RK[row], truth.mask(texts[node])), texts[
                                node
                            ]
                            num_masks += 1
            else:
                num_left += 1
            writers = [writer for writer in writers if writer.go_on(draw, truth)]
    assert num_masks > 5 * NUM_STEPS
    backend.close()
    truth.backend.close()
