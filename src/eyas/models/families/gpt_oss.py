"""gpt-oss: experts in every layer, attention with sinks, windows in every other layer."""

from __future__ import annotations

from dataclasses import replace

from eyas.models.config_file import ConfigFile
from eyas.models.expert_fields import read_experts
from eyas.models.families import dense
from eyas.models.spec import LayerTraits, ModelSpec
from eyas.ops.gate import ALPHA, LIMIT

CHECKPOINT_NAMES = dense.names_with(
    {
        "attention.sinks": "self_attn.sinks",
        "mlp.router.weight": "mlp.router.weight",
        "mlp.router.bias": "mlp.router.bias",
        "mlp.experts.gate_up.weight": "mlp.experts.gate_up_proj",
        "mlp.experts.gate_up.bias": "mlp.experts.gate_up_proj_bias",
        "mlp.experts.down.weight": "mlp.experts.down_proj",
        "mlp.experts.down.bias": "mlp.experts.down_proj_bias",
    }
)
READ = frozenset(("sliding_window", "num_local_experts", "num_experts_per_tok", "attention_bias"))
IGNORED = frozenset(("experts_per_token", "initial_context_length", "router_aux_loss_coef"))
"""The first two repeat other fields."""
FIELDS = READ | IGNORED | {"swiglu_alpha", "swiglu_limit"}
DEFAULTS = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "sliding_window": 128,
}
"""transformers' defaults of fields that a file may omit."""
DEFAULT_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""That of a file that has neither field of rope, or null in them."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    for field, value in (("swiglu_alpha", ALPHA), ("swiglu_limit", LIMIT)):
        config.require(field, value, value, f"{value} is")
    config = config.with_defaults(DEFAULTS).with_layer_types(every=2)
    if not (config.values.get("rope_scaling") or config.values.get("rope_parameters")):
        config = ConfigFile(config.path, {**config.values, "rope_parameters": DEFAULT_ROPE})
    spec = dense.read_dense(
        config,
        head_dim=64,
        qkv_bias=config.flag("attention_bias", True),
        output_bias=config.flag("attention_bias", True),
        window=config.count("sliding_window"),
    )
    is_stored = {"bias": True, "router_bias": True, "is_alternating": True}
    number, size, routing = "num_local_experts", "intermediate_size", {"normalizes": True}
    experts = read_experts(config, number=number, size=size, routing=routing, **is_stored)
    return replace(
        spec,
        experts=experts,
        expert_layers=frozenset(range(spec.num_layers)),
        traits=LayerTraits(activation="clamped_swiglu", has_sinks=True),
    )
