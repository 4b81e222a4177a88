"""Compile the kernels of common steps on all cores, before the first of them is launched.

The steps of a start run once without a launch (`kernels.ahead`), which lists their kernels: the passes
of the self-check, those whose costs are measured, and the steps that are captured.

Promises: a part that cannot run without its results is left out; its kernels are compiled when they are
launched.
Does not know: kernels.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import msgspec
import torch

from eyas.engine.startup.captures import captured_lengths, captured_sizes
from eyas.engine.startup.drafters import build_drafter
from eyas.engine.startup.exactness import open_probe
from eyas.engine.startup.load import Parts
from eyas.engine.startup.memory import EngineSizes
from eyas.engine.startup.open_launcher import open_launcher
from eyas.engine.verifier import verify
from eyas.kernels import usable
from eyas.kernels.ahead import CompileCounts, CompiledMark, collecting
from eyas.layers.gemm.search import search_on
from eyas.runner.runner import ModelRunner

log = logging.getLogger(__name__)


def start_compilers(device: torch.device) -> None:
    """Start the processes that compile kernels, if this is the first start on a device, so that they
    are ready when the weights are loaded."""
    if usable(device) and (search := search_on(device)).is_new and search.processes is not None:
        search.processes.start()


def compile_steps(
    parts: Parts, sizes: EngineSizes, runner: ModelRunner, width: int
) -> CompileCounts:
    """Compile the kernels of common steps that are in no cache; none of compressed attention, whose
    steps were not tried without launches.

    runner: whose cache holds nothing yet. width: most nodes of a tree.
    """
    device = runner.model.device
    processes = search_on(device).processes
    gpu = torch.cuda.get_device_name(device)
    what = (gpu, torch.__version__, parts.dtype, parts.spec, parts.drafting, sizes.kv_dtype)
    done = CompiledMark(repr((*what, sizes.max_length, sizes.limits)))
    if processes is None or parts.spec.compressed or done.is_set:
        return CompileCounts()
    with collecting(processes.add):
        are_listed = [
            _try("the self-check", lambda: _run_probe(parts, sizes, runner, width)),
            _try("common steps", lambda: _run_steps(parts, sizes, runner)),
        ]
    counts = processes.wait()
    if all(are_listed) and not counts.num_failed:
        done.set()
    return counts


def _try(name: str, run: Callable[[], None]) -> bool:
    try:
        run()
    except Exception:
        log.debug("the kernels of %s are compiled when they are launched", name, exc_info=True)
        return False
    return True


def _run_probe(parts: Parts, sizes: EngineSizes, runner: ModelRunner, width: int) -> None:
    if not parts.order.exact:
        return  # there is none
    with open_probe(
        runner,
        parts.order,
        sizes.max_length,
        sizes.num_window_slots,
        width=width,
        captures=False,
        most_seqs=sizes.limits.num_seats,
    ) as probe:
        if probe is not None:
            probe.reference()
            deque(probe.variants(), maxlen=0)  # their results mean nothing


def _run_steps(parts: Parts, sizes: EngineSizes, runner: ModelRunner) -> None:
    if parts.drafting is None:
        return
    uncaptured = msgspec.structs.replace(sizes.limits, max_captured_seqs=0)
    drafter = build_drafter(parts, replace(sizes, limits=uncaptured), runner)
    launcher = open_launcher(
        uncaptured,
        runner,
        drafter,
        sizes.max_length,
        parts.spec.vocab_size,
        mask_seconds=0.0,
        verify=verify,
    )
    lengths = captured_lengths(sizes.max_length)
    longest, shortest = lengths[0], lengths[-1]
    for width in {1, drafter.shape.alone.width}:
        for num in captured_sizes(sizes.limits.max_captured_seqs):
            if num & (num - 1):
                continue  # its kernels are those of a power of two
            for length, temperature in ((longest, 0.0), (longest, 1.0), (shortest, 0.0)):
                launcher.run_padding(num, width, length, temperature)
