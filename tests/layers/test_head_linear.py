"""Products of heads: right, and a row has the same bits in any call that the row order allows."""

from __future__ import annotations

import pytest
import torch

from eyas.layers.compute import Compute
from eyas.layers.head_linear import HeadLinear
from eyas.layers.row_order import RowOrder
from eyas.layers.row_probe import find_row_order

SHAPES = [(3, 32, 16), (2, 20, 40), (1, 128, 512)]


def heads(shape: tuple[int, int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [N, O, I], and rows [200, N, I] that stand apart."""
    num_heads, _, num_in = shape
    generator = torch.Generator().manual_seed(num_in)
    weight_NOI = torch.randn(shape, generator=generator) * num_in**-0.5
    x_TNX = torch.randn(200, num_heads, num_in + 7, generator=generator)
    return weight_NOI.to(dtype), x_TNX.to(dtype)[..., :num_in]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", [RowOrder(2), RowOrder(32, 32)], ids=["whole", "bucket"])
def test_each_head_has_its_own_product(shape: tuple[int, int, int], order: RowOrder) -> None:
    weight_NOI, x_TNI = heads(shape, torch.float32)
    x_TNI = x_TNI[: order.pad(70)]
    out_TNX = torch.full((len(x_TNI), shape[0], shape[1] + 5), 7.0)
    HeadLinear(weight_NOI, Compute(torch.float32, torch.device("cpu"), order))(
        x_TNI, out_TNX[..., : shape[1]]
    )
    expected = torch.einsum("tni,noi->tno", x_TNI, weight_NOI)
    assert torch.allclose(out_TNX[..., : shape[1]], expected, atol=1e-5)
    assert bool((out_TNX[..., shape[1] :] == 7).all())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_in_any_call(
    shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    weight_NOI, x_TNI = heads(shape, dtype)
    found = find_row_order([shape[1:]], dtype, len(x_TNI))
    assert found.exact
    product, order = (
        HeadLinear(weight_NOI, Compute(dtype, torch.device("cpu"), found.order)),
        found.order,
    )

    def run(first: int, count: int) -> torch.Tensor:
        rows = torch.nn.functional.pad(
            x_TNI[first : first + count], (0, 0, 0, 0, 0, order.pad(count) - count)
        )
        out_TNO = x_TNI.new_empty((len(rows), *shape[:2]))
        product(rows, out_TNO)
        return out_TNO[:count]

    whole = run(0, 200)
    for first, count in ((0, 1), (7, 2), (40, 5), (100, 33), (1, 150)):
        assert torch.equal(run(first, count), whole[first : first + count])
