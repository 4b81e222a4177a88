"""What the ranks read of a checkpoint: together all of it, and each nothing that it does not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.models import ModelFiles
from eyas.models.checkpoint import _Readers
from eyas.models.hyper_decoder import decoder_class
from eyas.models.weights import fill, fused
from eyas.parallel.cut import Cut, whole
from eyas.parallel.shard import Shard
from tests.models.quantised import CASES, write_quantised
from tests.models.tiny import make_model, save_model

TRANSPOSED = "qwen3 vl moe"
"""The layout of Qwen3-VL's files: of each expert, the transposed matrices in one tensor of all."""
FAMILIES = (
    *("phi3", "qwen3 moe", "gpt-oss", "qwen3 next", "deepseek v3 experts"),
    *("granite moe shared", "ernie4.5 moe", TRANSPOSED),
)
REORDERED = (".delta.qkv.", ".delta.convolution.")
"""Parameters of which a rank holds several ranges of rows."""


@pytest.fixture(scope="module", params=FAMILIES)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    directory = tmp_path_factory.mktemp("model")
    is_transposed = request.param == TRANSPOSED
    save_model(make_model("qwen3 moe" if is_transposed else request.param), directory)
    if is_transposed:
        transpose_experts(directory / "model.safetensors")
    return ModelFiles.open(directory)


def transpose_experts(file: Path) -> None:
    tensors = load_file(file)
    kept = {name: values for name, values in tensors.items() if ".experts." not in name}
    for layer in range(3):
        prefix = f"model.layers.{layer}.mlp.experts"
        of_all = [
            torch.stack([tensors[f"{prefix}.{expert}.{part}_proj.weight"].T for expert in range(8)])
            for part in ("gate", "up", "down")
        ]
        kept[f"{prefix}.gate_up_proj"] = torch.cat(of_all[:2], 2)
        kept[f"{prefix}.down_proj"] = of_all[2].contiguous()
    save_file(kept, file)


def filled(files: ModelFiles, shard: Shard | None) -> dict[str, list[torch.Tensor]]:
    """What a rank's parameters hold once they are read; None is one rank alone."""
    options: dict[str, Any] = {} if shard is None else {"shard": shard}
    with torch.no_grad():
        decoder = decoder_class(files.spec)(
            files.spec, dtype=torch.float32, device="cpu", max_model_len=8, **options
        )
        parameters = decoder.parameters()
        fill(fused(parameters, files.names), files.checkpoint, files.wanted)
    return {name: [whole(block).target for block in blocks] for name, blocks in parameters.items()}


@pytest.mark.parametrize(("size", "by_expert"), [(2, False), (2, True)], ids=["width", "experts"])
def test_ranks_hold_parts_that_make_the_whole(
    files: ModelFiles, size: int, by_expert: bool
) -> None:
    expected = filled(files, None)
    shards = [Shard(rank, size, by_tree=True, by_expert=by_expert) for rank in range(size)]
    held = [filled(files, shard) for shard in shards]
    num_divided = 0
    for name, blocks in expected.items():
        if any(part in name for part in REORDERED):
            continue  # the laws run them
        parts = [torch.cat(each[name]) for each in held]
        (all_of_it,) = blocks
        assert any(torch.equal(made, all_of_it) for made in joined(parts)), name
        num_divided += parts[0].shape != all_of_it.shape
    assert num_divided > 10


def joined(parts: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What the parts of a tensor may be together: copies, rows, columns, or one rank's alone."""
    there = [part for part in parts if part.numel()]
    yield there[0]
    yield torch.cat(there)
    if there[0].dim() > 1:
        yield torch.cat(there, 1)


@pytest.mark.parametrize(
    ("family", "case"),
    [
        ("qwen3", "fp8 blocks"),
        ("qwen3", "gptq"),
        ("qwen3", "awq"),
        ("deepseek v3 experts", "fp8 blocks"),
    ],
)
def test_quantised_parts_are_those_of_the_values(family: str, case: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 192, "intermediate_size": 320}
    directory = save_model(make_model(family, **sizes), tmp_path / "model")
    plain = write_quantised(directory, CASES[case])
    for rank in range(2):
        shard = Shard(rank, 2, by_tree=True, by_expert=True)
        found, expected = (filled(ModelFiles.open(each), shard) for each in (directory, plain))
        for name, blocks in expected.items():
            assert all(map(torch.equal, found[name], blocks)), name


def test_a_rank_reads_what_it_holds_and_no_more(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_read = 0

    def counting(read: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def counted(*arguments: Any) -> torch.Tensor:
            nonlocal num_read
            values = read(*arguments)
            num_read += values.numel()
            return values

        return counted

    for name in ("read", "read_region"):
        monkeypatch.setattr(_Readers, name, counting(getattr(_Readers, name)))
    held = filled(files, Shard(1, 2, by_tree=True, by_expert=True))
    assert num_read == sum(block.numel() for blocks in held.values() for block in blocks)
    assert num_read < 0.7 * files.num_parameters


def test_a_cut_turns_with_its_tensor() -> None:
    target = torch.zeros(2, 3)
    cut = Cut(target, (8, 3), ((4, 6),)).t()
    assert cut.shape == (3, 8)
    assert [(rows, columns) for rows, columns, _ in cut.regions()] == [((0, 3), (4, 6))]
    assert Cut.nothing(8, 3).t().shape == (3, 8) and not list(Cut.nothing(8, 3).t().regions())
