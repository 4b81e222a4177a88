"""Engines under Ray Serve that die: counts what clients see.

`.venv-ray/bin/python benchmarks/replicas_ray.py --kills 20` (after `make ray`) runs the application
with two engines on this machine, kills the process of a replica while clients stream, waits until Ray
has replaced it, and again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import serve

from eyas.deploy.ray import app
from replicas import load_with_kills, report

PORT = 8124
WAIT_SECONDS = 300
SETTINGS: dict[str, Any] = {
    "engine": {"threads": 1, "max_num_seqs": 8},
    "server": {"stall_seconds": 600, "drain_seconds": 2, "log_level": "warning"},
    "cpus": 0.1,
    "min_replicas": 2,
    "max_replicas": 2,
}


def engine_ids() -> set[int]:
    handle = serve.get_deployment_handle("Engine", "eyas")
    return {handle.process_id.remote().result(timeout_s=120) for _ in range(8)}


def replace_one() -> None:
    """Kill the replica of an engine, and wait until another one is ready."""
    before = engine_ids()
    os.kill(psutil.Process(before.pop()).ppid(), signal.SIGKILL)
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.5)
        states = serve.status().applications["eyas"].deployments["Engine"].replica_states
        if states == {"RUNNING": 2} and engine_ids() - before:
            return
    raise RuntimeError("the replica was not replaced")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    serve.run(app(SETTINGS), name="eyas")
    try:
        url = f"http://127.0.0.1:{PORT}"
        seen = asyncio.run(
            load_with_kills(url, asked.clients, asked.kills, lambda _: replace_one())
        )
    finally:
        serve.shutdown()
        ray.shutdown()
    report({"ray": ray.__version__, **seen}, asked.output)


if __name__ == "__main__":
    main()
