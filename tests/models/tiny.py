"""Tiny random checkpoints written by transformers, one per supported shape of model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

NUM_TOKENS = 96
SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "tie_word_embeddings": False,
}
ROPE_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ROPE_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
WINDOW = {
    "use_sliding_window": True,
    "sliding_window": 16,
    "max_window_layers": 1,
}
LAYER_TYPES = ["full_attention", "sliding_attention", "full_attention"]
FULL_TYPES = ["full_attention"] * 3

LONGROPE = {
    "partial_rotary_factor": 0.75,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
        "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0],
    },
}

EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}
ROUTED_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "num_nextn_predict_layers": 0,
}
HYBRID: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
}
SHARED_EXPERTS: dict[str, Any] = {**EXPERTS, "shared_expert_intermediate_size": 32}
FROM_ZERO = ("Gemma", "Gemma3", "Qwen3Next", "Qwen3_5", "Qwen3_5Moe")
"""Families that add the 1 to norm weights themselves."""
GRANITE: dict[str, Any] = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.5,
    "logits_scaling": 6.0,
    "rms_norm_eps": 1e-3,
}
GRANITE_EXPERTS: dict[str, Any] = {**GRANITE, "num_local_experts": 8, "num_experts_per_tok": 3}
GRANITE_4: dict[str, Any] = {
    **GRANITE,
    "shared_intermediate_size": 40,
    "layer_types": ["full_attention"] * 3,
    "mamba_n_heads": 8,
}
GPT_OSS: dict[str, Any] = {
    "head_dim": 16,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "sliding_window": 16,
    "rope_parameters": {**ROPE_YARN, "truncate": False},
    "max_position_embeddings": 128,
}
SCALES = {"sinks": 2.0, "gate_up_proj_bias": 4.0}
"""Of weights that must be large to matter: a sink among many keys, and what a limit of 7 cuts off."""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {"num_key_value_heads": 4}),
    "llama3.1": ("Llama", {"rope_parameters": ROPE_LLAMA3}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "llama head_dim and biases": (
        "Llama",
        {"head_dim": 32, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral": ("Mistral", {"sliding_window": 16, "head_dim": 32}),
    "ministral": (
        "Ministral",
        {"head_dim": 32, "sliding_window": 16, "layer_types": LAYER_TYPES},
    ),
    "cwm": (
        "Cwm",
        {
            "head_dim": 32,
            "num_hidden_layers": 5,
            "sliding_window": 16,
            "rope_parameters": ROPE_LLAMA3,
        },
    ),
    "granite": ("Granite", GRANITE),
    "granite tied with biases": (
        "Granite",
        {**GRANITE, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "qwen2": ("Qwen2", {}),
    "qwen2 yarn": ("Qwen2", {"rope_parameters": ROPE_YARN, "max_position_embeddings": 128}),
    "qwen2 dynamic rope": ("Qwen2", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}),
    "qwen2 windows": ("Qwen2", WINDOW),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3 windows": ("Qwen3", {"head_dim": 32, **WINDOW, "layer_types": LAYER_TYPES}),
    "qwen3 tied with biases": (
        "Qwen3",
        {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "phi3": ("Phi3", {"sliding_window": 16}),
    "phi3 short longrope": ("Phi3", {**LONGROPE, "original_max_position_embeddings": 512}),
    "phi3 long longrope": (
        "Phi3",
        {**LONGROPE, "original_max_position_embeddings": 16, "tie_word_embeddings": True},
    ),
    "olmo2": ("Olmo2", {}),
    "olmo3": (
        "Olmo3",
        {
            "num_hidden_layers": 4,
            "sliding_window": 16,
            "rope_parameters": {
                "full_attention": ROPE_YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            "max_position_embeddings": 128,
        },
    ),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2, "tie_word_embeddings": True}),
    "exaone4": ("Exaone4", {"head_dim": 32, "sliding_window": None, "layer_types": FULL_TYPES}),
    "exaone4 windows": (
        "Exaone4",
        {"sliding_window": 16, "layer_types": LAYER_TYPES, "rope_parameters": ROPE_LLAMA3},
    ),
    "seed-oss": ("SeedOss", {"head_dim": 32}),
    "ernie4.5": ("Ernie4_5", {"head_dim": 32, "use_bias": True}),
    "glm4": ("Glm4", {"head_dim": 32}),
    "glm": ("Glm", {"head_dim": 32}),
    "qwen3 moe": ("Qwen3Moe", {"head_dim": 32, **EXPERTS, "norm_topk_prob": True}),
    "qwen3 moe in some layers": (
        "Qwen3Moe",
        {"head_dim": 32, **EXPERTS, "norm_topk_prob": False, "mlp_only_layers": [1]},
    ),
    "qwen2 moe": (
        "Qwen2Moe",
        {**EXPERTS, "shared_expert_intermediate_size": 32, "mlp_only_layers": [1]},
    ),
    "mixtral": (
        "Mixtral",
        {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 16},
    ),
    "granite moe": ("GraniteMoe", GRANITE_EXPERTS),
    "granite moe shared": (
        "GraniteMoeShared",
        {**GRANITE_EXPERTS, "shared_intermediate_size": 40, "tie_word_embeddings": True},
    ),
    "granite 4 dense": (
        "GraniteMoeHybrid",
        {
            **GRANITE_4,
            "num_local_experts": 0,
            "position_embedding_type": "rope",
            "tie_word_embeddings": True,
        },
    ),
    "granite 4 with experts": ("GraniteMoeHybrid", {**GRANITE_EXPERTS, **GRANITE_4}),
    "olmoe": (
        "Olmoe",
        {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": False},
    ),
    "flex olmo": (
        "FlexOlmo",
        {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True},
    ),
    "hyperclovax": (
        "HyperCLOVAX",
        {**GRANITE, "residual_multiplier": 1.0, "logits_scaling": 0.125, "rms_norm_eps": 1e-6},
    ),
    "hyperclovax without output norms": (
        "HyperCLOVAX",
        {**GRANITE, "use_post_norm": False, "attention_multiplier": None},
    ),
    "minimax m2": (
        "MiniMaxM2",
        {
            "head_dim": 32,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "partial_rotary_factor": 0.5,
        },
    ),
    "dots1": (
        "Dots1",
        {
            **ROUTED_EXPERTS,
            "head_dim": 32,
            "n_shared_experts": 2,
            "norm_topk_prob": True,
            "sliding_window": 16,
            "layer_types": LAYER_TYPES,
        },
    ),
    "ernie4.5 moe": (
        "Ernie4_5_Moe",
        {
            "head_dim": 32,
            "num_hidden_layers": 4,
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_intermediate_size": 48,
            "moe_layer_interval": 2,
        },
    ),
    "helium": ("Helium", {"head_dim": 16, "mlp_bias": True}),
    "exaone moe": (
        "ExaoneMoe",
        {
            **{name: x for name, x in ROUTED_EXPERTS.items() if not name.startswith("n_")},
            "num_experts": 8,
            "num_shared_experts": 2,
            "head_dim": 32,
            "sliding_window": 16,
            "layer_types": LAYER_TYPES,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
        },
    ),
    "gemma": ("Gemma", {"head_dim": 32, "tie_word_embeddings": True}),
    "glm4 moe": ("Glm4Moe", {"head_dim": 32, "use_qk_norm": True, **ROUTED_EXPERTS}),
    "solar open": (
        "SolarOpen",
        {key: value for key, value in ROUTED_EXPERTS.items() if key != "first_k_dense_replace"},
    ),
    "glm4 moe in groups": (
        "Glm4Moe",
        {
            **ROUTED_EXPERTS,
            "head_dim": 32,
            "attention_bias": True,
            "n_routed_experts": 12,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
            "n_shared_experts": 2,
        },
    ),
    "qwen3 next": ("Qwen3Next", {**HYBRID, **SHARED_EXPERTS}),
    "qwen3 next in other layers": (
        "Qwen3Next",
        {
            **HYBRID,
            **SHARED_EXPERTS,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "linear_attention", "full_attention"],
            "mlp_only_layers": [1],
            "norm_topk_prob": False,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 3,
            "linear_conv_kernel_dim": 2,
            "attention_bias": True,
        },
    ),
    "qwen3.5": ("Qwen3_5", {**HYBRID, "tie_word_embeddings": True}),
    "qwen3.5 moe": ("Qwen3_5Moe", {**HYBRID, **SHARED_EXPERTS}),
    "gpt-oss": ("GptOss", GPT_OSS),
    "gpt-oss without biases": (
        "GptOss",
        {
            **GPT_OSS,
            "attention_bias": False,
            "num_experts_per_tok": 1,
            "layer_types": LAYER_TYPES,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "head_dim": 32,
            "sliding_window": 16,
            "query_pre_attn_scalar": 20,
            "tie_word_embeddings": True,
            "layer_types": LAYER_TYPES,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    **ROUTED_EXPERTS,
    "n_group": 2,
    "topk_group": 1,
}
ROPE_MSCALE = {**ROPE_YARN, "mscale": 0.7, "mscale_all_dim": 1.2}
DENSE_LATENT: dict[str, Any] = {**LATENT, "first_k_dense_replace": 3}
LATENT_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek v2": ("DeepseekV2", DENSE_LATENT),
    "deepseek v2 in groups": (
        "DeepseekV2",
        {
            **LATENT,
            "qk_rope_head_dim": 8,
            "n_routed_experts": 12,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    "deepseek v2 lite yarn": (
        "DeepseekV2",
        {**LATENT, "q_lora_rank": None, "rope_parameters": ROPE_MSCALE},
    ),
    "deepseek v3": ("DeepseekV3", DENSE_LATENT),
    "deepseek v3 experts": (
        "DeepseekV3",
        {**LATENT, "n_shared_experts": 2},
    ),
    "deepseek v3 yarn": (
        "DeepseekV3",
        {**DENSE_LATENT, "rope_parameters": {**ROPE_YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "glm4 moe lite": ("Glm4MoeLite", {**LATENT, "rms_norm_eps": 1e-5}),
    "deepseek v3 halves": (
        "DeepseekV3",
        {**DENSE_LATENT, "rope_interleave": False, "q_lora_rank": None},
    ),
}
MODELS |= LATENT_MODELS
DENSE_SIZES = {name: size for name, size in LATENT.items() if name.endswith(("_rank", "_dim"))}
MODELS |= {"youtu": ("Youtu", {**DENSE_SIZES, "num_key_value_heads": 4})}
COMPRESSED: dict[str, Any] = {
    "num_key_value_heads": 1,
    "head_dim": 16,
    "q_lora_rank": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
    "sliding_window": 16,
    "hc_mult": 2,
    "o_groups": 2,
    "o_lora_rank": 16,
    "index_n_heads": 16,  # few heads would tie at 0, and transformers breaks ties as it comes
    "index_head_dim": 16,
    "index_topk": 4,
    "partial_rotary_factor": 0.5,
    "layer_types": [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
    ],
    "mlp_layer_types": ["hash_moe", "moe", "moe"],
    "rope_parameters": {**ROPE_YARN, "rope_theta": 1.6e5},
    "max_position_embeddings": 128,
}
MODELS |= {
    "deepseek v4": ("DeepseekV4", COMPRESSED),
}
TEXT_CONFIGS = {
    "Gemma3": "Gemma3TextConfig",
    "Qwen3_5": "Qwen3_5TextConfig",
    "Qwen3_5Moe": "Qwen3_5MoeTextConfig",
}
"""Configuration classes that are not named after their model's."""


