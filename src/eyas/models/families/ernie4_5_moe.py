"""ERNIE 4.5 with experts: heads rotated in pairs of neighbours; softmax routers with a correction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.expert_fields import read_experts
from eyas.models.families import dense
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.names_with(
    {
        **dense.EXPERT_NAMES,
        **dense.SHARED_EXPERT_NAMES,
        "mlp.router.correction": "mlp.moe_statics.e_score_correction_bias",
    }
)
IGNORED = frozenset(
    (
        *("moe_capacity", "moe_multimodal_paddle", "moe_dropout_prob", "moe_group"),
        *("moe_use_hard_gate", "moe_dense_experts_token_type_id", "compression_ratio"),
        *("router_aux_loss_coef", "output_router_logits", "multi_token_pred_lambda"),
    )
)
"""Fields of training, and of MTP layers, which are not read."""
FIELDS = IGNORED | {
    *("use_bias", "moe_num_experts", "moe_k", "moe_num_shared_experts", "moe_intermediate_size"),
    *("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval", "moe_norm_min"),
    *("moe_gate", "moe_gate_act", "moe_use_aux_free", "moe_norm_gate_logits"),
    *("num_experts", "num_experts_per_tok"),
}
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "moe_k": 6,
    "moe_intermediate_size": 1536,
}
"""transformers' defaults of fields that a file may omit."""
LARGEST_NORM_MIN = 1e-9
"""Up to here, the least divisor of the chosen scores is far below their sum and has no effect."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    config.require("use_bias", False, False, "false is, with experts")
    config.require("moe_gate", "topk", "topk", "topk is")
    config.require("moe_gate_act", "softmax", "softmax", "softmax is")
    config.require("moe_use_aux_free", True, True, "true is")
    config.require("moe_norm_gate_logits", True, True, "true is")
    for alias, field in (("num_experts", "moe_num_experts"), ("num_experts_per_tok", "moe_k")):
        count = config.count(field)
        config.require(alias, count, count, f"{field} is {count}, and this is its other name")
    if config.number("moe_norm_min", 1e-12) > LARGEST_NORM_MIN:
        raise config.error("moe_norm_min", f"must be at most {LARGEST_NORM_MIN}")
    spec = dense.read_dense(config, is_interleaved=True)
    experts = read_experts(
        ConfigFile(config.path, {**config.values, "num_experts_per_tok": config.count("moe_k")}),
        number="moe_num_experts",
        size="moe_intermediate_size",
        routing={"normalizes": True},
        has_correction=True,
        shared_size=config.index("moe_num_shared_experts", 2)
        * config.count("moe_intermediate_size"),
    )
    return replace(spec, experts=experts, expert_layers=_expert_layers(config, spec.num_layers))


def _expert_layers(config: ConfigFile, num_layers: int) -> frozenset[int]:
    """Return every `moe_layer_interval`th layer, from the first to the last one with experts."""
    first, every = config.index("moe_layer_start_index", 1), config.count("moe_layer_interval", 1)
    last = config.values.get("moe_layer_end_index")
    last = num_layers - 1 if last in (None, -1) else config.index("moe_layer_end_index", 0)
    layers = range(first, min(last, num_layers - 1) + 1)
    return frozenset(layer for layer in layers if (layer + 1) % every == 0)
