"""The noise: Philox as published, the Gumbel transform to float32, and no two tokens that share it."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from eyas.ops import noise
from eyas.sampling import gumbel

MASK = 0xFFFFFFFF


def philox_by_the_paper(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """Philox4x32-10 as the paper writes it, on plain integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""From the test suite of Random123."""


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_the_reference_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, int], answer: tuple[int, ...]
) -> None:
    assert philox_by_the_paper(counter, key) == answer


def as_signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def test_philox_is_the_published_function_of_seed_position_token_and_choice() -> None:
    draw = random.Random(1)
    cases = [(0, 0, 0, 0), (2**64 - 1, MASK, 127, 40000), (1 << 32, 1, 0, 3)]
    cases += [
        (draw.getrandbits(64), draw.getrandbits(31), draw.randrange(128), draw.randrange(40000))
        for _ in range(200)
    ]
    words = noise.philox(
        torch.tensor([as_signed(c[0]) for c in cases]),
        torch.tensor([c[1] for c in cases]),
        torch.tensor([c[2] for c in cases]),
        torch.tensor([[c[3]] for c in cases]),
    )
    for row, (seed, position, choice, counter) in zip(words[:, 0].tolist(), cases, strict=True):
        key = (seed & MASK, seed >> 32)
        assert tuple(row) == philox_by_the_paper((position, counter, choice, 0), key)


def test_the_noise_of_a_token_is_the_gumbel_of_its_own_lane() -> None:
    """Position in word 0, id // 4 in word 1, choice in word 2; the lane is id % 4."""
    vocab_size, seed, position, choice = 103, 987654321987654321, 41, 3
    got = gumbel(torch.tensor([seed]), torch.tensor([position]), torch.tensor([choice]), vocab_size)
    assert got.shape == (1, vocab_size) and got.dtype == torch.float32
    for token in range(vocab_size):
        counter = (position, token // 4, choice, 0)
        word = philox_by_the_paper(counter, (seed & MASK, seed >> 32))[token % 4]
        exact = -math.log(-math.log1p(-(word + 0.5) * 2.0**-32))
        assert got[0, token].item() == pytest.approx(exact, rel=2e-5, abs=2e-5)


def test_the_extremes_are_finite_and_within_the_span() -> None:
    words = torch.tensor([[0, 1, 2, 2**31, 2**32 - 2, 2**32 - 1]])
    values = noise._to_gumbel(words)
    assert bool(values.isfinite().all())
    assert values.max().item() == pytest.approx(-math.log(2.0**-33), rel=1e-6)
    assert bool((values[0, 1:] <= values[0, :-1]).all())
    assert (values.max() - values.min()).item() < noise.GUMBEL_SPAN


def test_noise_at_some_ids_is_the_noise_of_all() -> None:
    keys = (torch.tensor([3, -9]), torch.tensor([5, 0]), torch.tensor([0, 2]))
    everything = gumbel(*keys, 301)
    ids = torch.tensor([[0, 300, 7, 8, 8], [1, 2, 3, 4, 299]])
    assert torch.equal(noise.gumbel_at(*keys, ids), everything.gather(1, ids))


def test_a_row_of_noise_does_not_depend_on_the_rows_beside_it() -> None:
    seeds, positions, choices = torch.arange(-5, 60), torch.arange(65) * 7, torch.arange(65) % 3
    together = gumbel(seeds, positions, choices, 257)
    for row in (0, 13, 64):
        own = slice(row, row + 1)
        assert torch.equal(gumbel(seeds[own], positions[own], choices[own], 257)[0], together[row])


def moments(values: torch.Tensor) -> tuple[float, float]:
    x = values.double().numpy()
    return float(np.mean(x)), float(np.var(x))


@pytest.mark.parametrize("what", ["seeds", "positions", "choices", "high seeds", "ids"])
def test_the_noise_is_standard_gumbel_along_every_axis(what: str) -> None:
    count = 400_000
    axis, zero = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    values = {
        "seeds": lambda: gumbel(axis, zero, zero, 4)[:, 1],
        "positions": lambda: gumbel(zero, axis, zero, 4)[:, 1],
        "choices": lambda: gumbel(zero, zero, axis, 4)[:, 1],
        "high seeds": lambda: gumbel(axis << 32, zero, zero, 4)[:, 1],
        "ids": lambda: gumbel(zero[:4], torch.arange(4), zero[:4], count // 4).reshape(-1),
    }[what]()
    mean, variance = moments(values)
    assert mean == pytest.approx(0.5772157, abs=5 * math.sqrt(1.6449 / count))
    assert variance == pytest.approx(math.pi**2 / 6, abs=0.02)
    median = -math.log(math.log(2))
    below = float((values < median).double().mean())
    assert below == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(count))
    # neighbours along the axis are uncorrelated
    ranks = torch.exp(-torch.exp(-values.double()))
    correlation = torch.corrcoef(torch.stack((ranks[1:], ranks[:-1])))[0, 1].item()
    assert abs(correlation) < 5 / math.sqrt(count)
