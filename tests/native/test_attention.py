"""Attention by compiled code: right at every width, with the same bits in any call and any thread."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eyas.native.attention import CompiledAttention, Queries, compiled, compiled_attention

pytestmark = pytest.mark.skipif(
    compiled().library is None, reason="there is no C compiler, or the processor has no vectors"
)
LENGTH = 83


def attention(**arguments: Any) -> CompiledAttention:
    found = compiled_attention(torch.float32, torch.device("cpu"), **arguments)
    assert found is not None
    return found


def scene(heads: tuple[int, int], dim: int, sides: int) -> tuple[torch.Tensor, ...]:
    """Queries of all positions of one text, its keys and values in slots, and the slots, which others'
    infinities surround."""
    generator = torch.Generator().manual_seed(dim)
    q_TNH = torch.randn((LENGTH, heads[0], dim), generator=generator)
    kv_S2GH = torch.full((2 * LENGTH, sides, heads[1], dim), float("nan"))
    slots_L = torch.randperm(len(kv_S2GH), generator=generator)[:LENGTH]
    kv_S2GH[slots_L] = torch.randn((LENGTH, sides, heads[1], dim), generator=generator)
    return q_TNH, kv_S2GH, slots_L


def run(
    attend: CompiledAttention,
    tensors: tuple[torch.Tensor, ...],
    rows: list[int],
    value_dim: int,
    sinks_N: torch.Tensor | None = None,
) -> torch.Tensor:
    q_TNH, kv_S2GH, slots_L = tensors
    out_TND = torch.zeros(len(q_TNH), q_TNH.shape[1], value_dim)
    rows_1Q = torch.tensor([rows])
    attend(Queries(slots_L.unsqueeze(0), rows_1Q, rows_1Q), q_TNH, kv_S2GH, out_TND, sinks_N)
    return out_TND[rows]


def expected(
    tensors: tuple[torch.Tensor, ...],
    seen: torch.Tensor,
    scale: float,
    value_dim: int,
    sinks_N: torch.Tensor,
) -> torch.Tensor:
    q_TNH, kv_S2GH, slots_L = tensors
    per_kv = q_TNH.shape[1] // kv_S2GH.shape[2]
    k_LNH, v_LNH = kv_S2GH[slots_L][:, [0, -1]].repeat_interleave(per_kv, 2).double().unbind(1)
    scores = torch.einsum("qnh,lnh->nql", q_TNH.double(), k_LNH) * scale
    scores.masked_fill_(~seen, -torch.inf)
    sinks = sinks_N.double().view(-1, 1, 1).expand(-1, LENGTH, 1)
    weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    return torch.einsum("nql,lnh->qnh", weights, v_LNH[..., :value_dim])


@pytest.mark.parametrize("window", [None, 1, 40])
@pytest.mark.parametrize(
    ("heads", "dim", "value_dim"),
    [((6, 2), 64, 64), ((4, 4), 24, 24), ((3, 1), 7, 7), ((64, 1), 72, 52), ((5, 5), 200, 200)],
    ids=str,
)
def test_it_agrees_with_a_softmax_in_float64_and_each_query_with_itself(
    heads: tuple[int, int], dim: int, value_dim: int, window: int | None
) -> None:
    tensors = scene(heads, dim, 2 if dim == value_dim else 1)
    first, scale = (5 if dim == 24 else 0), 1.3 * dim**-0.5
    attend = attention(value_dim=value_dim, scale=scale, window=window, first_position=first)
    positions, columns = torch.arange(LENGTH).unsqueeze(1), torch.arange(LENGTH)
    seen = (columns <= positions) & (columns > positions - (window or LENGTH))
    seen &= (columns >= first) | (columns == positions)
    sinks_N = torch.linspace(-4, 9, heads[0])
    every = list(range(LENGTH))
    whole = run(attend, tensors, every, value_dim, sinks_N)
    torch.testing.assert_close(
        whole.double(), expected(tensors, seen, scale, value_dim, sinks_N), rtol=1e-5, atol=1e-5
    )
    for rows in ([0], [82], [31, 32], [40, 7, 80], every[3:60], every[::-1]):
        assert torch.equal(run(attend, tensors, rows, value_dim, sinks_N), whole[rows]), rows


def test_threads_change_no_bit() -> None:
    tensors = scene((6, 2), 64, 2)
    attend, rows = attention(value_dim=64, scale=0.125), list(range(LENGTH))
    alone, threads = run(attend, tensors, rows, 64), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(run(attend, tensors, rows, 64), alone)
    finally:
        torch.set_num_threads(threads)


def test_a_query_that_is_no_number_stays_alone() -> None:
    tensors = scene((6, 2), 64, 2)
    attend, rows = attention(value_dim=64, scale=0.125), list(range(LENGTH))
    clean = run(attend, tensors, rows, 64)
    tensors[0][7], tensors[0][9] = float("nan"), float("inf")
    found = run(attend, tensors, rows, 64)
    others = [row for row in rows if row not in (7, 9)]
    assert torch.equal(found[others], clean[others])
    assert found[7].isnan().all() and not found[9].isfinite().any()


@pytest.mark.parametrize("dim", [64, 36])
def test_a_cache_of_bfloat16_has_the_bits_of_its_numbers(dim: int) -> None:
    q_TNH, kv_S2GH, slots_L = scene((6, 2), dim, 2)
    halves, rows = kv_S2GH.bfloat16(), list(range(LENGTH))
    attend = attention(value_dim=dim, scale=0.125)
    found = run(attend, (q_TNH, halves, slots_L), rows, dim)
    assert torch.equal(found, run(attend, (q_TNH, halves.float(), slots_L), rows, dim))


def test_other_types_are_left_to_torch() -> None:
    assert compiled_attention(torch.float16, torch.device("cpu"), value_dim=8, scale=1.0) is None
