"""The process of a rank other than the first: loads its part of the model, and runs the forward passes
that rank 0 announces.

Promises: it ends when rank 0 tells it to, when the process that started it ends (its standard input
closes), or when the group is lost; a process that ends otherwise has said why in the log.
Does not know: requests, sampling, drafts.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NoReturn

import torch

from eyas import logs, wire
from eyas.cache.store import KVScales
from eyas.children import freeze_loaded
from eyas.config import EngineConfig
from eyas.engine.rank_group import located, meeting_of, shard_of
from eyas.engine.startup.cache_size import MAP_BYTES
from eyas.engine.startup.kv_format import resolve_kv_dtype
from eyas.engine.startup.load import (
    find_order,
    longest_sequence,
    open_files,
    open_hardware,
)
from eyas.engine.startup.memory import open_runner, slot_bytes
from eyas.engine.worker import read_line
from eyas.models import Decoder, ModelSpec
from eyas.models.locate import locate_model
from eyas.models.sharding import of_rank
from eyas.parallel.group import meet
from eyas.parallel.lost import GroupLost
from eyas.parallel.shard import Shard
from eyas.runner.device import Device, cache_budget
from eyas.runner.follower import Follower, agreed_slots
from eyas.runner.rank_messages import CacheMessage

log = logging.getLogger("eyas.rank")

ANY_SLOTS = 1 << 48
"""Says that a rank limits no number of slots."""


LoadModel = Callable[[EngineConfig, Device, Shard], tuple[Decoder, tuple[KVScales, ...]]]
"""Returns a rank's part of the model, and the scales of an FP8 cache."""


def load_model(
    config: EngineConfig, hardware: Device, shard: Shard
) -> tuple[Decoder, tuple[KVScales, ...]]:
    """Load a rank's part of the model from its files."""
    opened = open_files(config, hardware, shard)
    files, dtype = opened.files, opened.dtype
    order = find_order(config, hardware, dtype, of_rank(files.spec, shard))
    model = files.load(
        dtype=dtype,
        device=hardware.device,
        max_model_len=longest_sequence(config, files.spec),
        order=order.order,
        shard=shard,
    )
    kv_dtype = resolve_kv_dtype(config.cache.dtype, dtype, hardware.device)
    return model, files.kv_scales() if kv_dtype != dtype else ()


def main(load: LoadModel = load_model) -> int:
    """Read the setup from standard input, and run until told to end. Returns the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the first rank decides when this one ends
        signal.signal(number, signal.SIG_IGN)
    lifeline = sys.stdin.fileno()
    setup = wire.decode_rank_setup(read_line(lifeline))
    logs.configure(setup.log_level, setup.log_format)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    try:
        follow(setup, load)
    except GroupLost as error:
        log.error("rank %d ends: %s", setup.rank, error)
        return 1
    except Exception:
        log.exception("rank %d ends", setup.rank)
        return 1
    return 0


def _end_with(lifeline: int) -> None:
    """End this process when the one that started it has closed the pipe."""
    while os.read(lifeline, 4096):
        pass
    os._exit(0)


def follow(setup: wire.RankSetup, load: LoadModel) -> None:
    """Meet the other ranks, load this rank's part of the model, and run what rank 0 announces."""
    hardware = open_hardware(setup.config, setup.local_rank)
    named = setup.config.model
    config = located(setup.config, locate_model(named.path, named.revision, named.offline))
    group = meet(meeting_of(config, setup.rank, setup.place), hardware.device)
    shard = replace(shard_of(config, hardware.device, group.rank), group=group)
    model, kv_scales = load(config, hardware, shard)
    local = of_rank(model.spec, shard)
    kv_dtype = resolve_kv_dtype(config.cache.dtype, model.dtype, hardware.device)
    slots = agreed_slots(group, partial(slots_of_rank, config, local, hardware, kv_dtype))
    if slots is None:
        return
    runner = open_runner(model, slots.num_slots, slots.num_window_slots, kv_dtype, kv_scales)
    freeze_loaded()
    Follower(group, runner).run()


def slots_of_rank(
    config: EngineConfig,
    spec: ModelSpec,
    hardware: Device,
    kv_dtype: torch.dtype,
    offered: CacheMessage,
) -> int:
    """Return the most slots that this rank has memory for. spec: of its part. offered: by rank 0."""
    if hardware.device.type == "cpu":
        return ANY_SLOTS  # rank 0 shares the machine's memory out
    budget = cache_budget(hardware.device, config.cache.memory_fraction, offered.num_bytes)
    size = slot_bytes(spec, kv_dtype)
    if offered.num_window_slots < offered.num_slots:
        budget -= offered.num_window_slots * size.windowed
        return budget // (size.full + MAP_BYTES)
    return budget // (size.full + size.windowed)


def end_process(load: LoadModel = load_model) -> NoReturn:
    """Run a rank, and end its process."""
    torch.set_grad_enabled(False)
    status = main(load)
    logging.shutdown()
    os._exit(status)  # a thread still reads the pipe


if __name__ == "__main__":
    end_process()
