"""Gemma 3, the text model: norms before and after each block, windows with a rope of their own.

Norm weights are stored minus 1, the embedding is scaled by the square root of the hidden size, and the
feed-forward block is gated by GELU.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense
from eyas.models.rope_fields import read_rope
from eyas.models.spec import LayerTraits, ModelSpec

CHECKPOINT_NAMES = dense.names_with(
    {
        "attention_output_norm.weight": "post_attention_layernorm.weight",
        "mlp_norm.weight": "pre_feedforward_layernorm.weight",
        "mlp_output_norm.weight": "post_feedforward_layernorm.weight",
    }
)
FIELDS = frozenset(
    (
        *("attention_bias", "hidden_activation", "query_pre_attn_scalar", "sliding_window"),
        *("sliding_window_pattern", "_sliding_window_pattern", "rope_local_base_freq"),
        *("use_bidirectional_attention", "cache_implementation"),
    )
)
DEFAULTS: dict[str, Any] = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "rope_theta": 1e6,
    "eos_token_id": 1,
}
"""transformers' defaults of fields that a file may omit."""
TRAITS = LayerTraits(norms="both", norm_offset=1.0, activation="gelu_tanh")


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    every = config.count("sliding_window_pattern", 6)
    local = config.number("rope_local_base_freq", 1e4)
    config = config.with_ropes_by_layer_type(every=every, window_theta=local)
    remedy = "gelu_pytorch_tanh is"
    config.require("hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh", remedy)
    config.require("use_bidirectional_attention", False, False, "text is read from left to right")
    attention_bias = config.flag("attention_bias")
    spec = dense.read_dense(
        config.with_rope_of("full_attention"),
        head_dim=256,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
        window=config.count("sliding_window"),
        checks_activation=False,
    )
    return replace(
        spec,
        traits=TRAITS,
        window_rope=read_rope(config.with_rope_of("sliding_attention"), spec.head_dim),
        attention_scale=config.number("query_pre_attn_scalar") ** -0.5,
        embedding_scale=math.sqrt(spec.hidden_size),
    )
