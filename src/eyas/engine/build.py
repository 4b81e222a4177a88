"""Build an engine from its settings: load the weights, size the cache, connect the rooms, self-check.

Promises: a setting that cannot be used raises a ValueError that names it, before weights are loaded
where possible. `EngineInfo.exact` is the result of the start-up self-check.
Does not know: requests.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
import torch

from eyas.attention import attention_units, open_attention
from eyas.cache import BlockLog, CacheManager, KVStore
from eyas.cache.store import KVScales
from eyas.config import EngineConfig, EngineInfo, StartChoice
from eyas.constraint import CompilePool, Vocabulary, build_backend, process_allocator
from eyas.draft import Drafter
from eyas.engine.cache_size import (
    Demand,
    SlotBytes,
    cache_bytes,
    most_slots,
    num_window_slots,
)
from eyas.engine.drafting import (
    Drafting,
    build_drafter,
    decide_drafting,
    load_network,
    read_draft_scales,
)
from eyas.engine.engine import Engine
from eyas.engine.exactness import check_exactness
from eyas.engine.kv_events import EventPublisher, check_endpoints
from eyas.engine.kv_format import kv_dtype_name, resolve_kv_dtype
from eyas.engine.ranks import Ranks, shard_of
from eyas.engine.scheduler import Scheduler
from eyas.engine.start_choices import (
    Stopwatch,
    cache_choice,
    context_choice,
    drafter_choice,
    grammar_choice,
    graphs_choice,
    kv_choice,
    limit_choices,
    memory_reason,
    model_choice,
    order_choice,
    products_choice,
    search_choice,
    tree_choice,
)
from eyas.engine.verifier import Verify, verify
from eyas.kernels import usable
from eyas.layers.gemm_variants import PARTS_SPLITS, is_supported, pad_for_device
from eyas.layers.products import Products
from eyas.layers.row_order import RowOrder, RowOrderReport
from eyas.layers.row_probe import find_row_order
from eyas.layers.search import search_on
from eyas.models import (
    Decoder,
    ModelFiles,
    ModelSpec,
    Progress,
    choose_dtype,
    locate_model,
)
from eyas.models.heads import DraftHead, HeadSpec
from eyas.models.sharding import check_ranks, of_rank
from eyas.native.products import is_available
from eyas.parallel.shard import Shard
from eyas.runner.device import Device, cache_budget, memory_bytes, open_device
from eyas.runner.graphs import bucket_of, length_of
from eyas.runner.runner import ModelRunner
from eyas.runner.table import SequenceTable
from eyas.text import Tokenizer

log = logging.getLogger(__name__)

CAPTURED_LENGTHS = (512, 1024, 2048)
"""Upper bounds of sequence lengths whose steps are captured at start-up."""

SNAPSHOT_BYTES = 2 << 30
"""Most memory for snapshots of states."""

ANY_SLOTS = 1 << 48
"""Says that a rank limits no number of slots."""

MAX_POSITIONS = 2**22
"""Longest context, since the rotary angles of all positions are computed at start-up."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The loaded parts that an engine is built from.

    order: the row order of the model's matrix products. drafting: None if the drafter is passed in.
    network: the weights of the drafting network; None if the drafter has none. directory: of the
    model; None if it is in no files. tokenizer: None if prompts and answers are token ids only, and
    then outputs cannot be constrained. eos_token_ids: the tokens that end a text. kv_scales,
    draft_kv_scales: of an FP8 cache, by layer; empty is 1. choices: what was chosen while loading.
    ranks: the other ones; None where there are none.
    """

    spec: ModelSpec
    model: Decoder
    order: RowOrderReport
    drafting: Drafting | None
    network: Decoder | DraftHead | None
    directory: Path | None
    tokenizer: Tokenizer | None
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype
    kv_scales: tuple[KVScales, ...] = ()
    draft_kv_scales: tuple[KVScales, ...] = ()
    choices: tuple[StartChoice, ...] = ()
    ranks: Ranks | None = None


def build_engine(
    config: EngineConfig, progress: Progress | None = None, own_drafter: Drafter | None = None
) -> Engine:
    """Load the model and the drafting network, and build an engine. Raises ValueError with a remedy.

    progress: called with (stage, bytes done, bytes in all); both are 0 if a stage has no bytes to
    count. own_drafter: used instead of the drafter that `config.draft` names.
    """
    progress = progress or (lambda stage, done, total: None)
    progress("opening the device", 0, 0)
    hardware = open_hardware(config)
    check_endpoints(config.cache.kv_events)
    if config.parallel.tp > 1 and hardware.device.type == "cuda":
        log.info("steps of several ranks run without CUDA graphs")
        scheduler = msgspec.structs.replace(config.scheduler, max_graph_batch=0)
        config = msgspec.structs.replace(config, scheduler=scheduler)
    parts = load(config, hardware, progress, drafts=own_drafter is None)
    try:
        progress("preparing steps", 0, 0)
        return assemble(config, hardware, parts, own_drafter)
    except BaseException:
        if parts.ranks is not None:
            parts.ranks.close()
        raise


def open_hardware(config: EngineConfig, local_rank: int = 0) -> Device:
    """Return the device of a rank. local_rank: its number on this machine."""
    parallel = config.parallel
    if parallel.tp == 1:
        return open_device(config.device)
    return open_device(config.device, parallel.ranks_of_node, parallel.first_device + local_rank)


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model's files that this engine can run, before weights are read.

    dtype, dtype_reason: the number format of the weights, and why.
    """

    directory: Path
    files: ModelFiles
    dtype: torch.dtype
    dtype_reason: str


