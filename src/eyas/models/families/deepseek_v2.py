"""DeepSeek-V2 and V2-Lite: latent attention; softmax routers, which may choose from the best groups."""

from __future__ import annotations

from eyas.models.config_file import ConfigFile
from eyas.models.expert_fields import read_experts, shared_size
from eyas.models.families import latent
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = latent.CHECKPOINT_NAMES
FIELDS = latent.FIELDS
DEFAULTS = latent.DEFAULTS | {
    "max_position_embeddings": 2048,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1407,
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    config.require("scoring_func", "softmax", "softmax", "softmax is")
    config.require("norm_topk_prob", False, False, "libraries differ in what true means")
    has_groups = config.values.get("topk_method") == "group_limited_greedy"
    if not has_groups:
        config.require("topk_method", "greedy", "greedy", "greedy and group_limited_greedy are")
    experts = read_experts(
        config,
        number="n_routed_experts",
        size="moe_intermediate_size",
        routing={
            "normalizes": False,
            "scale": config.number("routed_scaling_factor", 1.0),
            "num_groups": config.count("n_group") if has_groups else 1,
            "num_chosen_groups": config.count("topk_group") if has_groups else 1,
        },
        shared_size=shared_size(config),
    )
    return latent.read_latent(config, experts=experts)
