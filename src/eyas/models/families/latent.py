"""What the families with latent attention share: the sizes of the attention, and the names of tensors.

Promises: as `dense`, whose fields are read by it.
Does not know: how a family's router chooses.
"""

from __future__ import annotations

from dataclasses import replace

from eyas.layers.expert_spec import ExpertSpec
from eyas.layers.latent_attention import LatentSizes
from eyas.models.config_file import ConfigFile
from eyas.models.expert_fields import layers_after
from eyas.models.families import dense
from eyas.models.spec import ModelSpec

NAMES = dense.LATENT_ATTENTION | dense.EXPERT_NAMES | dense.SHARED_EXPERT_NAMES
CHECKPOINT_NAMES = dense.names_with(NAMES, *dense.QKV[1:])
FIELDS = frozenset(
    (
        *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim"),
        *("v_head_dim", "rope_interleave", "attention_bias", "mlp_bias", "first_k_dense_replace"),
        *("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size"),
        *("moe_layer_freq", "n_group", "topk_group", "topk_method", "norm_topk_prob"),
        *("routed_scaling_factor", "scoring_func"),
    )
)
DEFAULTS = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
"""transformers' defaults of fields that a file may omit."""


def read_latent(config: ConfigFile, *, experts: ExpertSpec | None) -> ModelSpec:
    """Return the facts of a model with latent attention from its config.json, with `DEFAULTS` in it.

    experts: of the layers after the first `first_k_dense_replace` ones; None where no layer has any.
    ValueError: a field is missing or invalid, or its value is not supported.
    """
    num_heads = config.count("num_attention_heads")
    config.require("num_key_value_heads", num_heads, num_heads, "as many as attention heads are")
    config.require("moe_layer_freq", 1, 1, "1 is")
    for field in ("attention_bias", "mlp_bias"):
        config.require(field, False, False, "false is")
    has_query_rank = config.values["q_lora_rank"] is not None
    latent = LatentSizes(
        query_rank=config.count("q_lora_rank") if has_query_rank else None,
        rank=config.count("kv_lora_rank"),
        plain_dim=config.count("qk_nope_head_dim"),
        rotated_dim=config.count("qk_rope_head_dim"),
        value_dim=config.count("v_head_dim"),
    )
    if latent.rotated_dim % 2:
        raise config.error("qk_rope_head_dim", f"must be even, not {latent.rotated_dim}")
    spec = dense.read_dense(
        ConfigFile(config.path, {**config.values, "head_dim": latent.rotated_dim}),
        is_interleaved=config.flag("rope_interleave", True),
    )
    layers = layers_after(config, spec.num_layers) if experts is not None else frozenset[int]()
    return replace(
        spec,
        num_kv_heads=1,
        head_dim=latent.row_dim,
        latent=latent,
        attention_scale=latent.query_dim**-0.5 * spec.rope.logit_factor,
        experts=experts if layers else None,
        expert_layers=layers,
    )
