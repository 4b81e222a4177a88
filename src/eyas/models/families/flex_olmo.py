"""FlexOlmo: OLMo 2's attention and norms, OLMoE's experts in every layer."""

from __future__ import annotations

from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense, olmo2, olmoe
from eyas.models.spec import LayerTraits, ModelSpec

CHECKPOINT_NAMES = olmo2.CHECKPOINT_NAMES | {
    f"layers.{{layer}}.{parameter}": f"model.layers.{{layer}}.{name}"
    for parameter, name in dense.EXPERT_NAMES.items()
}
FIELDS = olmoe.FIELDS
DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "num_experts": 7,
    "num_experts_per_tok": 5,
    "rope_theta": 500000.0,
}
"""transformers' defaults of fields that a file may omit; OLMoE has the others."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    traits = LayerTraits(norms="output", norms_projections=True)
    return olmoe.read(config.with_defaults(DEFAULTS), traits)