def open_files(config: EngineConfig, hardware: Device, shard: Shard) -> OpenedModel:
    """Find the model's files and read their headers. ValueError: this engine cannot run the model."""
    directory = locate_model(config.model.path, config.model.revision, config.model.offline)
    files = ModelFiles.open(directory)
    spec = files.spec
    if spec.compressed and hardware.device.type != "cpu":
        raise ValueError(
            f"device: {spec.architecture} has compressed attention, which runs on a CPU alone so far; "
            "pass --device cpu, or take another model"
        )
    check_ranks(spec, shard, on_gpu=hardware.device.type != "cpu")
    dtype, reason = _model_dtype(config, hardware, shard)
    _check_memory(config, files, dtype, hardware, shard)
    return OpenedModel(directory, files, dtype, reason)


def _model_dtype(config: EngineConfig, hardware: Device, shard: Shard) -> tuple[torch.dtype, str]:
    """Return the number format of the weights, and why. ValueError: ranks cannot divide sums in it."""
    name = config.model.dtype
    if hardware.device.type != "cpu" or shard.is_whole:
        return choose_dtype(name, hardware.device)
    option = "parallel.tp" if shard.size > 1 else "parallel.exact_across_tp"
    if name not in ("auto", "float32"):
        raise ValueError(
            f"{option}: on a CPU the sums of ranks are float32 alone, not {name}; pass --dtype float32"
        )
    if not is_available(torch.float32, hardware.device):
        raise ValueError(
            f"{option}: needs products that are compiled on this machine; install a C compiler (gcc or "
            "clang), or leave the option out"
        )
    return torch.float32, "in which the sums of ranks have one order"


def slots_of_rank(
    config: EngineConfig, spec: ModelSpec, hardware: Device, kv_dtype: torch.dtype
) -> int:
    """Return the most slots that another rank than the first has memory for. spec: of its part."""
    if hardware.device.type == "cpu":
        return ANY_SLOTS  # rank 0 shares the machine's memory out
    budget = cache_budget(hardware.device, config.cache.memory_fraction)
    rows = config.scheduler.rows(on_gpu=True)
    budget -= 16 * rows * (spec.intermediate_size + spec.hidden_size)
    return budget // KVStore.bytes_per_slot(spec.stores, kv_dtype)


