"""Plan which variant runs a product on a device, by shape, number of rows and epilogue.

Promises: with `exact` a row's bits are the same for every number of rows that `DEVICE_STEPS` allow.
Our first kernel keeps its reduction order by construction. The library has the same order where it
does not split a sum; this is tried at every start, and the library is not used for a shape where it
differs. Tiles by warpgroups are used if the matrix instruction adds in the same order on both its
sides, which is tried once for each type, as are tiles of FP8 weights by the copy engine. Of the
allowed variants the fastest is chosen by measuring (`search`), or from the cache of an earlier start,
which may cost speed but changes no bits. Plans live as long as the engine.
Does not know: what the products are for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from eyas.kernels import has_warpgroups, usable
from eyas.kernels.ahead import CompileProcesses, collecting, is_collecting
from eyas.kernels.packed import Layout, Weight
from eyas.kernels.tiles import Tile, grouped_tiles_for, persistent_tiles_for, staged_tiles_for
from eyas.layers.gemm.search import Search, search_on
from eyas.layers.gemm.variants import (
    LIBRARY,
    GemmPlan,
    GemmVariant,
    Product,
    Role,
    buckets_up_to,
    candidates,
    is_supported,
    plan_of,
    row_counts,
)

log = logging.getLogger(__name__)

TRIAL_SIDES = (384, 1088, 192)
"""Output features, input features and rows of the product on which both sides are compared."""
TRIAL_LAYOUT = Layout("fp8", 128, 128)
TRIAL_ROWS = 64
"""The library is compared with the variant of our kernel for this many rows."""


def _has_own_tiles(product: Product) -> bool:
    """Whether there are tiles for Hopper devices alone: for stored values and FP8."""
    return product.layout is None or product.layout.kind == "fp8"


@dataclass(frozen=True, slots=True)
class Products:
    """The plans of products, made at first use, which must not happen while a graph is captured.

    max_rows: of a forward pass. search: finds the fastest variants; None uses the device's own
    search, and the default variants where kernels do not run.
    """

    exact: bool
    device: torch.device
    max_rows: int
    search: Search | None = None
    _plans: dict[Product, GemmPlan] = field(default_factory=dict)
    _collected: dict[Product, GemmPlan] = field(default_factory=dict)
    _agrees: dict[tuple[int, int, torch.dtype, bool, bool], bool] = field(default_factory=dict)
    _tiles_agree: dict[tuple[torch.dtype, bool], bool] = field(default_factory=dict)

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
        """Return the plan of a product. layout: of a packed weight, which our kernels alone take.

        While kernels are collected nothing can be measured, and the plan is not to be kept.
        """
        product = Product(num_out, num_in, dtype, role, bias, layout)
        plan = self._plans.get(product)
        if plan is None and is_collecting():
            plan = self._collected.get(product)
            if plan is None:
                plan = self._collected[product] = self._collect(
                    product, self.search or search_on(self.device)
                )
        elif plan is None:
            plan = self._plans[product] = plan_of(self._variants(product))
            log.debug("%s: %s", product, plan)
        return plan

    def _compile(self, product: Product, search: Search, processes: CompileProcesses) -> None:
        """Compile all variants that may be measured."""
        try:
            with collecting(processes.add):
                self._collect(product, search)
        except Exception:  # of memory, or of a tile that the compiler refuses
            log.debug("%s: variants are compiled when they are measured", product, exc_info=True)
        processes.wait()

    def _collect(self, product: Product, search: Search) -> GemmPlan:
        """Run all variants that may be measured, and return the default ones."""
        buckets = buckets_up_to(self.max_rows)
        if not is_supported(product.num_in):
            return plan_of((LIBRARY,))
        warpgroups = _has_own_tiles(product) and has_warpgroups(self.device)
        if warpgroups:
            self._try_warpgroups(product)
        library = product.layout is None
        lists = [
            candidates(product, bucket, library=library, warpgroups=warpgroups)
            for bucket in buckets
        ]
        search.collect(product, [variant for variants in lists for variant in variants])
        return plan_of(tuple(variants[0] for variants in lists))

    def _variants(self, product: Product) -> tuple[GemmVariant, ...]:
        """Return the variant of each bucket of rows."""
        if not is_supported(product.num_in):
            return (LIBRARY,)
        search = self.search
        if search is None and usable(self.device):
            search = search_on(self.device)
        if search is None:
            buckets = buckets_up_to(self.max_rows)
            return tuple(candidates(product, rows, library=False)[0] for rows in buckets)
        if search.processes is not None and not search.knows(product):
            self._compile(product, search, search.processes)
        is_packed = product.layout is not None
        library = not is_packed and (not self.exact or self._library_agrees(product))
        warpgroups = self._warpgroups_agree(product)
        return search.variants(product, self.max_rows, library=library, warpgroups=warpgroups)

    def _warpgroups_agree(self, product: Product) -> bool:
        """Return whether this device has tiles by warpgroups, or by the copy engine for FP8 weights,
        with the bits of all other tiles."""
        if not _has_own_tiles(product):
            return False
        key = product.dtype, product.layout is not None
        if key not in self._tiles_agree:
            self._tiles_agree[key] = self._try_warpgroups(product)
        return self._tiles_agree[key]

    def _try_warpgroups(self, wanted: Product) -> bool:
        if not has_warpgroups(self.device):
            return False
        from eyas.kernels.gemm import gated_product, product

        dtype, is_packed = wanted.dtype, wanted.layout is not None
        buckets = buckets_up_to(self.max_rows)
        divided = partial(product, num_splits=2)
        ways: tuple[tuple[Callable[..., torch.Tensor], Callable[..., tuple[Tile, ...]]], ...] = (
            (divided, grouped_tiles_for),
            (product, persistent_tiles_for),
            (partial(divided, folded=True), partial(persistent_tiles_for, folded=True)),
        )
        if is_packed:
            ways = tuple((run, staged_tiles_for) for run in (product, divided, gated_product))
        trials = [
            (run, tile)
            for run, tiles_of in ways
            for tile in dict.fromkeys(tile for rows in buckets for tile in tiles_of(rows, dtype))
        ]
        if not trials:
            return False
        random = self._random(dtype)
        num_out, num_in, num_rows = TRIAL_SIDES
        weight: Weight = torch.randn(num_out, num_in, **random)
        x_TI = torch.randn(num_rows, num_in, **random)
        if is_packed:
            weight = TRIAL_LAYOUT.empty(num_out, num_in, dtype=dtype, device=self.device)
            weight.normal_(0.0, num_in**-0.5, generator=random["generator"])
            weight.scales.mul_(0.5 + torch.rand(weight.scales.shape, **random).float())
        name = "FP8 products by the copy engine" if is_packed else "products by warpgroups"
        try:
            for run, tile in trials:
                ours = run(x_TI, weight)
                if not torch.equal(run(x_TI, weight, tile=tile, pdl=True), ours):
                    log.info("%s: %s are not used: their bits differ on this device", dtype, name)
                    return False
        except Exception as error:  # the compiler's or the driver's
            log.info("%s: %s are not used: %s", dtype, name, error)
            return False
        return True

    def _library_agrees(self, product: Product) -> bool:
        """Return whether the library has our kernel's bits for every number of rows that can occur."""
        if product.num_splits > 1:
            return False
        is_logits = product.role == "logits"
        key = (product.num_out, product.num_in, product.dtype, is_logits, product.has_bias)
        if key not in self._agrees:
            self._agrees[key] = self._try(product)
            torch.cuda.empty_cache()  # the cache of keys and values is sized later
        return self._agrees[key]

    def _random(self, dtype: torch.dtype) -> dict[str, Any]:
        """Return options of `torch.randn` that give the same numbers at every start."""
        generator = torch.Generator(self.device).manual_seed(20261121)
        return {"generator": generator, "device": self.device, "dtype": dtype}

    def _try(self, product: Product) -> bool:
        from eyas.layers.gemm import apply

        random = self._random(product.dtype)
        weight_OI = torch.randn(product.num_out, product.num_in, **random)
        weight_OI *= product.num_in**-0.5
        x_TI = torch.randn(max(64, self.max_rows), product.num_in, **random)
        bias_O = torch.randn(product.num_out, **random) if product.has_bias else None

        def run(variant: GemmVariant, rows_TI: torch.Tensor) -> torch.Tensor:
            if product.role == "logits":
                return apply.logits(variant, rows_TI, weight_OI, None)
            return apply.plain(variant, rows_TI, weight_OI, bias_O)

        with torch.inference_mode():
            # The bits of our kernel's rows are the same in any call, so one call gives all.
            ours_TO = run(candidates(product, TRIAL_ROWS, library=False)[0], x_TI)
            for count in row_counts(self.max_rows):
                if not torch.equal(run(LIBRARY, x_TI[:count]), ours_TO[:count]):
                    return False
        return True
