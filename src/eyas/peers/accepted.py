"""Options of SGLang and vLLM that change nothing here, because what they ask for is so already.

Promises: nobody who relies on one of them gets other answers, or less room, than it asks for; where
that depends on its value, the values are listed. Does not know: options that do something.
"""

from __future__ import annotations

from typing import Any, NamedTuple

_KERNELS = "eyas chooses its own kernels, by what they were seen to do on this device"
_COMPILED = "kernels are compiled in any case"
_ONE = "eyas runs on one device in one process"
_REDUCED = "there is one device, so that nothing is exchanged"
_LOGS = "what requests say is never logged, and --log-level says how much else is"
_WARM = "kernels are prepared before the server says that it is ready"
_STEPS = "prompt chunks and draft trees always share the rows of a step (--max-batch-tokens)"
_SLOTS = "the cache hands out single tokens, and prefixes are shared token by token"

_BY_REASON = {
    "metrics are always there, at /metrics": (
        "--enable-metrics --enable-metrics-for-all-schedulers --show-time-cost "
        "--enable-server-load-tracking"
    ),
    "usage always says how many tokens of a prompt were cached": (
        "--enable-cache-report --enable-prompt-tokens-details"
    ),
    _LOGS: (
        "--disable-log-requests --no-enable-log-requests --log-requests-level=* --max-log-len=* "
        "--uvicorn-log-level=* --log-level-http=* --disable-uvicorn-access-log "
        "--disable-log-stats"
    ),
    "a line is logged every 10 seconds while something happens": ("--decode-log-interval=*"),
    _ONE: (
        "--tensor-parallel-size=1 --data-parallel-size=1 --pipeline-parallel-size=1 "
        "--expert-parallel-size=1 --nnodes=1 --node-rank=0 --data-parallel-rank=0 "
        "--moe-dense-tp-size=1 --speculative-draft-tensor-parallel-size=1 --api-server-count=1 "
        "--gpu-id-step=1 --base-gpu-id=0 --distributed-executor-backend=* --dist-init-addr=* "
        "--master-addr=* --master-port=* --nccl-port=* --load-balance-method=* "
        "--disaggregation-mode=null --enable-expert-parallel --disable-frontend-multiprocessing "
        "--max-parallel-loading-workers=*"
    ),
    _REDUCED: (
        "--disable-custom-all-reduce --enable-flashinfer-allreduce-fusion --enable-p2p-check "
        "--enable-nccl-nvls --enable-symm-mem --moe-a2a-backend=none"
    ),
    "keys and values have the number format of the weights": "--kv-cache-dtype=auto",
    "weights are in the number format that --dtype names": "--quantization=none",
    "safetensors files are read": "--load-format=auto|safetensors",
    "the files that come with the model are used": (
        "--tokenizer-mode=auto --config-format=auto|hf --generation-config=auto "
        "--sampling-defaults=model --model-impl=auto --response-role=assistant"
    ),
    "templates get messages in the form that they read": "--chat-template-content-format=auto",
    _STEPS: (
        "--enable-chunked-prefill --enable-mixed-chunk --max-prefill-tokens=* "
        "--max-num-partial-prefills=1 --max-long-partial-prefills=1"
    ),
    "requests are served in the order they came": (
        "--schedule-policy=fcfs --scheduling-policy=fcfs --schedule-conservativeness=*"
    ),
    "the host runs ahead of the device where that helps (--flights)": (
        "--enable-overlap-schedule --async-scheduling --num-scheduler-steps=* "
        "--num-continuous-decode-steps=*"
    ),
    "tokens are sent as they come": "--stream-interval=*",
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
    "steps are captured as CUDA graphs; bound them with --max-graph-batch": (
        "--compilation-config=* --optimization-level=* --disable-cuda-graph-padding "
        "--enable-piecewise-cuda-graph --disable-piecewise-cuda-graph --max-seq-len-to-capture=* "
        "--enable-profile-cuda-graph"
    ),
    _WARM: "--skip-server-warmup --warmups=*",
    "no code that comes with a model is ever run": "--trust-remote-code",
    "a server whose engine stands still says so at /ready (--stall-timeout)": (
        "--watchdog-timeout=* --soft-watchdog-timeout=*"
    ),
    "a process without work sleeps": "--sleep-on-idle",
    "models may always choose to call tools": "--enable-auto-tool-choice",
    "reasoning is always told apart (--reasoning-parser says how it is written)": (
        "--enable-reasoning"
    ),
    "grammars are compiled in a process's own threads (--grammar-backend)": (
        "--constrained-json-disable-cache"
    ),
    "there are no such pages": "--disable-fastapi-docs",
    "progress is shown on a terminal alone": "--use-tqdm-on-load",
}


class Accepted(NamedTuple):
    """says: why it changes nothing. takes: does a value follow? only: the values that change nothing;
    None is any."""

    says: str
    takes: bool
    only: tuple[str, ...] | None


def _read(word: str, says: str) -> tuple[str, Accepted]:
    flag, equals, values = word.partition("=")
    only = None if values in ("", "*") else tuple(values.split("|"))
    return flag, Accepted(says, bool(equals), only)


ACCEPTED = dict(_read(word, says) for says, words in _BY_REASON.items() for word in words.split())
"""By option."""

ACCEPTED_KEYS: dict[str, Accepted] = {
    "draft_tensor_parallel_size": Accepted(_ONE, True, ("1",)),
    "tensor_parallel_size": Accepted(_ONE, True, ("1",)),
    "attention_backend": Accepted(_KERNELS, True, None),
    "moe_backend": Accepted(_KERNELS, True, None),
    "enforce_eager": Accepted("bound captures with --max-graph-batch", True, ("False",)),
    "parallel_drafting": Accepted("levels are drafted one after the other", True, ("False",)),
    "disable_padded_drafter_batch": Accepted(_KERNELS, True, None),
}
"""By key of vLLM's --speculative-config."""


def note_of(option: str, value: Any) -> str | None:
    """Why this option changes nothing; None where it may. value: True for one without a value."""
    return _note(option, ACCEPTED.get(option), value)


def note_of_key(key: str, value: Any) -> str | None:
    """The same of a key of --speculative-config."""
    return _note(f"--speculative-config: {key}", ACCEPTED_KEYS.get(key), value)


def _note(name: str, found: Accepted | None, value: Any) -> str | None:
    if found is None or (found.only is not None and str(value).lower() not in _lower(found.only)):
        return None
    shown = f"{name} {value}" if found.takes else name
    return f"{shown}: changes nothing here: {found.says}"


def _lower(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(value.lower() for value in values)
