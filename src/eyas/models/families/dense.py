"""What the dense families share: the common fields of config.json, and the names of the tensors.

Promises: reads the common fields, and refuses values that the decoder cannot run.
Does not know: which biases, norms and windows a family has; the family module passes them.
"""

from __future__ import annotations

from collections.abc import Mapping

from eyas.models.config_file import ConfigFile
from eyas.models.rope_fields import max_position, read_rope
from eyas.models.spec import ModelSpec, read_eos_token_ids

CHECKPOINT_NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "layers.{layer}.attention_norm.weight": "model.layers.{layer}.input_layernorm.weight",
    "layers.{layer}.attention.q.weight": "model.layers.{layer}.self_attn.q_proj.weight",
    "layers.{layer}.attention.k.weight": "model.layers.{layer}.self_attn.k_proj.weight",
    "layers.{layer}.attention.v.weight": "model.layers.{layer}.self_attn.v_proj.weight",
    "layers.{layer}.attention.o.weight": "model.layers.{layer}.self_attn.o_proj.weight",
    "layers.{layer}.attention.q.bias": "model.layers.{layer}.self_attn.q_proj.bias",
    "layers.{layer}.attention.k.bias": "model.layers.{layer}.self_attn.k_proj.bias",
    "layers.{layer}.attention.v.bias": "model.layers.{layer}.self_attn.v_proj.bias",
    "layers.{layer}.attention.o.bias": "model.layers.{layer}.self_attn.o_proj.bias",
    "layers.{layer}.attention.q_norm.weight": "model.layers.{layer}.self_attn.q_norm.weight",
    "layers.{layer}.attention.k_norm.weight": "model.layers.{layer}.self_attn.k_norm.weight",
    "layers.{layer}.mlp_norm.weight": "model.layers.{layer}.post_attention_layernorm.weight",
    "layers.{layer}.mlp.gate.weight": "model.layers.{layer}.mlp.gate_proj.weight",
    "layers.{layer}.mlp.up.weight": "model.layers.{layer}.mlp.up_proj.weight",
    "layers.{layer}.mlp.down.weight": "model.layers.{layer}.mlp.down_proj.weight",
    "layers.{layer}.mlp.gate.bias": "model.layers.{layer}.mlp.gate_proj.bias",
    "layers.{layer}.mlp.up.bias": "model.layers.{layer}.mlp.up_proj.bias",
    "layers.{layer}.mlp.down.bias": "model.layers.{layer}.mlp.down_proj.bias",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
"""Parameter name -> name in a Hugging Face checkpoint; which of them a model has follows from its
`ModelSpec`."""


def names_with(changes: Mapping[str, str], *without: str) -> dict[str, str]:
    """Return CHECKPOINT_NAMES of a family whose layers differ from Llama's.

    changes: by the parameter's name within a layer, the tensor's name within its layer.
    without: parameters within a layer that the family does not have.
    """
    kept = {
        parameter: name
        for parameter, name in CHECKPOINT_NAMES.items()
        if parameter.removeprefix("layers.{layer}.") not in without
    }
    return kept | {
        f"layers.{{layer}}.{parameter}": f"model.layers.{{layer}}.{name}"
        for parameter, name in changes.items()
    }


EXPERT_NAMES = {
    "mlp.router.weight": "mlp.gate.weight",
    "mlp.experts.{expert}.gate.weight": "mlp.experts.{expert}.gate_proj.weight",
    "mlp.experts.{expert}.up.weight": "mlp.experts.{expert}.up_proj.weight",
    "mlp.experts.{expert}.down.weight": "mlp.experts.{expert}.down_proj.weight",
    "mlp.experts.gate_up.weight": "mlp.experts.gate_up_proj",
    "mlp.experts.down.weight": "mlp.experts.down_proj",
}
"""Parameters of experts within a layer, as Qwen, GLM and DeepSeek name them. The experts of a layer may
be two tensors, as transformers 5 holds them, and Qwen3-VL's and Qwen3.5's checkpoints."""
SHARED_EXPERT_NAMES = {
    "mlp.router.correction": "mlp.gate.e_score_correction_bias",
    "mlp.shared.gate.weight": "mlp.shared_experts.gate_proj.weight",
    "mlp.shared.up.weight": "mlp.shared_experts.up_proj.weight",
    "mlp.shared.down.weight": "mlp.shared_experts.down_proj.weight",
}
"""In addition, as GLM and DeepSeek name them."""
FUSED_QKV = {"attention.qkv.weight": "self_attn.qkv_proj.weight"}
FUSED_GATE_UP = {"mlp.gate_up.weight": "mlp.gate_up_proj.weight"}
LATENT_ATTENTION = {
    "attention.q_a.weight": "self_attn.q_a_proj.weight",
    "attention.q_a_norm.weight": "self_attn.q_a_layernorm.weight",
    "attention.q_b.weight": "self_attn.q_b_proj.weight",
    "attention.kv_a.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "attention.kv_a_norm.weight": "self_attn.kv_a_layernorm.weight",
    "attention.kv_b.weight": "self_attn.kv_b_proj.weight",
}
QKV = ("attention.q.weight", "attention.k.weight", "attention.v.weight")
GATE_UP = ("mlp.gate.weight", "mlp.up.weight")


def read_dense(
    config: ConfigFile,
    *,
    head_dim: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    window: int | None = None,
    first_windowed_layer: int = 0,
    has_partial_rope: bool = False,
    is_interleaved: bool = False,
    has_longrope: bool = False,
    checks_activation: bool = True,
) -> ModelSpec:
    """Return the facts of a dense model from its config.json.

    head_dim: the family's default where the file has none; None is hidden_size / num_attention_heads.
    window: number of positions that sliding-window layers attend to; None where the model has no such
    layers. first_windowed_layer: the layers from this one on have the window, unless `layer_types`
    lists which layers do. has_partial_rope, is_interleaved, has_longrope: as in `read_rope`.
    checks_activation: hidden_act must be silu.
    ValueError: a field is missing or invalid, or its value is not supported.
    """
    if checks_activation:
        config.require_silu()
    config.require("is_causal", True, True, "an encoder's text cannot be continued")
    if config.nested("per_layer_config").values:
        raise config.error("per_layer_config", "is not supported: all layers must be alike")
    num_layers = config.count("num_hidden_layers")
    num_query_heads = config.count("num_attention_heads")
    num_kv_heads = config.count("num_key_value_heads", num_query_heads)
    hidden_size = config.count("hidden_size")
    if num_query_heads % num_kv_heads:
        raise config.error(
            "num_key_value_heads", f"{num_kv_heads} must divide {num_query_heads} attention heads"
        )
    head_dim = config.count("head_dim", head_dim or max(1, hidden_size // num_query_heads))
    rope = read_rope(
        config,
        head_dim,
        may_be_partial=has_partial_rope,
        is_interleaved=is_interleaved,
        has_longrope=has_longrope,
    )
    if config.values.get("layer_types") is not None:
        windows = config.layer_windows(num_layers, window)
    else:
        windows = tuple(
            window if layer >= first_windowed_layer else None for layer in range(num_layers)
        )
    vocab_size = config.count("vocab_size")
    return ModelSpec(
        architecture=config.values["architectures"][0],
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_query_heads=num_query_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.count("intermediate_size"),
        norm_epsilon=config.epsilon(),
        rope=rope,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        tie_embeddings=config.flag("tie_word_embeddings"),
        windows=windows,
        max_position=max_position(config, rope),
        eos_token_ids=read_eos_token_ids(config, vocab_size),
    )
