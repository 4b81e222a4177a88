"""Ranked children against torch: probabilities, noise, ties, what may not be chosen."""

from __future__ import annotations

import pytest
import torch

from eyas.core import SamplingParams
from eyas.draft import grow
from eyas.kernels.top_tokens import top
from eyas.ops.top_tokens import top_tokens
from eyas.sampling import BatchParams, SequenceParams, gumbel
from eyas.sampling.process import SamplingRows
from tests.kernels.bodies import take_kernels
from tests.kernels.hopper import Job, compile_for_hopper
from tests.thorough import drawn

NEVER = float("-inf")
NUM_SEQUENCES = 3


def given(device: torch.device, num_rows: int) -> dict[str, torch.Tensor]:
    """Rows of three sequences: noise and trust, no temperature, other noise and little trust."""
    return {
        "sequence_R": (torch.arange(num_rows) % NUM_SEQUENCES).to(device),
        "position_R": (5 + 7 * torch.arange(num_rows)).to(device),
        "temperature_B": torch.tensor([0.7, 0.0, 1.3]).to(device),
        "seed_B": torch.tensor([3 - 2**63, 11, 2**62 + 5]).to(device),
        "choice_B": torch.tensor([0, 1, 2]).to(device),
        "beta_B": torch.tensor([1.0, 0.5, 0.3]).to(device),
    }


def scores_of(
    logits: torch.Tensor, arguments: dict[str, torch.Tensor], ids: torch.Tensor | None, vocab: int
) -> torch.Tensor:
    """[R, U] the definition, in float64."""
    x, of = logits.double().nan_to_num(nan=NEVER), arguments["sequence_R"]
    heat = arguments["temperature_B"][of].double().unsqueeze(1)
    x = torch.where(heat > 0, x / torch.where(heat > 0, heat, 1.0), x)
    if "beta_B" in arguments:
        noise = gumbel(
            arguments["seed_B"][of], arguments["position_R"], arguments["choice_B"][of], vocab
        )
        noise = noise if ids is None else noise[:, ids]
        seen = arguments["beta_B"][of].double().unsqueeze(1) * (x + noise)
        x = torch.where(heat > 0, seen, x)
    return x.log_softmax(dim=1)


def check(
    scores: torch.Tensor, found: torch.Tensor, want: torch.Tensor, ids: torch.Tensor | None
) -> None:
    """Everything found is as good as what is best by `want`, and has its score there."""
    num = scores.shape[1]
    best = want.topk(num, dim=1).values
    torch.testing.assert_close(scores.double(), best, rtol=1e-5, atol=2e-5)
    place = found
    if ids is not None:
        back = torch.full((int(ids.max()) + 1,), -1, device=ids.device)
        back[ids] = torch.arange(len(ids), device=ids.device)
        place = back[found]
    torch.testing.assert_close(scores.double(), want.gather(1, place), rtol=1e-5, atol=2e-5)
    assert bool((scores[:, 1:] <= scores[:, :-1]).all()) and bool((scores <= 0).all())
    ordered = found.sort(dim=1).values
    assert bool((ordered[:, 1:] > ordered[:, :-1]).all()), "an id was found twice"


SHAPES = [
    (1, 24, 1),
    (3, 24, 24),
    (5, 1000, 8),
    (2, 1025, 32),
    (4, 131, 10),
    (1, 1, 1),
    (2, 4099, 3),
]
GPU_SHAPES = [
    (1, 32000, 1),
    (1, 32000, 8),
    (8, 32000, 10),
    (80, 32000, 8),
    (256, 32000, 32),
    (8, 128256, 1),
    (256, 128256, 10),
    (1, 151936, 32),
]
SIZES = [*SHAPES, *(pytest.param(*each, marks=pytest.mark.gpu) for each in GPU_SHAPES)]


