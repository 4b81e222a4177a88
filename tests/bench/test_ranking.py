"""Rankings differ in nothing else, are compared with plain decoding, and their gain has an interval."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from eyas.cli import main
from eyas.config import CacheConfig, DraftConfig, EngineConfig, ModelConfig, SchedulerConfig
from eyas.draft import TreeDrafter, TreeShape
from eyas.llm import LLM
from eyas.verify.lineup import Stage
from eyas_bench import ranking
from eyas_bench.ranking import NOISE, TOPK, UNFITTED, Setting, gain, measure, rankings

PICKS = ["Specify a random city.", "Name three animals."]


@pytest.fixture
def stage() -> Iterator[Stage]:
    """The built-in model with its head."""
    config = EngineConfig(
        model=ModelConfig(max_model_len=256),
        cache=CacheConfig(num_slots=1200, prefix_cache=False),
        scheduler=SchedulerConfig(max_num_seqs=4),
        draft=DraftConfig(drafter="head", steps=3, topk=2, nodes=8),
    )
    with LLM(config=config) as llm:
        yield Stage(llm)


def test_rankings_share_a_head_and_differ_in_how_they_see_noise(stage: Stage) -> None:
    assert isinstance(stage.built, TreeDrafter)
    drafters = rankings(stage)
    assert list(drafters) == [TOPK, NOISE, UNFITTED]
    assert all(drafter.networks == stage.built.networks for drafter in drafters.values())
    assert all(drafter.shape == stage.built.shape for drafter in drafters.values())
    fitted = ranking.betas(stage.built, [0.6, 1.0])
    assert set(fitted) == {"0.6", "1"} and all(beta > 0 for beta in fitted.values())


def test_every_ranking_gives_plain_decodings_answers(stage: Stage) -> None:
    prompts = [stage.llm.encode_chat([{"role": "user", "content": text}]) for text in PICKS]
    settings = [Setting(1.0, 0.95)]
    shapes = [TreeShape(3, 1, 4), TreeShape(3, 2, 8)]
    said: list[str] = []
    results = measure(
        stage, prompts, settings, shapes, num_seeds=2, max_tokens=24, show_status=said.append
    )
    assert [(entry["shape"], entry["ranking"]) for entry in results] == [
        *(([3, 1, 4], name) for name in (TOPK, NOISE)),
        *(([3, 2, 8], name) for name in (TOPK, NOISE, UNFITTED)),
    ]
    assert all(entry["changed_answers"] == 0 for entry in results)
    assert all(entry["num_answers"] == 4 and entry["tokens_per_step"] > 1 for entry in results)
    assert {entry["num_tokens"] for entry in results} == {results[0]["num_tokens"]}
    assert results[0]["gain"] == {"ratio": 1, "low": 1, "high": 1}
    noise = results[1]
    expected = noise["tokens_per_step"] / results[0]["tokens_per_step"]
    assert noise["gain"]["ratio"] == pytest.approx(expected, abs=2e-3)
    assert said[0] == "temperature 1, top_p 0.95: plain"


def test_a_gain_is_of_all_tokens_and_widens_with_unequal_prompts() -> None:
    base = [(10, 10)] * 20
    assert gain([(10, 5)] * 20, base) == {"ratio": 2, "low": 2, "high": 2}
    mixed = gain([(10, 2)] * 10 + [(10, 10)] * 10, base)
    assert mixed["ratio"] == pytest.approx(200 / 120, abs=1e-3)
    assert mixed["low"] < mixed["ratio"] < mixed["high"]


def test_a_changed_answer_is_counted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ranking._answers

    def lie(*arguments: object) -> object:
        given = answers(*arguments)  # type: ignore[arg-type]
        if arguments[1].name == NOISE:  # type: ignore[attr-defined]
            given[0].token_ids[-1] += 1
        return given

    monkeypatch.setattr(ranking, "_answers", lie)
    shapes = [TreeShape(2, 1, 3)]
    results = measure(
        stage,
        [[5, 9], [7]],
        [Setting(1.0, 1.0)],
        shapes,
        num_seeds=1,
        max_tokens=4,
        show_status=print,
    )
    assert [entry["changed_answers"] for entry in results] == [0, 1]


def test_the_command_writes_a_result_and_shows_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ranking.json"
    with pytest.raises(SystemExit) as left:
        main(
            [
                *("bench", "ranking", "--families", "pick", "--num-prompts", "2"),
                *("--num-seeds", "1", "--temperatures", "1", "--top-p", "1", "--threads", "1"),
                *("--shapes", "2/2/5", "--max-tokens", "12", "-o", str(file)),
            ]
        )
    assert not left.value.code
    result = json.loads(file.read_text())
    assert {"date", "command", "commit", "machine", "model", "settings", "results"} <= set(result)
    assert [entry["ranking"] for entry in result["results"]] == [TOPK, NOISE, UNFITTED]
    assert {entry["families"] for entry in result["results"]} == {"pick"}
    assert "2/2/5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--shapes", "5/4"),
        ("--shapes", "0/1/2"),
        ("--temperatures", "0"),
        ("--temperatures", "warm"),
        ("--top-p", "1.5"),
        ("--families", "verse"),
        ("--families", ""),
    ],
)
def test_what_cannot_be_ranked_is_refused_by_name(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "ranking", option, value])
    assert left.value.code == 2
    assert option in capsys.readouterr().err
