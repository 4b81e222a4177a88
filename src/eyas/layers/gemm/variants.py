"""Variants of a product on a device: our kernel with one of its tiles, or torch's library.

Promises: data and rules alone. All variants of our kernels give a row the same bits; tiles by
warpgroups do so only on some devices. The library's bits may differ (`products.Products` decides
which variants may be used).
Does not know: which variant is the fastest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from eyas.kernels.packed import Layout
from eyas.kernels.tiles import (
    MANY_ROWS,
    Tile,
    folded_tiles_for,
    gated_tiles_for,
    grouped_tiles_for,
    packed_tiles_for,
    persistent_tiles_for,
    staged_tiles_for,
    tiles_for,
)

Role = Literal["plain", "heads", "parts", "gated", "logits"]
"""The epilogue of a product: rows as they are; heads, of which scaled sums (`splits_of`) leave parts;
parts of a sum; an activation of its halves; logits."""

DEVICE_STEPS = ((64, 1), (512, 16), (MANY_ROWS, 128))
"""(most rows, step): counts up to that many rows are multiples of the step, so that all can be
tried."""
BUCKETS = (1, 8, 16, 32, 64, 96, 128, 192, 256, 512, 2048)
"""Row counts that are measured. Each stands for the counts below it, the last also for all larger
ones."""
PARTS_SPLITS = 4
SCORE_SPLITS = 8
"""Parts of a router's scores: its few outputs would otherwise keep few multiprocessors busy."""
LIBRARY_USUALLY = 128
"""Beyond this many rows the library is the default variant, if it may be used: its kernels share loads
between multiprocessors, which ours cannot."""
GROUPED_USUALLY: dict[Role, int] = {"gated": 192, "parts": MANY_ROWS}
"""Up to this many rows, tiles by warpgroups come before our other tiles, if there are any."""
LIBRARY_AFTER_GROUPED = 192
"""If they do, the library is the default variant only beyond this many rows."""
GATED_BY_PERSISTENT = 512
"""Beyond this many rows, persistent programs are the default variant of gated products: the library
needs a second kernel for the activation."""
FOLDED_BEYOND, FOLDED_USUALLY = 128, 256
"""Beyond the first number of rows a program may compute all parts of a sum (`GemmVariant.folded`);
beyond the second this is the default."""


def splits_of(role: Role, layout: Layout | None) -> int:
    """Return the number of column ranges that our kernel sums separately. layout: of a packed weight.

    Packed weights need more programs for heads than these have tiles, but those with the bits of stored
    values have one sum, as stored values do, whose heads the library may compute.
    """
    is_packed = layout is not None and layout.scales_sums
    return PARTS_SPLITS if role == "parts" or (role == "heads" and is_packed) else 1


