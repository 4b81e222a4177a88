"""Qwen2 with experts, and Qwen1.5-MoE: Qwen2's attention; most layers have experts and a gated one that
all tokens share."""

from __future__ import annotations

from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense, qwen3_moe, qwen3_next
from eyas.models.families.qwen2 import WINDOW_FIELDS
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.names_with(dense.EXPERT_NAMES | qwen3_next.SHARED_EXPERT_NAMES)
FIELDS = WINDOW_FIELDS | {
    *("qkv_bias", "num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    *("norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "output_router_logits"),
    "shared_expert_intermediate_size",
}
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 16,
    "max_position_embeddings": 32768,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts_per_tok": 4,
    "num_experts": 60,
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    config.require("use_sliding_window", False, False, "libraries differ in which layers have it")
    spec = dense.read_dense(
        config,
        qkv_bias=config.flag("qkv_bias", True),
    )
    shared_size = config.count("shared_expert_intermediate_size")
    return qwen3_moe.with_experts(spec, config, shared_size=shared_size, has_shared_gate=True)
