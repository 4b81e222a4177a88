"""Llama 2, 3, 3.1, 3.2, and Mistral: grouped-query attention, rotary positions, gated silu.

Promises: a configuration becomes a `ModelSpec`, a parameter name a checkpoint name.
Does not know: how either is used.
"""

from __future__ import annotations

from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.dense import read_dense
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "layers.{layer}.attention_norm.weight": "model.layers.{layer}.input_layernorm.weight",
    "layers.{layer}.attention.q.weight": "model.layers.{layer}.self_attn.q_proj.weight",
    "layers.{layer}.attention.k.weight": "model.layers.{layer}.self_attn.k_proj.weight",
    "layers.{layer}.attention.v.weight": "model.layers.{layer}.self_attn.v_proj.weight",
    "layers.{layer}.attention.o.weight": "model.layers.{layer}.self_attn.o_proj.weight",
    "layers.{layer}.attention.q.bias": "model.layers.{layer}.self_attn.q_proj.bias",
    "layers.{layer}.attention.k.bias": "model.layers.{layer}.self_attn.k_proj.bias",
    "layers.{layer}.attention.v.bias": "model.layers.{layer}.self_attn.v_proj.bias",
    "layers.{layer}.attention.o.bias": "model.layers.{layer}.self_attn.o_proj.bias",
    "layers.{layer}.mlp_norm.weight": "model.layers.{layer}.post_attention_layernorm.weight",
    "layers.{layer}.mlp.gate.weight": "model.layers.{layer}.mlp.gate_proj.weight",
    "layers.{layer}.mlp.up.weight": "model.layers.{layer}.mlp.up_proj.weight",
    "layers.{layer}.mlp.down.weight": "model.layers.{layer}.mlp.down_proj.weight",
    "layers.{layer}.mlp.gate.bias": "model.layers.{layer}.mlp.gate_proj.bias",
    "layers.{layer}.mlp.up.bias": "model.layers.{layer}.mlp.up_proj.bias",
    "layers.{layer}.mlp.down.bias": "model.layers.{layer}.mlp.down_proj.bias",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}

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
    return read_dense(
        config,
        family="llama",
        head_dim=None,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=config.flag("mlp_bias"),
        qk_norm=False,
        window=config.count("sliding_window") if has_window else None,
    )
