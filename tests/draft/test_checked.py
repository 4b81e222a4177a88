"""Drafters of users: whatever they return or raise, answers are those of plain decoding."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from eyas import LLM, SamplingParams
from eyas.draft import Drafter, TreeShape, chain, root_tokens
from eyas.draft.checked import MOST_FAILURES, check_numbers, within_bounds
from eyas.draft_tree import DraftTree
from eyas.runner.batch import Batch

CHAT = [[{"role": "user", "content": text}] for text in ("ping", "Write the numbers from 0 to 27.")]
GREEDY = SamplingParams(temperature=0, max_tokens=40)
Change = Callable[[DraftTree], object]


def long_chain(batch: Batch, width: int) -> DraftTree:
    roots_B1 = root_tokens(batch)
    tokens_BW = (roots_B1 + torch.arange(width)) % 4096
    return chain(tokens_BW, torch.full((len(roots_B1),), width))


def branches(batch: Batch) -> DraftTree:
    return below(root_tokens(batch))


def below(roots_B1: torch.Tensor) -> DraftTree:
    """Roots with three children, the first of which has a child."""
    tokens_BW = torch.cat([roots_B1, (roots_B1 + torch.tensor([[1, 2, 3, 1]])) % 4096], dim=1)
    parents_BW = torch.tensor([-1, 0, 0, 0, 1]).repeat(len(roots_B1), 1)
    return DraftTree(tokens_BW, parents_BW, torch.full((len(roots_B1),), 5), is_chain=False)


class Own(Drafter):
    """A drafter that returns what a function makes of the step."""

    shape = TreeShape(4, 3, 5)

    def __init__(self, make: Callable[[Batch], object]) -> None:
        self._make = make
        self.num_calls = 0

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        self.num_calls += 1
        if batch.width < 5:  # near the end of a context
            return long_chain(batch, 1)
        return self._make(batch)  # type: ignore[return-value]


def changed(**fields: Callable[[DraftTree], object]) -> Callable[[Batch], object]:
    def make(batch: Batch) -> DraftTree:
        tree = branches(batch)
        return replace(tree, **{name: change(tree) for name, change in fields.items()})

    return make


def _forgets_the_root(batch: Batch) -> DraftTree:
    tree = long_chain(batch, 4)
    return replace(tree, tokens_BW=(tree.tokens_BW + 1) % 4096)


def _raises(batch: Batch) -> DraftTree:
    raise ZeroDivisionError


WRONG: dict[str, tuple[Callable[[Batch], object], str]] = {
    "no root": (_forgets_the_root, "node 0 of a tree is the sequence's last token"),
    "too wide": (lambda batch: long_chain(batch, 20), "trees of 1 to 5 nodes"),
    "no tree": (lambda batch: None, "returns a DraftTree, not NoneType"),
    "raises": (_raises, "ZeroDivisionError"),
    "rows": (changed(tokens_BW=lambda t: torch.cat([t.tokens_BW] * 2)), "this step has"),
    "no columns": (changed(tokens_BW=lambda t: t.tokens_BW[:, :0]), "trees of 1 to"),
    "type": (changed(tokens_BW=lambda t: t.tokens_BW.float()), "it must be torch.int64"),
    "sizes": (changed(sizes_B=lambda t: t.sizes_B * 0), "sizes_B must be within 1 and 5"),
    "large sizes": (changed(sizes_B=lambda t: t.sizes_B + 1), "sizes_B must be within"),
    "parent after child": (changed(parents_BW=lambda t: t.parents_BW + 2), "before their children"),
    "no parents": (changed(parents_BW=lambda t: t.parents_BW[:, 1:]), "parents_BW is"),
    "a chain": (changed(is_chain=lambda t: True), "of a chain are the nodes before"),
    "ids": (changed(tokens_BW=lambda t: _last(t, 10**6)), "ids below 4096"),
    "sources": (changed(source_BW=lambda t: t.parents_BW + 7), "the drafter's 1 sources"),
}


def _last(tree: DraftTree, token: int) -> torch.Tensor:
    tokens_BW = tree.tokens_BW.clone()
    tokens_BW[:, -1] = token
    return tokens_BW


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    with LLM(drafter="root", max_num_seqs=4, num_slots=1000) as llm:
        return [output.token_ids for output in llm.chat(CHAT, GREEDY)]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_tree_leaves_the_step_without_a_draft(
    name: str, plain: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    """It is told why, and after some steps the drafter is not asked any more."""
    make, words = WRONG[name]
    drafter = Own(make)
    with (
        caplog.at_level(logging.ERROR, "eyas"),
        LLM(drafter=drafter, max_num_seqs=4, num_slots=1000) as llm,
    ):
        assert [output.token_ids for output in llm.chat(CHAT, GREEDY)] == plain
        assert drafter.num_calls <= MOST_FAILURES + 2
        assert llm.engine.stats().num_accepted_tokens == 0
    assert words in caplog.text
    assert "the drafter Own has failed 8 times in a row and is not asked any more" in caplog.text


@pytest.mark.parametrize("is_chain", [False, True])
def test_numbers_brought_within_their_bounds_make_a_tree(is_chain: bool) -> None:
    """As on a GPU, where no step waits to read them."""
    drawn = torch.Generator().manual_seed(7)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randint(-9, 9, shape, generator=drawn)

    for _ in range(200):
        roots_B1 = numbers(3, 1) % 9
        wrong = DraftTree(
            numbers(3, 6), numbers(3, 6), numbers(3), is_chain=is_chain, source_BW=numbers(3, 6)
        )
        tree = within_bounds(wrong, roots_B1, 9, 2)
        check_numbers(tree, roots_B1, 9, 2)
        good = within_bounds(tree, roots_B1, 9, 2)
        assert torch.equal(good.parents_BW, tree.parents_BW)
        assert torch.equal(good.tokens_BW, tree.tokens_BW)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["no root", "sizes", "large sizes", "parent after child", "ids"])
def test_wrong_numbers_on_a_gpu_change_no_answer(name: str) -> None:
    make, _ = WRONG[name]

    def on_gpu(batch: Batch) -> DraftTree:
        with torch.device("cuda"):
            return make(batch)  # type: ignore[return-value]

    def answers(drafter: Drafter | str) -> list[list[int]]:
        with LLM(drafter=drafter, device="cuda", dtype="float32", max_num_seqs=4) as llm:
            return [output.token_ids for output in llm.chat(CHAT, GREEDY)]

    assert answers(Own(on_gpu)) == answers("root")


@pytest.mark.gpu
def test_tensors_on_the_cpu_are_copied_to_a_gpu() -> None:
    drafter = Own(lambda batch: below(root_tokens(batch).cpu()))
    with LLM(drafter=drafter, device="cuda", dtype="float32", max_num_seqs=4) as llm:
        llm.chat(CHAT, GREEDY)
        assert llm.engine.stats().num_draft_tokens > 0


@pytest.mark.parametrize("make", [branches, lambda batch: long_chain(batch, 5)])
def test_trees_and_chains_are_taken(
    make: Callable[[Batch], object], plain: list[list[int]]
) -> None:
    drafter = Own(make)
    with LLM(drafter=drafter, max_num_seqs=4, num_slots=1000) as llm:
        assert [output.token_ids for output in llm.chat(CHAT, GREEDY)] == plain
        assert llm.engine.metrics.num_failed_steps == 0
        assert llm.info.drafter == "Own"
        assert llm.engine.stats().num_draft_tokens > 100


def test_a_shape_that_cannot_be_chosen_is_the_root_alone(plain: list[list[int]]) -> None:
    class Shapeless(Own):
        def preferred_shape(self, *numbers: int) -> TreeShape:
            raise KeyError(numbers)

    with LLM(drafter=Shapeless(branches), max_num_seqs=4, num_slots=1000) as llm:
        assert [output.token_ids for output in llm.chat(CHAT, GREEDY)] == plain


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"shape": TreeShape(0, 1, 0)}, "holds no tree"),
        ({"taps": (99,)}, r"taps \[99\] are no layers"),
    ],
)
def test_what_no_step_can_have_is_refused_at_the_start(
    fields: dict[str, object], words: str
) -> None:
    drafter = Own(branches)
    vars(drafter).update(fields)
    with pytest.raises(ValueError, match=words):
        LLM(drafter=drafter, max_num_seqs=4, num_slots=1000)
