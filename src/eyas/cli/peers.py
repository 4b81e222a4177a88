"""What SGLang and vLLM call our options, so that their commands work as they are.

Promises: a peer's option does here what it does there, or is an error that says why and what to do
instead; nothing is said twice; what was said in a peer's words is refused in those words.
Does not know: what our options mean; `eyas.cli.options` does.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any

import typer

from eyas.cli.errors import in_words_of_options
from eyas.cli.options import DraftOptions
from eyas.cli.refusals import REFUSED_KEYS

PANEL = "Names that SGLang and vLLM use"
DEFAULT_STEPS, DEFAULT_TOPK, DEFAULT_NODES = 5, 4, 8
"""What SGLang takes for the sizes that are not given."""
LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
"""Fewest and most tokens that prompt lookup matches here."""


class Algorithm(StrEnum):
    """SGLang's names of drafters."""

    EAGLE = "EAGLE"
    EAGLE3 = "EAGLE3"
    NEXTN = "NEXTN"
    STANDALONE = "STANDALONE"
    NGRAM = "NGRAM"


_DRAFTER_OF_ALGORITHM = {
    Algorithm.EAGLE: "head",
    Algorithm.EAGLE3: "head",
    Algorithm.NEXTN: "head",
    Algorithm.STANDALONE: "model",
    Algorithm.NGRAM: "ngram",
}
_DRAFTER_OF_METHOD = {
    "eagle": "head",
    "eagle3": "head",
    "mtp": "head",
    "draft_model": "model",
    "ngram": "ngram",
}
_SETTING = {
    "model_argument": "model",
    "model_path": "model",
    "context_length": "max_model_len",
    "mem_fraction_static": "memory_fraction",
    "gpu_memory_utilization": "memory_fraction",
    "max_running_requests": "max_num_seqs",
    "max_total_tokens": "num_slots",
    "max_num_batched_tokens": "max_batch_tokens",
    "disable_radix_cache": "no_prefix_cache",
    "enable_prefix_caching": "no_prefix_cache",
    "no_enable_prefix_caching": "no_prefix_cache",
    "constrained_json_whitespace_pattern": "whitespace_pattern",
    "constrained_json_disable_any_whitespace": "disable_any_whitespace",
}
"""The option of ours that a peer's option is another name of."""
_ALWAYS_ONE = ("tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size")


