"""The choice kernel against the torch body: the same words, the same tokens."""

from __future__ import annotations

import math
import random
from itertools import product

import pytest
import torch
import triton
import triton.language as tl

from eyas.core import SamplingParams
from eyas.kernels import choose as kernels
from eyas.ops import noise
from eyas.ops.choose import choose
from tests.kernels.hopper import Job, compile_for_hopper
from tests.sampling.rows import Row, assemble
from tests.thorough import drawn, pairs

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
"""The interpreter computes with numpy, which remarks on every infinity."""

NEVER = float("-inf")
SEEDS = [0, 1, 12345678987654321, 2**63, 2**64 - 1, 2**63 - 1, 2**32]


@triton.jit
def _noise_kernel(seed, position, choice, words, values, NUM: tl.constexpr):
    counter_Q = tl.arange(0, NUM)
    words_Q4 = kernels.philox_words(tl.load(seed), tl.load(position), tl.load(choice), counter_Q)
    at_Q4 = counter_Q[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(words + at_Q4, words_Q4.to(tl.int64))
    tl.store(values + at_Q4, kernels.gumbel_of_words(words_Q4))


@triton.jit
def _gumbel_kernel(words, values, NUM: tl.constexpr):
    at = tl.arange(0, NUM)
    tl.store(values + at, kernels.gumbel_of_words(tl.load(words + at).to(tl.uint32)))


def signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("position", "choice"), [(0, 0), (131071, 3), (2**31 - 1, 127)])
def test_the_noise_is_the_samplers(
    device: torch.device, seed: int, position: int, choice: int
) -> None:
    num = 1024
    keys = [torch.tensor([v], device=device) for v in (signed(seed), position, choice)]
    words = torch.empty(num * 4, dtype=torch.int64, device=device)
    values = torch.empty(num * 4, device=device)
    _noise_kernel[(1,)](*keys, words, values, NUM=num)
    counters = torch.arange(num).unsqueeze(0)
    expected = noise.philox(*(k.cpu() for k in keys), counters).view(-1)
    assert torch.equal(words.cpu(), expected)
    assert torch.allclose(values.cpu(), noise._to_gumbel(expected), rtol=3e-7, atol=6e-7)


def test_the_noise_is_exact_where_it_is_extreme(device: torch.device) -> None:
    """Around the words whose uniforms float32 cannot tell from 0, from 1, and from their neighbours."""
    powers = [2**i + d for i in range(33) for d in (-2, -1, 0, 1, 2)]
    words = sorted({w for w in powers if 0 <= w < 2**32})
    words += [2**32 - 1] * (256 - len(words))
    given = torch.tensor(words, device=device)
    values = torch.empty(256, device=device)
    _gumbel_kernel[(1,)](given, values, NUM=256)
    uniform = (given.cpu().float() + 0.5) * 2.0**-32
    exact = -torch.log(-torch.log1p(-uniform.clamp(max=1 - 2.0**-24).double()))
    error = (values.cpu().double() - exact).abs()
    assert bool((error <= 3e-7 * exact.abs().clamp(min=1.0)).all())


def both_ways(device: torch.device, made: list[Row]) -> tuple[list[int], list[int]]:
    """(what the kernel chooses, what the torch body chooses)."""
    logits, rows, params, mask = assemble(made)
    given = (logits, rows.sequence_R, rows.position_R)
    given += (params.temperature_B, params.seed_B, params.choice_B, mask)
    want = choose.by_torch(*given, params.filters, params.noisy)  # pyrefly: ignore
    moved = (None if x is None else x.to(device) for x in given)
    got = choose.by_kernel(*moved, params.filters, params.noisy)  # pyrefly: ignore
    assert got.dtype == torch.int64
    return got.tolist(), want.tolist()


def some_row(draw: random.Random, vocab: int, temperature: float, *, masked: bool) -> Row:
    step = draw.choice([1.0, 0.25, 1e-6])
    logits = [round(draw.gauss(0, 3) / step) * step for _ in range(vocab)]
    return Row(
        logits,
        SamplingParams(temperature=temperature),
        prompt=[0] * draw.randint(1, 9),
        seed=draw.choice([*SEEDS, draw.getrandbits(64)]),
        choice=draw.randrange(128),
        mask=[draw.random() < 0.5 for _ in range(vocab)] if masked else None,
    )


@pytest.mark.parametrize(
    ("num_rows", "vocab", "masked"), pairs([1, 5, 19], [1, 7, 1024, 1027, 4099], [False, True])
)
def test_choices_are_the_samplers(
    device: torch.device, num_rows: int, vocab: int, masked: bool
) -> None:
    """Greedy, warm and hot rows with ties in one call; one chunk a program and several."""
    draw = random.Random(vocab * 100 + num_rows)
    temperatures = [draw.choice([0.0, 0.001, 0.7, 1.0, 100.0]) for _ in range(num_rows)]
    made = [some_row(draw, vocab, t, masked=masked) for t in temperatures]
    got, want = both_ways(device, made)
    assert got == want


def test_greedy_rows_need_no_parameters(device: torch.device) -> None:
    draw = random.Random(3)
    made = [some_row(draw, 2050, 0.0, masked=i % 2 == 1) for i in range(6)]
    got, want = both_ways(device, made)
    assert got == want


