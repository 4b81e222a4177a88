"""The least time of a step: the bytes that it must read, over the rate at which a device copies.

Promises: a step reads the layers' weights, as they are stored, and the logits head once, of the experts
those that its rows choose if each row draws them uniformly, and the stored keys and values. States of
sequences are read and written. Embeddings, activations, draft heads and whatever else is written count
as none.
Does not know: what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from eyas.cache.store import CompressedStore, LayerStore
from eyas.kernels.packed import Layout
from eyas.models import ModelSpec
from eyas.models.load import meta_parameters
from eyas.parallel.cut import whole_shape

COPY_BYTES_PER_SECOND = 4.2e12
"""Bytes read plus bytes written of a large copy in the memory of one H200."""


def expected_experts(num_experts: int, num_chosen: int, num_rows: int) -> float:
    """Return the mean number of distinct experts of so many rows that choose at random."""
    return num_experts * (1 - (1 - num_chosen / num_experts) ** num_rows)


def parameter_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of a model; a tied logits head is none."""
    return {name: whole_shape(blocks) for name, blocks in meta_parameters(spec).items()}


def weight_bytes_read(
    spec: ModelSpec, dtype: torch.dtype, num_rows: int, layouts: Mapping[str, Layout] | None = None
) -> float:
    """Return the bytes of the weights that a step of so many rows reads. layouts: of packed weights, by
    parameter name."""

    def size(name: str, shape: tuple[int, ...]) -> int:
        layout = (layouts or {}).get(name)
        if name.endswith("_connection.fn"):  # of residual streams, in float32
            return math.prod(shape) * torch.float32.itemsize
        if layout is None:
            return math.prod(shape) * dtype.itemsize
        return layout.bytes_of(*shape)

    share_read = 1.0  # of the experts
    if spec.experts is not None:
        num, chosen = spec.experts.num_experts, spec.experts.routing.num_chosen
        share_read = expected_experts(num, chosen, num_rows) / num
    total = 0.0
    for name, shape in ({"head.weight": spec.head_shape} | parameter_shapes(spec)).items():
        is_product = len(shape) == 2 and name.endswith((".weight", "_connection.fn"))
        if is_product and name != "embedding.weight":
            total += size(name, shape) * (share_read if ".experts." in name else 1.0)
    return total


def _stored_numbers_read(store: LayerStore, length: int) -> int:
    """Return the stored numbers that a query after so many positions reads: keys and values of those
    that it sees; of compressed entries those that it attends to, and the indexer's keys of all."""
    if not isinstance(store, CompressedStore):
        return min(length, store.window or length) * math.prod(store.slot_shape)
    entries = length // store.rate
    chosen = min(entries, store.num_chosen) if store.index_dim else entries
    keys = min(length, store.local_window) + chosen
    return keys * store.head_dim + entries * store.index_dim


def least_step_ms(
    spec: ModelSpec,
    dtype: torch.dtype,
    *,
    num_rows: int,
    num_sequences: int,
    length: int,
    layouts: Mapping[str, Layout] | None = None,
    kv_dtype: torch.dtype | None = None,
) -> float:
    """Return the least time of a step in milliseconds, on one H200.

    num_rows: rows of the step, drafted ones included. length: positions that each sequence has stored;
    a layer with a window reads the last of them alone, one with compressed entries these and entries.
    layouts: of packed weights, by parameter name. kv_dtype: of the cache; None is `dtype`.
    """
    numbers = sum(_stored_numbers_read(store, length) for store in spec.attention_stores)
    stored = num_sequences * numbers * (kv_dtype or dtype).itemsize
    states = sum(store.num_bytes(0, dtype.itemsize) for store in spec.state_stores)
    stored += 2 * num_sequences * states
    weights = weight_bytes_read(spec, dtype, num_rows, layouts)
    return round(1000 * (weights + stored) / COPY_BYTES_PER_SECOND, 4)
