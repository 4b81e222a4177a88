"""Experts by kernels: the router's choice, tiles of assignments, products with an expert's weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from eyas.kernels.experts import (
    FEW,
    MAX_TILED,
    gated_product,
    tile_experts,
    tile_for,
    weighted_product,
)
from eyas.kernels.route import route as route_by_kernel
from eyas.kernels.tiles import Tile
from eyas.ops.apply_experts import apply_experts
from eyas.ops.gate import Activation
from eyas.ops.route import Routing, route
from eyas.ops.tile_experts import tile_experts as tile_operation
from tests.kernels.bodies import take_kernels
from tests.kernels.hopper import Job, compile_for_hopper
from tests.thorough import drawn

ROUTINGS = {
    "Mixtral": (8, Routing(2)),
    "Qwen3": (128, Routing(8, normalizes=False)),
    "GLM-4.5": (20, Routing(3, "sigmoid", scale=2.5)),
    "DeepSeek-V2": (
        40,
        Routing(6, normalizes=False, num_groups=8, num_chosen_groups=3, scale=16.0),
    ),
    "DeepSeek-V3": (
        64,
        Routing(8, "sigmoid", num_groups=8, num_chosen_groups=4, group_size_scored=2, scale=2.5),
    ),
}


def random_choice(
    num_rows: int, num_experts: int, num_chosen: int, device: torch.device, seed: int = 0
) -> torch.Tensor:
    """Distinct experts for each row, int32 [T, K]."""
    generator = torch.Generator().manual_seed(seed)
    scores_TE = torch.rand(num_rows, num_experts, generator=generator)
    return scores_TE.topk(num_chosen).indices.int().to(device)


@pytest.mark.parametrize("name", ROUTINGS)
def test_a_kernel_routes_as_torch_does(name: str, device: torch.device) -> None:
    num_experts, routing = ROUTINGS[name]
    generator = torch.Generator().manual_seed(1)
    wide = 2 * torch.randn(9, num_experts + 3, generator=generator).to(device)
    logits_TE = wide[:, :num_experts]
    logits_TE[3] = 0.5  # all equal: the lowest indices win
    logits_TE[4, ::2] = logits_TE[4, 1::2]
    correction_E = 0.2 * torch.randn(num_experts, generator=generator).to(device)
    for correction in (None, correction_E):
        expected_TK, expected_weights_TK = route.by_torch(logits_TE, None, correction, routing)
        found_TK, weights_TK = route.by_kernel(logits_TE, None, correction, routing)
        assert found_TK.dtype == torch.int32 and torch.equal(found_TK, expected_TK)
        assert weights_TK.dtype == torch.float32
        torch.testing.assert_close(weights_TK, expected_weights_TK, rtol=1e-5, atol=1e-7)
    if routing.num_groups == 1:
        assert expected_TK[3].tolist() == list(range(routing.num_chosen)) or correction is not None


def test_routes_of_a_row_do_not_depend_on_others(device: torch.device) -> None:
    num_experts, routing = ROUTINGS["DeepSeek-V3"]
    logits_TE = torch.randn(70, num_experts, device=device)
    for body in (route.by_torch, route.by_kernel):
        experts_TK, weights_TK = body(logits_TE, None, None, routing)
        for rows in (slice(0, 1), slice(5, 8), slice(30, 63)):
            found = body(logits_TE[rows], None, None, routing)
            assert torch.equal(found[0], experts_TK[rows])
            assert torch.equal(found[1], weights_TK[rows])


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("num_shared", [1, 3])
@pytest.mark.parametrize("name", ["Qwen3", "DeepSeek-V3"])
def test_every_row_has_the_shared_experts_before_those_it_chooses(
    name: str, num_shared: int, is_gated: bool, device: torch.device
) -> None:
    num_experts, routing = ROUTINGS[name]
    parts_ZTE = torch.randn(4, 7, num_experts + is_gated, device=device)
    chosen_TK, chosen_weights_TK = route.by_torch(parts_ZTE[..., :num_experts], None, None, routing)
    shared = replace(routing, num_shared=num_shared, gates_shared=is_gated)
    gates_T = torch.ones(7, device=device)
    if is_gated:
        gates_T = parts_ZTE[:, :, -1].sum(0).sigmoid()
    for body in (route.by_torch, route.by_kernel):
        experts_TK, weights_TK = body(parts_ZTE, None, None, shared)
        assert experts_TK.dtype == torch.int32 and experts_TK.is_contiguous()
        assert weights_TK.dtype == torch.float32 and weights_TK.is_contiguous()
        assert torch.equal(experts_TK[:, num_shared:], chosen_TK)
        numbers = list(range(num_experts, num_experts + num_shared))
        assert experts_TK[:, :num_shared].tolist() == [numbers] * 7
        torch.testing.assert_close(weights_TK[:, num_shared:], chosen_weights_TK)
        for of_one_T in weights_TK[:, :num_shared].unbind(1):
            torch.testing.assert_close(of_one_T, gates_T)


def test_parts_of_logits_and_a_bias_are_added_in_order(device: torch.device) -> None:
    num_experts, routing = ROUTINGS["Mixtral"]
    parts_ZTE = torch.randn(4, 7, num_experts, device=device)
    bias_E = torch.randn(num_experts, device=device)
    logits_TE = parts_ZTE[0] + parts_ZTE[1] + parts_ZTE[2] + parts_ZTE[3] + bias_E
    for body in (route.by_torch, route.by_kernel):
        expected = body(logits_TE, None, None, routing)
        assert all(map(torch.equal, body(parts_ZTE, bias_E, None, routing), expected))


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_what_is_not_a_number_still_chooses_experts(device: torch.device) -> None:
    logits_TE = torch.randn(3, 8, device=device)
    logits_TE[0], logits_TE[1, 2], logits_TE[2] = torch.nan, torch.nan, -torch.inf
    experts_TK, _ = route_by_kernel(
        logits_TE,
        None,
        None,
        num_chosen=3,
        scoring="sigmoid",
        normalizes=True,
        scale=1.0,
        num_groups=1,
        num_chosen_groups=1,
        group_size_scored=1,
    )
    for row in experts_TK.tolist():
        assert len(set(row)) == 3 and all(0 <= expert < 8 for expert in row)


@pytest.mark.parametrize("shape", [(1, 8, 2), (3, 4, 4), (19, 8, 3), (64, 16, 4)], ids=str)
def test_tiles_hold_every_assignment_once(
    shape: tuple[int, int, int], device: torch.device
) -> None:
    num_rows, num_experts, num_chosen = shape
    experts_TK = random_choice(num_rows, num_experts, num_chosen, device)
    experts_TK[num_rows // 2 :] = experts_TK[0]  # experts with more rows than a tile
    experts = experts_TK.flatten().tolist()
    for tile_expert_P, rows_PX in (
        tile_operation.by_torch(experts_TK, num_experts, 16),
        tile_experts(experts_TK, 16),
    ):
        seen = []
        for expert, rows in zip(tile_expert_P.tolist(), rows_PX.tolist(), strict=True):
            used = [row for row in rows if row >= 0] if expert >= 0 else []
            assert used == rows[: len(used)] and (expert < 0 or used)
            assert all(experts[row] == expert for row in used)
            seen += used
        assert sorted(seen) == list(range(num_rows * num_chosen))
        used_tiles = int((tile_expert_P >= 0).sum())
        assert used_tiles == sum(-(-experts.count(e) // 16) for e in set(experts))


def test_many_assignments_are_sorted(device: torch.device) -> None:
    experts_TK = random_choice(MAX_TILED // 4 + 1, 8, 4, device)
    assert tile_operation.by_kernel(experts_TK, 8, 64) is NotImplemented
    found = tile_operation(experts_TK, 8, 64)
    expected = tile_operation.by_torch(experts_TK, 8, 64)
    assert all(map(torch.equal, found, expected))
    assert len(found[0]) == 8 + experts_TK.numel() // 64


def weights_of(
    num_experts: int, hidden: int, size: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(2)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype).to(device)

    return (
        noise(num_experts, 2 * size, hidden) * hidden**-0.5,
        noise(num_experts, hidden, size) * size**-0.5,
        0.1 * noise(num_experts, 2 * size),
        0.1 * noise(num_experts, hidden),
    )


@pytest.mark.parametrize(
    ("has_bias", "activation"), [(False, "silu"), (True, "silu"), (True, "clamped_swiglu")]
)
def test_kernels_apply_experts_as_torch_does(
    has_bias: bool, activation: Activation, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_kernels(monkeypatch, tile_operation)
    for num_rows, hidden, size in ((1, 64, 48), (19, 80, 100)):
        gate_up, down, gate_up_bias, down_bias = weights_of(8, hidden, size, torch.float32, device)
        if activation == "clamped_swiglu":
            gate_up_bias = 60 * gate_up_bias  # beyond its limits, on both sides
        biases = (gate_up_bias, down_bias) if has_bias else (None, None)
        x_TD = torch.randn(num_rows, hidden + 4, device=device)[:, :hidden]
        experts_TK = random_choice(num_rows, 8, 3, device)
        weights_TK = torch.rand(num_rows, 3, device=device)
        arguments = (x_TD, experts_TK, weights_TK, gate_up, down, *biases, activation)
        found_KTD = apply_experts.by_kernel(*arguments)
        expected_KTD = apply_experts.by_torch(*arguments)
        assert found_KTD.dtype == torch.float32 and found_KTD.shape == (3, num_rows, hidden)
        torch.testing.assert_close(found_KTD, expected_KTD, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_rows", [5, 40, MAX_TILED // 3 + 1])
def test_experts_that_another_rank_holds_are_not_run(
    num_rows: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are -1 here; what the held ones give is unchanged."""
    if 3 * num_rows <= MAX_TILED:
        take_kernels(monkeypatch, tile_operation)
    new_empty = torch.Tensor.new_empty

    def new_unwritten(x: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        new = new_empty(x, *arguments, **options)
        return new.fill_(torch.nan) if new.is_floating_point() else new

    monkeypatch.setattr(torch.Tensor, "new_empty", new_unwritten)
    *weights, _, _ = weights_of(8, 64, 48, torch.float32, device)
    x_TD = torch.randn(num_rows, 64, device=device)
    experts_TK = random_choice(num_rows, 8, 3, device)
    weights_TK = torch.rand(num_rows, 3, device=device)
    is_held_TK = experts_TK >= 4
    held_TK = torch.where(is_held_TK, experts_TK - 4, -1).int()
    of_rank = tuple(weight[4:] for weight in weights)
    tiles, _ = tile_operation(held_TK, 4, 16)
    assert int((tiles >= 0).sum()) == sum(
        -(-int((held_TK == expert).sum()) // 16) for expert in range(4)
    )
    for body in (apply_experts.by_kernel, apply_experts.by_torch):
        all_KTD = body(x_TD, experts_TK, weights_TK, *weights, None, None, "silu")
        found_KTD = body(x_TD, held_TK, weights_TK, *of_rank, None, None, "silu")
        torch.testing.assert_close(found_KTD[is_held_TK.t()], all_KTD[is_held_TK.t()])
        assert found_KTD[~is_held_TK.t()].isnan().all()


def test_a_row_has_the_same_bits_in_any_call_and_tile(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_kernels(monkeypatch, tile_operation)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    weights = weights_of(4, 64, 48, dtype, device)
    x_TD = torch.randn(40, 64, device=device).to(dtype)
    experts_TK = random_choice(40, 4, 2, device)
    experts_TK[7:30] = experts_TK[7]
    weights_TK = torch.rand(40, 2, device=device)
    all_KTD = apply_experts.by_kernel(x_TD, experts_TK, weights_TK, *weights, "silu")
    for rows in (slice(0, 1), slice(3, 9), slice(8, 40), slice(20, 40)):
        found_KTD = apply_experts.by_kernel(
            x_TD[rows], experts_TK[rows], weights_TK[rows], *weights, "silu"
        )
        assert torch.equal(found_KTD, all_KTD[:, rows])
    gate_up, down, gate_up_bias, down_bias = weights
    default = tile_for(40, 2, 4, dtype)
    for tile in (replace(default, block_rows=32), Tile(128, 64, 32, 4, 3)):
        tiles = tile_operation(experts_TK, 4, tile.block_rows)
        gated_NF = gated_product(x_TD, gate_up, gate_up_bias, tiles, 2, "silu", tile)
        found_KTD = weighted_product(gated_NF, down, down_bias, tiles, weights_TK, tile)
        if device.type == "cuda":
            assert torch.equal(found_KTD, all_KTD), tile
        else:  # the interpreter's products have no fixed order
            torch.testing.assert_close(found_KTD, all_KTD)


def test_no_rows_give_none(device: torch.device) -> None:
    weights = weights_of(4, 64, 48, torch.float32, device)
    none_TK = torch.empty(0, 2, dtype=torch.int32, device=device)
    x_TD = torch.empty(0, 64, device=device)
    out = apply_experts.by_kernel(x_TD, none_TK, none_TK.float(), *weights, "silu")
    assert out.shape == (2, 0, 64)


def test_they_compile_for_hopper() -> None:
    pointers = {
        "x_TI": "*bf16",
        "weight_EOI": "*bf16",
        "bias_EO": "*bf16",
        "tile_expert_P": "*i32",
        "rows_PX": "*i32",
        "weights_N": "*fp32",
        "out": "*bf16",
    }
    numbers = dict.fromkeys(
        (
            *("num_rows", "num_assigned", "num_out", "num_columns", "x_stride"),
            *("weight_stride", "scales_stride", "scales_expert_stride"),
        ),
        "i32",
    )
    constants = {
        "NUM_CHOSEN": 8,
        "BLOCK_FEW": 0,
        "EVEN_OUT": True,
        "EVEN_K": True,
        "HAS_BIAS": False,
        "PDL": True,
        "LAYOUT": "plain",
        "SCALE": "",
        "SCALE_ROWS": 1,
        "SCALE_COLUMNS": 0,
        "NUMBERS": 1,
        "scales_EOG": None,
    }
    of_gpt_oss = {"NUM_CHOSEN": 4, "EVEN_OUT": False, "EVEN_K": False, "HAS_BIAS": True}
    jobs = []
    for average in drawn((1, 100), (1, 16, 40, 100)):
        tile = tile_for(average, 8, 8, torch.bfloat16)
        few = {"BLOCK_FEW": FEW * (average == 1)}
        blocks = {
            "BLOCK_OUT": tile.block_out,
            "BLOCK_ROWS": tile.block_rows,
            "BLOCK_K": tile.block_k,
            "NUM_STAGES": tile.num_stages,
        }
        for is_gated, is_clamped in ((True, average in (1, 100)), (False, False)):
            activation = "clamped_swiglu" if is_clamped else "silu"
            facts = {"GATED": is_gated, "ACTIVATION": activation}
            jobs.append(
                Job(
                    "eyas.kernels.experts:expert_product_kernel",
                    pointers | numbers | ({} if is_gated else {"out": "*fp32"}),
                    constants | few | blocks | facts | (of_gpt_oss if is_clamped else {}),
                    num_warps=tile.num_warps,
                    num_stages=tile.num_stages,
                    aligned=("num_out", "num_columns", "x_stride", "weight_stride"),
                )
            )
    for compiled in compile_for_hopper(*jobs):
        assert compiled.uses_wgmma and compiled.num_spilled == 0
        assert compiled.shared <= 227 * 1024


WIDE: dict[str, tuple[int, int, int, int, Activation]] = {
    "Qwen3-30B-A3B": (128, 2048, 768, 8, "silu"),
    "gpt-oss-20b": (32, 2880, 2880, 4, "clamped_swiglu"),
}
"""Experts, hidden size, feed-forward size, experts a row chooses, activation."""


@pytest.mark.gpu
@pytest.mark.parametrize("name", WIDE)
def test_wide_experts_agree_with_torch_and_with_each_row_alone(
    name: str, device: torch.device
) -> None:
    """From one row to a long prompt's."""
    num_experts, hidden, size, num_chosen, activation = WIDE[name]
    gate_up, down, *biases = weights_of(num_experts, hidden, size, torch.bfloat16, device)
    gate_up_bias, down_bias = biases if activation == "clamped_swiglu" else (None, None)
    weights = (gate_up, down, gate_up_bias, down_bias)
    x_TD = torch.randn(1500, hidden, device=device).bfloat16()
    experts_TK = random_choice(1500, num_experts, num_chosen, device)
    weights_TK = torch.rand(1500, num_chosen, device=device)
    all_KTD = apply_experts(x_TD, experts_TK, weights_TK, *weights, activation)
    expected_KTD = apply_experts.by_torch(x_TD, experts_TK, weights_TK, *weights, activation)
    assert (all_KTD - expected_KTD).norm() / expected_KTD.norm() < 1e-2
    for num_rows in (1, 2, 8, 33, 64, 128, 200, 512, 1024):
        found_KTD = apply_experts(
            x_TD[:num_rows], experts_TK[:num_rows], weights_TK[:num_rows], *weights, activation
        )
        assert torch.equal(found_KTD, all_KTD[:, :num_rows]), num_rows
