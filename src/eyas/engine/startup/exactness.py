"""The start-up self-check: whether a row's logits have the same bits however the row is computed.

Promises: the real model runs over one text in several variants: in large and in small chunks, token by
token, as chains, as trees, in batches; with kernels also in batches with chunks, from CUDA graphs, and
with as many rows as a step can have. The logits of all variants are compared bit for bit. Nothing is
claimed that was not compared.
Does not know: which kernels ran.

Legend: L positions of the text, V vocabulary, R logits rows, W nodes, A seats.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from eyas.engine.startup.exactness_probe import Extent, Probe
from eyas.layers.gemm.products import Products
from eyas.layers.row_order import RowOrderReport
from eyas.runner.runner import ModelRunner

_WIDTH = 6
_SHORT, _LONG = 72, 664
"""Length of the text: on a CPU, and on a device, where kernels cut keys and rows into large tiles."""
_MOST_SEQUENCES = 64
_MOST_NODES = 512
"""Rows of the largest batch of trees."""
_MOST_ROWS = 8192
_BORDERS = (1, 127, 128, 129, 255, 511, 512)
"""Positions at which attention begins another split of the keys, and their neighbours."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """The result of the self-check. reason: what was compared, or which variant differs."""

    exact: bool
    reason: str


def check_exactness(
    runner: ModelRunner,
    order: RowOrderReport,
    max_length: int,
    num_slots: int,
    *,
    width: int = 16,
    captures: bool = True,
    most_seqs: int = _MOST_SEQUENCES,
) -> Exactness:
    """Run the self-check. It writes to the first slots of the cache, so run it before any request.

    order: the row order that was found for the products. width: most nodes of a tree. captures: steps
    may run from CUDA graphs. most_seqs: sequences of the largest batch that is tried where each has a
    state, which takes memory.
    """
    if not order.exact:
        return Exactness(False, order.reason)
    with open_probe(
        runner,
        order,
        max_length,
        num_slots,
        width=width,
        captures=captures,
        most_seqs=most_seqs,
    ) as probe:
        if probe is None:
            return Exactness(False, "the cache is too small for the self-check")
        reference_LV = probe.reference()
        for name, positions, logits_RV in probe.variants():
            expected_RV = reference_LV[positions]
            if not torch.equal(logits_RV, expected_RV):
                error = (logits_RV - expected_RV).abs().max().item()
                return Exactness(False, f"{name} differs from one chunk (by up to {error:.1e})")
    shown = "chunks, single tokens, chains, trees and batches agree bit for bit"
    if order.order.products is not None:
        shown += f" for up to {probe.extent.max_rows} rows and trees of {probe.extent.width}"
    return Exactness(True, f"{shown}; {order.reason}")


@contextmanager
def open_probe(
    runner: ModelRunner,
    order: RowOrderReport,
    max_length: int,
    num_slots: int,
    *,
    width: int,
    captures: bool,
    most_seqs: int,
) -> Iterator[Probe | None]:
    """The passes of the self-check, with the arguments of `check_exactness`; None if the cache is too
    small for them. Within the context layers with a window have the first slots as well."""
    products = order.order.products
    if products is None:
        extent = _extent_on_cpu(max_length, num_slots)
    else:
        most_seqs = _MOST_SEQUENCES if runner.backend.kv.states is None else most_seqs
        extent = _extent_on_device(products, width, max_length, num_slots, captures, most_seqs)
    windows = runner.backend.kv.windows
    if windows is not None:
        windows.assign_first()
    try:
        yield None if extent.length < 8 else Probe(runner, extent)
    finally:
        if windows is not None:
            windows.clear()


def _extent_on_cpu(max_length: int, num_slots: int) -> Extent:
    """Return few variants: a forward pass takes long on a CPU, and there is one code path."""
    length = min(_SHORT, max_length - 1, num_slots // 2 - _WIDTH)
    middle, last = length // 2, length - _WIDTH
    starts = tuple(sorted({1, min(middle, last), last}))
    chunks = (3, middle - 3, length)
    return Extent(length, _WIDTH, chunks, starts, (2,), length, 2 * _WIDTH, False, False)


def _extent_on_device(
    products: Products,
    width: int,
    max_length: int,
    num_slots: int,
    captures: bool,
    most_seqs: int,
) -> Extent:
    """Return variants that run every kernel of a step: all row counts, several splits, wide trees."""
    max_rows = min(products.max_rows, _MOST_ROWS)
    num_scratch = min(_MOST_NODES, num_slots // 2)
    length = min(_LONG, max_length - 1, (num_slots - num_scratch) // 2)
    width = max(2, min(max(width, _WIDTH), max_rows // 2, num_scratch // 2, length // 2))
    last = length - width
    starts = tuple(sorted({start for start in (*_BORDERS, last) if 1 <= start <= last}))
    chunks = (1, 7, 20, 50, 100, 200, length)
    max_seqs = min(_MOST_SEQUENCES, num_scratch, max_rows, most_seqs)
    batches = tuple(sorted({min(num, max_seqs) for num in (2, 3, 5, 8, 12, 31, max_seqs)}))
    return Extent(length, width, chunks, starts, batches, max_rows, num_scratch, True, captures)
