"""MiniMax-M2: a part of each head is rotated, norms of all heads of q and of k together; experts in
every layer, chosen by sigmoid scores with a correction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.expert_fields import read_experts
from eyas.models.families import dense, mixtral
from eyas.models.spec import LayerTraits, ModelSpec

CHECKPOINT_NAMES = mixtral.CHECKPOINT_NAMES | {
    "layers.{layer}.mlp.router.correction": (
        "model.layers.{layer}.block_sparse_moe.e_score_correction_bias"
    ),
}
IGNORED = frozenset(
    (
        *("layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta"),
        *("mlp_intermediate_size", "shared_moe_mode", "num_mtp_modules", "mtp_transformer_layers"),
        *("use_mtp", "router_jitter_noise", "router_aux_loss_coef", "output_router_logits"),
    )
)
"""Fields that MiniMax-M1 reads, and those of training and of MTP layers that no file holds."""
FIELDS = IGNORED | {
    *("num_local_experts", "num_experts_per_tok", "scoring_func", "rotary_dim", "attn_type_list"),
    *("qk_norm_type", "use_qk_norm", "use_routing_bias", "shared_intermediate_size"),
}
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 196608,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "rope_theta": 5e6,
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    config.require("scoring_func", "sigmoid", "sigmoid", "sigmoid is")
    config.require("use_qk_norm", True, True, "true is")
    config.require("qk_norm_type", "per_layer", "per_layer", "per_layer is")
    config.require("use_routing_bias", True, True, "true is")
    config.require("shared_intermediate_size", 0, 0, "0 is")
    kinds = config.values.get("attn_type_list") or []
    if not isinstance(kinds, list) or any(kind != 1 for kind in kinds):
        raise config.error("attn_type_list", "must be 1 for every layer: full attention")
    spec = dense.read_dense(
        _with_partial_factor(config), head_dim=128, qk_norm=True, has_partial_rope=True
    )
    experts = read_experts(
        config,
        number="num_local_experts",
        size="intermediate_size",
        routing={"scoring": "sigmoid", "normalizes": True},
        has_correction=True,
    )
    return replace(
        spec,
        traits=LayerTraits(norms_projections=True),
        experts=experts,
        expert_layers=frozenset(range(spec.num_layers)),
    )


def _with_partial_factor(config: ConfigFile) -> ConfigFile:
    """Return the fields with `partial_rotary_factor`, in whose place published files have
    `rotary_dim`; where a file has both, transformers reads the former."""
    values = dict(config.values)
    if values.get("rotary_dim") is not None and values.get("partial_rotary_factor") is None:
        factor = config.count("rotary_dim") / config.count("head_dim", 128)
        values["partial_rotary_factor"] = factor
    return ConfigFile(config.path, values)
