"""Qwen3-Next: three of four layers have a delta net, the fourth has gated attention; experts in all.

A quarter of each attention head is rotated. Norm weights are stored minus 1, but for those inside delta
nets. Tensors of an MTP layer (`mtp.`) are read by `heads.mtp`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.layers.delta_net import DeltaSizes
from eyas.models.config_file import ConfigFile
from eyas.models.families import dense, qwen3_moe
from eyas.models.spec import LayerTraits, ModelSpec

DELTA_NAMES = {
    "delta.convolution.weight": "linear_attn.conv1d.weight",
    "delta.log_decay": "linear_attn.A_log",
    "delta.time_bias": "linear_attn.dt_bias",
    "delta.norm.weight": "linear_attn.norm.weight",
    "delta.o.weight": "linear_attn.out_proj.weight",
}
SHARED_EXPERT_NAMES = {
    "mlp.shared.gate.weight": "mlp.shared_expert.gate_proj.weight",
    "mlp.shared.up.weight": "mlp.shared_expert.up_proj.weight",
    "mlp.shared.down.weight": "mlp.shared_expert.down_proj.weight",
    "mlp.shared_gate.weight": "mlp.shared_expert_gate.weight",
}
CHECKPOINT_NAMES = dense.names_with(
    {
        **DELTA_NAMES,
        "delta.qkvz.weight": "linear_attn.in_proj_qkvz.weight",
        "delta.ba.weight": "linear_attn.in_proj_ba.weight",
        **dense.EXPERT_NAMES,
        **SHARED_EXPERT_NAMES,
    }
)
HYBRID_FIELDS = frozenset(
    (
        *("attention_bias", "full_attention_interval", "linear_conv_kernel_dim"),
        *("linear_key_head_dim", "linear_value_head_dim", "attn_output_gate"),
        *("linear_num_key_heads", "linear_num_value_heads", "mamba_ssm_dtype"),
        *("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"),
    )
)
FIELDS = HYBRID_FIELDS | qwen3_moe.FIELDS | {"shared_expert_intermediate_size"}
DEFAULTS: dict[str, Any] = {
    "vocab_size": 151936,
    "head_dim": 256,
    "num_key_value_heads": 2,
    "intermediate_size": 5632,
    "max_position_embeddings": 32768,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 10,
    "num_experts": 512,
    "norm_topk_prob": True,
}
"""transformers' defaults of fields that a file may omit."""
TRAITS = LayerTraits(norm_offset=1.0, has_output_gate=True)


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    spec = read_hybrid(config, groups_by_key=True)
    return qwen3_moe.with_experts(
        spec,
        config,
        shared_size=config.count("shared_expert_intermediate_size"),
        has_shared_gate=True,
    )


def read_hybrid(config: ConfigFile, *, groups_by_key: bool) -> ModelSpec:
    """Return the facts of a model with delta nets and gated attention, without its experts.

    groups_by_key: as `DeltaSizes.groups_by_key`.
    """
    config.require("attn_output_gate", True, True, "gated attention is")
    config.require("use_qk_norm", True, True, "true is")
    config.require("mamba_ssm_dtype", "float32", "float32", "states are float32")
    state_layers = _state_layers(config)
    attention_bias = config.flag("attention_bias")
    spec = dense.read_dense(
        ConfigFile(config.path, {**config.values, "layer_types": None}),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
        has_partial_rope=True,
    )
    sizes = DeltaSizes(
        num_key_heads=config.count("linear_num_key_heads"),
        num_value_heads=config.count("linear_num_value_heads"),
        key_dim=config.count("linear_key_head_dim"),
        value_dim=config.count("linear_value_head_dim"),
        num_taps=config.count("linear_conv_kernel_dim"),
        groups_by_key=groups_by_key,
    )
    if sizes.num_value_heads % sizes.num_key_heads:
        raise config.error(
            "linear_num_key_heads",
            f"{sizes.num_key_heads} must divide {sizes.num_value_heads} value heads "
            "(linear_num_value_heads)",
        )
    if sizes.num_taps < 2:
        raise config.error("linear_conv_kernel_dim", f"must be at least 2, not {sizes.num_taps}")
    return replace(spec, traits=TRAITS, state=sizes, state_layers=state_layers)


def _state_layers(config: ConfigFile) -> frozenset[int]:
    """Return the layers with a delta net: those that `layer_types` lists, or all but every fourth."""
    num_layers, types = config.count("num_hidden_layers"), config.values.get("layer_types")
    if types is None:
        every = config.count("full_attention_interval", 4)
        return frozenset(layer for layer in range(num_layers) if (layer + 1) % every)
    if not isinstance(types, list) or len(types) != num_layers:
        raise config.error("layer_types", f"must list {num_layers} layers")
    for kind in types:
        if kind not in ("full_attention", "linear_attention"):
            raise config.error(
                "layer_types", f"{kind!r} is not supported (full_attention, linear_attention are)"
            )
    return frozenset(layer for layer, kind in enumerate(types) if kind == "linear_attention")
