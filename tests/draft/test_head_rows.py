"""A head in the engine gives what it gives when the whole text is run through it at once.

Whatever way a sequence came to its tokens (chunks, accepted drafts, prefixes that others stored,
preemption, steps without drafting), the logits of its root's row, and so the first level of its tree,
are those of the head over the whole text with the target's own features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch

from eyas.attention.base import PlannedRows
from eyas.core import Request, SamplingParams
from eyas.draft import (
    AdaptiveDrafter,
    Drafter,
    DrafterWrapper,
    HeadNetwork,
    TreeDrafter,
    TreeShape,
    network,
)
from eyas.draft.costs import Costs
from eyas.draft.estimates import StepSize
from eyas.draft.shape_policy import PLAIN, LandedStep, ShapePolicy
from eyas.draft_tree import DraftTree
from eyas.runner.batch import Batch
from eyas.runner.rows import ForwardRows
from tests.laws.cases import restless, walk_text
from tests.laws.heads import KINDS, head_drafter
from tests.laws.world import Setting, model_drafter, new_engine, run, weights
from tests.models.dense_attend import RowByRow

SETTING = Setting(max_model_len=150)
SETTINGS = {
    "roomy": SETTING,
    "chunked": replace(SETTING, max_batch_tokens=32),
    "tight": replace(SETTING, num_slots=190),
    "ahead": replace(SETTING, flights=1),
}


def attend_to_everything_before(
    q_TNH: torch.Tensor, k_TGH: torch.Tensor, v_TGH: torch.Tensor, *, first: int
) -> torch.Tensor:
    """Plain causal attention over the rows from `first` on, which all see themselves."""
    per_kv = q_TNH.shape[1] // k_TGH.shape[1]
    k, v = k_TGH.repeat_interleave(per_kv, 1), v_TGH.repeat_interleave(per_kv, 1)
    scores_NTS = torch.einsum("tnh,snh->nts", q_TNH, k) * q_TNH.shape[2] ** -0.5
    rows = torch.arange(len(q_TNH))
    hidden_TS = rows[None, :] > rows[:, None]
    hidden_TS |= (rows[None, :] < first) & (rows[None, :] != rows[:, None])
    weights_NTS = scores_NTS.masked_fill(hidden_TS, float("-inf")).softmax(-1)
    return torch.einsum("nts,snh->tnh", weights_NTS, v)


def whole_text_logits(network: HeadNetwork, text: list[int]) -> torch.Tensor:
    """[U] the head's logits after `text`, everything computed anew by dense attention."""
    target = weights(torch.float32).target
    tokens, last = torch.tensor(text), len(text) - 1
    pad = target.order.pad(len(text)) - len(text)
    padded = torch.nn.functional.pad(tokens, (0, pad))
    positions = torch.arange(len(padded))
    with torch.inference_mode():
        answer = partial(attend_to_everything_before, first=0)
        everything = RowByRow(target.spec.stores, target.dtype, answer, len(padded))
        _, taps = target.forward(PlannedRows(padded, positions, everything), network.taps)
        features = network._head.combine(taps)
        shifted = torch.cat([torch.zeros_like(features[:1]), features[:-1]])
        answer = partial(attend_to_everything_before, first=1)
        head = network._head
        from_one = RowByRow(head.spec.stores, head.dtype, answer, len(padded))
        hidden, _ = network._head.forward(PlannedRows(padded, positions, from_one), shifted)
        hidden = torch.nn.functional.pad(
            hidden[last : last + 1], (0, 0, 0, target.order.pad(1) - 1)
        )
        return network._head.logits(hidden)[0]


