"""Layers that run their products by any way a plan names: the same numbers, whoever makes them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from eyas.kernels import gemm
from eyas.kernels.gate import gated_silu
from eyas.kernels.packed import Layout, PackedWeight
from eyas.layers import linear as linear_module
from eyas.layers.compute import Compute
from eyas.layers.gemm import apply
from eyas.layers.gemm.products import Products
from eyas.layers.gemm.search import Search
from eyas.layers.gemm.variants import (
    LIBRARY,
    MANY_ROWS,
    GemmPlan,
    GemmVariant,
    Product,
    Role,
    candidates,
    pad_for_device,
    row_counts,
)
from eyas.layers.linear import Linear, LogitsHead
from eyas.layers.row_order import RowOrder
from eyas.ops.add_norm import summed
from eyas.ops.gate import gate as operation
from tests.kernels.packing import LAYOUTS, expected_gated, expected_product, random_weight
from tests.thorough import drawn

NUM_IN, SIZE = 1040, 136
COUNTS = drawn((1, 40, 150), (1, 5, 40, 150))


@pytest.fixture(autouse=True)
def _without_early_launches(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The interpreter knows no early launch, and layers on a CPU would pack their weights."""
    if device.type != "cuda":

        def late(kernel: Any, *tensors: torch.Tensor, pdl: bool, **options: Any) -> torch.Tensor:
            return kernel(*tensors, **options)

        monkeypatch.setattr(gemm, "product", partial(late, gemm.product))
        monkeypatch.setattr(gemm, "gated_product", partial(late, gemm.gated_product))
        monkeypatch.setattr(apply, "gate", operation.by_kernel)
        monkeypatch.setattr(linear_module, "pack_weight", lambda weight_OI: None)
    yield


class OneWay(Products):
    """Every product runs this way."""

    way: GemmVariant

    def plan(
        self,
        num_out: int,
        num_in: int,
        dtype: torch.dtype,
        role: Role,
        *,
        bias: bool = False,
        layout: Layout | None = None,
    ) -> GemmPlan:
        return GemmPlan(((MANY_ROWS, self.way),))


def order_of(way: GemmVariant, device: torch.device) -> RowOrder:
    products = OneWay(True, device, 512)
    object.__setattr__(products, "way", way)
    return RowOrder(products=products)


