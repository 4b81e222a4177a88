"""Which kernel runs a product on a device: torch's library or our own, by shape and number of rows.

Promises: with `exact` a row's bits are the same for every number of rows that `DEVICE_STEPS` allow.
Our kernel keeps its reduction order by construction. The library keeps the same order wherever it does
not split a sum, which is seen by trying: for a shape where it ever differs, it is not used. Plans are
kept for the life of the engine.
Does not know: what the products are for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from eyas.kernels.gemm import Tile

Role = Literal["plain", "parts", "gated", "logits"]
"""What becomes of a product: rows as they are, parts of a sum, an activation of its halves, logits."""

MANY_ROWS = 1 << 62
DEVICE_STEPS = ((64, 1), (512, 16), (MANY_ROWS, 128))
"""Up to so many rows, counts are multiples of so many, so that all that occur can be tried."""
PARTS_SPLITS = 4
FOLDED_FROM = 256
"""Beyond so many rows the parts of a sum are added where they are made."""
OWN_UP_TO: dict[Role, int] = {"plain": 16, "parts": 96, "gated": 128, "logits": 64}
"""Rows up to which our kernel is at least as fast as torch's library (docs/log.md, H200)."""


@dataclass(frozen=True, slots=True)
class Way:
    """Up to `rows` rows: our kernel with `tile`, or torch's library where that is None. folded: the
    parts of a sum are added by the kernel."""

    rows: int
    tile: Tile | None
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """ways: by ascending number of rows; the last has no limit. num_splits: of our kernel's sums."""

    ways: tuple[Way, ...]
    num_splits: int = 1

    def way(self, num_rows: int) -> Way:
        for way in self.ways:
            if num_rows <= way.rows:
                return way
        raise AssertionError("the last way has no limit")


@dataclass(frozen=True, slots=True)
class Products:
    """Plans by (out, in, type, role, has a bias), made when first asked for. max_rows: of a forward."""

    exact: bool
    device: torch.device
    max_rows: int
    _plans: dict[tuple[int, int, torch.dtype, Role, bool], Plan] = field(default_factory=dict)
    _agrees: dict[tuple[int, int, torch.dtype, bool, bool], bool] = field(default_factory=dict)

    def plan(
        self, num_out: int, num_in: int, dtype: torch.dtype, role: Role, *, bias: bool = False
    ) -> Plan:
        key = (num_out, num_in, dtype, role, bias)
        if key not in self._plans:
            self._plans[key] = self._make(*key)
        return self._plans[key]

    def _make(self, num_out: int, num_in: int, dtype: torch.dtype, role: Role, bias: bool) -> Plan:
        from eyas.kernels.gemm import FLOAT32_TILES, FOLDED_TILE, Tile

        if not is_supported(num_in):
            return Plan((Way(MANY_ROWS, None),))
        if dtype == torch.float32:
            small, large = FLOAT32_TILES
            ways = (Way(16, small), Way(MANY_ROWS, large))
            return Plan(ways, PARTS_SPLITS if role == "parts" else 1)
        few = (
            Way(16, Tile(64, 16, 128, 4, 4)),
            Way(32, Tile(64, 32, 128, 4, 4)),
            Way(64, Tile(64, 64, 128, 4, 3)),
        )
        if role == "parts":
            more = (Way(128, Tile(64, 128, 64, 4, 4)), Way(FOLDED_FROM, Tile(128, 128, 64, 8, 3)))
            most = Way(MANY_ROWS, FOLDED_TILE, folded=True)
        else:
            more = (Way(128, Tile(128, 128, 64, 8, 3)), Way(256, Tile(128, 256, 64, 8, 3)))
            most = Way(MANY_ROWS, Tile(128, 256, 64, 8, 4, by_copy_engine=role != "gated"))
        ways = (*few, *more, most)
        splits = PARTS_SPLITS if role == "parts" else 1
        agrees = splits == 1 and self.exact
        if agrees:
            agrees = self._library_agrees(num_out, num_in, dtype, role == "logits", bias)
        if agrees or not self.exact:
            limit = OWN_UP_TO[role]
            last = next(i for i, way in enumerate(ways) if way.rows >= limit)
            own = (*ways[:last], replace(ways[last], rows=limit))
            ways = (*own, Way(MANY_ROWS, None))
        return Plan(ways, splits)

    def _library_agrees(self, *key: *tuple[int, int, torch.dtype, bool, bool]) -> bool:
        """Whether the library's bits are our kernel's, for every number of rows that can occur."""
        if key not in self._agrees:
            self._agrees[key] = self._try(*key)
        return self._agrees[key]

    def _try(
        self, num_out: int, num_in: int, dtype: torch.dtype, is_logits: bool, has_bias: bool
    ) -> bool:
        from eyas.kernels.gemm import Tile, product

        tile = Tile(64, 64, 128, 4, 3)
        generator = torch.Generator(self.device).manual_seed(20261121)
        random = {"generator": generator, "device": self.device, "dtype": dtype}
        weight_OI = torch.randn(num_out, num_in, **random) * num_in**-0.5
        x_TI = torch.randn(max(64, self.max_rows), num_in, **random)
        bias_O = torch.randn(num_out, **random) if has_bias else None
        out_dtype = torch.float32 if is_logits else dtype
        with torch.inference_mode():
            for count in row_counts(self.max_rows):
                rows_TI = x_TI[:count]
                if is_logits:
                    theirs = torch.mm(rows_TI, weight_OI.t(), out_dtype=torch.float32)
                else:
                    theirs = torch.nn.functional.linear(rows_TI, weight_OI, bias_O)
                ours = product(rows_TI, weight_OI, tile=tile, bias_O=bias_O, out_dtype=out_dtype)
                if not torch.equal(ours, theirs):
                    return False
        return True


def row_counts(max_rows: int) -> Iterator[int]:
    """Every number of rows that a product can be asked for."""
    count = 0
    for most, step in DEVICE_STEPS:
        while count < min(most, max_rows):
            count += step
            yield count


def pad_for_device(num_rows: int) -> int:
    """The number of rows to run `num_rows` with."""
    step = next(step for most, step in DEVICE_STEPS if num_rows <= most)
    return -(-num_rows // step) * step


def is_supported(num_in: int) -> bool:
    """Whether our kernel takes so many input features; else torch's library does, in its own order."""
    return num_in % 16 == 0
