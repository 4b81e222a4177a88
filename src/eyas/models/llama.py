"""Llama 2, 3, 3.1, 3.2, and Mistral: grouped-query attention, rotary positions, gated silu.

Promises: a configuration becomes a `ModelSpec`, a parameter name a checkpoint name.
Does not know: how either is used.
"""

from __future__ import annotations

from typing import Any

from eyas.models import dense
from eyas.models.config_file import ConfigFile
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.CHECKPOINT_NAMES

DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"max_position_embeddings": 2048},
    "MistralForCausalLM": {
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
}
"""transformers' values of fields that a file may leave out, by architecture."""


def read(config: ConfigFile) -> ModelSpec:
    architecture = config.values["architectures"][0]
    config = config.with_defaults(DEFAULTS[architecture])
    attention_bias = config.flag("attention_bias")
    is_mistral = architecture == "MistralForCausalLM"
    has_window = is_mistral and config.values["sliding_window"] is not None
    return dense.read_dense(
        config,
        family="llama",
        head_dim=None,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=config.flag("mlp_bias"),
        qk_norm=False,
        window=config.count("sliding_window") if has_window else None,
    )
