"""The sampler with kernels against the sampler with torch operations, for every parameter there is."""

from __future__ import annotations

import random

import pytest
import torch

from eyas.core import SamplingParams
from eyas.ops.choose import choose
from eyas.ops.scale_and_filter import scale_and_filter
from eyas.sampling import process, sample
from tests.kernels.bodies import take_kernels
from tests.sampling.rows import Row, assemble
from tests.sampling.test_process import random_row
from tests.thorough import only_thorough

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu compares on the device"),
]


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler takes the CPU for a device on which kernels run."""
    take_kernels(monkeypatch, choose, scale_and_filter)


def wanted(made: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    logits, rows, params, mask = assemble(made)
    return process(logits, rows, params, mask), sample(logits, rows, params, mask)


@pytest.mark.parametrize("vocab_size", [37, 1100])
@pytest.mark.parametrize("seed", [0, *only_thorough(1)])
def test_tokens_are_those_of_the_torch_operations(
    vocab_size: int, seed: int, request: pytest.FixtureRequest
) -> None:
    """Mixtures of all features, unusual ones among them."""
    draw = random.Random(10 * vocab_size + seed)
    made = [random_row(draw, vocab_size) for _ in range(20)]
    processed, want = wanted(made)
    request.getfixturevalue("with_kernels")
    logits, rows, params, mask = assemble(made)
    before = logits.clone()
    assert torch.equal(sample(logits, rows, params, mask), want)
    assert torch.equal(logits, before)
    got = process(logits, rows, params, mask)
    assert torch.equal(got == float("-inf"), processed == float("-inf"))
    assert torch.equal(got, processed)


def plain_row(draw: random.Random, vocab_size: int) -> Row:
    params = SamplingParams(
        temperature=draw.choice([0.0, 0.7, 1.0]),
        top_k=draw.choice([0, 0, 20]),
        top_p=draw.choice([1.0, 0.9]),
        min_p=draw.choice([0.0, 0.02]),
    )
    return Row(
        [draw.gauss(0, 3) for _ in range(vocab_size)],
        params,
        seed=draw.getrandbits(64),
        mask=[draw.random() < 0.8 for _ in range(vocab_size)],
    )


def test_usual_parameters_run_on_the_raw_logits_and_a_twin_gives_the_same(
    request: pytest.FixtureRequest,
) -> None:
    draw = random.Random(6)
    made = [plain_row(draw, 1030) for _ in range(16)]
    _, want = wanted(made)
    request.getfixturevalue("with_kernels")
    logits, rows, params, mask = assemble(made)
    assert params.is_capturable
    assert torch.equal(sample(logits, rows, params, mask), want)
    assert torch.equal(sample(logits, rows, params.padded(24), mask), want)
