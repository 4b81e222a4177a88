"""Mixtral: Mistral's attention; every layer routes each token to some of its experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.expert_fields import read_experts
from eyas.models.families import dense
from eyas.models.families.llama import drop_ignored_mistral_fields
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.names_with(
    {
        "mlp.router.weight": "block_sparse_moe.gate.weight",
        "mlp.experts.{expert}.gate.weight": "block_sparse_moe.experts.{expert}.w1.weight",
        "mlp.experts.{expert}.up.weight": "block_sparse_moe.experts.{expert}.w3.weight",
        "mlp.experts.{expert}.down.weight": "block_sparse_moe.experts.{expert}.w2.weight",
    },
    *dense.GATE_UP,
    "mlp.down.weight",
)
FIELDS = frozenset(
    (
        *("sliding_window", "num_local_experts", "num_experts_per_tok", "router_aux_loss_coef"),
        *("output_router_logits", "router_jitter_noise"),
    )
)
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "rope_theta": 1e6,
    "eos_token_id": 2,
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = drop_ignored_mistral_fields(config.with_defaults(DEFAULTS))
    spec = dense.read_dense(
        config,
        window=config.window(),
    )
    experts = read_experts(
        config, number="num_local_experts", size="intermediate_size", routing={"normalizes": True}
    )
    return replace(spec, experts=experts, expert_layers=frozenset(range(spec.num_layers)))
