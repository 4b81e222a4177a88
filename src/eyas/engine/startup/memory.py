"""What the parts of an engine take in memory, how many sequences and tokens that leaves room for, and
the cache of that size.

Promises: sizes are upper bounds, known before anything is allocated; a memory that is too small for one
useful sequence is a ValueError that names the settings.
Does not know: requests, how the parts are built.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from eyas.attention import attention_units, copied_bytes, open_attention, score_bytes
from eyas.cache import KVStore
from eyas.cache.store import KVScales
from eyas.config import CacheConfig, EngineConfig, StartChoice, StepLimits
from eyas.engine.rank_group import exchanged_bytes
from eyas.engine.startup.cache_size import (
    Demand,
    SlotBytes,
    cache_bytes,
    choose_num_seats,
    most_slots,
    num_window_slots,
)
from eyas.engine.startup.kv_format import resolve_kv_dtype
from eyas.engine.startup.load import Parts
from eyas.engine.startup.start_choices import cache_choice, context_choice, memory_reason
from eyas.kernels import usable
from eyas.layers.gemm.variants import PARTS_SPLITS
from eyas.models import Decoder, ModelSpec
from eyas.models.sharding import of_rank
from eyas.runner.device import cache_budget
from eyas.runner.leader import Leader
from eyas.runner.runner import ModelRunner
from eyas.runner.sequence_share import SequenceRanks

log = logging.getLogger(__name__)

ROOT_SLOTS = 2
"""Of a sequence, for the roots of two steps in flight. Trees have slots where there are some: the
longest sequence is as long without drafts as with them."""
SNAPSHOT_BYTES = 2 << 30
"""Most memory for snapshots of states."""


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """What an engine has room for.

    limits: of a step. spec: of the model, this rank's part. kv_dtype: of the cache. num_slots: of all
    ranks. slots_per_rank: of each rank's cache. num_window_slots: slots of layers with a window, of
    each rank. max_length: of a sequence. choices: what was chosen, and why.
    """

    limits: StepLimits
    spec: ModelSpec
    kv_dtype: torch.dtype
    num_slots: int
    slots_per_rank: int
    num_window_slots: int
    max_length: int
    choices: tuple[StartChoice, ...]


def size_engine(
    config: EngineConfig, device: torch.device, parts: Parts, width: int
) -> EngineSizes:
    """Return the sizes of an engine. width: most nodes of a tree.

    Raises ValueError if no useful sequence fits.
    """
    spec, dtype = of_rank(parts.spec, parts.model.shard), parts.dtype
    drafting, ranks = parts.drafting, parts.ranks
    kv_dtype = resolve_kv_dtype(config.cache.dtype, dtype, device)
    max_length = parts.model.max_model_len
    size = slot_bytes(spec, kv_dtype)
    per_seat = table_bytes(1, max_length, width) + size.window * size.windowed
    per_seat += sum(store.num_bytes(width, dtype.itemsize) for store in spec.state_stores)
    if drafting is not None:
        # The first rank drafts for the sequences of all ranks.
        drafts = config.parallel.dp * drafting.bytes_per_slot(dtype, kv_dtype, device)
        size = replace(size, full=size.full + drafts)
        per_seat += drafting.scratch_bytes(1, kv_dtype)
    limits = step_limits(config, device, per_seat)
    num_seats = limits.num_seats
    in_drafts = 0 if drafting is None else drafting.scratch_bytes(num_seats, kv_dtype)
    in_steps = 0
    if usable(device):
        in_steps = step_bytes(spec, limits, width, max_length, dtype)
        in_steps += exchanged_bytes(config, spec)
        positions = num_seats * max_length
        in_steps += copied_bytes(spec.attention_stores, positions, dtype, device)
    snapshots = num_snapshots(config.cache, num_seats, spec, dtype)
    states = state_bytes(num_seats, snapshots, spec, width, dtype)
    num_slots, in_windows, max_length, choices = size_cache(
        config, limits, size, in_steps + in_drafts, states, device, max_length, width
    )
    if ranks is not None:
        num_slots = ranks.leader.agree_on_slots(num_slots, in_windows, in_steps + states)
        in_windows = min(in_windows, num_slots)
        max_length = min(max_length, num_slots - ROOT_SLOTS)
    return EngineSizes(
        limits,
        spec,
        kv_dtype,
        config.parallel.dp * num_slots,
        num_slots,
        in_windows,
        max_length,
        choices,
    )


def slot_bytes(spec: ModelSpec, kv_dtype: torch.dtype) -> SlotBytes:
    """Return what one token takes in the model's layers."""
    windowed = [store for store in spec.attention_stores if store.window is not None]
    per_window_slot = KVStore.bytes_per_slot(windowed, kv_dtype)
    window = max((store.window or 0 for store in windowed), default=0)
    full = KVStore.bytes_per_slot(spec.stores, kv_dtype) - per_window_slot
    return SlotBytes(full, per_window_slot, window)