def quarters(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Random numbers whose products and sums float32 holds exactly."""
    return (torch.randint(-4, 5, shape, device=device) / 4).to(dtype)


def all_ways(role: Role, dtype: torch.dtype) -> list[tuple[int, GemmVariant]]:
    product = Product(SIZE, NUM_IN, dtype, role)
    return [(count, way) for count in COUNTS for way in candidates(product, count, library=True)]


def linear_of(way: GemmVariant, *, bias: bool, dtype: torch.dtype, device: torch.device) -> Linear:
    parts = {"gate": SIZE // 2, "up": SIZE // 2}
    order = order_of(way, device)
    linear = Linear(NUM_IN, parts, Compute(dtype, device, order), bias=bias)
    generator = torch.Generator(device).manual_seed(0)
    for view in linear.parameters().values():
        numbers = torch.randint(-4, 5, view.shape, generator=generator, device=device)
        view.copy_(numbers / 4)
    linear.seal()
    return linear


@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer_runs_by_any_way(device: torch.device, bias: bool) -> None:
    dtype = torch.float16
    x_TI = quarters(max(COUNTS), NUM_IN, dtype=dtype, device=device)
    for count, way in all_ways("plain", dtype):
        linear = linear_of(way, bias=bias, dtype=dtype, device=device)
        expected_TO = F.linear(x_TI[:count], linear._weight_OI, linear._bias_O)
        assert torch.equal(linear(x_TI[:count]), expected_TO), way


def test_parts_add_up_by_any_way(device: torch.device) -> None:
    dtype = torch.float16
    x_TI = quarters(max(COUNTS), NUM_IN, dtype=dtype, device=device)
    for count, way in all_ways("parts", dtype):
        linear = linear_of(way, bias=False, dtype=dtype, device=device)
        expected_TO = x_TI[:count].double() @ linear._weight_OI.double().T
        parts = linear.parts(x_TI[:count])
        if way == LIBRARY:
            assert torch.equal(parts, expected_TO.to(dtype))
        else:
            assert parts.dtype == torch.float32 and len(parts) == (1 if way.folded else 4)
            assert torch.equal(parts.sum(0), expected_TO.float()), way
    biased = linear_of(LIBRARY, bias=True, dtype=dtype, device=device)
    assert torch.equal(biased.parts(x_TI), biased(x_TI))
    assert torch.equal(biased.heads(x_TI), biased(x_TI))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[2]], ids=str)
def test_heads_of_an_fp8_layer_are_parts_with_the_same_sum_for_any_number_of_rows(
    device: torch.device, layout: Layout, bias: bool
) -> None:
    dtype, num_in = torch.float16, 512
    source = random_weight(layout, 256, num_in, dtype=dtype, device=device)
    x_TI = quarters(300, num_in, dtype=dtype, device=device)
    sums = []
    for count in (1, 40, 300):
        product = Product(256, num_in, dtype, "heads", bias, layout)
        way = candidates(product, count, library=True)[0]
        assert way.folded == (count == 300)
        compute = Compute(dtype, device, order_of(way, device))
        linear = Linear(num_in, {"q": 256}, compute, bias=bias, layout=layout)
        views = linear.views()
        weight = views["q.weight"]
        assert isinstance(weight, PackedWeight)
        weight.copy_(source)
        if bias:
            views["q.bias"].copy_(torch.arange(256))  # type: ignore[arg-type]
        linear.seal()
        parts = linear.heads(x_TI[:count])
        assert parts.shape == (1 if way.folded else 4, count, 256) and parts.dtype == torch.float32
        sums.append(summed(parts))
    assert torch.equal(sums[0], sums[2][:1]) and torch.equal(sums[1], sums[2][:40])


@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[3]], ids=str)
def test_a_packed_layer_has_the_bits_of_its_values(device: torch.device, layout: Layout) -> None:
    dtype, num_in, parts = torch.float16, 512, {"gate": 128, "up": 128}
    source = random_weight(layout, 256, num_in, dtype=dtype, device=device)
    x_TI = quarters(40, num_in, dtype=dtype, device=device)
    for count in (1, 40):
        product = Product(256, num_in, dtype, "plain", layout=layout)
        way = candidates(product, count, library=True, warpgroups=True)[0]
        assert way.tile is not None
        order = order_of(way, device)
        linear = Linear(num_in, parts, Compute(dtype, device, order), layout=layout)
        for index, part in enumerate(parts):
            rows = linear.parameters()[f"{part}.weight"]
            assert isinstance(rows, PackedWeight) and linear.tensors() == {}
            rows.copy_(source[128 * index : 128 * (index + 1)])
        linear.seal()
        x, tile = x_TI[:count], way.tile
        assert torch.equal(linear(x), expected_product(x, source, tile))
        parts_ZTO = expected_product(x, source, tile, num_splits=4)
        assert torch.equal(linear.parts(x), parts_ZTO)
        assert torch.equal(linear.gated(x), expected_gated(x, source, tile))


@pytest.mark.parametrize("bias", [False, True])
def test_a_gated_layer_runs_by_any_way(device: torch.device, bias: bool) -> None:
    dtype = torch.float16
    x_TI = quarters(max(COUNTS), NUM_IN, dtype=dtype, device=device)
    for count, way in all_ways("gated", dtype):
        linear = linear_of(way, bias=bias, dtype=dtype, device=device)
        expected_TO = F.linear(x_TI[:count], linear._weight_OI, linear._bias_O)
        found_TF = linear.gated(x_TI[:count])
        assert found_TF is not None
        assert torch.equal(found_TF, gated_silu(expected_TO)), way


@pytest.mark.parametrize("has_out", [False, True])
def test_logits_run_by_any_way(device: torch.device, has_out: bool) -> None:
    dtype = torch.float32
    x_TI = quarters(max(COUNTS), 96, dtype=dtype, device=device)
    product = Product(100, 96, dtype, "logits")
    for count in COUNTS:
        for way in candidates(product, count, library=True):
            order = order_of(way, device)
            head = LogitsHead(100, 96, Compute(dtype, device, order))
            (weight_VI,) = head.parameters()
            weight_VI.copy_(quarters(100, 96, dtype=dtype, device=device))
            head.seal()
            out_TV = torch.full((count, 100), torch.nan, device=device) if has_out else None
            logits_TV = head(x_TI[:count], out_TV)
            assert torch.equal(logits_TV, F.linear(x_TI[:count], weight_VI))
            assert out_TV is None or logits_TV.data_ptr() == out_TV.data_ptr()


DEVICE_PRODUCTS = (
    Product(768, 512, torch.bfloat16, "plain"),
    Product(768, 512, torch.bfloat16, "plain", has_bias=True),
    Product(512, 1536, torch.bfloat16, "parts"),
    Product(2048, 512, torch.bfloat16, "gated"),
    Product(4096, 512, torch.bfloat16, "logits"),
    Product(768, 512, torch.float16, "gated"),
    Product(768, 512, torch.float32, "parts"),
    Product(768, 512, torch.float32, "logits"),
)


@pytest.mark.gpu
@pytest.mark.parametrize("product", DEVICE_PRODUCTS, ids=str)
def test_measured_plans_keep_a_rows_bits(device: torch.device, product: Product) -> None:
    """The real clock and the real library: whatever was chosen, a row is the same in any call."""
    from eyas.layers.gemm.timing import DeviceClock

    if device.type != "cuda":
        pytest.skip("needs a CUDA device")
    max_rows = pad_for_device(700)
    products = Products(True, device, max_rows, Search(DeviceClock(device), None))
    shape = (product.num_out, product.num_in, product.dtype, product.role)
    plan = products.plan(*shape, bias=product.has_bias)
    options: dict[str, Any] = {"device": device, "dtype": product.dtype}
    weight_OI = torch.randn(product.num_out, product.num_in, **options)
    bias_O = torch.randn(product.num_out, **options) if product.has_bias else None
    x_TI = torch.randn(max_rows, product.num_in, **options)

    def run(count: int) -> torch.Tensor:
        way, rows_TI = plan.variant(count), x_TI[max_rows - count :]
        match product.role:
            case "parts":
                parts = apply.parts(way, rows_TI, weight_OI, product.num_splits)
                total = parts[0]
                for part_TO in parts[1:]:
                    total = total + part_TO
                return total
            case "logits":
                return apply.logits(way, rows_TI, weight_OI, None)
            case "gated":
                return apply.gated(way, rows_TI, weight_OI, bias_O)
            case "plain":
                return apply.plain(way, rows_TI, weight_OI, bias_O)

    expected = run(max_rows)
    assert expected.isfinite().all()
    for count in row_counts(max_rows):
        assert torch.equal(run(count), expected[max_rows - count :]), (count, plan.variant(count))
