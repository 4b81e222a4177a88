"""How a command line is read: abbreviations, what changes nothing, files of options."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from eyas.config import (
    CacheConfig,
    DraftConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from eyas.peers.accepted import ACCEPTED
from eyas.peers.refused import REFUSED, SWITCHES
from tests.cli.conftest import Line


@pytest.mark.parametrize(
    ("words", "config"),
    [
        ("--mem-fraction 0.6", EngineConfig(cache=CacheConfig(memory_fraction=0.6))),
        ("--mem-fraction-st=0.6", EngineConfig(cache=CacheConfig(memory_fraction=0.6))),
        ("--gpu_memory_utilization 0.6", EngineConfig(cache=CacheConfig(memory_fraction=0.6))),
        ("--gpu-mem 0.6", EngineConfig(cache=CacheConfig(memory_fraction=0.6))),
        ("--max_num_seqs=3", EngineConfig(scheduler=SchedulerConfig(max_num_seqs=3))),
        (
            "--tensor-parallel 1 --max-num-s 3",
            EngineConfig(scheduler=SchedulerConfig(max_num_seqs=3)),
        ),
        (
            "--speculative-algo EAGLE --speculative-draft h",
            EngineConfig(draft=DraftConfig(drafter="head", model="h")),
        ),
        (
            "--speculative-algor NGRAM --speculative-num-s 2",
            EngineConfig(draft=DraftConfig(drafter="ngram", steps=2, topk=4, nodes=8)),
        ),
        ("--draft-tok=--odd", EngineConfig(draft=DraftConfig(token_map="--odd"))),
        ("--draft-token-map --odd", EngineConfig(draft=DraftConfig(token_map="--odd"))),
        ("--no-prefix", EngineConfig(cache=CacheConfig(prefix_cache=False))),
        (
            "-m m -d ngram",
            EngineConfig(model=ModelConfig(path="m"), draft=DraftConfig(drafter="ngram")),
        ),
    ],
)
def test_names_may_be_cut_short_and_have_underscores(
    line: Line, words: str, config: EngineConfig
) -> None:
    assert line(*shlex.split(words)).config == config


def test_a_name_that_could_be_several_is_refused_with_all_of_them(line: Line) -> None:
    found = line("--speculative-num", "3")
    assert found.config is None
    assert "--speculative-num: could be " in found.errors[0]
    for name in ("--speculative-num-steps", "--speculative-num-draft-tokens"):
        assert name in found.errors[0]


@pytest.mark.parametrize("option", sorted(ACCEPTED))
def test_what_changes_nothing_is_told_once(line: Line, option: str) -> None:
    accepted = ACCEPTED[option]
    value = (accepted.only or ("3",))[0]
    found = line("m", option, *([value] if accepted.takes_value else []))
    assert found.config == EngineConfig(model=ModelConfig(path="m"))
    (note, translated) = found.notes
    assert note.startswith(f"{option} {value}:" if accepted.takes_value else f"{option}:")
    assert accepted.reason in note
    assert translated == "equivalent command: eyas serve --model m"


def test_other_values_of_what_changes_nothing_are_refused(line: Line) -> None:
    for option, accepted in ACCEPTED.items():
        if accepted.only is not None:
            found = line("m", option, "fp8_e5m2")
            assert found.config is None
            assert found.errors[0].startswith(f"error: {option} fp8_e5m2: is not supported")


def test_all_that_cannot_be_is_told_at_once(line: Line) -> None:
    """What follows an option that is refused is its value, unless it has none."""
    words = [word for option in REFUSED for word in (option, *(["8"] * (option not in SWITCHES)))]
    found = line("m", "--tpp", "2", *words, "--draft-steps", "99", "--reasoning-parser", "x")
    assert found.config is None
    text = "\n".join(found.errors)
    for option in (*REFUSED, "--tpp: No such option", "--draft-steps: ", "--reasoning-parser x: "):
        assert f"\n  {option}" in text, option
    assert found.errors[0] == f"error: {len(REFUSED) + 3} options are invalid or not supported:"
    assert found.errors[-1] == "command without them: eyas serve --model m"


def test_a_key_is_not_shown(line: Line) -> None:
    found = line("m", "--enable-metrics", "--api-key", "secret", "--port", "1")
    assert found.options.api_keys == ("secret",)
    assert found.notes[-1] == "equivalent command: eyas serve --model m --port 1"


def test_words_of_eyas_alone_are_not_translated(line: Line) -> None:
    assert line("--model", "m", "--port", "1").notes == ()


def test_several_names_behind_one_option_as_in_vllm(line: Line) -> None:
    found = line("m", "--served-model-name", "a", "b", "--port", "1")
    assert found.options.served_model_names == ("a", "b")
    found = line("--served-model-name", "a", "m", "--served-model-name=b")
    assert found.options.served_model_names == ("a", "b")
    assert found.config is not None and found.config.model.path == "m"


FILE = """\
# as vLLM's
model: of-file
port: 1234
max-model-len: 99
gpu_memory_utilization: 0.5
enable-prefix-caching: true
no_restart: false
exact: false
served-model-name: [a, b]
pipeline-parallel-size: 1
trust-remote-code: true
speculative-config: {method: ngram, num_speculative_tokens: 3}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "options.yaml"
    path.write_text(FILE)
    return path


