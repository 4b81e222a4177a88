"""The fastest variant of each product, measured once and kept.

Promises: the usual variant is kept unless another is clearly faster, and of those alike the first of
`candidates` is taken, so that choices are the same at every start. What was kept is taken only if it
is still among the candidates. No choice here changes bits: who may take part is the caller's decision.
Does not know: how times are taken.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any

import torch

from eyas.kernels.tiles import FLOAT32_TILES, FOLDED_TILES, GROUPED_TILES, TILES
from eyas.layers.autotune_cache import AutotuneCache, cache_folder
from eyas.layers.gemm_variants import (
    BUCKETS,
    FOLDED_BEYOND,
    FOLDED_USUALLY,
    GROUPED_USUALLY,
    LIBRARY,
    LIBRARY_AFTER_GROUPED,
    LIBRARY_USUALLY,
    GemmVariant,
    Product,
    buckets_up_to,
    candidates,
)

log = logging.getLogger(__name__)

Clock = Callable[[Product, Sequence[tuple[int, Sequence[GemmVariant]]]], list[list[float]]]
"""Microseconds of each variant at each row count (`timing.DeviceClock`)."""

TIE = 1.02
USUAL = 1.06
"""The usual variant stays unless another is faster by more than this: what a product costs in a model
also depends on how its neighbours fit beside it, by a few percent that are not measured here."""
ALONE = 1.05
"""What the library's kernels cost more in a model than here: they neither start early nor let the next
one."""


class Search:
    """kept: where choices outlive the process; None is nowhere."""

    def __init__(self, clock: Clock, kept: AutotuneCache | None) -> None:
        self._clock = clock
        self._kept = kept
        self.num_measured = 0
        self.num_kept = 0
        self.seconds = 0.0

    def variants(
        self, product: Product, max_rows: int, *, library: bool, warpgroups: bool
    ) -> tuple[GemmVariant, ...]:
        """The variant of each bucket up to `max_rows`. library, warpgroups: who may take part
        (`variants.candidates`)."""
        lists = [
            (bucket, candidates(product, bucket, library=library, warpgroups=warpgroups))
            for bucket in buckets_up_to(max_rows)
        ]
        name = f"{product}{' or library' * library}{' or warpgroups' * warpgroups}"
        found = self._cached_variants(name, [variants for _, variants in lists])
        if found is not None:
            self.num_kept += 1
            return found
        started = time.perf_counter()
        times = self._clock(product, lists)
        found = tuple(
            fastest(variants, each) for (_, variants), each in zip(lists, times, strict=True)
        )
        self.num_measured += 1
        self.seconds += time.perf_counter() - started
        if self._kept is not None and all(math.isfinite(min(each)) for each in times):
            self._kept.add(name, [_written(variant) for variant in found])
        return found

    def _cached_variants(
        self, name: str, lists: list[tuple[GemmVariant, ...]]
    ) -> tuple[GemmVariant, ...] | None:
        entry = None if self._kept is None else self._kept.read().get(name)
        if not isinstance(entry, list) or len(entry) < len(lists):
            return None
        found = []
        for variants, each in zip(lists, entry, strict=False):
            variant = next((variant for variant in variants if _written(variant) == each), None)
            if variant is None:
                return None
            found.append(variant)
        return tuple(found)

    def report(self) -> None:
        """Tell what was searched since the last report."""
        num = self.num_measured + self.num_kept
        if num:
            log.info(
                "products: the fastest variant of %d, %d of them kept from an earlier start, in %.1f s",
                num,
                self.num_kept,
                self.seconds,
            )
        self.num_measured, self.num_kept, self.seconds = 0, 0, 0.0


def fastest(variants: Sequence[GemmVariant], times: Sequence[float]) -> GemmVariant:
    """The usual one where it is nearly as good as the best, or where none can run; else the first that
    is as good as the best."""
    costs = [
        us * ALONE if variant == LIBRARY else us
        for variant, us in zip(variants, times, strict=True)
    ]
    costs[0] = times[0]  # what is usual there has proven itself in models
    best = min(costs)
    if not math.isfinite(best) or costs[0] <= best * USUAL:
        return variants[0]
    return next(
        variant for variant, cost in zip(variants, costs, strict=True) if cost <= best * TIE
    )


def _written(variant: GemmVariant) -> list[Any]:
    """As a file holds it."""
    return [None if variant.tile is None else list(astuple(variant.tile)), variant.folded]


@cache
def search_on(device: torch.device) -> Search:
    """The one search of a device."""
    from eyas.kernels import gemm
    from eyas.layers.timing import DeviceClock

    lists: tuple[Any, ...] = (BUCKETS, TILES, FLOAT32_TILES, FOLDED_TILES, GROUPED_TILES)
    library = (ALONE, LIBRARY_USUALLY, LIBRARY_AFTER_GROUPED)
    rules = (TIE, USUAL, *library, GROUPED_USUALLY, FOLDED_BEYOND, FOLDED_USUALLY)
    kernels = sorted(Path(gemm.__file__).parent.glob("gemm*.py"))
    machine = {
        "device": torch.cuda.get_device_name(device),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "compiler": gemm.COMPILER,
        "kernel": _digest(b"".join(path.read_bytes() for path in kernels)),
        "candidates": _digest(repr((lists, rules)).encode()),
    }
    return Search(DeviceClock(device), AutotuneCache(cache_folder(), "products", machine))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
