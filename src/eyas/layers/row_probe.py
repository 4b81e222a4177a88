"""Measure at which row counts a CPU gives a row the same bits, for the shapes of a model.

Promises: `find_row_order` runs the layers that the model runs, on random data whose products show the
order of their additions, and returns the first rule that held. Rows that are padded to
`RowOrder.pad` then have the same bits in any batch.
Does not know: models, batches, devices (`products.Products` does).

Legend: T rows, I input features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from eyas.layers.compute import Compute
from eyas.layers.linear import Linear, LogitsHead
from eyas.layers.row_order import RowOrder, RowOrderReport
from eyas.native.products import is_available

CPU = torch.device("cpu")
MINIMUMS = (2, 8)
"""The least row counts that are tried, above which all counts may agree."""
BUCKET = 32
"""The most rows of a product if not all counts agree. With AMX oneDNN adds up 1 to 32 rows in one
order, and more in others."""
MAX_PROBE_PRODUCTS = 200_000_000
"""The most multiply-adds for one shape, beyond the row counts that are always tried."""
MAX_SHUFFLED_ROWS = 48


def find_row_order(
    shapes: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    max_rows: int,
    *,
    heads: Sequence[tuple[int, int]] = (),
) -> RowOrderReport:
    """Find a rule for every (out, in) of `shapes`, and for logits heads of the shapes `heads`.

    Products that this package compiles have one order for any number of rows, so nothing is padded.
    Otherwise row counts are tried.

    max_rows: of the largest forward pass, padding included. Returns the first rule that held: all
    rows in one product, from 2 or from 8 rows on; pieces of up to BUCKET rows, from 2 or from 8 on;
    pieces of exactly BUCKET rows. If none holds, the report is not exact and names the shape that
    differed.
    """
    if is_available(dtype, CPU):
        return RowOrderReport(RowOrder(), True, "products have one order for any number of rows")
    least = MINIMUMS[0]
    max_rows = RowOrder(least, is_stepped=True).pad(max_rows)
    differing = partial(_worst_count, shapes, heads, dtype, least)
    worst, label = differing(max_rows)
    if minimum := _minimum_above(worst):
        rest = f" ({label} differs at {worst})" if worst else ""
        reason = f"every shape agrees from {minimum} rows up{rest}"
        return RowOrderReport(RowOrder(minimum, is_stepped=True), True, reason)
    reason = f"{BUCKET} rows at a time, for {label} differs at {worst} rows"
    if minimum := _minimum_above(differing(BUCKET)[0]):
        order = RowOrder(minimum, BUCKET, is_stepped=True)
        return RowOrderReport(order, True, f"products run up to {reason}")
    order = RowOrder(BUCKET, BUCKET)
    with torch.inference_mode():
        for label, layer, in_features, _ in _probes(shapes, heads, dtype):
            if not _is_exact_in_place(layer, _rows(BUCKET, in_features, dtype)):
                text = f"{label} depends on the other rows even at {BUCKET} rows"
                return RowOrderReport(order, False, text)
    return RowOrderReport(order, True, f"products run {reason}")


def _minimum_above(count: int) -> int | None:
    """Return the first of MINIMUMS above a row count; None if there is none."""
    return next((minimum for minimum in MINIMUMS if count < minimum), None)


def _worst_count(
    shapes: Sequence[tuple[int, int]],
    heads: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    minimum: int,
    max_rows: int,
) -> tuple[int, str]:
    """Return the largest row count from `minimum` on whose rows differ from those of `max_rows`, and of
    which layer; 0 if all agree."""
    worst, where = 0, ""
    with torch.inference_mode():
        for label, layer, in_features, work in _probes(shapes, heads, dtype):
            rows_TI = _rows(max_rows, in_features, dtype)
            count = _largest_differing_count(layer, rows_TI, max_rows, work, minimum)
            if count > worst:
                worst, where = count, label
    return worst, where


Product = Callable[[torch.Tensor], torch.Tensor]


def _probes(
    shapes: Sequence[tuple[int, int]],
    heads: Sequence[tuple[int, int]],
    dtype: torch.dtype,
) -> Iterator[tuple[str, Product, int, int]]:
    """Yield each shape's name, layer with random weights, input width and multiply-adds per row."""
    order = RowOrder()
    for out_features, in_features in dict.fromkeys(shapes):
        parts = {"probe": out_features}
        linear = Linear(in_features, parts, Compute(dtype, CPU, order))
        _fill(linear.tensors()["probe.weight"], in_features)
        linear.seal()
        label = f"the product of shape {out_features} x {in_features}"
        yield label, linear, in_features, out_features * in_features
    for head in dict.fromkeys(heads):
        logits = LogitsHead(*head, Compute(dtype, CPU, order))
        for block in logits.views():
            _fill(block, head[1])
        logits.seal()
        yield f"the logits head of shape {head[0]} x {head[1]}", logits, head[1], head[0] * head[1]


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(20261121)


