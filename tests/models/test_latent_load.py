"""Checkpoints with latent attention that cannot be served are refused by the field or tensor."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.cli.models import checkpoint_facts
from eyas.layers.row_order import RowOrder
from eyas.models import load_model, read_spec

from .dense_attend import DenseCache
from .test_model_law import assert_close, chain, forward
from .tiny import LATENT, expected_logits, make_model, save_model, tokens


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("deepseek v3 experts"), tmp_path_factory.mktemp("v3"))


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """V2-Lite's form: without a latent of queries."""
    return save_model(make_model("deepseek v2 lite yarn"), tmp_path_factory.mktemp("v2"))


def changed(directory: Path, copy: Path, **changes: Any) -> Path:
    shutil.copytree(directory, copy)
    path = copy / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return copy


SIZES = (
    *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("num_attention_heads", "hidden_size", "num_hidden_layers", "n_routed_experts"),
)


@pytest.mark.parametrize("field", SIZES)
@pytest.mark.parametrize("value", [0, 2, 40, 2**31 - 1, 1.5], ids=str)
def test_a_size_that_the_tensors_do_not_have_is_named(
    field: str, value: Any, single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is built by it."""

    def build(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("built before the sizes were checked")

    monkeypatch.setattr("eyas.models.load.decoder_class", build)
    changes = {field: value}
    if field == "num_attention_heads":
        changes["num_key_value_heads"] = value
    copy = changed(single, tmp_path / "copy", **changes)
    named = "n_routed|n_group|number of experts" if field == "n_routed_experts" else field
    with pytest.raises(ValueError, match=named):
        load_model(copy)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("single", {"num_key_value_heads": 2}, "num_key_value_heads 2 is not supported"),
        ("single", {"attention_bias": True}, "attention_bias True is not supported"),
        ("single", {"topk_method": "greedy"}, "topk_method 'greedy' is not supported"),
        ("single", {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        ("single", {"moe_layer_freq": 2}, "moe_layer_freq 2 is not supported"),
        ("older", {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported"),
        ("older", {"norm_topk_prob": True}, "norm_topk_prob True is not supported"),
        ("older", {"q_lora_rank": 24}, r"lacks tensors .*q_a_layernorm"),
        ("single", {"q_lora_rank": None}, r"lacks tensors .*q_proj"),
        ("single", {"index_topk": 4}, "index_topk 4 would change what the model computes"),
    ],
)
def test_what_would_be_computed_differently_is_refused(
    family: str,
    changes: dict[str, Any],
    message: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    copy = changed(request.getfixturevalue(family), tmp_path / "copy", **changes)
    with pytest.raises(ValueError, match=message):
        load_model(copy)


def test_the_fields_of_published_files_are_read(single: Path, older: Path, tmp_path: Path) -> None:
    """rope_scaling with `type` and mscale, ep_size and the like, as DeepSeek writes them."""
    values = json.loads((older / "config.json").read_text())
    rope = values["rope_parameters"]
    published = {
        "rope_scaling": {**{k: v for k, v in rope.items() if k != "rope_type"}, "type": "yarn"},
        "rope_theta": rope["rope_theta"],
        "rope_parameters": None,
        "aux_loss_alpha": 0.001,
        "seq_aux": True,
        "ep_size": 1,
        "pretraining_tp": 1,
        "scoring_func": "softmax",
        "moe_layer_freq": 1,
        "topk_method": "greedy",
        "head_dim": None,
        "qk_head_dim": None,
    }
    assert read_spec(changed(older, tmp_path / "v2", **published)) == read_spec(older)
    published = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "ep_size": 1}
    assert read_spec(changed(single, tmp_path / "v3", **published)) == read_spec(single)


def test_a_slot_holds_one_row_and_nothing_else(single: Path) -> None:
    spec = read_spec(single)
    width = LATENT["kv_lora_rank"] + LATENT["qk_rope_head_dim"]
    assert {store.slot_shape for store in spec.stores} == {(1, 1, width)}
    assert {store.output_dim for store in spec.stores} == {LATENT["kv_lora_rank"]}
    facts = checkpoint_facts("v3", single)
    assert facts["kv_bytes_per_token_16_bit"] == 2 * spec.num_layers * width


def test_a_tensor_of_another_shape_is_named(single: Path, tmp_path: Path) -> None:
    copy = changed(single, tmp_path / "copy")
    path = copy / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    tensors[name] = torch.cat([tensors[name], tensors[name]])
    save_file(tensors, path)
    with pytest.raises(ValueError, match=r"layers\.1\.self_attn\.kv_b_proj\.weight' has shape"):
        load_model(copy)


@pytest.mark.parametrize("number", [0, None])
def test_without_a_shared_expert_the_rest_is_the_same_model(
    number: int | None, single: Path, tmp_path: Path
) -> None:
    """transformers writes tensors without numbers where there is none."""
    copy = changed(single, tmp_path / "copy", n_shared_experts=number)
    path = copy / "model.safetensors"
    kept = {name: x for name, x in load_file(path).items() if "shared_experts" not in name}
    if number == 0:
        kept["model.layers.1.mlp.shared_experts.up_proj.weight"] = torch.empty(0, 64)
    save_file(kept, path)
    model = make_model("deepseek v3 experts")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "shared_experts.down_proj" in name:
                parameter.zero_()
    decoder = load_model(copy, dtype="float32", order=RowOrder(2))
    ids = tokens(20)
    found = forward(decoder, DenseCache(decoder.spec.stores), ids, chain(0, len(ids)))
    assert_close(found, expected_logits(model, ids))