def test_options_come_from_a_file(line: Line, file: Path) -> None:
    found = line("--config", str(file))
    config = found.config
    assert config is not None
    assert (config.model.path, config.model.max_model_len) == ("of-file", 99)
    assert (config.cache.memory_fraction, config.device.exact) == (0.5, False)
    assert config.draft == DraftConfig(drafter="ngram", steps=3, topk=1, nodes=4)
    assert (found.options.port, found.options.served_model_names) == (1234, ("a", "b"))
    assert found.options.max_restarts > 0
    assert [note.partition(":")[0] for note in found.notes] == [
        "--pipeline-parallel-size 1",
        "--trust-remote-code",
        "equivalent command",
    ]
    again = line(*found.translated)
    assert (again.config, again.notes) == (config, ())


def test_the_command_line_counts_before_a_file(line: Line, file: Path) -> None:
    found = line(
        *("mine", "--config", str(file), "--context-length", "50", "--memory-fraction=0.4"),
        *("--port", "1", "--served-model-name", "c", "--drafter", "forced", "--exact"),
    )
    config = found.config
    assert config is not None
    assert (config.model.path, config.model.max_model_len) == ("mine", 50)
    assert (config.cache.memory_fraction, config.device.exact) == (0.4, True)
    assert config.draft == DraftConfig(drafter="forced")
    assert (found.options.port, found.options.served_model_names) == (1, ("c",))


