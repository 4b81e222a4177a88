"""Qwen3 dense: the Llama layer with RMS-normalised q and k heads, and optional sliding windows.

Promises: a configuration becomes a `ModelSpec`, a parameter name a checkpoint name.
Does not know: how either is used.
"""

from __future__ import annotations

from eyas.models.config_file import ConfigFile
from eyas.models.dense import read_dense
from eyas.models.qwen2 import DEFAULTS, read_windows
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
    "layers.{layer}.attention.q_norm.weight": "model.layers.{layer}.self_attn.q_norm.weight",
    "layers.{layer}.attention.k_norm.weight": "model.layers.{layer}.self_attn.k_norm.weight",
    "layers.{layer}.mlp_norm.weight": "model.layers.{layer}.post_attention_layernorm.weight",
    "layers.{layer}.mlp.gate.weight": "model.layers.{layer}.mlp.gate_proj.weight",
    "layers.{layer}.mlp.up.weight": "model.layers.{layer}.mlp.up_proj.weight",
    "layers.{layer}.mlp.down.weight": "model.layers.{layer}.mlp.down_proj.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}


def read(config: ConfigFile) -> ModelSpec:
    config = config.with_defaults(DEFAULTS)
    attention_bias = config.flag("attention_bias")
    return read_dense(
        config,
        family="qwen3",
        head_dim=128,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=False,
        qk_norm=True,
        **read_windows(config),
    )
