"""Profile a step: device time by kind of kernel, by part of the step, and gaps.

A few steps in the middle of an answer run twice: without the profiler, to measure the time of a
step, and with it, to record what ran. On a GPU kernels are counted; on a CPU the time inside
operators, without the operators that they call.

Promises: a kernel has one kind, by its name; busy time counts overlapping kernels once; gaps are
the time of a step without the profiler minus its busy time.
Does not know: models, how results are shown.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from eyas import kernels
from eyas.core import Delta, Request
from eyas.engine.engine import Engine
from eyas.runner.batch import Batch
from eyas.verify.contestants import waiter

GEMMS, ATTENTION, DRAFT = "GEMMs", "attention", "draft trees"
SAMPLING, COPIES, OTHERS = "sampling, verify", "copies", "small kernels"
"""Small kernels are norms, rotary embedding, activations, element-wise operations, and all other
kernels."""
OWN_FILES = {
    "gemm": GEMMS,
    "gemm_packed_stages": GEMMS,
    "gemm_persistent": GEMMS,
    "gemm_warpgroups": GEMMS,
    "experts": GEMMS,
    "head_product": GEMMS,
    "attention": ATTENTION,
    "attention_entries": ATTENTION,
    "attention_merge": ATTENTION,
    "attention_prefill": ATTENTION,
    "attention_warpgroups": ATTENTION,
    "copies": ATTENTION,
    "entries": ATTENTION,
    "indexer": ATTENTION,
    "softmax": ATTENTION,
    "add_level": DRAFT,
    "join": DRAFT,
    "keep_best": DRAFT,
    "level_rows": DRAFT,
    "lookup": DRAFT,
    "merge_trees": DRAFT,
    "sort_keys": DRAFT,
    "tail_rows": DRAFT,
    "top_tokens": DRAFT,
    "advance": SAMPLING,
    "choose": SAMPLING,
    "scale_and_filter": SAMPLING,
    "walk": SAMPLING,
}
"""File of eyas.kernels -> kind of its kernels; kernels of other files are small kernels."""
PATTERNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (COPIES, ("memcpy", "memset", "copy_device_to_device")),
    (ATTENTION, ("attention", "flash", "fmha", "scaled_dot_product")),
    (
        GEMMS,
        (
            *("gemm", "gemv", "nvjet", "cutlass", "xmma", "splitk"),
            *("::mm", "::addmm", "::bmm", "::linear", "mkldnn"),
        ),
    ),
    (SAMPLING, ("softmax", "topk", "sort", "argmax", "cumsum", "cumprod", "scan", "radix")),
)
"""Kinds of other kernels by parts of their names in lower case; the first match counts."""
_KERNEL = re.compile(r"@(?:triton|gluon)\.jit(?:\((?:[^()]|\([^()]*\))*\))?\s+def (\w+)\(")
KINDS = (GEMMS, ATTENTION, OTHERS, DRAFT, SAMPLING, COPIES)
PARTS = ("draft", "forward", "verdict", "observe")
"""The parts of a step, each with the kernels that it launches directly or as a CUDA graph."""
WARM_STEPS, STEPS = 8, 8
MOST_NAMES = 40


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A kernel or operator: its own seconds, and when it ran."""

    name: str
    start: float
    seconds: float


def kind_of(name: str) -> str:
    """Return the kind of a kernel by its name."""
    if name in (own := own_kernels()):
        return OWN_FILES.get(own[name], OTHERS)
    lower = name.lower()
    for kind, patterns in PATTERNS:
        if any(pattern in lower for pattern in patterns):
            return kind
    return OTHERS


@cache
def own_kernels() -> dict[str, str]:
    """Return kernel name -> file of eyas.kernels."""
    found: dict[str, str] = {}
    for file in sorted(Path(kernels.__file__).parent.glob("*.py")):
        for name in _KERNEL.findall(file.read_text(encoding="utf-8")):
            found.setdefault(name, file.stem)
    return found


def busy_seconds(ran: Sequence[KernelRun]) -> float:
    """Return the time in seconds during which at least one of them ran."""
    total, until = 0.0, float("-inf")
    for each in sorted(ran, key=lambda each: each.start):
        stop = each.start + each.seconds
        total += max(0.0, stop - max(until, each.start))
        until = max(until, stop)
    return total


def profile_steps(engine: Engine, batch: Sequence[Request]) -> dict[str, Any]:
    """Profile steps in the middle of the answers to these requests, which are then aborted.

    ValueError: the answers are too short for it. RuntimeError: a step failed.
    """
    wait = waiter(engine.table.device)
    for request in batch:
        engine.add(request)
    try:
        _until_all_decode(engine, batch)
        _steps(engine, WARM_STEPS)
        wait()
        before = time.perf_counter()
        _steps(engine, STEPS)
        wait()
        step_seconds = (time.perf_counter() - before) / STEPS
        ran, parts = _profiled(engine, wait)
        is_nested = engine.table.device.type == "cpu"
        busy = sum(each.seconds for each in ran) if is_nested else busy_seconds(ran)
    finally:
        for request in batch:
            engine.abort(request.id)
        while engine.has_work():
            engine.step()
    return summarise(ran, parts, busy / STEPS, step_seconds, STEPS)


