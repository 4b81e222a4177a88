"""Youtu-LLM: DeepSeek-V3's latent attention in a dense model."""

from __future__ import annotations

from eyas.models.config_file import ConfigFile
from eyas.models.families import latent
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = latent.CHECKPOINT_NAMES
FIELDS = latent.FIELDS
DEFAULTS = latent.DEFAULTS | {"max_position_embeddings": 131072, "tie_word_embeddings": True}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    config.require("n_routed_experts", None, None, "a dense model has none")
    return latent.read_latent(config, experts=None)
