"""Code World Model (CWM): the Llama layer with windows in three of four layers."""

from __future__ import annotations

from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.CHECKPOINT_NAMES
FIELDS = frozenset(("mlp_bias", "sliding_window"))
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "sliding_window": 8192,
    "rope_theta": 1e6,
    "eos_token_id": [128001, 128008, 128009],
}
"""transformers' defaults of fields that a file may omit."""
DEFAULT_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 1e6,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""That of a file that has neither field of rope."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    values = dict(config.values)
    if not values.get("rope_parameters") and not values.get("rope_scaling"):
        values["rope_parameters"] = DEFAULT_ROPE
    if values.get("layer_types") is None:
        values["layer_types"] = [
            "sliding_attention" if layer % 4 else "full_attention"
            for layer in range(config.count("num_hidden_layers"))
        ]
    config = ConfigFile(config.path, values)
    return dense.read_dense(
        config, head_dim=128, mlp_bias=config.flag("mlp_bias"), window=config.window()
    )
