"""The sampler's kernels at full size against its torch operations on the same device, and in graphs.

Kernels are imported where they are used: without a device, others must import them first, interpreted.
"""

from __future__ import annotations

import random

import pytest
import torch

from eyas.core import SamplingParams
from eyas.draft_tree import Verdict
from eyas.ops.choose import choose as ops_choose
from eyas.ops.scale_and_filter import scale_and_filter
from eyas.sampling import BatchParams, SequenceParams, gumbel, process, sample
from eyas.sampling.process import SamplingRows, before_temperature
from tests.kernels.bodies import take_torch
from tests.sampling.rows import choose
from tests.sampling.test_choose_law import (
    DISTRIBUTIONS,
    NUM_DRAWS,
    assemble,
    axes,
    chi_square_limit,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]

CUDA = torch.device("cuda")
NEVER = float("-inf")
MIXED = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.3, top_k=50),
    SamplingParams(temperature=0.9, top_k=200, top_p=0.95, min_p=0.01),
    SamplingParams(temperature=2.0, min_p=0.1),
]
SIZES = [(1, 128256), (6, 151936), (192, 128256), (7, 50257)]


def poison(num_bytes: int = 2**28) -> None:
    """Leave memory for the next allocations that is not a number anywhere."""
    torch.full((num_bytes // 4,), float("nan"), device=CUDA)


def some_logits(num: int, vocab: int, seed: int) -> torch.Tensor:
    """As of a model: a few likely tokens above a broad rest."""
    generator = torch.Generator(CUDA).manual_seed(seed)
    logits = 2.5 * torch.randn((num, vocab), generator=generator, device=CUDA)
    likely = torch.randint(0, vocab, (num, 40), generator=generator, device=CUDA)
    lift = 8 + 4 * torch.randn((num, 40), generator=generator, device=CUDA)
    return logits.scatter_add_(1, likely, lift)


def some_mask(num: int, vocab: int, seed: int) -> torch.Tensor:
    generator = torch.Generator(CUDA).manual_seed(seed)
    shape = (num, -(-vocab // 32))
    words = torch.randint(-(2**31), 2**31, shape, generator=generator, device=CUDA)
    return words.to(torch.int32)


def some_rows(
    num: int, params: list[SamplingParams], vocab: int
) -> tuple[SamplingRows, BatchParams]:
    draw = random.Random(num)
    sources = [
        SequenceParams(params[b % len(params)], draw.getrandbits(64), b % 128, 5, frozenset())
        for b in range(num)
    ]
    batch = BatchParams(sources, vocab, CUDA)
    every = torch.arange(num, device=CUDA)
    history = torch.zeros((num, 8), dtype=torch.int64, device=CUDA)
    return SamplingRows(every, every * 977 + 3, None, None, history, history[:, 0] + 6), batch


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    take_torch(monkeypatch, ops_choose, scale_and_filter)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("num", "vocab"), SIZES)
def test_tokens_are_those_of_the_torch_operations(
    num: int, vocab: int, masked: bool, request: pytest.FixtureRequest
) -> None:
    """But for near ties, and for ids at a threshold that are as likely but for 2^-17."""
    rows, params = some_rows(num, MIXED, vocab)
    logits = some_logits(num, vocab, seed=num)
    mask = some_mask(num, vocab, seed=1) if masked else None
    poison()
    got = sample(logits, rows, params, mask)
    assert torch.equal(sample(logits, rows, params, mask), got)
    mine = process(logits, rows, params, mask)
    request.getfixturevalue("without_kernels")
    theirs = process(logits, rows, params, mask)
    want = choose(theirs, rows, params)
    kept = theirs > NEVER
    assert torch.equal(mine[kept & (mine > NEVER)], theirs[kept & (mine > NEVER)])
    assert int((kept != (mine > NEVER)).sum(dim=1).max()) <= 2
    keys = (params.seed_B, rows.position_R, params.choice_B)
    noise = gumbel(*(key[rows.sequence_R] for key in keys), vocab)
    scores = mine + torch.where(params.temperature_B[:, None] > 0, noise, 0.0)
    picked = scores.gather(1, torch.stack((got, want), dim=1))
    assert bool((picked[:, 0] >= picked[:, 1] - 1e-5).all())
    assert int((got != want).sum()) <= 1


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0), SamplingParams(), SamplingParams(temperature=0.6)]
)
def test_two_thousand_rows_choose_as_each_alone(params: SamplingParams) -> None:
    num, vocab = 2048, 128256
    rows, batch = some_rows(num, [params], vocab)
    logits = some_logits(num, vocab, seed=3)
    poison()
    together = sample(logits, rows, batch, None)
    if params.temperature == 0:
        assert torch.equal(together, logits.argmax(dim=1))
    for i in (0, 1, 1000, 2047):
        of = slice(i, i + 1)
        own = SamplingRows(
            rows.sequence_R[of], rows.position_R[of], None, None, rows.history_BL, rows.length_B
        )
        assert torch.equal(sample(logits[of], own, batch, None), together[of])


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(50, 1, 0), (0, 0.9, 0), (300, 0.97, 0.01)])
def test_floors_leave_what_sorted_logits_leave(top_k: int, top_p: float, min_p: float) -> None:
    from eyas.kernels.scale_and_filter import floors

    num, vocab = 96, 128256
    logits = some_logits(num, vocab, seed=9)
    logits[-1] = 0.0  # all tied
    logits[-2] = logits[-2].round()
    every = torch.arange(num, device=CUDA)
    heat = torch.linspace(0.5, 2.0, num, device=CUDA)
    ones = torch.ones(num, device=CUDA)
    args = (every, heat, (ones * top_k).long(), ones * top_p, ones * min_p)
    poison()
    got = floors(logits, *args)
    for i in (0, 5, num - 1):
        own = (every[:1], *(a[i : i + 1] for a in args[1:]))
        assert torch.equal(floors(logits[i : i + 1], *own), got[i : i + 1])
    x = (logits / heat.unsqueeze(1)).double()
    floor = x.new_full((num, 1), NEVER)
    if top_k:
        floor = x.topk(top_k, dim=1).values[:, -1:]
    ordered = torch.where(x < floor, NEVER, x).sort(dim=1, descending=True).values
    mass = ordered.softmax(dim=1).cumsum(dim=1)
    for slack, sign in ((2e-6, -1), (-2e-6, 1)):
        bound = floor
        if top_p < 1:
            last = (mass < top_p + slack).sum(dim=1, keepdim=True)
            bound = torch.maximum(bound, ordered.gather(1, last.clamp(max=vocab - 1)))
        if min_p:
            bound = torch.maximum(bound, ordered[:, :1] + torch.tensor(min_p).double().log())
        assert bool((sign * (bound.squeeze(1) - got) >= -(2.0**-17)).all())


