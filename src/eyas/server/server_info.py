"""What a server says of itself to routers and benchmarks that were made for SGLang.

Promises: no keys and no directories of this machine: a model that was given as one goes by the name it
is served by. Counts are of choices, and as old as the last heartbeat of the engine.
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
    """Sizes and settings. ApiError 503 while there is no engine."""
    info, config, stats = service.info, service.config, service.client.health().stats
    return {
        **_names(service),
        "engine": "eyas",
        "version": eyas.__version__,
        "context_length": info.max_model_len,
        "max_req_input_len": info.max_model_len - 1,
        "max_total_num_tokens": info.num_slots,
        "max_running_requests": config.scheduler.max_num_seqs,
        "max_queued_requests": service.options.max_queued,
        "tp_size": 1,
        "dp_size": 1,
        "device": info.device,
        "dtype": info.dtype,
        "drafter": info.drafter,
        "exact": info.exact,
        "internal_states": [{"avg_spec_accept_length": _accept_length(stats)}],
    }


def model_info(service: Service) -> dict[str, Any]:
    """The model. ApiError 503 while there is no engine."""
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
    """How much is under way: a list with an entry for each engine, of which there is one. ApiError 503
    while there is none."""
    _ = service.info
    stats = service.client.health().stats
    return [
        {
            "dp_rank": 0,
            "num_reqs": stats.num_running + stats.num_waiting,
            "num_running_reqs": stats.num_running,
            "num_waiting_reqs": stats.num_waiting,
            "num_tokens": _num_used(stats),
        }
    ]


def loads(service: Service) -> dict[str, Any]:
    """The same with the room that there is, as SGLang's newer route has it."""
    limits, stats = service.config.scheduler, service.client.health().stats
    (entry,) = load(service)
    whole = {
        "dp_rank": 0,
        "num_running_reqs": stats.num_running,
        "num_waiting_reqs": stats.num_waiting,
        "num_total_reqs": entry["num_reqs"],
        "num_used_tokens": entry["num_tokens"],
        "max_total_num_tokens": stats.num_slots,
        "max_running_requests": limits.max_num_seqs,
        "token_usage": _num_used(stats) / max(1, stats.num_slots),
        "cache_hit_rate": stats.num_prefix_hit_tokens / max(1, stats.num_prefix_query_tokens),
        "utilization": stats.num_running / limits.max_num_seqs,
    }
    return {
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "version": eyas.__version__,
        "dp_rank_count": 1,
        "loads": [whole],
    }


def _names(service: Service) -> dict[str, str]:
    path = service.config.model.path
    shown = service.names[0] if Path(path).is_dir() else path
    return {"model_path": shown, "tokenizer_path": shown, "served_model_name": service.names[0]}


def _num_used(stats: EngineStats) -> int:
    return stats.num_slots - stats.num_free_slots - stats.num_cached_slots


def _accept_length(stats: EngineStats) -> float:
    """Mean tokens of a step with a draft; 1 where there was none."""
    return 1 + stats.num_accepted_tokens / max(1, stats.drafts.num_drafts)
