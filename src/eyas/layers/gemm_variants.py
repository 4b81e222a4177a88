"""Variants of a product on a device: our kernel with one of its tiles, or torch's library.

Promises: data and rules alone. All variants of our kernels give a row the same bits, those by
warpgroups where a device adds up alike; the library's may be others (`products.Products` decides who
may take part). Does not know: which variant is the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from eyas.kernels.tiles import (
    MANY_ROWS,
    Tile,
    folded_tiles_for,
    gated_tiles_for,
    grouped_tiles_for,
    tiles_for,
)

Role = Literal["plain", "parts", "gated", "logits"]
"""What becomes of a product: rows as they are, parts of a sum, an activation of its halves, logits."""

DEVICE_STEPS = ((64, 1), (512, 16), (MANY_ROWS, 128))
"""Up to so many rows, counts are multiples of so many, so that all that occur can be tried."""
BUCKETS = (1, 8, 16, 32, 64, 96, 128, 192, 256, 512, 2048)
"""Row counts that are measured; each speaks for those below it, the last for all beyond too."""
PARTS_SPLITS = 4
LIBRARY_USUALLY = 128
"""Beyond so many rows the library is the usual variant, where it may be: multiprocessors share what
they load there, which our kernel cannot have them do."""
GROUPED_USUALLY: dict[Role, int] = {"gated": 192, "parts": 256}
"""Up to so many rows tiles by warpgroups stand before our others, where there are any."""
LIBRARY_AFTER_GROUPED = 192
"""Where they do, the library is the usual variant only beyond so many rows."""
FOLDED_BEYOND, FOLDED_USUALLY = 128, 256
"""Beyond so many rows there may be programs enough for one to run all parts of a sum; there are."""


@dataclass(frozen=True, slots=True)
class Product:
    """x @ weight.T: num_out rows of weight, of num_in numbers each; has_bias: one is added."""

    num_out: int
    num_in: int
    dtype: torch.dtype
    role: Role
    has_bias: bool = False

    @property
    def num_splits(self) -> int:
        """Ranges of columns that our kernel's sums are made of."""
        return PARTS_SPLITS if self.role == "parts" else 1

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.num_out}x{self.num_in} {kind} {self.role}{' bias' * self.has_bias}"


@dataclass(frozen=True, slots=True)
class GemmVariant:
    """Our kernels with `tile`, or torch's library where that is None. folded: the parts of a sum are
    added by the kernel."""

    tile: Tile | None
    folded: bool = False

    def __str__(self) -> str:
        if self.tile is None:
            return "library"
        t = self.tile
        rows = f"{t.block_rows}+{t.more_rows}" if t.more_rows else str(t.block_rows)
        text = f"{t.block_out}x{rows}x{t.block_k}w{t.num_warps}s{t.num_stages}"
        by = "G" if t.by_warpgroups else "T" * t.by_copy_engine
        return text + by + "+" * self.folded


LIBRARY = GemmVariant(None)


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """variants: up to so many rows, this variant, ascending; the last has no limit. num_splits: of our
    kernel's sums."""

    variants: tuple[tuple[int, GemmVariant], ...]
    num_splits: int = 1

    def variant(self, num_rows: int) -> GemmVariant:
        for most, variant in self.variants:
            if num_rows <= most:
                return variant
        raise AssertionError("the last variant has no limit")

    def __str__(self) -> str:
        return ", ".join(
            f"{variant} up to {most}" if most < MANY_ROWS else f"{variant} beyond"
            for most, variant in self.variants
        )


def plan_of(product: Product, variants: tuple[GemmVariant, ...]) -> GemmPlan:
    """Of the variants of the first buckets; neighbours that agree become one, and the last has no
    limit."""
    merged: list[tuple[int, GemmVariant]] = []
    for most, variant in zip(BUCKETS, variants, strict=False):
        if merged and merged[-1][1] == variant:
            merged.pop()
        merged.append((most, variant))
    merged[-1] = (MANY_ROWS, merged[-1][1])
    return GemmPlan(tuple(merged), product.num_splits)


def buckets_up_to(max_rows: int) -> tuple[int, ...]:
    """The buckets that calls of up to so many rows fall into."""
    needed = sum(bucket < max_rows for bucket in BUCKETS) + 1
    return BUCKETS[:needed]


def candidates(
    product: Product, num_rows: int, *, library: bool, warpgroups: bool = False
) -> tuple[GemmVariant, ...]:
    """The variants worth measuring for so many rows, the usual one first. library, warpgroups: torch's
    library, tiles by warpgroups may be among them."""
    if product.role == "gated":
        variants = [GemmVariant(tile) for tile in gated_tiles_for(num_rows, product.dtype)]
    else:
        variants = [GemmVariant(tile) for tile in tiles_for(num_rows, product.dtype)]
    if product.role == "parts" and num_rows > FOLDED_BEYOND:
        folded = [
            GemmVariant(tile, folded=True) for tile in folded_tiles_for(num_rows, product.dtype)
        ]
        variants = [*folded, *variants] if num_rows > FOLDED_USUALLY else [*variants, *folded]
    grouped = []
    if warpgroups:
        grouped = [GemmVariant(tile) for tile in grouped_tiles_for(num_rows, product.dtype)]
    is_usual = num_rows <= GROUPED_USUALLY.get(product.role, 0)
    variants = [*grouped, *variants] if is_usual else [*variants, *grouped]
    if library:
        beyond = LIBRARY_AFTER_GROUPED if grouped and is_usual else LIBRARY_USUALLY
        variants = [LIBRARY, *variants] if num_rows > beyond else [*variants, LIBRARY]
    return tuple(variants)


def is_supported(num_in: int) -> bool:
    """Whether our kernel takes so many input features; else torch's library does, in its own order."""
    return num_in % 16 == 0


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
