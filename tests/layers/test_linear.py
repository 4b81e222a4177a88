"""Products: fused parts, biases, buckets, packed weights and blocks of the head."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from eyas.layers import linear as linear_module
from eyas.layers.compute import Compute
from eyas.layers.linear import Linear, LogitsHead
from eyas.layers.norm import RMSNorm
from eyas.layers.row_order import RowOrder

CPU = torch.device("cpu")


def filled(dtype: torch.dtype, order: RowOrder) -> tuple[Linear, torch.Tensor, torch.Tensor]:
    linear = Linear(40, {"q": 24, "k": 8}, Compute(dtype, CPU, order), bias=True)
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(32, 40, generator=generator), torch.randn(32, generator=generator)
    views = linear.parameters()
    assert list(views) == ["q.weight", "q.bias", "k.weight", "k.bias"]
    for name, rows in (("q", slice(0, 24)), ("k", slice(24, 32))):
        views[f"{name}.weight"].copy_(weight[rows])
        views[f"{name}.bias"].copy_(bias[rows])
    linear.seal()
    return linear, weight, bias


@pytest.mark.parametrize("order", [RowOrder(2), RowOrder(32, 32)], ids=["whole", "bucket"])
@pytest.mark.parametrize("is_packed", [True, False], ids=["packed", "plain"])
def test_fused_parts_make_one_product(
    order: RowOrder, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_packed:
        monkeypatch.setattr(linear_module, "pack_weight", lambda weight: None)
    linear, weight, bias = filled(torch.float32, order)
    x = torch.randn(64, 40, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(linear(x), F.linear(x, weight, bias), atol=1e-5)


def test_bfloat16_products_are_close_to_exact_ones() -> None:
    linear, weight, bias = filled(torch.bfloat16, RowOrder(2))
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = F.linear(x.double(), weight.bfloat16().double(), bias.bfloat16().double())
    found = linear(x)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.double(), expected, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_logits_are_not_rounded_to_the_models_type(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_module, "HEAD_BLOCK_BYTES", 40 * 4 * 13)
    head = LogitsHead(50, 40, Compute(dtype, CPU, RowOrder(2)))
    weight = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    blocks = head.parameters()
    assert [len(block) for block in blocks] == [13, 13, 13, 11]
    for block, rows in zip(blocks, weight.split(13), strict=True):
        block.copy_(rows)
    head.seal()
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = F.linear(x.double(), weight.double())
    assert head(x).dtype == torch.float32
    assert torch.allclose(head(x).double(), expected, rtol=1e-6, atol=1e-5)


def test_a_norm_divides_by_the_root_mean_square() -> None:
    norm = RMSNorm(48, 1e-5, Compute(torch.float32, CPU))
    weight = torch.randn(48, generator=torch.Generator().manual_seed(0))
    norm.parameter().copy_(weight)
    x = torch.randn(4, 48, generator=torch.Generator().manual_seed(1)) * torch.tensor(
        [[1e-4], [1e-2], [1.0], [1e3]]
    )
    assert torch.allclose(norm(x), F.rms_norm(x, (48,), weight, 1e-5), rtol=2e-6, atol=1e-7)
