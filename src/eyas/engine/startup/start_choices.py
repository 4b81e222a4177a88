"""What was chosen at the start of an engine, in words for the log.

Promises: the reason is an option's name where that decides, else what was found.
Does not know: how anything is chosen.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from eyas.config import (
    DEFAULTS,
    EngineConfig,
    EngineInfo,
    SchedulerConfig,
    StartChoice,
    StepLimits,
)
from eyas.engine.startup.drafting import Drafting
from eyas.kernels import usable
from eyas.kernels.ahead import CompileCounts
from eyas.layers.row_order import RowOrderReport
from eyas.models import ModelFiles
from eyas.native.products import compiled
from eyas.runner.device import Device


class Stopwatch:
    """Measures the parts of a start, one after the other."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last lap, or since the beginning."""
        before, self._since = self._since, time.perf_counter()
        return self._since - before


def by_option(option: str, value: Any, default: Any) -> str:
    """Return the reason of a value that an option decides."""
    return f"default of {option}" if value == default else option


def model_choice(config: EngineConfig, files: ModelFiles, seconds: float) -> StartChoice:
    """The model. seconds: to load its weights."""
    path, default = config.model.path, DEFAULTS.model.path
    value = f"{path}, {files.spec.architecture}, {files.num_parameters / 1e6:,.1f} M parameters"
    return StartChoice("model", value, by_option("--model", path, default), seconds)


def products_choice(hardware: Device, dtype: torch.dtype) -> StartChoice:
    """What computes matrix products."""
    if usable(hardware.device):
        reason = "on a GPU" if hardware.exact else "on a GPU; --no-exact takes the fastest"
        return StartChoice("products", "Triton and library kernels", reason)
    if hardware.device.type != "cpu":
        return StartChoice("products", "torch", "there are no kernels for this device")
    if dtype != torch.float32:
        return StartChoice("products", "torch", "compiled code is used only for float32")
    built = compiled()
    value = "torch" if built.library is None else "compiled C code"
    return StartChoice("products", value, built.reason)


def order_choice(report: RowOrderReport, seconds: float) -> StartChoice:
    """How many rows a product has, so that a row has the same bits in any batch."""
    order = report.order
    value = "any number of rows"
    if order.bucket is not None:
        most = "" if order.minimum == order.bucket else "up to "
        value = f"{most}{order.bucket} rows at a time"
    elif order.minimum > 1:
        value = f"{order.minimum} rows or more"
    return StartChoice("row order", value, report.reason, seconds)


def drafter_choice(drafting: Drafting, seconds: float) -> StartChoice:
    """The drafters. seconds: to load their network."""
    return StartChoice("drafter", "+".join(drafting.names), drafting.reason, seconds)


def tree_choice(drafting: Drafting, seconds: float) -> StartChoice:
    """The size of draft trees. seconds: to build the drafter, and to measure costs if that decides."""
    shape, num_forced = drafting.shape.alone, drafting.shape.extra
    if shape.nodes == 1:
        value = f"up to {num_forced} forced nodes" if num_forced else "the root alone"
        return StartChoice("draft tree", value, "no drafter has trees of its own", seconds)
    value = f"up to {shape.nodes} nodes, {shape.steps} levels, top-k {shape.topk}"
    if num_forced:
        value += f", {num_forced} forced"
    reason = "--draft-nodes, --draft-steps, --draft-topk"
    if drafting.is_adaptive:
        reason = "auto: by measured costs and acceptance, step by step"
    return StartChoice("draft tree", value, reason, seconds)


def cache_choice(num_slots: int, in_windows: int, num_bytes: int, reason: str) -> StartChoice:
    """The size of the cache. in_windows: tokens in layers with a window."""
    value = f"{num_slots:,} tokens, {num_bytes / 2**30:.2f} GiB"
    if in_windows < num_slots:
        value += f"; {in_windows:,} tokens in layers with a window"
    return StartChoice("cache", value, reason)


