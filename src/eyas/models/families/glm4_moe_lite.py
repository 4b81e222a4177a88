"""GLM-4.7-Flash: DeepSeek-V3's latent attention, and GLM-4.5's experts.

The layer after the last one, if the files hold it, is an MTP layer, which `heads.mtp` reads.
"""

from __future__ import annotations

from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.expert_fields import read_corrected_experts
from eyas.models.families import latent
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = latent.CHECKPOINT_NAMES
FIELDS = latent.FIELDS | {"mlp_layer_types", "output_router_logits"}
DEFAULTS: dict[str, Any] = {
    "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1536,
    "routed_scaling_factor": 1.8,
    "first_k_dense_replace": 1,
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    config.require("scoring_func", "sigmoid", "sigmoid", "sigmoid is")
    config.require("topk_method", "noaux_tc", "noaux_tc", "noaux_tc is")
    config = _by_number(config)
    experts = read_corrected_experts(config)
    return latent.read_latent(config, experts=experts)


def _by_number(config: ConfigFile) -> ConfigFile:
    """Return the fields with `first_k_dense_replace`, in whose place transformers writes a list."""
    kinds = config.values.get("mlp_layer_types")
    if kinds is None:
        return config
    num_layers = config.count("num_hidden_layers")
    num_dense = kinds.count("dense") if isinstance(kinds, list) else 0
    if kinds != ["dense"] * num_dense + ["sparse"] * (num_layers - num_dense):
        raise config.error(
            "mlp_layer_types", f"must list {num_layers} layers, dense ones first, then sparse ones"
        )
    return ConfigFile(config.path, {**config.values, "first_k_dense_replace": num_dense})
