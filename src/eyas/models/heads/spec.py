"""`HeadSpec`: the facts of a draft head, the same for every kind and file format.

Promises: plain frozen data. The wiring of features, embedding, norms and layers is data too, so that
one network runs EAGLE-1/2, EAGLE-3, EAGLE-3.1 and MTP layers, but for those with residual streams.
Does not know: files and their conventions (`read` and `mtp` do), weights, devices.

The row of a head at position i takes the target's feature at position i - 1 and the token at position
i, and predicts the token at i + 1; position 0 has no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from eyas.cache.store import LayerStore
from eyas.layers.compressed_attention import CompressedSizes
from eyas.layers.expert_spec import ExpertSpec
from eyas.layers.hyper_connections import HyperSizes
from eyas.layers.latent_attention import LatentSizes
from eyas.layers.rope import RopeSpec
from eyas.models.layer_products import float32_products, layer_products
from eyas.models.spec import LLAMA, LayerTraits

HeadKind = Literal["eagle", "eagle3", "mtp"]


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """The facts of one draft head.

    kind: "eagle" (EAGLE-1 and EAGLE-2, which share weights), "eagle3" (and 3.1) or "mtp".
    hidden_size: of the head's own layers. target_hidden_size: of the states that it reads.
    num_target_layers, vocab_size: of the target. draft_vocab_size: number of ids the head can propose.
    max_position: context length of its training in tokens; it may run beyond it.
    taps: the states of the target that it reads, in the order of its weights, each the number of layers
        before it; the number of layers plus 1 is the output of the final norm.
    windows: for each layer, the number of latest positions that a query attends to; None is all.
    latent, attention_scale: as in `ModelSpec`.
    own_embedding, own_head: the head has its own embedding or output layer; else it uses the target's.
    calibration: temperature -> weight of the sampling noise in the ranking of candidates.
    experts: the feed-forward block of every layer; None is one of intermediate_size.
    traits: of the layers; the offset of norms holds for all norms of the head.
    compressed: the sizes of DeepSeek-V4's attention, which has a window alone; None is another kind.
    hyper: the residual streams of target and head, all of which are the head's feature; None is one.

    The wiring:
    fc_norm: each tapped state has its own RMS norm before fc (EAGLE-3.1).
    input_norm: one RMS norm over the concatenation of the tapped states, before fc.
    fc_bias: fc, which fuses the states (eagle3) or joins state and embedding (others), has a bias.
    embedding_first: the embedding comes before the feature in their concatenation.
    entry_norms: embedding and feature are each normalised before they are concatenated.
    norm_before_residual: the residual stream starts at the normalised feature (eagle3).
    first_attention_norm: layer 0 normalises its input, as every later layer does.
    final_norm: there is a norm before the logits.
    norm_output: the state passed to the next level is taken after the final norm, not before it.
    zero_first_embedding: the embedding of the row at position 1 is replaced by zeros.
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
    latent: LatentSizes | None = None
    attention_scale: float | None = None
    calibration: Mapping[float, float] = field(default_factory=dict, hash=False)
    experts: ExpertSpec | None = None
    traits: LayerTraits = LLAMA
    compressed: CompressedSizes | None = None
    hyper: HyperSizes | None = None

    def __post_init__(self) -> None:
        assert (self.compressed is None) == (self.hyper is None)
        assert self.compressed is None or not self.compressed.rate, "entries are not drafted"
        assert len(self.windows) == self.num_layers
        assert self.taps and self.num_query_heads % self.num_kv_heads == 0
        assert self.kind == "eagle3" or self.hidden_size == self.target_hidden_size

    def experts_of(self, layer: int) -> ExpertSpec | None:
        """Return the experts of a layer; None where it has one feed-forward block."""
        return self.experts

    def state_of(self, layer: int) -> None:
        """A head's layers have attention."""
        return None

    def compressed_of(self, layer: int) -> CompressedSizes | None:
        """Return the sizes of a layer's compressed attention; None where it has another kind."""
        return self.compressed

    @property
    def has_output_gate(self) -> bool:
        """Whether the output of attention is gated."""
        return self.traits.has_output_gate

    @property
    def fuses_states(self) -> bool:
        """Whether fc computes the feature from the taps; else it joins feature and embedding."""
        return self.kind == "eagle3"

    @property
    def num_streams(self) -> int:
        """Residual streams of the target, and of the head."""
        return 1 if self.hyper is None else self.hyper.num_streams

    @property
    def tap_size(self) -> int:
        """Width of each state of the target that the head reads: of all streams together."""
        return self.num_streams * self.target_hidden_size

    @property
    def feature_size(self) -> int:
        """Width of the feature stored for each slot, and of the state passed to the next level."""
        return self.hidden_size if self.fuses_states else self.tap_size

    @property
    def stores(self) -> tuple[LayerStore, ...]:
        """The key and value storage that each layer needs for a token; position 0 has none."""
        if self.compressed is not None:
            return (replace(self.compressed.store, first_position=1),) * self.num_layers
        return tuple(
            LayerStore(
                self.num_query_heads,
                self.num_kv_heads,
                self.head_dim,
                window,
                scale=self.attention_scale,
                first_position=1,
                value_dim=None if self.latent is None else self.latent.rank,
            )
            for window in self.windows
        )

    def attention_input_size(self, layer: int) -> int:
        """Return the input size of the layer's q, k and v projections."""
        return 2 * self.hidden_size if self.fuses_states and layer == 0 else self.hidden_size

    @property
    def fc_shape(self) -> tuple[int, int]:
        """(output size, input size) of fc."""
        if self.fuses_states:
            return (self.hidden_size, len(self.taps) * self.target_hidden_size)
        return (self.hidden_size, self.hidden_size + self.target_hidden_size)

    @property
    def linear_shapes(self) -> tuple[tuple[int, int], ...]:
        """The distinct (output size, input size) of the matrix products, fused as they run.

        The logits head is not included.
        """
        shapes = [self.fc_shape if self.hyper is None else (self.hidden_size, self.hidden_size)]
        for layer in range(self.num_layers):
            shapes += layer_products(self, layer, self.attention_input_size(layer))
        return tuple(dict.fromkeys(shapes))

    @property
    def head_shape(self) -> tuple[int, int]:
        """(draft vocabulary size, hidden size) of the logits head."""
        return (self.draft_vocab_size, self.hidden_size)

    @property
    def head_shapes(self) -> tuple[tuple[int, int], ...]:
        """The distinct (output size, input size) of the products with float32 results."""
        return float32_products(self, self.num_layers)


def default_taps(num_target_layers: int) -> tuple[int, int, int]:
    """Return the taps of an EAGLE-3 head whose configuration lists none (Li et al., 2503.01840)."""
    return (2, num_target_layers // 2, num_target_layers - 3)
