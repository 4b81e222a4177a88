"""The matrix products of a decoder layer, from the sizes of a model or of a draft head.

Does not know: which of the two it is.
"""

from __future__ import annotations

from typing import Protocol

from eyas.layers.latent_attention import LatentSizes


class LayerSizes(Protocol):
    """The sizes that `ModelSpec` and `HeadSpec` have in common."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def num_query_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def latent(self) -> LatentSizes | None: ...


def layer_products(spec: LayerSizes, input_size: int) -> tuple[tuple[int, int], ...]:
    """Return (output size, input size) of a layer's products, fused as they run.

    input_size: width of the input of attention.
    """
    return (
        *_attention_products(spec, input_size),
        (2 * spec.intermediate_size, spec.hidden_size),
        (spec.hidden_size, spec.intermediate_size),
    )


def _attention_products(spec: LayerSizes, input_size: int) -> list[tuple[int, int]]:
    if spec.latent is not None:
        return spec.latent.products(spec.num_query_heads, spec.hidden_size, input_size)
    query_width = spec.num_query_heads * spec.head_dim
    qkv_width = query_width + 2 * spec.num_kv_heads * spec.head_dim
    return [(qkv_width, input_size), (spec.hidden_size, query_width)]
