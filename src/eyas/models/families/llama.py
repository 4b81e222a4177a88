"""Llama 2, 3, 3.1, 3.2, Mistral, Ministral and the text model of Mistral Small 3: grouped-query
attention, rotary positions, gated SiLU."""

from __future__ import annotations

import logging
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense
from eyas.models.spec import ModelSpec

log = logging.getLogger(__name__)

CHECKPOINT_NAMES = dense.CHECKPOINT_NAMES

FIELDS = frozenset(("attention_bias", "mlp_bias", "sliding_window"))

DEFAULTS: dict[str, Any] = {"max_position_embeddings": 2048}
"""transformers' defaults of fields that a file may omit."""
MISTRAL_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    is_mistral = config.values["architectures"][0].startswith(("Mistral", "Ministral"))
    if config.values["architectures"][0] == "Mistral3ForConditionalGeneration":
        config.require("model_type", "mistral", "mistral", "as the text_config's, mistral is")
    config = config.with_defaults(MISTRAL_DEFAULTS if is_mistral else DEFAULTS)
    if is_mistral:
        config = drop_ignored_mistral_fields(config)
    elif config.values.get("sliding_window") is not None:
        raise config.error(
            "sliding_window",
            "is not known for LlamaForCausalLM: some libraries would attend in a window and some would "
            "not; remove it, or use MistralForCausalLM with model_type mistral",
        )
    attention_bias = config.flag("attention_bias")
    return dense.read_dense(
        config,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=config.flag("mlp_bias"),
        window=config.window(),
    )


def drop_ignored_mistral_fields(config: ConfigFile) -> ConfigFile:
    """Remove fields that transformers ignores: its Mistral, Ministral and Mixtral have no biases, and
    all layers of a Mistral or a Mixtral are alike."""
    is_ministral = config.values["architectures"][0] == "MinistralForCausalLM"
    ignored = ("attention_bias", "mlp_bias", *(() if is_ministral else ("layer_types",)))
    present = [name for name in ignored if config.values.get(name)]
    if present:
        log.warning(
            "%s: %s: ignored, as transformers does for Mistral", config.path, ", ".join(present)
        )
    return ConfigFile(config.path, {k: v for k, v in config.values.items() if k not in ignored})
