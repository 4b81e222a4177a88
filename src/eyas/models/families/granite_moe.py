"""Granite 3 with experts, and Granite 4 without Mamba layers: Granite's multipliers; the experts of a
layer are two tensors.

Granite 4's layers have a feed-forward block that all tokens share, and experts beside it or none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.expert_fields import read_experts
from eyas.models.families import dense, granite
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.names_with(
    {
        "mlp.gate_up.weight": "shared_mlp.input_linear.weight",
        "mlp.down.weight": "shared_mlp.output_linear.weight",
        "mlp.shared.gate_up.weight": "shared_mlp.input_linear.weight",
        "mlp.shared.down.weight": "shared_mlp.output_linear.weight",
        "mlp.router.weight": "block_sparse_moe.router.layer.weight",
        "mlp.experts.gate_up.weight": "block_sparse_moe.input_linear.weight",
        "mlp.experts.down.weight": "block_sparse_moe.output_linear.weight",
    },
    *dense.GATE_UP,
)
MAMBA_FIELDS = frozenset(
    (
        *("mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_head", "mamba_d_conv"),
        *("mamba_expand", "mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias"),
        "time_step_limit",
    )
)
"""Ignored, since models with Mamba layers are refused."""
FIELDS = (
    granite.MULTIPLIERS
    | MAMBA_FIELDS
    | {
        *("attention_bias", "num_local_experts", "num_experts_per_tok", "output_router_logits"),
        *("router_aux_loss_coef", "shared_intermediate_size", "position_embedding_type"),
        *("layers_block_type", "normalization_function"),
    }
)
DEFAULTS: dict[str, Any] = {
    "max_position_embeddings": 2048,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    architecture = config.values["architectures"][0]
    is_hybrid = architecture == "GraniteMoeHybridForCausalLM"
    config = config.with_defaults(DEFAULTS)
    config.require("normalization_function", "rmsnorm", "rmsnorm", "rmsnorm is")
    if is_hybrid:
        _refuse_mamba(config)
        config = ConfigFile(config.path, {**config.values, "layer_types": None})
    shared_size = 0
    if architecture != "GraniteMoeForCausalLM":
        shared_size = config.index("shared_intermediate_size", 1024 if is_hybrid else 0)
    if is_hybrid and not config.index("num_local_experts", 8):
        values = {**config.values, "intermediate_size": shared_size}
        spec = granite.read_scaled(ConfigFile(config.path, values))
    else:
        experts = read_experts(
            config,
            number="num_local_experts",
            size="intermediate_size",
            routing={"normalizes": True},
            shared_size=shared_size,
        )
        spec = granite.read_scaled(config)
        layers = frozenset(range(spec.num_layers))
        spec = replace(spec, experts=experts, expert_layers=layers)
    if is_hybrid and config.values.get("position_embedding_type") != "rope":
        if config.values.get("position_embedding_type") not in (None, "nope"):
            raise config.error("position_embedding_type", "must be rope, nope or null")
        spec = replace(spec, unrotated_layers=frozenset(range(spec.num_layers)))
    return spec


def _refuse_mamba(config: ConfigFile) -> None:
    """ValueError: a layer is not one of attention."""
    num_layers = config.count("num_hidden_layers")
    field = "layer_types" if config.values.get("layer_types") is not None else "layers_block_type"
    types = config.values.get(field)
    if types is None:
        raise config.error(
            "layer_types",
            "is missing, so that all layers are Mamba layers, "
            "which are not supported; use a Granite 4 model without an H in its name",
        )
    if not isinstance(types, list) or len(types) != num_layers:
        raise config.error(field, f"must list {num_layers} layers")
    for kind in types:
        if kind not in ("attention", "full_attention"):
            raise config.error(
                field,
                f"{kind!r} is not supported (attention is); use a Granite 4 model without an H in its "
                "name, which has no Mamba layers",
            )
