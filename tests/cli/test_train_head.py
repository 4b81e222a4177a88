"""`eyas train head` as a researcher with a small file of prompts meets it."""

from __future__ import annotations

import io
import json
import signal
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from huggingface_hub import ModelCard
from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import TextColumn

from eyas import builtin
from eyas.cli import train_head
from eyas.cli.watching import RunDisplay
from eyas.models import read_spec
from eyas.models.heads import read_head
from eyas.train.head import HeadTraining, Progress
from eyas.train.head.card import card
from eyas.train.head.demo import DEMO_SETTINGS
from eyas.train.head.plot import PLOT_FILE
from tests.cli.test_commands import assert_one_clear_line, eyas, ok
from tests.thorough import only_thorough
from tests.train.plots import one_picture

__all__ = ["one_picture"]

QUESTIONS = [
    "What is the capital of France?",
    "Add 12 and 30.",
    "Say hello.",
    "Is the sky blue?",
    "List three colours.",
    "What is 7 times 8?",
    "Write a short story about a fox.",
    "Count from 1 to 5.",
]
SMALL = (
    *("--device", "cpu", "--max-steps", "2", "--max-tokens", "8", "--ttt-steps", "6"),
    *("--batch-tokens", "512", "--num-heads", "2", "--num-kv-heads", "1"),
    *("--intermediate-size", "64", "--draft-vocab-size", "600", "--optimizer", "adamw"),
)


def test_the_help_gives_the_defaults_of_the_settings() -> None:
    """The command does not import the settings, which would import torch."""
    hints = get_type_hints(train_head.head, include_extras=True)
    constants = [
        field
        for field in fields(HeadTraining)
        if type(field.default) in (int, float, str) and f"{field.default}" != "inf"
    ]
    shown = {field.name: f"Default: {field.default:{_form(field.default)}}." for field in constants}
    options = {name: hint for name, hint in hints.items() if name in shown and name != "model"}
    assert len(options) > 12
    for name, hint in options.items():
        assert hint.__metadata__[0].help.endswith(shown[name]), name


def _form(default: Any) -> str:
    return "g" if isinstance(default, float) else ""


def chat(*contents: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]}


def write(file: Path, *lines: dict[str, Any] | str) -> str:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return str(file)


def report_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "report.json").read_text())


@pytest.mark.parametrize("count", [1, 2, *only_thorough(8)])
def test_a_head_comes_of_any_number_of_prompts(tmp_path: Path, count: int) -> None:
    file = write(tmp_path / "p.jsonl", *(chat(question) for question in QUESTIONS[:count]))
    run = tmp_path / "run"
    out = ok("train", "head", "--prompts", file, "-o", str(run), *SMALL, "--no-evaluate")
    report = report_of(run)
    assert report["steps"] == 2
    assert report["data"]["texts"] + report["data"]["heldout_texts"] == count
    assert (report["data"]["heldout_texts"] > 0) == (count > 1)
    assert ("too few to hold any out" in out) == (count == 1)
    target = read_spec(builtin.path())
    for layout in report["heads"]:
        assert read_head(run / layout, target).draft_vocab_size == 600
        assert f"--draft-model {run / layout}" in out
    assert (run / PLOT_FILE).stat().st_size > 1000


def test_a_head_comes_of_answers_shorter_than_the_levels_of_training(tmp_path: Path) -> None:
    file = write(tmp_path / "talk.jsonl", *(chat(question, "Yes") for question in QUESTIONS[:3]))
    run = tmp_path / "run"
    arguments = (
        "train",
        "head",
        "--conversations",
        file,
        "-o",
        str(run),
        *SMALL,
        "--ttt-steps",
        "16",
    )
    out = ok(*arguments)
    assert "accepted length on 1 held-out prompt," in out
    assert report_of(run)["engine"][0]["shape"] == "no head"
    again = ok(*arguments)
    assert "done: " in again and "accepted length on 1 held-out prompt," in again


def test_a_head_comes_of_prompts_of_one_token_beside_one_that_is_refused(tmp_path: Path) -> None:
    short, long = {"prompt": "a"}, {"prompt": "word " * 5000}
    file = write(tmp_path / "p.jsonl", short, long, short)
    run = tmp_path / "run"
    out = ok("train", "head", "--prompts", file, "-o", str(run), *SMALL)
    assert "prompt 2 is refused" in out
    assert report_of(run)["data"]["left_out"] == 1
    assert "accepted length on 1 held-out prompt," in out


