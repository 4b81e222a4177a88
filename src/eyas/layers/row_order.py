"""How many rows a forward must carry, so that a row gets the same bits in any batch.

Promises: a runner that pads to `RowOrder.pad` gets that, where the rule is exact.
Does not know: which rule is (on a CPU `row_probe.find_row_order` measures it, on a device
`products.Products` promises it).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eyas.layers.gemm_variants import pad_for_device
from eyas.layers.products import Products

STEPS = ((16, 1), (64, 4), (128, 8), (1 << 62, 32))
"""Up to so many rows, counts are multiples of so many."""


@dataclass(frozen=True, slots=True)
class RowOrder:
    """How many rows a forward must carry.

    minimum: at least this many. bucket: a multiple of this many, and every product runs in pieces
    of exactly this many; None lets a product take all rows at once. is_stepped: larger counts are
    rounded up to few (`STEPS`), because the CPU's products are prepared once for every count, which
    takes milliseconds and memory. products: on a device, which kernels run them; None is torch's.
    """

    minimum: int = 1
    bucket: int | None = None
    is_stepped: bool = False
    products: Products | None = field(default=None, compare=False)

    def pad(self, num_rows: int) -> int:
        """The row count to run `num_rows` rows with; never less."""
        if self.products is not None:
            return pad_for_device(num_rows)
        padded = max(num_rows, self.minimum)
        step = self.bucket or 1
        if self.bucket is None and self.is_stepped:
            step = next(step for most, step in STEPS if padded <= most)
        return -(-padded // step) * step


@dataclass(frozen=True, slots=True)
class RowOrderReport:
    """The rule found, whether it is exact, and why: for the log."""

    order: RowOrder
    exact: bool
    reason: str
