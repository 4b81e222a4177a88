"""The least time of a step counts what must be read, once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import pytest
import torch

from eyas.models import ModelSpec, num_parameters
from eyas_bench import limits
from eyas_bench.limits import (
    COPY_BYTES_PER_SECOND,
    expected_experts,
    least_step_ms,
    parameter_shapes,
    weight_bytes_read,
)
from eyas_bench.shapes import SHAPES, dummy_layouts


@pytest.fixture(scope="module", autouse=True)
def _parameters_are_listed_once() -> Iterator[None]:
    """List those of each shape once, of which a model with many experts has tens of thousands."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(limits, "parameter_shapes", cache(parameter_shapes))
        yield


def weights_read(spec: ModelSpec, num_rows: int) -> float:
    """The number of weights that a step reads, each of a byte."""
    return weight_bytes_read(spec, torch.int8, num_rows)


def test_a_dense_step_reads_all_weights_but_the_embedding_and_norms() -> None:
    spec = SHAPES["llama-3.1-8b"].model
    norms = (2 * spec.num_layers + 1) * spec.hidden_size
    embedding = spec.vocab_size * spec.hidden_size
    expected = num_parameters(spec) - embedding - norms
    assert weights_read(spec, 1) == weights_read(spec, 64) == expected
    cache = 64 * 1000 * 2 * 8 * 128 * 2 * 32
    found = least_step_ms(spec, torch.bfloat16, num_rows=64, num_sequences=64, length=1000)
    assert found == pytest.approx(1000 * (2 * expected + cache) / COPY_BYTES_PER_SECOND, rel=1e-4)


def test_a_window_bounds_what_is_read_of_the_cache() -> None:
    spec = SHAPES["gpt-oss-20b"].model
    times = [
        least_step_ms(spec, torch.bfloat16, num_rows=1, num_sequences=64, length=length)
        for length in (0, 100, 1100)
    ]
    position = 64 * 2 * 8 * 64 * 2 * 12 / COPY_BYTES_PER_SECOND * 1000  # of half the layers
    assert times[1] - times[0] == pytest.approx(2 * 100 * position, abs=1e-3)
    assert times[2] - times[1] == pytest.approx((1000 + 28) * position, abs=1e-3)


def test_compressed_entries_are_read_as_they_are_chosen() -> None:
    spec = SHAPES[
        "deepseek-v4-4-layers"
    ].model  # two layers of groups of 128, a sparse one, another
    assert [each.rate for each in spec.compressed] == [128, 128, 4, 128]
    times = [
        least_step_ms(spec, torch.bfloat16, num_rows=1, num_sequences=256, length=length)
        for length in (0, 128, 1280, 12800)
    ]
    number = 256 * 2 / COPY_BYTES_PER_SECOND * 1000
    keys, index = 512 * number, 128 * number
    assert times[1] - times[0] == pytest.approx(
        4 * 128 * keys + 3 * keys + 32 * (keys + index), abs=1e-3
    )
    assert times[2] - times[1] == pytest.approx(27 * keys + 288 * (keys + index), abs=1e-3)
    more = 3 * 90 * keys + (512 - 320) * keys + 2880 * index  # the indexer chooses 512 of 3200
    assert times[3] - times[2] == pytest.approx(more, abs=1e-3)


def test_streams_and_all_products_of_compressed_attention_are_read() -> None:
    spec = SHAPES["deepseek-v4-4-layers"].model
    hidden, num = spec.hidden_size, spec.num_layers
    attention = sum(
        math.prod(shape) for name, shape in parameter_shapes(spec).items() if ".attention." in name
    )
    layer = 3 * 2048 * hidden
    experts = num * (expected_experts(256, 6, 1) * layer + layer + 256 * hidden)
    head = spec.vocab_size * hidden
    connections = 2 * num * 24 * 4 * hidden * 4  # in float32
    found = weights_read(spec, 1) - experts - head - connections
    assert found == pytest.approx(attention, rel=1e-3)  # norms, biases and corrections are not


def test_experts_are_read_as_they_are_drawn() -> None:
    assert expected_experts(8, 2, 1) == pytest.approx(2)
    assert expected_experts(8, 8, 5) == 8
    drawn = [len(torch.rand(16, 32).topk(4).indices.unique()) for _ in range(2000)]
    assert sum(drawn) / len(drawn) == pytest.approx(expected_experts(32, 4, 16), rel=0.01)
    spec = SHAPES["qwen3-30b-a3b"].model
    assert num_parameters(spec) == pytest.approx(30.5e9, rel=0.01)
    assert weights_read(spec, 1) == pytest.approx(3.0e9, rel=0.03)
    assert weights_read(spec, 10_000) == pytest.approx(30.2e9, rel=0.01)


def test_packed_weights_are_counted_as_they_are_stored() -> None:
    dtype = torch.bfloat16
    spec = SHAPES["llama-3.1-8b"].model
    layouts = dummy_layouts(spec, "fp8")
    head = spec.vocab_size * spec.hidden_size
    layers = weights_read(spec, 1) - head
    assert weight_bytes_read(spec, dtype, 1) == 2 * (head + layers)
    packed = weight_bytes_read(spec, dtype, 1, layouts)
    assert packed == 2 * head + layers * (1 + 4 / 128**2)
    spec = SHAPES["gpt-oss-120b"].model
    layouts = dummy_layouts(spec, "mxfp4")
    assert all(".experts." in name for name in layouts)
    experts = 36 * 4 * 3 * 2880 * 2880  # of a row
    rest = weights_read(spec, 1) - experts
    assert weight_bytes_read(spec, dtype, 1, layouts) == pytest.approx(
        2 * rest + experts * (16 + 1) / 32, rel=0.01
    )
    with pytest.raises(ValueError, match="mxfp4 fits no weight of LlamaForCausalLM"):
        dummy_layouts(SHAPES["llama-3.1-8b"].model, "mxfp4")
    with pytest.raises(ValueError, match=r"'int3' is unknown; there are fp8, "):
        dummy_layouts(spec, "int3")


def test_states_are_read_and_written_and_delta_nets_have_their_own_products() -> None:
    spec = SHAPES["qwen3-next-80b-a3b"].model
    assert num_parameters(spec) == pytest.approx(79.7e9, rel=0.01)
    assert weights_read(spec, 1) == pytest.approx(3.6e9, rel=0.1)
    times = [
        least_step_ms(spec, torch.bfloat16, num_rows=64, num_sequences=num, length=0)
        for num in (0, 64)
    ]
    state = 36 * (4 * 32 * 128 * 128 + 2 * 3 * (8192 + 64))
    assert times[1] - times[0] == pytest.approx(
        1000 * 2 * 64 * state / COPY_BYTES_PER_SECOND, rel=1e-3
    )
