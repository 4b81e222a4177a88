"""Quantisers, one for each format that is read, and checkpoints written in it beside their values.

Each quantiser returns the tensors that the format stores for a weight, and the float32 values that
these stand for, computed by the definition of the format.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

Pieces = dict[str, torch.Tensor]
Quantiser = Callable[[torch.Tensor, torch.Generator], tuple[Pieces, torch.Tensor]]
AWQ_COLUMNS = [0, 2, 4, 6, 1, 3, 5, 7]
FP8_MAX = 448.0


def spread(blocks: torch.Tensor, shape: torch.Size, rows: int, columns: int) -> torch.Tensor:
    """Repeat a number of each block over the numbers of the block."""
    wide = blocks.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return wide[: shape[0], : shape[1]]


def block_maxima(weight: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    parts = [row.split(columns, 1) for row in weight.abs().split(rows, 0)]
    return torch.stack([torch.stack([part.max() for part in row]) for row in parts])


def fp8(rows: int, columns: int, scale_name: str, form: str = "grid") -> Quantiser:
    """form: how the scales are stored: in the grid of their blocks, or one of them as a number."""

    def quantise(weight: torch.Tensor, generator: torch.Generator) -> tuple[Pieces, torch.Tensor]:
        high, wide = rows or weight.shape[0], columns or weight.shape[1]
        scales = block_maxima(weight, high, wide) / FP8_MAX
        numbers = (weight / spread(scales, weight.shape, high, wide)).to(torch.float8_e4m3fn)
        values = numbers.float() * spread(scales, weight.shape, high, wide)
        stored = {"grid": scales, "number": scales.flatten()[0], "one": scales.flatten()}[form]
        return {"weight": numbers, scale_name: stored}, values

    return quantise


def pack(
    numbers: torch.Tensor, bits: int, dim: int, places: list[int] | None = None
) -> torch.Tensor:
    """Pack unsigned numbers into int32 words along a dimension."""
    count = 32 // bits
    if dim == 0:
        return pack(numbers.T, bits, 1, places).T.contiguous()
    padded = F.pad(numbers.long(), (0, -numbers.shape[1] % count)).unflatten(1, (-1, count))
    shifts = bits * torch.arange(count)
    return (padded[..., places or list(range(count))] << shifts).sum(-1).to(torch.int32)


def integers(
    weight: torch.Tensor, bits: int, group_of: torch.Tensor, is_symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantise each group of columns of each row; return numbers, zeros, scales, values."""
    largest = 2**bits - 1
    num_groups = int(group_of.max()) + 1
    numbers = torch.zeros(weight.shape, dtype=torch.int64)
    zeros = torch.zeros(weight.shape[0], num_groups, dtype=torch.int64)
    scales = torch.zeros(weight.shape[0], num_groups)
    values = torch.zeros_like(weight)
    for group in range(num_groups):
        columns = (group_of == group).nonzero().flatten()
        part = weight[:, columns]
        low, high = part.amin(1, keepdim=True), part.amax(1, keepdim=True)
        if is_symmetric:
            high = torch.maximum(high, -low)
            low = -high
        scale = ((high - low) / largest).half().float()
        zero = torch.full_like(low, 2 ** (bits - 1)) if is_symmetric else (-low / scale).round()
        zero = zero.clamp(0, largest)
        numbers[:, columns] = ((part / scale).round() + zero).clamp(0, largest).long()
        zeros[:, group], scales[:, group] = zero.flatten().long(), scale.flatten()
        values[:, columns] = (numbers[:, columns] - zeros[:, group : group + 1]) * scale
    return numbers, zeros, scales, values


def runs(num_columns: int, size: int) -> torch.Tensor:
    """The group of each column where groups are runs of `size` columns; -1 for one group."""
    return torch.arange(num_columns) // (num_columns if size == -1 else size)


def awq(size: int) -> Quantiser:
    def quantise(weight: torch.Tensor, generator: torch.Generator) -> tuple[Pieces, torch.Tensor]:
        group_of = runs(weight.shape[1], size)
        numbers, zeros, scales, values = integers(weight, 4, group_of, False)
        pieces = {
            "qweight": pack(numbers.T, 4, 1, AWQ_COLUMNS),
            "qzeros": pack(zeros.T, 4, 1, AWQ_COLUMNS),
            "scales": scales.T.half().contiguous(),
        }
        return pieces, values

    return quantise


def gptq(
    size: int,
    *,
    bits: int = 4,
    is_symmetric: bool = False,
    is_sorted: bool = False,
    names_groups: bool = True,
    zero_offset: int = 1,
) -> Quantiser:
    def quantise(weight: torch.Tensor, generator: torch.Generator) -> tuple[Pieces, torch.Tensor]:
        group_of = runs(weight.shape[1], size)
        if is_sorted:
            group_of = group_of[torch.randperm(weight.shape[1], generator=generator)]
        numbers, zeros, scales, values = integers(weight, bits, group_of, is_symmetric)
        pieces = {
            "qweight": pack(numbers.T, bits, 0),
            "qzeros": pack((zeros.T - zero_offset) % 2**bits, bits, 1),
            "scales": scales.T.half().contiguous(),
        }
        if names_groups:
            pieces["g_idx"] = group_of.int()
        return pieces, values

    return quantise


