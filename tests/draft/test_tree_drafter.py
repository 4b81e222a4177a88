"""A draft model with the target's own weights is never wrong: any slip in its rows would show.

Its keys and values lie in the target's slots, so acceptance, preemption, shared prefixes and chunks
must each leave them right; its noise is the target's, so it is right at any temperature. And a tree is
the same tree in any batch.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eyas.core import Request, SamplingParams
from eyas.draft import Drafter, DrafterWrapper, TreeShape
from eyas.draft.catch_up import MissingRows, RowTracker
from eyas.draft_tree import DraftTree
from eyas.engine.engine import Engine
from eyas.ops import top_tokens
from eyas.runner.batch import Batch
from tests.laws.cases import restless, walk_text
from tests.laws.world import Setting, dtypes, model_drafter, new_engine, run
from tests.thorough import drawn, only_thorough

PLAIN = Setting(max_model_len=150)


def requests(name: str, temperature: float = 0.7, max_tokens: int = 25) -> list[Request]:
    made = []
    for i in range(4):
        params = SamplingParams(
            temperature=temperature,
            seed=i,
            max_tokens=max_tokens,
            ignore_eos=True,
            n=2 if i == 1 else 1,
            repetition_penalty=1.2 if i == 2 else 1.0,
            frequency_penalty=0.4 if i == 2 else 0.0,
            top_k=9 if i == 3 else 0,
            top_p=0.9 if i == 3 else 1.0,
            logit_bias={101: 2.0} if i == 0 else {},
        )
        prompt = walk_text(97 + i, 1 + 17 * i, [0, 1])
        made.append(Request(id=f"{name}{i}", prompt_token_ids=prompt, params=params))
    return made


@pytest.fixture(autouse=True)
def every_candidate_sees_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model is so unsure at 1.3 that what is chosen may stand anywhere in its list."""
    monkeypatch.setattr(top_tokens, "SHORTLIST", 512)


def self_drafting(setting: Setting, num_tokens: int = 4, topk: int = 1) -> Engine:
    drafter = model_drafter(setting.dtype, setting.num_slots, num_tokens, "target", topk=topk)
    return new_engine(setting, drafter)


def assert_never_wrong(engine: Engine) -> None:
    drafts = engine.stats().drafts
    assert engine.metrics.num_failed_steps == 0
    assert drafts.num_drafts > 15
    assert drafts.accepted_by_depth[0] >= drafts.num_drafts - drafts.endings["stop"]
    assert drafts.endings.keys() == {"leaf", "stop"}


@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("flights", [0, 1])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_its_own_weights_draft_what_is_chosen(temperature: float, flights: int, topk: int) -> None:
    engine = self_drafting(replace(PLAIN, flights=flights), 7, topk)
    run(engine, requests("a", temperature))
    assert_never_wrong(engine)
    assert engine.stats().drafts.accepted_by_source.keys() == {"model"}


@pytest.mark.parametrize("max_batch_tokens", [16, 40])
def test_chunked_prompts_are_stored_for_the_draft_model_too(max_batch_tokens: int) -> None:
    engine = self_drafting(replace(PLAIN, max_batch_tokens=max_batch_tokens), 2)
    run(engine, requests("a"))
    assert_never_wrong(engine)


@pytest.mark.parametrize("flights", [0, 1])
def test_a_preempted_sequence_is_recomputed_for_the_draft_model_too(flights: int) -> None:
    engine = self_drafting(replace(PLAIN, num_slots=162, flights=flights))
    run(engine, [*requests("a"), *requests("b", 1.3)])
    assert engine.stats().num_preemptions > 0
    assert_never_wrong(engine)


@pytest.mark.parametrize("flights", [0, 1])
def test_what_it_shares_is_right_to_the_last_slot(flights: int) -> None:
    """A second turn begins with the whole first one, whose last accepted token had no draft row."""
    engine = self_drafting(replace(PLAIN, flights=flights), 3)
    params = SamplingParams(temperature=0.7, seed=2, max_tokens=12, ignore_eos=True)
    for start in range(97, 97 + drawn(8, 20)):
        prompt = walk_text(start, 6, [0, 1])
        for turn in range(2):
            request = Request(id=f"{start} {turn}", prompt_token_ids=list(prompt), params=params)
            prompt += run(engine, [request])[request.id, 0].token_ids
            prompt.append(49)
    assert engine.stats().num_prefix_hit_tokens > drawn(80, 200)
    assert_never_wrong(engine)


