"""The peers' protocol: what is counted between its marks, its command, and the profile of a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eyas import kernels
from eyas.cli import main
from eyas.core import Delta, Usage
from eyas.draft import RootDrafter
from eyas.engine.metrics import Metrics
from eyas_bench import together
from eyas_bench.step_profile import (
    OTHERS,
    OWN_FILES,
    KernelRun,
    busy_seconds,
    kind_of,
    own_kernels,
    profile_steps,
    summarise,
)
from eyas_bench.together import TogetherRun, repeat, requests, run_together, step_rows

from .test_synthetic import make_engine

TINY = ("bench", "decode", "--shape", "tiny", "--dummy-weights", "--threads", "1", "--batch", "1,2")
SHORT = ("--prompt-tokens", "8", "--max-tokens", "16", "--repeats", "2", "--device", "cpu")


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(status, standard output, standard error)."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    told = capsys.readouterr()
    return int(left.value.code or 0), told.out, told.err


class Scripted:
    """An engine that delivers what it was told to, a second a step."""

    def __init__(self, steps: list[list[Delta]], clock: list[float]) -> None:
        self.drafter = RootDrafter()
        self.metrics = Metrics()
        self._steps, self._clock = steps[::-1], clock

    def add(self, request: Any) -> None:
        self._clock[0] += 0.25

    def step(self) -> list[Delta]:
        self._clock[0] += 1
        return self._steps.pop()

    def has_work(self) -> bool:
        return bool(self._steps)


def test_the_clock_runs_from_the_last_first_token_to_the_last_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(together.time, "perf_counter", lambda: clock[0])

    def usage(num_tokens: int, num_steps: int) -> Usage:
        return Usage(num_output_tokens=num_tokens, num_steps=num_steps)

    steps = [
        [],
        [Delta(request_id="x-0", token_ids=[1])],
        [Delta(request_id="x-0", token_ids=[1, 2]), Delta(request_id="x-1", token_ids=[1, 2])],
        [Delta(request_id="x-0", token_ids=[1, 2, 3], finish_reason="length", usage=usage(6, 3))],
        [],
        [Delta(request_id="x-1", token_ids=[1] * 4, finish_reason="length", usage=usage(6, 2))],
        [],
    ]
    engine: Any = Scripted(steps, clock)
    run = run_together(engine, requests([[1], [2]], 6, 0.0, "x"))
    assert run.first_seconds == 3.5 and run.seconds == 3
    assert (run.num_tokens, run.num_steps) == (7, 3), "what came after both had begun"
    assert run.num_output_tokens == 12 and run.speed == pytest.approx(7 / 3)
    assert (run.later_tokens, run.later_steps) == (5 + 4, 2 + 1)
    assert run.tokens_per_step == 3
    assert not engine.has_work(), "what is under way is landed"
    assert "learn" not in vars(engine.drafter)


def test_plain_decoding_counts_all_but_the_first_tokens() -> None:
    engine = make_engine(1, 1, 2, drafter="root")
    run = run_together(engine, requests([[5, 6, 7]] * 4, 20, 0.0, "a"))
    assert run.num_output_tokens == 80
    assert run.num_tokens == 80 - 4 and run.num_steps == 19, "(tokens - batch) / (t_n - t_1)"
    assert run.tokens_per_step == 1 and run.summary()["tokens_per_draft"] is None
    told: list[int] = []
    runs = repeat(engine, [[1, 2]], max_tokens=4, temperature=0.0, repeats=2, on_round=told.append)
    assert [one.num_tokens for one in runs] == [3, 3] and told == [-1, 0, 1, 2]
    engine.check()
    engine.shutdown()


def test_a_failed_step_fails_the_measurement() -> None:
    engine = make_engine(2, 1, 3)
    propose, calls = engine.drafter.propose, []

    def broken(batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == 3:
            raise RuntimeError("out of luck")
        return propose(batch)

    engine.drafter.propose = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a step failed during the measurement"):
        run_together(engine, requests([[5, 6, 7]], 20, 0.0, "a"))
    engine.shutdown()


def test_rows_of_a_step_take_prompts_and_trees() -> None:
    assert step_rows(1, 128, 6) == 512
    assert step_rows(32, 128, 6) == 32 * 134
    assert step_rows(64, 4096, 6) == 8192
    assert step_rows(256, 8, 64) == -(-4 * 256 * 64 // 3), "three quarters of it are 256 trees"


def test_the_best_run_is_told_and_every_other_one() -> None:
    runs = [TogetherRun(seconds=s, num_tokens=10, num_steps=5) for s in (2.0, 1.0, 4.0)]
    found = together.summarise(runs)
    assert found["tokens_per_second"] == 10 and found["step_ms"] == 200
    assert [run["tokens_per_second"] for run in found["runs"]] == [5, 10, 2.5]


def test_kernels_have_kinds_by_name() -> None:
    assert kind_of("attend_splits_kernel") == kind_of("merge_splits_kernel") == "attention"
    assert kind_of("nvjet_tst_64x8_64x16_4x1_v_bz_TNT") == "GEMMs"
    assert kind_of("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16>") == "GEMMs"
    assert kind_of("void cublasLt::splitKreduce_kernel<32, 16>") == "GEMMs"
    assert kind_of("void flash_fwd_kernel<Flash_traits>") == "attention"
    assert kind_of("aten::_scaled_dot_product_flash_attention") == "attention"
    assert kind_of("Memcpy DtoH (Device -> Pinned)") == "copies"
    assert kind_of("void at::native::vectorized_elementwise_kernel<4>") == OTHERS


def test_own_kernels_have_the_kinds_of_their_files() -> None:
    own = own_kernels()
    assert set(OWN_FILES) <= {file.stem for file in Path(kernels.__file__).parent.glob("*.py")}
    for name, file in own.items():
        assert kind_of(name) == OWN_FILES.get(file, OTHERS)
    assert kind_of("product_kernel") == kind_of("grouped_product_kernel") == "GEMMs"
    assert kind_of("_walk_kernel") == "sampling, verify"
    assert kind_of("add_norm_kernel") == OTHERS
    found = {kind_of(name) for name in own}
    assert {"GEMMs", "attention", "draft trees", "sampling, verify", OTHERS} <= found


def test_busy_time_counts_once_what_overlaps() -> None:
    times = {"a": (0.0, 2.0), "b": (1.0, 0.5), "c": (1.5, 1.0), "d": (5.0, 1.0)}
    ran = [KernelRun(name, *time) for name, time in times.items()]
    assert busy_seconds(ran) == pytest.approx(3.5)
    assert busy_seconds([]) == 0
    found = summarise(ran, {"draft": 1.0, "forward": 0.0}, 3.5, 4.0, 2)
    assert found["gaps_ms"] == 500 and found["kernels_per_step"] == 2
    assert found["parts"] == {"draft": 500}
    assert found["kinds"][OTHERS] == {"ms": 2250, "kernels": 2}


def test_a_profile_leaves_the_engine_as_it_was() -> None:
    engine = make_engine(2, 1, 3)
    found = profile_steps(engine, requests([[1, 2], [3]], 200, 0.0, "a"))
    assert found["step_ms"] > 0 and found["kernels_per_step"] > 10
    assert found["kinds"]["GEMMs"]["ms"] > 0
    assert found["parts"]["draft"] > 0
    assert not engine.has_work() and "propose" not in vars(engine.drafter)
    engine.check()
    with pytest.raises(ValueError, match=r"--profile: answers end before .* --max-tokens"):
        profile_steps(engine, requests([[1, 2]], 10, 0.0, "b"))
    assert not engine.has_work()
    engine.check()
    engine.shutdown()


def test_the_command_runs_the_protocol(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    drafting = ("--drafter", "eagle3", "--draft-steps", "3", "--draft-topk", "1")
    accepted = ("--synthetic-acceptance", "2.5", "--json", "-o", str(file))
    status, out, _ = run_command(capsys, *TINY, *SHORT, *drafting, *accepted)
    assert status == 0
    result = json.loads(file.read_text())
    assert json.loads(out.splitlines()[-1]) == result
    assert [entry["batch"] for entry in result["results"]] == [1, 2]
    for entry in result["results"]:
        assert len(entry["runs"]) == 2 and entry["drafter"] == "head"
        best = max(run["tokens_per_second"] for run in entry["runs"])
        assert entry["tokens_per_second"] == best
        assert entry["synthetic_acceptance"] == 2.5 and 1.5 < entry["tokens_per_step"] < 3.5
    assert result["settings"]["acceptance"] == "synthetic acceptance"
    status, out, _ = run_command(
        capsys, *TINY, *SHORT, *drafting, *accepted[:3], "--synthetic-alike"
    )
    assert json.loads(out)["settings"]["acceptance"] == "synthetic acceptance, all sequences alike"
    assert result["settings"]["drafting"]["draft_nodes"] == "4"
    assert result["model"]["weights"] == "dummy"


def test_the_command_names_what_it_drew_and_what_a_step_is_made_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    drafting = ("--drafter", "eagle3", "--draft-topk", "2", "--draft-nodes", "6", "--profile")
    long = ("--max-model-len", "250")
    status, out, _ = run_command(
        capsys, *TINY[:-1], "1", *SHORT, *drafting, *long, "--synthetic-acceptance", "2"
    )
    assert status == 0
    assert "synthetic" in out and "gaps" in out and "GEMMs" in out
    status, out, _ = run_command(capsys, *TINY, *SHORT, "--temperature", "1")
    assert status == 0 and "plain" in out and "synthetic" not in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--shape", "tiny"), "--shape: a shape has no weights; add --dummy-weights"),
        (("--dummy-weights",), "--dummy-weights: needs --shape"),
        (("--synthetic-acceptance", "2"), "--synthetic-acceptance: needs --shape"),
        (("--profile",), "--profile: needs --shape"),
        (("--shape", "x", "--dummy-weights"), "--shape: 'x' is unknown; there are llama-3.1-8b"),
        ((*TINY[2:], "--synthetic-acceptance", "2"), "needs a drafter; add --drafter eagle3"),
        ((*TINY[2:], "--synthetic-alike"), "--synthetic-alike: needs --synthetic-acceptance"),
        (
            (*TINY[2:], "--synthetic-acceptance", "9", "--drafter", "eagle3"),
            "--synthetic-acceptance: between 1 and 6 tokens",
        ),
        ((*TINY[2:], "--drafter", "model", "--draft-model", "y"), "no draft model; use head"),
        ((*TINY[2:], "--drafter", "head", "--draft-nodes", "z"), "--draft-nodes: a whole number"),
        ((*TINY[2:], "--max-model-len", "100"), "--max-model-len: 100 is less than prompt and"),
        ((*TINY[2:], "--max-tokens", "1"), "--max-tokens: at least 2"),
        ((*TINY[2:], "--refill"), "--refill: is not supported with --shape"),
        ((*TINY[2:], "--num-prompts", "3"), "--num-prompts: is not supported with --shape"),
        ((*TINY[2:], "--batch", "0"), "--batch: whole numbers from 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run_command(capsys, "bench", "decode", *arguments)
    assert status == 2
    assert text in err
