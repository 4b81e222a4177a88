"""Weights that stay packed where kernels run: the same values, and which of them do."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.kernels.packed import MOST_EXPONENT, PackedWeight
from eyas.layers import linear
from eyas.layers.gemm.products import Products
from eyas.layers.row_order import RowOrder
from eyas.models import ModelFiles
from eyas.models.formats import base
from eyas.ops.dequantise import dequantised

from .quantised import (
    AWQ,
    CASES,
    FP8_BLOCKS,
    GPTQ,
    Case,
    Pieces,
    awq,
    change_config,
    fp8,
    gptq,
    packed_rows,
    weights,
    write_quantised,
)
from .test_text_towers import make_checkpoint
from .tiny import make_model, save_model

SIZES = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 1, "head_dim": 64}
GROUPS = weights("int", 4, "group", group_size=128)
PACKED = {
    **{
        name: CASES[name]
        for name in CASES
        if ("fp8" in name or "rows" in name) and "in a text" not in name  # 64 x 32: not packed
    },
    "compressed w4a16": Case(GROUPS, packed_rows(128)),
    "compressed w4a16 zeros": Case(GROUPS, packed_rows(128, zeros="packed")),
    "compressed w4a16 plain zeros": Case(GROUPS, packed_rows(128, zeros="plain")),
    "awq": Case({**AWQ, "group_size": 128}, awq(128)),
    "gptq": Case({**GPTQ, "group_size": 128}, gptq(128)),
    "gptq without groups": Case({**GPTQ, "group_size": 128}, gptq(128, names_groups=False)),
}
ON_DEVICE = RowOrder(products=Products(True, torch.device("cpu"), 64))
"""The row order of a device, whose layers hold packed weights wherever they are."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("qwen3", **SIZES), tmp_path_factory.mktemp("model"))


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(model, tmp_path / "copy")


