"""ERNIE 4.5 dense: the Llama layer, whose heads are rotated in pairs of neighbours."""

from __future__ import annotations

from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.CHECKPOINT_NAMES
FIELDS = frozenset(("use_bias",))
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "head_dim": 128,
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    has_biases = config.flag("use_bias")
    return dense.read_dense(
        config.with_defaults(DEFAULTS),
        qkv_bias=has_biases,
        output_bias=has_biases,
        mlp_bias=has_biases,
        is_interleaved=True,
    )
