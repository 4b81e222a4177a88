"""Gemma, the first: the Llama layer with norm weights stored minus 1, a scaled embedding, and GELU."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense
from eyas.models.spec import LayerTraits, ModelSpec

CHECKPOINT_NAMES = dense.CHECKPOINT_NAMES
FIELDS = frozenset(("attention_bias", "hidden_activation", "use_bidirectional_attention"))
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 16,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}
"""transformers' defaults of fields that a file may omit."""
TRAITS = LayerTraits(norm_offset=1.0, activation="gelu_tanh")


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    tanh = "gelu_pytorch_tanh"
    if config.values.get("hidden_act") != "gelu":  # the first files say so and mean the other
        config.require("hidden_act", tanh, tanh, f"{tanh} is")
    config.require("hidden_activation", tanh, tanh, f"{tanh} is")
    config.require("use_bidirectional_attention", False, False, "text is read from left to right")
    attention_bias = config.flag("attention_bias")
    spec = dense.read_dense(
        config,
        head_dim=256,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        checks_activation=False,
    )
    return replace(spec, traits=TRAITS, embedding_scale=math.sqrt(spec.hidden_size))
