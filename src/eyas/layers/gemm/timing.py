"""Measure how long each variant of a product takes on this device.

Promises: times are medians of CUDA graph replays. Variants are measured in turns, so that a
drifting clock affects all alike. Weights are read from memory, not from a cache, and each product
runs between the small kernels that surround it in a model. Work that a variant leaves to other
kernels is included (the activation after the library's product, reading parts). A variant that the
device cannot run has infinite time. Nothing may be captured meanwhile. Memory is freed at the end.
Does not know: which variant is chosen.

Legend: T rows, I input features, O output features.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from eyas.kernels.add_norm import add_norm, norm
from eyas.kernels.packed import Weight
from eyas.layers.gemm import apply
from eyas.layers.gemm.variants import GemmVariant, Product
from eyas.ops.capture import capturing

log = logging.getLogger(__name__)

Jobs = Sequence[tuple[int, Sequence[GemmVariant]]]
"""Row counts, and the variants to measure at each."""

WEIGHT_BYTES = 256 << 20
"""Size of the weights that are used in turns: several times that of a cache."""
MOST_CALLS = 32
MANY_CALLS_UP_TO = 512
"""Beyond this many rows a product takes so long that two calls are enough."""
ROUNDS = 7
EPSILON = 1e-5


class DeviceClock:
    """A clock for products on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, product: Product, jobs: Jobs) -> list[list[float]]:
        """Return the microseconds of each variant of each job; infinite if the device cannot run it."""
        with torch.inference_mode(), torch.cuda.device(self._device):
            assert not torch.cuda.is_current_stream_capturing(), (
                "products are measured before graphs are captured"
            )
            if self._stream is None:
                self._stream = torch.cuda.Stream()
            try:
                times = _Scene(product, self._device, self._stream).times(jobs)
            except torch.cuda.OutOfMemoryError:
                log.warning("no memory to measure the product %s", product)
                times = [[math.inf] * len(variants) for _, variants in jobs]
            torch.cuda.empty_cache()
        return times

    def collect(self, product: Product, variants: Sequence[GemmVariant]) -> None:
        """Run each variant once, while kernels are collected."""
        with torch.inference_mode(), torch.cuda.device(self._device):
            try:
                _Scene(product, self._device, torch.cuda.current_stream()).run_each(variants)
            except torch.cuda.OutOfMemoryError:
                log.debug("no memory to run the variants of %s", product)
            torch.cuda.empty_cache()


class _Scene:
    """A product with weights that are used in turns, and the kernels around it."""

    def __init__(self, product: Product, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._product = product
        self._device = device
        self._stream = stream
        # Not the device's own, which refuses to draw after a capture of others that failed.
        self._random = torch.Generator(device)
        copies = max(1, WEIGHT_BYTES // product.num_bytes)
        self._calls = max(2, min(2 * copies, MOST_CALLS))
        copies = min(copies, self._calls)
        options: dict[str, Any] = {"device": device, "dtype": product.dtype}
        empty = torch.empty if product.layout is None else product.layout.empty
        weight: Weight = empty(copies, product.num_out, product.num_in, **options)
        weight.normal_(0.0, product.num_in**-0.5, generator=self._random)
        self._weights = [weight[copy] for copy in range(copies)]
        self._bias_O = torch.zeros(product.num_out, **options) if product.has_bias else None
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def times(self, jobs: Jobs) -> list[list[float]]:
        variants = dict.fromkeys(variant for _, variants in jobs for variant in variants)
        own = [variant for variant in variants if variant.tile is not None]
        unusable = self.run_each(own)
        torch.cuda.synchronize()
        return [self._race(num_rows, variants, unusable) for num_rows, variants in jobs]

    def run_each(self, variants: Sequence[GemmVariant]) -> set[GemmVariant]:
        """Run each variant once. Returns those that failed."""
        run, failed = self._chain(1), set()
        for variant in variants:
            try:
                run(variant, 1)
            except Exception as error:  # the compiler's or the driver's
                log.debug("%s: %s cannot run here: %s", self._product, variant, error)
                failed.add(variant)
        return failed

    def _race(
        self, num_rows: int, variants: Sequence[GemmVariant], unusable: set[GemmVariant]
    ) -> list[float]:
        run = self._chain(num_rows)
        calls = self._calls if num_rows <= MANY_CALLS_UP_TO else 2
        racers = [variant for variant in variants if variant not in unusable]
        graphs = [self._capture(run, variant, calls) for variant in racers]
        spans = [[self._span(graph) for graph in graphs] for _ in range(ROUNDS + 1)]
        torch.cuda.synchronize()  # not earlier, or launches would be waited for inside the spans
        medians = {
            variant: statistics.median(begin.elapsed_time(end) for begin, end in of_way)
            * 1000
            / calls
            for variant, *of_way in zip(racers, *spans[1:], strict=True)  # the first is a rehearsal
        }
        self._graphs = graphs or self._graphs  # while one of them lives, the pool does
        return [medians.get(variant, math.inf) for variant in variants]

    def _span(self, graph: torch.cuda.CUDAGraph) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """Replay the graph once. Returns the events before and after it."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        return begin, end

    def _capture(
        self, run: Callable[[GemmVariant, int], None], variant: GemmVariant, calls: int
    ) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):  # torch.cuda.graph would collect garbage every time
            run(variant, 1)
            torch.cuda.synchronize()
            with capturing():
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    run(variant, calls)
                except BaseException:
                    with suppress(RuntimeError):  # what was captured so far cannot be used
                        graph.capture_end()
                    raise
                graph.capture_end()
        torch.cuda.synchronize()
        return graph

    def _chain(self, num_rows: int) -> Callable[[GemmVariant, int], None]:
        """Return a function that runs the product in turns with the kernels around it."""
        product, weights, x_TI = self._product, self._weights, self._rows(num_rows)
        shape = (num_rows, product.num_out)
        stream_TO, out_TO = None, None
        if product.num_splits > 1:
            stream_TO = torch.zeros(shape, device=self._device, dtype=product.dtype)
        elif product.role == "logits":
            out_TO = torch.empty(shape, device=self._device, dtype=torch.float32)

        def run(variant: GemmVariant, calls: int) -> None:
            for i in range(calls):
                weight_OI = weights[i % len(weights)]
                if stream_TO is not None:
                    parts = self._run(variant, x_TI, weight_OI, None)
                    add_norm(stream_TO, parts, None, EPSILON, pdl=True)
                else:
                    self._run(variant, norm(x_TI, None, EPSILON, pdl=True), weight_OI, out_TO)

        return run

    def _rows(self, num_rows: int) -> torch.Tensor:
        shape = (num_rows, self._product.num_in)
        options = {"device": self._device, "dtype": self._product.dtype}
        return torch.randn(shape, generator=self._random, **options)

    def _run(
        self,
        variant: GemmVariant,
        x_TI: torch.Tensor,
        weight_OI: Weight,
        out_TO: torch.Tensor | None,
    ) -> torch.Tensor:
        match self._product.role:
            case "parts":
                return apply.parts(variant, x_TI, weight_OI, self._product.num_splits)
            case "heads":
                splits = self._product.num_splits
                return apply.heads(variant, x_TI, weight_OI, self._bias_O, splits)
            case "logits":
                assert isinstance(weight_OI, torch.Tensor)
                return apply.logits(variant, x_TI, weight_OI, out_TO)
            case "gated":
                return apply.gated(variant, x_TI, weight_OI, self._bias_O)
            case "plain":
                return apply.plain(variant, x_TI, weight_OI, self._bias_O)
