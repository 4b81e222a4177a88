"""One command judges a model: it holds for every family, with and without a head, and sees faults."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from eyas.cli import main
from eyas.config import DraftConfig, EngineConfig, ModelConfig, SchedulerConfig
from eyas.core import TokenLogprob
from eyas.models import cpu_has_bfloat16
from eyas.outputs import Choice
from eyas.verify.law import Answers, count_acceptance, judge
from eyas.verify.parity import check_parity, lacks_room
from eyas.verify.report import VerifyPlan, choose_drafting, verify
from tests.models.tiny import make_model, save_model
from tests.models.tiny_heads import make_head, make_mtp, save_target, write_mtp, write_speculators
from tests.thorough import only_thorough

QUICK: dict[str, Any] = {"num_prompts": 2, "max_tokens": 6, "repeats": 1}


LINEUPS = ("plain", "chain", "tree")


def plan(directory: Path | str, draft: DraftConfig | None = None, **facts: Any) -> VerifyPlan:
    config = EngineConfig(
        model=ModelConfig(path=str(directory), max_model_len=256),
        scheduler=SchedulerConfig(max_num_seqs=2),
        draft=draft or DraftConfig(steps=2, topk=2, nodes=6),
    )
    return VerifyPlan(config, **{**QUICK, **facts})


def run(*arguments: Any, **facts: Any) -> dict[str, Any]:
    report = verify(plan(*arguments, **facts), lambda text: None)
    json.dumps(report)
    return report


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {name: part["status"] for name, part in report["parts"].items()}


@pytest.mark.parametrize("family", ["qwen3", *only_thorough("mistral", "llama3.1", "qwen2")])
def test_a_checkpoint_without_tokenizer_or_head_is_verified(family: str, tmp_path: Path) -> None:
    directory = save_model(make_model(family), tmp_path / "model")
    before = sorted(tmp_path.rglob("*"))
    report = run(directory)
    assert report["passed"], report["parts"]
    assert set(statuses(report).values()) == {"pass"}
    assert report["prompts"]["source"].startswith("random token ids")
    assert report["model"]["name"] == "model"
    assert report["drafting"]["drafter"] == "model" and "itself" in report["drafting"]["note"]
    assert report["parts"]["parity"]["float32"]["max_logprob_difference"] < 1e-4
    if cpu_has_bfloat16():
        assert report["parts"]["parity"]["bfloat16"]["num_positions"] > 30
    cases = report["parts"]["law"]["cases"]
    drafted = {name: [c["num_drafted"] for c in cases if c["lineup"] == name] for name in LINEUPS}
    assert drafted["plain"] == [0, 0, 0]
    assert min(drafted["chain"]) > 0 and min(drafted["tree"]) > max(drafted["chain"])
    chain = next(case for case in cases if case["lineup"] == "chain")
    assert chain["same_bits"] and chain["num_accepted"] > 0
    assert sorted(tmp_path.rglob("*")) == before


def test_a_head_from_elsewhere_is_verified(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target")
    head = write_speculators(tmp_path / "head", make_head())
    report = run(target, head=str(head), with_parity=False)
    assert report["passed"], report["parts"]
    assert report["drafting"]["drafter"] == "head" and not report["drafting"]["note"]
    assert report["drafting"]["lineups"] == [
        "plain",
        "chain",
        "tree",
        "auto",
        "ngram",
        "ngram+head",
    ]
    assert report["parts"]["parity"] == {"status": "skipped", "text": "was not asked for"}
    rows = report["parts"]["acceptance"]["rows"]
    assert {row["temperature"] for row in rows} == {0.0, 1.0}
    assert [entry["batch"] for entry in report["parts"]["speed"]["results"]] == [1, 4]


def test_an_mtp_layer_is_found_and_a_family_that_transformers_lacks_is_told(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target", "qwen2", head_dim=16, num_key_value_heads=2)
    layer = make_mtp(embedding_first=False, bias=True)
    del layer.tensors["layers.0.self_attn.o_proj.bias"]
    write_mtp(target, layer)
    values = json.loads((target / "config.json").read_text())
    values |= {"architectures": ["MiMoForCausalLM"], "model_type": "mimo"}
    (target / "config.json").write_text(json.dumps(values))
    report = run(target, num_prompts=1)
    assert report["passed"] and report["drafting"]["drafter"] == "head"
    assert statuses(report)["parity"] == "skipped"
    assert "transformers" in report["parts"]["parity"]["text"]


def test_prompt_lookup_stands_in_where_nothing_else_drafts(tmp_path: Path) -> None:
    directory = save_model(make_model("llama2"), tmp_path / "model")
    entries = [{"prompt": [5, 6, 7, 8] * 6}, {"prompt": [9]}, {"prompt": [1, 2]}]
    draft = DraftConfig(drafter="ngram", nodes=4)
    report = run(directory, draft, entries=entries, with_parity=False)
    assert report["passed"]
    assert report["drafting"]["lineups"] == ["plain", "ngram", "auto"]
    assert report["prompts"] == {"source": "token ids of a file", "num_tokens": [24, 1]}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"head": "builtin", "draft": DraftConfig(model="builtin", nodes=4)},
            "--head: a draft model",
        ),
        ({"draft": DraftConfig()}, "draft.nodes"),
        ({"head": "nowhere/at/all"}, "nowhere"),
        ({"entries": [{"prompt": "a text"}]}, "--prompts-file: .* no tokenizer"),
        ({"entries": [{"prompt": [999]}]}, "prompt 1: .* from 0 to 255"),
        ({"entries": [{"prompt": [1] * 252}]}, "prompt 1 has 252 tokens"),
    ],
)
def test_what_cannot_be_verified_says_so(facts: dict[str, Any], words: str, tmp_path: Path) -> None:
    directory = save_model(make_model("llama2"), tmp_path / "model")
    with pytest.raises(ValueError, match=words):
        run(directory, **facts)


def test_a_head_that_does_not_fit_is_refused_in_the_users_words(tmp_path: Path) -> None:
    target = save_target(tmp_path / "target")
    with pytest.raises(ValueError, match=r"--head: .* not a draft head"):
        choose_drafting(plan(target, head=str(target)), target)


def choice(tokens: list[int], logprob: float = -1.0, reason: Any = "length") -> Choice:
    scored = [TokenLogprob(token, logprob, []) for token in tokens]
    return Choice(0, token_ids=tokens, logprobs=scored, finish_reason=reason)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (choice([1, 2, 4]), "token 3 is 4, not 3"),
        (choice([1, 2]), "2 tokens, not 3"),
        (choice([1, 2, 3], reason="stop"), "ended by stop, not length"),
        (choice([1, 2, 3], -1.25), "differ by up to 2.5e-01"),
    ],
)
def test_the_law_sees_every_difference(other: Choice, words: str) -> None:
    right = Answers([choice([1, 2, 3])], [], 0)
    found = judge({("plain", 0.0): right, ("chain", 0.0): Answers([other], [], 0)}, to_the_bit=True)
    assert found["status"] == "fail"
    assert found["text"].startswith("chain at temperature 0, prompt 1 alone: ")
    assert words in found["text"]


def test_elsewhere_than_on_the_cpu_bits_may_differ_but_are_told() -> None:
    right = Answers([choice([1, 2, 3])], [], 0)
    close = Answers([choice([1, 2, 3])], [choice([1, 2, 3], -1.125)], 0)
    found = judge({("plain", 0.0): right, ("chain", 0.0): close}, to_the_bit=False)
    assert found["status"] == "pass" and "1.2e-01" in found["text"]
    broken = Answers([choice([1, 2, 3])], [], 2)
    found = judge({("plain", 0.0): right, ("chain", 0.0): broken}, to_the_bit=False)
    assert found["status"] == "fail" and "2 steps failed" in found["text"]
    assert count_acceptance({("plain", 0.0): right})["status"] == "skipped"


def test_plain_decoding_that_drafts_is_no_plain_decoding() -> None:
    drafted = choice([1, 2, 3])
    drafted.usage.num_draft_tokens = 2
    found = judge({("plain", 0.0): Answers([drafted], [], 0)}, to_the_bit=True)
    assert found["status"] == "fail" and "plain: 2 tokens were drafted" in found["text"]


def test_parity_sees_other_weights_and_tells_when_there_is_no_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = save_model(make_model("llama2", seed=3), tmp_path / "model")
    entries = [TokenLogprob(7, -3.0, [(9, -1.0), (7, -3.0)])]
    found = check_parity(directory, [[1, 7]], "cpu", {"float32": [entries]})
    assert found["status"] == "fail"
    monkeypatch.setitem(sys.modules, "transformers", None)
    found = check_parity(directory, [[1, 7]], "cpu", {"float32": [entries]})
    assert found["status"] == "skipped" and "eyas[compare]" in found["text"]
    assert lacks_room(1000, "cpu") is None
    assert "GiB" in str(lacks_room(10**14, "cpu"))


def test_the_command_reports_on_the_builtin_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    status = eyas(
        *("--max-tokens", "6", "--num-prompts", "1", "--repeats", "1", "--draft-steps", "2"),
        *("--draft-nodes", "6", "--threads", "1", "--output", str(file)),
    )
    printed = capsys.readouterr()
    assert status == 0, printed
    for words in (
        "same tokens with drafts",
        "parity with transformers",
        "accepted by depth",
        "of plain",
    ):
        assert words in printed.out
    report = json.loads(file.read_text())
    assert {"date", "command", "commit", "machine", "passed"} <= report.keys()
    assert report["prompts"]["source"] == "conversations"


def test_a_part_that_fails_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {name: {"status": "pass", "text": "good"} for name in ("exactness", "parity")}
    parts["law"] = {"status": "fail", "text": "chain at temperature 0: token 3 is 4, not 3"}
    parts["acceptance"] = {"status": "pass", "text": "", "rows": []}
    parts["speed"] = {"status": "pass", "text": "", "results": []}
    report = {
        "model": {
            **dict.fromkeys(("name", "architecture", "dtype", "device"), "some"),
            "parameters": 1,
        },
        "drafting": {"drafter": "head", "note": ""},
        "prompts": {"source": "conversations", "num_tokens": [3]},
        "parts": parts,
        "passed": False,
    }
    monkeypatch.setattr("eyas.verify.report.verify", lambda plan, say: report)
    assert eyas("builtin") == 1
    printed = capsys.readouterr()
    assert "token 3 is 4" in printed.out
    assert "check failed: same tokens with drafts" in printed.err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nowhere"], "nowhere"),
        (["--prompts-file", "no/such/file"], "--prompts-file"),
        (["--draft-nodes", "1"], "--draft-nodes"),
        (["--head", "nowhere"], "nowhere"),
    ],
)
def test_what_a_user_can_put_right_is_one_clear_line(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert eyas(*arguments) == 2
    printed = capsys.readouterr()
    assert len(printed.err.strip().splitlines()) == 1
    assert word in printed.err


def eyas(*arguments: str) -> int:
    """The exit status of `eyas verify` in this process."""
    with pytest.raises(SystemExit) as left:
        main(["verify", *arguments])
    return int(left.value.code or 0)