def test_the_lowest_id_wins_a_tie(device: torch.device) -> None:
    greedy = SamplingParams(temperature=0)
    for size in (5, 33, 1000, 3000):
        for best in ([0, size - 1], [2, 3], [1, size // 2, size - 1]):
            logits = [7.0 if i in best else -1.0 for i in range(size)]
            got, _ = both_ways(device, [Row(logits, greedy), Row([0.0] * size, greedy)])
            assert got == [best[0], 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_cannot_choose_says_so_and_harms_no_other(
    device: torch.device, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature)
    draw = random.Random(0)
    size = 1500
    good = [Row([draw.gauss(0, 2) for _ in range(size)], params, seed=i) for i in range(2)]
    bad = [
        [math.nan] * size,
        [NEVER] * size,
        [1.0] * (size - 1) + [math.nan],
        [NEVER] * (size - 1) + [math.nan],
        [math.inf] * size,
        [3e38] * (size - 1) + [math.inf],
    ]
    got, want = both_ways(device, [good[0], *(Row(b, params) for b in bad), good[1]])
    assert got == want and got[1:-1] == [-1] * len(bad) and min(got[0], got[-1]) >= 0


def test_what_the_mask_hides_does_no_harm(device: torch.device) -> None:
    greedy = SamplingParams(temperature=0)
    mask = [i % 3 == 1 for i in range(100)]
    logits = [float(i) if ok else math.nan for i, ok in enumerate(mask)]
    got, want = both_ways(
        device,
        [Row(logits, greedy, mask=mask), Row([1.0] * 100, greedy, mask=[False] * 100)],
    )
    assert got == want == [97, -1]
    words = torch.full((1, 2), -1, dtype=torch.int32, device=device)  # 64 of 100 ids
    rising = torch.arange(100, dtype=torch.float32, device=device).unsqueeze(0)
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    cold = torch.zeros(1, device=device)
    assert kernels.choose(
        rising, zero, zero, cold, zero, zero, words, any_noise=False
    ).tolist() == [63]


def test_what_is_below_the_floor_is_not_chosen(device: torch.device) -> None:
    """The floor itself may be; a floor of -inf changes nothing."""
    vocab, num = 1300, 40
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(num, vocab, generator=generator)
    rows, zero = torch.arange(num), torch.zeros(num, dtype=torch.int64)
    heat = torch.full((num,), 2.0)
    third = (logits / 2.0).sort(dim=1, descending=True).values[:, 2]
    floor = torch.where(rows % 4 == 0, NEVER, third)
    masked = (logits / 2.0).masked_fill(logits / 2.0 < floor.unsqueeze(1), NEVER)
    want = (masked + noise.gumbel(rows, zero + 7, zero, vocab)).argmax(dim=1)
    args = [t.to(device) for t in (logits, rows, zero + 7, heat, rows, zero)]
    got = kernels.choose(*args, floor_R=floor.to(device), any_noise=True)
    assert torch.equal(got.cpu(), want)


def test_rows_may_lie_apart_and_there_may_be_none(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(2)
    wide = torch.randn(6, 900, generator=generator, device="cpu").to(device)
    part = wide[::2, :777]
    packed = torch.rand(2, 3, device=device)
    ids = torch.arange(3, device=device)
    keys = torch.stack((ids * 99, ids, ids), dim=1)
    args = (ids, ids, packed.t()[:, 0], keys[:, 0], keys[:, 1])
    assert torch.equal(
        kernels.choose(part, *args, any_noise=True),
        kernels.choose(part.contiguous(), *(a.contiguous() for a in args), any_noise=True),
    )
    assert kernels.choose(wide[:0], *args, any_noise=True).shape == (0,)


def test_kernels_compile_for_hopper() -> None:
    pointers = {"logits": "*fp32", "sequence": "*i64", "position": "*i64", "temperature": "*fp32"}
    pointers |= {"seed": "*i64", "choice": "*i64", "words": "*i32", "floor": "*fp32"}
    pointers |= {"values": "*fp32", "ids": "*i32"}
    names = ("", "words_", "temperature_", "seed_", "choice_")
    numbers = {"vocab": "i32", "num_words": "i32"} | {f"{name}stride": "i32" for name in names}
    jobs = [
        Job(
            "eyas.kernels.choose:_partial_kernel",
            pointers | numbers,
            {
                "HAS_MASK": is_full,
                "HAS_FLOOR": is_full,
                "ANY_NOISE": is_full,
                "NUM_TILES": num_tiles,
                "NUM_COUNTERS": 256,
                "PDL": is_full,
            },
            aligned=("vocab", "stride"),
        )
        for is_full, num_tiles in drawn(
            [(False, 1), (True, 4)], list(product((False, True), (1, 4)))
        )
    ]
    combined = {"values": "*fp32", "ids": "*i32", "chosen": "*i64", "num_chunks": "i32"}
    jobs.append(
        Job(
            "eyas.kernels.choose:_combine_kernel",
            combined,
            {"BLOCK_C": 128, "PDL": True},
            num_warps=1,
        )
    )
    for built in compile_for_hopper(*jobs):
        assert built.num_spilled == 0 and built.shared < 227 * 1024
