"""GLM-4.5 and 4.6, the text model of GLM-4.5V, and Solar Open: half of each head or all is rotated;
sigmoid routers, and an expert that all tokens share.

The layer after the last one, if the files hold it, is an MTP layer, which `heads.mtp` reads.
"""

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
        *("attention_bias", "use_qk_norm", "n_routed_experts", "n_shared_experts", "n_group"),
        *("num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "topk_group"),
        *("routed_scaling_factor", "first_k_dense_replace", "output_router_logits"),
    )
)
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
"""transformers' defaults of fields that a file may omit."""
VISION_DEFAULTS: dict[str, Any] = {
    "max_position_embeddings": 65536,
    "partial_rotary_factor": 1.0,
    "attention_bias": True,
}
"""Those of GLM-4.5V's text model which differ."""
SOLAR_DEFAULTS: dict[str, Any] = {
    "head_dim": 128,
    "partial_rotary_factor": 1.0,
    "rope_theta": 1e6,
    "moe_intermediate_size": 1280,
}


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    architecture = config.values["architectures"][0]
    if architecture == "Glm4vMoeForConditionalGeneration":
        config.require("use_qk_norm", False, False, "false is, in a model of images")
        config = config.with_defaults(VISION_DEFAULTS)
    elif architecture == "SolarOpenForCausalLM":
        config = _all_experts(config).with_defaults(SOLAR_DEFAULTS)
    config = config.with_defaults(DEFAULTS)
    spec = dense.read_dense(
        config,
        qkv_bias=config.flag("attention_bias"),
        qk_norm=config.flag("use_qk_norm"),
        has_partial_rope=True,
    )
    experts = read_corrected_experts(config)
    return replace(spec, experts=experts, expert_layers=layers_after(config, spec.num_layers))


def _all_experts(config: ConfigFile) -> ConfigFile:
    """Return the fields of Solar Open, all layers of which have experts."""
    config.require("first_k_dense_replace", 0, 0, "0 is")
    config.require("use_qk_norm", False, False, "false is")
    values = {"intermediate_size": 1, **config.values, "first_k_dense_replace": 0}
    return ConfigFile(config.path, values)
