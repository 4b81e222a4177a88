"""Synthetic acceptance: the asked mean, and verdicts that an engine can go on with."""

from __future__ import annotations

import itertools

import pytest
import torch

from eyas.cli.options import engine_config
from eyas.draft.base import chain
from eyas.draft_tree import DraftTree, Verdict
from eyas.engine.engine import Engine
from eyas.engine.verifier import Verify, verify
from eyas_bench.shape import dummy_engine
from eyas_bench.synthetic import (
    SyntheticAcceptance,
    accept_chain,
    accept_tree,
    continuation,
    draw_lengths,
)
from eyas_bench.together import requests, run_together


def make_engine(
    steps: int,
    topk: int,
    nodes: int,
    drafter: str = "head",
    seqs: int = 4,
    verify: Verify = verify,
) -> Engine:
    """The tiny shape, with trees of one size."""
    config = engine_config(
        model="tiny",
        drafter=drafter,
        draft_steps=steps,
        draft_topk=topk,
        draft_nodes=nodes,
        device="cpu",
        threads=1,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=seqs,
        prefix_cache=False,
    )
    return dummy_engine("tiny", config, verify=verify)


def random_tree(draw: torch.Generator, num: int, width: int) -> DraftTree:
    """Trees of any form, some with padding; siblings differ."""
    parents_BW = torch.full((num, width), -1)
    for w in range(1, width):
        parents_BW[:, w] = torch.randint(0, w, (num,), generator=draw)
    tokens_BW = torch.randperm(num * width, generator=draw).view(num, width)
    sizes_B = torch.randint(1, width + 1, (num,), generator=draw)
    columns_W = torch.arange(width)
    parents_BW[columns_W.expand(num, -1) >= sizes_B.unsqueeze(1)] = 0
    return DraftTree(tokens_BW, parents_BW, sizes_B, is_chain=False)


def verdict_of(tokens_BW: torch.Tensor, nodes_BW: torch.Tensor, counts_B: torch.Tensor) -> Verdict:
    """A verdict with copies of these tokens, nodes and counts."""
    return Verdict(torch.cat((tokens_BW, nodes_BW, counts_B.unsqueeze(1)), dim=1))


def blank(num: int, width: int) -> Verdict:
    """What a walk that accepted nothing leaves: the root's choice, then padding."""
    tokens_BW = torch.full((num, width), -1)
    tokens_BW[:, 0] = 7000 + torch.arange(num)
    ones_B = torch.ones(num, dtype=torch.int64)
    return verdict_of(tokens_BW, torch.zeros((num, width), dtype=torch.int64), ones_B)


@pytest.mark.parametrize(("mean", "steps"), [(1, 5), (1.5, 1), (2.8, 3), (3.52, 5), (6, 5)])
def test_the_chance_to_go_on_gives_the_mean(mean: float, steps: int) -> None:
    p = continuation(mean, steps)
    assert 0 <= p <= 1
    assert 1 + sum(p**k for k in range(1, steps + 1)) == pytest.approx(mean, abs=1e-9)


@pytest.mark.parametrize("mean", [0.99, 6.01, -1, float("nan"), float("inf")])
def test_a_mean_that_no_draft_can_have_is_refused(mean: float) -> None:
    with pytest.raises(ValueError, match="synthetic_acceptance: between 1 and 6 tokens a step"):
        SyntheticAcceptance(mean, 5)


@pytest.mark.parametrize(("mean", "steps"), [(1, 5), (2.8, 3), (3.52, 5), (4, 5), (6, 5)])
def test_already_a_short_answer_has_about_the_mean(mean: float, steps: int) -> None:
    lengths_AC = draw_lengths(mean, steps, 40, 500)
    assert lengths_AC.shape == (40, 500)
    assert int(lengths_AC.min()) >= 0 and int(lengths_AC.max()) <= steps
    for row in lengths_AC.tolist():
        at, num_steps = 128, 0
        while at < 128 + 255:
            at += row[at] + 1
            num_steps += 1
        assert 255 / num_steps == pytest.approx(mean, rel=0.08), "one answer"
    assert torch.equal(lengths_AC, draw_lengths(mean, steps, 40, 500)), "the same every time"


def test_a_chain_is_accepted_as_far_as_it_goes() -> None:
    tree = chain(torch.arange(15).view(3, 5), torch.tensor([5, 3, 1]))
    tokens_BW = 100 + torch.arange(15).view(3, 5)
    nodes_BW = torch.arange(5).expand(3, -1)
    verdict = verdict_of(tokens_BW, nodes_BW, torch.tensor([1, 1, 1]))
    accept_chain(verdict, tree, torch.tensor([2, 4, 4]))
    assert verdict.counts_B.tolist() == [3, 3, 1]
    assert verdict.tokens_BW[0, :3].tolist() == [1, 2, 102]
    assert verdict.tokens_BW[1, :3].tolist() == [6, 7, 107]
    assert verdict.tokens_BW[2, :1].tolist() == [110]


def test_roots_that_could_not_choose_stay_faults() -> None:
    tree = chain(torch.arange(8).view(2, 4), torch.tensor([4, 4]))
    nodes_BW = torch.arange(4).expand(2, -1)
    verdict = verdict_of(torch.full((2, 4), -1), nodes_BW, torch.tensor([-1, 0]))
    accept_chain(verdict, tree, torch.tensor([3, 3]))
    assert verdict.counts_B.tolist() == [-1, 0]


