"""The gate of attention's output against torch."""

from __future__ import annotations

import pytest
import torch

from eyas.ops.gate_heads import gate_heads
from tests.kernels.hopper import Job, compile_for_hopper

DTYPES = [torch.float32, torch.float16]
if torch.cuda.is_available():
    DTYPES.append(torch.bfloat16)  # the interpreter cuts off where it should round


def numbers(num_rows: int, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[2, T, X] numbers and gates, whose rows stand apart, as those of gates do."""
    generator = torch.Generator().manual_seed(size)
    wide = 3 * torch.randn(2, num_rows, size + 24, generator=generator)
    return wide.to(dtype).to(device)[:, :, 24:]


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_equals_torch_but_for_the_last_bit(device: torch.device, dtype: torch.dtype) -> None:
    for num_rows, size in ((1, 1), (3, 100), (2, 1024), (1, 1500)):
        out_TX, gate_TX = numbers(num_rows, size, dtype, device)
        out_TX = out_TX.contiguous()
        expected_TX = gate_heads.by_torch(out_TX, gate_TX)
        found_TX = gate_heads.by_kernel(out_TX, gate_TX)
        assert found_TX.dtype == dtype and found_TX.is_contiguous()
        # a sigmoid one rounding off is at most two off after the product
        roundings = 32 if dtype == torch.float32 else 2
        error_TX = (found_TX.float() - expected_TX.float()).abs()
        limit_TX = roundings * torch.finfo(dtype).eps * expected_TX.float().abs() + 1e-7
        assert (error_TX <= limit_TX).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_of_a_gate_are_added_in_order_and_rounded(
    device: torch.device, dtype: torch.dtype
) -> None:
    out_TX = numbers(3, 1100, dtype, device)[0].contiguous()
    parts = torch.stack([numbers(3, 1100, torch.float32, device)[1] / part for part in (1, 2, 3)])
    gate_TX = (parts[0] + parts[1] + parts[2]).to(dtype)
    for run in (gate_heads.by_kernel, gate_heads.by_torch):
        assert torch.equal(run(out_TX, parts), run(out_TX, gate_TX))


def test_a_row_has_the_same_bits_in_any_call_and_no_rows_give_none(device: torch.device) -> None:
    out_TX, gate_TX = numbers(65, 120, torch.bfloat16, device)
    out_TX = out_TX.contiguous()
    expected_TX = gate_heads.by_kernel(out_TX, gate_TX)
    for num_rows in (1, 2, 7, 33, 64):
        found_TX = gate_heads.by_kernel(out_TX[-num_rows:], gate_TX[-num_rows:])
        assert torch.equal(found_TX, expected_TX[-num_rows:])
    assert gate_heads.by_kernel(out_TX[:0], gate_TX[:0]).shape == (0, 120)


def test_it_compiles_for_hopper() -> None:
    signature = dict.fromkeys(("x_TX", "gate_ZTX", "out_TX"), "*bf16")
    signature |= dict.fromkeys(("size", "part_stride", "gate_stride"), "i32")
    kernel = "eyas.kernels.gate_heads:gate_heads_kernel"
    job = Job(kernel, signature, {"NUM_PARTS": 1, "BLOCK": 1024, "PDL": True}, aligned=("size",))
    (compiled,) = compile_for_hopper(job)
    assert compiled.num_spilled == 0 and compiled.shared == 0
