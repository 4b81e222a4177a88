"""A step's plumbing by kernels in a whole engine: its own weights are still never wrong.

Everything that is not plumbing (the networks, attention, the verdict) stays with torch.
"""

from __future__ import annotations

import pytest
import torch

from eyas.core import Request, SamplingParams
from eyas.ops.add_level import add_level
from eyas.ops.keep_best import keep_best
from eyas.ops.level_rows import level_rows
from eyas.ops.node_rows import node_rows
from eyas.ops.tail_rows import tail_rows
from eyas.ops.top_tokens import top_tokens
from tests.draft.test_tree_drafter import Recorded, Trees
from tests.kernels.bodies import take_kernels
from tests.laws.cases import walk_text
from tests.laws.heads import head_drafter
from tests.laws.world import Setting, model_drafter, new_engine, run
from tests.thorough import only_thorough

SETTING = Setting(max_model_len=150, flights=1)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs whole engines")


@pytest.fixture
def plumbing_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    take_kernels(monkeypatch, add_level, keep_best, level_rows, node_rows, tail_rows, top_tokens)


def requests(temperature: float, num: int = 3) -> list[Request]:
    made = []
    for i in range(num):
        params = SamplingParams(
            temperature=temperature if i != 1 else 0.0,
            seed=i,
            max_tokens=10,
            ignore_eos=True,
            repetition_penalty=1.2 if i == 2 and temperature else 1.0,
        )
        prompt = walk_text(97 + i, 1 + 17 * i, [0, 1])
        made.append(Request(id=f"{i}", prompt_token_ids=prompt, params=params))
    return made


@pytest.mark.usefixtures("plumbing_by_kernels")
@pytest.mark.parametrize(("temperature", "topk"), [(0.7, 1), (0.7, 3)])
def test_its_own_weights_draft_what_is_chosen(temperature: float, topk: int) -> None:
    drafter = model_drafter(SETTING.dtype, SETTING.num_slots, 7, "target", topk=topk)
    engine = new_engine(SETTING, drafter)
    run(engine, requests(temperature))
    drafts = engine.stats().drafts
    assert engine.metrics.num_failed_steps == 0
    assert drafts.num_drafts > 5 and drafts.endings.keys() == {"leaf", "stop"}
    assert drafts.accepted_by_depth[0] >= drafts.num_drafts - drafts.endings["stop"]


@pytest.mark.parametrize("topk", [3, *only_thorough(1)])
def test_a_head_grows_the_trees_that_it_grows_with_torch(
    topk: int, request: pytest.FixtureRequest
) -> None:
    def trees_of_all() -> Trees:
        recorded = Recorded(
            head_drafter("eagle3", SETTING.dtype, SETTING.num_slots, 8, topk=topk, is_lucky=False)
        )
        engine = new_engine(SETTING, recorded)
        run(engine, requests(0.0))
        assert engine.metrics.num_failed_steps == 0 and recorded.num_batched > 3
        return recorded.trees

    by_torch = trees_of_all()
    request.getfixturevalue("plumbing_by_kernels")
    assert trees_of_all() == by_torch