@pytest.fixture(autouse=True)
def _parameters_of_sealed_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers keep what was filled in, so that it can be looked at."""
    monkeypatch.setattr(linear.Linear, "seal", lambda layer: None)


def held(directory: Path, dtype: torch.dtype = torch.float16) -> dict[str, Any]:
    """Load a model as a device would, and return its parameters."""
    decoder = ModelFiles.open(directory).load(dtype=dtype, order=ON_DEVICE)
    found: dict[str, Any] = {}
    for index, layer in enumerate(decoder._layers):
        for room in (layer._attention, layer._mlp):
            for name, weight in room.parameters().items():
                found[f"{index}.{name}"] = weight
    return found


def assert_alike(found: Mapping[str, Any], plain: Mapping[str, Any], num_packed: int) -> None:
    assert found.keys() == plain.keys()
    for name, weight in found.items():
        assert torch.equal(dequantised(weight), plain[name]), name
    packed = [each for each in found.values() if isinstance(each, PackedWeight)]
    assert len(packed) == num_packed


@pytest.mark.parametrize("name", PACKED)
def test_packed_weights_have_the_values_that_are_decoded_at_load(
    name: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = held(write_quantised(copy, PACKED[name]))
    assert_alike(held(copy), plain, 7)
    monkeypatch.setattr(base, "KEPT_NUMBERS", 256 * 72)  # several parts a tensor
    assert_alike(held(copy), plain, 7)
    files = ModelFiles.open(copy)
    sizes = [files.num_bytes(torch.float16, stays_packed=packed) for packed in (True, False)]
    assert sizes[0] < 0.75 * sizes[1] and sizes[1] == 2 * files.num_parameters


def test_rows_that_come_in_parts_keep_their_scales(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = held(write_quantised(copy, CASES["fp8 blocks"]))
    monkeypatch.setattr(base, "KEPT_NUMBERS", 1)
    assert_alike(held(copy), plain, 7)


def test_experts_and_fused_tensors_stay_packed_too(tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "moe_intermediate_size": 192, "num_hidden_layers": 2}
    sizes["intermediate_size"] = 320
    directory = save_model(make_model("glm4 moe", **sizes), tmp_path / "experts")
    plain = held(write_quantised(directory, CASES["fp8 blocks"]))
    # q, k, v (whose rows are reordered), o of both layers; a dense block, 8 experts, the shared one
    assert_alike(held(directory), plain, 2 * 4 + 3 + 3 * 9)
    directory = save_model(make_model("phi3", hidden_size=256), tmp_path / "fused")
    plain = held(write_quantised(directory, CASES["fbgemm fp8"]))
    found = held(directory)
    assert_alike(found, plain, sum(isinstance(each, PackedWeight) for each in found.values()))
    assert isinstance(found["0.q.weight"], PackedWeight)


def test_gates_are_put_behind_packed_heads(tmp_path: Path) -> None:
    """Rows of queries and gates alternate by head in the file."""
    sizes = {"hidden_size": 256, "head_dim": 64, "moe_intermediate_size": 128}
    model = make_model("qwen3 next", **sizes, shared_expert_intermediate_size=128)
    directory = save_model(model, tmp_path / "model")
    plain = held(write_quantised(directory, CASES["fp8 blocks"]))
    # q, k, v, o of one layer; 8 experts and the shared one of all four
    assert_alike(held(directory), plain, 4 + 4 * 3 * 9)


def test_experts_of_gpt_oss_stay_packed(tmp_path: Path) -> None:
    model = make_model("gpt-oss", hidden_size=64, intermediate_size=96)
    directory = save_model(model, tmp_path / "model")
    stored: dict[str, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for name, tensor in load_file(directory / "model.safetensors").items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, num_in, num_out = tensor.shape
            shape = (experts, num_out, num_in // 32, 16)
            blocks = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
            scales = torch.randint(110, 130, shape[:3], generator=generator, dtype=torch.uint8)
            stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        else:
            stored[name] = tensor
    save_file(stored, directory / "model.safetensors")
    change_config(directory, quantization_config={"quant_method": "mxfp4"})
    found = held(directory)
    files = ModelFiles.open(directory)
    kinds = {str(layout) for layout in files.storage.layouts.values()}
    assert kinds == {"mxfp4 1x32"}
    layers = files.spec.num_layers
    experts = files.spec.experts
    assert experts is not None
    packed = [name for name, each in found.items() if isinstance(each, PackedWeight)]
    assert len(packed) == layers * experts.num_experts * 2
    for name in ("gate_up", "down"):
        values = files.checkpoint.read_tensor(f"model.layers.0.mlp.experts.{name}_proj")
        for expert in range(experts.num_experts):
            rows = values[expert].T
            if name == "gate_up":  # they alternate in the file
                rows = torch.cat((rows[::2], rows[1::2]))
            weight = found[f"0.experts.{expert}.{name}.weight"]
            assert torch.equal(dequantised(weight), rows.half())
    name = "model.layers.0.mlp.experts.down_proj"
    stored[f"{name}_blocks"][0, 0, 0, 0] = 0x11
    stored[f"{name}_scales"][0, 0, 0] = MOST_EXPONENT + 1
    save_file(stored, directory / "model.safetensors")
    with pytest.raises(ValueError, match=r"down_proj' holds scales above 2\^65"):
        held(directory, torch.bfloat16)


def unpacked(directory: Path) -> Mapping[str, int]:
    storage = ModelFiles.open(directory).storage
    assert not storage.layouts or storage.description.startswith(f"{len(storage.layouts)} weights")
    return storage.unpacked


@pytest.mark.parametrize(
    ("name", "num_packed", "why"),
    [
        ("compressed w4a16", 0, "kernels do not take their format"),  # groups of 64
        ("gptq sorted", 0, "kernels do not take their format"),
        ("compressed int8", 0, "kernels do not take their format"),
        ("compressed fp8 blocks", 7, None),
    ],
)
def test_what_does_not_stay_packed_is_said(
    name: str, num_packed: int, why: str | None, copy: Path
) -> None:
    plain = held(write_quantised(copy, CASES[name]))
    assert unpacked(copy) == ({why: 7} if why else {})
    assert_alike(held(copy), plain, num_packed)


def test_a_weight_stays_packed_as_a_whole(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    write_quantised(copy, CASES["fp8 blocks"])
    stored = load_file(copy / "model.safetensors")
    key = "model.layers.0.self_attn.k_proj.weight"
    stored[key] = tensors[key]
    del stored[f"{key}_scale_inv"]
    save_file(stored, copy / "model.safetensors")
    assert unpacked(copy) == {"parts of a weight are stored in different ways": 2}
    found = held(copy)
    assert [isinstance(found[f"0.{part}.weight"], PackedWeight) for part in "qkvo"] == [
        *(False, False, False, True)
    ]


def test_numbers_that_are_not_finite_are_refused_by_name(copy: Path) -> None:
    write_quantised(copy, Case(FP8_BLOCKS, fp8(128, 128, "weight_scale_inv")))
    stored = load_file(copy / "model.safetensors")
    stored["model.layers.0.mlp.down_proj.weight"].view(torch.uint8)[3, 5] = 0x7F
    save_file(stored, copy / "model.safetensors")
    with pytest.raises(ValueError, match=r"down_proj\.weight' holds numbers that are not finite"):
        held(copy)
    stored["model.layers.0.mlp.down_proj.weight"].view(torch.uint8)[3, 5] = 0
    stored["model.layers.0.mlp.up_proj.weight_scale_inv"][0, 0] = 1e6
    save_file(stored, copy / "model.safetensors")
    with pytest.raises(ValueError, match=r"up_proj\.weight' holds .* not finite as float16"):
        held(copy)


def test_columns_sorted_against_the_configuration_are_refused(copy: Path) -> None:
    write_quantised(copy, Case({**GPTQ, "group_size": 128}, gptq(128, is_sorted=True)))
    with pytest.raises(ValueError, match=r"g_idx' sorts the columns, but desc_act"):
        held(copy)


def test_experts_in_one_transposed_tensor_are_dequantised(tmp_path: Path) -> None:
    """As in the files of Qwen3-VL's authors: kernels read rows, and those are columns there."""
    directory = tmp_path / "model"
    make_checkpoint("Qwen3VLMoe", directory)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if ".mlp.experts." in name]:
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, file, {"format": "pt"})
    of_expert = fp8(128, 128, "scale")

    def quantise(weight: torch.Tensor, generator: torch.Generator) -> tuple[Pieces, torch.Tensor]:
        pieces, values = zip(*(of_expert(each, generator) for each in weight), strict=True)
        stacked = {name: torch.stack([each[name] for each in pieces]) for name in pieces[0]}
        return {"": stacked["weight"], "_scale_inv": stacked["scale"]}, torch.stack(values)

    plain = held(write_quantised(directory, Case(FP8_BLOCKS, quantise), suffix="_proj"))
    assert_alike(held(directory), plain, 0)
