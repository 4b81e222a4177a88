"""The commands as a user meets them: output for people and machines, statuses, one-line errors.

Most run in this process, through the function behind the script that is installed; each kind of outcome
is also seen from outside, where Python and torch start anew.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from eyas.cli import main
from eyas.cli.errors import report
from tests.models.quantised import CASES, change_config, write_quantised
from tests.models.tiny import make_model, save_model
from tests.models.tiny_heads import (
    TARGET_HIDDEN,
    VOCAB,
    make_head,
    write_safeailab,
    write_specforge,
    write_speculators,
)
from tests.thorough import only_thorough

EYAS = Path(sys.executable).with_name("eyas")


Done = subprocess.CompletedProcess[str]


def installed(*arguments: str, stdin: str = "") -> Done:
    """The script, in a process of its own."""
    return subprocess.run(
        [str(EYAS), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def eyas(*arguments: str, stdin: str = "") -> Done:
    """The same command in this process, whose threads and logging stay as they are."""
    out, err, told = io.StringIO(), io.StringIO(), logging.getLogger("eyas")
    num_threads, level = torch.get_num_threads(), told.level
    try:
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            mock.patch.object(sys, "stdin", io.StringIO(stdin)),
            mock.patch.dict("os.environ", COLUMNS="80"),
            pytest.raises(SystemExit) as left,
        ):
            main(list(arguments))
    finally:
        torch.set_num_threads(num_threads)
        told.setLevel(level)
    status = left.value.code
    assert status is None or isinstance(status, int)
    return subprocess.CompletedProcess(arguments, status or 0, out.getvalue(), err.getvalue())


def ok(*arguments: str, stdin: str = "") -> str:
    return succeeded(eyas(*arguments, stdin=stdin))


def succeeded(done: Done) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--no-such-option"], ["--no-such-option"]),
        (["serve", "--port", "99999"], ["--port", "65535"]),
        (["serve", "--served-model-name", ""], ["--served-model-name: must have 1 to 256"]),
        (["serve", "--cors-origin", "x"], ["--cors-origin: 'x' must be an origin"]),
        (["serve", "--allowed-host", "a b"], ["--allowed-host: 'a b' must be a host's name"]),
        (["serve", "--draft-steps", "0"], ["--draft-steps", "32"]),
        (["serve", "--metrics-names", "x"], ["--metrics-names", "sglang"]),
        (["serve", "--log-format", "xml"], ["--log-format", "json"]),
        (["serve", "--start-wait", "-1"], ["--start-wait: must be between 0"]),
        (["serve", "--max-model-len", "3"], ["--max-model-len"]),
        (["serve", "--memory-fraction", "2"], ["--memory-fraction"]),
        (["serve", "--max-step-ms", "0"], ["--max-step-ms"]),
        (["serve", "--flights", "2"], ["--flights"]),
        (["serve", "--api-key-file", "no/such/file"], ["--api-key-file"]),
        (["serve", "--api-key-file", sys.executable], ["--api-key-file", "UTF-8"]),
        (["serve", "--grammar-timeout", "nan"], ["--grammar-timeout", "600"]),
        (["serve", "--whitespace-pattern", "x*"], ["--whitespace-pattern: must be white space"]),
        (
            ["serve", "--whitespace-pattern", "", "--disable-any-whitespace"],
            ["--whitespace-pattern", "give one of the two"],
        ),
        (["serve", "--drafter", "model"], ["--draft-model"]),
        (["generate", "x", "--drafter", "eagle9"], ["--drafter"]),
        (["generate", "x", "--temperature", "-1"], ["--temperature"]),
        (["generate", "x", "--top-p", "2"], ["--top-p"]),
        (["generate", "x", "--max-tokens", "2", "--min-tokens", "3"], ["--min-tokens"]),
        (["generate", "x", "--model", "nowhere"], ["nowhere", "hub name"]),
        (["generate", "x", "--prompts-file", "y"], ["--prompts-file"]),
        (["generate", "--prompts-file", "no/such/file"], ["--prompts-file", "no/such/file"]),
        (["generate", " "], ["empty"]),
        (["generate", "x", "--device", "tpu"], ["device"]),
        (["models", "nowhere"], ["nowhere"]),
        (["bench", "decode", "--batch", "0"], ["--batch"]),
        (["bench", "structured", "--draft-steps", "16"], ["--draft-steps", "15"]),
        (["bench", "structured", "--draft-model", "nowhere"], ["nowhere", "hub name"]),
        (["train", "head"], ["--output"]),
        (["train", "head", "-o", "no/such/run"], ["--prompts"]),
        (["train", "head", "-o", "no/such/run", "--prompts", "no/file"], ["--prompts", "no/file"]),
        (["train", "head", "-o", "x", "--prompts", "builtin:2", "--taps", "1.5"], ["--taps"]),
        (["train", "head", "-o", "x", "--prompts", "builtin:2", "--heldout", "2"], ["--heldout"]),
    ],
)
def test_what_a_user_can_put_right_is_one_clear_line(
    arguments: list[str], words: list[str]
) -> None:
    assert_one_clear_line(eyas(*arguments), words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["models", "nowhere"], ["nowhere"]),
        *only_thorough((["serve", "--port", "99999"], ["--port", "65535"])),
    ],
)
def test_so_it_is_from_outside(arguments: list[str], words: list[str]) -> None:
    assert_one_clear_line(installed(*arguments), words)


@pytest.mark.parametrize(
    "error",
    [
        NotADirectoryError(errno.ENOTDIR, "Not a directory", "file/run"),
        PermissionError(errno.EACCES, "Permission denied", "locked"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
    ids=str,
)
def test_a_file_that_cannot_be_used_is_the_users_to_put_right(
    error: OSError, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(error) == 2
    shown = capsys.readouterr().err
    assert error.strerror in shown
    assert str(error.filename or "") in shown
    assert "bug" not in shown


@pytest.mark.parametrize("arguments", [["generate"], ["chat", "--drafter", "root"]], ids=str)
def test_a_closed_standard_input_is_an_empty_one(arguments: list[str]) -> None:
    line = ["sh", "-c", '"$@" <&-', "sh", str(EYAS), *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert "bug in eyas" not in done.stderr
    assert done.returncode == (2 if arguments == ["generate"] else 0)


def test_a_server_that_cannot_start_names_the_option() -> None:
    done = installed("serve", "--port", "0", "--max-model-len", "999999")
    assert done.returncode == 1
    assert "ERROR eyas.server: --max-model-len: 999999 is beyond the 2048 positions" in done.stderr


def assert_one_clear_line(done: Done, words: list[str]) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    if done.stderr.startswith("error:"):
        assert len(done.stderr.strip().splitlines()) == 1


def test_serve_hands_its_manners_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from eyas.server.options import ServerOptions

    started: list[ServerOptions] = []
    monkeypatch.setattr(
        "eyas.server.process.launch.serve", lambda *given: started.append(given[1]) or 0
    )
    ok("serve")
    ok("serve", "--metrics-names", "sglang", "--log-format", "json", "--allow-no-key")
    ok("serve", "--start-wait", "0")
    told = [(o.metrics_names, o.log_format, o.allow_no_key, o.start_wait_seconds) for o in started]
    assert told == [
        ("eyas", "text", False, 30),
        ("sglang", "json", True, 30),
        ("eyas", "text", False, 0),
    ]


def test_a_model_without_tokenizer_continues_token_ids(tmp_path: Path) -> None:
    model = save_model(make_model("llama2"), tmp_path / "model")
    options = ["--model", str(model), "--max-tokens", "3", "--json"]
    done = eyas("generate", "x", *options)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "no tokenizer; give token ids" in done.stderr.splitlines()[-1]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": [5, 6, 7]}))
    answer = json.loads(ok("generate", "--prompts-file", str(prompts), *options))
    assert answer["num_prompt_tokens"] == 3 and answer["choices"][0]["token_ids"]
    done = eyas("generate", "--prompts-file", str(prompts), "--system", "s", *options)
    assert done.returncode == 2 and "--system" in done.stderr


def test_debug_shows_where_an_error_comes_from() -> None:
    done = installed("--debug", "models", "nowhere")
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_no_command_says_what_to_do_next() -> None:
    done = installed()
    assert done.returncode == 0
    assert "eyas serve" in done.stdout and "eyas --help" in done.stdout


@pytest.mark.parametrize("columns", ["40", "59", "60"])
def test_help_names_options_in_full_in_a_narrow_terminal(columns: str) -> None:
    out = io.StringIO()
    with (
        redirect_stdout(out),
        mock.patch.dict("os.environ", COLUMNS=columns),
        pytest.raises(SystemExit),
    ):
        main(["generate", "--help"])
    assert "--prompts-file" in out.getvalue()


def test_version() -> None:
    import eyas as package

    assert succeeded(installed("--version")).split() == ["eyas", package.__version__]


def test_models_lists_architectures_and_the_builtin() -> None:
    text = ok("models")
    assert "Qwen3ForCausalLM" in text
    assert "builtin" in text
    facts: dict[str, Any] = json.loads(ok("models", "--json"))
    assert "LlamaForCausalLM" in facts["architectures"]
    assert 8e6 <= facts["builtin"]["parameters"] <= 12e6
    assert facts["builtin"]["chat_template"] is True
    assert facts["builtin"]["draft_head"] == "eagle3"


def test_models_tells_the_facts_of_a_directory(tmp_path: Path) -> None:
    from eyas import builtin

    facts = json.loads(ok("models", str(builtin.path()), "--json"))
    assert facts["architecture"] == "Qwen3ForCausalLM"
    assert facts["draft_head"] is None, "it comes with the package, not with the directory"
    done = eyas("models", str(tmp_path))
    assert done.returncode == 2
    assert "config.json" in done.stderr


def test_models_tells_the_format_of_quantised_weights(tmp_path: Path) -> None:
    directory = save_model(make_model("llama2"), tmp_path / "model")
    write_quantised(directory, CASES["fp8 blocks"])
    assert "FP8 in blocks of 128 x 128" in ok("models", str(directory))
    change_config(directory, quantization_config={"quant_method": "hqq"})
    done = eyas("models", str(directory))
    assert done.returncode == 2 and "quant_method 'hqq' is not supported" in done.stderr
    sizes = {"hidden_size": 2**31 - 1, "intermediate_size": 2**31 - 1}
    change_config(directory, quantization_config=None, **sizes)
    done = eyas("models", str(directory))
    assert done.returncode == 2 and "sizes in config.json are not those of a model" in done.stderr


def test_models_tells_what_a_sequence_stores_beside_its_tokens(tmp_path: Path) -> None:
    directory = save_model(make_model("qwen3 next"), tmp_path / "model")
    facts = json.loads(ok("models", str(directory), "--json"))
    # Three layers: four heads of 16 x 24 in float32; three inputs of 160 + 2 x 4 numbers in 16 bits.
    assert facts["state_bytes_per_sequence"] == 3 * (4 * 4 * 16 * 24 + 3 * 168 * 2)
    assert facts["kv_bytes_per_token_16_bit"] == 2 * 2 * 2 * 16
    dense = json.loads(
        ok("models", str(save_model(make_model("qwen3"), tmp_path / "dense")), "--json")
    )
    assert dense["state_bytes_per_sequence"] is None


@pytest.mark.parametrize("write", [write_safeailab, write_specforge, write_speculators])
def test_models_tells_the_facts_of_a_head(write: Any, tmp_path: Path) -> None:
    head = write(tmp_path / "head", make_head(draft_vocab=100))
    facts = json.loads(ok("models", str(head), "--json"))
    assert facts["kind"] == "eagle3" and facts["layers"] == 1
    assert (facts["vocabulary"], facts["draft_vocabulary"]) == (VOCAB, 100)
    assert facts["target_hidden_size"] == TARGET_HIDDEN and facts["parameters"] > 0
    assert "architecture" not in facts and "--draft-model" in ok("models", str(head))


def test_generate_streams_an_answer() -> None:
    asked = ("generate", "What is the capital of France?", "--no-think", "--temperature", "0")
    text = ok(*asked, "--show-usage", "--show-tokens")
    assert "Paris" in text
    assert "tokens:" in text
    assert "usage:" in text
    assert "per step)" in text


def test_an_answer_that_ends_by_an_error_is_told_by_the_status() -> None:
    from eyas.cli.generate import has_failed
    from eyas.outputs import Choice, GenerationOutput

    answers = [GenerationOutput([1], [Choice(0), Choice(1)]) for _ in range(2)]
    assert not has_failed(answers)
    answers[1].choices[0].error = "out of luck"
    assert has_failed(answers)


def test_generate_reads_standard_input_and_repeats_itself_with_a_seed() -> None:
    def answer(*more: str) -> dict[str, Any]:
        line = ok(
            *("generate", "--json", "--seed", "5", "--temperature", "1.2", "--max-tokens", "30"),
            *more,
            stdin="Specify a random city.",
        )
        choice = json.loads(line)["choices"][0]
        choice.pop("usage")
        return choice

    plain = answer("--drafter", "root")
    assert plain["seed"] == 5
    assert answer("--drafter", "ngram", "--draft-steps", "6", "--draft-nodes", "7") == plain


def test_generate_answers_a_file_of_prompts(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
    lines = [
        {"prompt": "ping", "temperature": 0, "max_tokens": 8, "logit_bias": {"5": 3}},
        {"messages": [{"role": "user", "content": "ping"}], "n": 2, "max_tokens": 8},
        {"messages": [{"role": "user", "content": "ping"}], "tools": [tool], "stop": ["I"]},
    ]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    outputs = ok("generate", "--prompts-file", str(file), "--json").splitlines()
    assert [len(json.loads(output)["choices"]) for output in outputs] == [1, 2, 1]
    assert "I" not in json.loads(outputs[2])["choices"][0]["text"]

    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    weather = {"type": "function", "function": {"name": "get_weather", "parameters": city}}
    asked = [{"role": "user", "content": "What is the weather in Oslo?"}]
    same = {"temperature": 0, "max_tokens": 80}
    lines = [
        {"messages": asked, "tools": [weather], "prompt_logprobs": 0, **same},
        {"prompt": [5, 6, 7], **same},
        {"messages": asked, **same},
    ]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    first, raw, last = map(
        json.loads, ok("generate", "--prompts-file", str(file), "--json").splitlines()
    )
    assert [call["name"] for call in first["choices"][0]["tool_calls"]] == ["get_weather"]
    assert first["choices"][0]["reasoning"] and len(first["prompt_logprobs"]) > 3
    assert raw["num_prompt_tokens"] == 3 and not raw["choices"][0]["reasoning"]
    assert last["choices"][0]["tool_calls"] == [] and "prompt_logprobs" not in last

    file.write_text('{"prompt": "a"}\n{"text": "b"}')
    done = eyas("generate", "--prompts-file", str(file))
    assert done.returncode == 2
    assert "prompts.jsonl:2" in done.stderr

    file.write_text('{"prompt": "a", "temprature": 0}')
    done = eyas("generate", "--prompts-file", str(file))
    assert done.returncode == 2
    assert "temprature" in done.stderr

    lines = [{"prompt": "a"}, {"messages": [{"role": "alien", "content": "x"}]}]
    wrong: list[tuple[dict[str, Any], str]] = [
        (lines[1], "messages[0].role"),
        ({"prompt": "a", "min_p": 3}, "min_p"),
        ({"prompt": 5}, "messages[0].content"),
        ({"messages": 5}, "messages"),
    ]
    for last, place in wrong:
        file.write_text("\n".join(json.dumps(line) for line in (lines[0], last)))
        done = eyas("generate", "--prompts-file", str(file))
        assert done.returncode == 2
        assert f"--prompts-file: prompts[1]: {place}: " in done.stderr.replace("\n", " ")


def test_raw_continues_a_text() -> None:
    text = ok("generate", "The capital of France is", "--raw", "-t", "0", "--max-tokens", "3")
    assert text.strip()


@pytest.fixture(scope="module")
def short_demo() -> dict[str, Any]:
    """What the demo tells machines; of the answers that are free, the copy."""
    from eyas.cli import demo

    tasks = [each for each in demo.free_tasks() if each.task.title.startswith("copy")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(demo, "free_tasks", lambda: tasks)
        return json.loads(ok("demo", "--json", "--threads", "1"))


@pytest.fixture
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer that is free, and one that is not."""
    from eyas.cli import demo

    free_tasks, constrained_tasks = demo.free_tasks, demo.constrained_tasks
    monkeypatch.setattr(demo, "free_tasks", lambda: free_tasks()[:1])
    monkeypatch.setattr(demo, "constrained_tasks", lambda: constrained_tasks()[:1])


