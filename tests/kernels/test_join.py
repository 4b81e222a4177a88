"""The entry of heads: the kernel against the torch body."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from eyas.kernels.add_norm import norm
from eyas.kernels.join import join
from eyas.ops.join import join as operation
from tests.kernels.hopper import Job, compile_for_hopper
from tests.kernels.test_add_norm import close, stored

EPSILON = 1e-5
DTYPES = [torch.float32, torch.float16]
if torch.cuda.is_available():
    DTYPES.append(torch.bfloat16)  # the interpreter cuts off where it should round


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(64, 64), (96, 64), (40, 200)])
def test_halves_stand_side_by_side(
    device: torch.device, dtype: torch.dtype, sizes: tuple[int, int]
) -> None:
    size, feature_size = sizes
    embedding_VD = torch.randn(30, size, device=device).to(dtype)
    features_TF = torch.randn(5, feature_size + 24, device=device).to(dtype)[:, :feature_size]
    tokens_T = torch.tensor([29, 0, 3, 3, 17], device=device)
    positions_T = torch.tensor([0, 1, 2, 9, 1], device=device)
    embedding_weight_D = torch.randn(size, device=device).to(dtype)
    feature_weight_F = torch.randn(feature_size, device=device).to(dtype)
    for has_weights, zero_first, embedding_first in product((True, False), repeat=3):
        weights = (embedding_weight_D if has_weights else None, feature_weight_F)
        expected_TW = operation.by_torch(
            tokens_T,
            positions_T,
            embedding_VD,
            features_TF,
            *(None if weight is None else stored(weight) for weight in weights),
            EPSILON,
            zero_first,
            embedding_first,
        )
        wide_TX = torch.full((5, size + feature_size + 8), torch.nan, dtype=dtype, device=device)
        out_TW = wide_TX[:, : size + feature_size]
        found_TW = join(
            tokens_T,
            embedding_VD,
            features_TF,
            *weights,
            EPSILON,
            out_TW=out_TW,
            positions_T=positions_T,
            zero_first=zero_first,
            embedding_first=embedding_first,
        )
        assert found_TW is out_TW
        assert close(found_TW, expected_TW)
        if not has_weights:
            half = slice(size) if embedding_first else slice(feature_size, None)
            assert torch.equal(found_TW[:, half], expected_TW[:, half])
        assert wide_TX[:, size + feature_size :].isnan().all()


def test_a_row_has_the_same_bits_in_any_call_and_no_rows_give_none(device: torch.device) -> None:
    embedding_VD = torch.randn(100, 96, device=device).bfloat16()
    features_TF = torch.randn(65, 96, device=device).bfloat16()
    tokens_T = torch.randint(0, 100, (65,), device=device)
    weight_D = torch.randn(96, device=device).bfloat16()

    def run(num_rows: int) -> torch.Tensor:
        rows = slice(65 - num_rows, 65)
        out_TW = torch.full((num_rows, 192), torch.nan, device=device).bfloat16()
        inputs = (tokens_T[rows], embedding_VD, features_TF[rows], weight_D, weight_D, EPSILON)
        return join(*inputs, out_TW=out_TW)

    whole_TW = run(65)
    assert whole_TW.isfinite().all()
    for num_rows in (0, 1, 2, 7, 33):
        assert torch.equal(run(num_rows), whole_TW[65 - num_rows :])


def test_it_compiles_for_hopper_without_spilling() -> None:
    integers = ("embedding_size", "feature_size", "feature_stride", "out_stride")
    tensors = ("embedding_VD", "features_TF", "embedding_weight_D", "feature_weight_F", "out_TW")
    signature = dict.fromkeys(tensors, "*bf16") | dict.fromkeys(integers, "i32")
    signature |= {"tokens_T": "*i64", "positions_T": "*i64", "epsilon": "fp32"}
    constants: dict[str, object] = {
        "ZERO_FIRST": True,
        "EMBEDDING_FIRST": True,
        "HAS_EMBEDDING_WEIGHT": True,
        "HAS_FEATURE_WEIGHT": True,
        "BLOCK": 4096,
        "PDL": True,
    }
    joined = Job("eyas.kernels.join:join_kernel", signature, constants, 16, 3, integers)
    (compiled,) = compile_for_hopper(joined)
    assert compiled.num_spilled == 0 and compiled.shared < 4096


@pytest.mark.gpu
def test_rows_of_a_large_vocabulary(device: torch.device) -> None:
    """The embedding is larger than 2^31 numbers."""
    embedding_VD = torch.randn(300_000, 8192, device=device, dtype=torch.bfloat16)
    tokens_T = torch.randint(0, 300_000, (65,), device=device)
    tokens_T[7] = 299_999
    features_TF = torch.randn(65, 8192, device=device, dtype=torch.bfloat16)
    weight_D = torch.randn(8192, device=device, dtype=torch.bfloat16)
    out_TW = torch.full((65, 16384), torch.nan, device=device, dtype=torch.bfloat16)
    join(tokens_T, embedding_VD, features_TF, None, weight_D, EPSILON, out_TW=out_TW, pdl=True)
    assert torch.equal(out_TW[:, :8192], embedding_VD[tokens_T])
    assert torch.equal(out_TW[:, 8192:], norm(features_TF, weight_D, EPSILON))
