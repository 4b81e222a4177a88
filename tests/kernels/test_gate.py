"""The gated activation against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from eyas.kernels.gate import gated_silu
from eyas.ops.gate import gate as operation
from tests.kernels.hopper import Job, compile_for_hopper

DTYPES = [torch.float32, torch.float16]
if torch.cuda.is_available():
    DTYPES.append(torch.bfloat16)  # the interpreter cuts off where it should round


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_equals_torch_but_for_the_last_bit(device: torch.device, dtype: torch.dtype) -> None:
    for num_rows, size in ((1, 1), (3, 100), (2, 1024), (1, 1500)):
        wide = (3 * torch.randn(num_rows, 2 * size + 8, device=device)).to(dtype)
        gate_up_T2F = wide[:, : 2 * size]
        expected_TF = operation.by_torch(gate_up_T2F, "silu")
        found_TF = gated_silu(gate_up_T2F)
        assert found_TF.dtype == dtype
        # a silu one rounding off is at most two off after the product; float32 shows the device's exp
        roundings = 32 if dtype == torch.float32 else 2
        error_TF = (found_TF.float() - expected_TF.float()).abs()
        limit_TF = roundings * torch.finfo(dtype).eps * expected_TF.float().abs() + 1e-7
        assert (error_TF <= limit_TF).all()


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_large_gates_pass_and_small_ones_close(device: torch.device) -> None:
    gate_up_T2F = torch.tensor([[100.0, -100.0, torch.inf, 0.0, 2.0, 2.0, 2.0, 2.0]], device=device)
    assert gated_silu(gate_up_T2F)[0].tolist() == [200.0, 0.0, torch.inf, 0.0]
    gate_up_T2F[0, 1] = torch.nan
    assert gated_silu(gate_up_T2F)[0].isnan().tolist() == [False, True, False, False]


def test_a_row_has_the_same_bits_in_any_call_and_no_rows_give_none(device: torch.device) -> None:
    gate_up_T2F = torch.randn(65, 120, device=device).bfloat16()
    expected_TF = gated_silu(gate_up_T2F)
    for num_rows in (1, 2, 7, 33, 64):
        assert torch.equal(gated_silu(gate_up_T2F[-num_rows:]), expected_TF[-num_rows:])
    assert gated_silu(gate_up_T2F[:0]).shape == (0, 60)


def test_it_compiles_for_hopper() -> None:
    signature = {"gate_up_T2F": "*bf16", "out_TF": "*bf16", "row_stride": "i32", "size": "i32"}
    constants = {"ACTIVATION": "clamped_silu", "BLOCK": 1024, "PDL": True}
    kernel = "eyas.kernels.gate:gated_silu_kernel"
    job = Job(kernel, signature, constants, aligned=("row_stride", "size"))
    (compiled,) = compile_for_hopper(job)
    assert compiled.num_spilled == 0 and compiled.shared == 0


@pytest.mark.gpu
def test_wide_rows_agree_with_float64(device: torch.device) -> None:
    gate_up_T2F = torch.randn(513, 28672, device=device).bfloat16()
    torch.full((513, 14336), torch.nan, dtype=torch.bfloat16, device=device)
    found_TF = gated_silu(gate_up_T2F, pdl=True)
    gate_TF, up_TF = gate_up_T2F.double().chunk(2, -1)
    exact_TF = F.silu(gate_TF) * up_TF
    assert (found_TF - exact_TF).norm() / exact_TF.norm() < 5e-3
