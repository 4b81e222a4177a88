"""The matrix products of a decoder layer, from the sizes of a model or of a draft head.

Does not know: which of the two it is.
"""

from __future__ import annotations

from typing import Protocol

from eyas.layers.compressed_attention import CompressedSizes
from eyas.layers.delta_net import DeltaSizes
from eyas.layers.expert_spec import ExpertSpec
from eyas.layers.hyper_connections import HyperSizes
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
    def has_output_gate(self) -> bool: ...
    @property
    def latent(self) -> LatentSizes | None: ...
    @property
    def hyper(self) -> HyperSizes | None: ...
    @property
    def head_shape(self) -> tuple[int, int]: ...
    def experts_of(self, layer: int) -> ExpertSpec | None: ...
    def state_of(self, layer: int) -> DeltaSizes | None: ...
    def compressed_of(self, layer: int) -> CompressedSizes | None: ...


def layer_products(
    spec: LayerSizes, layer: int, input_size: int | None = None
) -> tuple[tuple[int, int], ...]:
    """Return (output size, input size) of the products that a row runs in a layer, fused as they run.

    With experts they are those of each chosen expert and of the shared one. The router, whose logits
    are float32, is not among them (`float32_products`). input_size: width of the input of attention;
    None is the hidden size.
    """
    block = spec.state_of(layer) or spec.compressed_of(layer)
    attention = (
        attention_products(spec, input_size) if block is None else block.products(spec.hidden_size)
    )
    experts = spec.experts_of(layer)
    if experts is None:
        return attention + _gated_products(spec.hidden_size, spec.intermediate_size)
    chosen = _gated_products(spec.hidden_size, experts.intermediate_size)
    shared = ()
    if experts.shared_size:
        shared = _gated_products(spec.hidden_size, experts.shared_size)
    return attention + experts.routing.num_chosen * chosen + shared


def attention_products(
    spec: LayerSizes, input_size: int | None = None
) -> tuple[tuple[int, int], ...]:
    """Return (output size, input size) of the products of a layer's attention, fused as they run.

    input_size: as in `layer_products`.
    """
    input_size = input_size or spec.hidden_size
    if spec.latent is not None:
        return spec.latent.products(spec.num_query_heads, spec.hidden_size, input_size)
    query_width = spec.num_query_heads * spec.head_dim
    projected = query_width * (1 + spec.has_output_gate)
    qkv_width = projected + 2 * spec.num_kv_heads * spec.head_dim
    return ((qkv_width, input_size), (spec.hidden_size, query_width))


def float32_products(spec: LayerSizes, num_layers: int) -> tuple[tuple[int, int], ...]:
    """Return (output size, input size) of the distinct products with float32 results: of the logits
    head, the layers' routers and the residual streams."""
    experts = (spec.experts_of(layer) for layer in range(num_layers))
    routers = ((each.num_scores, spec.hidden_size) for each in experts if each is not None)
    hyper = () if spec.hyper is None else spec.hyper.shapes(spec.hidden_size)
    return (spec.head_shape, *dict.fromkeys(routers), *hyper)


def _gated_products(hidden_size: int, size: int) -> tuple[tuple[int, int], ...]:
    return ((2 * size, hidden_size), (hidden_size, size))