def test_other_weights_are_right_now_and_then() -> None:
    engine = new_engine(PLAIN, model_drafter(PLAIN.dtype, PLAIN.num_slots, 3, "other"))
    run(engine, requests("a"))
    stats = engine.stats()
    assert 0.02 * stats.num_draft_tokens < stats.num_accepted_tokens
    assert stats.num_accepted_tokens < 0.9 * stats.num_draft_tokens


Trees = dict[tuple[int, ...], tuple[list[int], list[int]]]


class Recorded(DrafterWrapper):
    """Another drafter whose trees are kept, by the text they continue and its parameters."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.trees: Trees = {}
        self.num_batched = 0

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        tree = super().propose(batch, shape)
        self.num_batched += len(batch.rooted) > 1 and tree.width > 1
        for b, (seat, root) in enumerate(
            zip(batch.seats_B.tolist(), batch.roots_B.tolist(), strict=True)
        ):
            size = int(tree.sizes_B[b])
            if size == 1:
                continue
            text = batch.table.tokens_AC[seat, : root + 1].tolist()
            source = batch.params.sequences[b]
            key = (source.seed, source.choice, *text)
            shown = tree.tokens_BW[b, :size].tolist(), tree.parents_BW[b, :size].tolist()
            assert self.trees.setdefault(key, shown) == shown, "the same text, another tree"
        return tree


@pytest.mark.parametrize(
    ("topk", "dtype"),
    [
        *[(1, dtypes()[0]), (3, dtypes()[-1])],
        *only_thorough((1, dtypes()[-1]), (3, dtypes()[0]), *((2, dtype) for dtype in dtypes())),
    ],
    ids=str,
)
def test_a_tree_is_the_same_in_any_batch(topk: int, dtype: torch.dtype) -> None:
    """Unequal lengths, several levels, several children: every tree is that of a batch of one."""
    asked = requests("a", 0.7, max_tokens=drawn(16, 25))

    def trees(setting: Setting, groups: list[list[Request]]) -> Recorded:
        inner = model_drafter(dtype, setting.num_slots, 8, "other", topk=topk)
        recorded = Recorded(inner)
        engine = new_engine(setting, recorded)
        for group in groups:
            run(engine, group)
        assert engine.metrics.num_failed_steps == 0
        return recorded

    setting = replace(PLAIN, dtype=dtype)
    alone = trees(replace(setting, prefix_cache=False), [[request] for request in asked])
    together = trees(setting, [asked, asked])
    chunked = trees(replace(setting, max_batch_tokens=40), [asked])
    assert together.num_batched > 20
    for batched in (together, chunked):
        common = batched.trees.keys() & alone.trees.keys()
        same_width = [
            key for key in common if len(batched.trees[key][0]) == len(alone.trees[key][0])
        ]
        assert len(same_width) > 15
        for key in same_width:
            assert batched.trees[key] == alone.trees[key]


@pytest.mark.parametrize("flights", [0, 1])
def test_steps_without_drafting_are_made_up_for(flights: int) -> None:
    setting = replace(PLAIN, flights=flights)
    inner = model_drafter(setting.dtype, setting.num_slots, 8, "target", topk=2)
    engine = new_engine(setting, restless(inner))
    run(engine, requests("a"))
    run(engine, requests("b"))
    assert_never_wrong(engine)


@pytest.mark.parametrize("flights", [0, 1])
def test_what_a_step_leaves_to_be_made_is_no_longer_than_its_tree_is_high(
    flights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However wide the tree: rows are laid out for as many as can be missing."""
    missing, longest = RowTracker.missing, []

    def noted(tracker: RowTracker, batch: Batch) -> MissingRows | None:
        found = missing(tracker, batch)
        if found is not None and not found.runs:
            longest.append(found.longest)
        return found

    monkeypatch.setattr(RowTracker, "missing", noted)
    inner = model_drafter(PLAIN.dtype, PLAIN.num_slots, 16, "target", topk=3)
    levels = inner.shape.levels
    assert 2 < levels < inner.shape.nodes
    engine = new_engine(replace(PLAIN, flights=flights), inner)
    run(engine, requests("a"))
    assert_never_wrong(engine)
    assert len(longest) >= 4
    assert max(longest) <= levels


@pytest.mark.parametrize(
    ("shape", "levels"),
    [
        (TreeShape(5, 8, 32), 6),
        (TreeShape(5, 8, 32, extra=4), 10),
        (TreeShape(5, 1, 6), 6),
        (TreeShape(9, 3, 4), 4),
        (TreeShape(0, 1, 1), 1),
    ],
)
def test_a_tree_is_no_higher_than_it_has_nodes(shape: TreeShape, levels: int) -> None:
    assert shape.levels == levels