def packed_rows(
    size: int, *, bits: int = 4, zeros: str = "none", is_sorted: bool = False
) -> Quantiser:
    """zeros: "none" (symmetric), "packed" or "plain"."""

    def quantise(weight: torch.Tensor, generator: torch.Generator) -> tuple[Pieces, torch.Tensor]:
        group_of = runs(weight.shape[1], size)
        if is_sorted:
            group_of = group_of[torch.randperm(weight.shape[1], generator=generator)]
        numbers, zero, scales, values = integers(weight, bits, group_of, zeros == "none")
        pieces = {
            "weight_packed": pack(numbers, bits, 1),
            "weight_scale": scales.half(),
            "weight_shape": torch.tensor(weight.shape),
        }
        if zeros == "packed":
            pieces["weight_zero_point"] = pack(zero, bits, 0)
        if zeros == "plain":
            pieces["weight_zero_point"] = (zero - 2 ** (bits - 1)).to(torch.int8)
        if is_sorted:
            pieces["weight_g_idx"] = group_of.int()
        return pieces, values

    return quantise


def int8(size: int, *, has_zeros: bool = False) -> Quantiser:
    def quantise(weight: torch.Tensor, generator: torch.Generator) -> tuple[Pieces, torch.Tensor]:
        group_of = runs(weight.shape[1], size)
        numbers, zeros, scales, values = integers(weight, 8, group_of, not has_zeros)
        pieces = {"weight": (numbers - 128).to(torch.int8), "weight_scale": scales.bfloat16()}
        values = values / scales[:, group_of] * scales.bfloat16().float()[:, group_of]
        zero = (zeros - 128).to(torch.int8)
        exact = ((numbers - 128) - zero[:, group_of].long()) * scales.bfloat16().float()[
            :, group_of
        ]
        if has_zeros:
            pieces["weight_zero_point"] = zero
        return pieces, exact

    return quantise


def weights(kind: str, bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    """A config of compressed-tensors with one group."""
    described = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, **more}
    group = {"targets": ["Linear"], "weights": described, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
    }


@dataclass(frozen=True)
class Case:
    """A quantiser and the quantization_config that describes what it writes."""

    config: dict[str, Any]
    quantise: Quantiser


FP8_BLOCKS = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head"],
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": False, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
CASES = {
    "fp8 blocks": Case(FP8_BLOCKS, fp8(128, 128, "weight_scale_inv")),
    "fp8 tensors": Case(
        {"quant_method": "fp8", "activation_scheme": "dynamic"},
        fp8(0, 0, "weight_scale", "number"),
    ),
    "fbgemm fp8": Case(
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
        fp8(1, 0, "weight_scale"),
    ),
    "compressed fp8 channels": Case(weights("float", 8, "channel"), fp8(1, 0, "weight_scale")),
    "compressed fp8 tensors": Case(weights("float", 8, "tensor"), fp8(0, 0, "weight_scale", "one")),
    "compressed fp8 blocks": Case(
        weights("float", 8, "block", block_structure=[128, 128]), fp8(128, 128, "weight_scale")
    ),
    "compressed fp8 blocks in a text": Case(
        weights("float", 8, "block", block_structure="64x32"), fp8(64, 32, "weight_scale")
    ),
    "compressed w4a16": Case(weights("int", 4, "group", group_size=64), packed_rows(64)),
    "compressed w4a16 rows": Case(weights("int", 4, "channel", group_size=-1), packed_rows(-1)),
    "compressed w4a16 zeros": Case(
        weights("int", 4, "group", group_size=64, symmetric=False),
        packed_rows(64, zeros="packed"),
    ),
    "compressed w4a16 plain zeros": Case(
        weights("int", 4, "group", group_size=64, symmetric=False),
        packed_rows(64, zeros="plain"),
    ),
    "compressed w4a16 sorted": Case(
        weights("int", 4, "group", group_size=64, actorder="group"),
        packed_rows(64, is_sorted=True),
    ),
    "compressed w8a16 packed": Case(
        weights("int", 8, "group", group_size=64), packed_rows(64, bits=8)
    ),
    "compressed int8": Case(weights("int", 8, "channel"), int8(-1)),
    "compressed int8 zeros": Case(
        weights("int", 8, "channel", symmetric=False), int8(-1, has_zeros=True)
    ),
    "compressed int8 groups": Case(weights("int", 8, "group", group_size=64), int8(64)),
    "awq": Case(AWQ, awq(64)),
    "awq rows": Case({**AWQ, "group_size": -1}, awq(-1)),
    "gptq": Case(GPTQ, gptq(64)),
    "gptq without groups": Case(GPTQ, gptq(64, names_groups=False)),
    "gptq rows": Case({**GPTQ, "group_size": -1}, gptq(-1)),
    "gptq symmetric": Case({**GPTQ, "sym": True}, gptq(64, is_symmetric=True)),
    "gptq sorted": Case({**GPTQ, "desc_act": True}, gptq(64, is_sorted=True)),
    "gptq v2": Case({**GPTQ, "checkpoint_format": "gptq_v2"}, gptq(64, zero_offset=0)),
    "gptq of 8 bits": Case({**GPTQ, "bits": 8}, gptq(64, bits=8)),
}


def write_quantised(directory: Path, case: Case, suffix: str = "_proj.weight") -> Path:
    """Quantise the weights of the checkpoint in `directory` whose names end with `suffix`.

    Returns the directory of their values, saved unquantised in float32, beside it.
    """
    plain = directory.with_name(f"{directory.name}-values")
    shutil.copytree(directory, plain)
    stored: Pieces = {}
    values: Pieces = {}
    generator = torch.Generator().manual_seed(7)
    for name, tensor in load_file(directory / "model.safetensors").items():
        if not name.endswith(suffix):
            stored[name] = values[name] = tensor
            continue
        pieces, values[name] = case.quantise(tensor.float(), generator)
        module = name.removesuffix("weight")
        stored |= {f"{module}{piece}": part.contiguous() for piece, part in pieces.items()}
    save_file(stored, directory / "model.safetensors")
    save_file(values, plain / "model.safetensors")
    change_config(directory, quantization_config=case.config)
    return plain


def change_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
