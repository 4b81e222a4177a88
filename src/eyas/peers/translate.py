"""From options in the words of SGLang and vLLM to settings of eyas.

Promises: nothing is said twice; all that cannot be done is told at once, in the words it was asked for
in. Does not know: command lines; what the settings do.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from eyas.peers.accepted import ACCEPTED, note_of, note_of_key
from eyas.peers.refused import REFUSED, REFUSED_KEYS, Refused, reason_for

DEFAULT_STEPS, DEFAULT_TOPK, DEFAULT_NODES = 5, 4, 8
"""What SGLang takes for the sizes that are not given."""
LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
"""Fewest and most tokens that prompt lookup matches here."""
DRAFTING = ("drafter", "draft_model", "draft_steps", "draft_topk", "draft_nodes", "draft_token_map")
"""Our own words for drafting."""

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
    "disable_overlap_schedule": "flights",
    "no_async_scheduling": "flights",
    "max_queued_requests": "max_waiting",
    "shutdown_timeout": "drain_timeout",
    "constrained_json_whitespace_pattern": "whitespace_pattern",
    "constrained_json_disable_any_whitespace": "disable_any_whitespace",
}
"""The setting of ours that a peer's option is another name of."""
_MEANS = {
    "enable_prefix_caching": False,
    "disable_cuda_graph": 0,
    "enforce_eager": 0,
    "disable_overlap_schedule": "0",
    "no_async_scheduling": "0",
}
"""What an option without a value sets its setting to, where that is not True."""
SPECULATIVE = (
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_token_map",
)
SPELLINGS = {
    "--tp": "--tensor-parallel-size",
    "--tp-size": "--tensor-parallel-size",
    "--dp": "--data-parallel-size",
    "--dp-size": "--data-parallel-size",
    "--pp": "--pipeline-parallel-size",
    "--pp-size": "--pipeline-parallel-size",
    "--ep": "--expert-parallel-size",
    "--ep-size": "--expert-parallel-size",
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
"""What the peers also take for options, now or once; abbreviations need not stand here."""


@dataclass(frozen=True)
class Said:
    """settings: what the peers' options come to, named as `eyas.settings.engine_config` does.

    flags: by an option of ours, what was written instead of it. notes: what changes nothing, and why.
    reasons: what cannot be done.
    """

    settings: dict[str, Any]
    flags: dict[str, str]
    notes: tuple[str, ...]
    reasons: tuple[str, ...]


def in_our_words(said: Mapping[str, Any], model: str, given: Collection[str]) -> Said:
    """What the peers' options mean. Nothing is raised for what cannot be done: `Said.reasons` tells it.

    said: by name with underscores; None is not said, and neither is a switch that is off. model: as our
    own setting has it. given: names of our own settings that were given too.
    """
    said = {name: value for name, value in said.items() if value is not None}
    settings: dict[str, Any] = {}
    flags: dict[str, str] = {}
    notes: list[str] = []
    reasons: list[str] = []
    for name, value in said.items():
        option = option_of(name)
        if name not in SETTING:
            if option in ACCEPTED or option in REFUSED:
                _pass_over(option, value, notes, reasons)
            continue
        if value is False:
            continue
        setting = SETTING[name]
        other = option_of(setting) if setting in given else flags.get(option_of(setting))
        if other is not None:
            reasons.append(f"{option}: says the same as {other}; give one of them")
            continue
        if name == "chunked_prefill_size" and value == -1:
            reasons.append(
                f"{option} -1: prompts are always cut, so that they and drafts share steps; say into "
                "pieces of how many tokens"
            )
            continue
        settings[setting] = _MEANS.get(name, value)
        flags[option_of(setting)] = option
    ours = [name for name in DRAFTING if name in given]
    sglang = {name: value for name, value in said.items() if name in SPECULATIVE}
    vllm = said.get("speculative_config")
    ways = [*ours[:1], *list(sglang)[:1], *(["speculative_config"] if vllm is not None else [])]
    try:
        if len(ways) > 1:
            first, second = map(option_of, ways[:2])
            raise Refused([f"{first}: drafting is also set by {second}; say all of it one way"])
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
        del settings["draft_model"]  # its own head: what "head" alone means
    return Said(settings, flags, tuple(notes), tuple(reasons))


def option_of(name: str) -> str:
    """An option, by the name of its setting."""
    return "MODEL" if name == "model_argument" else "--" + name.replace("_", "-")


def _pass_over(option: str, value: Any, notes: list[str], reasons: list[str]) -> None:
    """An option that changes nothing, or cannot be had. One that is off is neither."""
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


def _from_sglang(said: Mapping[str, Any]) -> dict[str, Any]:
    asked = said.get("speculative_algorithm")
    if asked is None:
        raise Refused([f"{option_of(next(iter(said)))}: needs --speculative-algorithm as well"])
    algorithm = str(asked).upper()
    if algorithm not in DRAFTER_OF_ALGORITHM:
        known = ", ".join(DRAFTER_OF_ALGORITHM)
        raise Refused([f"--speculative-algorithm {asked}: is not known here; name one of {known}"])
    drafter, model = DRAFTER_OF_ALGORITHM[algorithm], said.get("speculative_draft_model_path")
    token_map = said.get("speculative_token_map")
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
        said.get("speculative_num_steps"),
        said.get("speculative_eagle_topk"),
        said.get("speculative_num_draft_tokens"),
    )


def _sizes(
    algorithm: str, steps: int | None, topk: int | None, nodes: int | None
) -> dict[str, Any]:
    """The size of SGLang's tree; nothing where it is left to the engine."""
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
    wrong: list[str] = []

    def say(key: str, message: str) -> None:
        wrong.append(f"--speculative-config: {key}: {message}")

    for key, value in keys.items():
        if key in LOOKUP and method == "ngram":
            if value != LOOKUP[key]:
                say(key, f"prompt lookup matches {LOOKUP[key]} here; leave it out")
        elif value is not None:
            note = note_of_key(key, value)
            if note is not None:
                notes.append(note)
            else:
                say(key, f"means nothing in eyas: {REFUSED_KEYS.get(key, 'leave it out')}")
    if model is not None and not isinstance(model, str):
        say("model", "must be a string")
    if method is None and model is None:
        say("method", f"is missing; use one of {', '.join(DRAFTER_OF_METHOD)}")
    if method is not None and method not in DRAFTER_OF_METHOD:
        say("method", f"{method!r} is not one of {', '.join(DRAFTER_OF_METHOD)}")
    if method == "draft_model" and model is None:
        say("model", "is needed by draft_model")
    if method == "ngram" and model is not None:
        say("model", "is not used by ngram; leave it out")
    if type(count) is not int:
        say("num_speculative_tokens", "must be there, a whole number")
    if wrong:
        raise Refused(wrong)
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
    except (ValueError, RecursionError) as error:
        raise Refused([f"--speculative-config: is not JSON ({error})"]) from error
    if not isinstance(value, dict):
        raise Refused([f"--speculative-config: must be a JSON object, not {text!r}"])
    return value