def summarise(
    ran: Sequence[KernelRun],
    parts: dict[str, float],
    busy: float,
    step_seconds: float,
    num_steps: int,
) -> dict[str, Any]:
    """Summarise a profile per step, in milliseconds.

    ran, parts: of all steps together. busy, step_seconds: of one step.
    """
    seconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    names: dict[str, list[float]] = defaultdict(list)
    for each in ran:
        kind = kind_of(each.name)
        seconds[kind] += each.seconds
        counts[kind] += 1
        names[each.name].append(each.seconds)
    longest = sorted(names, key=lambda name: -sum(names[name]))[:MOST_NAMES]
    return {
        "step_ms": _ms(step_seconds),
        "busy_ms": _ms(busy),
        "gaps_ms": _ms(max(0.0, step_seconds - busy)),
        "kernels_per_step": round(len(ran) / num_steps, 1),
        "kinds": {
            kind: {
                "ms": _ms(seconds[kind] / num_steps),
                "kernels": round(counts[kind] / num_steps, 1),
            }
            for kind in KINDS
            if counts[kind]
        },
        "parts": {part: _ms(spent / num_steps) for part, spent in parts.items() if spent},
        "names": [
            {
                "name": name[:160],
                "kind": kind_of(name),
                "ms": _ms(sum(names[name]) / num_steps),
                "kernels": round(len(names[name]) / num_steps, 1),
            }
            for name in longest
        ],
    }


def _until_all_decode(engine: Engine, batch: Sequence[Request]) -> None:
    """Step until every request has a token."""
    have: set[str] = set()
    while len(have) < len(batch):
        for delta in engine.step():
            _refuse_an_end(delta)
            have.add(delta.request_id)


def _steps(engine: Engine, count: int) -> None:
    for _ in range(count):
        for delta in engine.step():
            _refuse_an_end(delta)


def _refuse_an_end(delta: Delta) -> None:
    if delta.finish_reason == "error":
        raise RuntimeError(f"a request failed while it was profiled: {delta.error}")
    if delta.finish_reason is not None:
        raise ValueError(
            f"--profile: answers end before {WARM_STEPS} and twice {STEPS} steps were run; give "
            "more --max-tokens"
        )


def _profiled(engine: Engine, wait: Callable[[], None]) -> tuple[list[KernelRun], dict[str, float]]:
    """Return what ran in STEPS steps, and the seconds of each part."""
    on_gpu = engine.table.device.type == "cuda"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    with _marked_parts(engine), profile(activities=activities) as profiler:
        _steps(engine, STEPS)
        wait()
    events = profiler.events() or []
    marks = [e for e in events if e.name in PARTS and e.device_type == DeviceType.CPU]
    if on_gpu:
        ran = [
            KernelRun(event.name, event.time_range.start / 1e6, event.time_range.elapsed_us() / 1e6)
            for event in events
            if event.device_type == DeviceType.CUDA and event.name not in PARTS
        ]
        spent = [(mark.name, mark.device_time_total / 1e6) for mark in marks]
    else:
        operators = [e for e in events if e.name not in PARTS and e.self_cpu_time_total > 0]
        ran = [
            KernelRun(event.name, event.time_range.start / 1e6, event.self_cpu_time_total / 1e6)
            for event in operators
        ]
        spent = [(mark.name, mark.cpu_time_total / 1e6) for mark in marks]
    parts = dict.fromkeys(PARTS, 0.0)
    for name, seconds in spent:
        parts[name] += seconds
    return ran, parts


@contextmanager
def _marked_parts(engine: Engine) -> Iterator[None]:
    """Label the parts of a step for the profiler while the context lasts."""
    drafter, stage = engine.drafter, Batch.stage

    def marked_stage(batch: Batch, name: Any, *rest: Any, **named: Any) -> Any:
        if name not in PARTS:  # the drafter's, which are marked as a whole
            return stage(batch, name, *rest, **named)
        with record_function(name):
            return stage(batch, name, *rest, **named)

    Batch.stage = marked_stage  # type: ignore[method-assign]
    drafter.propose = _marked("draft", drafter.propose)  # type: ignore[method-assign]
    drafter.observe = _marked("observe", drafter.observe)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Batch.stage = stage  # type: ignore[method-assign]
        del drafter.propose, drafter.observe


def _marked(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def marked(*arguments: Any, **named: Any) -> Any:
        with record_function(part):
            return call(*arguments, **named)

    return marked


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 4)
