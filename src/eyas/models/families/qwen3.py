"""Qwen3 dense: the Llama layer with RMS-normalised q and k heads, and optional sliding windows."""

from __future__ import annotations

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense
from eyas.models.families.qwen2 import DEFAULTS, WINDOW_FIELDS, read_windows
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.CHECKPOINT_NAMES
FIELDS = WINDOW_FIELDS | {"attention_bias"}


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    attention_bias = config.flag("attention_bias")
    return dense.read_dense(
        config,
        head_dim=128,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
        **read_windows(config),
    )
