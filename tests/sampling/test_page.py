"""docs/sampling.md, implemented again from its text in plain Python, agrees with its vectors and with
eyas."""

from __future__ import annotations

import json
import math
import random
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from eyas.core import SamplingParams
from eyas.sampling import sample
from tests.sampling.rows import Row, assemble

PAGE = Path(__file__).parents[2] / "docs" / "sampling.md"
NEVER = -math.inf


def vectors() -> dict[str, Any]:
    found = re.search(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def f32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def word_of(seed: int, position: int, choice: int, token_id: int) -> int:
    counter = [position, token_id // 4, choice, 0]
    key = [seed % 2**32, (seed % 2**64) >> 32]
    for _ in range(10):
        low, high = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (high >> 32) ^ counter[1] ^ key[0],
            high % 2**32,
            (low >> 32) ^ counter[3] ^ key[1],
            low % 2**32,
        ]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter[token_id % 4]


def noise_of(seed: int, position: int, choice: int, token_id: int) -> float:
    word = word_of(seed, position, choice, token_id)
    uniform = min(f32(f32(f32(word) + 0.5) * 2.0**-32), 1 - 2.0**-24)
    return -math.log(-math.log1p(-uniform))


def processed(
    logits: Sequence[float],
    prompt: Sequence[int],
    output: Sequence[int],
    mask: Sequence[int],
    params: SamplingParams,
) -> list[float]:
    x = [value + params.logit_bias.get(i, 0.0) for i, value in enumerate(logits)]
    for i in {*prompt, *output}:
        x[i] = x[i] / params.repetition_penalty if x[i] > 0 else x[i] * params.repetition_penalty
    for i in set(output):
        x[i] -= params.frequency_penalty * output.count(i) + params.presence_penalty
    x = [value if allowed else NEVER for value, allowed in zip(x, mask, strict=True)]
    if params.temperature == 0:
        return x
    x = [value / params.temperature for value in x]
    if params.top_k:
        threshold = sorted(x, reverse=True)[min(params.top_k, len(x)) - 1]
        x = [value if value >= threshold else NEVER for value in x]
    if params.top_p < 1:
        total = sum(math.exp(value - max(x)) for value in x)
        likely = [math.exp(value - max(x)) / total for value in x]
        mass = 0.0
        for least in sorted(likely, reverse=True):
            mass += least
            if mass >= params.top_p:
                break
        x = [value if p >= least else NEVER for value, p in zip(x, likely, strict=True)]
    if params.min_p:
        threshold = max(x) + math.log(params.min_p)
        x = [value if value >= threshold else NEVER for value in x]
    return x


def choose(x: Sequence[float], params: SamplingParams, position: int, choice: int) -> int:
    assert params.seed is not None
    if params.temperature > 0:
        noise = [noise_of(params.seed, position, choice, i) for i in range(len(x))]
        x = [value + noise[i] for i, value in enumerate(x)]
    return x.index(max(x))


def chosen(made: Sequence[Row]) -> list[int]:
    """By eyas."""
    logits_RV, rows, params, mask_RK = assemble(made)
    return sample(logits_RV, rows, params, mask_RK).tolist()


def test_the_words_and_the_noise_are_those_of_the_page() -> None:
    given = vectors()
    for entry in given["philox"]:
        word = entry.pop("word")
        assert f"{word_of(**entry):08x}" == word
    noise = given["noise"]
    values, first = noise.pop("values"), noise.pop("first_token_id")
    for i, value in enumerate(values, first):
        assert noise_of(token_id=i, **noise) == pytest.approx(value, abs=1e-6)


def test_the_choices_are_those_of_the_page_and_of_eyas() -> None:
    given = vectors()["choices"]
    told = given["parameters"]
    told["logit_bias"] = {int(token): bias for token, bias in told["logit_bias"].items()}
    params = SamplingParams(**told)
    logits, prompt, output, mask = (given[k] for k in ("logits", "prompt", "output", "mask"))
    x = processed(logits, prompt, output, mask, params)
    position = len(prompt) + len(output) - 1
    expected = [choose(x, params, position, choice) for choice in range(16)]
    assert expected == given["tokens_of_choices_0_to_15"]
    assert len(set(expected)) > 2
    allowed = [bool(bit) for bit in mask]
    rows = [
        Row(logits, params, prompt, output, seed=told["seed"], choice=choice, mask=allowed)
        for choice in range(16)
    ]
    assert chosen(rows) == expected


@pytest.mark.parametrize("case", range(40))
def test_other_parameters_choose_alike(case: int) -> None:
    draw = random.Random(case)
    params = SamplingParams(
        temperature=draw.choice([0.0, 0.5, 1.0, 1.7]),
        top_k=draw.choice([0, 0, 1, 3, 20]),
        top_p=draw.choice([1.0, 0.9, 0.5]),
        min_p=draw.choice([0.0, 0.1]),
        repetition_penalty=draw.choice([1.0, 1.2, 0.8]),
        frequency_penalty=draw.choice([0.0, 0.5, -0.3]),
        presence_penalty=draw.choice([0.0, 0.7]),
        logit_bias=draw.choice([{}, {3: 2.0, 11: -5.0}]),
        seed=draw.getrandbits(63),
    )
    assert params.seed is not None
    logits = [f32(draw.gauss(0, 2)) for _ in range(40)]
    prompt = draw.choices(range(40), k=draw.randint(1, 6))
    output = draw.choices(range(40), k=draw.randint(0, 6))
    mask = [int(draw.random() < 0.8) for _ in range(39)] + [1]
    x = processed(logits, prompt, output, mask, params)
    position = len(prompt) + len(output) - 1
    expected = [choose(x, params, position, choice) for choice in range(8)]
    allowed = [bool(bit) for bit in mask]
    rows = [
        Row(logits, params, prompt, output, seed=params.seed, choice=choice, mask=allowed)
        for choice in range(8)
    ]
    assert chosen(rows) == expected
