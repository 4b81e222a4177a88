"""SmolLM3: the Llama layer; every fourth one rotates nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense
from eyas.models.families.qwen2 import WINDOW_FIELDS
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.CHECKPOINT_NAMES
FIELDS = WINDOW_FIELDS | {
    *("attention_bias", "mlp_bias", "no_rope_layers", "no_rope_layer_interval"),
}
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rope_theta": 2000000.0,
    "tie_word_embeddings": True,
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    config.require("use_sliding_window", False, False, "attention to all positions is")
    attention_bias = config.flag("attention_bias")
    spec = dense.read_dense(
        config,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=config.flag("mlp_bias"),
    )
    return replace(spec, unrotated_layers=_unrotated_layers(config, spec.num_layers))


def _unrotated_layers(config: ConfigFile, num_layers: int) -> frozenset[int]:
    """Return the layers where `no_rope_layers` has 0, which its name does not say."""
    rotates = config.values.get("no_rope_layers")
    if rotates is None:
        every = config.count("no_rope_layer_interval", 4)
        rotates = [int((layer + 1) % every != 0) for layer in range(num_layers)]
    is_valid = isinstance(rotates, list) and all(each in (0, 1) for each in rotates)
    if not is_valid or len(rotates) != num_layers:
        raise config.error("no_rope_layers", f"must list 0 or 1 for each of {num_layers} layers")
    return frozenset(layer for layer, each in enumerate(rotates) if not each)