def memory_reason(device: torch.device, fraction: float, scratch: int) -> str:
    """Why the cache has its size where memory decides. scratch: bytes for steps and drafts."""
    if device.type != "cuda":
        return f"--memory-fraction {fraction:g} of the free memory, at most 2 GiB"
    free, total = torch.cuda.mem_get_info(device)
    used, scratch_gib = (total - free) / 2**30, scratch / 2**30
    return (
        f"--memory-fraction {fraction:g} of {total / 2**30:.1f} GiB, of which {used:.1f} are in use "
        f"with the weights and {scratch_gib:.1f} are for steps and drafts"
    )


def kv_choice(config: EngineConfig, info: EngineInfo) -> StartChoice:
    """The number format of the cache."""
    is_auto = config.cache.dtype == "auto"
    reason = "auto: as the model" if is_auto else "--kv-cache-dtype"
    return StartChoice("cache format", info.kv_cache_dtype, reason)


def context_choice(config: EngineConfig, wanted: int, longest: int) -> StartChoice:
    """The longest sequence. wanted: that of the options and the model."""
    reason = "the model's context length"
    if longest < wanted:
        reason = f"what the cache holds; the model or --max-model-len allows {wanted:,}"
    elif config.model.max_model_len is not None:
        reason = "--max-model-len"
    return StartChoice("context", f"{longest:,} tokens", reason)


def limit_choices(
    scheduling: SchedulerConfig, limits: StepLimits, hardware: Device
) -> list[StartChoice]:
    """The sizes of a step. scheduling: what was asked for."""
    on_gpu, given_seats = hardware.is_gpu, scheduling.max_num_seqs
    on = "auto: on a GPU" if on_gpu else "auto: on a CPU"
    return [
        StartChoice(
            "seats",
            f"{limits.num_seats} sequences in a step",
            "--max-num-seqs" if given_seats != "auto" else f"{on}{', as memory allows' * on_gpu}",
        ),
        StartChoice(
            "step",
            f"{limits.max_rows:,} tokens at most",
            on if scheduling.max_batch_tokens == "auto" else "--max-batch-tokens",
        ),
        StartChoice(
            "steps ahead",
            str(limits.num_flights),
            on if scheduling.flights == "auto" else "--flights",
        ),
    ]


def compiled_choice(counts: CompileCounts, seconds: float) -> StartChoice:
    """The kernels that were compiled before their first launch."""
    reason = "before their first launch, for this and later starts"
    if counts.num_failed:
        reason += f"; {counts.num_failed} others could not be, and are at their launch"
    elif not counts.num_compiled:
        reason = "an earlier start has compiled them, or they are compiled at their first launch"
    return StartChoice("compiled", f"{counts.num_compiled} kernels", reason, seconds)


def search_choice(searched: tuple[int, int, float]) -> StartChoice:
    """The kernels' variants. searched: as `Search.report` returns it."""
    measured, kept, seconds = searched
    value = f"the fastest variant of {measured + kept} products"
    return StartChoice("kernels", value, f"{kept} are kept from an earlier start", seconds)


def graphs_choice(limits: StepLimits, sizes: list[int], seconds: float) -> StartChoice:
    """CUDA graphs. sizes: batch sizes whose common steps are captured already."""
    if not limits.max_captured_seqs:
        return StartChoice("CUDA graphs", "none", "--max-graph-batch 0")
    value = f"captured for {len(sizes)} batch sizes up to {max(sizes)}" if sizes else "when needed"
    return StartChoice(
        "CUDA graphs", value, "others are captured at their second occurrence", seconds
    )


def grammar_choice(config: EngineConfig, info: EngineInfo, obstacle: str | None) -> StartChoice:
    """The grammar library. obstacle: why outputs cannot be constrained, if they cannot."""
    backend, default = config.grammar.backend, DEFAULTS.grammar.backend
    reason = obstacle or by_option("--grammar-backend", backend, default)
    return StartChoice("grammars", info.grammar_backend or "none", reason)