def _fill(weight: torch.Tensor, in_features: int) -> None:
    """Fill `weight` with numbers of unit gain; large weights repeat a block, which is fast."""
    rows = max(1, min(weight.shape[0], (1 << 16) // in_features))
    block = _halves(rows, in_features, -1.0)
    block *= in_features**-0.5
    for start in range(0, weight.shape[0], rows):
        weight[start : start + rows] = block[: weight.shape[0] - start]


def _rows(num_rows: int, in_features: int, dtype: torch.dtype) -> torch.Tensor:
    return _halves(num_rows, in_features, 1.0).to(dtype)


def _halves(num_rows: int, num_features: int, sign: float) -> torch.Tensor:
    """Return random numbers [num_rows, num_features]: half of the columns are `sign` times the others,
    in an order that is the same for every call of a width.

    Products of rows with sign 1 and weights with sign -1 cancel: what remains is the rounding of their
    sums, which differs with the order of additions. A sum as large as its terms seldom shows the
    order, since it is rounded to 16 bits afterwards.
    """
    half_RI = torch.randn(num_rows, num_features // 2, generator=_generator())
    rest_RI = torch.zeros(num_rows, num_features % 2)
    columns_I = torch.randperm(num_features, generator=_generator())
    return torch.cat([half_RI, sign * half_RI, rest_RI], dim=1)[:, columns_I]


def _row_counts(max_rows: int, work: int) -> list[int]:
    """Return the counts to try: small ones and max_rows, and others while the work is bounded."""
    always = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17)
    counts = {count for count in always if count <= max_rows} | {max_rows}
    spent = 0
    for count in (32, 33, 64, 15, 31, 65, 12, 24, 48, 128, 100, 129, 256, 200, 300, 512, 1024):
        if count < max_rows and spent + count * work <= MAX_PROBE_PRODUCTS:
            spent += count * work
            counts.add(count)
    return sorted(counts)


def _largest_differing_count(
    layer: Product, rows_TI: torch.Tensor, max_rows: int, work: int, minimum: int
) -> int:
    """Return the largest row count whose rows differ from those of the full call; 0 if all agree.

    Rows are taken from several places of the full call, and some in a random order.
    """
    full = layer(rows_TI)
    for count in reversed(_row_counts(max_rows, work)):
        if count < minimum:
            break
        for offset in {0, max_rows - count, (max_rows - count) // 3}:
            piece = layer(rows_TI[offset : offset + count])
            if not torch.equal(piece, full[offset : offset + count]):
                return count
            if count * work > MAX_PROBE_PRODUCTS // 10:
                break
    count = min(max_rows, MAX_SHUFFLED_ROWS)
    order_T = torch.randperm(max_rows, generator=_generator())[:count]
    return 0 if torch.equal(layer(rows_TI[order_T]), full[order_T]) else count


def _is_exact_in_place(layer: Product, rows_TI: torch.Tensor) -> bool:
    """Return whether, at one row count, a row's bits depend neither on its place nor on other rows."""
    full = layer(rows_TI)
    rolled = layer(rows_TI.roll(5, 0))
    alone_TI = torch.zeros_like(rows_TI)
    alone_TI[0] = rows_TI[0]
    return torch.equal(rolled, full.roll(5, 0)) and torch.equal(layer(alone_TI)[0], full[0])
