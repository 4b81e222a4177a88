"""gpt-oss: its published configurations, and checkpoints that are not whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from eyas.layers.row_order import RowOrder
from eyas.models import load_model, num_parameters, read_spec
from eyas.models.formats import base

from .dense_attend import DenseCache
from .test_model_law import assert_close, chain, forward
from .tiny import expected_logits, make_model, save_model, tokens

PUBLISHED: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 2880,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 8,
    "output_router_logits": False,
    "pad_token_id": 199999,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 201088,
}


def write_config(directory: Path, **changes: Any) -> Path:
    (directory / "config.json").write_text(json.dumps({**PUBLISHED, **changes}))
    return directory


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save_model(make_model("gpt-oss"), tmp_path / "tiny")


@pytest.mark.parametrize(
    ("num_layers", "num_experts", "expected"), [(24, 32, 20.91e9), (36, 128, 116.83e9)]
)
def test_the_published_configurations_are_read(
    num_layers: int, num_experts: int, expected: float, tmp_path: Path
) -> None:
    """The numbers of parameters are those of the model card."""
    sizes = {"num_hidden_layers": num_layers, "num_local_experts": num_experts}
    layer_types = ["sliding_attention", "full_attention"] * (num_layers // 2)
    spec = read_spec(write_config(tmp_path, **sizes, layer_types=layer_types))
    assert abs(num_parameters(spec) - expected) < 0.005e9
    assert spec.windows == (128, None) * (num_layers // 2)
    assert spec.experts is not None and spec.experts.routing.num_chosen == 4
    assert spec.expert_layers == frozenset(range(num_layers))
    assert (spec.rope.kind, spec.rope.factor, spec.rope.truncate) == ("yarn", 32.0, False)
    assert spec.max_position == 131072
    assert read_spec(write_config(tmp_path, **sizes)) == spec, "windows alternate by default"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"swiglu_limit": 5.0}, r"swiglu_limit 5\.0 is not supported \(7\.0 is\)"),
        ({"swiglu_alpha": 1.0}, r"swiglu_alpha 1\.0 is not supported \(1\.702 is\)"),
        ({"num_experts_per_tok": 33}, "num_experts_per_tok 33 is more than the 32 experts"),
        ({"num_local_experts": None}, "num_local_experts is missing"),
        ({"router_z_scale": 2.0}, "router_z_scale 2.0 would change what the model computes"),
    ],
)
def test_what_the_layers_cannot_compute_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_config(tmp_path, **{"num_hidden_layers": 24, "num_local_experts": 32, **changes})
    with pytest.raises(ValueError, match=message):
        read_spec(tmp_path)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("self_attn.sinks", r"lacks tensor 'model\.layers\.1\.self_attn\.sinks'"),
        ("mlp.experts.gate_up_proj", r"lacks tensor '.*layers\.1\.mlp\.experts\.gate_up_proj'"),
        ("mlp.router.bias", r"lacks tensor 'model\.layers\.1\.mlp\.router\.bias'"),
    ],
)
def test_a_missing_tensor_is_named(part: str, message: str, tiny: Path) -> None:
    tensors = load_file(tiny / "model.safetensors")
    del tensors[f"model.layers.1.{part}"]
    save_file(tensors, tiny / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        load_model(tiny)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("mlp.experts.gate_up_proj", r"has shape \[7, 64, 200\], expected \[8, 64, 200\]"),
        ("mlp.experts.down_proj_bias", r"has shape \[7, 64\], expected \[8, 64\]"),
        ("self_attn.sinks", r"has shape \[3\], expected \[4\]"),
    ],
)
def test_a_wrong_shape_says_what_was_found_and_expected(
    part: str, message: str, tiny: Path
) -> None:
    tensors = load_file(tiny / "model.safetensors")
    name = f"model.layers.1.{part}"
    tensors[name] = tensors[name][1:].contiguous()
    save_file(tensors, tiny / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        load_model(tiny)


def test_a_number_of_experts_that_the_tensors_do_not_have_is_named(tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    (tiny / "config.json").write_text(json.dumps({**config, "num_local_experts": 9}))
    with pytest.raises(ValueError, match=r"number of experts \(9\) in config\.json"):
        load_model(tiny)


def test_shards_that_part_a_layer_give_the_same_logits(tmp_path: Path) -> None:
    model = make_model("gpt-oss")
    directory = save_model(model, tmp_path, max_shard_size="100KB")
    assert len(list(directory.glob("*.safetensors"))) > 3
    decoder = load_model(directory, dtype="float32", order=RowOrder(2))
    token_ids = tokens(40)
    found = forward(decoder, DenseCache(decoder.spec.stores), token_ids, chain(0, 40))
    assert_close(found, expected_logits(model, token_ids))


MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}


def test_mxfp4_experts_give_the_logits_of_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout in which the models are published."""
    model = make_model("gpt-oss", intermediate_size=96)
    generator = torch.Generator().manual_seed(1)
    stored: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("gate_up_proj", "down_proj")):
                num_experts, num_in, num_out = parameter.shape
                groups = (num_experts, num_out, num_in // 32)
                blocks = torch.randint(256, (*groups, 16), generator=generator, dtype=torch.uint8)
                scales = torch.randint(120, 124, groups, generator=generator, dtype=torch.uint8)
                parameter.copy_(convert_moe_packed_tensors(blocks, scales).float())
                stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        head, token_ids = model.get_output_embeddings().weight, tokens(40)
        head.mul_(2.5 / expected_logits(model, token_ids).std())
    file = save_model(model, tmp_path) / "model.safetensors"
    kept = {name: x for name, x in load_file(file).items() if f"{name}_blocks" not in stored}
    save_file({**kept, **stored}, file)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": MXFP4}))
    monkeypatch.setattr(base, "DECODED_NUMBERS", 1)  # one expert at a time
    decoder = load_model(tmp_path, dtype="float32", order=RowOrder(2))
    found = forward(decoder, DenseCache(decoder.spec.stores), token_ids, chain(0, 40))
    assert_close(found, expected_logits(model, token_ids))


def test_sinks_stay_float32_beside_bfloat16_weights(tiny: Path) -> None:
    decoder = load_model(tiny, dtype="bfloat16")
    stored = load_file(tiny / "model.safetensors")
    attention = decoder._layers[1]._attention
    assert attention._sinks_N is not None
    assert torch.equal(attention._sinks_N, stored["model.layers.1.self_attn.sinks"])
