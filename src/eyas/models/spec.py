"""`ModelSpec`: the facts of a model that the decoder needs, the same for every family.

Promises: plain frozen data; nothing here touches weights or devices.
Does not know: how a family writes its configuration (`config_file` and the family modules do).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from eyas.cache.store import LayerStore, StateStore, Store
from eyas.layers.compressed_attention import CompressedSizes
from eyas.layers.delta_net import DeltaSizes
from eyas.layers.expert_spec import ExpertSpec
from eyas.layers.hyper_connections import HyperSizes
from eyas.layers.latent_attention import LatentSizes
from eyas.layers.rope import RopeSpec, no_rope
from eyas.models.config_file import ConfigFile
from eyas.models.layer_products import float32_products, layer_products
from eyas.ops.gate import Activation


@dataclass(frozen=True, slots=True)
class LayerTraits:
    """How a family's layer differs from Llama's.

    norms: RMS norms of the input of attention and feed-forward block ("input"), of their output
    ("output"), or of both. norm_offset: added to the weights of all RMS norms. norms_projections: with
    `qk_norm`, queries and keys are normalised over all heads together. has_sinks: each query head has a
    learned logit in the softmax of attention, without a key or a value. has_output_gate: each query
    head has a gate, by whose sigmoid its output of attention is multiplied.
    """

    norms: Literal["input", "output", "both"] = "input"
    norm_offset: float = 0.0
    activation: Activation = "silu"
    norms_projections: bool = False
    has_sinks: bool = False
    has_output_gate: bool = False

    @property
    def norms_input(self) -> bool:
        return self.norms != "output"

    @property
    def norms_output(self) -> bool:
        return self.norms != "input"


LLAMA = LayerTraits()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The facts of one decoder.

    qkv_bias, output_bias, mlp_bias: whether these projections have a bias. qk_norm: whether each query
    and key head is RMS-normalised. tie_embeddings: the logits head uses the embedding's weights.
    windows: for each layer, the number of latest positions that a query attends to, its own included;
    None is all. max_position: the context length of the checkpoint in tokens, rope scaling included.
    eos_token_ids: every id that ends a text.
    window_rope: the rope of the layers with a window; None is `rope`. unrotated_layers: the layers
    whose queries and keys are not rotated. attention_scale: multiplies the dot products; None is
    head_dim ** -0.5. embedding_scale: multiplies the embedding's rows. stream_scale: multiplies what is
    tapped of the residual stream, which the layers pass on divided by it. logits_scale: multiplies the
    logits.
    latent: the sizes of latent attention; then there is one key/value head, `head_dim` is the width of
    a stored row, and `rope` is of its rotated part alone. None is grouped-query attention.
    experts: the feed-forward block of `expert_layers`; the other layers have one of intermediate_size.
    state: the delta net of `state_layers`; the other layers have attention.
    compressed: of each layer, the sizes of compressed attention; empty where layers have none. hyper:
    the residual streams; None is one stream. table_layers: the layers whose experts a table names.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_epsilon: float
    rope: RopeSpec
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_embeddings: bool
    windows: tuple[int | None, ...]
    max_position: int
    eos_token_ids: tuple[int, ...]
    traits: LayerTraits = LLAMA
    window_rope: RopeSpec | None = None
    unrotated_layers: frozenset[int] = frozenset()
    attention_scale: float | None = None
    embedding_scale: float = 1.0
    stream_scale: float = 1.0
    logits_scale: float = 1.0
    latent: LatentSizes | None = None
    experts: ExpertSpec | None = None
    expert_layers: frozenset[int] = frozenset()
    state: DeltaSizes | None = None
    state_layers: frozenset[int] = frozenset()
    compressed: tuple[CompressedSizes, ...] = ()
    hyper: HyperSizes | None = None
    table_layers: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        latent = self.latent
        assert latent is None or (self.num_kv_heads, self.head_dim) == (1, latent.row_dim)

    @property
    def default_length(self) -> int:
        """The positions that are served unless a number is asked for: all, or as many as leave texts
        their usual angles (longrope has others where more are served)."""
        rope = self.rope
        if rope.kind != "longrope":
            return self.max_position
        return min(rope.original_max_position, self.max_position)

    def experts_of(self, layer: int) -> ExpertSpec | None:
        """Return the experts of a layer; None where it has one feed-forward block."""
        experts = self.experts if layer in self.expert_layers else None
        if experts is None or layer not in self.table_layers:
            return experts
        return replace(experts, has_correction=False, num_tokens=self.vocab_size)

    def rope_of(self, layer: int) -> RopeSpec:
        """Return the rope of a layer."""
        if layer in self.unrotated_layers:
            return no_rope(self.rope.head_dim)
        is_windowed = self.windows[layer] is not None
        return self.window_rope if self.window_rope and is_windowed else self.rope

    def compressed_of(self, layer: int) -> CompressedSizes | None:
        """Return the sizes of a layer's compressed attention; None where it has another kind."""
        return self.compressed[layer] if self.compressed else None

    @property
    def has_output_gate(self) -> bool:
        """Whether the output of attention is gated."""
        return self.traits.has_output_gate

    def state_of(self, layer: int) -> DeltaSizes | None:
        """Return the delta net of a layer; None where it has attention."""
        return self.state if layer in self.state_layers else None

    @property
    def stores(self) -> tuple[Store, ...]:
        """What each layer stores: keys and values for a token, or a state for a sequence."""
        return tuple(self._store(layer) for layer in range(self.num_layers))

    @property
    def attention_stores(self) -> tuple[LayerStore, ...]:
        """What the layers with attention store for a token."""
        return tuple(store for store in self.stores if isinstance(store, LayerStore))

    @property
    def state_stores(self) -> tuple[StateStore, ...]:
        """What the layers with a state store for a sequence."""
        return tuple(store for store in self.stores if isinstance(store, StateStore))

    def _store(self, layer: int) -> Store:
        state = self.state_of(layer)
        if state is not None:
            return state.store
        compressed = self.compressed_of(layer)
        if compressed is not None:
            return compressed.store
        return LayerStore(
            self.num_query_heads,
            self.num_kv_heads,
            self.head_dim,
            self.windows[layer],
            scale=self.attention_scale,
            value_dim=None if self.latent is None else self.latent.rank,
        )

    @property
    def linear_shapes(self) -> tuple[tuple[int, int], ...]:
        """The distinct (output size, input size) of the layers' matrix products, fused as they run.

        The logits head is not included.
        """
        layers = range(self.num_layers)
        return tuple(
            dict.fromkeys(each for layer in layers for each in layer_products(self, layer))
        )

    @property
    def head_shape(self) -> tuple[int, int]:
        """(vocabulary size, hidden size) of the logits head."""
        return (self.vocab_size, self.hidden_size)

    @property
    def head_shapes(self) -> tuple[tuple[int, int], ...]:
        """The distinct (output size, input size) of the products with float32 results."""
        return float32_products(self, self.num_layers)


def read_eos_token_ids(config: ConfigFile, vocab_size: int) -> tuple[int, ...]:
    """Return the ids in generation_config.json beside `config`, then those in `config`."""
    path = config.path.with_name("generation_config.json")
    generation = ConfigFile.read(path) if path.is_file() else ConfigFile(path, {})
    token_ids = [
        *generation.token_ids("eos_token_id", vocab_size),
        *config.token_ids("eos_token_id", vocab_size),
    ]
    return tuple(dict.fromkeys(token_ids))