@pytest.mark.parametrize("mode", ["plain", "scaled", "noisy"])
@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize(("num_rows", "num_candidates", "num"), SIZES)
def test_the_best_are_found(
    device: torch.device, num_rows: int, num_candidates: int, num: int, is_mapped: bool, mode: str
) -> None:
    draw = torch.Generator().manual_seed(num_rows + num_candidates + num)
    logits = (torch.randn(num_rows, num_candidates, generator=draw) * 3).to(device)
    vocab = 2 * num_candidates + 3 if is_mapped else num_candidates
    ids = torch.randperm(vocab, generator=draw)[:num_candidates].to(device) if is_mapped else None
    arguments = given(device, num_rows)
    if mode == "scaled":
        del arguments["beta_B"]
    if mode == "plain":
        scores, found = top(logits, num, target_ids_U=ids)
        want = logits.double().log_softmax(dim=1)
    else:
        scores, found = top(logits, num, target_ids_U=ids, **arguments)
        want = scores_of(logits, arguments, ids, vocab)
    check(scores, found, want, ids)


@pytest.mark.parametrize("num", [1, 4, 7])
def test_ties_go_to_the_lowest_id(device: torch.device, num: int) -> None:
    draw = torch.Generator().manual_seed(num)
    logits = torch.randint(0, 3, (6, 700), generator=draw).float()
    logits[logits == 0] *= -1  # both zeros are one number
    logits[:, 2::5] = 0.0
    order = logits.sort(dim=1, descending=True, stable=True).indices[:, :num]
    _, found = top(logits.to(device), num)
    assert found.tolist() == order.tolist()


def test_what_may_not_be_chosen_has_no_score(device: torch.device) -> None:
    logits = torch.full((6, 200), NEVER)
    logits[0, 150], logits[0, 7] = 2.0, 1.0
    logits[1] = float("nan")
    logits[2, 3], logits[2, 4] = float("nan"), 1.0
    logits[4, 9], logits[4, 199] = float("inf"), 5.0
    logits[5] = torch.arange(200.0)
    for arguments in ({}, given(device, 6)):
        scores, found = top(logits.to(device), 4, **arguments)
        assert bool(((found >= 0) & (found < 200)).all())
        assert not bool(scores.isnan().any())
        assert sorted(found[0, :2].tolist()) == [7, 150]
        assert (scores > NEVER).sum(dim=1).tolist()[:4] == [2, 0, 1, 0]
        assert found[2, 0] == 4 and float(scores[2, 0]) == 0.0
        assert found[4, 0] == 9 and float(scores[4, 0]) == 0.0


def test_a_row_is_the_same_in_any_company(device: torch.device) -> None:
    logits = torch.randn(7, 1500, generator=torch.Generator().manual_seed(1)).to(device)
    arguments = given(device, 7)
    scores, found = top(logits, 6, **arguments)
    for row in range(7):
        own = {k: v[row : row + 1] if k.endswith("_R") else v for k, v in arguments.items()}
        alone, ids = top(logits[row : row + 1], 6, **own)
        assert torch.equal(alone[0], scores[row]) and torch.equal(ids[0], found[row])


def test_other_numbers_strides_and_no_rows(device: torch.device) -> None:
    logits = torch.randn(4, 303, generator=torch.Generator().manual_seed(2)).to(device)
    wide = torch.full((4, 320), float("nan"), device=device)
    wide[:, :303] = logits
    scores, found = top(logits, 5)
    for other in (wide[:, :303], logits.t().contiguous().t()):
        assert torch.equal(top(other, 5)[1], found) and torch.equal(top(other, 5)[0], scores)
    halves = logits.to(torch.bfloat16)
    assert torch.equal(top(halves, 5)[1], top(halves.float(), 5)[1])
    none, ids = top(logits[:0], 5)
    assert none.shape == ids.shape == (0, 5) and ids.dtype == torch.int64