@dataclass(frozen=True, slots=True)
class Product:
    """A product x @ weight.T with a weight [num_out, num_in]. has_bias: whether a bias is added.

    layout: of a packed weight; None is one whose values are stored."""

    num_out: int
    num_in: int
    dtype: torch.dtype
    role: Role
    has_bias: bool = False
    layout: Layout | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the weight."""
        if self.layout is not None:
            return self.layout.bytes_of(self.num_out, self.num_in)
        return self.num_out * self.num_in * self.dtype.itemsize

    @property
    def num_splits(self) -> int:
        """Number of column ranges that our kernel sums separately."""
        return splits_of(self.role, self.layout)

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        packed = "" if self.layout is None else f" from {self.layout}"
        bias = " bias" * self.has_bias
        return f"{self.num_out}x{self.num_in} {kind}{packed} {self.role}{bias}"


@dataclass(frozen=True, slots=True)
class GemmVariant:
    """Our kernel with `tile`, or torch's library if it is None. folded: the kernel adds the parts
    of a sum."""

    tile: Tile | None
    folded: bool = False

    def __str__(self) -> str:
        if self.tile is None:
            return "library"
        t = self.tile
        rows = f"{t.block_rows}+{t.more_rows}" if t.more_rows else str(t.block_rows)
        text = f"{t.block_out}x{rows}x{t.block_k}w{t.num_warps}s{t.num_stages}"
        by = "P" if t.is_persistent else "G" if t.by_warpgroups else "T" * t.by_copy_engine
        return text + by + "+" * self.folded


LIBRARY = GemmVariant(None)


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """The variants of a product by number of rows.

    variants: (most rows, variant) in ascending order; the last has no limit.
    """

    variants: tuple[tuple[int, GemmVariant], ...]

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


def plan_of(variants: tuple[GemmVariant, ...]) -> GemmPlan:
    """Return the plan with these variants for the first buckets; equal neighbours are merged, and
    the last has no limit."""
    merged: list[tuple[int, GemmVariant]] = []
    for most, variant in zip(BUCKETS, variants, strict=False):
        if merged and merged[-1][1] == variant:
            merged.pop()
        merged.append((most, variant))
    merged[-1] = (MANY_ROWS, merged[-1][1])
    return GemmPlan(tuple(merged))


def buckets_up_to(max_rows: int) -> tuple[int, ...]:
    """Return the buckets of calls of up to `max_rows` rows."""
    needed = sum(bucket < max_rows for bucket in BUCKETS) + 1
    return BUCKETS[:needed]


def candidates(
    product: Product, num_rows: int, *, library: bool, warpgroups: bool = False
) -> tuple[GemmVariant, ...]:
    """Return the variants worth measuring for this many rows, the default one first.

    library, warpgroups: whether torch's library and tiles by warpgroups may be among them; with a
    packed weight the library never is, and tiles by the copy engine take the place of those by
    warpgroups.
    """
    dtype, is_packed = product.dtype, product.layout is not None
    if is_packed:
        tiles = packed_tiles_for(num_rows, dtype)
    else:
        tiles = (gated_tiles_for if product.role == "gated" else tiles_for)(num_rows, dtype)
    variants = [GemmVariant(tile) for tile in tiles]
    folded = product.num_splits > 1
    if folded and num_rows > FOLDED_BEYOND:
        tiles = folded_tiles_for(num_rows, dtype, packed=is_packed)
        adding = [GemmVariant(tile, folded=True) for tile in tiles]
        variants = [*adding, *variants] if num_rows > FOLDED_USUALLY else [*variants, *adding]
    if product.layout is not None:
        if warpgroups and product.layout.kind == "fp8":
            variants += [GemmVariant(tile) for tile in staged_tiles_for(num_rows, dtype)]
        return tuple(variants)
    grouped = []
    if warpgroups:
        grouped = [GemmVariant(tile) for tile in grouped_tiles_for(num_rows, dtype)]
        persistent = persistent_tiles_for(num_rows, dtype, folded=folded)
        if product.role != "logits":  # of which no call has so many rows
            grouped += [GemmVariant(tile, folded) for tile in persistent]
    leads = bool(grouped) and product.role == "gated" and num_rows > GATED_BY_PERSISTENT
    is_usual = leads or num_rows <= GROUPED_USUALLY.get(product.role, 0)
    variants = [*grouped, *variants] if is_usual else [*variants, *grouped]
    if library:
        beyond = LIBRARY_AFTER_GROUPED if grouped and is_usual else LIBRARY_USUALLY
        is_first = num_rows > beyond and not leads
        variants = [LIBRARY, *variants] if is_first else [*variants, LIBRARY]
    return tuple(variants)


def is_supported(num_in: int) -> bool:
    """Return whether our kernel can run this many input features; else torch's library runs, in its own
    reduction order."""
    return num_in % 16 == 0


def row_counts(max_rows: int) -> Iterator[int]:
    """Yield every number of rows that a product can have."""
    count = 0
    for most, step in DEVICE_STEPS:
        while count < min(most, max_rows):
            count += step
            yield count


def pad_for_device(num_rows: int) -> int:
    """Return the number of rows to run `num_rows` rows with."""
    step = next(step for most, step in DEVICE_STEPS if num_rows <= most)
    return -(-num_rows // step) * step