def test_unusual_parameters_run_on_the_device_too(request: pytest.FixtureRequest) -> None:
    num, vocab = 12, 32000
    unusual = [
        SamplingParams(repetition_penalty=1.3, top_p=0.9),
        SamplingParams(temperature=0, logit_bias={5: 9.0}),
        SamplingParams(frequency_penalty=0.5, presence_penalty=0.2, min_tokens=9),
        SamplingParams(temperature=0.8),
    ]
    rows, params = some_rows(num, unusual, vocab)
    logits, mask = some_logits(num, vocab, seed=2), some_mask(num, vocab, seed=4)
    got = sample(logits, rows, params, mask)
    bare = before_temperature(logits, rows, params, mask)
    request.getfixturevalue("without_kernels")
    assert torch.equal(before_temperature(logits, rows, params, mask), bare)
    assert int((got != sample(logits, rows, params, mask)).sum()) <= 1


@pytest.mark.parametrize("is_chain", [False, True])
def test_a_captured_verdict_follows_its_inputs(is_chain: bool) -> None:
    """sample, walk and advance in one graph; logits, tree and parameters change between replays."""
    from eyas.kernels.advance import advance
    from eyas.kernels.walk import walk

    num, padded, width, vocab, seats = 5, 6, 4, 32000, 9
    draw = random.Random(8)
    parents_BW = None if is_chain else torch.tensor([[-1, 0, 0, 1]] * padded, device=CUDA)
    static = {
        "logits": some_logits(padded * width, vocab, 0),
        "tokens": torch.zeros((padded, width), dtype=torch.int64, device=CUDA),
        "mask": some_mask(padded * width, vocab, 0),
    }
    kinds = [SamplingParams(temperature=0.8, top_p=0.9, top_k=30), SamplingParams(temperature=0)]
    sources = [SequenceParams(kinds[b % 2], b, 0, 3, frozenset()) for b in range(num)]
    twin = BatchParams(sources, vocab, CUDA).padded(padded)
    grid = torch.arange(padded * width, device=CUDA)
    history = torch.zeros((padded, 4), dtype=torch.int64, device=CUDA)
    rows = SamplingRows(grid // width, grid % 97, None, None, history, history[:, 0])
    sizes = torch.full((padded,), width, device=CUDA)
    seats_B = torch.tensor([3, 0, 7, 1, 5, 8], device=CUDA)
    slots_BW = torch.arange(padded * width, device=CUDA).view(padded, width) + 100
    table = [
        torch.zeros((seats, 40), dtype=torch.int64, device=CUDA),
        torch.zeros((seats, 40), dtype=torch.int64, device=CUDA),
        torch.ones(seats, dtype=torch.int64, device=CUDA),
    ]

    def step() -> Verdict:
        roots_B = table[2][seats_B] - 1
        chosen = sample(static["logits"], rows, twin, static["mask"])
        report_BX = walk(chosen, static["tokens"], parents_BW, sizes)
        places = (seats_B, roots_B, report_BX, slots_BW)
        advance(*places, *table, is_chain=is_chain, trash_seat=seats - 1)
        return Verdict(report_BX)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for i in range(3):
        static["logits"].copy_(some_logits(padded * width, vocab, 10 + i))
        static["mask"].copy_(some_mask(padded * width, vocab, i))
        count = num - i
        others = [
            SequenceParams(kinds[(b + i) % 2], draw.getrandbits(64), 1, 3, frozenset())
            for b in range(count)
        ]
        twin.copy_(BatchParams(others, vocab, CUDA))
        expected = sample(static["logits"], rows, twin, static["mask"]).view(padded, width)
        static["tokens"][:, 1] = expected[:, 0]
        for tensor in table:
            tensor.zero_()
        table[2].fill_(4)
        graph.replay()
        torch.cuda.synchronize()
        report = captured.report_BX.cpu()
        assert torch.equal(report[:, 0], expected[:, 0].cpu())
        assert int(report[:, 2 * width].min()) >= 2
        lengths = table[2].cpu()
        assert torch.equal(lengths[seats_B.cpu()[:-1]], 4 + report[:-1, 2 * width])
        assert int(lengths[seats - 1]) == 4 and int(table[0][seats - 1].sum()) == 0
        assert table[0][3, 4:6].tolist() == report[0, :2].tolist()
        if not is_chain:
            assert table[1][3, 3:5].tolist() == slots_BW[0, report[0, width : width + 2]].tolist()


@pytest.mark.parametrize("what", ["scattered seeds", "positions"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_choices_are_distributed_as_the_softmax(name: str, what: str) -> None:
    """The same G-test as on a CPU, with the kernel's choices."""
    from eyas.kernels import choose as kernels

    processed_V = process(*assemble([DISTRIBUTIONS[name]]))[0]
    keys = [axis.to(CUDA) for axis in axes(what, NUM_DRAWS)]
    every = torch.arange(NUM_DRAWS, device=CUDA)
    logits = processed_V.to(CUDA).expand(NUM_DRAWS, -1)
    seed, position, choice = keys
    heat = torch.ones(NUM_DRAWS, device=CUDA)
    chosen = kernels.choose(logits, every, position, heat, seed, choice, any_noise=True).cpu()
    expected = processed_V.double().softmax(dim=0) * NUM_DRAWS
    observed = chosen.bincount(minlength=len(processed_V)).double()
    assert observed[expected == 0].sum() == 0, "a token that may not be chosen was"
    real = expected > 5
    assert observed[~real].sum() <= expected[~real].sum() + 6 * expected[~real].sum().sqrt() + 1
    o, e = observed[real], expected[real]
    g = 2 * float((o * (o.clamp(min=1e-9) / e).log()).sum())
    assert g < chi_square_limit(int(real.sum()) - 1)


@pytest.mark.parametrize("name", ["sample", "process"])
def test_nothing_waits_for_the_device(name: str) -> None:
    """With usual parameters: torch would say so."""
    rows, params = some_rows(12, MIXED, 32000)
    logits, mask = some_logits(12, 32000, 1), some_mask(12, 32000, 1)
    run = {"sample": sample, "process": process}[name]
    run(logits, rows, params, mask)
    twin = params.padded(16)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(logits, rows, params, mask)
        twin.copy_(params)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("vocab_size", [1000, 1001, 1002, 128_257])
def test_log_probabilities_do_not_depend_on_where_a_row_stands(vocab_size: int) -> None:
    from eyas.engine.verifier import raw_logprobs

    generator = torch.Generator(CUDA).manual_seed(vocab_size)
    row_V = torch.randn(vocab_size, generator=generator, device=CUDA) * 5
    logits_RV = row_V.repeat(9, 1)
    tokens_R = torch.arange(9, device=CUDA)
    expected_V = row_V.double().log_softmax(0)
    for first in range(4):
        own_R, ids_RN, top_RN = raw_logprobs(logits_RV[first:], tokens_R[first:], 3)
        assert (own_R.double() - expected_V[tokens_R[first:]]).abs().max() < 1e-5
        assert ids_RN.unique(dim=0).shape[0] == 1 and top_RN.unique(dim=0).shape[0] == 1
        again_R = raw_logprobs(logits_RV[:1], tokens_R[first : first + 1], 3)[0]
        assert torch.equal(own_R[:1], again_R)
