"""The training loop and the command: heads learn, go on after a stop, and refuse what cannot work."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eyas import builtin
from eyas.models import read_spec
from eyas.models.heads import read_head
from eyas.train.head import HeadTraining, train_head
from eyas.train.head.evaluate import PLAIN, SHAPES, TEMPERATURES
from eyas.train.head.export import export_head, head_spec
from eyas.train.head.features import LiveFeatures, write_features
from eyas.train.head.layouts import LAYOUTS
from eyas.train.head.loop import STATE_FILE, Loop
from eyas.train.head.loss import HeadLoss
from eyas.train.head.network import TrainableHead
from eyas.train.head.plot import PLOT_FILE, draw
from eyas.train.head.progress import OnProgress, Progress, Reporter, ignore_progress
from eyas.train.head.target import Target
from tests.train.plots import one_picture
from tests.train.tiny import VOCABULARY, make_spec, make_target, make_texts

__all__ = ["one_picture"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return make_target(tmp_path_factory.mktemp("target"))


def count() -> Callable[[], float]:
    """A clock that goes on by a second whenever it is read."""
    return partial(next, itertools.count(0.0))


def make_loop(
    target: Target,
    output: Path,
    on_progress: OnProgress = ignore_progress,
    clock: Callable[[], float] = time.monotonic,
    **changes: Any,
) -> Loop:
    config = HeadTraining(
        output=output,
        conversations="texts",
        device="cpu",
        ttt_steps=3,
        batch_tokens=256,
        log_every=10,
        eval_every=1000,
        **changes,
    )
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    ids = torch.arange(VOCABULARY)
    head = TrainableHead(make_spec(), target.embedding_VD, None, 3)
    loss = HeadLoss(target.head_rows(ids), ids, config.loss_decay, 3)
    texts = make_texts(8)
    return Loop(
        config,
        head,
        loss,
        LiveFeatures(target, texts),
        LiveFeatures(target, texts),
        Reporter(lambda _: None, on_progress),
        clock,
    )


def test_a_head_learns_a_few_texts_by_heart(target: Target, tmp_path: Path) -> None:
    loop = make_loop(target, tmp_path, epochs=60, learning_rate=5e-3)
    before = loop.evaluate()
    assert loop.train(math.inf)
    after = loop.evaluations[-1]
    assert before is not None
    assert min(after["accuracy"]) > 0.95
    assert after["divergence"][0] < 0.1 * before["divergence"][0]
    assert after["acceptance_length"] > 2.5 > before["acceptance_length"]
    losses = [point["divergence"][0] for point in loop.curve]
    assert losses[-1] < losses[len(losses) // 2] < losses[0]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    target: Target, tmp_path: Path, optimizer: str
) -> None:
    settings: dict[str, Any] = {"epochs": 8, "learning_rate": 1e-3, "optimizer": optimizer}
    straight = make_loop(target, tmp_path / "straight", **settings)
    assert straight.train(math.inf)
    stopped = tmp_path / "stopped"
    places = []
    for _ in range(200):
        loop = make_loop(target, stopped, clock=count(), **settings)
        places.append(loop.step)
        if loop.train(4):
            break
    assert len(set(places)) > 2, "the run was never stopped on the way"
    ends = straight.head.state_dict()
    assert all(torch.equal(ends[n], tensor) for n, tensor in loop.head.state_dict().items())
    curves = [[p["divergence"] for p in each.evaluations] for each in (straight, loop)]
    assert curves[0] == curves[1]


def test_a_directory_of_another_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    config = HeadTraining(output=tmp_path, conversations="builtin:4", device="cpu")
    with pytest.raises(ValueError, match=r"output: .* holds other files"):
        train_head(config)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"conversations": None}, "prompts: there are no texts to train on"),
        ({"conversations": "nowhere.jsonl"}, "conversations: nowhere.jsonl is not a file"),
        ({"taps": (1, 2, 30)}, "taps: 1, 2, 30 do not fit the target's 8 layers"),
        ({"taps": (2, 4, 9)}, "taps: 2, 4, 9 do not fit the target's 8 layers"),
        ({"format": "eagle4"}, "format: must be one of eagle3.1, eagle3"),
        ({"max_steps": 0}, "max_steps: must be at least 1"),
        ({"draft_vocab_size": 5000}, "draft_vocab_size: 5000 is above"),
        ({"num_heads": 5, "num_kv_heads": 2}, "num_heads: 5 query heads cannot share 2"),
        ({"temperatures": (-1.0,)}, "temperatures"),
        ({"thinking": "maybe"}, "thinking: must be one of"),
        ({"ttt_steps": 99}, "ttt_steps"),
        ({"learning_rate": 0.0}, "learning_rate: must be above 0"),
        ({"matrix_rate": -1.0}, "matrix_rate: must be above 0"),
        ({"batch_tokens": 1}, "batch_tokens: must be at least 16"),
        ({"num_heads": 0}, "num_heads: must be at least 1"),
        ({"dtype": "int8"}, "dtype: must be one of auto"),
        ({"optimizer": "sgd"}, "optimizer: must be one of adamw, muon"),
        ({"model": "/no/such/model"}, "neither a directory nor a hub name"),
    ],
)
def test_settings_that_cannot_work_leave_no_trace(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    output = tmp_path / "run"
    config = HeadTraining(output=output, conversations="builtin:4", device="cpu")
    with pytest.raises(ValueError, match=said):
        train_head(replace(config, **changes))
    assert not output.exists()


def test_the_builtin_model_gets_a_head_in_every_format_that_can_hold_it(tmp_path: Path) -> None:
    output = tmp_path / "run"
    config = HeadTraining(
        output=output,
        prompts="builtin:2",
        conversations="builtin:6",
        max_tokens=8,
        max_num_seqs=4,
        max_length=512,
        num_heads=2,
        num_kv_heads=1,
        intermediate_size=64,
        ttt_steps=2,
        batch_tokens=1024,
        epochs=1,
        heldout_share=0.2,
        device="cpu",
        dtype="float32",
        evaluate=False,
    )
    lines: list[str] = []
    assert train_head(replace(config, stop_after=1e-9), lines.append) is None
    assert "continue" in lines[-1]
    with pytest.raises(ValueError, match="answers of a run with max_tokens 8, not 9"):
        train_head(replace(config, max_tokens=9), lines.append)
    assert train_head(config, lines.append) == output
    for name in ("specforge", "speculators"):
        weights = load_file(output / name / "model.safetensors")
        assert weights["d2t"].dtype == torch.int64 and len(weights["d2t"]) == 2048
    record = json.loads((output / "training.json").read_text())
    assert record["evaluations"][-1]["acceptance_length"] >= 1
    config_file = json.loads((output / "specforge" / "config.json").read_text())
    assert set(config_file["eyas"]["noise_beta"]) == {"0.6", "1.0"}
    assert not (output / STATE_FILE).exists()
    assert record["settings"]["optimizer"] == "muon"
    report = json.loads((output / "report.json").read_text())
    assert report["heads"]["specforge"]["num_bytes"] < 5_000_000
    assert report["data"]["texts"] + report["data"]["heldout_texts"] == 8
    assert (output / PLOT_FILE).stat().st_size > 1000
    written = (output / "specforge" / "model.safetensors").stat().st_mtime_ns
    assert train_head(config, lines.append) == output
    assert "done" in lines[-1], "a run with a report is done"
    assert (output / "specforge" / "model.safetensors").stat().st_mtime_ns == written


@pytest.mark.parametrize("phase", ["export_head", "evaluate_in_engine"])
def test_a_run_that_is_stopped_after_its_training_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    config = HeadTraining(
        output=tmp_path / "run",
        conversations="builtin:5",
        max_length=128,
        num_heads=2,
        num_kv_heads=1,
        intermediate_size=64,
        ttt_steps=2,
        batch_tokens=512,
        epochs=1,
        heldout_share=0.2,
        max_tokens=4,
        device="cpu",
    )

    def fail(*arguments: Any) -> None:
        raise RuntimeError("the power went")

    lines: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(f"eyas.train.head.run.{phase}", fail)
        with pytest.raises(RuntimeError, match="the power went"):
            train_head(config, lines.append)
    assert any(line.startswith("step ") for line in lines)
    steps = json.loads((config.output / "training.json").read_text())["steps"]
    lines.clear()
    assert train_head(config, lines.append) == config.output
    assert not any(line.startswith("step ") for line in lines)
    assert json.loads((config.output / "training.json").read_text())["steps"] == steps
    report = json.loads((config.output / "report.json").read_text())
    assert [(r["shape"], r["temperature"]) for r in report["engine"]] == [
        (shape, temperature) for shape in (PLAIN, *SHAPES) for temperature in TEMPERATURES
    ]
    assert all(r["tokens_per_step"] >= 1 for r in report["engine"])
    plain = report["engine"][: len(TEMPERATURES)]
    assert all(r["tokens_per_step"] == 1 and r["num_steps"] == r["num_tokens"] for r in plain)


@pytest.mark.parametrize(
    ("format_name", "layouts"),
    [("eagle3", set(LAYOUTS)), ("eagle3.1", {"specforge", "speculators"})],
)
def test_a_head_of_eagle_3_is_written_in_all_three_layouts(
    tmp_path: Path, format_name: Any, layouts: set[str]
) -> None:
    config = HeadTraining(output=tmp_path, format=format_name)
    target = read_spec(builtin.path())
    spec = head_spec(config, target)
    head = TrainableHead(spec, torch.zeros(spec.vocab_size, spec.hidden_size), None, 2)
    ids = torch.arange(spec.draft_vocab_size)
    places = export_head(tmp_path, spec, head.state_dict(), ids, {0.6: 0.8}, "Some/Model")
    assert set(places) == layouts
    speculators = json.loads((places["speculators"] / "config.json").read_text())
    assert speculators["speculators_config"]["verifier"]["name_or_path"] == "Some/Model"
    for place in places.values():
        read = read_head(place, target, target_directory=builtin.path())
        assert (read.fc_norm, read.norm_output, read.taps) == (
            spec.fc_norm,
            spec.norm_output,
            spec.taps,
        )
        assert read.fc_norm == read.norm_output == (format_name == "eagle3.1")
        assert read.calibration == {0.6: 0.8}


def test_a_training_that_diverges_says_which_rate_to_lower(target: Target, tmp_path: Path) -> None:
    loop = make_loop(target, tmp_path, epochs=40, optimizer="adamw", learning_rate=1e30)
    with pytest.raises(ValueError, match=r"learning_rate: the training diverged before step 10"):
        loop.train(math.inf)


@pytest.mark.parametrize("seconds", [None, 1e9])
def test_steps_can_bound_a_training(target: Target, tmp_path: Path, seconds: float | None) -> None:
    loop = make_loop(target, tmp_path, epochs=400, max_steps=7, train_seconds=seconds)
    assert loop.train(math.inf)
    assert loop.step == 7
    assert [point["step"] for point in loop.curve] == [7]
    assert loop.curve[-1]["rate"] < 0.1, "the rate falls to nothing by the last step"


def test_a_watcher_that_raises_ends_a_training_whose_state_is_kept(
    target: Target, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"epochs": 400, "max_steps": 9}
    straight = make_loop(target, tmp_path / "straight", **settings)
    assert straight.train(math.inf)
    watched: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        watched.append(progress)
        if len(watched) == 4:
            raise InterruptedError

    stopped = make_loop(target, tmp_path / "stopped", on_progress=on_progress, **settings)
    with pytest.raises(InterruptedError):
        stopped.train(math.inf)
    again = make_loop(target, tmp_path / "stopped", on_progress=watched.append, **settings)
    assert again.step == 4
    assert again.train(math.inf)
    assert [(p.phase, p.done, p.total) for p in watched] == [
        ("training", step / 9, 1) for step in range(1, 10)
    ]
    assert "loss" in watched[-1].note and "acceptance length" in watched[-1].note
    ends = straight.head.state_dict()
    assert all(torch.equal(ends[name], value) for name, value in again.head.state_dict().items())


def test_a_curve_of_one_point_is_visible() -> None:
    point = {"step": 3, "divergence": [0.5, 0.6], "acceptance_length": 1.5}
    many = [{**point, "step": step} for step in range(500)]
    for axes in draw([point], [point]).axes:
        assert [line.get_marker() for line in axes.lines] == ["o", "o"]
    for axes in draw(many, []).axes:
        assert [line.get_marker() for line in axes.lines] == [""]


def test_the_targets_logits_are_of_any_number_of_rows(target: Target) -> None:
    hidden = torch.randn(5, 64)
    logits = target.logits(hidden)
    assert logits.shape == (5, VOCABULARY)
    assert target.logits(hidden[:0]).shape == (0, VOCABULARY)
    assert target.choices(hidden[:0]).shape == (0,)
    assert torch.equal(target.choices(hidden), logits.argmax(-1))


@pytest.mark.parametrize("harm", ["truncated", "missing", "none"])
def test_features_that_were_harmed_are_computed_anew(
    target: Target, tmp_path: Path, harm: str
) -> None:
    texts = make_texts(3)
    made: list[str] = []

    def write() -> bool:
        return write_features(
            target,
            texts,
            tmp_path,
            shard_bytes=1 << 20,
            batch_places=256,
            reporter=Reporter(made.append),
            deadline=1e18,
            stamp="stamp",
        )

    assert write()
    (shard,) = tmp_path.glob("*.safetensors")
    content = shard.read_bytes()
    if harm == "truncated":
        shard.write_bytes(content[:100])
    elif harm == "missing":
        shard.unlink()
    made.clear()
    assert write()
    assert bool(made) == (harm != "none")
    assert shard.read_bytes() == content
