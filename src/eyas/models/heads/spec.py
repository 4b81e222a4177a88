"""What a draft head is, whatever file it came from: `HeadSpec`.

Promises: plain frozen facts. How features, embedding, norms and layers are wired is data here, so that
one network runs EAGLE-1/2, EAGLE-3, EAGLE-3.1 and MTP layers.
Does not know: files and their conventions (`read` and `mtp` do), weights, devices.

A head works on rows. The row at position i is made of the target's feature at position i - 1 and the
token at position i, and predicts the token at i + 1; position 0 has no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from eyas.cache.store import LayerStore
from eyas.layers.rope import RopeSpec
from eyas.models.layer_products import layer_products

HeadKind = Literal["eagle", "eagle3", "mtp"]


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """The facts of one draft head.

    kind: "eagle" (EAGLE-1 and EAGLE-2, which share weights), "eagle3" (and 3.1) or "mtp".
    hidden_size: of the head's own layers; target_hidden_size: of the states it reads.
    num_target_layers, vocab_size: of the target. draft_vocab_size: ids the head can propose.
    max_position: positions it was trained for; it may run beyond them.
    taps: what it reads of the target, in the order of its weights: the residual stream after so many
        layers; one more than there are layers is the final norm's output.
    windows: per layer, how many positions back a query sees; None is all.
    own_embedding, own_head: it brings these along; else they are the target's.
    calibration: temperature -> weight of the sampling noise when candidates are ranked.

    The wiring:
    fc_norm: each tapped state has an RMS norm of its own before fc (EAGLE-3.1).
    input_norm: one RMS norm over the concatenation of the tapped states, before fc.
    fc_bias: fc, which fuses the states (eagle3) or joins state and embedding (others), has a bias.
    embedding_first: the embedding comes before the feature in their concatenation.
    entry_norms: embedding and feature are each normalised before they are joined.
    norm_before_residual: the residual stream starts at the normalised feature (eagle3).
    first_attention_norm: layer 0 normalises its input, as every later layer does.
    final_norm: a norm stands before the logits.
    norm_output: the state handed to the next level is taken after the final norm, not before it.
    zero_first_embedding: the row at position 1 sees zeros for its embedding.
    """

    kind: HeadKind
    hidden_size: int
    target_hidden_size: int
    num_target_layers: int
    vocab_size: int
    draft_vocab_size: int
    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_epsilon: float
    rope: RopeSpec
    max_position: int
    taps: tuple[int, ...]
    windows: tuple[int | None, ...]
    own_embedding: bool
    own_head: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    fc_norm: bool = False
    input_norm: bool = False
    fc_bias: bool = False
    embedding_first: bool = True
    entry_norms: bool = False
    norm_before_residual: bool = False
    first_attention_norm: bool = False
    final_norm: bool = False
    norm_output: bool = False
    zero_first_embedding: bool = False
    calibration: Mapping[float, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        assert len(self.windows) == self.num_layers
        assert self.taps and self.num_query_heads % self.num_kv_heads == 0
        assert self.kind == "eagle3" or self.hidden_size == self.target_hidden_size

    @property
    def fuses_states(self) -> bool:
        """Whether fc makes the feature out of the taps (else it joins feature and embedding)."""
        return self.kind == "eagle3"

    @property
    def feature_size(self) -> int:
        """Width of the feature kept per slot, and of the state one level hands to the next."""
        return self.hidden_size if self.fuses_states else self.target_hidden_size

    @property
    def stores(self) -> tuple[LayerStore, ...]:
        """What each layer keeps per token."""
        return tuple(
            LayerStore(
                self.num_query_heads, self.num_kv_heads, self.head_dim, window, first_position=1
            )
            for window in self.windows
        )

    def attention_input_size(self, layer: int) -> int:
        """Features that the layer's q, k and v are made of."""
        return 2 * self.hidden_size if self.fuses_states and layer == 0 else self.hidden_size

    @property
    def fc_shape(self) -> tuple[int, int]:
        """(out, in) of fc."""
        if self.fuses_states:
            return (self.hidden_size, len(self.taps) * self.target_hidden_size)
        return (self.hidden_size, self.hidden_size + self.target_hidden_size)

    @property
    def linear_shapes(self) -> tuple[tuple[int, int], ...]:
        """The distinct (out, in) of the products, fused as they run; without the logits head."""
        shapes = [self.fc_shape]
        for layer in range(self.num_layers):
            shapes += layer_products(self, self.attention_input_size(layer))
        return tuple(dict.fromkeys(shapes))

    @property
    def head_shape(self) -> tuple[int, int]:
        """(draft vocabulary, hidden size) of the logits head."""
        return (self.draft_vocab_size, self.hidden_size)

    @property
    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter the head owns, by the name `DraftHead.parameters` gives it."""
        hidden, inner = self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {}
        if self.own_embedding:
            shapes["embedding.weight"] = (self.vocab_size, hidden)
        if self.fc_norm:
            for index in range(len(self.taps)):
                shapes[f"fc_norm.{index}.weight"] = (self.target_hidden_size,)
        if self.input_norm:
            shapes["input_norm.weight"] = (self.fc_shape[1],)
        shapes["fc.weight"] = self.fc_shape
        if self.fc_bias:
            shapes["fc.bias"] = (hidden,)
        if self.entry_norms:
            shapes["embedding_norm.weight"] = (hidden,)
            shapes["feature_norm.weight"] = (self.feature_size,)
        for layer in range(self.num_layers):
            prefix = f"layers.{layer}."
            if layer > 0 or self.first_attention_norm:
                shapes[f"{prefix}attention_norm.weight"] = (hidden,)
            shapes |= {
                f"{prefix}{name}": shape for name, shape in self._attention_shapes(layer).items()
            }
            shapes[f"{prefix}mlp_norm.weight"] = (hidden,)
            for part, shape in (
                ("gate", (inner, hidden)),
                ("up", (inner, hidden)),
                ("down", (hidden, inner)),
            ):
                shapes[f"{prefix}mlp.{part}.weight"] = shape
                if self.mlp_bias:
                    shapes[f"{prefix}mlp.{part}.bias"] = shape[:1]
        if self.final_norm:
            shapes["norm.weight"] = (hidden,)
        if self.own_head:
            shapes["head.weight"] = self.head_shape
        return shapes

    def _attention_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        query_width = self.num_query_heads * self.head_dim
        kv_width = self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {}
        for part, width in (("q", query_width), ("k", kv_width), ("v", kv_width)):
            shapes[f"attention.{part}.weight"] = (width, self.attention_input_size(layer))
            if self.qkv_bias:
                shapes[f"attention.{part}.bias"] = (width,)
        shapes["attention.o.weight"] = (self.hidden_size, query_width)
        if self.output_bias:
            shapes["attention.o.bias"] = (self.hidden_size,)
        if self.qk_norm:
            shapes["attention.q_norm.weight"] = (self.head_dim,)
            shapes["attention.k_norm.weight"] = (self.head_dim,)
        return shapes

    @property
    def num_parameters(self) -> int:
        """Numbers that the head brings along."""
        total = 0
        for shape in self.parameter_shapes.values():
            count = 1
            for size in shape:
                count *= size
            total += count
        return total


def default_taps(num_target_layers: int) -> tuple[int, int, int]:
    """What an EAGLE-3 head reads where its configuration names no layers (Li et al., 2503.01840)."""
    return (2, num_target_layers // 2, num_target_layers - 3)
