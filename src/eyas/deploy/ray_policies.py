"""The choice of an engine for a request in Ray Serve, and of the number of engines.

Promises: prompts with the same beginning go to one engine until it is full, and then always to the
same second one; when an engine is added or removed, only the prompts of this engine move. Does not
know: what requests ask for, beyond `HttpCall.prefix`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from ray.serve.config import AutoscalingContext
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from eyas.deploy.http_call import HttpCall


class PrefixRouter(RequestRouter):
    """Rendezvous hashing of the prompt's beginning (Thaler and Ravishankar, 1998). Ray tries the
    groups of replicas in order, and skips those that have their maximum of requests."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        prefix = "" if pending_request is None else prefix_of(pending_request.args)
        if not prefix:
            return [candidate_replicas]
        names = {each.replica_id.unique_id: each for each in candidate_replicas}
        return [[names[name]] for name in ranked(prefix, list(names))]


def prefix_of(arguments: Sequence[Any]) -> str:
    """Return the beginning of a request's prompt; empty if it has none."""
    for argument in arguments:
        if isinstance(argument, HttpCall):
            return argument.prefix
    return ""


def ranked(prefix: str, names: list[str]) -> list[str]:
    """Return the engines for a prompt, the best one first."""

    def weight(name: str) -> bytes:
        return blake2b(f"{name}\0{prefix}".encode(), digest_size=8).digest()

    return sorted(names, key=weight, reverse=True)


def desired_replicas(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Return the number of engines with which each has its target of running and waiting answers. Ray
    applies the bounds and the delays."""
    metrics = context.aggregated_metrics or {}
    in_engines = sum(sum(metrics.get(name, {}).values()) for name in ("num_running", "num_waiting"))
    # Requests that Ray holds back, because every engine has its most, are in no engine's queue.
    num_answers = in_engines + (context.total_queued_requests or 0)
    assert context.config is not None
    return math.ceil(num_answers / context.config.target_ongoing_requests), context.policy_state