class Compared(DrafterWrapper):
    """Compares the first logits of every other tree with the whole text's."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        drafter = inner._inner if isinstance(inner, AdaptiveDrafter) else inner
        assert isinstance(drafter, TreeDrafter)
        network = drafter._network
        assert isinstance(network, HeadNetwork)
        self.network, self.forward = network, network.forward
        self.first: torch.Tensor | None = None
        self.worst, self.num_trees, self.num_compared = 0.0, 0, 0
        network.forward = self.watch  # type: ignore[method-assign]

    def watch(
        self, rows: ForwardRows, features_TF: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        logits, states = self.forward(rows, features_TF)
        if self.first is None and logits is not None:
            self.first = logits
        return logits, states

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        self.first = None
        tree = super().propose(batch, shape)
        if self.first is None:
            return tree
        assert len(batch.rooted) == len(self.first)
        self.num_trees += 1
        drafted = [b for b, size in enumerate(tree.sizes_B.tolist()) if size > 1]
        for b in drafted[self.num_trees % 2 :: 2]:
            seat, root = int(batch.seats_B[b]), int(batch.roots_B[b])
            text = batch.table.tokens_AC[seat, : root + 1].tolist()
            error = (self.first[b] - whole_text_logits(self.network, text)).abs().max()
            self.worst = max(self.worst, float(error))
            self.num_compared += 1
        return tree


def requests(name: str) -> list[Request]:
    made = []
    for i in range(5):
        prompt = walk_text(97, 12, [0, 1]) + walk_text(100 + i, 1 + 9 * i, [0, 0, 1])
        params = SamplingParams(temperature=0.7 * (i % 2), seed=i, max_tokens=12, ignore_eos=True)
        made.append(Request(id=f"{name}{i}", prompt_token_ids=prompt, params=params))
    return made


@pytest.mark.parametrize(
    ("kind", "topk", "setting"),
    [
        pytest.param(
            *(kind, topk, setting),
            id=f"{kind}-{topk}-{name}",
            marks=[] if topk == 1 + 2 * (turn % 2) else pytest.mark.thorough,
        )
        for kind in KINDS
        for turn, (name, setting) in enumerate(SETTINGS.items())
        for topk in (1, 3)
    ],
)
def test_a_head_in_the_engine_is_the_head_on_the_whole_text(
    kind: str, topk: int, setting: Setting
) -> None:
    inner = head_drafter(kind, torch.float32, setting.num_slots, 8, topk=topk)
    compared = Compared(inner)
    engine = new_engine(setting, compared)
    engine.launcher.graphs = None  # a replay does not call the network
    run(engine, requests("a"))
    run(engine, requests("b"))
    assert engine.metrics.num_failed_steps == 0
    assert compared.num_compared > 40
    assert compared.worst < 1e-5
    if setting is SETTINGS["tight"]:
        assert engine.stats().num_preemptions > 0


@pytest.mark.parametrize("setting", [SETTINGS["roomy"], SETTINGS["ahead"]], ids=["now", "ahead"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_left_out_while_nobody_drafted_are_made_up_for(kind: str, setting: Setting) -> None:
    """With a head whose attention sees everything, so that one wrong row shows."""
    inner = head_drafter(kind, torch.float32, setting.num_slots, 8, topk=2, is_lucky=False)
    compared = Compared(restless(inner))
    engine = new_engine(setting, compared)
    engine.launcher.graphs = None  # a replay does not call the network
    for name in ("a", "b", "c"):
        run(engine, requests(name))
    assert engine.metrics.num_failed_steps == 0
    assert compared.num_compared > 40
    assert compared.worst < 1e-5


def test_a_head_that_does_not_draft_computes_nothing_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even the product that fuses hidden states, however many rows there are."""
    inner = head_drafter("eagle3", torch.float32, SETTING.num_slots, 8, topk=2, is_lucky=False)
    assert isinstance(inner, TreeDrafter)
    head, num_rows = inner._network._head, []  # type: ignore[attr-defined]
    combine = head.combine

    def noted(taps: Sequence[torch.Tensor]) -> torch.Tensor:
        num_rows.append(len(taps[0]))
        return combine(taps)

    monkeypatch.setattr(head, "combine", noted)
    monkeypatch.setattr(network, "MAX_HELD_ROWS", 40)
    drafter = restless(inner)
    drafter._policy.choose = lambda size: PLAIN  # type: ignore[method-assign]
    engine = new_engine(SETTING, drafter)
    run(engine, requests("a"))
    assert engine.metrics.num_failed_steps == 0
    assert num_rows == []
    drafter._policy.choose = lambda size: inner.shape  # type: ignore[method-assign]
    run(engine, requests("b"))
    assert num_rows