def _option(*names: str, says: str, **more: Any) -> Any:
    return typer.Option(*names, help=says, rich_help_panel=PANEL, show_default=False, **more)


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """Options in the peers' words; what is not given is None."""

    model_argument: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="The same as --model.", show_default=False),
    ] = None
    model_path: Annotated[str | None, _option("--model-path", says="SGLang: --model.")] = None
    speculative_algorithm: Annotated[
        Algorithm | None,
        _option(
            "--speculative-algorithm",
            says="SGLang: EAGLE, EAGLE3 and NEXTN are --drafter head, STANDALONE is model, NGRAM is "
            "ngram.",
            case_sensitive=False,
            metavar="<name>",
        ),
    ] = None
    speculative_draft_model_path: Annotated[
        str | None,
        _option("--speculative-draft-model-path", says="SGLang: --draft-model."),
    ] = None
    speculative_num_steps: Annotated[
        int | None,
        _option(
            "--speculative-num-steps",
            says=f"SGLang: --draft-steps; {DEFAULT_STEPS} where only other sizes are given.",
        ),
    ] = None
    speculative_eagle_topk: Annotated[
        int | None,
        _option(
            "--speculative-eagle-topk",
            says=f"SGLang: --draft-topk; {DEFAULT_TOPK} where only other sizes are given.",
        ),
    ] = None
    speculative_num_draft_tokens: Annotated[
        int | None,
        _option(
            "--speculative-num-draft-tokens",
            says=f"SGLang: --draft-nodes; {DEFAULT_NODES} where only other sizes are given; a chain "
            "always has its steps and the root.",
        ),
    ] = None
    speculative_token_map: Annotated[
        str | None, _option("--speculative-token-map", says="SGLang: --draft-token-map.")
    ] = None
    speculative_config: Annotated[
        str | None,
        _option(
            "--speculative-config",
            metavar="<json>",
            says='vLLM: {"method": "eagle3", "model": ..., "num_speculative_tokens": ...} with method '
            "eagle, eagle3, mtp, draft_model or ngram; drafts a chain of so many tokens.",
        ),
    ] = None
    context_length: Annotated[
        int | None, _option("--context-length", says="SGLang: --max-model-len.")
    ] = None
    mem_fraction_static: Annotated[
        float | None, _option("--mem-fraction-static", says="SGLang: --memory-fraction.")
    ] = None
    gpu_memory_utilization: Annotated[
        float | None, _option("--gpu-memory-utilization", says="vLLM: --memory-fraction.")
    ] = None
    max_running_requests: Annotated[
        int | None, _option("--max-running-requests", says="SGLang: --max-num-seqs.")
    ] = None
    max_total_tokens: Annotated[
        int | None, _option("--max-total-tokens", says="SGLang: --num-slots.")
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, _option("--max-num-batched-tokens", says="vLLM: --max-batch-tokens.")
    ] = None
    disable_radix_cache: Annotated[
        bool | None, _option("--disable-radix-cache", says="SGLang: --no-prefix-cache.")
    ] = None
    enable_prefix_caching: Annotated[
        bool | None, _option("--enable-prefix-caching", says="vLLM: not --no-prefix-cache.")
    ] = None
    no_enable_prefix_caching: Annotated[
        bool | None, _option("--no-enable-prefix-caching", says="vLLM: --no-prefix-cache.")
    ] = None
    constrained_json_whitespace_pattern: Annotated[
        str | None,
        _option("--constrained-json-whitespace-pattern", says="SGLang: --whitespace-pattern."),
    ] = None
    constrained_json_disable_any_whitespace: Annotated[
        bool | None,
        _option(
            "--constrained-json-disable-any-whitespace", says="SGLang: --disable-any-whitespace."
        ),
    ] = None
    enable_auto_tool_choice: Annotated[
        bool | None,
        _option("--enable-auto-tool-choice", says="vLLM: models may always choose to call tools."),
    ] = None
    tensor_parallel_size: Annotated[
        int | None,
        _option("--tensor-parallel-size", "--tp-size", "--tp", says="Both: only 1."),
    ] = None
    data_parallel_size: Annotated[
        int | None, _option("--data-parallel-size", "--dp-size", "--dp", says="Both: only 1.")
    ] = None
    pipeline_parallel_size: Annotated[
        int | None,
        _option("--pipeline-parallel-size", "--pp-size", "--pp", says="Both: only 1."),
    ] = None


@dataclass(frozen=True)
class Said:
    """settings: what the peers' options come to, named as `options.engine_config` does.

    flags: by an option of ours, what the user wrote instead of it.
    """

    settings: dict[str, Any]
    flags: dict[str, str]

    def blame(self, error: ValueError) -> ValueError:
        """The same error, about what the user wrote."""
        option, colon, rest = in_words_of_options(str(error)).partition(":")
        return ValueError(f"{self.flags.get(option, option)}{colon}{rest}")


def in_our_words(peers: PeerOptions, model: str, given: Collection[str]) -> Said:
    """What the peers' options mean. ValueError for what is said twice, or cannot be done here.

    model: as our own option has it. given: names of our own options that are on the command line.
    """
    said = {name: value for name, value in vars(peers).items() if value is not None}
    settings: dict[str, Any] = {}
    flags: dict[str, str] = {}
    for name, value in said.items():
        if name in _ALWAYS_ONE and value != 1:
            raise ValueError(f"{_flag(name)}: eyas runs on one device; only 1 is possible")
        if name not in _SETTING:
            continue
        setting = _SETTING[name]
        other = _flag(setting) if setting in given else flags.get(_flag(setting))
        if other is not None:
            raise ValueError(f"{_flag(name)}: says the same as {other}; give one of them")
        settings[setting] = not value if name == "enable_prefix_caching" else value
        flags[_flag(setting)] = _flag(name)
    ours = [field.name for field in fields(DraftOptions) if field.name in given]
    sglang = {name: value for name, value in said.items() if name.startswith("speculative_")}
    vllm = sglang.pop("speculative_config", None)
    ways = [*ours[:1], *list(sglang)[:1], *(["speculative_config"] if vllm is not None else [])]
    if len(ways) > 1:
        raise ValueError(
            f"{_flag(ways[0])}: drafting is also set by {_flag(ways[1])}; say all of it one way"
        )
    if sglang:
        settings |= _from_sglang(sglang)
        flags |= _SGLANG_FLAGS
    if vllm is not None:
        settings |= _from_vllm(vllm)
        flags |= _VLLM_FLAGS
    own_model = settings.get("model", model)
    if settings.get("drafter") == "head" and settings.get("draft_model") == own_model:
        del settings["draft_model"]  # its own head: what "head" alone means
    return Said(settings, flags)


