"""GLM-4 dense: half of each head is rotated, in pairs of neighbours; GLM-4-0414 norms outputs too."""

from __future__ import annotations

from dataclasses import replace

from eyas.models import dense
from eyas.models.config_file import ConfigFile
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


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    spec = dense.read_dense(
        config,
        head_dim=128,
        qkv_bias=config.flag("attention_bias"),
        has_partial_rope=True,
        is_interleaved=True,
    )
    has_output_norms = spec.architecture == "Glm4ForCausalLM"
    return replace(spec, traits=LayerTraits(norms="both" if has_output_norms else "input"))
