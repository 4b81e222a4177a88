"""Build an engine from its loaded parts: size the cache, connect the rooms, self-check.

Promises: a setting that cannot be used raises a ValueError that names it, before weights are loaded
where possible. `EngineInfo.exact` is the result of the start-up self-check.
Does not know: requests.
"""

from __future__ import annotations

import logging

import msgspec

from eyas.cache import BlockLog, CacheManager
from eyas.config import EngineConfig, EngineInfo, StartChoice, StepLimits
from eyas.constraint import CompilePool
from eyas.draft import Drafter
from eyas.engine.engine import Engine
from eyas.engine.grammars import compile_pool, obstacle
from eyas.engine.kv_events import EventPublisher, check_endpoints
from eyas.engine.rank_group import Ranks
from eyas.engine.scheduler import Scheduler
from eyas.engine.startup.captures import run_common_steps
from eyas.engine.startup.drafters import build_drafter
from eyas.engine.startup.drafting import Drafting
from eyas.engine.startup.exactness import Exactness, check_exactness
from eyas.engine.startup.kv_format import kv_dtype_name
from eyas.engine.startup.load import Parts, load, open_hardware
from eyas.engine.startup.memory import (
    EngineSizes,
    num_snapshots,
    open_runner,
    size_engine,
    states_choices,
)
from eyas.engine.startup.open_launcher import open_launcher
from eyas.engine.startup.rehearsal import compile_steps, start_compilers
from eyas.engine.startup.start_choices import (
    Stopwatch,
    compiled_choice,
    grammar_choice,
    graphs_choice,
    kv_choice,
    limit_choices,
    search_choice,
    tree_choice,
)
from eyas.engine.verifier import Verify, verify
from eyas.kernels import usable
from eyas.kernels.ahead import CompileCounts
from eyas.layers.gemm.search import search_on
from eyas.models import ModelSpec, Progress
from eyas.models.sharding import of_rank
from eyas.runner.device import Device
from eyas.runner.runner import ModelRunner
from eyas.text import Tokenizer

