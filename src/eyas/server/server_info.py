"""The answers to routers and benchmarks that are made for SGLang.

Promises: contain no keys and no paths of this machine: a model that was given as a directory has its
served name. Counts are of choices and as old as the engine's last heartbeat.
Does not know: routes, who asks.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import eyas
from eyas.server.service import Service
from eyas.wire import EngineStats


def server_info(service: Service) -> dict[str, Any]:
    """Return sizes and settings. ApiError 503 while no engine is ready."""
    info, stats = service.info, service.client.health().stats
    parallel = service.config.parallel
    return {
        **_names(service),
        "engine": "eyas",
        "version": eyas.__version__,
        "context_length": info.max_model_len,
        "max_req_input_len": info.max_model_len - 1,
        "max_total_num_tokens": info.num_slots,
        "max_running_requests": info.max_num_seqs,
        "max_queued_requests": service.options.max_queued,
        "tp_size": parallel.num_ranks,
        "dp_size": parallel.dp,
        "device": info.device,
        "dtype": info.dtype,
        "kv_cache_dtype": info.kv_cache_dtype,
        "drafter": info.drafter,
        "exact": info.exact,
        "internal_states": [{"avg_spec_accept_length": _accept_length(stats)}],
    }


def model_info(service: Service) -> dict[str, Any]:
    """Return the description of the model. ApiError 503 while no engine is ready."""
    info = service.info
    return {
        **_names(service),
        "is_generation": True,
        "architectures": [info.architecture],
        "num_parameters": info.num_parameters,
        "vocab_size": info.vocab_size,
        "eos_token_ids": info.eos_token_ids,
        "max_model_len": info.max_model_len,
        "weight_version": "default",
        "has_image_understanding": False,
        "has_audio_understanding": False,
    }


def load(service: Service) -> list[dict[str, Any]]:
    """Return the load as a list with one entry, for the one engine. ApiError 503 while no engine is
    ready."""
    _ = service.info
    stats = service.client.health().stats
    return [
        {
            "dp_rank": 0,
            "num_reqs": stats.num_running + stats.num_waiting,
            "num_running_reqs": stats.num_running,
            "num_waiting_reqs": stats.num_waiting,
            "num_tokens": stats.num_used_slots,
        }
    ]


def loads(service: Service) -> dict[str, Any]:
    """Return the load with capacities, as SGLang's newer route does. ApiError 503 while no engine is
    ready."""
    most, stats = service.info.max_num_seqs, service.client.health().stats
    (entry,) = load(service)
    entry_with_capacity = {
        "dp_rank": 0,
        "num_running_reqs": stats.num_running,
        "num_waiting_reqs": stats.num_waiting,
        "num_total_reqs": entry["num_reqs"],
        "num_used_tokens": entry["num_tokens"],
        "max_total_num_tokens": stats.num_slots,
        "max_running_requests": most,
        "token_usage": stats.cache_usage,
        "cache_hit_rate": stats.prefix_hit_rate,
        "utilization": stats.num_running / most,
    }
    return {
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "version": eyas.__version__,
        "dp_rank_count": 1,
        "loads": [entry_with_capacity],
    }


def _names(service: Service) -> dict[str, str]:
    path = service.config.model.path
    name = service.names[0] if Path(path).is_dir() else path
    return {"model_path": name, "tokenizer_path": name, "served_model_name": service.names[0]}


def _accept_length(stats: EngineStats) -> float:
    """Return the mean number of tokens of a step with a draft; 1 if there was none."""
    return 1 + stats.num_accepted_tokens / max(1, stats.drafts.num_drafts)
