"""The start-up measurement of row orders: what it picks, and what it says when nothing holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from eyas.layers import linear, row_probe
from eyas.layers.compute import Compute
from eyas.layers.row_order import RowOrder
from eyas.layers.row_probe import find_row_order
from eyas.native.products import is_available

SHAPES = [(640, 320), (320, 384), (1408, 320), (320, 704)]


def test_padding_reaches_the_minimum_and_fills_buckets() -> None:
    assert [RowOrder(2).pad(n) for n in (0, 1, 2, 3)] == [2, 2, 2, 3]
    assert [RowOrder(32, 32).pad(n) for n in (1, 32, 33, 64, 65)] == [32, 32, 64, 64, 96]
    pieces = RowOrder(8, 32, is_stepped=True)
    assert [pieces.pad(n) for n in (1, 9, 32, 33, 36, 40, 65, 97)] == [
        8,
        9,
        32,
        40,
        40,
        40,
        72,
        104,
    ]
    for order in (RowOrder(8), RowOrder(2, 32), RowOrder(2, 32, is_stepped=True), pieces):
        for n in range(300):
            rest = order.pad(n) % (order.bucket or 512)
            assert order.pad(order.pad(n)) == order.pad(n) >= n and rest not in range(
                1, order.minimum
            )
    assert all(RowOrder(8).pad(RowOrder(8).pad(n)) == RowOrder(8).pad(n) for n in range(100))
    stepped = RowOrder(2, is_stepped=True)
    assert [stepped.pad(n) for n in (1, 16, 17, 64, 65, 128, 129, 161)] == [
        *(2, 16, 20, 64),
        *(72, 128, 160, 192),
    ]
    assert all(stepped.pad(stepped.pad(n)) == stepped.pad(n) >= n for n in range(600))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_this_machine_has_an_exact_order(dtype: torch.dtype) -> None:
    report = find_row_order(SHAPES, dtype, 512, heads=[(4096, 320)])
    assert report.exact, report.reason


@pytest.mark.usefixtures("library_products")
def test_this_machine_has_an_exact_order_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "packed_weight", lambda weight: None)
    report = find_row_order(SHAPES, torch.float32, 512, heads=[(4096, 320)])
    assert report.exact, report.reason


def test_compiled_products_need_no_padding() -> None:
    if not is_available(torch.float32, torch.device("cpu")):
        pytest.skip("there is no C compiler, or the processor has no vectors")
    report = find_row_order(SHAPES, torch.float32, 512, heads=[(4096, 320)])
    assert report.exact
    assert [report.order.pad(count) for count in (1, 2, 17, 130)] == [1, 2, 17, 130]


@pytest.mark.parametrize("work", [10, 10**5, 10**6, 10**8])
def test_the_work_of_the_check_is_bounded(work: int) -> None:
    counts = row_probe._row_counts(512, work)
    assert counts[0] == 1 and counts[-1] == 512 and {2, 3, 8, 16} <= set(counts)
    always = 512 + sum((1, 2, 3, 4, 5, 7, 8, 9, 16, 17))
    assert (sum(counts) - always) * work <= row_probe.MAX_PROBE_PRODUCTS


@pytest.fixture
def library_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are those of torch's libraries, whose row counts must be tried."""
    monkeypatch.setattr(row_probe, "is_available", lambda dtype, device: False)


def fake_linear(differs: Callable[[int], bool]) -> type:
    """A layer whose result has other bits at row counts that `differs` names."""

    class FakeLinear:
        def __init__(self, in_features: int, parts: dict[str, int], compute: Compute) -> None:
            self.weight = torch.zeros(parts["probe"], in_features)

        def tensors(self) -> dict[str, torch.Tensor]:
            return {"probe.weight": self.weight}

        def seal(self) -> None:
            pass

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if differs(x.shape[0]) else x

    return FakeLinear


@pytest.mark.usefixtures("library_products")
@pytest.mark.parametrize(
    ("differs", "order", "exact"),
    [
        (lambda count: count == 1, RowOrder(2, is_stepped=True), True),
        (lambda count: count in (3, 5, 7), RowOrder(8, is_stepped=True), True),
        (lambda count: count == 1 or count > 32, RowOrder(2, 32, is_stepped=True), True),
        (lambda count: count < 6 or count > 32, RowOrder(8, 32, is_stepped=True), True),
        (lambda count: count % 2 == 1, RowOrder(32, 32), True),
    ],
    ids=["one row", "few rows", "many rows", "few and many rows", "odd counts"],
)
def test_the_first_rule_that_holds_is_taken(
    differs: Callable[[int], bool],
    order: RowOrder,
    exact: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_probe, "Linear", fake_linear(differs))
    report = find_row_order([(16, 8)], torch.float32, 256)
    assert (report.order, report.exact) == (order, exact)


@pytest.mark.usefixtures("library_products")
def test_another_order_of_additions_shows_in_sixteen_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As products with AMX: up to 32 rows are added up in another order than more rows."""

    class TwoOrders(fake_linear(lambda _: False)):  # type: ignore[misc]
        def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
            terms = (x_TI.float().unsqueeze(1) * self.weight).unbind(-1)
            return sum(terms[::-1] if len(x_TI) <= 32 else terms).to(x_TI.dtype)

    monkeypatch.setattr(row_probe, "Linear", TwoOrders)
    report = find_row_order([(4, 704)], torch.bfloat16, 64)
    assert (report.order, report.exact) == (RowOrder(2, 32, is_stepped=True), True)


@pytest.mark.usefixtures("library_products")
def test_a_product_that_mixes_rows_is_reported_by_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mixing(fake_linear(lambda _: False)):  # type: ignore[misc]
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x - x.mean(0)

    monkeypatch.setattr(row_probe, "Linear", Mixing)
    report = find_row_order([(16, 8)], torch.float32, 256)
    assert not report.exact
    assert "16 x 8" in report.reason
