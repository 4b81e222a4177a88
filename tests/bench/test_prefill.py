"""Long prompts: how operations are counted, what is timed, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eyas.cli.options import engine_config
from eyas.engine.engine import Engine
from eyas.models import num_parameters
from eyas_bench import prefill
from eyas_bench.prefill import (
    Interference,
    interfere,
    longest,
    num_chunks,
    operations,
    summarise_interference,
    summarise_prompts,
    time_prompts,
)
from eyas_bench.shape import dummy_engine
from eyas_bench.shapes import SHAPES

from .test_together import run_command

TINY = ("bench", "decode", "--shape", "tiny", "--dummy-weights", "--threads", "1")
SHORT = ("--repeats", "2", "--device", "cpu", "--prompt-tokens", "8")


def make_engine(max_batch_tokens: int = 64) -> Engine:
    config = engine_config(
        model="tiny",
        drafter="root",
        device="cpu",
        threads=1,
        max_model_len=300,
        max_num_seqs=3,
        max_batch_tokens=max_batch_tokens,
        prefix_cache=False,
    )
    return dummy_engine("tiny", config)


def test_operations_are_those_of_products_attention_and_one_row() -> None:
    """Without those that the last layer leaves out."""
    spec = SHAPES["qwen3-8b"].model
    embeddings = 2 * spec.vocab_size * spec.hidden_size
    left_out = 4096 * 4096 + 3 * 4096 * 12288
    products = 2 * (num_parameters(spec) - embeddings - left_out) * 8192
    attention = 4 * 8192**2 / 2 * 4096 * 35
    assert operations(spec, 8192) == pytest.approx(products + attention + embeddings, rel=1e-4)
    assert operations(spec, 8192) / 1e12 == pytest.approx(130.2, rel=0.01)


def test_chunks_of_a_prompt() -> None:
    assert [num_chunks(n, 512) for n in (1, 511, 512, 513, 8192)] == [1, 1, 1, 2, 16]


def test_room_is_for_the_prompt_and_for_the_others_meanwhile() -> None:
    assert longest(8192, 128, 0, 8192, 1) == 8192 + 32
    assert longest(10, 128, 4, 64, 6) > 128 + 6 * prefill.CALM_STEPS
    with pytest.raises(ValueError, match="--max-batch-tokens: 64 rows leave too few"):
        longest(10, 128, 8, 64, 6)


def test_every_prompt_is_stored_whole() -> None:
    engine = make_engine()
    told: list[int] = []
    seconds = time_prompts(engine, 200, 3, told.append)
    assert told == [-1, 0, 1, 2, 3] and len(seconds) == 3 and min(seconds) > 0
    assert engine.metrics.num_prompt_tokens == 5 * 199, "all but the root, nothing kept"
    engine.check()
    found = summarise_prompts(seconds, SHAPES["tiny"].model, 200, 64)
    assert found["chunks"] == 4 and len(found["runs_ms"]) == 3
    assert found["best_ms"] <= found["first_token_ms"]
    assert found["tflops"] <= found["best_tflops"]
    engine.shutdown()


def test_gaps_are_heard_while_a_prompt_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "CALM_STEPS", 10)
    engine = make_engine()
    found = interfere(engine, 2, 8, 200, 2)
    assert len(found.calm) == 2 * 2 * 10 and len(found.first_tokens) == 2
    assert len(found.during) >= 2 * 2 * 4, "four chunks, two sequences, two rounds"
    assert not engine.has_work()
    engine.check()
    engine.shutdown()


def test_the_bound_is_a_calm_gap_and_a_chunk() -> None:
    gaps = Interference([0.004] * 99 + [0.008], [0.02] * 100, [0.3])
    found = summarise_interference(gaps, 16, {"first_token_ms": 240.0, "chunks": 4})
    assert found["gap_ms"]["calm"] == {"num": 100, "max": 8.0, "p50": 4.0, "p99": 4.0}
    assert found["chunk_ms"] == 60 and found["bound_ms"] == 64
    assert found["p99_over_bound"] == pytest.approx(20 / 64, abs=1e-4)


def test_an_answer_that_ends_too_soon_is_said() -> None:
    engine = make_engine(max_batch_tokens=512)
    with pytest.raises(RuntimeError, match="an answer ended too soon: length"):
        interfere(engine, 2, 280, 200, 1)
    assert not engine.has_work()
    engine.shutdown()


def test_the_command_tells_speed_and_interference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "CALM_STEPS", 10)
    file = tmp_path / "result.json"
    asked = (*TINY, *SHORT, "--prefill", "150", "--max-batch-tokens", "100")
    drafting = ("--drafter", "eagle3", "--draft-topk", "1", "--synthetic-acceptance", "2.5")
    status, out, _ = run_command(
        capsys, *asked, "--interfere", "2", *drafting, "--json", "-o", str(file)
    )
    assert status == 0
    result = json.loads(file.read_text())
    assert json.loads(out.splitlines()[-1]) == result
    entry = result["results"][0]
    assert entry["chunks"] == 2 and entry["tflops"] >= 0
    assert entry["interference"]["sequences"] == 2
    assert result["settings"]["acceptance"] == "synthetic acceptance"
    status, out, _ = run_command(capsys, *asked)
    assert status == 0 and "TFLOP/s" in out and "running sequences" not in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--interfere", "4"), "--interfere: add --prefill"),
        (("--prefill", "9", "--profile"), "--prefill: cannot be combined with --profile"),
        (
            ("--prefill", "600", "--max-model-len", "500"),
            "--prefill: must be less than the context length of 500",
        ),
        (("--prefill", "9", "--interfere", "40", "--max-batch-tokens", "64"), "too few"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run_command(capsys, *TINY, *SHORT, *arguments)
    assert status == 2
    assert text in err


@pytest.mark.parametrize("option", [("--schemas", "."), ("--prefill", "9"), ("--interfere", "2")])
def test_a_shape_is_needed(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run_command(capsys, "bench", "decode", *option)
    assert status == 2
    assert f"{option[0]}: needs --shape" in err
