"""Adding to the stream and normalising it: the kernel against the torch body."""

from __future__ import annotations

import pytest
import torch

from eyas.kernels.add_norm import add_norm, norm, warps_for
from eyas.ops.add_norm import add_norm as operation
from eyas.ops.add_norm import new_weight, normalized
from tests.kernels.hopper import Job, compile_for_hopper

EPSILON = 1e-5
DTYPES = [torch.float32, torch.float16]
if torch.cuda.is_available():
    DTYPES.append(torch.bfloat16)  # the interpreter cuts off where it should round


def stored(weight_D: torch.Tensor) -> torch.Tensor:
    """The weight as the bodies of `ops` read it."""
    weight = new_weight(len(weight_D), weight_D.dtype, weight_D.device)
    weight.view(-1, len(weight_D))[0].copy_(weight_D)
    return weight


def reference(x_TD: torch.Tensor, weight_D: torch.Tensor | None) -> torch.Tensor:
    return normalized(x_TD, None if weight_D is None else stored(weight_D), EPSILON)


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Within one rounding of the type, relative to the largest number."""
    error = (found.float() - expected.float()).abs().max()
    return bool(error <= 2 * torch.finfo(found.dtype).eps * expected.float().abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_residual_is_rounded_once_and_normalised_as_rounded(
    device: torch.device, dtype: torch.dtype
) -> None:
    for num_rows, size in ((1, 64), (3, 96), (2, 1000)):
        residual_TD = torch.randn(num_rows, size, device=device).to(dtype)
        before_TD = residual_TD.clone()
        weight_D = torch.randn(size, device=device).to(dtype)
        parts_STD = torch.randn(3, num_rows, size, device=device)
        for parts in (parts_STD, parts_STD[:1], parts_STD[1].to(dtype)):
            new_TD, normed_TD = add_norm(residual_TD, parts, weight_D, EPSILON)
            expected = operation.by_torch(residual_TD, parts, stored(weight_D), EPSILON)
            assert torch.equal(new_TD, expected[0])
            assert close(normed_TD, expected[1])
            assert torch.equal(residual_TD, before_TD)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_are_those_of_torch(device: torch.device, dtype: torch.dtype) -> None:
    x_TD = torch.randn(5, 160, device=device).to(dtype)
    for weight_D in (torch.randn(160, device=device).to(dtype), None):
        assert close(norm(x_TD, weight_D, EPSILON), reference(x_TD, weight_D))


def test_nothing_to_add_returns_the_residual_itself(device: torch.device) -> None:
    residual_TD = torch.randn(3, 64, device=device)
    new_TD, normed_TD = add_norm(residual_TD, None, None, EPSILON)
    assert new_TD is residual_TD
    assert close(normed_TD, reference(residual_TD, None))


def test_rows_may_stand_apart_everywhere(device: torch.device) -> None:
    residual_TD = torch.randn(4, 200, device=device)[:, 8:104]
    parts_TD = torch.randn(4, 150, device=device)[:, :96]
    parts_STD = torch.randn(2, 6, 120, device=device)[:, 1:5, :96]
    for parts, added_TD in ((parts_TD, parts_TD), (parts_STD, parts_STD[0] + parts_STD[1])):
        new_TD, normed_TD = add_norm(residual_TD, parts, None, EPSILON)
        assert torch.equal(new_TD, residual_TD + added_TD)
        assert close(normed_TD, reference(new_TD, None))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_row_has_the_same_bits_in_any_call(device: torch.device, dtype: torch.dtype) -> None:
    residual_TD = torch.randn(100, 320, device=device).to(dtype)
    parts_STD = torch.randn(2, 100, 320, device=device)
    parts_STD[0, 11] = torch.inf
    weight_D = torch.randn(320, device=device).to(dtype)
    new_TD, normed_TD = add_norm(residual_TD, parts_STD, weight_D, EPSILON)
    for num_rows in (1, 2, 7, 16, 17, 33, 64, 65, 100):
        rows = slice(100 - num_rows, 100)
        found = add_norm(residual_TD[rows], parts_STD[:, rows], weight_D, EPSILON)
        assert torch.equal(found[0], new_TD[rows])
        assert torch.equal(found[1][found[1] == found[1]], normed_TD[rows][found[1] == found[1]])
    bad = ~normed_TD.isfinite().all(-1)
    assert bad.nonzero().tolist() == [[11]]


def test_zeros_stay_zeros_and_no_rows_give_no_rows(device: torch.device) -> None:
    assert not norm(torch.zeros(2, 48, device=device), None, EPSILON).any()
    nothing = torch.zeros(0, 48, device=device)
    assert [x.shape for x in add_norm(nothing, nothing, None, EPSILON)] == [(0, 48)] * 2


def test_it_compiles_for_hopper_without_spilling() -> None:
    integers = ("size", "residual_stride", "part_stride", "part_row_stride")
    tensors = ("residual_TD", "weight_D", "new_residual_TD", "out_TD")
    jobs = []
    for size, num_parts, parts in ((4096, 2, "*fp32"), (5120, 1, "*bf16"), (16384, 2, "*fp32")):
        block = 1 << (size - 1).bit_length()
        signature = dict.fromkeys(tensors, "*bf16") | dict.fromkeys(integers, "i32")
        signature |= {"parts_ZTD": parts, "epsilon": "fp32"}
        constants = {
            "NUM_PARTS": num_parts,
            "HAS_WEIGHT": True,
            "BLOCK": block,
            "PDL": True,
        }
        kernel = "eyas.kernels.add_norm:add_norm_kernel"
        jobs.append(Job(kernel, signature, constants, warps_for(block), 3, integers))
    for compiled in compile_for_hopper(*jobs):
        assert compiled.num_spilled == 0 and compiled.shared < 4096


@pytest.mark.gpu
def test_wide_rows_agree_with_float64(device: torch.device) -> None:
    for size in (4096, 5120, 8192, 16384):
        residual_TD = torch.randn(300, size, device=device).bfloat16()
        parts_STD = torch.randn(2, 300, size, device=device)
        weight_D = torch.randn(size, device=device).bfloat16()
        torch.full_like(residual_TD, torch.nan)
        new_TD, normed_TD = add_norm(residual_TD, parts_STD, weight_D, EPSILON, pdl=True)
        assert torch.equal(new_TD, (residual_TD + (parts_STD[0] + parts_STD[1])).bfloat16())
        new64_TD = new_TD.double()
        exact_TD = new64_TD * (new64_TD.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
        exact_TD *= weight_D.double()
        assert (normed_TD - exact_TD).norm() / exact_TD.norm() < 3e-3
        for num_rows in (1, 2, 7, 64, 65):
            part = parts_STD[:, :num_rows]
            found = add_norm(residual_TD[:num_rows], part, weight_D, EPSILON, pdl=True)
            assert torch.equal(found[1], normed_TD[:num_rows])
