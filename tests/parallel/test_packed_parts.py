"""Quantised weights stay packed where ranks divide them: the values of parts, and which of them do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.kernels.packed import PackedWeight
from eyas.layers import linear
from eyas.layers.gemm.products import Products
from eyas.layers.row_order import RowOrder
from eyas.models import ModelFiles
from eyas.models.packing import held_shape
from eyas.ops.dequantise import dequantised
from eyas.parallel.cut import Cut, Parameter
from eyas.parallel.shard import Shard
from tests.models.quantised import AWQ, CASES, GPTQ, Case, awq, change_config, gptq, write_quantised
from tests.models.test_packing import GROUPS, packed_rows
from tests.models.tiny import make_model, save_model

DENSE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "head_dim": 64}
EXPERTS = {
    "hidden_size": 256,
    "moe_intermediate_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
}
PACKED = {
    **{name: CASES[name] for name in ("fp8 blocks", "fp8 tensors", "fbgemm fp8")},
    "compressed w4a16": Case(GROUPS, packed_rows(128)),
    "compressed w4a16 rows": CASES["compressed w4a16 rows"],
    "awq": Case({**AWQ, "group_size": 128}, awq(128)),
    "gptq": Case({**GPTQ, "group_size": 128}, gptq(128)),
}
ON_DEVICE = RowOrder(products=Products(True, torch.device("cpu"), 64))
"""The row order of a device, whose layers hold packed weights wherever they are."""


@pytest.fixture(autouse=True)
def _parameters_of_sealed_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers keep what was filled in, so that it can be looked at."""
    monkeypatch.setattr(linear.Linear, "seal", lambda layer: None)


def held(directory: Path, shard: Shard) -> dict[str, Any]:
    """Load a rank's part as a device would, and return what the layers hold."""
    decoder = ModelFiles.open(directory).load(dtype=torch.float16, order=ON_DEVICE, shard=shard)
    found: dict[str, Any] = {}
    for index, layer in enumerate(decoder._layers):
        for room in (layer._attention, layer._mlp):
            for name, weight in room.parameters().items():
                found[f"{index}.{name}"] = own(weight)
    return found


def own(parameter: Parameter) -> Any:
    return parameter.target if isinstance(parameter, Cut) else parameter


def is_packed(found: Mapping[str, Any]) -> list[str]:
    return [name for name, each in found.items() if isinstance(each, PackedWeight)]


def assert_parts(directory: Path, plain: Path, *shards: Shard) -> list[str]:
    """Check that parts have the values of the dequantised model's, and return those that are packed."""
    packed: list[str] = []
    for shard in shards:
        found, expected = held(directory, shard), held(plain, shard)
        assert found.keys() == expected.keys()
        for name, weight in found.items():
            assert torch.equal(dequantised(weight), expected[name]), (shard.rank, name)
        packed += is_packed(found)
        assert not is_packed(expected)
        files = ModelFiles.open(directory)
        size = files.num_bytes(torch.float16, stays_packed=True, shard=shard)
        assert size < files.num_bytes(torch.float16, stays_packed=False, shard=shard)
    return packed


@pytest.mark.parametrize("case", PACKED)
def test_parts_of_a_dense_model_stay_packed(case: str, tmp_path: Path) -> None:
    """By rows (q, k, v, gate, up) and by columns (o, down)."""
    directory = save_model(make_model("qwen3", **DENSE), tmp_path / "model")
    plain = write_quantised(directory, PACKED[case])
    shards = [Shard(rank, 2) for rank in range(2)]
    assert len(assert_parts(directory, plain, *shards)) == 2 * 7


@pytest.mark.parametrize("by_expert", [False, True])
def test_parts_of_experts_stay_packed(*, by_expert: bool, tmp_path: Path) -> None:
    directory = save_model(make_model("glm4 moe", **EXPERTS), tmp_path / "model")
    plain = write_quantised(directory, CASES["fp8 blocks"])
    shards = [Shard(rank, 2, by_expert=by_expert) for rank in range(2)]
    packed = assert_parts(directory, plain, *shards)
    assert any(".experts." in f".{name}" and "down" in name for name in packed)
    assert any("gate" in name for name in packed)


def test_one_rank_that_adds_in_a_tree_keeps_weights_packed(tmp_path: Path) -> None:
    sizes = {**DENSE, "hidden_size": 256, "intermediate_size": 2048}
    directory = save_model(make_model("qwen3", **sizes), tmp_path / "model")
    plain = write_quantised(directory, CASES["fp8 blocks"])
    assert len(assert_parts(directory, plain, Shard(by_tree=True))) == 7


def test_columns_that_share_a_scale_are_not_divided(tmp_path: Path) -> None:
    sizes = {**DENSE, "intermediate_size": 384}  # 192 for each of two
    directory = save_model(make_model("qwen3", **sizes), tmp_path / "model")
    plain = write_quantised(directory, CASES["fp8 blocks"])
    shard = Shard(1, 2)
    assert "0.down.weight" not in assert_parts(directory, plain, shard)
    files = ModelFiles.open(directory)
    storage = files._storage_of(files._held(shard))
    assert storage.unpacked == {"ranks divide columns that are packed together": 1}
    assert (
        "1 are dequantised (ranks divide columns that are packed together)" in storage.description
    )


@pytest.mark.parametrize("by_expert", [False, True])
def test_parts_of_the_experts_of_gpt_oss_stay_packed(*, by_expert: bool, tmp_path: Path) -> None:
    """Of one tensor for all experts, in FP4, whose rows of gate and up alternate."""
    model = make_model("gpt-oss", hidden_size=64, intermediate_size=256)
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
    files = ModelFiles.open(directory)
    values = {
        name: files.checkpoint.read_tensor(f"model.layers.0.mlp.experts.{name}_proj")
        for name in ("gate_up", "down")
    }
    experts = files.spec.experts
    assert experts is not None
    inner, half = experts.intermediate_size, experts.intermediate_size // 2
    for rank in range(2):
        found = held(directory, Shard(rank, 2, by_expert=by_expert))
        for expert in range(experts.num_experts):
            gate_up, down = (values[name][expert].T.half() for name in ("gate_up", "down"))
            names = [f"0.experts.{expert}.{name}.weight" for name in ("gate_up", "down")]
            if by_expert and expert * 2 // experts.num_experts != rank:
                assert not any(len(found[name]) for name in names)
                continue
            low, high = (0, inner) if by_expert else (rank * half, (rank + 1) * half)
            gate_up = gate_up[2 * low : 2 * high]
            wanted = (torch.cat((gate_up[::2], gate_up[1::2])), down[:, low:high])
            for name, weight in zip(names, wanted, strict=True):
                assert isinstance(found[name], PackedWeight)
                assert torch.equal(dequantised(found[name]), weight), name


def test_a_part_has_the_shape_that_is_held() -> None:
    cut = Cut.of_columns(torch.empty(4, 3), 6, (3, 6))
    assert cut.shape == (4, 6) and held_shape(cut) == (4, 3)
    assert held_shape(torch.empty(2, 5)) == (2, 5)
