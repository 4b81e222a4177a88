"""The least time of a step: the bytes that it must read, over the rate at which a device copies.

Promises: a step reads the layers' weights and the logits head once, of the experts those that its
rows choose if each row draws them uniformly, and the stored keys and values. States of sequences are
read and written. Embeddings, activations, draft heads and whatever else is written count as none.
Does not know: what is measured.
"""

from __future__ import annotations

import math

import torch

from eyas.cache import KVStore
from eyas.models import ModelSpec
from eyas.models.layer_products import attention_products, feed_forward_shapes

COPY_BYTES_PER_SECOND = 4.2e12
"""Bytes read plus bytes written of a large copy in the memory of one H200."""


def expected_experts(num_experts: int, num_chosen: int, num_rows: int) -> float:
    """Return the mean number of distinct experts of so many rows that choose at random."""
    return num_experts * (1 - (1 - num_chosen / num_experts) ** num_rows)


def weights_read(spec: ModelSpec, num_rows: int) -> float:
    """Return the number of weights that a step of so many rows reads."""
    total = float(spec.vocab_size * spec.hidden_size)
    for layer in range(spec.num_layers):
        state = spec.state_of(layer)
        products = attention_products(spec) if state is None else state.products(spec.hidden_size)
        total += sum(map(math.prod, products))
        experts, share = spec.experts_of(layer), 1.0
        if experts is not None:
            num, chosen = experts.num_experts, experts.routing.num_chosen
            share = expected_experts(num, chosen, num_rows) / num
        for name, shape in feed_forward_shapes(spec, layer, bias=False).items():
            total += math.prod(shape) * (share if ".experts." in name else 1.0)
    return total


def least_step_ms(
    spec: ModelSpec, dtype: torch.dtype, *, num_rows: int, num_sequences: int, length: int
) -> float:
    """Return the least time of a step in milliseconds, on one H200.

    num_rows: rows of the step, drafted ones included. length: positions that each sequence has stored;
    a layer with a window reads the last of them alone.
    """
    stored = num_sequences * sum(
        min(length, store.window or length) * KVStore.bytes_per_slot([store], dtype)
        for store in spec.attention_stores
    )
    states = sum(store.num_bytes(0, dtype.itemsize) for store in spec.state_stores)
    stored += 2 * num_sequences * states
    weights = weights_read(spec, num_rows) * dtype.itemsize
    return round(1000 * (weights + stored) / COPY_BYTES_PER_SECOND, 4)
