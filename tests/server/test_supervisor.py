"""How often an engine is started again; what it is started for is in `test_restarts`."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from eyas import wire
from eyas.server.process.client import EngineHealth
from eyas.server.process.restarts import RestartPolicy
from eyas.server.process.supervisor import EngineSupervisor


class Engine:
    """Is ready at once, and gone as soon as somebody has seen it."""

    process_id = None

    def __init__(self) -> None:
        self.info: Any = object()
        self.start_ended, self.failed = asyncio.Event(), asyncio.Event()

    async def start(self) -> None:
        self.start_ended.set()

    async def close(self) -> None:
        pass

    def health(self) -> EngineHealth:
        state = "failed" if self.failed.is_set() else "ready"
        return EngineHealth(state=state, reason="it is gone", stats=wire.EngineStats(num_steps=3))


@pytest.mark.parametrize(("healthy_seconds", "num_engines"), [(0.0, 40), (math.inf, 3)])
def test_tries_count_anew_after_an_engine_that_lived(healthy_seconds: float, num_engines: int):
    """Two restarts in a row are allowed; the fortieth engine is the last in any case."""
    engines: list[Engine] = []

    def new_engine() -> Any:
        engines.append(Engine())
        return engines[-1]

    async def run() -> str:
        policy = RestartPolicy(2, first_pause_seconds=0, healthy_seconds=healthy_seconds)
        supervisor = EngineSupervisor(new_engine, policy)

        async def on_ready() -> None:
            engines[-1].failed.set()
            if len(engines) == 40:
                supervisor.disable_restarts()

        reason = await supervisor.run(on_ready)
        health = supervisor.health()
        assert health.state == "failed" and health.num_restarts == num_engines - 1
        assert health.stats.num_steps == 3 * num_engines
        return reason

    assert asyncio.run(run()) == "it is gone"
    assert len(engines) == num_engines


def test_pauses_grow_up_to_a_limit_and_begin_anew_after_what_lived() -> None:
    policy = RestartPolicy(9, first_pause_seconds=1.0, healthy_seconds=5.0)
    assert [policy.next_pause(0.0, "gone") for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [policy.next_pause(5.0, "gone"), policy.next_pause(0.0, "gone")] == [1, 2]
    policy.stop()
    assert policy.next_pause(0.0, "gone") is None