def load(
    config: EngineConfig,
    hardware: Device,
    progress: Progress | None = None,
    *,
    drafts: bool = True,
) -> Parts:
    """Load the model from its files, and with `drafts` the drafting network that `config.draft` names.

    progress: see `build_engine`.
    """
    progress = progress or (lambda stage, done, total: None)
    progress("finding the model's files", 0, 0)
    shard = shard_of(config, hardware.device)
    opened = open_files(config, hardware, shard)
    directory, files, dtype = opened.directory, opened.files, opened.dtype
    spec = files.spec
    tokenizer = Tokenizer.from_directory_if_there(directory)
    if tokenizer is None:
        log.warning("%s has no tokenizer.json: prompts and answers are token ids alone", directory)
    elif tokenizer.vocab_size > spec.vocab_size:
        log.warning(
            "%s: the tokenizer has %d tokens and the model %d; prompts with others are refused",
            directory,
            tokenizer.vocab_size,
            spec.vocab_size,
        )
    drafting = decide_drafting(config, directory, spec) if drafts else None
    kv_scales: tuple[KVScales, ...] = ()
    draft_kv_scales: tuple[KVScales, ...] = ()
    if resolve_kv_dtype(config.cache.dtype, dtype, hardware.device) != dtype:
        if spec.compressed:
            raise ValueError(
                f"cache.dtype: {spec.architecture} has compressed attention, whose cache has the "
                "model's format; leave the option out"
            )
        kv_scales = files.kv_scales()
        draft_kv_scales = read_draft_scales(drafting, spec)
    longest = longest_sequence(config, spec)
    ranks = None
    if shard.size > 1:
        progress("meeting the other ranks", 0, 0)
        ranks = Ranks(config, str(directory), hardware)
        shard = ranks.shard
    try:
        progress("timing products", 0, 0)
        watch = Stopwatch()
        order = find_order(config, hardware, dtype, of_rank(spec, shard))
        order_seconds = watch.lap()
        model = files.load(
            dtype=dtype,
            device=hardware.device,
            max_model_len=longest,
            order=order.order,
            progress=lambda _, done, total: progress("loading weights", done, total),
            shard=shard,
        )
        model_seconds = watch.lap()
        network = None
        if drafting is not None and drafting.network is not None:
            draft_order = find_order(config, hardware, dtype, drafting.network, drafts=True)
            network = load_network(
                drafting,
                model,
                directory,
                draft_order.order,
                lambda _, done, total: progress("loading the draft's weights", done, total),
            )
        return Parts(
            spec=spec,
            model=model,
            order=order,
            drafting=drafting,
            network=network,
            directory=directory,
            tokenizer=tokenizer,
            eos_token_ids=_eos_token_ids(spec.eos_token_ids, tokenizer, spec.vocab_size),
            dtype=dtype,
            kv_scales=kv_scales,
            draft_kv_scales=draft_kv_scales,
            choices=(
                model_choice(config, spec, model_seconds),
                StartChoice("dtype", str(dtype).removeprefix("torch."), opened.dtype_reason),
                products_choice(hardware, dtype),
                order_choice(order, order_seconds),
                *(() if drafting is None else (drafter_choice(drafting, watch.lap()),)),
            ),
            ranks=ranks,
        )
    except BaseException:
        if ranks is not None:
            ranks.close()
        raise


