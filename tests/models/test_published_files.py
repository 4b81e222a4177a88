"""Checkpoints with the fields and tensors of the authors' files, which transformers does not write."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from eyas.layers.row_order import RowOrder
from eyas.models import load_model, read_spec

from .dense_attend import DenseCache
from .test_model_law import assert_close, chain, forward
from .tiny import ROPE_YARN, expected_logits, make_model, save_model, tokens

ABSENT = "absent"
KIMI_K2: dict[str, Any] = {
    "model_type": "kimi_k2",
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "aux_loss_alpha": 0.001,
    "ep_size": 1,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 0,
    "pretraining_tp": 1,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "topk_method": "noaux_tc",
    "rope_interleave": ABSENT,
}
MINIMAX_M2: dict[str, Any] = {
    "model_type": "minimax",
    "attn_type_list": [1, 1, 1],
    "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_beta": 1.0,
    "layernorm_mlp_beta": 1.0,
    "mlp_intermediate_size": 8192,
    "mtp_transformer_layers": 1,
    "num_mtp_modules": 3,
    "qk_norm_type": "per_layer",
    "rope_parameters": None,
    "rope_theta": 5e6,
    "rotary_dim": 16,
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "shared_moe_mode": "sigmoid",
    "sliding_window": None,
    "use_mtp": True,
    "use_qk_norm": True,
    "use_routing_bias": True,
}
ERNIE: dict[str, Any] = {
    "compression_ratio": 1.0,
    "moe_capacity": [64, 64, 64],
    "moe_gate": "topk",
    "moe_layer_end_index": 3,
    "moe_use_aux_free": True,
    "num_nextn_predict_layers": 1,
}
DOTS1: dict[str, Any] = {
    "moe_layer_freq": 1,
    "scoring_func": "noaux_tc",
    "topk_method": "noaux_tc",
}
GRANITE_4: dict[str, Any] = {
    "init_method": "mup",
    "layer_types": ["attention"] * 3,
    "normalization_function": "rmsnorm",
    "num_experts_per_tok": 0,
}
FIELDS: dict[str, tuple[str, dict[str, Any]]] = {
    "kimi k2": ("deepseek v3 experts", KIMI_K2),
    "minimax m2": ("minimax m2", MINIMAX_M2),
    "ernie4.5 moe": ("ernie4.5 moe", ERNIE),
    "dots1": ("dots1", DOTS1),
    "granite 4 dense": ("granite 4 dense", GRANITE_4),
}


INTERNLM3: dict[str, Any] = {
    "architectures": ["InternLM3ForCausalLM"],
    "model_type": "internlm3",
    "attention_bias": None,
    "mlp_bias": None,
    "qkv_bias": True,
    "bias": True,
    "rope_parameters": None,
    "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"},
    "rope_theta": 10000,
}


def change_config(directory: Path, changes: dict[str, Any]) -> None:
    file = directory / "config.json"
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in values.items() if v != ABSENT}))


@pytest.mark.parametrize("name", list(FIELDS))
def test_the_fields_of_the_authors_give_the_same_model(name: str, tmp_path: Path) -> None:
    shape, changes = FIELDS[name]
    model = make_model(shape)
    spec = read_spec(save_model(model, tmp_path))
    change_config(tmp_path, changes)
    assert read_spec(tmp_path) == spec


@pytest.mark.parametrize(
    "changes",
    [
        INTERNLM3,
        {"model_type": "internlm3"},
        {"architectures": ["IQuestCoderForCausalLM"], "model_type": "iquestcoder"},
        {"model_type": "iquestcoder"},
    ],
)
def test_models_with_llamas_layer_are_read_under_their_own_names(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    spec = read_spec(save_model(make_model("llama head_dim and biases"), tmp_path))
    change_config(tmp_path, changes)
    found = read_spec(tmp_path)
    assert replace(found, architecture=spec.architecture) == spec


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"mlp_layer_types": None, "is_moe_layer": [False, True, False]}, {1}),
        ({"mlp_layer_types": None, "first_k_dense_replace": 2}, {2}),
        ({"architectures": ["ExaoneMoEForCausalLM"]}, {0, 2}),
    ],
)
def test_the_layers_with_experts_of_exaone_are_read_from_any_of_its_fields(
    changes: dict[str, Any], layers: set[int], tmp_path: Path
) -> None:
    save_model(make_model("exaone moe"), tmp_path)
    change_config(tmp_path, changes)
    assert read_spec(tmp_path).expert_layers == layers


def test_a_part_of_each_head_is_rotated_where_rotary_dim_says_so(tmp_path: Path) -> None:
    save_model(make_model("minimax m2"), tmp_path)
    rope = {"rope_parameters": None, "partial_rotary_factor": None}
    change_config(tmp_path, {**rope, "rope_theta": 1e4, "rotary_dim": 8})
    assert read_spec(tmp_path).rope.rotary_dim == 8


def test_the_mtp_layers_of_ernie_are_not_read(tmp_path: Path) -> None:
    model = make_model("ernie4.5 moe")
    file = save_model(model, tmp_path) / "model.safetensors"
    extra = {f"model.mtp_{part}.0.weight": torch.ones(4) for part in ("emb_norm", "linear_proj")}
    extra["model.mtp_block.0.mlp.up_proj.weight"] = torch.ones(4)
    save_file(load_file(file) | extra, file)
    decoder = load_model(tmp_path, dtype="float32", order=RowOrder(2))
    found = forward(decoder, DenseCache(decoder.spec.stores), tokens(40), chain(0, 40))
    assert_close(found, expected_logits(model, tokens(40)))


def test_the_text_model_of_kimi_k2_5_is_read_out_of_its_model_of_images(tmp_path: Path) -> None:
    model = make_model("deepseek v3 experts")
    file = save_model(model, tmp_path) / "model.safetensors"
    tensors = {f"language_model.{name}": values for name, values in load_file(file).items()}
    for other in ("vision_tower.patch_embed.proj.weight", "mm_projector.pre_norm.weight"):
        tensors[other] = torch.ones(4)
    save_file(tensors, file)
    change_config(tmp_path, KIMI_K2)
    config = json.loads((tmp_path / "config.json").read_text())
    outer = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "ignore_index": -100,
        "media_placeholder_token_id": 163605,
        "model_type": "kimi_k25",
        "text_config": config | {"architectures": ["DeepseekV3ForCausalLM"]},
        "tie_word_embeddings": False,
        "use_unified_vision_chunk": True,
        "video_placeholder": "<|kimi_k25_video_placeholder|>",
        "vision_config": {"merge_kernel_size": [2, 2], "vt_hidden_size": 1152},
    }
    (tmp_path / "config.json").write_text(json.dumps(outer))
    decoder = load_model(tmp_path, dtype="float32", order=RowOrder(2))
    found = forward(decoder, DenseCache(decoder.spec.stores), tokens(40), chain(0, 40))
    assert_close(found, expected_logits(model, tokens(40)))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"layer_types": ["attention", "mamba", "attention"]}, "layer_types 'mamba'"),
        ({"layer_types": None}, "layer_types is missing"),
        ({"layer_types": ["attention"]}, "layer_types must list 3 layers"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type must be rope, nope"),
        ({"residual_multiplier": 0}, "residual_multiplier must be above 0"),
        ({"normalization_function": "layernorm"}, "normalization_function 'layernorm'"),
    ],
)
def test_what_is_not_supported_of_granite_4_is_refused_by_name(
    changes: dict[str, Any], field: str, tmp_path: Path
) -> None:
    save_model(make_model("granite 4 dense"), tmp_path)
    change_config(tmp_path, changes)
    with pytest.raises(ValueError, match=field):
        read_spec(tmp_path)


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        ("minimax m2", {"attn_type_list": [1, 0, 1]}),
        ("minimax m2", {"scoring_func": "softmax"}),
        ("minimax m2", {"qk_norm_type": "per_head"}),
        ("minimax m2", {"shared_intermediate_size": 32}),
        ("ernie4.5 moe", {"moe_norm_min": 0.5}),
        ("ernie4.5 moe", {"use_bias": True}),
        ("ernie4.5 moe", {"moe_gate": "top2"}),
        ("dots1", {"scoring_func": "softmax"}),
        ("dots1", {"moe_layer_freq": 2}),
        ("olmoe", {"clip_qkv": 8.0}),
        ("ernie4.5 moe", {"num_experts_per_tok": 1}),
        ("ernie4.5 moe", {"num_experts": 4}),
        ("gemma", {"hidden_act": "relu"}),
        ("hyperclovax", {"residual_multiplier": 0.22}),
        ("exaone moe", {"mlp_layer_types": ["dense"]}),
        ("exaone moe", {"is_moe_layer": [1, 2], "mlp_layer_types": None}),
        ("olmo3", {"rope_scaling": ROPE_YARN}),
        ("gemma3", {"rope_scaling": ROPE_YARN}),
    ],
)
def test_other_arithmetic_is_refused_by_name(
    shape: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    save_model(make_model(shape), tmp_path)
    change_config(tmp_path, changes)
    with pytest.raises(ValueError, match=next(iter(changes))):
        read_spec(tmp_path)


def yarn_of_phi(values: dict[str, Any]) -> None:
    factors = {
        "short_factor": [1 + i / 10 for i in range(8)],
        "long_factor": [1.0 + i for i in range(8)],
    }
    del values["rope_parameters"]
    values |= {"rope_theta": 1e4, "original_max_position_embeddings": 512}
    values["rope_scaling"] = {"type": "yarn", **factors}


UNUSUAL: dict[str, tuple[str, dict[str, Any], Callable[[dict[str, Any]], Any]]] = {
    "gpt-oss, rope null": (
        "gpt-oss",
        {"rope_parameters": None, "max_position_embeddings": 131072},
        lambda values: values.update(rope_parameters=None),
    ),
    "gpt-oss, key/value heads absent": (
        "gpt-oss",
        {"num_attention_heads": 16, "num_key_value_heads": 8},
        lambda values: values.pop("num_key_value_heads"),
    ),
    "Gemma 3, rope of full layers alone": (
        "gemma3",
        {},
        lambda values: values["rope_parameters"].pop("sliding_attention"),
    ),
    "OLMo 3, rope of full layers alone": (
        "olmo3",
        {},
        lambda values: values["rope_parameters"].pop("sliding_attention"),
    ),
    "Phi-3, yarn for longrope": ("phi3", {}, yarn_of_phi),
    "Seed-OSS, head_dim null": (
        "seed-oss",
        {"head_dim": None},
        lambda values: values.update(head_dim=None),
    ),
    "ERNIE 4.5, head_dim null": (
        "ernie4.5",
        {"head_dim": None},
        lambda values: values.update(head_dim=None),
    ),
    "Granite with shared experts, their size absent": (
        "granite moe shared",
        {"shared_intermediate_size": 0},
        lambda values: values.pop("shared_intermediate_size"),
    ),
    "Granite 4 without positions": (
        "granite 4 dense",
        {"position_embedding_type": "nope"},
        lambda values: None,
    ),
}
"""The model, what it is made with, and how its config.json is changed."""


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_fields_mean_what_they_mean_to_transformers(name: str, tmp_path: Path) -> None:
    family, changes, change = UNUSUAL[name]
    save_model(make_model(family, **changes), tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    decoder = load_model(tmp_path, dtype="float32", order=RowOrder(2))
    found = forward(decoder, DenseCache(decoder.spec.stores), tokens(40), chain(0, 40))
    assert_close(found, expected_logits(model, tokens(40)))


@pytest.mark.parametrize("name", ["glm4 moe", "deepseek v3 experts", "qwen2 moe", "olmoe"])
def test_experts_may_be_stored_as_transformers_5_holds_them(name: str, tmp_path: Path) -> None:
    model = make_model(name)
    model.save_pretrained(tmp_path, save_original_format=False)
    decoder = load_model(tmp_path, dtype="float32", order=RowOrder(2))
    found = forward(decoder, DenseCache(decoder.spec.stores), tokens(40), chain(0, 40))
    assert_close(found, expected_logits(model, tokens(40)))


def test_experts_that_are_stored_so_under_other_names_are_refused_with_a_remedy(
    tmp_path: Path,
) -> None:
    make_model("mixtral").save_pretrained(tmp_path, save_original_format=False)
    with pytest.raises(ValueError, match=r"save_original_format=True"):
        load_model(tmp_path)
