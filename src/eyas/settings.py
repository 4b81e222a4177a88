"""The settings of an engine as keyword arguments, for commands and `LLM`.

Promises: names and defaults are the same in all of them. Error messages begin with the setting.
Does not know: where the values came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

from eyas.config import (
    DEFAULTS,
    CacheConfig,
    DeviceConfig,
    DraftConfig,
    EngineConfig,
    GrammarBackend,
    GrammarConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    read_kv_events,
)

Number = TypeVar("Number", int, float)

DTYPES: dict[str, Any] = {"half": "float16", "float": "float32"}
"""Other names of number formats, as in torch and vLLM."""
CACHE_DTYPES: dict[str, Any] = {"fp8": "fp8_e4m3", "bf16": "bfloat16", **DTYPES}
"""Other names of number formats of the cache, as in vLLM and SGLang."""


def engine_config(
    *,
    model: str = DEFAULTS.model.path,
    revision: str | None = DEFAULTS.model.revision,
    offline: bool = DEFAULTS.model.offline,
    dtype: str = DEFAULTS.model.dtype,
    max_model_len: int | None = DEFAULTS.model.max_model_len,
    drafter: str = DEFAULTS.draft.drafter,
    draft_model: str | None = DEFAULTS.draft.model,
    draft_steps: str | int = DEFAULTS.draft.steps,
    draft_topk: int = DEFAULTS.draft.topk,
    draft_nodes: str | int = DEFAULTS.draft.nodes,
    draft_token_map: str | None = DEFAULTS.draft.token_map,
    device: str = DEFAULTS.device.device,
    threads: int | None = DEFAULTS.device.num_threads,
    exact: bool = DEFAULTS.device.exact,
    num_slots: int | None = DEFAULTS.cache.num_slots,
    memory_fraction: float = DEFAULTS.cache.memory_fraction,
    max_num_seqs: str | int = DEFAULTS.scheduler.max_num_seqs,
    max_batch_tokens: str | int = DEFAULTS.scheduler.max_batch_tokens,
    max_step_ms: str | float = DEFAULTS.scheduler.max_step_ms,
    max_graph_batch: int | None = DEFAULTS.scheduler.max_graph_batch,
    prefix_cache: bool = DEFAULTS.cache.prefix_cache,
    kv_cache_dtype: str = DEFAULTS.cache.dtype,
    kv_events_config: str | None = None,
    flights: str | int = "auto",
    grammar_backend: str = DEFAULTS.grammar.backend,
    grammar_timeout: float = DEFAULTS.grammar.compile_seconds,
    grammar_memory: int = DEFAULTS.grammar.cache_bytes // 2**20,
    whitespace_pattern: str | None = DEFAULTS.grammar.white_space,
    disable_any_whitespace: bool = not DEFAULTS.grammar.any_white_space,
    tensor_parallel_size: int = DEFAULTS.parallel.tp,
    expert_parallel_size: int = DEFAULTS.parallel.ep,
    data_parallel_size: int = DEFAULTS.parallel.dp,
    enable_dp_attention: bool = DEFAULTS.parallel.dp_attention,
    exact_across_tp: bool = DEFAULTS.parallel.exact_across_tp,
    dist_timeout: float = DEFAULTS.parallel.timeout_seconds,
    nnodes: int = DEFAULTS.parallel.num_nodes,
    node_rank: int = DEFAULTS.parallel.node_rank,
    dist_init_addr: str | None = DEFAULTS.parallel.address,
    first_device: int = DEFAULTS.parallel.first_device,
) -> EngineConfig:
    """Return the configuration with these settings.

    kv_events_config: a JSON object with the fields of `eyas.config.KVEventsConfig`.
    Raises ValueError, whose message begins with the setting, if one cannot be used.
    """
    if str(flights) not in ("auto", "0", "1"):
        raise ValueError(f"scheduler.flights: 'auto', 0 or 1, not {flights!r}")
    return EngineConfig(
        model=ModelConfig(
            path=model,
            revision=revision,
            dtype=DTYPES.get(str(dtype), str(dtype)),
            max_model_len=max_model_len,
            offline=offline,
        ),
        cache=CacheConfig(
            num_slots=num_slots,
            memory_fraction=memory_fraction,
            prefix_cache=prefix_cache,
            dtype=CACHE_DTYPES.get(str(kv_cache_dtype), str(kv_cache_dtype)),
            kv_events=DEFAULTS.cache.kv_events
            if kv_events_config is None
            else read_kv_events(kv_events_config),
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=_count("scheduler.max_num_seqs", max_num_seqs),
            max_batch_tokens=_count("scheduler.max_batch_tokens", max_batch_tokens),
            max_step_ms=_milliseconds("scheduler.max_step_ms", max_step_ms),
            flights="auto" if flights == "auto" else int(flights),
            max_graph_batch=max_graph_batch,
        ),
        draft=DraftConfig(
            drafter=drafter,
            model=draft_model,
            steps=_count("draft.steps", draft_steps),
            topk=draft_topk,
            nodes=_count("draft.nodes", draft_nodes),
            token_map=draft_token_map,
        ),
        device=DeviceConfig(device=device, num_threads=threads, exact=exact),
        grammar=GrammarConfig(
            backend=cast(GrammarBackend, str(grammar_backend)),
            compile_seconds=grammar_timeout,
            cache_bytes=grammar_memory * 2**20,
            white_space=whitespace_pattern,
            any_white_space=not disable_any_whitespace,
        ),
        parallel=ParallelConfig(
            tp=tensor_parallel_size,
            ep=expert_parallel_size,
            dp=data_parallel_size,
            dp_attention=enable_dp_attention,
            exact_across_tp=exact_across_tp,
            timeout_seconds=dist_timeout,
            num_nodes=nnodes,
            node_rank=node_rank,
            address=dist_init_addr,
            first_device=first_device,
        ),
    )


def _milliseconds(setting: str, text: str | float) -> float | Literal["auto"]:
    return _or_auto(setting, text, float, "a number")


def _count(setting: str, text: str | int) -> int | Literal["auto"]:
    return _or_auto(setting, text, int, "a whole number")


def _or_auto(
    setting: str, text: str | float, read: Callable[[str | float], Number], kind: str
) -> Number | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(f"{setting}: {kind} or auto, not {text!r}") from error
