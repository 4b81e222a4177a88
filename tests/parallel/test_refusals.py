"""What ranks cannot divide is refused by name before anything is started, with what to do instead."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eyas.cli.serve import torchrun_settings
from eyas.config import DeviceConfig, EngineConfig, ModelConfig, ParallelConfig
from eyas.engine import rank_group
from eyas.engine.startup.build import build_engine
from eyas.models import read_spec
from eyas.models.sharding import check_ranks, of_rank
from eyas.native.products import compiled
from eyas.parallel.group import Group
from eyas.parallel.lost import GroupLost
from eyas.parallel.shard import Shard
from eyas.runner import device as device_module
from eyas.runner.device import open_device
from eyas.server.process.node import run_node
from tests.models.tiny import make_model, save_model


def config_of(directory: Path, tp: int, dtype: str = "auto", **parallel: object) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(path=str(directory), dtype=dtype),  # type: ignore[arg-type]
        device=DeviceConfig(device="cpu", num_threads=1),
        parallel=ParallelConfig(tp=tp, **parallel),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("family", "changes", "tp", "words"),
    [
        ("llama2", {}, 8, ["parallel.tp: 8 ranks", "4 query heads", "--tp 1 or 2 or 4"]),
        (
            "llama2",
            {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3},
            2,
            ["parallel.tp: 2 ranks", "3 key/value heads"],
        ),
        (
            "llama2",
            {"intermediate_size": 36},
            4,
            ["parallel.tp: the 36 features", "multiple of 8"],
        ),
        ("qwen3 next", {}, 4, ["parallel.tp: 4 ranks", "2 key heads", "--tp 1 or 2"]),
        ("deepseek v4", {}, 2, ["parallel.tp: DeepseekV4", "compressed attention"]),
    ],
)
def test_a_model_that_ranks_cannot_divide(
    family: str,
    changes: dict[str, int],
    tp: int,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(*_: object) -> None:
        raise AssertionError("processes are started")

    monkeypatch.setattr(rank_group, "RankProcesses", start)
    directory = save_model(make_model(family, **changes), tmp_path)
    with pytest.raises(ValueError, match=r"^parallel\.") as caught:
        build_engine(config_of(directory, tp))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("family", "dp", "words"),
    [
        ("qwen3 moe", 2, ["Qwen3Moe", "no latent attention", "--tp 2"]),
        ("deepseek v3", 2, ["DeepseekV3", "has experts", "--tp 2", "start 2 servers"]),
        ("deepseek v2 in groups", 8, ["8 ranks", "12 experts", "--dp 1 or 2 or 4"]),
    ],
)
def test_a_model_whose_sequences_ranks_cannot_divide(
    family: str, dp: int, words: list[str], tmp_path: Path
) -> None:
    directory = save_model(make_model(family), tmp_path)
    with pytest.raises(ValueError, match=r"^parallel\.dp: ") as caught:
        build_engine(config_of(directory, 1, dp=dp, dp_attention=True))
    for word in words:
        assert word in str(caught.value)
    if dp == 2:
        return
    with pytest.raises(ValueError, match=r"^parallel\.dp: .* --dtype float32"):
        build_engine(config_of(directory, 1, "bfloat16", dp=4, ep=4))


def test_a_cpu_divides_float32_alone_by_compiled_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = save_model(make_model("llama2", intermediate_size=96), tmp_path)
    with pytest.raises(ValueError, match=r"parallel.tp: .* --dtype float32"):
        build_engine(config_of(directory, 2, "bfloat16"))
    with pytest.raises(ValueError, match=r"exact_across_tp: .* --dtype float32"):
        build_engine(config_of(directory, 1, "bfloat16", exact_across_tp=True))
    monkeypatch.setattr("eyas.engine.startup.load.is_available", lambda *_: False)
    with pytest.raises(ValueError, match=r"parallel.tp: .* C compiler"):
        build_engine(config_of(directory, 2))


def test_a_gpu_has_its_own_conditions(tmp_path: Path) -> None:
    spec = read_spec(save_model(make_model("llama2"), tmp_path))
    with pytest.raises(ValueError, match="multiple of 2048"):
        check_ranks(spec, Shard(0, 2, by_tree=True), on_gpu=True)
    check_ranks(spec, Shard(0, 2), on_gpu=True)
    experts = read_spec(save_model(make_model("qwen3 moe"), tmp_path / "experts"))
    wide = replace(experts, num_query_heads=64, intermediate_size=2048)
    with pytest.raises(ValueError, match="--ep 2"):
        check_ranks(wide, Shard(0, 2, by_tree=True), on_gpu=True)
    check_ranks(wide, Shard(0, 2, by_tree=True, by_expert=True), on_gpu=True)


def test_ranks_need_as_many_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(device_module, "usable", lambda device: True)
    with pytest.raises(ValueError, match=r"parallel.tp: .* 4 GPUs, .* has 1; .*--device cpu"):
        open_device(DeviceConfig(device="cuda"), 4, 0)


def test_heads_of_a_rank(tmp_path: Path) -> None:
    """Key/value heads are divided, or repeated for the query heads that read them."""
    spec = read_spec(save_model(make_model("qwen3"), tmp_path))
    assert (spec.num_query_heads, spec.num_kv_heads) == (4, 2)
    for size, kv_heads in ((2, [(0, 1), (1, 2)]), (4, [(0, 1), (0, 1), (1, 2), (1, 2)])):
        shards = [Shard(rank, size) for rank in range(size)]
        assert [shard.kv_heads(2).ranges[0] for shard in shards] == kv_heads
        local = of_rank(spec, shards[1])
        assert (local.num_query_heads, local.num_kv_heads) == (4 // size, 2 // size or 1)
        assert local.hidden_size == spec.hidden_size and local.vocab_size == spec.vocab_size


def test_torchrun_makes_each_process_a_machine_of_one_rank() -> None:
    started = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}
    assert torchrun_settings(started, 4) == {"nnodes": 4, "node_rank": 3, "first_device": 1}
    assert torchrun_settings({}, 4) == torchrun_settings(started, 1) == {}
    assert torchrun_settings({"TORCHELASTIC_RUN_ID": "x"}, 4) == {}  # inherited, without the rest
    with pytest.raises(ValueError, match=r"parallel.tp: torchrun has started 4 .*--tp 4"):
        torchrun_settings(started, 8)


def test_a_machine_starts_its_ranks_again_and_ends_with_the_first(tmp_path: Path) -> None:
    """The ranks are a program that fails once, and then ends as if it were told to."""
    mark = tmp_path / "mark"
    program = f"import pathlib; p = pathlib.Path({str(mark)!r}); " + (
        "there = p.exists(); p.touch(); raise SystemExit(0 if there else 3)"
    )
    config = EngineConfig(
        parallel=ParallelConfig(tp=2, num_nodes=2, node_rank=1, address="127.0.0.1:1")
    )
    assert run_node(config, command=[sys.executable, "-c", program], log_level="critical") == 0
    assert mark.exists()
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    assert run_node(config, command=command, log_level="critical", max_restarts=0) == 1


def test_a_lost_group_stays_lost() -> None:
    group = Group(0, 2, None, None)  # type: ignore[arg-type]
    group.give_up("rank 1 has ended")
    group.give_up("another reason")
    for call in (lambda: group.all_gather(torch.zeros(1)), lambda: group.send(b"")):
        with pytest.raises(GroupLost, match="2 ranks is lost: rank 1 has ended"):
            call()


@pytest.mark.skipif(compiled().library is None, reason="ranks on a CPU need a C compiler")
def test_one_rank_in_the_order_of_many_is_exact_too(tmp_path: Path) -> None:
    directory = save_model(make_model("llama2", intermediate_size=96), tmp_path)
    engine = build_engine(config_of(directory, 1, exact_across_tp=True))
    assert engine.info.exact and engine.info.num_ranks == 1
    engine.shutdown()