@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("params", [None, {}, {"temperature": 0.8}, {"presence_penalty": 1.5}])
def test_the_drafter_s_ranking_is_the_same_as_on_a_cpu(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, params: dict | None, is_mapped: bool
) -> None:
    """Where noise acts all candidates are in the shortlist."""
    draw = torch.Generator().manual_seed(3)
    vocab, num_candidates, num_rows = 90, 60, 6
    logits = torch.randn(num_rows, num_candidates, generator=draw) * 2
    ids = torch.randperm(vocab, generator=draw)[:num_candidates] if is_mapped else None
    vocab = vocab if is_mapped else num_candidates
    history = torch.randint(0, vocab, (2, 12), generator=draw)

    def ranked(where: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        own = {"temperature": 0.0} | (params or {})
        sources = [
            SequenceParams(SamplingParams(**each), 7 + i, i, 3, frozenset())  # pyrefly: ignore
            for i, each in enumerate([own, {"temperature": 0.0}])
        ]
        path = torch.arange(num_rows).view(-1, 1).to(where)
        rows = SamplingRows(
            torch.arange(2).repeat_interleave(3).to(where),
            torch.arange(10, 10 + num_rows).to(where),
            path,
            torch.ones_like(path, dtype=torch.bool),
            history.to(where),
            torch.tensor([12, 9]).to(where),
        )
        batch = BatchParams(sources, vocab, where)
        beta = torch.tensor([0.9, 0.8]).to(where) if any(batch.noisy) else None
        chosen = None if ids is None else ids.to(where)
        return grow.best_tokens(
            logits.to(where), chosen, None if params is None else rows, batch, beta, 5
        )

    want_ids, want = ranked(torch.device("cpu"))
    take_kernels(monkeypatch, top_tokens)
    got_ids, got = ranked(device)
    assert got_ids.tolist() == want_ids.tolist()
    torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_it_runs_in_a_graph_with_other_numbers(device: torch.device) -> None:
    logits = torch.randn(8, 32000, device=device)
    arguments = given(device, 8)
    top(logits, 8, **arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scores, found = top(logits, 8, **arguments)
    for pdl in (False, True):
        logits.copy_(torch.randn_like(logits))
        arguments["position_R"].add_(17)
        scores.fill_(float("nan"))
        found.fill_(-1)
        graph.replay()
        want, want_ids = top(logits, 8, pdl=pdl, **arguments)
        assert torch.equal(scores, want) and torch.equal(found, want_ids)


def test_it_compiles_for_hopper() -> None:
    given_types = {
        "logits": "*fp32",
        "target_ids": "*i64",
        "sequence": "*i64",
        "position": "*i64",
        "temperature": "*fp32",
        "seed": "*i64",
        "choice": "*i64",
        "beta": "*fp32",
        "maxima": "*fp32",
        "sums": "*fp32",
    }
    numbers = {"num_candidates": "i32", "num_groups": "i32", "stride": "i32"}
    numbers |= {f"{name}_stride": "i32" for name in ("temperature", "seed", "choice", "beta")}
    outputs = {"scores": "*fp32", "ids": "*i64"}
    jobs = []
    sizes = [(True, 64, 512, 8, 4), (False, 128, 2048, 32, 16)]
    more = [(True, 64, 512, 1, 4), (False, 128, 1024, 10, 8)]
    for has_target, group, groups, num, warps in drawn(sizes, [*sizes, *more]):
        modes = {"HAS_TEMPERATURE": True, "HAS_NOISE": True, "HAS_TARGET": has_target}
        modes |= {"GROUP": group, "PDL": True}
        survey = Job(
            "eyas.kernels.top_tokens:survey",
            given_types | numbers,
            modes | {"BLOCK": 1024},
            aligned=("num_candidates", "stride"),
        )
        padded = 1 << (num - 1).bit_length()
        select = Job(
            "eyas.kernels.top_tokens:select",
            given_types | outputs | numbers,
            modes | {"GROUPS_PADDED": groups, "LOOKED_AT": num, "NUM": num, "NUM_PADDED": padded},
            num_warps=warps,
            aligned=("num_candidates", "stride"),
        )
        jobs += [survey, select]
    absent = dict.fromkeys(["target_ids", *list(given_types)[2:8]])
    plain = {"logits": "*bf16", "maxima": "*fp32", "sums": "*fp32"} | numbers
    modes = {"HAS_TEMPERATURE": False, "HAS_NOISE": False, "HAS_TARGET": False, "GROUP": 64}
    modes |= absent | {"PDL": False, "num_groups": 1}
    del plain["num_groups"]
    jobs.append(Job("eyas.kernels.top_tokens:survey", plain, modes | {"BLOCK": 1024}))
    modes |= {"GROUPS_PADDED": 1, "LOOKED_AT": 1, "NUM": 8, "NUM_PADDED": 8}
    jobs.append(Job("eyas.kernels.top_tokens:select", plain | outputs, modes))
    for compiled in compile_for_hopper(*jobs):
        assert compiled.num_spilled == 0 and compiled.shared < 64 * 1024, compiled