def make_model(name: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A float32 model whose biases and norms are random too, and whose logits are about 10."""
    family, settings = MODELS[name]
    config_class = getattr(transformers, TEXT_CONFIGS.get(family, f"{family}Config"))
    config = config_class(**{**SIZES, **settings, **changes})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in key
            starts_at_zero = family in FROM_ZERO and "linear_attn" not in key
            scale = next((x for end, x in SCALES.items() if key.endswith(end)), 0.1)
            norm = 0.2 * noise + (0 if starts_at_zero else 1)
            parameter.copy_(norm if is_norm else noise * scale)
            if key.endswith("A_log"):
                parameter.sub_(2.0)  # a state remembers about ten tokens
            elif "conv1d" in key:
                parameter.mul_(4)
            elif "embed_tokens" in key and "linear_num_key_heads" in settings:
                parameter.mul_(8)  # each delta net doubles the rounding errors of the stream
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
            elif key.endswith("tid2eid"):
                scores = torch.rand(len(buffer), settings["n_routed_experts"], generator=generator)
                buffer.copy_(scores.argsort(1)[:, : buffer.shape[1]])
        model.get_output_embeddings().weight.mul_(3 if not config.tie_word_embeddings else 2)
        probe = model(torch.arange(1, 33).unsqueeze(0)).logits.std()
        if config.tie_word_embeddings:
            norm, one = model.model.norm.weight, float(family in FROM_ZERO)
            norm.copy_((one + norm) * (2.5 / probe) - one)
        else:
            model.get_output_embeddings().weight.mul_(2.5 / probe)
    return model


def save_model(model: PreTrainedModel, directory: Path, max_shard_size: str = "5GB") -> Path:
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    return directory


def tokens(count: int = NUM_TOKENS, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 256, (count,), generator=generator).tolist()


@torch.no_grad()
def expected_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """transformers' logits of every position, [T, V]."""
    return model(torch.tensor([token_ids])).logits[0].float()
