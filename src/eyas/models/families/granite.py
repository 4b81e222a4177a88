"""Granite 3: the Llama layer, with multipliers of embedding, residual stream, scores and logits.

A layer adds `residual_multiplier` times the output of each block. The stream is passed on divided by
that number, which the norms undo if their epsilon is divided by its square; so blocks are added as in
other families, and all multipliers are facts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.CHECKPOINT_NAMES
MULTIPLIERS = frozenset(
    ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
)
FIELDS = MULTIPLIERS | {"attention_bias", "mlp_bias"}
DEFAULTS: dict[str, Any] = {"max_position_embeddings": 2048}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    return read_scaled(config.with_defaults(DEFAULTS), mlp_bias=config.flag("mlp_bias"))


def read_scaled(config: ConfigFile, *, mlp_bias: bool = False) -> ModelSpec:
    """Return the facts of a dense model with Granite's multipliers. ValueError: as `read_dense`."""
    attention_bias = config.flag("attention_bias")
    spec = dense.read_dense(
        config, qkv_bias=attention_bias, output_bias=attention_bias, mlp_bias=mlp_bias
    )
    residual = _positive(config, "residual_multiplier")
    return replace(
        spec,
        attention_scale=_positive(config, "attention_multiplier"),
        embedding_scale=_positive(config, "embedding_multiplier") / residual,
        stream_scale=residual,
        norm_epsilon=spec.norm_epsilon / residual**2,
        logits_scale=1 / _positive(config, "logits_scaling"),
    )


def _positive(config: ConfigFile, field: str) -> float:
    value = config.number(field, 1.0)
    if value <= 0:
        raise config.error(field, f"must be above 0, not {value}")
    return value