def test_demo_shows_identical_tokens(short_demo: dict[str, Any]) -> None:
    result = short_demo
    assert result["identical"] is True
    assert len(result["tasks"]) == 4
    assert all(task["identical"] and task["answer"] for task in result["tasks"])
    names = ("plain", "head+forced", "ngram")
    plain, head, ngram = (result["contestants"][name] for name in names)
    assert plain["steps"] == result["num_tokens"] > ngram["steps"]
    assert head["steps"] < 0.3 * plain["steps"], "the head that comes with the model drafts badly"
    assert plain["accepted_per_step"] == 0
    assert head["accepted_per_step"] > 3
    copy = next(task for task in result["tasks"] if task["task"].startswith("copy"))
    assert copy["contestants"]["ngram"]["steps"] < 0.3 * copy["num_tokens"]


def test_demo_holds_answers_to_their_forms(short_demo: dict[str, Any]) -> None:
    pattern, schema, call = (task for task in short_demo["tasks"] if task["form"])
    assert pattern["content"] in ("Paris", "Amsterdam")
    assert schema["reasoning"]
    assert list(json.loads(schema["content"])) == ["family_name", "years_of_age"]
    assert call["reasoning"] and not call["content"]
    assert [each["name"] for each in call["tool_calls"]] == ["get_weather"]
    assert json.loads(call["tool_calls"][0]["arguments"]).keys() == {"city"}
    assert schema["contestants"]["head+forced"]["steps"] < 0.6 * schema["num_tokens"]


