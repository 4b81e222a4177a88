"""OLMo 2: norms of each block's output, and of all heads of q and of k together."""

from __future__ import annotations

from dataclasses import replace

from eyas.models.config_file import ConfigFile
from eyas.models.families import dense
from eyas.models.spec import LayerTraits, ModelSpec

CHECKPOINT_NAMES = dense.names_with(
    {
        "attention_output_norm.weight": "post_attention_layernorm.weight",
        "mlp_output_norm.weight": "post_feedforward_layernorm.weight",
    },
    "attention_norm.weight",
    "mlp_norm.weight",
)
FIELDS = frozenset(("attention_bias",))


def read(config: ConfigFile, window: int | None = None) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`. window: as in `dense.read_dense`."""
    attention_bias = config.flag("attention_bias")
    spec = dense.read_dense(
        config.with_defaults({"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
        window=window,
    )
    return replace(spec, traits=LayerTraits(norms="output", norms_projections=True))