def test_the_first_children_of_a_tree_are_followed() -> None:
    parents_BW = torch.tensor([[-1, 0, 0, 1, 2, 3, 0], [-1, 0, 1, 1, 3, 0, 0]])
    tree = DraftTree(torch.arange(14).view(2, 7), parents_BW, torch.tensor([6, 5]), is_chain=False)
    verdict = blank(2, 7)
    accept_tree(verdict, tree, torch.tensor([3, 5]), 5)
    assert verdict.counts_B.tolist() == [4, 3]
    assert verdict.nodes_BW[0, :4].tolist() == [0, 1, 3, 5]
    assert verdict.tokens_BW[0, :4].tolist() == [1, 3, 5, 7000]
    assert verdict.nodes_BW[1, :3].tolist() == [0, 1, 2]
    assert verdict.tokens_BW[1, :3].tolist() == [8, 9, 7001]


@pytest.mark.parametrize("width", [2, 3, 8, 33])
@pytest.mark.parametrize("num", [0, 1, 5])
def test_verdicts_on_trees_are_paths_of_real_nodes(num: int, width: int) -> None:
    draw = torch.Generator().manual_seed(100 * num + width)
    for steps in (1, 3, 40):
        tree = random_tree(draw, num, width)
        verdict = blank(num, width)
        tensors = (verdict.tokens_BW, verdict.nodes_BW, verdict.counts_B)
        wanted_B = torch.randint(0, steps + 1, (num,), generator=draw)
        accept_tree(verdict, tree, wanted_B, steps)
        assert tensors[0] is verdict.tokens_BW and tensors[1] is verdict.nodes_BW
        assert tensors[2] is verdict.counts_B, "written in place"
        for b in range(num):
            count = int(verdict.counts_B[b])
            nodes = verdict.nodes_BW[b, :count].tolist()
            tokens = verdict.tokens_BW[b, :count].tolist()
            assert 1 <= count <= int(wanted_B[b]) + 1 and nodes[0] == 0
            size, parents = int(tree.sizes_B[b]), tree.parents_BW[b].tolist()
            for above, node in itertools.pairwise(nodes):
                assert parents[node] == above and node < size
                assert node == min(w for w in range(1, size) if parents[w] == above)
            assert tokens[:-1] == [int(tree.tokens_BW[b, node]) for node in nodes[1:]]
            assert tokens[-1] == 7000 + b
            assert int(verdict.tokens_BW[b].min()) >= 0
            if count < int(wanted_B[b]) + 1:
                assert nodes[-1] not in parents[1:size], "only a leaf ends it sooner"


@pytest.mark.parametrize(("mean", "steps"), [(2.8, 3), (3.52, 5), (1, 5), (6, 5)])
def test_an_engine_with_chains_yields_the_mean(mean: float, steps: int) -> None:
    synthetic = SyntheticAcceptance(mean, steps)
    engine = make_engine(steps, 1, steps + 1, seqs=8, verify=synthetic)
    run = run_together(engine, requests([[1 + i, 2, 3] for i in range(8)], 120, 0.0, "a"))
    assert synthetic.num_calls > 0
    assert run.num_output_tokens == 8 * 120
    drawn = sum(run.draft_lengths) / len(run.draft_lengths)
    assert drawn == pytest.approx(mean, rel=0.03)
    if mean < 6:  # the end of an answer cuts its last draft
        assert run.tokens_per_step == pytest.approx(mean, rel=0.03)
    engine.check()
    engine.shutdown()


def test_sequences_that_are_alike_end_together() -> None:
    """In fewer steps than where each draws for itself."""
    steps = []
    for alike in (True, False):
        synthetic = SyntheticAcceptance(3.52, 5, alike=alike)
        engine = make_engine(5, 1, 6, seqs=8, verify=synthetic)
        run = run_together(engine, requests([[1 + i, 2, 3] for i in range(8)], 120, 0.0, "a"))
        assert sum(run.draft_lengths) / len(run.draft_lengths) == pytest.approx(3.52, rel=0.03)
        steps.append(run.num_steps)
        if alike:
            assert len(run.draft_lengths) == 8 * run.num_steps
        engine.shutdown()
    assert steps[0] < steps[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_engine_goes_on_after_drawn_trees(temperature: float) -> None:
    engine = make_engine(4, 3, 12, verify=SyntheticAcceptance(3.0, 4))
    run = run_together(engine, requests([[5, 6], [7] * 30, [9]], 60, temperature, "a"))
    assert run.num_output_tokens == 180
    mean = sum(run.draft_lengths) / len(run.draft_lengths)
    assert 1.5 < mean <= 3.3, "some trees are too shallow"
    engine.check()
    engine.shutdown()


def test_steps_without_a_draft_are_left_alone() -> None:
    synthetic = SyntheticAcceptance(2.0, 2)
    engine = make_engine(2, 1, 3, drafter="root", verify=synthetic)
    run = run_together(engine, requests([[1, 2]], 8, 0.0, "a"))
    assert run.num_output_tokens == 8 and synthetic.num_calls == 0
    engine.shutdown()
