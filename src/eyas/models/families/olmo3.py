"""OLMo 3: OLMo 2 with windows in three of four layers, whose positions are not scaled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import olmo2
from eyas.models.rope_fields import read_rope
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = olmo2.CHECKPOINT_NAMES
FIELDS = olmo2.FIELDS | {"sliding_window"}
DEFAULTS: dict[str, Any] = {"sliding_window": 4096, "rope_theta": 500000.0}
"""transformers' defaults of fields that a file may omit; OLMo 2 has the others."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS).with_ropes_by_layer_type(every=4)
    full, window = config.with_rope_of("full_attention"), config.count("sliding_window")
    spec = olmo2.read(full, window)
    window_rope = read_rope(config.with_rope_of("sliding_attention"), spec.head_dim)
    return replace(spec, window_rope=window_rope)
