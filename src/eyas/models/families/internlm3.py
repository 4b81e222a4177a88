"""InternLM3 and IQuest-Coder: the Llama layer with heads of 128 numbers."""

from __future__ import annotations

from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.CHECKPOINT_NAMES
FIELDS = frozenset(("attention_bias", "mlp_bias", "qkv_bias", "bias"))
DEFAULTS: dict[str, dict[str, Any]] = {
    "InternLM3ForCausalLM": {"num_key_value_heads": 2, "max_position_embeddings": 32768},
    "IQuestCoderForCausalLM": {"num_key_value_heads": 8, "max_position_embeddings": 131072},
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    defaults = DEFAULTS[config.values["architectures"][0]]
    config = config.with_defaults({**defaults, "rms_norm_eps": 1e-5})
    attention_bias = config.flag("qkv_bias", config.flag("attention_bias"))
    mlp_bias = config.flag("bias", config.flag("mlp_bias"))
    if attention_bias and not mlp_bias and config.values.get("qkv_bias") is not None:
        raise config.error("qkv_bias", "true is not supported where bias is false")
    return dense.read_dense(
        config,
        head_dim=128,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=mlp_bias,
    )
