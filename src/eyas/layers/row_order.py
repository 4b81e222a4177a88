"""The row counts of forward passes at which a row gets the same bits in any batch.

Promises: if the rule is exact, a row's bits do not depend on the batch when rows are padded to
`RowOrder.pad`.
Does not know: which rule is exact (on a CPU `row_probe.find_row_order` measures it, on a device
`products.Products` promises it).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eyas.layers.gemm.products import Products
from eyas.layers.gemm.variants import pad_for_device

STEPS = ((16, 1), (64, 4), (128, 8), (1 << 62, 32))
"""(most rows, step): counts up to that many rows are multiples of the step."""


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The rule for the row count of a forward pass.

    minimum: the least rows of a product. bucket: products of more rows run in pieces of this many,
    the last of which has the rest, at least `minimum`; None runs all rows in one product. is_stepped:
    larger counts are rounded up (`STEPS`), since a CPU's products are prepared for each count, which
    takes milliseconds and memory. products: the plans of products on a device; None on a CPU.
    """

    minimum: int = 1
    bucket: int | None = None
    is_stepped: bool = False
    products: Products | None = field(default=None, compare=False)

    def pad(self, num_rows: int) -> int:
        """Return the row count, at least `num_rows`, to run `num_rows` rows with."""
        if self.products is not None:
            return pad_for_device(num_rows)
        padded = max(num_rows, self.minimum)
        if self.is_stepped:
            step = next(step for most, step in STEPS if padded <= most)
            padded = -(-padded // step) * step
        rest = 0 if self.bucket is None else padded % self.bucket
        return padded + max(0, self.minimum - rest) if rest else padded


@dataclass(frozen=True, slots=True)
class RowOrderReport:
    """A rule, whether it is exact, and the reason, for the log."""

    order: RowOrder
    exact: bool
    reason: str
