"""Qwen2, Qwen2.5 and MiMo: the Llama layer with biases on q, k and v, and optional sliding windows."""

from __future__ import annotations

from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.CHECKPOINT_NAMES

WINDOW_FIELDS = frozenset(("sliding_window", "use_sliding_window", "max_window_layers"))
FIELDS = WINDOW_FIELDS | {"attention_bias"}
"""attention_bias is ignored: q, k and v have biases and the output projection has none, as in
transformers."""

DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
"""transformers' defaults of fields that a file may omit; Qwen3 has the same."""


def read_windows(config: ConfigFile) -> dict[str, Any]:
    """Return the arguments `window` and `first_windowed_layer` of `read_dense`.

    config: with `DEFAULTS` applied.
    """
    return {
        "window": config.window() if config.flag("use_sliding_window") else None,
        "first_windowed_layer": config.index("max_window_layers", DEFAULTS["max_window_layers"]),
    }


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    return dense.read_dense(
        config,
        qkv_bias=True,
        **read_windows(config),
    )
