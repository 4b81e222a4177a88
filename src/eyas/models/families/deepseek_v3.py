"""DeepSeek-V3 and R1: latent attention; sigmoid routers with a correction, which choose in groups.

The layer after the last one, if the files hold it, is an MTP layer, which `heads.mtp` reads.
"""

from __future__ import annotations

from eyas.models.config_file import ConfigFile
from eyas.models.expert_fields import read_corrected_experts
from eyas.models.families import latent
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = latent.CHECKPOINT_NAMES
FIELDS = latent.FIELDS
DEFAULTS = latent.DEFAULTS | {
    "max_position_embeddings": 4096,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    config.require("scoring_func", "sigmoid", "sigmoid", "sigmoid is")
    config.require("topk_method", "noaux_tc", "noaux_tc", "noaux_tc is")
    experts = read_corrected_experts(config)
    return latent.read_latent(config, experts=experts)