def _flag(name: str) -> str:
    return "MODEL" if name == "model_argument" else "--" + name.replace("_", "-")


_SGLANG_FLAGS = {
    "--drafter": "--speculative-algorithm",
    "--draft-model": "--speculative-draft-model-path",
    "--draft-steps": "--speculative-num-steps",
    "--draft-topk": "--speculative-eagle-topk",
    "--draft-nodes": "--speculative-num-draft-tokens",
    "--draft-token-map": "--speculative-token-map",
}
_VLLM_FLAGS = {
    "--drafter": "--speculative-config: method",
    "--draft-model": "--speculative-config: model",
    "--draft-steps": "--speculative-config: num_speculative_tokens",
}


def _from_sglang(said: Mapping[str, Any]) -> dict[str, Any]:
    algorithm = said.get("speculative_algorithm")
    if algorithm is None:
        raise ValueError(f"{_flag(next(iter(said)))}: needs --speculative-algorithm as well")
    drafter, model = _DRAFTER_OF_ALGORITHM[algorithm], said.get("speculative_draft_model_path")
    if drafter == "model" and model is None:
        raise ValueError(f"--speculative-draft-model-path: is needed by {algorithm}")
    if drafter == "ngram" and model is not None:
        raise ValueError(
            f"--speculative-draft-model-path: is not used by {algorithm}; leave it out"
        )
    token_map = said.get("speculative_token_map")
    if token_map is not None and algorithm is not Algorithm.EAGLE:
        raise ValueError(f"--speculative-token-map: is for EAGLE; {algorithm} does not read it")
    settings = {"drafter": drafter, "draft_model": model, "draft_token_map": token_map}
    return {k: v for k, v in settings.items() if v is not None} | _sizes(
        algorithm,
        said.get("speculative_num_steps"),
        said.get("speculative_eagle_topk"),
        said.get("speculative_num_draft_tokens"),
    )


def _sizes(
    algorithm: Algorithm, steps: int | None, topk: int | None, nodes: int | None
) -> dict[str, Any]:
    """The size of SGLang's tree; nothing where it is left to the engine."""
    if steps is None and topk is None and nodes is None:
        return {}
    if algorithm is Algorithm.NGRAM and steps is None and nodes is not None:
        steps = nodes - 1
    steps = DEFAULT_STEPS if steps is None else steps
    topk = DEFAULT_TOPK if topk is None else topk
    nodes = DEFAULT_NODES if nodes is None else nodes
    return {
        "draft_steps": steps,
        "draft_topk": topk,
        "draft_nodes": steps + 1 if topk == 1 else nodes,
    }


def _from_vllm(text: str) -> dict[str, Any]:
    keys = _json_object(text)
    method, model, count = (
        keys.pop(k, None) for k in ("method", "model", "num_speculative_tokens")
    )
    for key, value in keys.items():
        if key in LOOKUP and method == "ngram":
            if value != LOOKUP[key]:
                raise _wrong(key, f"prompt lookup matches {LOOKUP[key]} here; leave it out")
        elif value is not None:
            raise _wrong(key, f"means nothing in eyas: {REFUSED_KEYS.get(key, 'leave it out')}")
    if model is not None and not isinstance(model, str):
        raise _wrong("model", "must be a string")
    if method is None and model is None:
        raise _wrong("method", f"is missing; use one of {', '.join(_DRAFTER_OF_METHOD)}")
    if method is not None and method not in _DRAFTER_OF_METHOD:
        raise _wrong("method", f"{method!r} is not one of {', '.join(_DRAFTER_OF_METHOD)}")
    if method == "draft_model" and model is None:
        raise _wrong("model", "is needed by draft_model")
    if method == "ngram" and model is not None:
        raise _wrong("model", "is not used by ngram; leave it out")
    if type(count) is not int:
        raise _wrong("num_speculative_tokens", "must be there, a whole number")
    settings: dict[str, Any] = {
        "drafter": "auto" if method is None else _DRAFTER_OF_METHOD[method],
        "draft_steps": count,
        "draft_topk": 1,
        "draft_nodes": count + 1,
    }
    return settings if model is None else {**settings, "draft_model": model}


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--speculative-config: is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"--speculative-config: must be a JSON object, not {text!r}")
    return value


def _wrong(key: str, message: str) -> ValueError:
    return ValueError(f"--speculative-config: {key}: {message}")
