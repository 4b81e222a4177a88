"""Qwen2 and Qwen2.5: the Llama layer with biases on q, k and v, and optional sliding windows.

Promises: a configuration becomes a `ModelSpec`, a parameter name a checkpoint name.
Does not know: how either is used.
"""

from __future__ import annotations

from typing import Any

from eyas.models import dense
from eyas.models.config_file import ConfigFile
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.CHECKPOINT_NAMES

WINDOW_FIELDS = frozenset(("sliding_window", "use_sliding_window", "max_window_layers"))
FIELDS = WINDOW_FIELDS | {"attention_bias"}
"""Its biases are where they are, whatever attention_bias says."""

DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
"""transformers' values of fields that a file may leave out; Qwen3's are the same."""


def read_windows(config: ConfigFile) -> dict[str, Any]:
    """Which layers attend in a window. config: has the defaults above."""
    has_window = config.values["sliding_window"] is not None
    slides = has_window and config.flag("use_sliding_window")
    return {
        "window": config.count("sliding_window") if slides else None,
        "first_windowed_layer": config.index("max_window_layers", DEFAULTS["max_window_layers"]),
    }


def read(config: ConfigFile) -> ModelSpec:
    config = config.with_defaults(DEFAULTS)
    return dense.read_dense(
        config,
        family="qwen2",
        head_dim=None,
        qkv_bias=True,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        **read_windows(config),
    )
