"""Options of SGLang and vLLM that have no effect here, because eyas always does what they ask for.

Promises: ignoring one of them changes no answer and no capacity that it asks for; where that depends on
the value, the values are listed. Does not know: options that have an effect.
"""

from __future__ import annotations

from typing import Any, NamedTuple

_KERNELS = "eyas chooses its kernels itself, by measurements on this device"
_COMPILED = "kernels are always compiled"
_ONE = "there is one server and one copy of the model, which --tp divides"
_REDUCED = "eyas chooses how the ranks of --tp exchange sums"
_LOGS = "the content of requests is never logged; --log-level sets what else is"
_WARM = "kernels are warmed up before the server reports that it is ready"
_STEPS = "prompt chunks and draft trees always share the tokens of a step (--max-batch-tokens)"
_SLOTS = "the cache allocates single tokens, and prefixes are shared token by token"

_BY_REASON = {
    "metrics are always exported, at /metrics": (
        "--enable-metrics --enable-metrics-for-all-schedulers --show-time-cost "
        "--enable-server-load-tracking"
    ),
    "usage always includes the number of cached prompt tokens": (
        "--enable-cache-report --enable-prompt-tokens-details"
    ),
    _LOGS: (
        "--disable-log-requests --no-enable-log-requests --log-requests-level=* --max-log-len=* "
        "--uvicorn-log-level=* --log-level-http=* --disable-uvicorn-access-log "
        "--disable-log-stats"
    ),
    "a line is logged every 10 seconds while there are requests": ("--decode-log-interval=*"),
    _ONE: (
        "--pipeline-parallel-size=1 --data-parallel-rank=0 "
        "--moe-dense-tp-size=1 --speculative-draft-tensor-parallel-size=1 --api-server-count=1 "
        "--gpu-id-step=1 --base-gpu-id=0 --distributed-executor-backend=* "
        "--master-addr=* --master-port=* --nccl-port=* --load-balance-method=* "
        "--disaggregation-mode=null --disable-frontend-multiprocessing "
        "--max-parallel-loading-workers=*"
    ),
    _REDUCED: (
        "--disable-custom-all-reduce --enable-flashinfer-allreduce-fusion --enable-p2p-check "
        "--enable-nccl-nvls --enable-symm-mem --moe-a2a-backend=none"
    ),
    "weights are read in the format that their config.json names": "--quantization=none",
    "safetensors files are read": "--load-format=auto|safetensors",
    "the model's own files are used": (
        "--tokenizer-mode=auto --config-format=auto|hf --generation-config=auto "
        "--sampling-defaults=model --model-impl=auto --response-role=assistant"
    ),
    "templates get messages in the format that they read": "--chat-template-content-format=auto",
    "of models that read images too, the text model is served": "--language-model-only",
    _STEPS: (
        "--enable-chunked-prefill --enable-mixed-chunk --max-prefill-tokens=* "
        "--max-num-partial-prefills=1 --max-long-partial-prefills=1"
    ),
    "requests are served in order of arrival": (
        "--schedule-policy=fcfs --scheduling-policy=fcfs --schedule-conservativeness=*"
    ),
    "the next step is launched while the last one runs, where that helps (--flights)": (
        "--enable-overlap-schedule --async-scheduling --num-scheduler-steps=* "
        "--num-continuous-decode-steps=*"
    ),
    "tokens are sent as soon as they are generated": "--stream-interval=*",
    _SLOTS: (
        "--page-size=* --block-size=* --prefix-caching-hash-algo=* --radix-eviction-policy=lru "
        "--swap-space=* --cpu-offload-gb=0"
    ),
    _COMPILED: "--enable-torch-compile --torch-compile-max-bs=*",
    _KERNELS: (
        "--attention-backend=* --prefill-attention-backend=* --decode-attention-backend=* "
        "--sampling-backend=* --mm-attention-backend=* --moe-runner-backend=* --moe-backend=* "
        "--fp8-gemm-backend=* --fp4-gemm-backend=* --linear-attn-backend=* --kernel-config=* "
        "--triton-attention-num-kv-splits=* --speculative-attention-mode=* "
        "--speculative-draft-attention-backend=* --speculative-moe-runner-backend=* "
        "--speculative-moe-a2a-backend=* --disable-shared-experts-fusion --disable-flashinfer-autotune "
        "--enable-flashinfer-autotune --disable-cascade-attn --enable-dbo "
        "--triton-attention-reduce-in-fp32"
    ),
    "steps are captured as CUDA graphs; limit them with --max-graph-batch": (
        "--compilation-config=* --optimization-level=* --disable-cuda-graph-padding "
        "--enable-piecewise-cuda-graph --disable-piecewise-cuda-graph --max-seq-len-to-capture=* "
        "--enable-profile-cuda-graph"
    ),
    _WARM: "--skip-server-warmup --warmups=*",
    "code of a checkpoint is never run": "--trust-remote-code",
    "a stalled engine is reported at /ready (--stall-timeout)": (
        "--watchdog-timeout=* --soft-watchdog-timeout=*"
    ),
    "an idle process sleeps": "--sleep-on-idle",
    "models may always choose to call tools": "--enable-auto-tool-choice",
    "reasoning is always separated from content (--reasoning-parser sets its format)": (
        "--enable-reasoning"
    ),
    "grammars are compiled by threads of the process (--grammar-backend)": (
        "--constrained-json-disable-cache"
    ),
    "there are no such pages": "--disable-fastapi-docs",
    "progress is shown only on a terminal": "--use-tqdm-on-load",
}


class Accepted(NamedTuple):
    """An option that has no effect.

    reason: why. takes_value: whether a value follows it. only: the values without effect; None is all.
    """

    reason: str
    takes_value: bool
    only: tuple[str, ...] | None


def _parse(word: str, reason: str) -> tuple[str, Accepted]:
    """Parse `--flag` (no value), `--flag=*` (any value) or `--flag=A|B` (these values)."""
    flag, equals, values = word.partition("=")
    only = None if values in ("", "*") else tuple(values.split("|"))
    return flag, Accepted(reason, bool(equals), only)


ACCEPTED = dict(
    _parse(word, reason) for reason, words in _BY_REASON.items() for word in words.split()
)
"""The options without effect, by name."""

ACCEPTED_KEYS: dict[str, Accepted] = {
    "draft_tensor_parallel_size": Accepted(_ONE, True, ("1",)),
    "tensor_parallel_size": Accepted(_ONE, True, ("1",)),
    "attention_backend": Accepted(_KERNELS, True, None),
    "moe_backend": Accepted(_KERNELS, True, None),
    "enforce_eager": Accepted("limit captured steps with --max-graph-batch", True, ("False",)),
    "parallel_drafting": Accepted("levels are drafted one after the other", True, ("False",)),
    "disable_padded_drafter_batch": Accepted(_KERNELS, True, None),
}
"""The keys of vLLM's --speculative-config without effect."""


def note_of(option: str, value: Any) -> str | None:
    """Return why an option has no effect; None where it may have one.

    value: True for an option without a value.
    """
    return _note(option, ACCEPTED.get(option), value)


def note_of_key(key: str, value: Any) -> str | None:
    """Return why a key of --speculative-config has no effect; None where it may have one."""
    return _note(f"--speculative-config: {key}", ACCEPTED_KEYS.get(key), value)


def _note(name: str, accepted: Accepted | None, value: Any) -> str | None:
    if accepted is None:
        return None
    if accepted.only is not None and str(value).lower() not in map(str.lower, accepted.only):
        return None
    shown = f"{name} {value}" if accepted.takes_value else name
    return f"{shown}: has no effect: {accepted.reason}"
