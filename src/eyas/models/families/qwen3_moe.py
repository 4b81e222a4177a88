"""Qwen3 and the text model of Qwen3-VL with experts: Qwen3's attention; most layers route each token to
some of many experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eyas.models.config_file import ConfigFile
from eyas.models.expert_fields import read_experts
from eyas.models.families import dense
from eyas.models.families.qwen2 import WINDOW_FIELDS
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.names_with(dense.EXPERT_NAMES)
FIELDS = WINDOW_FIELDS | {
    *("attention_bias", "num_experts", "num_local_experts", "num_experts_per_tok"),
    *("moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"),
    *("router_aux_loss_coef", "output_router_logits", "use_qk_norm"),
}
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
}
"""transformers' defaults of fields that a file may omit."""
VISION_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 16,
    "max_position_embeddings": 128000,
    "moe_intermediate_size": 1408,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}
"""Those of Qwen3-VL's text model."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    if config.values["architectures"][0] == "Qwen3VLMoeForConditionalGeneration":
        config.require("norm_topk_prob", True, True, "true is; transformers ignores false")
        values = {**config.values, "norm_topk_prob": True, "use_sliding_window": False}
        config = ConfigFile(config.path, values).with_defaults(VISION_DEFAULTS)
    config = config.with_defaults(DEFAULTS)
    config.require("use_qk_norm", True, True, "true is")
    attention_bias = config.flag("attention_bias")
    spec = dense.read_dense(
        config,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
        window=config.window() if config.flag("use_sliding_window") else None,
    )
    return with_experts(spec, config)


def with_experts(spec: ModelSpec, config: ConfigFile, **facts: Any) -> ModelSpec:
    """Return the facts with experts in the layers that the fields choose. facts: further arguments of
    `ExpertSpec`."""
    has_alias = config.values.get("num_local_experts") is not None
    number = "num_local_experts" if has_alias else "num_experts"
    step = config.count("decoder_sparse_step", 1)
    dense_layers = config.indices("mlp_only_layers")
    layers = (layer for layer in range(spec.num_layers) if layer not in dense_layers)
    return replace(
        spec,
        experts=read_experts(
            config.with_defaults({number: 128}),
            number=number,
            size="moe_intermediate_size",
            routing={"normalizes": config.flag("norm_topk_prob")},
            **facts,
        ),
        expert_layers=frozenset(layer for layer in layers if (layer + 1) % step == 0),
    )
