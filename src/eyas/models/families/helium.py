"""Helium: the Llama layer, whose heads are rotated in pairs of neighbours."""

from __future__ import annotations

from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.CHECKPOINT_NAMES
FIELDS = frozenset(("attention_bias", "mlp_bias"))
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 20,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-8,
    "rope_theta": 1e5,
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    return dense.read_dense(
        config,
        head_dim=128,
        qkv_bias=config.flag("attention_bias"),
        mlp_bias=config.flag("mlp_bias"),
        is_interleaved=True,
    )
