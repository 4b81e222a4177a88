"""Thresholds without a sort against an oracle that sorts in float64."""

from __future__ import annotations

import math
from importlib import import_module

import pytest
import torch

from eyas.kernels.scale_and_filter import floors
from tests.kernels.hopper import Job, compile_for_hopper
from tests.sampling.rows import pack

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
"""The interpreter computes with numpy, which remarks on every infinity."""

NEVER = float("-inf")
NEAR = 2.0**-17
"""Twice the width of a bin, within which distances are one."""


def kept_by_the_law(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, slack: float
) -> float:
    """The least logit (over the temperature) that the filters keep in exact arithmetic; `slack` shifts
    what top-p needs."""
    x = torch.tensor(logits, dtype=torch.float32)
    x = (x / temperature).double()
    floor = NEVER
    if top_k:
        floor = float(x.sort(descending=True).values[min(top_k, len(x)) - 1])
        x = torch.where(x < floor, NEVER, x)
    if top_p < 1:
        ordered = x.sort(descending=True).values
        mass = ordered.softmax(dim=0).cumsum(dim=0)
        reached = int((mass < top_p + slack).sum())
        floor = max(floor, float(ordered[min(reached, len(ordered) - 1)]))
    if min_p > 0:
        floor = max(floor, float(x.max()) + math.log(min_p))
    return floor


def check(
    device: torch.device,
    rows: list[tuple[list[float], float, int, float, float]],
    mask: list[list[bool]] | None = None,
) -> list[float]:
    """Floors of rows (logits, temperature, top_k, top_p, min_p), each a sequence of its own, compared
    with the law's."""
    logits = torch.tensor([row[0] for row in rows], dtype=torch.float32, device=device)
    columns = list(zip(*(row[1:] for row in rows), strict=True))
    words = None if mask is None else torch.stack([pack(m) for m in mask]).to(device)
    top_k = torch.tensor(columns[1], device=device)
    top_p = torch.tensor(columns[2], dtype=torch.float32, device=device)
    got = floors(
        logits,
        torch.arange(len(rows), device=device),
        torch.tensor(columns[0], dtype=torch.float32, device=device),
        top_k,
        top_p,
        torch.tensor(columns[3], dtype=torch.float32, device=device),
        words,
        any_top_k=bool((top_k > 0).any()),
        any_top_p=bool((top_p < 1).any()),
    ).tolist()
    for i, (values, temperature, *filters) in enumerate(rows):
        if temperature == 0 or filters == [0, 1.0, 0.0]:
            assert got[i] == NEVER
            continue
        if mask is not None:
            values = [v if ok else NEVER for v, ok in zip(values, mask[i], strict=True)]
        bounds = [kept_by_the_law(values, temperature, *filters, slack) for slack in (2e-6, -2e-6)]
        best = float(torch.tensor(max(values)) / temperature)
        low = bounds[0] - NEAR if best - bounds[0] < 31 else NEVER
        high = bounds[1] + 2e-6 * max(1.0, abs(bounds[1])) if best - bounds[1] < 33 else NEVER
        assert low <= got[i] <= max(high, low), (i, rows[i][1:], got[i], bounds)
    return got


def some_logits(vocab: int, seed: int, spread: float = 3.0) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(vocab, generator=generator) * spread).tolist()


@pytest.mark.parametrize("vocab", [7, 1025, 5003])
def test_floors_are_those_of_sorted_logits(device: torch.device, vocab: int) -> None:
    cases = [
        (1.0, 5, 1.0, 0.0),
        (1.0, 0, 0.9, 0.0),
        (1.0, 0, 1.0, 0.1),
        (0.7, 40, 0.8, 0.05),
        (2.0, 3, 0.5, 0.0),
        (1.0, 0, 1.0, 0.0),
        (0.0, 3, 0.5, 0.5),
        (1.0, 1, 0.99, 0.0),
        (1.0, vocab, 0.95, 0.0),
        (50.0, 0, 0.7, 0.0),
        (0.01, 10, 0.9, 0.0),
        (1.0, 0, 1e-9, 0.0),
        (1.0, 0, 0.9999, 0.0),
        (1.0, 2, 1.0, 1.0),
    ]
    check(device, [(some_logits(vocab, i), *case) for i, case in enumerate(cases)])


