"""Ranks that die under load: counts what clients see.

`python benchmarks/ranks.py --kills 20 --tp 2` runs a server whose model is divided among processes of
this machine's CPU, kills one of them (never the first) while clients stream, waits until the server has
started all of them again, and again.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil

from replicas import SERVE, free_port, load_with_kills, report, wait_for

OPTIONS = (
    "--device",
    "cpu",
    "--stall-timeout",
    "300",
    "--dist-timeout",
    "60",
    "--log-level",
    "error",
)
WAIT_SECONDS = 300


def ranks_of(server: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the ranks but the first, which is the engine's process."""
    found = []
    for child in psutil.Process(server.pid).children(recursive=True):
        try:
            if "eyas.engine.rank_main" in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=30) as answer:
            return answer.status == 200
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def kill_one(url: str, server: subprocess.Popen[bytes], number: int) -> None:
    """Kill a rank, and wait until the server has another one in its place and is ready."""
    before = ranks_of(server)
    lost = before[number % len(before)]
    lost.kill()
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.2)
        now = ranks_of(server)
        if len(now) == len(before) and not set(now) & set(before) and is_ready(url):
            return
    raise RuntimeError("the ranks were not started again")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # end the server first
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [*SERVE, *OPTIONS, "--tp", str(asked.tp), "--port", str(port)]
    server = subprocess.Popen(command)
    try:
        wait_for(f"{url}/ready", server)
        seen = asyncio.run(
            load_with_kills(
                url,
                asked.clients,
                asked.kills,
                lambda i: kill_one(url, server, i),
                before=4.0,
                after=4.0,
            )
        )
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    report({"ranks": asked.tp, **seen}, asked.output)


if __name__ == "__main__":
    main()
