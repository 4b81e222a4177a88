"""Loading: what is read, what is refused, and that every refusal names the thing and the remedy."""

from __future__ import annotations

import errno
import io
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from eyas.attention.base import PlannedRows
from eyas.models import load_model, read_spec
from eyas.models.checkpoint import Checkpoint
from eyas.models.locate import locate_model
from eyas.models.weights import checkpoint_name

from .dense_attend import RowByRow
from .tiny import SIZES, make_model, save_model


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sharded")
    save_model(make_model("llama2"), directory, max_shard_size="100KB")
    assert len(list(directory.glob("*.safetensors"))) > 2
    return directory


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("llama2"), tmp_path_factory.mktemp("single"))


@pytest.fixture
def copy(single: Path, tmp_path: Path) -> Path:
    return shutil.copytree(single, tmp_path / "copy")


@pytest.fixture
def sharded_copy(sharded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sharded, tmp_path / "copy")


def change_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "absent"}))


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def run(decoder: Any) -> torch.Tensor:
    tokens_T = torch.arange(8)
    per_kv = decoder.spec.num_query_heads // decoder.spec.num_kv_heads

    def answer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return q + (v + k).repeat_interleave(per_kv, 1)

    attend = RowByRow(decoder.spec.stores, decoder.dtype, answer, len(tokens_T))
    with torch.inference_mode():
        hidden_TD, _ = decoder.forward(PlannedRows(tokens_T, tokens_T, attend))
        return decoder.logits(hidden_TD)


def test_shards_give_the_same_model_as_one_file(sharded: Path, single: Path) -> None:
    found, expected = (load_model(path, dtype="float32") for path in (sharded, single))
    assert torch.equal(run(found), run(expected))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_stored_types_are_converted(dtype: torch.dtype, stored: torch.dtype, copy: Path) -> None:
    def convert(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: tensor.to(stored) for name, tensor in tensors.items()})

    expected = run(load_model(copy, dtype="float32"))
    change_tensors(copy, convert)
    found = load_model(copy, dtype=dtype)
    assert found.dtype == dtype
    assert (run(found) - expected).abs().max() < 0.5


def test_progress_counts_every_byte(sharded: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    load_model(sharded, dtype="float32", progress=lambda *call: calls.append(call))
    checkpoint = Checkpoint.open(sharded)
    assert {name for name, _, _ in calls} == set(checkpoint.tensors)
    total = sum(tensor.num_bytes for tensor in checkpoint.tensors.values())
    done = [done for _, done, _ in calls]
    assert done == sorted(done) and done[-1] == total
    assert {all_bytes for _, _, all_bytes in calls} == {total}


def test_a_config_in_the_style_of_older_releases_reads_the_same(copy: Path) -> None:
    expected = read_spec(copy)
    change_config(copy, rope_parameters="absent", rope_theta=10000.0, rope_scaling=None)
    assert read_spec(copy) == expected


def test_both_names_of_one_thing_read_the_same(copy: Path) -> None:
    expected = read_spec(copy)
    change_config(copy, hidden_act="swish", rope_scaling={"rope_type": "default"})
    assert read_spec(copy) == expected


def test_mistral_slides_where_its_file_is_silent(copy: Path) -> None:
    mistral = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    change_config(copy, **mistral, sliding_window="absent")
    assert set(read_spec(copy).windows) == {4096}
    change_config(copy, sliding_window=None)
    assert set(read_spec(copy).windows) == {None}


def test_what_ends_a_text_is_read(copy: Path) -> None:
    assert read_spec(copy).eos_token_ids == (2, 3)
    (copy / "generation_config.json").write_text('{"eos_token_id": [5, 6, 5, -1]}')
    assert read_spec(copy).eos_token_ids == (5, 6, 2, 3)
    (copy / "generation_config.json").unlink()
    change_config(copy, eos_token_id=7)
    assert read_spec(copy).eos_token_ids == (7,)


LEFT_OUT = ("num_key_value_heads", "max_position_embeddings", "sliding_window", "max_window_layers")


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_what_a_file_leaves_out_is_what_transformers_takes(family: str, tmp_path: Path) -> None:
    sizes = {**SIZES, "num_attention_heads": 32, "hidden_size": 128}
    if family in ("Qwen2", "Qwen3"):
        sizes["use_sliding_window"] = True
    sizes = {name: value for name, value in sizes.items() if name not in LEFT_OUT}
    name = f"{family}ForCausalLM"
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "architectures": [name]}))
    spec, expected = read_spec(tmp_path), getattr(transformers, f"{family}Config")(**sizes)
    assert spec.num_kv_heads == expected.num_key_value_heads
    assert spec.max_position == expected.max_position_embeddings
    assert spec.head_dim == getattr(expected, "head_dim", 4)
    if family in ("Qwen2", "Qwen3"):
        slides = [kind == "sliding_attention" for kind in expected.layer_types]
        assert [window is not None for window in spec.windows] == slides
    else:
        assert set(spec.windows) == {getattr(expected, "sliding_window", None)}


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("phi3", "rms_norm_eps"),
        ("phi3 long longrope", "original_max_position_embeddings"),
        ("gpt-oss", "rope_parameters"),
        ("gemma", "eos_token_id"),
        ("cwm", "rope_parameters"),
        ("minimax m2", "rope_parameters"),
        ("dots1", "norm_topk_prob"),
        ("ernie4.5 moe", "moe_layer_start_index"),
    ],
)
def test_a_field_left_out_is_the_familys_own(name: str, field: str, tmp_path: Path) -> None:
    """Where transformers' default is another than most families'."""
    model = make_model(name)
    written = type(model.config)().to_dict()[field]
    save_model(model, tmp_path)
    change_config(tmp_path, **{field: written})
    expected = read_spec(tmp_path)
    change_config(tmp_path, **{field: "absent"})
    assert read_spec(tmp_path) == expected


