"""Seed-OSS: the Llama layer with heads of their own size, and biases on q, k and v."""

from __future__ import annotations

from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.CHECKPOINT_NAMES
FIELDS = frozenset(("attention_bias", "attention_out_bias", "mlp_bias"))
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 524288,
    "head_dim": 128,
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    return dense.read_dense(
        config.with_defaults(DEFAULTS),
        qkv_bias=config.flag("attention_bias", True),
        output_bias=config.flag("attention_out_bias"),
        mlp_bias=config.flag("mlp_bias"),
    )
