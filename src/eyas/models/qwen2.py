"""Qwen2 and Qwen2.5: the Llama layer with biases on q, k and v, and optional sliding windows.

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
    "layers.{layer}.attention.q.bias": "model.layers.{layer}.self_attn.q_proj.bias",
    "layers.{layer}.attention.k.bias": "model.layers.{layer}.self_attn.k_proj.bias",
    "layers.{layer}.attention.v.bias": "model.layers.{layer}.self_attn.v_proj.bias",
    "layers.{layer}.attention.o.weight": "model.layers.{layer}.self_attn.o_proj.weight",
    "layers.{layer}.mlp_norm.weight": "model.layers.{layer}.post_attention_layernorm.weight",
    "layers.{layer}.mlp.gate.weight": "model.layers.{layer}.mlp.gate_proj.weight",
    "layers.{layer}.mlp.up.weight": "model.layers.{layer}.mlp.up_proj.weight",
    "layers.{layer}.mlp.down.weight": "model.layers.{layer}.mlp.down_proj.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}

DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
"""transformers' values of fields that a file may leave out; Qwen3's are the same."""


def read_windows(config: ConfigFile) -> dict[str, Any]:
    """Which layers attend in a window. config: has the defaults above."""
    has_window = config.values["sliding_window"] is not None
    slides = has_window and config.flag("use_sliding_window")
    return {
        "window": config.count("sliding_window") if slides else None,
        "first_windowed_layer": config.index("max_window_layers", DEFAULTS["max_window_layers"]),
    }


def read(config: ConfigFile) -> ModelSpec:
    config = config.with_defaults(DEFAULTS)
    return read_dense(
        config,
        family="qwen2",
        head_dim=None,
        qkv_bias=True,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        **read_windows(config),
    )