def open_runner(
    model: Decoder,
    num_slots: int,
    num_window_slots: int,
    kv_dtype: torch.dtype,
    kv_scales: Sequence[KVScales],
    leader: Leader | None = None,
) -> ModelRunner:
    """Allocate the cache of a rank's part of a model, and connect the two.

    num_window_slots: as in `EngineSizes`. leader: of the other ranks, on the first of several.
    """
    shard = model.shard
    kv = KVStore(
        of_rank(model.spec, shard).stores,
        num_slots,
        dtype=model.dtype,
        device=model.device,
        stored_dtype=kv_dtype,
        scales=kv_scales,
        num_window_slots=num_window_slots if num_window_slots < num_slots else None,
    )
    sequences = None
    if shard.by_sequence:
        assert shard.group is not None
        sequences = SequenceRanks(num_slots, shard.group)
    return ModelRunner(model, open_attention(kv), leader, sequences)


def step_bytes(
    spec: ModelSpec, limits: StepLimits, width: int, max_length: int, dtype: torch.dtype
) -> int:
    """Return an upper bound of the bytes that a step on a device needs in addition to weights and
    cache: activations of a full step, logits, and partial results of attention over sequences of full
    length."""
    rows = limits.max_rows
    nodes = min(limits.num_seats * width, rows)
    activations = 4 * rows * 2 * spec.intermediate_size * dtype.itemsize
    if (experts := spec.experts) is not None:
        # The float32 contributions exist twice where the shared expert is a block of its own: as
        # computed, and joined with its parts.
        contributions = 2 * (experts.routing.num_chosen + PARTS_SPLITS) * spec.hidden_size * 4
        inner = experts.routing.num_chosen * experts.intermediate_size + experts.shared_size
        inner *= dtype.itemsize
        activations += rows * (inner + contributions)
    if (latent := spec.latent) is not None:
        # Queries before and after they are taken into the latent space, and outputs likewise.
        of_head = latent.query_dim + latent.row_dim + latent.rank + latent.value_dim
        activations += rows * spec.num_query_heads * of_head * dtype.itemsize
    if (state := spec.state) is not None:
        # Projections, and in float32 convolved inputs and outputs, of rows and of accepted nodes.
        lines = rows + (limits.num_seats + rows) * width
        activations += 4 * lines * (state.convolved + state.output_width)
        activations += 2 * rows * (state.convolved + state.output_width) * dtype.itemsize
    stores = spec.attention_stores
    if spec.compressed and spec.hyper is not None:
        # Projections; queries and outputs before and after they are turned; residual streams.
        widest = max(
            sum(each.entry_parts.values()) + 4 * sum(each.query_parts.values())
            for each in spec.compressed
        )
        streams = 3 * spec.hyper.num_streams * spec.hidden_size
        activations += rows * (widest + streams) * dtype.itemsize + score_bytes(stores)
    logits = 2 * nodes * spec.vocab_size * 4
    heads = spec.num_query_heads * (max(store.output_dim for store in stores) + 2) * 4
    return activations + logits + nodes * attention_units(stores, max_length, width) * heads


def step_limits(config: EngineConfig, device: torch.device, per_seat: int) -> StepLimits:
    """Return the limits of a step, and choose the number of sequences that run at once.

    per_seat: bytes that each takes however many tokens it has. Several ranks have the least number.
    """
    on_gpu, num_seats = device.type == "cuda", None
    if on_gpu and config.scheduler.max_num_seqs == "auto" and config.parallel.num_ranks == 1:
        num_seats = choose_num_seats(cache_budget(device, config.cache.memory_fraction), per_seat)
    return config.scheduler.limits(on_gpu=on_gpu, num_seats=num_seats)


