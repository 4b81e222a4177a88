"""Prompt lookup against a slow search, in real batches, and on texts made for it."""

from __future__ import annotations

import pytest

from eyas.core import Request, SamplingParams
from eyas.draft import NgramDrafter, TreeShape
from eyas.draft_tree import DraftTree
from eyas.runner.batch import Batch
from tests.laws.cases import walk_text
from tests.laws.world import Setting, new_engine, run


def search(history: list[int], least: int, most: int, num_tokens: int) -> list[int]:
    """The longest match of the last tokens at an earlier place, the latest of those; what followed."""
    root = len(history) - 1
    best, place = 0, -1
    for p in range(root):
        length = 0
        while length < most and p - length >= 0 and history[p - length] == history[root - length]:
            length += 1
        if length >= best:
            best, place = length, p
    if best < least:
        return []
    return [history[place + 1 + i % (root - place)] for i in range(num_tokens)]


class Checked(NgramDrafter):
    """Compares every proposal with the search."""

    def __init__(self, num_tokens: int, least: int, most: int) -> None:
        super().__init__(num_tokens, min_match=least, max_match=most)
        self.num_found = 0

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        tree = super().propose(batch, shape)
        assert tree.is_chain and tree.width <= batch.width
        for b, (seat, root) in enumerate(
            zip(batch.seats_B.tolist(), batch.roots_B.tolist(), strict=True)
        ):
            history = batch.table.tokens_AC[seat, : root + 1].tolist()
            want = search(history, self.min_match, self.max_match, batch.width - 1)
            size = int(tree.sizes_B[b])
            assert tree.tokens_BW[b, :size].tolist() == [history[-1], *want]
            self.num_found += bool(want)
        return tree


@pytest.mark.parametrize("flights", [0, 1])
@pytest.mark.parametrize(("least", "most"), [(1, 1), (1, 5), (2, 5), (4, 4)])
def test_it_finds_what_a_slow_search_finds(least: int, most: int, flights: int) -> None:
    drafter = Checked(4, least, most)
    engine = new_engine(Setting(flights=flights, max_batch_tokens=40), drafter)
    asked = [
        Request(
            id=str(i),
            prompt_token_ids=walk_text(97 + i, 1 + 9 * i, [0, 1, 0]),
            params=SamplingParams(temperature=0.7, seed=i, max_tokens=40, ignore_eos=True),
        )
        for i in range(4)
    ]
    run(engine, asked)
    assert engine.metrics.num_failed_steps == 0
    assert drafter.num_found > 0


def test_it_reads_no_tokens_that_are_not_there() -> None:
    """A seat that held a longer text before: what lies beyond the end is never drafted."""
    drafter = Checked(6, 1, 5)
    engine = new_engine(Setting(max_num_seqs=1, prefix_cache=False), drafter)
    for i, length in enumerate([60, 3, 1]):
        params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        prompt = walk_text(97, length, [0])
        run(engine, [Request(id=str(i), prompt_token_ids=prompt, params=params)])
    assert engine.metrics.num_failed_steps == 0 and drafter.num_found > 0


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="min_match"):
        NgramDrafter(3, min_match=4, max_match=2)
