"""Translate options of SGLang and vLLM into settings of eyas.

Promises: a setting that is given twice is an error; all errors are reported together, with the option
names that the user wrote. Does not know: command lines; what the settings do.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from eyas.peers.accepted import ACCEPTED, note_of, note_of_key
from eyas.peers.refused import REFUSED, REFUSED_KEYS, Refused, reason_for

DEFAULT_STEPS, DEFAULT_TOPK, DEFAULT_NODES = 5, 4, 8
"""SGLang's defaults of tree sizes, used where only some of them are given."""
LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
"""The minimum and maximum number of tokens that prompt lookup of eyas matches."""
DRAFTING = ("drafter", "draft_model", "draft_steps", "draft_topk", "draft_nodes", "draft_token_map")
"""The settings of eyas for drafting."""

DRAFTER_OF_ALGORITHM = {
    "EAGLE": "head",
    "EAGLE3": "head",
    "NEXTN": "head",
    "STANDALONE": "model",
    "NGRAM": "ngram",
}
DRAFTER_OF_METHOD = {
    "eagle": "head",
    "eagle3": "head",
    "mtp": "head",
    "draft_model": "model",
    "ngram": "ngram",
}
SETTING = {
    "model_argument": "model",
    "model_path": "model",
    "context_length": "max_model_len",
    "mem_fraction_static": "memory_fraction",
    "gpu_memory_utilization": "memory_fraction",
    "max_running_requests": "max_num_seqs",
    "max_total_tokens": "num_slots",
    "max_num_batched_tokens": "max_batch_tokens",
    "chunked_prefill_size": "max_batch_tokens",
    "disable_radix_cache": "no_prefix_cache",
    "enable_prefix_caching": "no_prefix_cache",
    "no_enable_prefix_caching": "no_prefix_cache",
    "cuda_graph_max_bs": "max_graph_batch",
    "disable_cuda_graph": "max_graph_batch",
    "enforce_eager": "max_graph_batch",
    "enable_deterministic_inference": "exact",
    "enable_expert_parallel": "expert_parallel_size",
    "disable_overlap_schedule": "flights",
    "no_async_scheduling": "flights",
    "max_queued_requests": "max_waiting",
    "shutdown_timeout": "drain_timeout",
    "constrained_json_whitespace_pattern": "whitespace_pattern",
    "constrained_json_disable_any_whitespace": "disable_any_whitespace",
}
"""Option of a peer -> the setting of eyas that it is another name of."""
_VALUES = {
    "enable_prefix_caching": False,
    "disable_cuda_graph": 0,
    "enforce_eager": 0,
    "enable_expert_parallel": 0,
    "disable_overlap_schedule": "0",
    "no_async_scheduling": "0",
}
"""Option of a peer without a value -> the value of its setting, where that is not True."""
SPECULATIVE = (
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_token_map",
)
SPELLINGS = {
    "--pp": "--pipeline-parallel-size",
    "--pp-size": "--pipeline-parallel-size",
    "-tp": "--tensor-parallel-size",
    "-dp": "--data-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-q": "--quantization",
    "-sc": "--speculative-config",
    "--speculative-algo": "--speculative-algorithm",
    "--speculative-draft": "--speculative-draft-model-path",
    "--speculative-draft-model": "--speculative-draft-model-path",
}
"""Other spelling, of now or of an older release -> option of a peer. Abbreviations are not listed."""


@dataclass(frozen=True)
class Translation:
    """Options of SGLang and vLLM in terms of eyas.

    settings: keywords of `eyas.settings.engine_config`. flags: option of eyas -> the option that
    the user wrote for it. notes: a text for each option without effect. reasons: a text for each
    option that is invalid or not supported.
    """

    settings: dict[str, Any]
    flags: dict[str, str]
    notes: tuple[str, ...]
    reasons: tuple[str, ...]


def translate_options(
    options: Mapping[str, Any], model: str, given: Collection[str]
) -> Translation:
    """Translate the peers' options. Errors are not raised, but listed in `Translation.reasons`.

    options: values by name, with underscores; None and a False switch count as not given. model: the
    value of --model. given: names of the settings of eyas that were given as well.
    """
    options = {name: value for name, value in options.items() if value is not None}
    settings: dict[str, Any] = {}
    flags: dict[str, str] = {}
    notes: list[str] = []
    reasons: list[str] = []
    for name, value in options.items():
        option = option_of(name)
        if name not in SETTING:
            if option in ACCEPTED or option in REFUSED:
                _add_note_or_reason(option, value, notes, reasons)
            continue
        if value is False:
            continue
        setting = SETTING[name]
        other = option_of(setting) if setting in given else flags.get(option_of(setting))
        if other is not None:
            reasons.append(f"{option}: sets the same as {other}; give one of them")
            continue
        if name == "chunked_prefill_size" and value == -1:
            reasons.append(
                f"{option} -1: prompts are always split into chunks; give the size of a chunk in tokens"
            )
            continue
        settings[setting] = _VALUES.get(name, value)
        flags[option_of(setting)] = option
    ours = [name for name in DRAFTING if name in given]
    sglang = {name: value for name, value in options.items() if name in SPECULATIVE}
    vllm = options.get("speculative_config")
    dialects = [*ours[:1], *list(sglang)[:1], *(["speculative_config"] if vllm is not None else [])]
    try:
        if len(dialects) > 1:
            first, second = map(option_of, dialects[:2])
            raise Refused(
                [f"{first}: drafting is also set by {second}; use the options of one engine"]
            )
        if sglang:
            settings |= _from_sglang(sglang)
            flags |= _SGLANG_FLAGS
        if vllm is not None:
            settings |= _from_vllm(vllm, notes)
            flags |= _VLLM_FLAGS
    except Refused as refused:
        reasons += refused.reasons
    own_model = settings.get("model", model)
    if settings.get("drafter") == "head" and settings.get("draft_model") == own_model:
        del settings["draft_model"]  # "head" alone means the model's own head
    return Translation(settings, flags, tuple(notes), tuple(reasons))