def test_demo_colours_what_drafts_had_right() -> None:
    from eyas.cli.demo import coloured

    pieces = [
        ("", True),
        ("<think>", False),
        ("\n\nPar", True),
        ("is", False),
        ("<|im_end|>", True),
    ]
    text = coloured(pieces, "Paris")
    assert text.plain == "Paris"
    styles = [(text.plain[span.start : span.end], span.style) for span in text.spans]
    assert [each for each in styles if each[0]] == [("Par", "green"), ("is", "bold")]


@pytest.mark.usefixtures("few_tasks")
def test_demo_shows_one_drafter_where_one_is_asked_for() -> None:
    text = ok("demo", "--drafter", "ngram", "--draft-topk", "1", "--threads", "1")
    assert text.startswith("This demo answers the same prompts with and without drafts")
    assert "ngram; same tokens" in text
    assert "head" not in text
    assert "tokens are identical with 2 ways" in text


@pytest.mark.usefixtures("few_tasks")
def test_demo_fails_where_a_token_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    from eyas.cli import demo
    from eyas.cli.errors import CheckFailed

    compare = demo.compare
    monkeypatch.setattr(demo, "constrained_tasks", list)

    def compare_wrongly(*arguments: Any) -> dict[str, Any]:
        return {**compare(*arguments), "identical": False}

    monkeypatch.setattr(demo, "compare", compare_wrongly)
    with pytest.raises(CheckFailed, match="differ"):
        demo.demo(threads=1, as_json=True)


def test_bench_decode_measures_and_writes(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    printed = json.loads(
        ok(
            *("bench", "decode", "--batch", "2", "--max-tokens", "12", "--repeats", "1"),
            *("--drafter", "ngram", "--compare", "transformers", "--workload", "random"),
            *("--prompt-tokens", "40", "--threads", "1", "--json", "-o", str(file)),
        )
    )
    assert printed == json.loads(file.read_text())
    assert {"date", "command", "commit", "machine", "model", "settings", "results"} <= set(printed)
    entry = printed["results"][0]
    assert set(entry["contestants"]) == {"plain", "ngram", "transformers"}
    plain = entry["contestants"]["plain"]
    assert plain["num_tokens"] == entry["contestants"]["transformers"]["num_tokens"] == 24
    assert plain["rest_ms"]["median"] < plain["step_ms"]["median"]
    assert entry["same_tokens"]["ngram"] == 1
    assert "plain / transformers" in entry["speed_ratios"]


def test_bench_builtin_prints_rates() -> None:
    result = json.loads(ok("bench", "builtin", "--num-per-family", "2", "--json"))
    assert 0 < result["overall"] <= 1
    assert len(result["families"]) >= 9