def test_where_every_prompt_is_refused_the_reason_is_told(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", {"prompt": "word " * 5000})
    done = eyas("train", "head", "--prompts", file, "-o", str(tmp_path / "run"), *SMALL)
    assert done.returncode == 2
    assert "--prompts: there is no answer to learn from" in done.stderr
    assert "context holds 2048" in done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["p.jsonl", "contains no prompts"]),
        (b"\n \n", ["p.jsonl", "contains no prompts"]),
        (b'{"prompt": "a"}\n\n{"promp\n', ["p.jsonl:3", "is not JSON"]),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}\n', ["p.jsonl:2", "UTF-8"]),
        (b"[" * 100_000 + b"\n", ["p.jsonl:1", "is not JSON"]),
        (b'{"conversations": []}\n', ["p.jsonl:1", "'conversations' is unknown"]),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_any_work(
    tmp_path: Path, content: bytes, words: list[str]
) -> None:
    file, run = tmp_path / "p.jsonl", tmp_path / "run"
    file.write_bytes(content)
    done = eyas("train", "head", "--prompts", str(file), "-o", str(run), *SMALL)
    assert_one_clear_line(done, ["--prompts", *words])
    assert not run.exists()


def test_conversations_without_an_answer_are_refused_before_any_work(tmp_path: Path) -> None:
    file = write(tmp_path / "talk.jsonl", chat("a", "b"), chat("a"))
    run = tmp_path / "run"
    done = eyas("train", "head", "--conversations", file, "-o", str(run), *SMALL)
    assert_one_clear_line(done, ["--conversations", "talk.jsonl:2", "--prompts"])
    assert not run.exists()


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n')
    run = tmp_path / "run"
    ok("train", "head", "--prompts", str(file), "-o", str(run), *SMALL, "--no-evaluate")
    assert report_of(run)["data"]["texts"] == 1


def test_a_changed_file_does_not_go_on_with_the_answers_of_the_old_one(tmp_path: Path) -> None:
    file, run = tmp_path / "p.jsonl", tmp_path / "run"
    arguments = ("train", "head", "--prompts", str(file), "-o", str(run), *SMALL, "--no-evaluate")
    write(file, *(chat(question) for question in QUESTIONS[:2]))
    ok(*arguments)
    write(file, *(chat(question) for question in QUESTIONS[2:4]))
    assert_one_clear_line(eyas(*arguments), ["--prompts", "p.jsonl has changed", "--output"])


@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        (None, ["specforge", "speculators"]),
        ("EAGLE-3.1", ["specforge", "speculators"]),
        ("eagle3", ["specforge", "speculators", "safeailab"]),
    ],
)
def test_what_will_be_written_is_said_before_any_work(
    tmp_path: Path, name: str | None, layouts: list[str]
) -> None:
    file, run = write(tmp_path / "talk.jsonl", chat("a", "b"), chat("c", "d")), tmp_path / "run"
    asked = () if name is None else ("--format", name)
    arguments = ("--conversations", file, "-o", str(run), *SMALL, "--no-evaluate", *asked)
    out = ok("train", "head", *arguments)
    announced, _, rest = out.partition("texts: ")
    assert list(report_of(run)["heads"]) == layouts
    assert sorted(layouts) == sorted(place.parent.name for place in run.glob("*/README.md"))
    for layout in layouts:
        assert f"{layout}/ (read by eyas, " in announced
        assert f"{run / layout}: " in rest and "read by eyas, " in rest
    left_out = "not as safeailab/" in announced and "--format eagle3" in announced
    assert left_out == ("safeailab" not in layouts)


def test_a_head_trained_anew_replaces_the_old_one_in_every_layout(tmp_path: Path) -> None:
    file, run = write(tmp_path / "talk.jsonl", chat("a", "b"), chat("c", "d")), tmp_path / "run"
    arguments = ("--conversations", file, "-o", str(run), *SMALL, "--no-evaluate", "--format")
    for name, layouts in (("eagle3", 3), ("eagle3.1", 2)):
        ok("train", "head", *arguments, name)
        assert len(list(run.glob("*/model.safetensors"))) == layouts


def test_layers_of_ones_own_are_named_as_what_a_layout_cannot_hold(tmp_path: Path) -> None:
    file, run = write(tmp_path / "talk.jsonl", chat("a", "b")), tmp_path / "run"
    arguments = ("--conversations", file, "-o", str(run), *SMALL, "--taps", "1,3,8")
    out = ok("train", "head", *arguments, "--format", "eagle3")
    assert "specforge/ (read by eyas, SGLang)" in out  # vLLM counts named layers differently there
    assert "cannot hold layers to read of its own; --format eagle3 without --taps can" in out


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    arguments = ("--prompts", "builtin:2", "-o", str(tmp_path / "run"), "--format", "medusa")
    assert_one_clear_line(eyas("train", "head", *arguments), ["--format", "eagle3.1, eagle3"])


def test_an_interrupted_training_goes_on_with_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, run = write(tmp_path / "talk.jsonl", chat("a", "b"), chat("c", "d")), tmp_path / "run"
    arguments = ("train", "head", "--conversations", file, "-o", str(run), *SMALL)
    arguments = (*arguments, "--max-steps", "9", "--log-every", "1", "--no-evaluate")
    print_line = RunDisplay.print_line

    def interrupted(self: RunDisplay, line: str) -> None:
        print_line(self, line)
        if line.startswith("step 3/"):
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        patched.setattr(RunDisplay, "print_line", interrupted)
        done = eyas(*arguments)
    assert done.returncode == 130, done.stdout + done.stderr
    assert "run the same command again to continue" in done.stdout
    assert signal.getsignal(signal.SIGINT) is before
    other = eyas(*arguments, "--loss-decay", "0.5")
    assert_one_clear_line(other, ["--output", "loss_decay 0.8, not 0.5", "state.pt"])
    out = ok(*arguments)
    assert "training: continuing from step 3" in out
    assert report_of(run)["steps"] == 9