def option_of(name: str) -> str:
    """Return the option of a setting or of a peer's option name."""
    return "MODEL" if name == "model_argument" else "--" + name.replace("_", "-")


def _add_note_or_reason(option: str, value: Any, notes: list[str], reasons: list[str]) -> None:
    """Append the text of an option without effect to `notes`, of a refused option to `reasons`."""
    if value is False:
        return
    note = note_of(option, value)
    if note is not None:
        notes.append(note)
    else:
        reasons.append(reason_for(option, option if value is True else f"{option} {value}"))


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


def _from_sglang(options: Mapping[str, Any]) -> dict[str, Any]:
    name = options.get("speculative_algorithm")
    if name is None:
        raise Refused([f"{option_of(next(iter(options)))}: needs --speculative-algorithm as well"])
    algorithm = str(name).upper()
    if algorithm not in DRAFTER_OF_ALGORITHM:
        known = ", ".join(DRAFTER_OF_ALGORITHM)
        raise Refused([f"--speculative-algorithm {name}: is not supported; use one of {known}"])
    drafter, model = DRAFTER_OF_ALGORITHM[algorithm], options.get("speculative_draft_model_path")
    token_map = options.get("speculative_token_map")
    reasons = []
    if drafter == "model" and model is None:
        reasons.append(f"--speculative-draft-model-path: is needed by {algorithm}")
    if drafter == "ngram" and model is not None:
        reasons.append(f"--speculative-draft-model-path: is not used by {algorithm}; leave it out")
    if token_map is not None and algorithm != "EAGLE":
        reasons.append(f"--speculative-token-map: is for EAGLE; {algorithm} does not read it")
    if reasons:
        raise Refused(reasons)
    settings = {"drafter": drafter, "draft_model": model, "draft_token_map": token_map}
    return {k: v for k, v in settings.items() if v is not None} | _sizes(
        algorithm,
        options.get("speculative_num_steps"),
        options.get("speculative_eagle_topk"),
        options.get("speculative_num_draft_tokens"),
    )


def _sizes(
    algorithm: str, steps: int | None, topk: int | None, nodes: int | None
) -> dict[str, Any]:
    """Return the settings of the tree's size; none where no size is given."""
    if steps is None and topk is None and nodes is None:
        return {}
    if algorithm == "NGRAM" and steps is None and nodes is not None:
        steps = nodes - 1
    steps = DEFAULT_STEPS if steps is None else steps
    topk = DEFAULT_TOPK if topk is None else topk
    nodes = DEFAULT_NODES if nodes is None else nodes
    return {
        "draft_steps": steps,
        "draft_topk": topk,
        "draft_nodes": steps + 1 if topk == 1 else nodes,
    }


def _from_vllm(config: str | Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    keys = dict(config) if isinstance(config, Mapping) else _json_object(config)
    method, model, count = (
        keys.pop(k, None) for k in ("method", "model", "num_speculative_tokens")
    )
    reasons: list[str] = []

    def refuse(key: str, problem: str) -> None:
        reasons.append(f"--speculative-config: {key}: {problem}")

    for key, value in keys.items():
        if key in LOOKUP and method == "ngram":
            if value != LOOKUP[key]:
                refuse(key, f"prompt lookup matches {LOOKUP[key]} here; leave it out")
        elif value is not None:
            note = note_of_key(key, value)
            if note is not None:
                notes.append(note)
            else:
                refuse(key, f"is not supported: {REFUSED_KEYS.get(key, 'leave it out')}")
    if model is not None and not isinstance(model, str):
        refuse("model", "must be a string")
    if method is None and model is None:
        refuse("method", f"is missing; use one of {', '.join(DRAFTER_OF_METHOD)}")
    if method is not None and method not in DRAFTER_OF_METHOD:
        refuse("method", f"{method!r} is not one of {', '.join(DRAFTER_OF_METHOD)}")
    if method == "draft_model" and model is None:
        refuse("model", "is needed by draft_model")
    if method == "ngram" and model is not None:
        refuse("model", "is not used by ngram; leave it out")
    if type(count) is not int:
        refuse("num_speculative_tokens", "must be given, as a whole number")
    if reasons:
        raise Refused(reasons)
    settings: dict[str, Any] = {
        "drafter": "auto" if method is None else DRAFTER_OF_METHOD[method],
        "draft_steps": count,
        "draft_topk": 1,
        "draft_nodes": count + 1,
    }
    return settings if model is None else {**settings, "draft_model": model}


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused([f"--speculative-config: is not JSON ({error})"]) from error
    if not isinstance(value, dict):
        raise Refused([f"--speculative-config: must be a JSON object, not {text!r}"])
    return value
