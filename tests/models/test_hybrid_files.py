"""Checkpoints of Qwen3-Next and Qwen3.5: both layouts of experts, published fields, and refusals."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from eyas.cache.store import LayerStore, StateStore
from eyas.layers.row_order import RowOrder
from eyas.models import load_model, read_spec

from .dense_attend import DenseCache
from .test_model_law import chain, forward
from .tiny import make_model, save_model, tokens

PUBLISHED: dict[str, Any] = {
    "attn_output_gate": True,
    "dtype": "bfloat16",
    "full_attention_interval": 4,
    "mamba_ssm_dtype": "float32",
    "mlp_only_layers": [],
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000,
        "rope_type": "default",
    },
}
"""Fields of published Qwen3.5 checkpoints that transformers does not write."""


@pytest.fixture(scope="module", params=["qwen3 next", "qwen3.5 moe"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model(request.param), tmp_path_factory.mktemp("model"))


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "copy")


def change_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "absent"}))


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, directory / "model.safetensors")


def pack_experts(tensors: dict[str, torch.Tensor]) -> None:
    """Join the experts of each layer, as published checkpoints of Qwen3.5 hold them."""
    names = [name for name in tensors if re.search(r"\.experts\.0\.gate_proj", name)]
    for name in names:
        prefix = name.removesuffix("0.gate_proj.weight")
        experts = range(sum(key.startswith(prefix) and "down" in key for key in tensors))
        parts = {
            part: [tensors.pop(f"{prefix}{expert}.{part}.weight") for expert in experts]
            for part in ("gate_proj", "up_proj", "down_proj")
        }
        pairs = zip(parts["gate_proj"], parts["up_proj"], strict=True)
        tensors[f"{prefix}gate_up_proj"] = torch.stack([torch.cat(pair) for pair in pairs])
        tensors[f"{prefix}down_proj"] = torch.stack(parts["down_proj"])


def logits(directory: Path) -> torch.Tensor:
    decoder = load_model(directory, dtype="float32", order=RowOrder(2))
    return forward(decoder, DenseCache(decoder.spec.stores), tokens(20), chain(0, 20))


def test_experts_in_one_tensor_are_the_same_model(tmp_path: Path) -> None:
    save_model(make_model("qwen3.5 moe"), tmp_path)
    expected = logits(tmp_path)
    change_tensors(tmp_path, pack_experts)
    assert torch.equal(logits(tmp_path), expected)


def test_published_fields_read_the_same(tmp_path: Path) -> None:
    save_model(make_model("qwen3.5 moe"), tmp_path)
    expected = read_spec(tmp_path)
    change_config(tmp_path, **PUBLISHED, layer_types="absent")
    assert read_spec(tmp_path) == expected


def test_what_a_file_leaves_out_is_what_transformers_takes(tmp_path: Path) -> None:
    for name, config_class, architecture in (
        ("next", transformers.Qwen3NextConfig, "Qwen3NextForCausalLM"),
        ("dense", transformers.Qwen3_5TextConfig, "Qwen3_5ForCausalLM"),
        ("experts", transformers.Qwen3_5MoeTextConfig, "Qwen3_5MoeForCausalLM"),
    ):
        directory = tmp_path / name
        directory.mkdir()
        sizes = {"hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4}
        (directory / "config.json").write_text(
            json.dumps({"architectures": [architecture], **sizes})
        )
        spec, expected = read_spec(directory), config_class(**sizes)
        assert spec.state is not None
        assert (spec.vocab_size, spec.head_dim) == (expected.vocab_size, expected.head_dim)
        assert spec.num_kv_heads == expected.num_key_value_heads
        assert spec.max_position == expected.max_position_embeddings
        assert spec.rope.num_rotated == expected.head_dim // 4
        assert spec.state.num_taps == expected.linear_conv_kernel_dim
        assert spec.state.num_value_heads == expected.linear_num_value_heads
        assert spec.state.key_dim == expected.linear_key_head_dim
        types = [
            "linear_attention" if i in spec.state_layers else "full_attention" for i in range(8)
        ]
        assert types == expected.layer_types
        if name == "dense":
            assert spec.intermediate_size == expected.intermediate_size
            continue
        assert spec.experts is not None and spec.experts.has_shared_gate
        assert spec.experts.num_experts == expected.num_experts
        assert spec.experts.routing.num_chosen == expected.num_experts_per_tok
        assert spec.experts.intermediate_size == expected.moe_intermediate_size
        assert spec.experts.shared_size == expected.shared_expert_intermediate_size


def test_layers_declare_a_state_or_keys_and_values(saved: Path) -> None:
    stores = read_spec(saved).stores
    assert [type(store) for store in stores] == [StateStore] * 3 + [LayerStore]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["linear_attention"] * 3}, "layer_types must list 4 layers"),
        ({"layer_types": ["mamba"] * 4}, "layer_types 'mamba' is not supported"),
        ({"linear_num_key_heads": 3}, "linear_num_key_heads 3 must divide 4 value heads"),
        ({"linear_num_value_heads": 2}, r"linear_num_value_heads"),
        ({"linear_key_head_dim": 8}, r"linear_key_head_dim \(2 x 8\)"),
        ({"linear_value_head_dim": 16}, r"linear_value_head_dim \(4 x 16\)"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim must be at least 2, not 1"),
        ({"linear_conv_kernel_dim": 3}, r"conv1d\.weight' has shape \[160, 1, 4\]"),
        ({"attn_output_gate": False}, "attn_output_gate False is not supported"),
        ({"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype 'bfloat16' is not supported"),
        (
            {"num_hidden_layers": 8, "layer_types": "absent"},
            "num_hidden_layers is 8, but the files",
        ),
        ({"num_attention_heads": 2}, r"num_attention_heads x head_dim \(2 x 2 x 16\)"),
        ({"num_experts": 16}, "number of experts"),
    ],
    ids=str,
)
def test_a_config_of_another_model_is_refused(
    changes: dict[str, Any], message: str, copy: Path
) -> None:
    change_config(copy, **changes)
    with pytest.raises(ValueError, match=message):
        load_model(copy)


def test_a_null_among_the_fields_of_experts_is_an_absent_one(tmp_path: Path) -> None:
    for name, field in (("qwen3.5 moe", "norm_topk_prob"), ("qwen3 next", "num_local_experts")):
        directory = save_model(make_model(name), tmp_path / field)
        expected = read_spec(directory)
        change_config(directory, **{field: None})
        assert read_spec(directory) == expected, field


def test_qwen3_5_without_renormalised_weights_is_refused(tmp_path: Path) -> None:
    save_model(make_model("qwen3.5 moe"), tmp_path)
    change_config(tmp_path, norm_topk_prob=False)
    with pytest.raises(ValueError, match="norm_topk_prob False is not supported"):
        read_spec(tmp_path)


@pytest.mark.parametrize("part", ["A_log", "dt_bias", "conv1d.weight", "norm.weight"])
def test_a_missing_tensor_is_named(part: str, copy: Path) -> None:
    name = f"model.layers.1.linear_attn.{part}"
    change_tensors(copy, lambda held: held.pop(name))
    with pytest.raises(ValueError, match=re.escape(f"lacks tensor '{name}'")):
        load_model(copy)


def test_a_wrong_shape_of_packed_experts_is_named(tmp_path: Path) -> None:
    save_model(make_model("qwen3.5 moe"), tmp_path)

    def shorten(held: dict[str, torch.Tensor]) -> None:
        pack_experts(held)
        name = "model.layers.0.mlp.experts.gate_up_proj"
        held[name] = held[name][:, :-2]

    change_tensors(tmp_path, shorten)
    with pytest.raises(ValueError, match=r"has shape \[8, 94, 64\], expected \[8, 96, 64\]"):
        load_model(tmp_path)