def test_settings_of_drafting_are_joined_in_one_projects_words(line: Line, tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text("drafter: ngram\ndraft-steps: 3\n")
    found = line("--config", str(path), "--draft-steps", "2")
    assert found.config is not None
    assert found.config.draft == DraftConfig(drafter="ngram", steps=2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot: 8000", ["prot (in ", "No such option; did you mean port?"]),
        ("pipeline-parallel-size: 8", ["pipeline-parallel-size (in ", "one copy of a model"]),
        ("port: [1, 2]", ["port (in ", "must be a single value, not a list"]),
        ("port: {a: 1}", ["port (in ", "not keys and values"]),
        ("exact: 7", ["exact (in ", "must be true or false, not 7"]),
        ("enable-metrics: 7", ["enable-metrics (in ", "must be true or false, not 7"]),
        ("config: x.yaml", ["config (in ", "only on the command line"]),
        ("port: 8000\nport: 8001", ["not valid YAML", "'port' is repeated"]),
        ("a: &a [x, x]\nb: [*a, *a]", ["not valid YAML", "references"]),
        ("!!python/object/apply:os.system ['true']", ["not valid YAML", "python/object"]),
        ("port: !!python/name:os.system", ["not valid YAML", "python/name"]),
        ("[port]", ["must have names of options as keys"]),
        ("1: 2", ["must have names of options as keys"]),
        ("[" * 5000, ["not valid YAML"]),
        ("port: \x00", ["not valid YAML"]),
        ("x" * 70_000, ["more than 65536 bytes"]),
    ],
)
def test_what_is_wrong_with_a_file_is_told(
    line: Line, tmp_path: Path, text: str, words: list[str]
) -> None:
    path = tmp_path / "options.yaml"
    path.write_text(text)
    found = line("--config", str(path))
    assert found.config is None
    for word in words:
        assert word in found.errors[0], found.errors


def test_a_file_that_cannot_be_read_is_named(line: Line, tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"model: caf\xe9")
    for path, words in (("none.yaml", "No such file"), ("latin", "UTF-8"), (".", "directory")):
        found = line("--config", str(tmp_path / path))
        assert found.errors[0].startswith("error: --config: ")
        assert words in found.errors[0]


def test_a_chat_template_is_a_file_or_a_text(line: Line, tmp_path: Path) -> None:
    text = "{{ messages[0].content }}"
    (tmp_path / "chat.jinja").write_text(text)
    for given in (text, str(tmp_path / "chat.jinja")):
        assert line("--chat-template", given).options.chat_template == text
    (tmp_path / "empty").write_text(" \n")
    for given, words in (
        ("chatml", "templates have no names"),
        (str(tmp_path / "empty"), "empty"),
        ("{% if %}", "cannot be compiled"),
    ):
        found = line("--chat-template", given)
        assert found.errors[0].startswith("error: --chat-template: ")
        assert words in found.errors[0]


def test_variables_of_the_template_are_a_json_object(line: Line) -> None:
    found = line("--default-chat-template-kwargs", '{"enable_thinking": false}')
    assert found.options.default_chat_template_kwargs == {"enable_thinking": False}
    assert line().options.default_chat_template_kwargs == {}
    found = line("--default-chat-template-kwargs.enable_thinking", "false")
    assert found.options.default_chat_template_kwargs == {"enable_thinking": False}
    for wrong in ("[]", "{", "enable_thinking=false", "[" * 10_000):
        found = line("--default-chat-template-kwargs", wrong)
        assert found.errors[0].startswith(
            "error: --default-chat-template-kwargs: takes a JSON object"
        )


def test_a_server_gets_what_it_is_told(line: Line) -> None:
    found = line(
        *("--shutdown-timeout", "3", "--max-logprobs", "5", "--uds", "/tmp/s"),
        *("--max-queued-requests", "7", "--max-running-requests", "2"),
    )
    options = found.options
    assert (options.drain_seconds, options.max_top_logprobs, options.uds) == (3, 5, "/tmp/s")
    assert options.max_queued == 9
    for words in (["--shutdown-timeout", "3", "--drain-timeout", "4"], ["--max-logprobs", "21"]):
        assert line(*words).errors[0].startswith(f"error: {words[0]}")


@pytest.mark.parametrize(
    ("reasoning", "tools"),
    [
        ("deepseek_v3", "deepseekv3"),
        ("DeepSeek-R1", "deepseek-v3"),
        ("deepseek_v4", "deepseekv4"),
        ("deepseek-v4", "deepseek_v4"),
        ("deepseek-v32", "deepseek_v31"),
        ("glm", "glm45"),
        ("glm47", "glm"),
        ("openai_gptoss", "openai"),
        ("gpt-oss", "gpt_oss"),
        ("qwen3", "qwen"),
        ("kimi_k2", "qwen25"),
        ("mimo", "qwen3"),
        ("none", "llama3_json"),
        ("qwen3", "qwen3_coder"),
    ],
)
def test_parsers_have_the_peers_names(line: Line, reasoning: str, tools: str) -> None:
    found = line("--reasoning-parser", reasoning, "--tool-call-parser", tools)
    assert found.config is not None, found.errors


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("deepseekv32", "DSML"),
        ("mimo", "XML"),
        ("colour", "is not known"),
    ],
)
def test_formats_that_are_not_read_are_refused_by_name(line: Line, name: str, words: str) -> None:
    (error,) = line("--tool-call-parser", name).errors
    assert error.startswith(f"error: --tool-call-parser {name}: ")
    assert words in error and "name one of" in error and "hermes" in error
