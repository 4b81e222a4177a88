"""GLM-4 dense, and the text model of GLM-4.1V: half of each head is rotated, in pairs of neighbours;
GLM-4-0414 and 4.1V norm outputs too."""

from __future__ import annotations

from dataclasses import replace

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense
from eyas.models.spec import LayerTraits, ModelSpec

OUTPUT_NORMS = {
    "attention_output_norm.weight": "post_self_attn_layernorm.weight",
    "mlp_output_norm.weight": "post_mlp_layernorm.weight",
}
CHECKPOINT_NAMES = dense.names_with(dense.FUSED_GATE_UP | OUTPUT_NORMS, *dense.GATE_UP)
FIELDS = frozenset(("attention_bias",))
DEFAULTS = {
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1.5625e-07,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
}
"""transformers' defaults of fields that a file may omit."""
VISION_DEFAULTS = {
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 1.0,
}
"""Those of GLM-4.1V's text model which differ."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    has_vision = config.values["architectures"][0] == "Glm4vForConditionalGeneration"
    config = config.with_defaults(VISION_DEFAULTS if has_vision else {}).with_defaults(DEFAULTS)
    spec = dense.read_dense(
        config,
        head_dim=None if has_vision else 128,
        qkv_bias=config.flag("attention_bias"),
        has_partial_rope=True,
        is_interleaved=True,
    )
    has_output_norms = spec.architecture != "GlmForCausalLM"
    return replace(spec, traits=LayerTraits(norms="both" if has_output_norms else "input"))
