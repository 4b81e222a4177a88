"""The kernels of DeepSeek-V4's layers against torch: heads turned by pairs, residual streams, routes.

Legend: T rows, N heads, H head dim, M streams, D hidden size.
"""

from __future__ import annotations

import pytest
import torch

from eyas.layers.compute import Compute
from eyas.layers.rope import RopeSpec, RopeTable
from eyas.ops.add_norm import new_weight
from eyas.ops.gate import gate
from eyas.ops.rotate_heads import rotate_heads, rotate_shared
from eyas.ops.route import Routing, route
from eyas.ops.streams import StreamWeights, mix_streams, sum_streams

TOLERANCES = {torch.float32: 2e-6, torch.float16: 4e-3}
EPSILON = 1e-6


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("backwards", [False, True])
def test_heads_are_normalised_and_turned(
    dtype: torch.dtype, backwards: bool, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(1)
    wide = torch.randn(5, 3, 88, generator=generator).to(device, dtype)
    x_TNH = wide[..., 8:]  # 80 of a head, 32 of them rotated
    spec = RopeSpec("default", 10000.0, 32, is_interleaved=True)
    positions_T = torch.tensor([0, 7, 3, 99, 7], device=device)
    angles = RopeTable(spec, 100, Compute(dtype, device)).at(positions_T)
    weight = new_weight(80, dtype, device)
    weight *= 1.5
    for epsilon, own in ((None, None), (EPSILON, None), (EPSILON, weight)):
        expected = rotate_heads.by_torch(x_TNH, angles, epsilon, own, backwards=backwards)
        found = rotate_heads.by_kernel(x_TNH, angles, epsilon, own, backwards=backwards)
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCES[dtype])
        some = RopeTable(spec, 100, Compute(dtype, device)).at(positions_T[2:4])
        alone = rotate_heads.by_kernel(x_TNH[2:4], some, epsilon, own, backwards=backwards)
        assert torch.equal(alone, found[2:4])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("num_index_heads", [0, 5])
def test_queries_keys_and_an_indexers_heads_are_turned_at_once(
    dtype: torch.dtype, num_index_heads: int, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(1)
    latent_TX = torch.randn(4, 3 * 48 + 24 * num_index_heads, generator=generator)
    latent_TX = latent_TX.to(device, dtype)
    wide = torch.randn(4, 70, generator=generator).to(device, dtype)
    spec = RopeSpec("default", 10000.0, 16, is_interleaved=True)
    positions_T = torch.tensor([0, 7, 3, 99], device=device)
    angles = RopeTable(spec, 100, Compute(dtype, device)).at(positions_T)
    weight = new_weight(48, dtype, device)
    weight *= 1.5
    found, expected = wide.clone(), wide.clone()
    for own, body in ((expected, rotate_shared.by_torch), (found, rotate_shared.by_kernel)):
        heads = body(latent_TX, own[:, 8:56], weight, angles, EPSILON, 3, num_index_heads)
        if own is expected:
            expected_heads = heads
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCES[dtype])
    assert torch.equal(found[:, :8], wide[:, :8]) and torch.equal(found[:, 56:], wide[:, 56:])
    for one, other in zip(heads, expected_heads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("num_streams", "size"), [(4, 160), (2, 48), (3, 32)])
def test_streams_are_summed_and_mixed(
    dtype: torch.dtype, num_streams: int, size: int, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(2)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device)

    width, num_weights = num_streams * size, (2 + num_streams) * num_streams
    weight_WX = noise(num_weights, width) / width**0.5
    streams_TMD = noise(19, num_streams, size).to(dtype)
    parts = noise(3, 19, size)
    for number in (num_weights, num_streams):
        weights = StreamWeights(
            lambda x, n=number: x @ weight_WX[:n].T,
            weight_WX[:number],
            noise(number),
            noise(number),
            EPSILON,
        )
        norm = new_weight(size, dtype, device)
        expected, raw_TW = sum_streams.by_torch(streams_TMD, weights, norm, EPSILON)
        found, found_raw_TW = sum_streams.by_kernel(streams_TMD, weights, norm, EPSILON)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=TOLERANCES[dtype])
        torch.testing.assert_close(found_raw_TW, raw_TW, rtol=1e-5, atol=1e-5)
        some, some_raw_TW = sum_streams.by_kernel(streams_TMD[17:18], weights, norm, EPSILON)
        assert torch.equal(some, found[17:18]) and torch.equal(some_raw_TW, found_raw_TW[17:18])
        if number == num_streams:
            break
        raw_TW = raw_TW.contiguous()
        for own in (parts, parts[0].to(dtype)):
            mixed = mix_streams.by_torch(streams_TMD, raw_TW, own, 20, EPSILON)
            by_kernel = mix_streams.by_kernel(streams_TMD, raw_TW, own, 20, EPSILON)
            torch.testing.assert_close(by_kernel, mixed, rtol=2e-3, atol=2 * TOLERANCES[dtype])
            alone = mix_streams.by_kernel(
                streams_TMD[3:5], raw_TW[3:5], own[..., 3:5, :], 20, EPSILON
            )
            assert torch.equal(alone, by_kernel[3:5])


def test_a_table_names_experts_and_scores_weigh_them(device: torch.device) -> None:
    routing = Routing(3, "sqrtsoftplus", scale=1.5)
    logits_TE = 8 * torch.randn(9, 20, generator=torch.Generator().manual_seed(3)).to(device)
    logits_TE[1, 4:] = -120.0
    correction_E = torch.linspace(-1, 1, 20, device=device)
    fixed_TK = torch.stack([torch.arange(3, dtype=torch.int32) + t for t in range(9)]).to(device)
    for correction, fixed in ((None, None), (correction_E, None), (None, fixed_TK)):
        expected_TK, expected_weights_TK = route.by_torch(
            logits_TE, None, correction, routing, fixed
        )
        found_TK, weights_TK = route.by_kernel(logits_TE, None, correction, routing, fixed)
        assert torch.equal(found_TK, expected_TK)
        torch.testing.assert_close(weights_TK, expected_weights_TK, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_clamped_silu(dtype: torch.dtype, device: torch.device) -> None:
    gate_up = 12 * torch.randn(5, 96, generator=torch.Generator().manual_seed(4))
    gate_up = gate_up.to(device, dtype)
    expected = gate.by_torch(gate_up.clone(), "clamped_silu")
    found = gate.by_kernel(gate_up, "clamped_silu")
    torch.testing.assert_close(
        found, expected, rtol=2e-3 if dtype == torch.float16 else 2e-6, atol=1e-6
    )
