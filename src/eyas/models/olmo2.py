"""OLMo 2: norms of each block's output, and of all heads of q and of k together."""

from __future__ import annotations

from dataclasses import replace

from eyas.models import dense
from eyas.models.config_file import ConfigFile
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


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    return read_windowed(config, family="olmo2", window=None)


def read_windowed(config: ConfigFile, *, family: str, window: int | None) -> ModelSpec:
    """Return the facts of a model whose layers may have windows, as `dense.read_dense`."""
    attention_bias = config.flag("attention_bias")
    spec = dense.read_dense(
        config.with_defaults({"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}),
        family=family,
        head_dim=None,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=False,
        qk_norm=True,
        window=window,
    )
    return replace(spec, traits=LayerTraits(norms="output", norms_projections=True))
