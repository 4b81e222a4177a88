"""dots.llm1: Qwen3's attention, and DeepSeek-V3's experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.expert_fields import layers_after, read_corrected_experts
from eyas.models.families import dense
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.names_with(dense.EXPERT_NAMES | dense.SHARED_EXPERT_NAMES)
FIELDS = frozenset(
    (
        *("attention_bias", "sliding_window", "max_window_layers", "n_routed_experts"),
        *("n_shared_experts", "n_group", "topk_group", "topk_method", "num_experts_per_tok"),
        *("moe_intermediate_size", "norm_topk_prob", "routed_scaling_factor", "scoring_func"),
        *("first_k_dense_replace", "moe_layer_freq", "output_router_logits"),
    )
)
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 2048,
    "sliding_window": 4096,
    "max_window_layers": 62,
    "moe_intermediate_size": 1408,
    "norm_topk_prob": False,
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    config.require("moe_layer_freq", 1, 1, "1 is")
    config.require("topk_method", "noaux_tc", "noaux_tc", "noaux_tc is")
    scoring = config.values.get("scoring_func")
    if scoring != "noaux_tc":  # published files repeat the method here
        config.require("scoring_func", "sigmoid", "sigmoid", "sigmoid is")
    attention_bias = config.flag("attention_bias")
    spec = dense.read_dense(
        config,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
        window=config.window(),
        first_windowed_layer=config.index("max_window_layers", 62),
    )
    experts = read_corrected_experts(config)
    return replace(spec, experts=experts, expert_layers=layers_after(config, spec.num_layers))