@pytest.mark.parametrize(
    "case", [(1.0, 20, 1.0, 0.0), (1.5, 0, 0.8, 0.0), (1.0, 0, 1.0, 0.2), (1.0, 9, 0.6, 0.01)]
)
def test_masked_ids_count_for_nothing(
    device: torch.device, case: tuple[float, int, float, float]
) -> None:
    vocab = 1100
    generator = torch.Generator().manual_seed(5)
    mask = [(torch.rand(vocab, generator=generator) < share).tolist() for share in (0.5, 0.02, 1)]
    mask[1][70] = True
    check(device, [(some_logits(vocab, i), *case) for i in range(3)], mask)
    nothing = [[False] * vocab]
    logits = torch.tensor([some_logits(vocab, 1)], device=device)
    args = [torch.tensor([v], device=device) for v in case]
    words = torch.stack([pack(m) for m in nothing]).to(device)
    assert floors(logits, torch.tensor([0], device=device), *args, words).item() == NEVER


def test_ids_past_the_mask_count_for_nothing(device: torch.device) -> None:
    """The mask has 64 bits, the vocabulary 100 ids."""
    logits = torch.arange(100, dtype=torch.float32, device=device).unsqueeze(0)
    words = torch.full((1, 2), -1, dtype=torch.int32, device=device)
    one = [torch.tensor([v], device=device) for v in (0, 1.0, 3, 1.0, 0.0)]
    assert floors(logits, *one, words).item() == 61.0


def test_ties_are_kept(device: torch.device) -> None:
    assert check(device, [([1.0, 5.0, 3.0, 3.0, 3.0, 0.0], 1.0, 2, 1.0, 0.0)]) == [3.0]
    assert check(device, [([1.0, 5.0, 3.0, 3.0, 3.0, 0.0], 1.0, 1, 1.0, 0.0)]) == [5.0]
    assert check(device, [([0.0] * 2000, 1.0, 0, 0.1, 0.0)]) == [0.0]
    assert check(device, [([2.0] * 2000, 1.0, 5, 0.1, 1.0)]) == [2.0]
    values = [float(i % 7) for i in range(3000)]
    assert check(device, [(values, 1.0, 10, 1.0, 0.0)]) == [6.0]
    assert check(device, [(values, 1.0, 429, 1.0, 0.0)]) == [5.0]


def test_top_p_keeps_the_smallest_set_that_reaches_it(device: torch.device) -> None:
    halves = [math.log(w) for w in (4.0, 2.0, 1.0, 1.0)]
    single = torch.tensor(halves).tolist()
    for top_p, last in ((0.5, 0), (0.51, 1), (0.8, 2), (1e-9, 0), (0.74, 1), (0.9999, 2)):
        assert check(device, [(halves, 1.0, 0, top_p, 0.0)]) == [single[last]]
    weights = [math.log(w) for w in (5.0, 3.0, 1.0, 1.0)]
    single = torch.tensor(weights).tolist()
    assert check(device, [(weights, 1.0, 2, 0.6, 0.0)]) == [single[0]]
    assert check(device, [(weights, 1.0, 0, 0.6, 0.0)]) == [single[1]]


def test_rows_that_cannot_choose_harm_no_other(device: torch.device) -> None:
    vocab = 1500
    good = some_logits(vocab, 3)
    bad = [[math.nan] * vocab, [NEVER] * vocab, [math.inf] * vocab, [1.0] * 1499 + [math.nan]]
    logits = torch.tensor([good, *bad, good], device=device)
    zero = torch.zeros(6, dtype=torch.int64, device=device)
    one = [torch.tensor([v], device=device) for v in (0.9, 30, 0.8, 0.001)]
    got = floors(logits, zero, *one)
    alone = floors(logits[:1], zero[:1], *one)
    assert got[0] == alone[0] == got[5] and alone[0] > NEVER
    assert not bool(got.isnan().any())


