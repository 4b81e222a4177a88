"""A row's bits depend on that row alone: every layer operation, any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from eyas.layers.compute import Compute
from eyas.layers.embedding import Embedding
from eyas.layers.linear import Linear, LogitsHead
from eyas.layers.mlp import GatedMlp
from eyas.layers.norm import RMSNorm
from eyas.layers.rope import RopeSpec, RopeTable
from eyas.layers.row_probe import find_row_order
from eyas.ops.gate import Activation, gate
from eyas.ops.rotate_and_store import rotate
from tests.thorough import drawn

NUM_ROWS = 300
CPU = torch.device("cpu")
DTYPES = [torch.bfloat16, torch.float32]


@pytest.fixture(params=[1, 2, 3], ids=["1 thread", "2 threads", "3 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def random(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def assert_rows_are_independent(
    operation: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    counts: list[int],
    minimum: int = 2,
) -> None:
    """Each row of `x` gives the same bits in calls of `minimum` rows and in calls of any count."""
    pairs = [operation(x[i : i + minimum]) for i in range(0, x.shape[0], minimum)]
    expected = torch.cat(pairs)
    for count in counts:
        offset = (count * 7) % (x.shape[0] - count + 1)
        found = operation(x[offset : offset + count])
        assert torch.equal(found, expected[offset : offset + count]), f"differs at {count} rows"


SOME_COUNTS = [2, 3, 5, 8, 9, 15, 16, 17, 31, 33, 47, 64, 65, 95, 127, 128, 200, 255, 299, 300]
MANY_COUNTS = drawn([*range(2, 50), *SOME_COUNTS], [*range(2, NUM_ROWS + 1)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("activation", "size"),
    [("silu", 704), ("silu", 1001), ("gelu_tanh", 100), ("clamped_swiglu", 1001)],
)
def test_the_gated_activation_is_row_invariant(
    threads: int, activation: Activation, size: int, dtype: torch.dtype
) -> None:
    x = random(NUM_ROWS, 2 * size, dtype=dtype, scale=3)
    assert_rows_are_independent(lambda rows: gate(rows, activation), x, MANY_COUNTS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [320, 100, 1001])
def test_the_norm_is_row_invariant(threads: int, size: int, dtype: torch.dtype) -> None:
    norm = RMSNorm(size, 1e-6, Compute(dtype, CPU))
    norm.parameter().copy_(random(size, dtype=torch.float32))
    assert_rows_are_independent(norm, random(NUM_ROWS, size, dtype=dtype), MANY_COUNTS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 20])
def test_the_rotation_is_row_invariant(threads: int, head_dim: int, dtype: torch.dtype) -> None:
    table = RopeTable(RopeSpec("default", 1e4, head_dim), NUM_ROWS, Compute(dtype, CPU))
    x = random(NUM_ROWS, 8 * head_dim + 1, dtype=dtype)
    x[:, -1] = torch.arange(NUM_ROWS) % 200

    def operation(rows: torch.Tensor) -> torch.Tensor:
        angles = table.at(rows[:, -1].long()).rows()
        return rotate(rows[:, :-1].unflatten(1, (8, head_dim)), *angles)

    assert_rows_are_independent(operation, x, MANY_COUNTS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_embedding_copies_rows(dtype: torch.dtype) -> None:
    embedding = Embedding(50, 33, Compute(dtype, CPU))
    embedding.weight_VD.copy_(random(50, 33, dtype=dtype))
    tokens_T = torch.arange(NUM_ROWS) % 50
    assert torch.equal(embedding(tokens_T), embedding.weight_VD[tokens_T])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(640, 320), (320, 704), (33, 100), (64, 2048)], ids=str)
def test_a_product_is_row_invariant_at_the_order_found(
    threads: int, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    report = find_row_order([shape], dtype, NUM_ROWS)
    assert report.exact, report.reason
    linear = Linear(shape[1], {"only": shape[0]}, Compute(dtype, CPU, report.order), bias=True)
    for view in linear.parameters().values():
        view.copy_(random(*view.shape, dtype=dtype, scale=0.1))
    linear.seal()
    order = report.order
    counts = sorted({order.pad(count) for count in SOME_COUNTS if order.pad(count) <= NUM_ROWS})
    x = random(order.pad(NUM_ROWS), shape[1], dtype=dtype)
    assert_rows_are_independent(linear, x, counts, minimum=order.pad(1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_feed_forward_block_is_row_invariant(threads: int, dtype: torch.dtype) -> None:
    shapes = [(2 * 352, 96), (96, 352)]
    order = find_row_order(shapes, dtype, NUM_ROWS).order
    mlp = GatedMlp(96, 352, Compute(dtype, CPU, order), bias=False)
    for view in mlp.parameters().values():
        view.copy_(random(*view.shape, dtype=dtype, scale=0.2))
    mlp.seal()
    counts = sorted({order.pad(count) for count in SOME_COUNTS if order.pad(count) <= NUM_ROWS})
    x = random(order.pad(NUM_ROWS), 96, dtype=dtype)
    assert_rows_are_independent(mlp, x, counts, minimum=order.pad(1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_head_is_row_invariant_and_gives_float32(threads: int, dtype: torch.dtype) -> None:
    order = find_row_order([], dtype, NUM_ROWS, heads=[(999, 96)]).order
    head = LogitsHead(999, 96, Compute(dtype, CPU, order))
    for block in head.parameters():
        block.copy_(random(*block.shape, dtype=dtype))
    head.seal()
    counts = sorted({order.pad(count) for count in SOME_COUNTS if order.pad(count) <= NUM_ROWS})
    x = random(order.pad(NUM_ROWS), 96, dtype=dtype)
    assert head(x[: order.pad(2)]).dtype == torch.float32
    assert_rows_are_independent(head, x, counts, minimum=order.pad(1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elementwise_layers_are_row_invariant_on_a_gpu(dtype: torch.dtype) -> None:
    gpu = torch.device("cuda")
    norm = RMSNorm(1001, 1e-6, Compute(dtype, gpu))
    table = RopeTable(RopeSpec("default", 1e4, 64), 512, Compute(dtype, gpu))
    x = random(NUM_ROWS, 2048, dtype=dtype).to(gpu)
    angles = table.at(torch.zeros(1, dtype=torch.int64, device=gpu) + 7).rows()
    counts = list(range(1, NUM_ROWS + 1, 7))
    for activation in ("silu", "gelu_tanh"):
        gated = partial(gate, activation=activation)
        assert_rows_are_independent(gated, x, counts, minimum=1)
    assert_rows_are_independent(norm, x[:, :1001].contiguous(), counts, minimum=1)
    heads = x.unflatten(1, (32, 64))
    assert_rows_are_independent(lambda rows: rotate(rows, *angles), heads, counts, minimum=1)
