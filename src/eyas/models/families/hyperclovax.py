"""HyperCLOVA X Think: Granite's multipliers, and norms of outputs beside those of inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense, granite
from eyas.models.spec import LayerTraits, ModelSpec

CHECKPOINT_NAMES = dense.names_with(
    {
        "attention_output_norm.weight": "post_norm1.weight",
        "mlp_output_norm.weight": "post_norm2.weight",
    }
)
FIELDS = granite.FIELDS | {"use_post_norm"}
DEFAULTS: dict[str, Any] = {"max_position_embeddings": 2048}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    norms_output = config.flag("use_post_norm", True)
    if norms_output:
        config.require("residual_multiplier", 1, 1, "1 is, with use_post_norm")
    spec = granite.read_scaled(config, mlp_bias=config.flag("mlp_bias"))
    if config.values.get("attention_multiplier") is None:
        spec = replace(spec, attention_scale=None)
    return replace(
        spec,
        traits=LayerTraits(norms="both" if norms_output else "input"),
        logits_scale=1 / spec.logits_scale,  # here it multiplies
    )
