"""The choice against the exact softmax, over many seeds; and no two choices that share luck.

A G-test compares counts with expectations; its limit is the chi-square quantile at one in ten
thousand. Seeds, positions and choices are fixed, so a run is the same every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from eyas.core import SamplingParams
from eyas.sampling import gumbel, process
from eyas.sampling.process import SamplingRows
from tests.sampling.rows import Row, assemble, choose
from tests.thorough import drawn

NUM_DRAWS = drawn(240_000, 1_000_000)
CHUNK = 100_000
Z = 3.719  # one in ten thousand


def chi_square_limit(freedom: int) -> float:
    """Wilson and Hilferty's approximation of the quantile."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + Z * math.sqrt(part)) ** 3


def test_the_limit_is_the_chi_square_quantile() -> None:
    assert chi_square_limit(10) == pytest.approx(35.56, rel=0.02)
    assert chi_square_limit(100) == pytest.approx(161.3, rel=0.02)


Axes = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""seed, position, choice of each draw."""


def draw_choices(
    processed_V: torch.Tensor, seed: torch.Tensor, position: torch.Tensor, choice: torch.Tensor
) -> torch.Tensor:
    """`choose` for rows that have the same processed logits and these keys."""
    _, rows, params, _ = assemble([Row(processed_V.tolist(), SamplingParams())])
    chosen = []
    for start in range(0, len(seed), CHUNK):
        part = slice(start, start + CHUNK)
        count = len(seed[part])
        params.seed_B, params.choice_B = seed[part], choice[part]
        params.temperature_B = torch.ones(count)
        keyed = SamplingRows(
            torch.arange(count), position[part], None, None, rows.history_BL, rows.length_B
        )
        chosen.append(choose(processed_V.expand(count, -1), keyed, params))
    return torch.cat(chosen)


def axes(what: str, count: int = NUM_DRAWS) -> Axes:
    axis, zero = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    return {
        "seeds": (axis, zero + 9, zero),
        "scattered seeds": (axis * 0x5851F42D4C957F2D + 11, zero + 3, zero),
        "positions": (zero + 1234567, axis, zero),
    }[what]


DISTRIBUTIONS: dict[str, Row] = {
    "plain": Row([1.0, 0.5, 0.0, -1.0, 2.0, 1.5, -3.0, 0.2, 0.1, 0.9], SamplingParams()),
    "hot, filtered": Row(
        [1.0, 0.5, 0.0, -1.0, 2.0, 1.5, -3.0, 0.2, 0.1, 0.9, 0.4],
        SamplingParams(temperature=1.7, top_k=8, top_p=0.9, min_p=0.02),
    ),
    "cold, penalised, masked": Row(
        [1.0, 0.5, 0.0, -1.0, 2.0, 1.5, -3.0, 0.2, 0.1],
        SamplingParams(
            temperature=0.6, repetition_penalty=1.3, frequency_penalty=0.4, logit_bias={2: 1.0}
        ),
        prompt=[0, 4],
        output=[4, 5, 5],
        mask=[True] * 7 + [False] * 2,
    ),
    "few of many": Row(
        [{3: 2.0, 77: 1.0, 150: 0.0, 198: 1.5}.get(i, -60.0) for i in range(200)], SamplingParams()
    ),
}


@pytest.mark.parametrize("what", ["seeds", "scattered seeds", "positions"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_choices_are_distributed_as_the_softmax(name: str, what: str) -> None:
    processed_V = process(*assemble([DISTRIBUTIONS[name]]))[0]
    count = NUM_DRAWS if what == "seeds" else NUM_DRAWS // 4
    chosen = draw_choices(processed_V, *axes(what, count))
    expected = processed_V.double().softmax(dim=0) * count
    observed = chosen.bincount(minlength=len(processed_V)).double()
    assert observed[expected == 0].sum() == 0, "a token that may not be chosen was"
    real = expected > 5
    assert observed[~real].sum() <= expected[~real].sum() + 6 * expected[~real].sum().sqrt() + 1
    o, e = observed[real], expected[real]
    g = 2 * float((o * (o.clamp(min=1e-9) / e).log()).sum())
    assert g < chi_square_limit(int(real.sum()) - 1)


NEXT: dict[str, Callable[[Axes], Axes]] = {
    "next position": lambda k: (k[0], k[1] + 1, k[2]),
    "far position": lambda k: (k[0], k[1] + 4096, k[2]),
    "next choice": lambda k: (k[0], k[1], k[2] + 1),
    "next seed": lambda k: (k[0] + 1, k[1], k[2]),
    "seed's high word": lambda k: (k[0] + (1 << 32), k[1], k[2]),
    "position and choice swapped": lambda k: (k[0], k[2] + 9, k[1]),
}


@pytest.mark.parametrize("other", NEXT)
def test_two_choices_are_independent(other: str) -> None:
    """Joint counts of the two winners against the product of their distributions."""
    size, count = 5, drawn(100_000, 300_000)
    processed_V = torch.tensor([0.5, 0.0, 1.0, -0.5, 0.2])
    keys = axes("scattered seeds", count)
    first, second = draw_choices(processed_V, *keys), draw_choices(processed_V, *NEXT[other](keys))
    assert not torch.equal(first, second)
    weight = processed_V.double().softmax(dim=0)
    expected = (weight.unsqueeze(1) * weight).reshape(-1) * count
    observed = (first * size + second).bincount(minlength=size * size).double()
    chi = float(((observed - expected) ** 2 / expected).sum())
    assert chi < chi_square_limit(size * size - 1)


@pytest.mark.parametrize(("a", "b"), [(0, 1), (0, 4), (3, 4), (2, 402)])
def test_the_noise_of_two_ids_is_independent(a: int, b: int) -> None:
    """Counts of the two uniforms in a grid of 10 by 10."""
    count = drawn(100_000, 300_000)
    seed, position, choice = axes("scattered seeds", count)
    noise = torch.cat(
        [
            gumbel(seed[i:j], position[i:j], choice[i:j], b + 1)[:, [a, b]]
            for i, j in ((k, k + 2000) for k in range(0, count // 4 if b > 100 else count, 2000))
        ]
    )
    uniform = torch.exp(-torch.exp(-noise.double()))
    cells = (uniform * 10).long().clamp(0, 9)
    observed = (cells[:, 0] * 10 + cells[:, 1]).bincount(minlength=100).double()
    expected = len(noise) / 100
    assert float(((observed - expected) ** 2 / expected).sum()) < chi_square_limit(99)


@pytest.mark.parametrize("num_live", [1, 3, 20, 199])
def test_a_shortcut_for_few_candidates_chooses_what_all_the_noise_would(num_live: int) -> None:
    """Live tokens among ones that cannot win, at every distance around the noise's span."""
    generator = torch.Generator().manual_seed(num_live)
    count, size = 500, 200
    logits = torch.full((count, size), -20.0) - 12 * torch.rand(count, size, generator=generator)
    logits[:, :num_live] = torch.randn(count, num_live, generator=generator)
    logits = logits[:, torch.randperm(size, generator=generator)]
    _, rows, params, _ = assemble([Row(logits[0].tolist(), SamplingParams())])
    seeds, zero = torch.arange(count) * 77777777777, torch.zeros(count, dtype=torch.int64)
    params.seed_B, params.choice_B, params.temperature_B = seeds, zero, torch.ones(count)
    keyed = SamplingRows(torch.arange(count), zero + 5, None, None, rows.history_BL, rows.length_B)
    want = (logits + gumbel(seeds, zero + 5, zero, size)).argmax(dim=1)
    assert torch.equal(choose(logits, keyed, params), want)
