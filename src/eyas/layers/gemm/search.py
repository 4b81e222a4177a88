"""Find the fastest variant of each product, measured once and cached.

Promises: the default variant is chosen unless another is clearly faster, and of equally fast ones
the first of `candidates`, so that choices are the same at every start. A cached choice is used only
if it is still among the candidates. No choice changes bits: the caller decides which variants are
allowed.
Does not know: how times are measured.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

from eyas.kernels.ahead import CompileProcesses
from eyas.kernels.tiles import (
    FLOAT32_TILES,
    FOLDED_TILES,
    GROUPED_TILES,
    PACKED_FOLDED_TILES,
    PACKED_TILES,
    PERSISTENT_FOLDED_TILES,
    PERSISTENT_TILES,
    STAGED_TILES,
    TILES,
)
from eyas.layers.gemm.autotune_cache import AutotuneCache
from eyas.layers.gemm.variants import (
    BUCKETS,
    FOLDED_BEYOND,
    FOLDED_USUALLY,
    GATED_BY_PERSISTENT,
    GROUPED_USUALLY,
    LIBRARY,
    LIBRARY_AFTER_GROUPED,
    LIBRARY_USUALLY,
    GemmVariant,
    Product,
    buckets_up_to,
    candidates,
)
from eyas.user_cache import cache_folder

log = logging.getLogger(__name__)


class Clock(Protocol):
    """Measures products (`timing.DeviceClock`)."""

    def __call__(
        self, product: Product, jobs: Sequence[tuple[int, Sequence[GemmVariant]]]
    ) -> list[list[float]]:
        """Return the microseconds of each variant at each row count."""
        ...

    def collect(self, product: Product, variants: Sequence[GemmVariant]) -> None:
        """Run each variant once, while kernels are collected."""
        ...


TIE = 1.02
USUAL = 1.06
"""The default variant is replaced only by one that is faster by more than this factor. The cost of
a product in a model also depends on the kernels around it, by a few percent that are not measured
here."""
ALONE = 1.05
"""The factor by which the library's kernels cost more in a model than measured here: they do not use
programmatic dependent launch."""


class Search:
    """The choice of variants on one device.

    kept: the cache file; None caches in this process only. processes: compile variants before they are
    measured; None leaves that to their first launch.
    """

    def __init__(
        self,
        clock: Clock,
        kept: AutotuneCache | None,
        processes: CompileProcesses | None = None,
    ) -> None:
        self._clock = clock
        self._kept = kept
        self.processes = processes
        self.num_measured = 0
        self.num_kept = 0
        self.seconds = 0.0

    def variants(
        self, product: Product, max_rows: int, *, library: bool, warpgroups: bool
    ) -> tuple[GemmVariant, ...]:
        """Return the variant of each bucket up to `max_rows`. library, warpgroups: as in
        `candidates`."""
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

    def knows(self, product: Product) -> bool:
        """Whether the variants of a product were measured by an earlier start."""
        kept = {} if self._kept is None else self._kept.read()
        return any(name.split(" or ")[0] == str(product) for name in kept)

    def collect(self, product: Product, variants: Sequence[GemmVariant]) -> None:
        """Run each variant once, while kernels are collected (`kernels.ahead`)."""
        self._clock.collect(product, list(dict.fromkeys(variants)))

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

    @property
    def is_new(self) -> bool:
        """Whether nothing is kept from an earlier start."""
        return self._kept is None or not self._kept.read()

    def report(self) -> tuple[int, int, float]:
        """Return what was searched since the last report: how many products were measured, how many
        variants were kept from an earlier start, and the seconds that it took."""
        found = self.num_measured, self.num_kept, self.seconds
        self.num_measured, self.num_kept, self.seconds = 0, 0, 0.0
        return found


def fastest(variants: Sequence[GemmVariant], times: Sequence[float]) -> GemmVariant:
    """Return the default variant if it is nearly as fast as the fastest, or if none can run; else
    the first that is about as fast as the fastest."""
    costs = [
        us * ALONE if variant == LIBRARY else us
        for variant, us in zip(variants, times, strict=True)
    ]
    costs[0] = times[0]  # the default was chosen by measuring whole models
    best = min(costs)
    if not math.isfinite(best) or costs[0] <= best * USUAL:
        return variants[0]
    return next(
        variant for variant, cost in zip(variants, costs, strict=True) if cost <= best * TIE
    )


def _written(variant: GemmVariant) -> list[Any]:
    """Return the variant as it is stored in a file."""
    return [None if variant.tile is None else list(astuple(variant.tile)), variant.folded]


@cache
def search_on(device: torch.device) -> Search:
    """Return the search of a device, which is created once."""
    from eyas.kernels import gemm
    from eyas.layers.gemm.timing import DeviceClock

    lists: tuple[Any, ...] = (
        BUCKETS,
        TILES,
        PACKED_TILES,
        STAGED_TILES,
        PACKED_FOLDED_TILES,
        FLOAT32_TILES,
        FOLDED_TILES,
        GROUPED_TILES,
        PERSISTENT_TILES,
        PERSISTENT_FOLDED_TILES,
    )
    library = (ALONE, LIBRARY_USUALLY, LIBRARY_AFTER_GROUPED, GATED_BY_PERSISTENT)
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
    kept = AutotuneCache(cache_folder(), "products", machine)
    return Search(DeviceClock(device), kept, CompileProcesses())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