def find_order(
    config: EngineConfig,
    hardware: Device,
    dtype: torch.dtype,
    spec: ModelSpec | HeadSpec,
    *,
    drafts: bool = False,
) -> RowOrderReport:
    """Find how the matrix products of a network must be run so that a row's bits do not depend on the
    number of rows.

    drafts: the network only drafts. On a device its products are then the fastest ones, since no output
    depends on their bits.
    """
    max_rows = config.scheduler.rows(on_gpu=hardware.device.type == "cuda")
    if usable(hardware.device):
        exact = hardware.exact and not drafts
        # The number of sequences is rounded up to a bucket, by up to half.
        products = Products(exact, hardware.device, pad_for_device(max_rows + max_rows // 2))
        reason = "products have one order" if exact else "products are the fastest; pass --exact"
        shapes = (*spec.linear_shapes, *spec.head_shapes)
        if not all(is_supported(num_in) for _, num_in in shapes):
            exact, reason = False, "a product's input features are no multiple of 16"
        return RowOrderReport(RowOrder(products=products), exact, reason)
    return find_row_order(spec.linear_shapes, dtype, max_rows, heads=spec.head_shapes)


def assemble(
    config: EngineConfig,
    hardware: Device,
    parts: Parts,
    own_drafter: Drafter | None = None,
    *,
    verify: Verify = verify,
    captures: bool = True,
) -> Engine:
    """Size the cache, run the self-check of exactness, and build an engine from loaded parts.

    own_drafter: the drafter if `parts.drafting` is None. verify: computes the verdicts. captures: on a
    device, capture common steps now; otherwise each step is captured when it first occurs.
    """
    dtype, order, drafting = parts.dtype, parts.order, parts.drafting
    spec, ranks = of_rank(parts.spec, parts.model.shard), parts.ranks
    kv_dtype = resolve_kv_dtype(config.cache.dtype, dtype, hardware.device)
    windowed = [store for store in spec.attention_stores if store.window is not None]
    per_window_slot = KVStore.bytes_per_slot(windowed, kv_dtype)
    per_slot, scratch = KVStore.bytes_per_slot(spec.stores, kv_dtype) - per_window_slot, 0
    if drafting is not None:
        per_slot += drafting.bytes_per_slot(dtype, kv_dtype, hardware.device)
        scratch = drafting.scratch_bytes(config.scheduler.max_num_seqs, kv_dtype)
        width = drafting.shape.width
    else:
        assert own_drafter is not None
        width = own_drafter.width
    max_length = parts.model.max_model_len
    states = _state_bytes(config, spec, width, dtype)
    if usable(hardware.device):
        scratch += step_bytes(spec, config, width, max_length, dtype)
    size = SlotBytes(
        per_slot, per_window_slot, max((store.window or 0 for store in windowed), default=0)
    )
    num_slots, in_windows, max_length, cache_choices = _size_cache(
        config, size, scratch, states, hardware.device, max_length, width
    )
    if ranks is not None:
        num_slots = ranks.group.least(num_slots)
        in_windows = num_slots  # of layers with a window too: other ranks know no window slots
        max_length = min(max_length, num_slots - 2 * width)
    watch = Stopwatch()
    kv = KVStore(
        spec.stores,
        num_slots,
        dtype=dtype,
        device=hardware.device,
        stored_dtype=kv_dtype,
        scales=parts.kv_scales,
        num_window_slots=in_windows if in_windows < num_slots else None,
    )
    leader = None if ranks is None else ranks.leader
    runner = ModelRunner(parts.model, open_attention(kv), leader)
    drafter = own_drafter
    if drafter is None:
        assert drafting is not None
        drafter = build_drafter(
            drafting,
            config,
            runner,
            parts.network,
            num_slots,
            max_length,
            kv_dtype=kv_dtype,
            kv_scales=parts.draft_kv_scales,
        )
    tree_seconds = watch.lap()
    if kv.windows is not None:
        kv.windows.assign_first()
    exact = check_exactness(
        runner,
        order,
        max_length,
        in_windows,
        width=drafter.width,
        captures=config.scheduler.max_graph_batch != 0,
        most_seqs=config.scheduler.max_num_seqs,
    )
    if kv.windows is not None:
        kv.windows.clear()
    exact_choice = StartChoice("exact", "yes" if exact.exact else "no", exact.reason, watch.lap())
    has_grammars = bool(parts.eos_token_ids) and parts.tokenizer is not None
    info = EngineInfo(
        model=config.model.path,
        directory="" if parts.directory is None else str(parts.directory),
        grammar_backend=config.grammar.backend if has_grammars else None,
        architecture=spec.architecture,
        num_parameters=parts.spec.num_parameters,
        device=str(hardware.device),
        dtype=str(dtype).removeprefix("torch."),
        kv_cache_dtype=kv_dtype_name(kv_dtype),
        max_model_len=max_length,
        num_slots=num_slots,
        vocab_size=spec.vocab_size,
        drafter="+".join(drafting.names) if drafting else type(own_drafter).__name__,
        eos_token_ids=parts.eos_token_ids,
        exact=exact.exact,
        exact_reason=exact.reason,
        num_ranks=parts.model.shard.size,
        num_flights=hardware.num_flights
        if config.scheduler.flights == "auto"
        else config.scheduler.flights,
    )
    grammars = compile_pool(config, info, parts.tokenizer)
    engine = connect(config, runner, drafter, info, parts.tokenizer, grammars, verify, ranks)
    is_paced = drafting is not None and drafting.is_paced
    watch.lap()
    sizes: list[int] = []
    if captures and engine.launcher.graphs is not None and not is_paced:
        sizes = capture_steps(engine)
    on_device: tuple[StartChoice, ...] = ()
    if usable(hardware.device):
        captured = graphs_choice(config, sizes, watch.lap())
        on_device = (search_choice(search_on(hardware.device).report()), captured)
    engine.info = msgspec.structs.replace(
        info,
        choices=(
            hardware.choice,
            *parts.choices,
            *(() if drafting is None else (tree_choice(drafting, tree_seconds),)),
            *cache_choices,
            kv_choice(config, info),
            *_states_choices(config, spec, dtype),
            *limit_choices(config, hardware, info),
            *on_device,
            exact_choice,
            grammar_choice(config, info, has_tokenizer=parts.tokenizer is not None),
        ),
    )
    return engine


def capture_steps(engine: Engine) -> list[int]:
    """Capture the CUDA graphs of common steps, and return the batch sizes; others are captured when
    they first occur."""
    width = engine.drafter.shape.alone.width
    sizes = captured_sizes(engine.launcher.max_graph_batch)
    lengths = {length_of(min(length, engine.info.max_model_len)) for length in CAPTURED_LENGTHS}
    for length in sorted(lengths, reverse=True):
        for num in sizes:
            for temperature in (0.0, 1.0):
                engine.launcher.capture(num, width, length, temperature)
    return sizes


def captured_sizes(most: int) -> list[int]:
    """Return the batch sizes that steps of up to `most` sequences are captured with, largest first."""
    return sorted({bucket_of(num) for num in range(1, most + 1)}, reverse=True)


def _num_mask_threads(device: str) -> int:
    """Return how many threads fill masks: on a CPU as many as torch has, with a GPU half of the cores
    and at most 8.

    The masks of one sequence are filled one after the other, so more threads do not finish sooner, and
    if all cores are busy the thread that launches steps waits for one.
    """
    if device == "cpu":
        return torch.get_num_threads()
    return max(1, min(8, (psutil.cpu_count(logical=False) or 1) // 2))


def compile_pool(
    config: EngineConfig, info: EngineInfo, tokenizer: Tokenizer | None
) -> CompilePool | None:
    """Return the pool that compiles grammars for this model's vocabulary.

    Returns None if there is no tokenizer, or no end-of-sequence token that ends an output. Raises
    ValueError that names a grammar library that is not installed.
    """
    grammar = config.grammar
    if tokenizer is None:
        return None
    if not info.eos_token_ids:
        log.warning("the model has no end-of-sequence token, so outputs cannot be constrained")
        return None
    vocabulary = Vocabulary.of(tokenizer, info.vocab_size, info.eos_token_ids)
    backend = build_backend(
        grammar.backend,
        vocabulary,
        config.device.num_threads or _num_mask_threads(info.device),
        deadline_seconds=grammar.compile_seconds,
        spacing=grammar.spacing,
    )
    return CompilePool(
        backend,
        num_threads=grammar.num_threads,
        deadline_seconds=grammar.compile_seconds,
        max_cache_bytes=grammar.cache_bytes,
        allocator=process_allocator(),
    )


def connect(
    config: EngineConfig,
    runner: ModelRunner,
    drafter: Drafter,
    info: EngineInfo,
    tokenizer: Tokenizer | None,
    grammars: CompilePool | None = None,
    verify: Verify = verify,
    ranks: Ranks | None = None,
) -> Engine:
    """Build an engine from a runner and a drafter: make its cache manager, sequence table,
    scheduler."""
    device = runner.model.device
    scheduling, states = config.scheduler, runner.backend.states
    windows = runner.backend.windows
    num_snapshots = None
    if states is not None:
        spec, dtype = of_rank(runner.model.spec, runner.model.shard), runner.model.dtype
        num_snapshots = _num_snapshots(config, spec, dtype)
        states.reserve_snapshots(num_snapshots)
    events = config.cache.kv_events
    cache = CacheManager(
        info.num_slots,
        shares_prefixes=config.cache.prefix_cache,
        num_snapshots=num_snapshots,
        windows=None if windows is None else (windows.num_window_slots, windows.window),
        blocks=BlockLog(events.block_size) if events.is_on else None,
    )
    table = SequenceTable(
        scheduling.max_num_seqs,
        info.max_model_len,
        drafter.width,
        device,
        states,
        None if windows is None else windows.slots_S,
    )
    scheduler = Scheduler(
        cache,
        table,
        max_batch_tokens=scheduling.rows(on_gpu=device.type == "cuda"),
        preferred_shape=drafter.preferred_shape,
    )
    return Engine(
        runner=runner,
        cache=cache,
        table=table,
        drafter=drafter,
        scheduler=scheduler,
        info=info,
        grammars=grammars,
        mask_seconds=config.grammar.mask_seconds,
        max_graph_batch=scheduling.max_graph_batch,
        tokenizer=tokenizer,
        verify=verify,
        publisher=EventPublisher(events, cache) if events.is_on else None,
        ranks=ranks,
    )


def _eos_token_ids(
    from_files: tuple[int, ...], tokenizer: Tokenizer | None, vocab_size: int
) -> tuple[int, ...]:
    """Return the tokens that end a text: those of config.json and generation_config.json, and the
    tokenizer's own. A chat fine-tune often changes only one of the three."""
    eos_id = None if tokenizer is None else tokenizer.eos_id
    from_tokenizer = () if eos_id is None or eos_id >= vocab_size else (eos_id,)
    return tuple(dict.fromkeys((*from_files, *from_tokenizer)))


def _check_memory(
    config: EngineConfig, files: ModelFiles, dtype: torch.dtype, hardware: Device, shard: Shard
) -> None:
    """Raise ValueError if the weights of a rank are larger than its memory."""
    needed = files.num_bytes(dtype, stays_packed=usable(hardware.device), shard=shard)
    available = memory_bytes(hardware.device)
    if hardware.device.type == "cpu":
        available //= config.parallel.ranks_of_node
    if needed > available:
        raise ValueError(
            f"model.path: {config.model.path} takes {needed / 2**30:.1f} GiB as "
            f"{str(dtype).removeprefix('torch.')}, {hardware.device} has {available / 2**30:.1f}; take "
            "a smaller model, or a smaller --dtype"
        )


def longest_sequence(config: EngineConfig, spec: ModelSpec) -> int:
    """Return the number of positions to serve: `max_model_len`, or all that the model was made for.

    Raises ValueError if that is more than the model or this engine can have.
    """
    requested = config.model.max_model_len
    if requested is not None and requested > spec.max_position:
        raise ValueError(
            f"model.max_model_len: {requested} is beyond the {spec.max_position} positions this model "
            "was made for"
        )
    longest = requested or spec.max_position
    if longest > MAX_POSITIONS:
        raise ValueError(
            f"model.max_model_len: {longest} positions are too many to prepare (at most "
            f"{MAX_POSITIONS}); pass a smaller --max-model-len"
        )
    return longest


def step_bytes(
    spec: ModelSpec, config: EngineConfig, width: int, max_length: int, dtype: torch.dtype
) -> int:
    """Return an upper bound of the bytes that a step on a device needs in addition to weights and
    cache: activations of a full step, logits, and partial results of attention over sequences of full
    length."""
    rows = config.scheduler.rows(on_gpu=True)
    nodes = min(config.scheduler.max_num_seqs * width, rows)
    activations = 4 * rows * 2 * spec.intermediate_size * dtype.itemsize
    if (experts := spec.experts) is not None:
        # The float32 contributions exist twice: as computed, and joined with the shared expert's.
        contributions = 2 * (experts.routing.num_chosen + PARTS_SPLITS) * spec.hidden_size * 4
        inner = experts.routing.num_chosen * experts.intermediate_size * dtype.itemsize
        activations += rows * (inner + contributions)
    if (latent := spec.latent) is not None:
        # Queries before and after they are taken into the latent space, and outputs likewise.
        of_head = latent.query_dim + latent.row_dim + latent.rank + latent.value_dim
        activations += rows * spec.num_query_heads * of_head * dtype.itemsize
    if (state := spec.state) is not None:
        # Projections, and in float32 convolved inputs and outputs, of rows and of accepted nodes.
        lines = rows + (config.scheduler.max_num_seqs + rows) * width
        activations += 4 * lines * (state.convolved + state.output_width)
        activations += 2 * rows * (state.convolved + state.output_width) * dtype.itemsize
    logits = 2 * nodes * spec.vocab_size * 4
    heads = (
        spec.num_query_heads * (max(store.output_dim for store in spec.attention_stores) + 2) * 4
    )
    return activations + logits + nodes * attention_units(max_length, width) * heads


def _num_snapshots(config: EngineConfig, spec: ModelSpec, dtype: torch.dtype) -> int:
    """Return the number of snapshots of states: two a seat, if so many take no more than
    `SNAPSHOT_BYTES`; 0 without states or a prefix cache."""
    size = _snapshot_bytes(spec, dtype)
    if not size or not config.cache.prefix_cache:
        return 0
    return min(2 * config.scheduler.max_num_seqs, max(1, SNAPSHOT_BYTES // size))


def _states_choices(
    config: EngineConfig, spec: ModelSpec, dtype: torch.dtype
) -> tuple[StartChoice, ...]:
    """What is kept of the states of sequences; nothing if there are none."""
    size = _snapshot_bytes(spec, dtype)
    if not size:
        return ()
    value = f"{size / 2**20:.1f} MiB a sequence, {_num_snapshots(config, spec, dtype)} snapshots"
    return (StartChoice("states", value, "prefixes are shared at snapshots"),)


def _snapshot_bytes(spec: ModelSpec, dtype: torch.dtype) -> int:
    return sum(store.num_bytes(0, dtype.itemsize) for store in spec.state_stores)


def _state_bytes(config: EngineConfig, spec: ModelSpec, width: int, dtype: torch.dtype) -> int:
    """Return the bytes of the states of all seats, and of the snapshots of states."""
    seat = sum(store.num_bytes(width, dtype.itemsize) for store in spec.state_stores)
    snapshots = _num_snapshots(config, spec, dtype) * _snapshot_bytes(spec, dtype)
    return (config.scheduler.max_num_seqs + 2) * seat + snapshots


def _size_cache(
    config: EngineConfig,
    size: SlotBytes,
    scratch: int,
    states: int,
    device: torch.device,
    max_length: int,
    width: int,
) -> tuple[int, int, int, tuple[StartChoice, ...]]:
    """Return the number of slots, that of layers with a window, the longest sequence, and what was
    chosen. One sequence of that length always fits.

    scratch: bytes that steps and drafting need in addition. states: bytes of
    the states of sequences. width: most nodes of a tree. Raises ValueError if no useful sequence fits.
    """
    num_slots, scheduling = config.cache.num_slots, config.scheduler
    demand = Demand(
        most_useful=scheduling.max_num_seqs * (max_length + 2 * width),
        num_sequences=scheduling.max_num_seqs,
        rows=scheduling.rows(on_gpu=device.type == "cuda"),
        shares_prefixes=config.cache.prefix_cache,
    )
    reason = "--num-slots"
    if num_slots is None:
        table_bytes = 16 * config.scheduler.max_num_seqs * (max_length + 3 * width)
        budget = cache_budget(device, config.cache.memory_fraction, states)
        if device.type == "cpu":
            budget //= config.parallel.ranks_of_node
        budget -= table_bytes + scratch
        num_slots = most_slots(budget, size, demand)
        reason = memory_reason(device, config.cache.memory_fraction, scratch)
        if num_slots == demand.most_useful:
            reason = "all that the sequences of a step can use"
    longest = min(max_length, num_slots - 2 * width)
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