def test_tokens_outside_the_vocabulary_are_left_out(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in small models with transformers' defaults, such as Phi-3's end token 32000."""
    change_config(copy, eos_token_id=32000)
    (copy / "generation_config.json").write_text('{"eos_token_id": [5, 32000]}')
    with caplog.at_level(logging.WARNING, "eyas"):
        spec = read_spec(copy)
    assert spec.eos_token_ids == (5,)
    assert "generation_config.json: eos_token_id 32000 is outside" in caplog.text


@pytest.mark.parametrize(
    ("name", "fields", "other"),
    [
        ("phi3", {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False}, 2),
        ("qwen3 moe", {"use_qk_norm": True, "shared_expert_intermediate_size": 0}, False),
    ],
    ids=["Phi-4-mini", "Qwen3-Coder"],
)
def test_published_fields_that_say_what_is_done_anyway(
    name: str, fields: dict[str, Any], other: Any, tmp_path: Path
) -> None:
    save_model(make_model(name), tmp_path)
    expected = read_spec(tmp_path)
    change_config(tmp_path, **fields)
    assert read_spec(tmp_path) == expected
    field = next(iter(fields))
    change_config(tmp_path, **{field: other})
    with pytest.raises(ValueError, match=f"{field} {other} is not supported"):
        read_spec(tmp_path)


CONFIG_CASES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown architecture": (
        {"architectures": ["BertModel"]},
        r"'BertModel' is not supported \(it generates no text\); supported: .*, Qwen3ForCausalLM",
    ),
    "experts": (
        {"architectures": ["PhimoeForCausalLM"], "num_experts": 128},
        r"'PhimoeForCausalLM' is not supported; supported: .*MixtralForCausalLM",
    ),
    "states, by their fields": (
        {"architectures": ["BrandNewForCausalLM"], "mamba_d_state": 8, "n_routed_experts": 8},
        r"'BrandNewForCausalLM' is not supported \(it has layers with a state [^)]*\)\); supported",
    ),
    "images": (
        {"architectures": ["LlavaForConditionalGeneration"], "vision_config": {"depth": 2}},
        r"not supported \(it reads images, audio or video\)",
    ),
    "an encoder": (
        {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
        r"not supported \(it has an encoder beside the decoder\)",
    ),
    "a text model of another kind": (
        {"architectures": ["GPT2LMHeadModel"]},
        r"'GPT2LMHeadModel' is not supported; supported",
    ),
    "images, and a name like that of states": (
        {"architectures": ["LlavaNextForConditionalGeneration"]},
        r"not supported \(it reads images, audio or video\)",
    ),
    "states": ({"architectures": ["FalconMambaForCausalLM"]}, "it has layers with a state"),
    "too many layers": (
        {"num_hidden_layers": 2147483647},
        "num_hidden_layers must be a whole number from 1 to 4096, not 2147483647",
    ),
    "another model's type": (
        {"model_type": "granite"},
        "model_type 'granite' is not that of LlamaForCausalLM .*goes with 'llama'",
    ),
    "capped logits": (
        {"attn_logit_softcapping": 50.0},
        "attn_logit_softcapping 50.0 would change what the model computes and is not known",
    ),
    "scaled logits": ({"logit_scale": 0.25}, "logit_scale 0.25 would change"),
    "a width that scales": ({"dim_model_base": 256}, "dim_model_base 256 would change"),
    "scaled residuals": ({"residual_multiplier": 0.22}, "residual_multiplier 0.22 would change"),
    "a window that Llama has not": (
        {"sliding_window": 4096},
        "sliding_window is not known for Llama",
    ),
    "remote code": (
        {"architectures": ["OtherForCausalLM"], "auto_map": {"AutoModel": "modeling.Other"}},
        r"'OtherForCausalLM' is not supported \(code that a checkpoint brings along is never run\)",
    ),
    "no architecture": ({"architectures": "absent"}, "architectures is missing"),
    "missing size": ({"hidden_size": "absent"}, "hidden_size is missing"),
    "senseless size": ({"num_hidden_layers": -1}, "num_hidden_layers must be a whole number"),
    "heads that do not divide": ({"num_key_value_heads": 3}, "num_key_value_heads 3 must divide 4"),
    "activation": ({"hidden_act": "gelu"}, r"hidden_act 'gelu' is not supported \(silu is\)"),
    "layer type": ({"layer_types": ["mamba"] * 3}, "layer_types 'mamba' is not supported"),
    "both ways": ({"is_causal": False}, "is_causal False is not supported"),
    "layers that differ": (
        {"per_layer_config": {"1": {"rms_norm_eps": 0.5}}},
        "per_layer_config is not supported: all layers must be alike",
    ),
    "two families": (
        {"model_type": "mistral"},
        "model_type 'mistral' is not that of LlamaForCausalLM in architectures",
    ),
    "heads that rotate in part": (
        {"partial_rotary_factor": 0.5},
        "partial_rotary_factor 0.5 is not supported: .*; leave the field out",
    ),
    "a base in one field alone": (
        {
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        },
        "rope_scaling and rope_parameters differ; keep one",
    ),
    "layer count": ({"layer_types": ["full_attention"]}, "layer_types must list 3 layers"),
    "no window": (
        {"layer_types": ["sliding_attention"] * 3},
        "no sliding_window is in use; give their window in sliding_window",
    ),
    "negative epsilon": ({"rms_norm_eps": -1.0}, "rms_norm_eps must be at least 0, not -1.0"),
    "a number beyond all sense": (
        {"rms_norm_eps": 10**400},
        r"rms_norm_eps must be a number, not 10{50,}\.\.\.",
    ),
    "a base that no tensor holds": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 2**64}},
        "rope_theta must be a number, not 18446744073709551616",
    ),
    "senseless base": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}},
        "rope_theta must be above 1, not 1.0",
    ),
    "rope of no kind": (
        {"rope_parameters": {"rope_type": ["x"], "rope_theta": 1e4}},
        r"rope_parameters asks for rope type \"\['x'\]\"",
    ),
    "llama3 without a band": (
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 4.0,
            }
        },
        r"low_freq_factor 4\.0 must be above 0 and below high_freq_factor 4\.0",
    ),
    "scaled in one field alone": (
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        "rope_scaling and rope_parameters differ; keep one",
    ),
    "two ropes": (
        {"rope_parameters": {"a": {"rope_type": "default"}, "b": {"rope_type": "yarn"}}},
        "rope_parameters differs between layer types",
    ),
}


@pytest.mark.parametrize("case", CONFIG_CASES)
def test_a_config_that_cannot_be_served_is_refused(case: str, copy: Path) -> None:
    changes, message = CONFIG_CASES[case]
    change_config(copy, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        load_model(copy)
    assert "config.json" in str(caught.value)


HARMLESS = {
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "_name_or_path": "x",
    "unsloth_version": "2026.1",
    "attention_dropout": 0.1,
    "embd_pdrop": 0.1,
    "initializer_range": 0.02,
    "pretraining_tp": 4,
    "use_cache": True,
    "output_attentions": True,
    "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.01,
    "attn_implementation": "sdpa",
    "use_flash_attn": True,
    "logit_scale": 1.0,
    "residual_multiplier": 1,
    "final_logit_softcapping": None,
    "use_qk_norm": False,
    "sliding_window": None,
    "some_note": {"by": "me"},
    "max_window_layers": 0,
    "image_token_id": 5,
}


def test_fields_that_change_nothing_are_left_alone(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = read_spec(copy)
    change_config(copy, **HARMLESS)
    with caplog.at_level(logging.INFO, "eyas"):
        assert read_spec(copy) == expected
    assert "some_note" in caplog.text and "attention_dropout" not in caplog.text


NUMBERS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
    *("num_attention_heads", "num_key_value_heads"),
)


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize(
    "value", [0, -1, 2, 7, 4096, 2**31 - 1, 2**63, 1.5, "8", True, [8]], ids=str
)
def test_a_size_that_the_tensors_do_not_have_is_named(
    field: str, value: Any, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is built by it."""
    told = json.loads((copy / "config.json").read_text())[field]
    if told == value and value is not True:
        return

    def build(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("built before the sizes were checked")

    monkeypatch.setattr("eyas.models.load.decoder_class", build)
    change_config(copy, **{field: value})
    with pytest.raises(ValueError, match=rf"{field}|must divide \d+ attention heads"):
        load_model(copy)


def test_what_transformers_ignores_of_mistral_is_ignored(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mistral = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    change_config(copy, **mistral, sliding_window=16)
    expected = read_spec(copy)
    layers = ["sliding_attention", "full_attention", "full_attention"]
    change_config(copy, layer_types=layers, attention_bias=True)
    with caplog.at_level(logging.WARNING, "eyas"):
        assert read_spec(copy) == expected
    assert "attention_bias, layer_types: ignored, as transformers does" in caplog.text
    load_model(copy)


def test_what_transformers_ignores_of_mixtral_is_ignored(tmp_path: Path) -> None:
    expected = read_spec(save_model(make_model("mixtral"), tmp_path))
    change_config(tmp_path, layer_types=["full_attention"] * 3)
    assert read_spec(tmp_path) == expected


@pytest.mark.parametrize("name", ["dots1", "deepseek v3 experts"])
def test_weights_that_null_says_to_leave_are_not_normalised(name: str, tmp_path: Path) -> None:
    """As in transformers, where None is false."""
    save_model(make_model(name), tmp_path)
    change_config(tmp_path, norm_topk_prob=False)
    expected = read_spec(tmp_path)
    change_config(tmp_path, norm_topk_prob=None)
    assert read_spec(tmp_path) == expected
    change_config(tmp_path, norm_topk_prob="absent")
    assert (read_spec(tmp_path) == expected) == (name == "dots1")


def test_remote_code_of_a_supported_architecture_is_ignored(copy: Path) -> None:
    (copy / "modeling.py").write_text("raise SystemExit('must never run')")
    change_config(copy, auto_map={"AutoModelForCausalLM": "modeling.Model"})
    assert load_model(copy).spec == read_spec(copy)


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json; give the directory"):
        load_model(tmp_path)


def test_what_is_no_model_is_named_with_the_remedy(copy: Path, tmp_path: Path) -> None:
    """An adapter, with and without a config.json; GGUF files; the hub's cache; a GGUF file itself."""
    (copy / "model.safetensors").rename(copy / "adapter_model.safetensors")
    (copy / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds an adapter, .* merge it into its base model"):
        load_model(copy)
    (copy / "config.json").unlink()
    with pytest.raises(ValueError, match=r"holds an adapter, .* merge it into its base model"):
        read_spec(copy)
    file = tmp_path / "model-Q4_K_M.gguf"
    file.write_bytes(b"GGUF")
    for path in (tmp_path, file):
        with pytest.raises(ValueError, match=r"file; .* safetensors .* GGUF is not read"):
            read_spec(locate_model(str(path)))
    snapshot = tmp_path / "cache" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    with pytest.raises(ValueError, match=r"of the hub's cache; give .*/snapshots/abc,"):
        read_spec(tmp_path / "cache")


def test_a_config_with_an_endless_number_is_refused(copy: Path) -> None:
    file = copy / "config.json"
    file.write_text(file.read_text().replace("{", '{"x": ' + "1" * 5000 + ",", 1))
    with pytest.raises(ValueError, match=r"config\.json cannot be read as JSON"):
        load_model(copy)


def test_a_broken_config_is_refused(copy: Path) -> None:
    (copy / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json cannot be read as JSON"):
        load_model(copy)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_cannot_be_opened_is_not_called_damaged(
    name: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = io.open

    def refuse(file: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(file, Path) and file.name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        return opened(file, *arguments, **options)

    monkeypatch.setattr(io, "open", refuse)
    with pytest.raises(ValueError, match=rf"{name} cannot be read \(Permission denied\)"):
        load_model(copy)


def test_a_context_beyond_the_checkpoints_is_refused(single: Path) -> None:
    with pytest.raises(ValueError, match="max_model_len 1000 is above the 512 positions"):
        load_model(single, max_model_len=1000)
    assert load_model(single, max_model_len=100).max_model_len == 100


def test_a_missing_shard_is_named(sharded_copy: Path) -> None:
    victim = sorted(sharded_copy.glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(ValueError, match=rf"lacks {victim.name}.*download the missing files"):
        load_model(sharded_copy)


@pytest.mark.parametrize("kept", [0, 4, 200, 0.5, -1], ids=str)
def test_a_truncated_file_is_named(kept: float, copy: Path) -> None:
    file = copy / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(ValueError, match=r"model\.safetensors is truncated or damaged.*again"):
        load_model(copy)


def test_a_reference_of_git_lfs_is_told_from_weights(copy: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (copy / "model.safetensors").write_text(pointer)
    with pytest.raises(ValueError, match=r"model\.safetensors holds no weights.*run git lfs pull"):
        load_model(copy)


def test_a_damaged_header_is_named(copy: Path) -> None:
    file = copy / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[8:40] = b"\xff" * 32
    file.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"model\.safetensors is truncated or damaged"):
        load_model(copy)


def test_an_index_may_list_other_tensors_than_the_files_hold(sharded_copy: Path) -> None:
    """As for transformers, which reads whole files: a wrong file, a name too many, one too few."""
    moved, left_out = names = ("model.layers.0.input_layernorm.weight", "model.norm.weight")
    expected = [Checkpoint.open(sharded_copy).read_tensor(name) for name in names]
    path = sharded_copy / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    files = index["weight_map"]
    others = [file for name, file in files.items() if name not in names]
    assert {files[name] for name in names} <= set(others)
    files[moved] = next(file for file in others if file != files[moved])
    files["model.rotary_emb.inv_freq"] = others[0]
    del files[left_out]
    path.write_text(json.dumps(index))
    load_model(sharded_copy)
    found = [Checkpoint.open(sharded_copy).read_tensor(name) for name in names]
    assert all(map(torch.equal, expected, found))


def test_an_index_cannot_point_outside_its_directory(sharded_copy: Path) -> None:
    path = sharded_copy / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["lm_head.weight"] = "../elsewhere.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"'\.\./elsewhere\.safetensors' is not a file of this"):
        load_model(sharded_copy)


def test_a_missing_tensor_is_named(copy: Path) -> None:
    change_tensors(copy, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ValueError, match=r"lacks tensor 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        load_model(copy)


@pytest.mark.parametrize(
    ("changes", "lost", "hint"),
    [
        ({"attention_bias": True}, "", r"_proj\.bias'.*correct attention_bias and mlp_bias"),
        ({}, "lm_head.weight", r"'lm_head\.weight'.*correct tie_word_embeddings"),
    ],
)
def test_a_field_that_asks_for_missing_tensors_is_named(
    copy: Path, changes: dict[str, Any], lost: str, hint: str
) -> None:
    change_config(copy, **changes)
    change_tensors(copy, lambda tensors: tensors.pop(lost, None))
    with pytest.raises(ValueError, match=f"lacks tensor.*{hint} in config.json"):
        load_model(copy)


def test_biases_that_the_config_denies_are_named(copy: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    change_tensors(copy, lambda tensors: tensors.update({name: torch.zeros(64)}))
    with pytest.raises(ValueError, match=r"holds tensor .*correct attention_bias and mlp_bias"):
        load_model(copy)


def test_files_written_without_the_head_have_no_prefix(tmp_path: Path) -> None:
    save_model(make_model("llama tied"), tmp_path)
    expected = run(load_model(tmp_path, dtype="float32"))

    def bare(tensors: dict[str, torch.Tensor]) -> None:
        found = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
        tensors.clear()
        tensors.update(found)

    change_tensors(tmp_path, bare)
    assert torch.equal(run(load_model(tmp_path, dtype="float32")), expected)


def test_older_names_of_layers_read_the_same(copy: Path) -> None:
    expected = read_spec(copy)
    change_config(copy, layer_types=["attention", "full_attention", "attention"])
    assert read_spec(copy) == expected


def test_a_wrong_shape_says_what_was_found_and_expected(copy: Path) -> None:
    change_config(copy, intermediate_size=128)
    with pytest.raises(ValueError, match=r"has shape \[100, 64\], expected \[128, 64\]"):
        load_model(copy)


def test_tensors_nobody_asks_for_are_refused(copy: Path) -> None:
    def add_scales(tensors: dict[str, torch.Tensor]) -> None:
        for layer in range(7):
            tensors[f"model.layers.{layer}.mlp.up_proj.weight_scale"] = torch.ones(1)

    change_tensors(copy, add_scales)
    with pytest.raises(ValueError, match=r"holds tensors .*weight_scale'.* and 2 more, which"):
        load_model(copy)


def test_quantised_numbers_are_refused(copy: Path) -> None:
    def to_int8(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.int8)

    change_tensors(copy, to_int8)
    with pytest.raises(ValueError, match=r"'lm_head\.weight' is stored as I8"):
        load_model(copy)


def test_leftovers_of_old_exporters_and_a_tied_head_are_ignored(tmp_path: Path) -> None:
    save_model(make_model("llama tied"), tmp_path)
    expected = run(load_model(tmp_path, dtype="float32"))

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)

    change_tensors(tmp_path, add)
    assert torch.equal(run(load_model(tmp_path, dtype="float32")), expected)
    change_tensors(tmp_path, lambda tensors: tensors.pop("model.embed_tokens.weight"))
    assert torch.equal(run(load_model(tmp_path, dtype="float32")), expected)


def test_a_head_of_its_own_is_used_whatever_the_config_says(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = run(load_model(copy, dtype="float32"))
    change_config(copy, tie_word_embeddings=True)
    with caplog.at_level(logging.WARNING, logger="eyas.models"):
        found = load_model(copy, dtype="float32")
    assert torch.equal(run(found), expected) and not found.spec.tie_embeddings
    assert "the files hold other weights for lm_head" in caplog.text


def test_a_single_file_counts_where_old_shards_lie_beside_it(
    single: Path, sharded_copy: Path
) -> None:
    shutil.copy(single / "model.safetensors", sharded_copy)
    change_tensors(sharded_copy, lambda tensors: tensors["lm_head.weight"].mul_(2))
    expected = 2 * run(load_model(single, dtype="float32"))
    assert torch.equal(run(load_model(sharded_copy, dtype="float32")), expected)
    for shard in sharded_copy.glob("model-*.safetensors"):
        shard.unlink()
    assert torch.equal(run(load_model(sharded_copy, dtype="float32")), expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused(value: float, copy: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][7, 3] = value

    change_tensors(copy, spoil)
    message = r"model\.safetensors: tensor '.*1\.mlp\.up_proj\.weight' holds numbers that are not"
    with pytest.raises(ValueError, match=message):
        load_model(copy, dtype="float32")


def test_numbers_that_the_type_cannot_hold_are_refused(copy: Path) -> None:
    embedding = "model.embed_tokens.weight"
    change_tensors(copy, lambda tensors: tensors[embedding][0].fill_(1e5))
    with pytest.raises(ValueError, match="that are not finite as float16; download"):
        load_model(copy, dtype=torch.float16)
    change_tensors(copy, lambda tensors: tensors[embedding].fill_(6e4))
    decoder = load_model(copy, dtype=torch.float16)
    assert (decoder.embedding.weight_VD == 6e4).all(), "their sum is not finite, they are"


def test_tensors_are_checked_before_memory_is_taken(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_tensors(copy, lambda tensors: tensors.pop("model.norm.weight"))
    change_config(copy, max_position_embeddings=10**9)
    with pytest.raises(ValueError, match=r"lacks tensor 'model\.norm\.weight'"):
        load_model(copy)


def test_pickles_are_refused_with_the_way_out(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"only pytorch_model\.bin.*never opened; convert it"):
        load_model(copy)


def test_a_directory_without_weights_is_refused(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no model\.safetensors and no model\.safetensors\."):
        load_model(copy)


def test_parameter_names_find_their_layer() -> None:
    names = {"layers.{layer}.mlp.up.weight": "model.layers.{layer}.mlp.up_proj.weight"}
    found = checkpoint_name("layers.12.mlp.up.weight", names)
    assert found == "model.layers.12.mlp.up_proj.weight"


def test_angle_digests_tell_the_angles_of_longrope_apart(tmp_path: Path) -> None:
    save_model(make_model("phi3 long longrope"), tmp_path)
    short, same, long = (load_model(tmp_path, max_model_len=n).angle_digests for n in (16, 12, 512))
    assert short == same
    assert short != long