def table_bytes(num_seats: int, max_length: int, width: int) -> int:
    """Return the bytes of the sequence table."""
    return 16 * num_seats * (max_length + 3 * width)


def num_snapshots(config: CacheConfig, num_seats: int, spec: ModelSpec, dtype: torch.dtype) -> int:
    """Return the number of snapshots of states: two a seat, if so many take no more than
    `SNAPSHOT_BYTES`; 0 without states or a prefix cache."""
    size = _snapshot_bytes(spec, dtype)
    if not size or not config.prefix_cache:
        return 0
    return min(2 * num_seats, max(1, SNAPSHOT_BYTES // size))


def states_choices(
    config: CacheConfig, num_seats: int, spec: ModelSpec, dtype: torch.dtype
) -> tuple[StartChoice, ...]:
    """What is kept of the states of sequences; nothing if there are none."""
    size = _snapshot_bytes(spec, dtype)
    if not size:
        return ()
    num = num_snapshots(config, num_seats, spec, dtype)
    value = f"{size / 2**20:.1f} MiB a sequence, {num} snapshots"
    return (StartChoice("states", value, "prefixes are shared at snapshots"),)


def _snapshot_bytes(spec: ModelSpec, dtype: torch.dtype) -> int:
    return sum(store.num_bytes(0, dtype.itemsize) for store in spec.state_stores)


def state_bytes(
    num_seats: int, num_snapshots: int, spec: ModelSpec, width: int, dtype: torch.dtype
) -> int:
    """Return the bytes of the states of all seats, and of the snapshots of states."""
    seat = sum(store.num_bytes(width, dtype.itemsize) for store in spec.state_stores)
    return (num_seats + 2) * seat + num_snapshots * _snapshot_bytes(spec, dtype)


def size_cache(
    config: EngineConfig,
    limits: StepLimits,
    size: SlotBytes,
    scratch: int,
    states: int,
    device: torch.device,
    max_length: int,
    width: int,
) -> tuple[int, int, int, tuple[StartChoice, ...]]:
    """Return the number of slots, that of layers with a window, the longest sequence, and what was
    chosen. One sequence of that length always fits.

    scratch: bytes that steps and drafting need in addition. states: bytes of the states of sequences.
    width: most nodes of a tree. Raises ValueError if no useful sequence fits.
    """
    num_slots, num_seats = config.cache.num_slots, limits.num_seats
    demand = Demand(
        most_useful=num_seats * (max_length + 2 * width),
        num_sequences=num_seats,
        rows=limits.max_rows,
        shares_prefixes=config.cache.prefix_cache,
    )
    reason = "--num-slots"
    if num_slots is None:
        budget = cache_budget(device, config.cache.memory_fraction, states)
        if device.type == "cpu":
            budget //= config.parallel.ranks_of_node
        budget -= table_bytes(num_seats, max_length, width) + scratch
        num_slots = most_slots(budget, size, demand)
        reason = memory_reason(device, config.cache.memory_fraction, scratch)
        if num_slots == demand.most_useful:
            reason = "all that the sequences of a step can use"
    if config.parallel.divides_sequences:
        reason += f"; on each of {config.parallel.num_ranks} ranks"
    longest = min(max_length, num_slots - ROOT_SLOTS)
    if longest < 2:
        raise ValueError(
            f"cache.num_slots: {max(0, num_slots)} slots hold no useful sequence; give more memory "
            "(--memory-fraction), a smaller --max-num-seqs, or smaller drafts (--draft-nodes, "
            "--draft-steps, --draft-topk)"
        )
    if longest < max_length:
        log.warning("the cache has %d slots: the context is limited to %d", num_slots, longest)
    in_windows = num_window_slots(num_slots, size, demand)
    num_bytes = cache_bytes(num_slots, size, demand)
    choices = (
        cache_choice(num_slots, in_windows, num_bytes, reason),
        context_choice(config, max_length, longest),
    )
    return num_slots, in_windows, longest, choices