log = logging.getLogger(__name__)


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
    if config.parallel.divides_sequences and hardware.is_gpu:
        log.info("steps of ranks with sequences of their own run without CUDA graphs")
        scheduler = msgspec.structs.replace(config.scheduler, max_graph_batch=0)
        config = msgspec.structs.replace(config, scheduler=scheduler)
    start_compilers(hardware.device)
    parts = load(config, hardware, progress, drafts=own_drafter is None)
    try:
        progress("preparing steps", 0, 0)
        return assemble(config, hardware, parts, own_drafter)
    except BaseException:
        if parts.ranks is not None:
            parts.ranks.close()
        raise


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
    device, capture common steps now; otherwise each step is captured once its shape has occurred often.
    """
    drafting, device = parts.drafting, hardware.device
    sizes = size_engine(config, device, parts, _tree_width(drafting, own_drafter))
    watch = Stopwatch()
    runner = open_runner(
        parts.model,
        sizes.slots_per_rank,
        sizes.num_window_slots,
        sizes.kv_dtype,
        parts.kv_scales,
        None if parts.ranks is None else parts.ranks.leader,
    )
    compiled = CompileCounts()
    if captures and usable(device) and parts.ranks is None:
        width = _tree_width(drafting, own_drafter)
        compiled = compile_steps(parts, sizes, runner, width)
    compile_seconds = watch.lap()
    if drafting is None:
        assert own_drafter is not None
        _check_taps(own_drafter, sizes.spec)
        drafter = own_drafter
    else:
        drafter = build_drafter(parts, sizes, runner)
    tree_seconds = watch.lap()
    exact = _check_exactness(runner, parts, sizes, drafter.width)
    exact_seconds = watch.lap()
    info = _describe(config, hardware, parts, sizes, exact, drafter)
    grammars = compile_pool(config, info, parts.tokenizer)
    engine = connect(
        config,
        sizes.limits,
        runner,
        drafter,
        info,
        parts.tokenizer,
        grammars,
        verify,
        parts.ranks,
    )
    watch.lap()
    captured: list[int] = []
    graphs = engine.launcher.graphs
    if captures and graphs is not None and graphs.captures_at_start:
        is_adaptive = drafting is not None and drafting.is_adaptive
        tree_width = 1 if is_adaptive else drafter.shape.alone.width
        captured = run_common_steps(engine.launcher, graphs.limits, tree_width, sizes.max_length)
    on_device: tuple[StartChoice, ...] = ()
    if usable(device):
        captures_choice = graphs_choice(sizes.limits, captured, watch.lap())
        on_device = (
            compiled_choice(compiled, compile_seconds),
            search_choice(search_on(device).report()),
            captures_choice,
        )
    engine.info = msgspec.structs.replace(
        info,
        choices=(
            hardware.choice,
            *parts.choices,
            *(() if drafting is None else (tree_choice(drafting, tree_seconds),)),
            *sizes.choices,
            kv_choice(config, info),
            *states_choices(config.cache, sizes.limits.num_seats, sizes.spec, parts.dtype),
            *limit_choices(config.scheduler, sizes.limits, hardware),
            *on_device,
            StartChoice("exact", "yes" if exact.exact else "no", exact.reason, exact_seconds),
            grammar_choice(config, info, obstacle(parts.tokenizer, parts.eos_token_ids)),
        ),
    )
    return engine


def _check_taps(drafter: Drafter, spec: ModelSpec) -> None:
    """Raise ValueError for layers that the model does not have."""
    beyond = [tap for tap in drafter.taps if not 0 <= tap <= spec.num_layers]
    if beyond:
        raise ValueError(
            f"drafter: its taps {beyond} are no layers of the model, which has {spec.num_layers}; 0 is "
            "the embedding"
        )


def _tree_width(drafting: Drafting | None, own_drafter: Drafter | None) -> int:
    """Return the most nodes of a tree."""
    if drafting is not None:
        return drafting.shape.width
    assert own_drafter is not None
    return own_drafter.width


def _check_exactness(
    runner: ModelRunner, parts: Parts, sizes: EngineSizes, width: int
) -> Exactness:
    """Run the self-check in the first slots of the cache, before any request. width: most nodes of a
    tree."""
    return check_exactness(
        runner,
        parts.order,
        sizes.max_length,
        sizes.num_window_slots,
        width=width,
        captures=sizes.limits.max_captured_seqs > 0,
        most_seqs=sizes.limits.num_seats,
    )


def _describe(
    config: EngineConfig,
    hardware: Device,
    parts: Parts,
    sizes: EngineSizes,
    exact: Exactness,
    drafter: Drafter,
) -> EngineInfo:
    """Return the description of an engine, without what was chosen at its start."""
    drafting = parts.drafting
    has_grammars = obstacle(parts.tokenizer, parts.eos_token_ids) is None
    return EngineInfo(
        model=config.model.path,
        directory="" if parts.directory is None else str(parts.directory),
        grammar_backend=config.grammar.backend if has_grammars else None,
        architecture=sizes.spec.architecture,
        num_parameters=parts.num_parameters,
        device=str(hardware.device),
        dtype=str(parts.dtype).removeprefix("torch."),
        kv_cache_dtype=kv_dtype_name(sizes.kv_dtype),
        max_model_len=sizes.max_length,
        num_slots=sizes.num_slots,
        vocab_size=sizes.spec.vocab_size,
        drafter="+".join(drafting.names) if drafting else drafter.name,
        eos_token_ids=parts.eos_token_ids,
        exact=exact.exact,
        exact_reason=exact.reason,
        max_num_seqs=sizes.limits.num_seats,
        num_ranks=parts.model.shard.size,
        num_flights=sizes.limits.num_flights,
    )


def connect(
    config: EngineConfig,
    limits: StepLimits,
    runner: ModelRunner,
    drafter: Drafter,
    info: EngineInfo,
    tokenizer: Tokenizer | None,
    grammars: CompilePool | None = None,
    verify: Verify = verify,
    ranks: Ranks | None = None,
) -> Engine:
    """Build an engine from a runner and a drafter: make its cache manager, sequence table, scheduler
    and launcher."""
    states = runner.backend.kv.states
    windows = runner.backend.kv.windows
    most_snapshots = None
    if states is not None:
        spec, dtype = of_rank(runner.model.spec, runner.model.shard), runner.model.dtype
        most_snapshots = num_snapshots(config.cache, limits.num_seats, spec, dtype)
        states.reserve_snapshots(most_snapshots)
    events = config.cache.kv_events
    cache = CacheManager(
        info.num_slots,
        num_ranks=config.parallel.dp,
        shares_prefixes=config.cache.prefix_cache,
        num_snapshots=most_snapshots,
        windows=None if windows is None else (windows.num_window_slots, windows.window),
        blocks=BlockLog(events.block_size) if events.is_on else None,
    )
    launcher = open_launcher(
        limits,
        runner,
        drafter,
        info.max_model_len,
        info.vocab_size,
        mask_seconds=config.grammar.mask_seconds,
        verify=verify,
    )
    scheduler = Scheduler(
        cache,
        launcher.table,
        max_batch_tokens=limits.max_rows,
        preferred_shape=drafter.preferred_shape,
        step_seconds=limits.step_seconds,
    )
    return Engine(
        cache=cache,
        scheduler=scheduler,
        launcher=launcher,
        info=info,
        tokenizer=tokenizer,
        grammars=grammars,
        publisher=EventPublisher(events, cache) if events.is_on else None,
        ranks=ranks,
    )
