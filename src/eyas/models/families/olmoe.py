"""OLMoE: the Llama layer with norms of all heads of q and of k together; experts in every layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.expert_fields import read_experts
from eyas.models.families import dense
from eyas.models.spec import LayerTraits, ModelSpec

CHECKPOINT_NAMES = dense.names_with(dense.EXPERT_NAMES)
FIELDS = frozenset(
    (
        "attention_bias",
        "num_experts",
        "num_experts_per_tok",
        "norm_topk_prob",
        "output_router_logits",
    )
)
DEFAULTS: dict[str, Any] = {
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "num_experts": 64,
    "num_experts_per_tok": 8,
}
"""transformers' defaults of fields that a file may omit."""


TRAITS = LayerTraits(norms_projections=True)


def read(config: ConfigFile, traits: LayerTraits = TRAITS) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`. traits: of the layers."""
    config = config.with_defaults(DEFAULTS)
    attention_bias = config.flag("attention_bias")
    spec = dense.read_dense(
        config, qkv_bias=attention_bias, output_bias=attention_bias, qk_norm=True
    )
    experts = read_experts(
        config,
        number="num_experts",
        size="intermediate_size",
        routing={"normalizes": config.flag("norm_topk_prob")},
    )
    return replace(
        spec,
        traits=traits,
        experts=experts,
        expert_layers=frozenset(range(spec.num_layers)),
    )