def test_lines_are_plain_where_there_is_no_terminal_and_a_bar_stands_below_where_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    step = Progress("training", 120, 400, "step 120  loss 0.512  acceptance length 2.10")

    def shown(*, is_terminal: bool) -> str:
        file = io.StringIO()
        console = Console(file=file, force_terminal=is_terminal, width=100)
        columns = (TextColumn("{task.description}"), TextColumn("{task.fields[note]}"))
        with Bars(*columns, console=console, disable=not is_terminal) as bars:
            run = RunDisplay(console, bars)
            run.print_line("features: 10/10 tokens [bold]")
            run.show_progress(Progress("features", 10, 10))
            run.show_progress(step)
        return file.getvalue()

    assert shown(is_terminal=False).strip() == ""
    assert capsys.readouterr().out == "features: 10/10 tokens [bold]\n"
    text = shown(is_terminal=True)
    assert "features: 10/10 tokens [bold]" in text
    assert "training" in text and "acceptance length 2.10" in text


def test_the_demonstration_needs_nothing_but_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"prompts": "builtin:3", "conversations": "builtin:5", "eval_prompts": 2}
    for name, value in small.items():
        monkeypatch.setitem(DEMO_SETTINGS, name, value)
    monkeypatch.chdir(tmp_path)
    out = ok("train", "head", "--demo", *SMALL)
    report = report_of(tmp_path / "eyas-head-demo")
    shapes = [record["shape"] for record in report["engine"]]
    assert shapes[0] == "no head" and "chain 5" in shapes
    assert all(record["num_tokens"] for record in report["engine"])
    assert "accepted length on 1 held-out prompt" in out
    assert "next: eyas generate" in out and "--draft-model eyas-head-demo/specforge" in out


def test_the_demonstration_ends_in_time_on_slow_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert DEMO_SETTINGS["generate_seconds"] + DEMO_SETTINGS["train_seconds"] <= 240
    small = {"prompts": "builtin:2", "conversations": "builtin:9", "train_seconds": 1e-3}
    for name, value in small.items():
        monkeypatch.setitem(DEMO_SETTINGS, name, value)
    options = [*SMALL, "--no-evaluate", "-o", str(tmp_path / "run")]
    place = options.index("--max-steps")
    ok("train", "head", "--demo", *options[:place], *options[place + 2 :])
    # the time is read before a step: a first one that begins at once is followed by another
    assert report_of(tmp_path / "run")["steps"] <= 2


@pytest.mark.parametrize(
    ("arguments", "option"),
    [(["Some/Model"], "--demo"), (["--prompts", "builtin:2"], "--prompts")],
)
def test_the_demonstration_takes_no_other_model_or_prompts(
    arguments: list[str], option: str
) -> None:
    assert_one_clear_line(eyas("train", "head", "--demo", *arguments), [option, "leave out"])


def test_each_head_has_a_model_card(tmp_path: Path) -> None:
    file, run = write(tmp_path / "talk.jsonl", *[chat("a", "b c d e f")] * 4), tmp_path / "run"
    ok("train", "head", "--conversations", file, "-o", str(run), *SMALL, "--max-tokens", "4")
    report = report_of(run)
    for layout in report["heads"]:
        text = (run / layout / "README.md").read_text()
        found = ModelCard(text, ignore_metadata_errors=False)
        assert found.data.library_name == "eyas" and found.data.base_model is None
        assert found.data.tags is not None
        assert {"eagle3.1", "speculative-decoding", "draft-model", layout} <= set(found.data.tags)
        assert "| no head | 0 | 1.00 |" in text and "| tree 5/4/16 | 1 |" in text
        assert "`talk.jsonl`" in text and str(tmp_path) not in text
        assert "eyas serve builtin --draft-model DIR" in text
    config = HeadTraining(output=run, model="Some/Model-8B", conversations=file)
    report |= {"model": config.model, "base_model": config.model}
    text = card(config, "speculators", report)
    assert ModelCard(text).data.base_model == "Some/Model-8B"
    assert "vllm serve Some/Model-8B --speculative-config" in text and "SGLang" not in commands(
        text
    )
    assert "sglang.launch_server --model-path Some/Model-8B" in card(config, "specforge", report)
    config = HeadTraining(output=run, model=str(tmp_path / "own-model"), conversations=file)
    text = card(config, "speculators", report | {"base_model": None})
    assert "own-model" in text and "`base_model:`" in text and str(tmp_path) not in text


def commands(text: str) -> str:
    return text.partition("## How to use it")[2]
