"""Norms, rotations and gates by compiled code: those of the torch bodies, for a row by itself."""

from __future__ import annotations

import pytest
import torch

from eyas.native.rows import DTYPES, compiled, compiled_rows
from eyas.ops.add_norm import add_norm, new_weight
from eyas.ops.gate import gate
from eyas.ops.join import join
from eyas.ops.rotate_and_store import Angles, HeadNorm, KVDestination, rotate_and_store

pytestmark = pytest.mark.skipif(
    compiled().library is None, reason="there is no C compiler, or the processor has no vectors"
)
CPU = torch.device("cpu")
SIZES = (2, 30, 33, 64, 320, 1027)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    tolerance = 3e-6 if one.dtype == torch.float32 else 1e-2
    return torch.allclose(one.float(), other.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("has_parts", [True, False])
@pytest.mark.parametrize("has_weight", [True, False])
def test_norms_are_those_of_torch(
    dtype: torch.dtype, size: int, has_parts: bool, has_weight: bool
) -> None:
    stream, parts = random(7, size, dtype=dtype), random(7, size, seed=1, dtype=dtype)
    weight = new_weight(size, dtype, CPU)
    weight[0] = random(size, seed=2)
    arguments = (parts if has_parts else None, weight if has_weight else None, 1e-5)
    (stream_now, found), expected = (
        add_norm(stream, *arguments),
        add_norm.by_torch(stream, *arguments),
    )
    assert torch.equal(stream_now, expected[0]) and is_near(found, expected[1])
    assert has_parts or stream_now is stream
    for row in range(7):
        own = None if arguments[0] is None else arguments[0][row : row + 1]
        alone = add_norm(stream[row : row + 1], own, *arguments[1:])
        assert torch.equal(alone[1], found[row : row + 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_gates_are_those_of_torch(dtype: torch.dtype, size: int) -> None:
    columns = random(5, 2 * size + 3, dtype=dtype)
    columns[0, :2] = torch.tensor([1e4, -1e4])
    gate_up = columns[:, : 2 * size]  # rows stand apart
    found = gate(gate_up, "silu")
    assert is_near(found, gate.by_torch(gate_up, "silu"))
    for column in range(size):  # the place of a number in a vector does not matter
        one = gate(gate_up[:, [column, size + column]], "silu")
        assert torch.equal(one, found[:, column : column + 1])


def test_rows_that_stand_apart_have_the_same_bits() -> None:
    """A single row counts as contiguous, the same row among others does not."""
    wide, weight = random(6, 2 * 48), new_weight(48, torch.float32, CPU)
    stream, parts = wide[:, :48], wide[:, 48:]
    _, norms = add_norm(stream, parts, weight, 1e-6)
    _, alone = add_norm(stream[2:3], parts[2:3], weight, 1e-6)
    _, of_parts = add_norm(stream, torch.stack([parts, parts]), weight, 1e-6)
    _, of_own = add_norm(stream[2:3], torch.stack([parts[2:3], parts[2:3]]), weight, 1e-6)
    assert torch.equal(alone, norms[2:3]) and torch.equal(of_own, of_parts[2:3])


def stored(
    dtype: torch.dtype,
    heads: tuple[int, int, int],
    *,
    has_norm: bool,
    by_torch: bool,
    rows: int = 9,
) -> tuple[torch.Tensor, torch.Tensor]:
    num_query, num_kv, dim = heads
    heads_TX = random(10, (num_query + 2 * num_kv) * dim + 5, dtype=dtype)[:rows, :-5]
    angles = Angles(random(50, 2, 1, dim, seed=1, dtype=dtype), torch.arange(rows) * 5)
    kv_S2GH = torch.zeros(40, 2, num_kv, dim, dtype=dtype)
    slots_T = torch.randperm(40, generator=torch.Generator().manual_seed(3))[:rows]
    norm = None
    if has_norm:
        weights = random(dim, seed=4, dtype=dtype), random(dim, seed=5, dtype=dtype)
        norm = HeadNorm.of(1e-6, *weights, num_query, num_kv)
    run = rotate_and_store.by_torch if by_torch else rotate_and_store
    destination = KVDestination.of(kv_S2GH, slots_T)
    return run(heads_TX, angles, destination, num_query, num_kv, norm), kv_S2GH[slots_T]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [(4, 4, 2), (6, 2, 18), (3, 1, 40), (10, 5, 64)], ids=str)
@pytest.mark.parametrize("has_norm", [True, False])
def test_heads_are_rotated_and_stored_as_by_torch(
    dtype: torch.dtype, heads: tuple[int, int, int], has_norm: bool
) -> None:
    found = stored(dtype, heads, has_norm=has_norm, by_torch=False)
    expected = stored(dtype, heads, has_norm=has_norm, by_torch=True)
    for one, other in zip(found, expected, strict=True):
        assert is_near(one, other) and (has_norm or torch.equal(one, other))
    for rows in (1, 4):
        fewer = stored(dtype, heads, has_norm=has_norm, by_torch=False, rows=rows)
        assert all(torch.equal(one, whole[:rows]) for one, whole in zip(fewer, found, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_only_finite_numbers_are_stored(dtype: torch.dtype) -> None:
    heads_TX = random(3, 6 * 8, dtype=dtype)
    heads_TX[0, 16:48:3] = torch.tensor([torch.inf, -torch.inf, torch.nan]).repeat(4)[:11]
    angles = Angles(random(4, 2, 1, 8, dtype=dtype), torch.arange(3))
    kv, other = (torch.full((8, 2, 2, 8), torch.nan, dtype=dtype) for _ in range(2))
    slots = torch.tensor([5, 0, 2])
    rotate_and_store(heads_TX, angles, KVDestination.of(kv, slots), 2, 2, None)
    rotate_and_store.by_torch(heads_TX, angles, KVDestination.of(other, slots), 2, 2, None)
    assert kv[slots].isfinite().all() and torch.equal(kv[slots], other[slots])
    assert kv[[1, 3, 4, 6, 7]].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_change_no_bit(dtype: torch.dtype) -> None:
    stream, gate_up = random(64, 1030, dtype=dtype), random(64, 2060, seed=1, dtype=dtype)
    found = []
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        try:
            rotated = stored(dtype, (16, 8, 64), has_norm=True, by_torch=False, rows=10)
            found.append([add_norm(stream, stream, None, 1e-6)[1], gate(gate_up, "silu"), *rotated])
        finally:
            torch.set_num_threads(1)
    assert all(map(torch.equal, *found))


def test_other_types_and_gradients_are_left_to_torch() -> None:
    half, single = random(2, 4).half(), random(2, 4)
    assert compiled_rows(half) is None and compiled_rows(single, half) is None
    assert compiled_rows(single.requires_grad_()) is None
    assert compiled_rows(random(2, 4), None) is not None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("zero_first", [True, False])
@pytest.mark.parametrize("embedding_first", [True, False])
@pytest.mark.parametrize("weights", [(True, True), (True, False), (False, False)])
def test_joined_rows_are_those_of_torch(
    dtype: torch.dtype, zero_first: bool, embedding_first: bool, weights: tuple[bool, bool]
) -> None:
    tokens, positions = torch.tensor([3, 0, 11, 3]), torch.tensor([0, 1, 2, 90])
    embedding, features = random(12, 44, dtype=dtype), random(4, 66, seed=1, dtype=dtype)
    own = [new_weight(size, dtype, CPU) for size in (44, 66)]
    for each in own:
        each[0] = random(each.shape[1], seed=2)
    of = [each if wanted else None for each, wanted in zip(own, weights, strict=True)]
    arguments = (*of, 1e-5, zero_first, embedding_first)
    found = join(tokens, positions, embedding, features, *arguments)
    expected = join.by_torch(tokens, positions, embedding, features, *arguments)
    assert found.shape == expected.shape and is_near(found, expected)
    for row in range(4):
        one = slice(row, row + 1)
        alone = join(tokens[one], positions[one], embedding, features[one], *arguments)
        assert torch.equal(alone, found[one])
