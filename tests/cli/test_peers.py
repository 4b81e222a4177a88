"""Commands of SGLang and vLLM work as they are, or say why they cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from eyas import cli
from eyas.cli.peers import PeerOptions
from eyas.config import (
    CacheConfig,
    DraftConfig,
    EngineConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from eyas.grammar import Spacing
from eyas.peers.accepted import ACCEPTED
from eyas.peers.refused import REFUSED, SWITCHES
from eyas.peers.translate import SPELLINGS

Outcome = tuple[EngineConfig | None, str]
Serve = Callable[..., Outcome]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Serve:
    """`eyas serve` up to the start of the server: its configuration, or what it says instead."""

    def run(*arguments: str) -> Outcome:
        started: list[EngineConfig] = []

        def start(config: EngineConfig, options: Any, *_: Any) -> int:
            assert options.max_queued == config.scheduler.most_seats + 1024
            started.append(config)
            return 0

        monkeypatch.setattr("eyas.server.process.launch.serve", start)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(["serve", *arguments])
        errors = capsys.readouterr().err
        assert ended.value.code == (0 if started else 2), errors
        return (started[0] if started else None), " ".join(errors.split())

    return run


def serve_command() -> Any:
    from typer.main import get_command

    return get_command(cli.app).commands["serve"]  # type: ignore[attr-defined]


def drafting(**fields: Any) -> EngineConfig:
    return EngineConfig(draft=DraftConfig(**fields))


def vllm(**fields: Any) -> list[str]:
    return ["--speculative-config", json.dumps(fields)]


HEAD = "--speculative-draft-model-path"
SIZES = (
    *("--speculative-num-steps", "3", "--speculative-eagle-topk", "2"),
    *("--speculative-num-draft-tokens", "6"),
)


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (["--speculative-algorithm", "EAGLE", HEAD, "h"], drafting(drafter="head", model="h")),
        (["--speculative-algorithm", "eagle3", HEAD, "h"], drafting(drafter="head", model="h")),
        (["--speculative-algorithm", "EAGLE3"], drafting(drafter="head")),
        (["--speculative-algorithm", "NEXTN"], drafting(drafter="head")),
        (["--speculative-algorithm", "NEXTN", HEAD, "builtin"], drafting(drafter="head")),
        (
            ["--speculative-algorithm", "STANDALONE", HEAD, "m"],
            drafting(drafter="model", model="m"),
        ),
        (["--speculative-algorithm", "NGRAM"], drafting(drafter="ngram")),
        (
            ["--speculative-algo=EAGLE3", "--speculative-draft-model", "h"],
            drafting(drafter="head", model="h"),
        ),
        (
            ["--speculative-algorithm", "EAGLE3", *SIZES],
            drafting(drafter="head", steps=3, topk=2, nodes=6),
        ),
        (
            ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", "2"],
            drafting(drafter="head", steps=2, topk=4, nodes=8),
        ),
        (
            ["--speculative-algorithm", "EAGLE", "--speculative-num-draft-tokens", "32"],
            drafting(drafter="head", steps=5, topk=4, nodes=32),
        ),
        (
            ["--speculative-algorithm", "EAGLE", "--speculative-eagle-topk", "1"],
            drafting(drafter="head", steps=5, topk=1, nodes=6),
        ),
        (
            [
                *("--speculative-algorithm", "EAGLE", "--speculative-eagle-topk", "1"),
                *("--speculative-num-steps", "3", "--speculative-num-draft-tokens", "16"),
            ],
            drafting(drafter="head", steps=3, topk=1, nodes=4),
        ),
        (
            ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "12"],
            drafting(drafter="ngram", steps=11, topk=4, nodes=12),
        ),
        (
            ["--speculative-algorithm", "EAGLE", "--speculative-token-map", "ids.pt"],
            drafting(drafter="head", token_map="ids.pt"),
        ),
        (
            vllm(method="eagle3", model="h", num_speculative_tokens=3),
            drafting(drafter="head", model="h", steps=3, topk=1, nodes=4),
        ),
        (
            vllm(method="eagle", model="h", num_speculative_tokens=5),
            drafting(drafter="head", model="h", steps=5, topk=1, nodes=6),
        ),
        (
            vllm(method="mtp", num_speculative_tokens=1),
            drafting(drafter="head", steps=1, topk=1, nodes=2),
        ),
        (
            vllm(method="mtp", model="builtin", num_speculative_tokens=1, revision=None),
            drafting(drafter="head", steps=1, topk=1, nodes=2),
        ),
        (
            vllm(method="draft_model", model="m", num_speculative_tokens=4),
            drafting(drafter="model", model="m", steps=4, topk=1, nodes=5),
        ),
        (
            vllm(model="m", num_speculative_tokens=4),
            drafting(drafter="auto", model="m", steps=4, topk=1, nodes=5),
        ),
        (
            vllm(method="ngram", num_speculative_tokens=8, prompt_lookup_max=5),
            drafting(drafter="ngram", steps=8, topk=1, nodes=9),
        ),
        (
            ["-sc", '{"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2}'],
            drafting(drafter="ngram", steps=8, topk=1, nodes=9),
        ),
        (["--model-path", "m"], EngineConfig(model=ModelConfig(path="m"))),
        (["m"], EngineConfig(model=ModelConfig(path="m"))),
        (["m", "--port", "1", "--tp", "1"], EngineConfig(model=ModelConfig(path="m"))),
        (["--context-length", "99"], EngineConfig(model=ModelConfig(max_model_len=99))),
        (["--mem-fraction-static", "0.7"], EngineConfig(cache=CacheConfig(memory_fraction=0.7))),
        (["--gpu-memory-utilization=0.7"], EngineConfig(cache=CacheConfig(memory_fraction=0.7))),
        (["--max-total-tokens", "512"], EngineConfig(cache=CacheConfig(num_slots=512))),
        (["--disable-radix-cache"], EngineConfig(cache=CacheConfig(prefix_cache=False))),
        (["--no-enable-prefix-caching"], EngineConfig(cache=CacheConfig(prefix_cache=False))),
        (["--enable-prefix-caching"], EngineConfig()),
        (["--enable-auto-tool-choice"], EngineConfig()),
        (
            ["--max-running-requests", "7"],
            EngineConfig(scheduler=SchedulerConfig(max_num_seqs=7)),
        ),
        (
            ["--max-num-batched-tokens", "128"],
            EngineConfig(scheduler=SchedulerConfig(max_batch_tokens=128)),
        ),
        (["-tp", "1", "--dp-size", "1", "--pipeline-parallel-size=1"], EngineConfig()),
        (
            ["--chunked-prefill-size", "4096"],
            EngineConfig(scheduler=SchedulerConfig(max_batch_tokens=4096)),
        ),
        (
            ["--cuda-graph-max-bs", "2"],
            EngineConfig(scheduler=SchedulerConfig(max_graph_batch=2)),
        ),
        (["--disable-cuda-graph"], EngineConfig(scheduler=SchedulerConfig(max_graph_batch=0))),
        (["--enforce-eager"], EngineConfig(scheduler=SchedulerConfig(max_graph_batch=0))),
        (["--max-graph-batch", "0"], EngineConfig(scheduler=SchedulerConfig(max_graph_batch=0))),
        (["--disable-overlap-schedule"], EngineConfig(scheduler=SchedulerConfig(flights=0))),
        (["--no-async-scheduling"], EngineConfig(scheduler=SchedulerConfig(flights=0))),
        (
            ["-tp", "4", "--enable-expert-parallel"],
            EngineConfig(parallel=ParallelConfig(tp=4, ep=0)),
        ),
        (
            ["--tp", "8", "--dp", "8", "--enable-dp-attention"],
            EngineConfig(parallel=ParallelConfig(tp=8, dp=8, dp_attention=True)),
        ),
        (
            ["--data-parallel-size", "4", "--enable-expert-parallel"],
            EngineConfig(parallel=ParallelConfig(dp=4, ep=0)),
        ),
        (
            ["-dp", "2", "--enable-dp-attention"],
            EngineConfig(parallel=ParallelConfig(dp=2, dp_attention=True)),
        ),
        (["--tp-size", "2", "--ep-size", "2"], EngineConfig(parallel=ParallelConfig(tp=2, ep=2))),
        (["--enable-deterministic-inference"], EngineConfig()),
        (["--dtype", "half"], EngineConfig(model=ModelConfig(dtype="float16"))),
        (["--kv-cache-dtype", "fp8"], EngineConfig(cache=CacheConfig(dtype="fp8_e4m3"))),
        (["--kv-cache-dtype", "fp8_e4m3"], EngineConfig(cache=CacheConfig(dtype="fp8_e4m3"))),
        (["--dtype", "float"], EngineConfig(model=ModelConfig(dtype="float32"))),
    ],
)
def test_a_peers_words_mean_what_they_mean_there(
    serve: Serve, arguments: list[str], config: EngineConfig
) -> None:
    assert serve(*arguments) == (config, "")


def test_every_option_of_the_peers_is_tested_here() -> None:
    marks = test_a_peers_words_mean_what_they_mean_there.pytestmark  # type: ignore[attr-defined]
    words = " ".join(word for arguments, _ in marks[0].args[1] for word in arguments)
    words += " --max-queued-requests --shutdown-timeout"
    words += " --constrained-json-whitespace-pattern --constrained-json-disable-any-whitespace"
    for name in vars(PeerOptions()):
        assert name == "model_argument" or "--" + name.replace("_", "-") in words, name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--draft-steps", "3", "--speculative-num-steps", "2"], ["--draft-steps", "-num-steps"]),
        (["-d", "ngram", "--speculative-algorithm", "NGRAM"], ["--drafter", "-algorithm"]),
        (["--draft-nodes", "auto", *vllm(model="m")], ["--draft-nodes", "--speculative-config"]),
        (
            ["--speculative-algorithm", "NGRAM", *vllm(method="ngram", num_speculative_tokens=2)],
            ["--speculative-algorithm", "--speculative-config"],
        ),
        (["--speculative-num-steps", "3"], ["--speculative-num-steps", "-algorithm"]),
        (["--model", "a", "--model-path", "b"], ["--model:", "--model-path"]),
        (["a", "--model", "builtin"], ["MODEL", "--model"]),
        (["a", "--model-path", "b"], ["MODEL", "--model-path"]),
        (["--max-model-len", "9", "--context-length", "9"], ["-model-len", "--context-length"]),
        (
            ["--mem-fraction-static", "0.7", "--gpu-memory-utilization", "0.7"],
            ["--mem-fraction-static", "--gpu-memory-utilization"],
        ),
        (["--no-prefix-cache", "--disable-radix-cache"], ["--no-prefix-cache", "-radix-cache"]),
        (
            ["--no-enable-prefix-caching", "--enable-prefix-caching"],
            ["--enable-prefix-caching", "--no-enable-prefix-caching"],
        ),
    ],
)
def test_what_is_said_twice_is_refused_by_both_names(
    serve: Serve, arguments: list[str], words: list[str]
) -> None:
    config, error = serve(*arguments)
    assert config is None
    for word in words:
        assert word.removesuffix(":") in error, error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tp", "3"], ["--tp", "1, 2, 4 or 8"]),
        (["--tp", "2", "--ep", "4"], ["--ep", "2", "not 4"]),
        (["--tp", "2", "--device", "cuda:1"], ["--tp", "--device cuda"]),
        (["--tp", "2", "--nnodes", "2"], ["--dist-init-addr HOST:PORT"]),
        (["--tp", "2", "--nnodes", "4"], ["--nnodes", "4 machines"]),
        (["--dp", "3", "--enable-dp-attention"], ["--dp", "1, 2, 4 or 8"]),
        (["--dp", "2"], ["--dp", "--enable-dp-attention", "start 2 servers"]),
        (["--enable-dp-attention"], ["--enable-dp-attention", "--dp 2"]),
        (["--tp", "4", "--enable-dp-attention"], ["--enable-dp-attention", "--dp 4"]),
        (["--tp", "8", "--dp", "4", "--enable-dp-attention"], ["--tp", "--dp 4", "left out"]),
        (["--dp", "2", "--ep", "4", "--enable-dp-attention"], ["--ep", "2", "not 4"]),
        (["--dp", "2", "--ep", "0", "--nnodes", "4"], ["--nnodes", "--dp"]),
        (["--dp", "2", "--ep", "0", "--device", "cuda:1"], ["--dp", "--device cuda"]),
        (["--dp", "2", "--ep", "0", "--role", "decode"], ["--role", "--dp 1"]),
        (
            ["--dp", "2", "--ep", "0", "--kv-events-config", '{"enable_kv_cache_events": true}'],
            ["--kv-events-config", "leave out --kv-events-config or --dp"],
        ),
        (["--node-rank", "1"], ["--node-rank", "0 to 0"]),
        (["--dist-init-addr", "here"], ["--dist-init-addr", "HOST:PORT"]),
        (["-pp", "2"], ["-pp 2", "--tp"]),
        (["--speculative-algorithm", "DFLASH"], ["--speculative-algorithm", "STANDALONE"]),
        (["--speculative-algorithm", "STANDALONE"], [HEAD, "STANDALONE"]),
        (["--speculative-algorithm", "NGRAM", HEAD, "m"], [HEAD, "not used by NGRAM"]),
        (
            ["--speculative-algorithm", "EAGLE3", "--speculative-token-map", "f"],
            ["--speculative-token-map", "EAGLE3"],
        ),
        (
            ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", "99"],
            ["--speculative-num-steps", "between 1 and 32"],
        ),
        (
            ["--speculative-algorithm", "EAGLE", "--speculative-num-draft-tokens", "1"],
            ["--speculative-num-draft-tokens", "between 2 and 128"],
        ),
        (["--max-running-requests", "0"], ["--max-running-requests", "1024"]),
        (["--context-length", "3"], ["--context-length", "at least 8"]),
        (["--gpu-memory-utilization", "1.5"], ["--gpu-memory-utilization", "0.98"]),
        (["--speculative-config", "{"], ["--speculative-config", "JSON"]),
        (["--speculative-config", "3"], ["--speculative-config", "object"]),
        (vllm(method="eagle3", model="h"), ["num_speculative_tokens"]),
        (vllm(method="mtp", num_speculative_tokens=True), ["num_speculative_tokens"]),
        (vllm(method="mtp", num_speculative_tokens=99), ["num_speculative_tokens", "32"]),
        (vllm(method="medusa", num_speculative_tokens=2), ["method", "medusa", "eagle3"]),
        (vllm(num_speculative_tokens=2), ["method", "is missing"]),
        (vllm(method="draft_model", num_speculative_tokens=2), ["model", "draft_model"]),
        (vllm(method="eagle", model=3, num_speculative_tokens=2), ["model", "string"]),
        (vllm(method="ngram", model="m", num_speculative_tokens=2), ["model", "ngram"]),
        (
            vllm(method="ngram", num_speculative_tokens=2, prompt_lookup_max=4),
            ["prompt_lookup_max", "5"],
        ),
        (
            vllm(method="mtp", num_speculative_tokens=2, prompt_lookup_max=5),
            ["prompt_lookup_max", "is not supported"],
        ),
        (
            vllm(method="mtp", num_speculative_tokens=2, draft_tensor_parallel_size=2),
            ["draft_tensor_parallel_size", "one device"],
        ),
        (vllm(method="mtp", num_speculative_tokens=2, colour=1), ["colour", "is not supported"]),
    ],
)
def test_what_cannot_be_done_is_refused_in_the_users_words(
    serve: Serve, arguments: list[str], words: list[str]
) -> None:
    config, error = serve(*arguments)
    assert config is None
    for word in words:
        assert word in error, error


@pytest.mark.parametrize(
    ("flag", "word"),
    [
        ("--speculative-accept-threshold-single=0.9", "threshold"),
        ("--code-revision", "no code"),
        ("--quantization", "config.json"),
        ("--quantization-param-path", "checkpoint"),
        ("--long-prefill-token-threshold", "--max-batch-tokens"),
        ("--reasoning-parser-plugin", "built in"),
        ("--tool-server", "itself"),
        ("--cuda-graph-bs", "--max-graph-batch"),
        ("--guided-decoding-backend", "--grammar-backend"),
        ("--kv-transfer-config", "--role"),
        ("--num_speculative_tokens", "--speculative-config"),
        ("--base-gpu-id=2", "--device"),
        ("--seed", "seed"),
    ],
)
def test_a_peers_flag_without_meaning_says_why(serve: Serve, flag: str, word: str) -> None:
    config, error = serve("--model", "m", *([flag] if "=" in flag else [flag, "3"]))
    assert config is None
    assert error.startswith(f"error: {flag.partition('=')[0]}")
    assert word in error.partition("command without them: ")[0]
    assert error.endswith("command without them: eyas serve --model m")


def test_white_space_is_chosen_as_in_sglang(serve: Serve) -> None:
    for flags, spacing in (
        ((), Spacing()),
        (("--constrained-json-whitespace-pattern", r"[\n\t ]*"), Spacing(r"[ \t\n]{0,32}")),
        (("--constrained-json-whitespace-pattern", ""), Spacing("")),
        (("--whitespace-pattern", " ?"), Spacing("[ ]{0,1}")),
        (("--constrained-json-disable-any-whitespace",), Spacing("", ", ", ": ")),
        (("--disable-any-whitespace",), Spacing("", ", ", ": ")),
    ):
        config, error = serve("--model", "m", *flags)
        assert config is not None, error
        assert config.grammar.spacing == spacing
    config, error = serve("--model", "m", "--constrained-json-whitespace-pattern", "x*")
    assert config is None
    assert error.startswith("error: --constrained-json-whitespace-pattern: must be white space")


def test_no_flag_is_both_known_and_refused(serve: Serve) -> None:
    known = {name for parameter in serve_command().params for name in parameter.opts}
    assert not known & (set(REFUSED) | set(ACCEPTED) | set(SPELLINGS))
    assert set(SPELLINGS.values()) <= known | set(REFUSED) | set(ACCEPTED)
    for option, accepted in ACCEPTED.items():
        assert (option in REFUSED) == (accepted.only is not None), option
    assert set(REFUSED) >= SWITCHES


def test_members_of_a_json_option_may_be_given_one_by_one(serve: Serve) -> None:
    whole, _ = serve(*vllm(method="ngram", num_speculative_tokens=4, prompt_lookup_max=5))
    parts, error = serve(
        *("--speculative-config.method", "ngram", "--speculative_config.prompt_lookup_max=5"),
        *("--speculative-config.num_speculative_tokens", "4"),
    )
    assert parts == whole, error
    _, error = serve("--speculative-config.method", "no-such")
    assert "no-such" in error
    _, error = serve("--host.a", "3")
    assert "No such option" in error or "--host.a" in error


def test_a_flag_that_nobody_knows_is_the_usual_error(serve: Serve) -> None:
    config, error = serve("--speculative-nun-steps", "3")
    assert config is None
    assert "No such option" in error and "--speculative-num-steps" in error


def test_our_own_words_come_to_the_same_configuration(serve: Serve) -> None:
    ours, _ = serve(
        *("--drafter", "ngram+head", "--draft-model", "h", "--draft-steps", "3"),
        *("--draft-topk", "2", "--draft-nodes", "6", "--draft-token-map", "f"),
    )
    wanted = drafting(drafter="ngram+head", model="h", steps=3, topk=2, nodes=6, token_map="f")
    assert ours == wanted
    assert serve()[0] == EngineConfig()
    assert msgspec.json.decode(msgspec.json.encode(ours), type=EngineConfig) == ours


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--draft-nodes", "many"], ["--draft-nodes", "auto"]),
        (["--draft-nodes", "1"], ["--draft-nodes", "between 2 and 128"]),
        (["--draft-steps", "0"], ["--draft-steps", "between 1 and 32"]),
        (["--draft-topk", "33"], ["--draft-topk", "between 1 and 32"]),
        (["--drafter", "eagle9"], ["--drafter", "head"]),
        (["--drafter", "model"], ["--draft-model"]),
        (["--drafter", "ngram", "--draft-model", "m"], ["--draft-model"]),
        (["--drafter", "root+ngram"], ["--drafter", "root"]),
    ],
)
def test_drafting_that_cannot_be_is_refused(
    serve: Serve, arguments: list[str], words: list[str]
) -> None:
    config, error = serve(*arguments)
    assert config is None
    for word in words:
        assert word in error, error