class Missed(ShapePolicy):
    """Compares the rows that are missing with those that are caught up in the next step."""

    def __init__(self) -> None:
        super().__init__([TreeShape(2, 1, 3)], Costs((1,), (1.0,)), Costs((1,), (0.2,)))
        self.num_steps, self.missing, self.caught_up = 0, 0, []

    def choose(self, size: StepSize) -> TreeShape:
        self.num_steps += 1
        return PLAIN if self.num_steps % 30 else self.shapes[1]

    def set_missing_rows(self, size: StepSize, num_rows: int) -> None:
        self.before, self.missing = self.missing, num_rows

    def learn(self, step: LandedStep) -> None:
        if step.num_caught_up:
            self.caught_up.append((self.before, step.num_caught_up))


@pytest.mark.parametrize("kind", ["eagle3", "model"])
def test_how_many_rows_are_missing_is_known_before_they_are_computed(kind: str) -> None:
    if kind == "model":
        inner = model_drafter(torch.float32, SETTING.num_slots, 3, "target")
    else:
        inner = head_drafter(kind, torch.float32, SETTING.num_slots, 3, topk=1)
    policy = Missed()
    engine = new_engine(SETTING, AdaptiveDrafter(inner, policy))
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=80)
    run(engine, [Request(id="a", prompt_token_ids=walk_text(97, 40, [0, 1]), params=params)])
    assert engine.metrics.num_failed_steps == 0
    resumed = policy.caught_up[-2:]  # a model computes the first prompt of all at once, too
    assert len(resumed) == 2
    for missing, caught_up in resumed:
        assert caught_up == missing + 1  # a plain step since


class Fails(DrafterWrapper):
    """Another drafter whose proposals fail now and then, before and after it has done its work."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.calls = 0

    def propose(self, batch: Batch, shape: TreeShape) -> DraftTree:
        self.calls += 1
        if self.calls % 7 == 2:
            raise RuntimeError("a drafter's fault, on purpose")
        tree = super().propose(batch, shape)
        if self.calls % 7 == 5:
            raise RuntimeError("a drafter's fault, on purpose")
        return tree


@pytest.mark.parametrize("setting", [SETTINGS["roomy"], SETTINGS["ahead"]], ids=["now", "ahead"])
def test_a_proposal_that_failed_leaves_no_wrong_rows(setting: Setting) -> None:
    inner = head_drafter("eagle3", torch.float32, setting.num_slots, 8, topk=2, is_lucky=False)
    compared = Compared(inner)
    engine = new_engine(setting, Fails(compared))
    engine.launcher.graphs = None
    for name in ("a", "b", "c"):
        run(engine, requests(name))
    assert engine.metrics.num_failed_steps > 10
    assert compared.num_compared > 40
    assert compared.worst < 1e-5


@pytest.mark.parametrize("kind", ["eagle3", "model"])
def test_a_narrow_drafter_works_up_to_the_length_limit(kind: str) -> None:
    """One sequence near its last position beside one that has its whole prompt to make up for."""
    setting = replace(SETTING, max_model_len=64)
    if kind == "model":
        drafter = model_drafter(torch.float32, setting.num_slots, 3, "target")
    else:
        drafter = head_drafter(kind, torch.float32, setting.num_slots, 3, topk=1)
    engine = new_engine(setting, drafter)
    params = SamplingParams(temperature=0, ignore_eos=True)
    old = Request(id="old", prompt_token_ids=walk_text(97, 40, [0, 1]), params=params)
    late = {
        step: [Request(id=f"{step}", prompt_token_ids=walk_text(98, 20, [0, 0, 1]), params=params)]
        for step in range(2, 24, 3)
    }
    answers = run(engine, [old], arrivals=late)
    assert engine.metrics.num_failed_steps == 0
    assert {answer.finish_reason for answer in answers.values()} == {"length"}
