"""DeepSeek-V2, V3 and R1: latent attention, whose rotated dimensions are pairs of neighbours."""

from __future__ import annotations

from dataclasses import replace

from eyas.layers.latent_attention import LatentSizes
from eyas.models import dense
from eyas.models.config_file import ConfigFile
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = dense.names_with(dense.LATENT_ATTENTION, *dense.QKV[1:])
FIELDS = frozenset(
    (
        *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim"),
        *("v_head_dim", "rope_interleave", "attention_bias", "mlp_bias", "first_k_dense_replace"),
        *("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size"),
        *("moe_layer_freq", "n_group", "topk_group", "topk_method", "norm_topk_prob"),
        *("routed_scaling_factor", "scoring_func", "seq_aux", "aux_loss_alpha", "ep_size"),
    )
)
DEFAULTS = {
    "max_position_embeddings": 2048,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
"""transformers' defaults of fields that a file may omit."""


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    config = config.with_defaults(DEFAULTS)
    num_heads = config.count("num_attention_heads")
    config.require("num_key_value_heads", num_heads, num_heads, "as many as attention heads are")
    for field in ("attention_bias", "mlp_bias"):
        config.require(field, False, False, "false is")
    if config.index("first_k_dense_replace", 0) < config.count("num_hidden_layers"):
        raise config.error(
            "first_k_dense_replace",
            "leaves layers with experts, which are not supported yet; use a dense model",
        )
    has_query_rank = config.values["q_lora_rank"] is not None
    latent = LatentSizes(
        query_rank=config.count("q_lora_rank") if has_query_rank else None,
        rank=config.count("kv_lora_rank"),
        plain_dim=config.count("qk_nope_head_dim"),
        rotated_dim=config.count("qk_rope_head_dim"),
        value_dim=config.count("v_head_dim"),
    )
    spec = dense.read_dense(
        ConfigFile(config.path, {**config.values, "head_dim": latent.rotated_dim}),
        family="deepseek",
        head_dim=None,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        window=None,
        is_interleaved=config.flag("rope_interleave", True),
    )
    return replace(
        spec,
        num_kv_heads=1,
        head_dim=latent.row_dim,
        latent=latent,
        attention_scale=latent.query_dim**-0.5 * spec.rope.logit_factor,
    )
