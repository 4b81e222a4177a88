"""GLM-4.5 and 4.6: half of each head is rotated; sigmoid routers, and an expert that all tokens share.

The layer after the last one, if the files hold it, is an MTP layer, which `heads.mtp` reads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.models import dense
from eyas.models.config_file import ConfigFile
from eyas.models.expert_fields import layers_after, read_corrected_experts
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


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    spec = dense.read_dense(
        config,
        qkv_bias=config.flag("attention_bias"),
        qk_norm=config.flag("use_qk_norm"),
        has_partial_rope=True,
    )
    experts = read_corrected_experts(config)
    return replace(spec, experts=experts, expert_layers=layers_after(config, spec.num_layers))
