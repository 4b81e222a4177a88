"""Quantised checkpoints: each format against the values it stands for, and what is refused."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from eyas.models import load_model, read_spec
from eyas.models.checkpoint import Checkpoint
from eyas.models.formats import base

from .quantised import AWQ, CASES, FP8_BLOCKS, GPTQ, change_config, weights, write_quantised
from .test_load import run
from .tiny import make_model, save_model

SIZES = {"hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 2, "head_dim": 32}
"""Blocks of 128 are incomplete on both sides, groups of 64 are not."""
UP = "model.layers.1.mlp.up_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("qwen3", **SIZES), tmp_path_factory.mktemp("model"))


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(model, tmp_path / "copy")


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize("name", CASES)
def test_a_quantised_checkpoint_computes_as_its_values_do(
    name: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = write_quantised(copy, CASES[name])
    expected = run(load_model(plain, dtype="float32"))
    assert torch.equal(run(load_model(copy, dtype="float32")), expected)
    monkeypatch.setattr(
        base, "DECODED_NUMBERS", 192 * 24
    )  # several parts a tensor, the last one short
    assert torch.equal(run(load_model(copy, dtype="float32")), expected)
    rounded = [run(load_model(path, dtype="bfloat16")) for path in (copy, plain)]
    assert torch.equal(*rounded)


@pytest.mark.parametrize("family", ["phi3", "llama head_dim and biases", "deepseek v3 experts"])
def test_other_layers_are_read_in_blocks_too(family: str, tmp_path: Path) -> None:
    directory = save_model(make_model(family, hidden_size=192), tmp_path / "fused")
    plain = write_quantised(directory, CASES["fp8 blocks"])
    found, expected = (run(load_model(path, dtype="float32")) for path in (directory, plain))
    assert torch.equal(found, expected)


def test_quantised_weights_give_what_transformers_makes_of_them(copy: Path) -> None:
    """Where blocks are complete: transformers refuses others."""
    change_config(copy, quantization_config=FP8_BLOCKS)
    numbers = torch.randn(256, 384).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 3)
    save_file({"x.weight": numbers, "x.weight_scale_inv": scales}, copy / "model.safetensors")
    found = Checkpoint.open(copy).read_tensor("x.weight")
    assert torch.equal(found, Fp8Dequantize(None)._dequantize_one(numbers, scales, torch.float32))


@pytest.mark.parametrize("shape", [(3, 40, 2, 16), (2, 24, 5, 16)], ids=str)
def test_mxfp4_experts_are_those_of_transformers(
    shape: tuple[int, ...], copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    scales = torch.randint(64, 192, shape[:3], generator=generator, dtype=torch.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    stored = {f"{name}_blocks": blocks, f"{name}_scales": scales, f"{name}_bias": torch.zeros(2)}
    save_file(stored, copy / "model.safetensors")
    change_config(copy, quantization_config={"quant_method": "mxfp4"})
    monkeypatch.setattr(base, "DECODED_NUMBERS", 1)
    checkpoint = Checkpoint.open(copy)
    assert set(checkpoint.tensors) == {name, f"{name}_bias"}
    expected = convert_moe_packed_tensors(blocks, scales)
    assert checkpoint.tensors[name].shape == tuple(expected.shape)
    found = checkpoint.read_tensor(name)
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected)


def test_every_exponent_of_mxfp4_is_exact(copy: Path) -> None:
    scales = torch.arange(250, dtype=torch.uint8).reshape(1, 250, 1)
    blocks = torch.full((1, 250, 1, 16), 0x25, dtype=torch.uint8)  # 3.0, then 1.0
    save_file({"x_blocks": blocks, "x_scales": scales}, copy / "model.safetensors")
    change_config(copy, quantization_config={"quant_method": "mxfp4"})
    found = Checkpoint.open(copy).read_tensor("x")[0]
    powers = torch.tensor([2.0 ** (exponent - 127) for exponent in range(250)])
    assert torch.equal(found[0].float(), 3 * powers) and torch.equal(found[1].float(), powers)


def test_packed_experts_in_fp8_are_read_expert_by_expert(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = torch.randn(3, 200, 130).to(torch.float8_e4m3fn)
    scales = torch.rand(3, 2, 2)
    save_file({"x": numbers, "x_scale_inv": scales}, copy / "model.safetensors")
    change_config(copy, quantization_config=FP8_BLOCKS)
    monkeypatch.setattr(base, "DECODED_NUMBERS", 1)
    found = Checkpoint.open(copy).read_tensor("x")
    for expert in range(3):
        wide = scales[expert].repeat_interleave(128, 0).repeat_interleave(128, 1)
        assert torch.equal(found[expert], numbers[expert].float() * wide[:200, :130])


def test_scales_may_be_powers_of_two_in_a_byte(copy: Path) -> None:
    numbers = torch.randn(128, 256).to(torch.float8_e4m3fn)
    scales = torch.tensor([[0.25, 8.0]])
    stored = {"x.weight": numbers, "x.scale": scales.to(torch.float8_e8m0fnu)}
    save_file(stored, copy / "model.safetensors")
    change_config(copy, quantization_config={**FP8_BLOCKS, "scale_fmt": "ue8m0"})
    found = Checkpoint.open(copy).read_tensor("x.weight")
    assert torch.equal(found, numbers.float() * scales.repeat_interleave(128, 1))


def test_experts_in_fp4_of_an_fp8_checkpoint_are_those_of_transformers(copy: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    packed = torch.randint(-128, 128, (40, 96), generator=generator, dtype=torch.int8)
    exponents = torch.randint(100, 150, (40, 6), generator=generator, dtype=torch.uint8)
    scales = exponents.view(torch.float8_e8m0fnu)
    numbers, blocks = torch.randn(128, 128).to(torch.float8_e4m3fn), torch.ones(1, 1)
    stored = {"x.weight": packed, "x.scale": scales, "y.weight": numbers, "y.scale": blocks}
    save_file(stored, copy / "model.safetensors")
    change_config(copy, quantization_config={**FP8_BLOCKS, "expert_dtype": "fp4"})
    checkpoint = Checkpoint.open(copy)
    expected = Fp8Dequantize(None)._dequantize_one(packed, scales, torch.bfloat16)
    assert torch.equal(checkpoint.read_tensor("x.weight"), expected)
    assert torch.equal(checkpoint.read_tensor("y.weight"), numbers.float())
    change_config(copy, quantization_config=FP8_BLOCKS)
    with pytest.raises(
        ValueError, match=r"'x\.weight' is stored as I8, but quantised weights must"
    ):
        Checkpoint.open(copy)


def test_pieces_may_be_in_different_shards(copy: Path) -> None:
    plain = write_quantised(copy, CASES["fp8 blocks"])
    tensors = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    weight_map = {
        name: f"model-{index % 2}.safetensors" for index, name in enumerate(sorted(tensors))
    }
    for file in set(weight_map.values()):
        save_file({n: t for n, t in tensors.items() if weight_map[n] == file}, copy / file)
    index_file = copy / "model.safetensors.index.json"
    index_file.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert len(Checkpoint.open(copy).tensors[f"{UP}.weight"].files) == 2
    assert torch.equal(*(run(load_model(path, dtype="float32")) for path in (copy, plain)))


def test_a_group_of_layers_has_a_scheme_of_its_own(copy: Path) -> None:
    """Attention in FP8 by channel, the rest in packed integers."""
    config = weights("int", 4, "group", group_size=64)
    attention = weights("float", 8, "channel")["config_groups"]["group_0"]
    config["config_groups"]["group_1"] = {**attention, "targets": ["re:.*self_attn.*"]}
    for group, layout in (("group_0", "pack-quantized"), ("group_1", "float-quantized")):
        config["config_groups"][group]["format"] = layout
    first = write_quantised(copy, CASES["compressed fp8 channels"], "o_proj.weight")
    shutil.rmtree(first)
    shutil.copytree(copy, copy.with_name("first"))
    write_quantised(copy, CASES["compressed w4a16"], "down_proj.weight")
    change_config(copy, quantization_config={**config, "format": "mixed-precision"})
    packed = {type(t.packing).__name__ for t in Checkpoint.open(copy).tensors.values()}
    assert packed == {"NoneType", "Scaled", "PackedRows"}
    load_model(copy)


def test_scales_of_activations_and_of_the_cache_are_left_out_and_said(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = CASES["compressed fp8 tensors"]
    plain = write_quantised(copy, case)
    group = case.config["config_groups"]["group_0"]
    static = {"num_bits": 8, "type": "float", "dynamic": False, "strategy": "tensor"}
    config = {
        **case.config,
        "config_groups": {"group_0": {**group, "input_activations": static}},
        "kv_cache_scheme": static,
    }
    change_config(copy, quantization_config=config)

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{UP}.input_scale"] = torch.ones(1)
        tensors["model.layers.0.self_attn.k_scale"] = torch.ones(1)

    change_tensors(copy, add)
    with caplog.at_level(logging.INFO, "eyas"):
        found = run(load_model(copy, dtype="float32"))
    assert torch.equal(found, run(load_model(plain, dtype="float32")))
    assert "weights are stored as 8-bit float" in caplog.text
    assert "not applied: static 8-bit input_activations, kv_cache_scheme" in caplog.text


@pytest.mark.parametrize("name", ["gptq", "awq", "compressed w4a16 zeros"])
def test_a_zero_point_may_be_zero(name: str, copy: Path) -> None:
    """The first version of GPTQ stores it as -1, which is 15 in four bits."""
    change_tensors(copy, lambda tensors: tensors[f"{UP}.weight"].abs_())
    plain = write_quantised(copy, CASES[name])
    assert torch.equal(*(run(load_model(path, dtype="float32")) for path in (copy, plain)))


def test_biases_of_zeros_that_exporters_add_are_ignored(copy: Path) -> None:
    write_quantised(copy, CASES["gptq"])
    expected = run(load_model(copy, dtype="float32"))
    change_tensors(copy, lambda tensors: tensors.update({f"{UP}.bias": torch.zeros(320)}))
    assert torch.equal(run(load_model(copy, dtype="float32")), expected)
    change_tensors(copy, lambda tensors: tensors[f"{UP}.bias"].add_(1))
    with pytest.raises(ValueError, match=r"holds tensor '.*up_proj\.bias'"):
        load_model(copy)


def test_a_config_of_the_cache_alone_leaves_weights_as_they_are(copy: Path) -> None:
    expected = run(load_model(copy, dtype="float32"))
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    change_config(
        copy,
        quantization_config={
            "quant_method": "compressed-tensors",
            "config_groups": {},
            "format": "dense",
            "kv_cache_scheme": scheme,
        },
    )
    change_tensors(
        copy, lambda t: t.update({"model.layers.0.self_attn.k_scale": torch.tensor([0.5])})
    )
    assert torch.equal(run(load_model(copy, dtype="float32")), expected)


CONFIG_CASES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": (
        {"quant_method": "bitsandbytes"},
        r"quantization_config\.quant_method 'bitsandbytes' is not supported \(awq, compressed-tensors,"
        r".*or the unquantised one",
    ),
    "no method": ({"bits": 4}, r"quant_method None is not supported"),
    "other FP8": ({"quant_method": "fp8", "fmt": "e5m2"}, r"\.fmt 'e5m2' is not supported"),
    "blocks": (
        {"quant_method": "fp8", "weight_block_size": [128]},
        r"weight_block_size must be the rows and columns of a block, not \[128\]",
    ),
    "experts": ({**FP8_BLOCKS, "expert_dtype": "int4"}, r"expert_dtype 'int4' is not"),
    "gemv": ({**AWQ, "version": "gemv"}, r"version 'gemv' is not supported \(the layout 'gemm' is"),
    "no zero points": ({**AWQ, "zero_point": False}, r"zero_point False is not supported"),
    "marlin": ({**GPTQ, "checkpoint_format": "marlin"}, r"'marlin' is not supported \(gptq and"),
    "3 bits": ({**GPTQ, "bits": 3}, r"quantization_config\.bits 3 is not supported \(4 and 8 are"),
    "group size": ({**GPTQ, "group_size": 0}, r"group_size must be a whole number"),
    "by layer": (
        {**GPTQ, "dynamic": {r"-:.*down.*": {}, r"+:.*up.*": {"bits": 8}}},
        r"dynamic gives '\+:\.\*up\.\*' settings of its own",
    ),
    "nvfp4": (
        {**weights("float", 4, "tensor_group"), "format": "nvfp4-pack-quantized"},
        r"format 'nvfp4-pack-quantized' is not supported",
    ),
    "float of 4 bits": (
        weights("float", 4, "group"),
        "num_bits 4 of type 'float' is not supported",
    ),
    "strategy": (weights("float", 8, "token"), "strategy 'token' is not supported"),
    "a block without size": (weights("float", 8, "block"), "block_structure is missing"),
    "rotations": (
        {**weights("int", 4, "group"), "transform_config": {"config_groups": {"u": {}}}},
        "transform_config is not supported: it rotates",
    ),
    "sparse": (
        {**weights("int", 4, "group"), "sparsity_config": {"format": "sparse-24-bitmask"}},
        r"sparsity_config\.format 'sparse-24-bitmask' is not supported",
    ),
    "no weights": (
        {"quant_method": "compressed-tensors", "config_groups": {}},
        "config_groups describes no weights",
    ),
    "a pattern": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"g": {"targets": ["re:("], "weights": {"num_bits": 8}}},
        },
        r"config_groups\.g\.targets holds 're:\(', no regular expression",
    ),
}


@pytest.mark.parametrize("case", CONFIG_CASES)
def test_an_unknown_scheme_is_refused_from_the_configuration_alone(case: str, copy: Path) -> None:
    config, message = CONFIG_CASES[case]
    change_config(copy, quantization_config=config)
    (copy / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=message) as caught:
        read_spec(copy)
    assert "config.json" in str(caught.value)


def drop(name: str) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda tensors: tensors.pop(f"{UP}.{name}")


def put(name: str, value: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda tensors: tensors.update({f"{UP}.{name}": value})


TENSOR_CASES: dict[str, tuple[str, Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "no scale": (
        "fp8 blocks",
        drop("weight_scale_inv"),
        r"lacks tensor '.*up_proj\.weight_scale_inv', without which '.*up_proj\.weight' cannot",
    ),
    "a scale without its weight": (
        "fp8 blocks",
        drop("weight"),
        r"lacks tensor '.*up_proj\.weight'.*'.*up_proj\.weight_scale_inv' is of a quantised weight",
    ),
    "a scale of another shape": (
        "fp8 blocks",
        put("weight_scale_inv", torch.ones(3, 3)),
        r"up_proj\.weight_scale_inv' has shape \[3, 3\], expected \[3, 2\] by weight_block_size",
    ),
    "a scale for each row": (
        "fp8 tensors",
        put("weight_scale", torch.ones(7)),
        r"up_proj\.weight_scale' has shape \[7\], expected \[320, 1\]",
    ),
    "a scale of whole numbers": (
        "fp8 blocks",
        put("weight_scale_inv", torch.ones(3, 2, dtype=torch.int32)),
        r"weight_scale_inv' is stored as I32, but scales must be F32 or BF16",
    ),
    "a weight that is not in FP8": (
        "fp8 blocks",
        put("weight", torch.ones(320, 192)),
        r"up_proj\.weight' is stored as F32, but quantised weights must be F8_E4M3",
    ),
    "another FP8": (
        "compressed fp8 channels",
        put("weight", torch.ones(320, 192).to(torch.float8_e5m2)),
        r"up_proj\.weight' is stored as F8_E5M2, but",
    ),
    "another number of channels": (
        "compressed fp8 channels",
        put("weight_scale", torch.ones(192, 1)),
        r"has shape \[192, 1\], expected \[320, 1\] by the strategy 'channel'",
    ),
    "no zero points": ("awq", drop("qzeros"), r"lacks tensor '.*up_proj\.qzeros'"),
    "scales of other groups": (
        "awq",
        put("scales", torch.ones(6, 320).half()),
        r"up_proj\.scales' has shape \[6, 320\], expected \[3, 320\] by",
    ),
    "words of another type": (
        "awq",
        put("qweight", torch.ones(192, 40)),
        r"qweight' is stored as F32, but packed numbers must be I32",
    ),
    "no groups": ("gptq sorted", drop("g_idx"), r"lacks tensor '.*up_proj\.g_idx'"),
    "groups without scales": (
        "gptq sorted",
        put("g_idx", torch.full((192,), 3, dtype=torch.int32)),
        r"up_proj\.g_idx' names groups beyond the 3 that have scales",
    ),
    "zeros of other groups": (
        "gptq",
        put("qzeros", torch.ones(3, 39, dtype=torch.int32)),
        r"qzeros' has shape \[3, 39\], expected \[3, 40\]",
    ),
    "twice": (
        "gptq",
        put("weight", torch.ones(320, 192)),
        r"holds '.*up_proj\.weight' twice, quantised and not",
    ),
    "a shape that is not its own": (
        "compressed w4a16",
        put("weight_shape", torch.tensor([320, 190])),
        r"weight_shape' says \[320, 190\], but there are \[320, 192\] packed numbers",
    ),
    "no zero points, packed": (
        "compressed w4a16 zeros",
        drop("weight_zero_point"),
        r"lacks tensor '.*up_proj\.weight_zero_point'",
    ),
    "no zero points, plain": (
        "compressed int8 zeros",
        drop("weight_zero_point"),
        r"lacks tensor '.*up_proj\.weight_zero_point'",
    ),
    "zero points of another shape": (
        "compressed int8 zeros",
        put("weight_zero_point", torch.ones(7, 1, dtype=torch.int8)),
        r"weight_zero_point' has shape \[7, 1\], expected \[320, 1\]",
    ),
    "no numbers": (
        "compressed fp8 channels",
        put("weight", torch.ones(0, 192).to(torch.float8_e4m3fn)),
        r"up_proj\.weight' has shape \[0, 192\]",
    ),
    "packed scales": ("compressed w4a16", drop("weight_scale"), r"lacks tensor '.*weight_scale'"),
}


@pytest.mark.parametrize("case", TENSOR_CASES)
def test_pieces_that_do_not_fit_are_named(case: str, copy: Path) -> None:
    name, change, message = TENSOR_CASES[case]
    write_quantised(copy, CASES[name])
    change_tensors(copy, change)
    with pytest.raises(ValueError, match=message):
        load_model(copy)


@pytest.mark.parametrize("name", ["awq", "gptq", "compressed w4a16", "compressed int8 groups"])
def test_groups_that_do_not_divide_a_row_are_refused(name: str, copy: Path) -> None:
    case = CASES[name]
    write_quantised(copy, case)
    config = json.loads(json.dumps(case.config).replace('"group_size": 64', '"group_size": 96'))
    change_config(copy, quantization_config=config)
    with pytest.raises(ValueError, match=r"have 320 numbers, which groups of 96 \(group_size of"):
        load_model(copy)


def test_every_number_of_8_bits_is_read_as_it_is(copy: Path) -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(4, 64)
    stored = {"x.weight": numbers, "x.weight_scale": torch.ones(1)}
    save_file(stored, copy / "model.safetensors")
    change_config(copy, quantization_config={"quant_method": "fp8"})
    found = Checkpoint.open(copy).read_tensor("x.weight")
    assert torch.equal(found.isnan(), numbers.float().isnan()) and found.isnan().sum() == 2
    assert torch.equal(found.nan_to_num(1e9), numbers.float().nan_to_num(1e9))
    save_file({**stored, "x.weight": numbers[:1].clone()}, copy / "model.safetensors")
    assert torch.equal(Checkpoint.open(copy).read_tensor("x.weight"), numbers[:1].float())


def test_mxfp4_pieces_that_do_not_fit_are_named(copy: Path) -> None:
    change_config(copy, quantization_config={"quant_method": "mxfp4"})
    blocks = torch.zeros(2, 8, 2, 16, dtype=torch.uint8)
    file = copy / "model.safetensors"
    save_file({"x_blocks": blocks}, file)
    with pytest.raises(ValueError, match=r"lacks tensor 'x_scales', without which 'x_blocks'"):
        Checkpoint.open(copy)
    save_file({"x_blocks": blocks, "x_scales": blocks[..., 0, :3].contiguous()}, file)
    with pytest.raises(ValueError, match=r"'x_scales' has shape \[2, 8, 3\], expected \[2, 8, 2\]"):
        Checkpoint.open(copy)
    save_file(
        {"x_blocks": blocks[..., :8].contiguous(), "x_scales": blocks[..., 0].contiguous()}, file
    )
    with pytest.raises(ValueError, match=r"has shape \[2, 8, 2, 8\], expected \[2, 8, 2, 16\]"):
        Checkpoint.open(copy)


def test_pieces_are_checked_before_memory_is_taken(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_quantised(copy, CASES["fp8 blocks"])
    change_tensors(copy, drop("weight_scale_inv"))

    def build(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("built before the pieces were checked")

    monkeypatch.setattr("eyas.models.load.decoder_class", build)
    with pytest.raises(ValueError, match="lacks tensor"):
        load_model(copy)


def test_values_that_are_not_finite_are_refused(copy: Path) -> None:
    write_quantised(copy, CASES["fp8 blocks"])
    scales = torch.full((3, 2), float("nan"))
    change_tensors(copy, put("weight_scale_inv", scales))
    with pytest.raises(ValueError, match=r"tensor '.*up_proj\.weight' holds numbers that are not"):
        load_model(copy)


def test_quantised_weights_without_a_description_are_refused(copy: Path) -> None:
    write_quantised(copy, CASES["fp8 blocks"])
    change_config(copy, quantization_config=None)
    with pytest.raises(ValueError, match=r"weight_scale_inv' is of a quantised weight that its"):
        load_model(copy)
