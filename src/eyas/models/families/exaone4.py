"""EXAONE 4: norms of each block's output, and of heads; where some layers have windows, only those
rotate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense, olmo2
from eyas.models.spec import LayerTraits, ModelSpec

CHECKPOINT_NAMES = olmo2.CHECKPOINT_NAMES
FIELDS = frozenset(("sliding_window", "sliding_window_pattern"))
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    window = config.window()
    if window is not None and config.values.get("layer_types") is None:
        config = config.with_layer_types(every=config.count("sliding_window_pattern"))
    spec = dense.read_dense(
        config,
        qk_norm=True,
        window=window,
    )
    full = (layer for layer, each in enumerate(spec.windows) if each is None)
    return replace(
        spec,
        traits=LayerTraits(norms="output"),
        unrotated_layers=frozenset(() if window is None else full),
    )
