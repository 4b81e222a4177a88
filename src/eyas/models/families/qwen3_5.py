"""Qwen3.5, dense or with experts: as Qwen3-Next, with the projections of delta nets in four tensors.

The experts of a layer may be two tensors. Published checkpoints are of models of images, whose text
model is read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense, qwen3_moe, qwen3_next
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.names_with(
    {
        **qwen3_next.DELTA_NAMES,
        "delta.qkv.weight": "linear_attn.in_proj_qkv.weight",
        "delta.z.weight": "linear_attn.in_proj_z.weight",
        "delta.b.weight": "linear_attn.in_proj_b.weight",
        "delta.a.weight": "linear_attn.in_proj_a.weight",
        **dense.EXPERT_NAMES,
        **qwen3_next.SHARED_EXPERT_NAMES,
    }
)
FIELDS = qwen3_next.FIELDS
DEFAULTS: dict[str, Any] = {
    **qwen3_next.DEFAULTS,
    "vocab_size": 248320,
    "num_key_value_heads": 4,
    "intermediate_size": 12288,
}
"""transformers' defaults of fields that a file may omit, of the dense models."""
EXPERT_DEFAULTS: dict[str, Any] = {
    **DEFAULTS,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 8,
    "num_experts": 256,
}


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    has_experts = "Moe" in config.values["architectures"][0]
    config = config.with_defaults(EXPERT_DEFAULTS if has_experts else DEFAULTS)
    spec = qwen3_next.read_hybrid(config, groups_by_key=False)
    if not has_experts:
        return spec
    config.require("norm_topk_prob", True, True, "true is; libraries differ in what false means")
    return qwen3_moe.with_experts(
        spec,
        replace(config, values={**config.values, "norm_topk_prob": True}),
        shared_size=config.count("shared_expert_intermediate_size"),
        has_shared_gate=True,
    )