def test_infinitely_unlikely_ids_are_no_hindrance(device: torch.device) -> None:
    """The third likeliest is out of reach of any noise: all that is not -inf is kept."""
    logits = [0.0, -1.0, -500.0, NEVER, NEVER]
    assert check(device, [(logits, 1.0, 3, 1.0, 0.0)])[0] <= -500.0
    assert check(device, [(logits, 1.0, 4, 1.0, 0.0)]) == [NEVER]
    assert check(device, [(logits, 1.0, 2, 1.0, 0.0)]) == [-1.0]
    assert check(device, [([1e30, -1e30, 1e38], 0.5, 1, 0.9, 0.1)]) == [pytest.approx(2e38)]


def test_a_rows_floor_depends_neither_on_other_rows_nor_on_their_number(
    device: torch.device,
) -> None:
    """More rows than a program of its own for each tile is worth."""
    vocab, num = 2100, 18
    logits = torch.tensor([some_logits(vocab, i) for i in range(num)], device=device)
    rows = torch.arange(num, device=device)
    args = (
        torch.tensor([1.0, 0.8, 0.0] * 6, device=device),
        torch.tensor([0, 50, 5] * 6, device=device),
        torch.tensor([0.9, 0.95, 0.5] * 6, device=device),
        torch.tensor([0.0, 0.01, 0.1] * 6, device=device),
    )
    together = floors(logits, rows, *args)
    for i in range(num):
        assert torch.equal(floors(logits[i : i + 1], rows[i : i + 1], *args)[0], together[i])
    assert floors(logits[:0], rows[:0], *args).shape == (0,)


FLOATS, INTEGERS, NUMBER = "*fp32", "*i64", "i32"
WIDE = {"stride": NUMBER, "words_stride": NUMBER, "vocab": NUMBER, "num_words": NUMBER}
STRIDES = {f"{name}_stride": NUMBER for name in ("temperature", "top_k", "top_p", "min_p")}


def test_kernels_compile_for_hopper() -> None:
    inputs = {
        "logits": FLOATS,
        "sequence": INTEGERS,
        "temperature": FLOATS,
        "top_k": INTEGERS,
        "top_p": FLOATS,
        "min_p": FLOATS,
    }
    inputs |= {
        "words": "*i32",
        "maxima": FLOATS,
        "coarse": INTEGERS,
        "fine": INTEGERS,
        "least": FLOATS,
        "facts": INTEGERS,
    }
    inputs |= {"bins": INTEGERS, "floor": FLOATS, "num_chunks": NUMBER} | WIDE | STRIDES
    tiles = {"HAS_MASK": True, "NUM_TILES": 4, "NUM_COUNTERS": 256, "PDL": True}
    module = "eyas.kernels.scale_and_filter:"
    aligned = ("vocab", "stride")
    best = tiles | {"HAS_BINS": True, "BLOCK_N": 128}
    jobs = [
        job(module + "_best_kernel", inputs, best, 4, aligned),
        *(
            job(
                module + "_count_kernel",
                inputs,
                tiles | {"IS_COARSE": c, "BLOCK_C": 32},
                4,
                aligned,
            )
            for c in (True, False)
        ),
        job(
            module + "_begin_kernel",
            inputs,
            {"BY_COUNT": True, "BY_MASS": True, "BLOCK_C": 128, "PDL": True},
            8,
        ),
        *(
            job(
                module + "_settle_kernel",
                inputs,
                {"BY_COUNT": by_count, "THEN_BY_MASS": by_count, "PDL": False},
                8,
            )
            for by_count in (True, False)
        ),
    ]
    for built in compile_for_hopper(*jobs):
        assert built.num_spilled == 0 and built.shared < 227 * 1024


def job(
    kernel: str,
    types: dict[str, str],
    constants: dict[str, object],
    num_warps: int,
    aligned: tuple[str, ...] = (),
) -> Job:
    """A job for the arguments that the kernel has."""
    module, name = kernel.split(":")
    arguments = getattr(import_module(module), name).arg_names
    signature = {a: types[a] for a in arguments if a not in constants}
    return Job(kernel, signature, constants, num_warps, aligned=aligned)
