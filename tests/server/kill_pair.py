"""Kill the engine of a prefill server and that of a decode server under load, many times:
`python -m tests.server.kill_pair [times]`.

Counts how the requests under way ended, and checks that none hangs, that both servers answer again and
that no slot stays held. Not a test of the suite: it takes minutes.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import httpx
import psutil

from tests.server.conftest import ROOT, SERVE
from tests.server.pair_proxy import through_both

NUM_CLIENTS = 6
PATIENCE_SECONDS = 180
PATH = "/v1/completions"


class Server:
    """`eyas serve` with a role. log: file of its standard error."""

    def __init__(self, role: str, log: Path) -> None:
        command = [sys.executable, "-c", SERVE, "serve", "--port", "0", "--stall-timeout", "300"]
        command += ["--role", role, "--kv-hold", "3", "--num-slots", "4096"]
        command += [
            "--drafter",
            "ngram",
            "--draft-nodes",
            "4",
            "--max-num-seqs",
            "8",
        ]  # starts soon
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
        with log.open("w") as output:
            self.process = subprocess.Popen(command, stderr=output, env=environment)
        until(lambda: re.search(r"listening on (http://\S+);", log.read_text()))
        found = re.search(r"listening on (http://\S+);", log.read_text())
        assert found is not None
        self.url = found[1]
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        until(lambda: httpx.get(f"{self.url}/ready", timeout=60).status_code == 200)

    def kill_engine(self) -> None:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if "eyas.engine.worker" in " ".join(child.cmdline()):
                child.kill()

    def num_held(self) -> float:
        """The share of slots that requests hold, and the prompts that are held or read."""
        text = httpx.get(f"{self.url}/metrics", timeout=60).text
        names = ("kv_cache_usage_perc", "kv_transfer_prompts", "num_requests_running")
        gauges = [re.search(rf"^eyas_{name}\{{.*\}} (\S+)$", text, re.MULTILINE) for name in names]
        return sum(float(found[1]) if found else 1.0 for found in gauges)


def until(condition: object) -> None:
    """Wait until a function returns something true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)


def ask(prefill: Server, decode: Server, number: int) -> str:
    """Send a request to both; how it ended."""
    words = random.Random(number).choices(("river", "city", "tree", "road", "the", "of"), k=150)
    body = {
        "prompt": " ".join(words),
        "max_tokens": 40,
        "ignore_eos": True,
        "seed": number,
        "stream": number % 2 == 0,
    }
    try:
        answer = through_both(prefill.url, decode.url, PATH, body)
    except httpx.TransportError as error:
        return type(error).__name__
    if answer.status_code != 200:
        return f"{answer.status_code} {answer.json()['error']['code']}"
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    if events and "error" in (last := json.loads(events[-1])):
        return f"stream {last['error']['code']}"
    return "answered"


def main(times: int) -> None:
    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    prefill = Server("prefill", folder / f"kill_pair.{os.getpid()}.prefill.log")
    decode = Server("decode", folder / f"kill_pair.{os.getpid()}.decode.log")
    draw, number = random.Random(1), 0
    try:
        for name, victim in (("prefill", prefill), ("decode", decode)):
            endings: Counter[str] = Counter()
            for _ in range(times):
                with ThreadPoolExecutor(NUM_CLIENTS) as pool:
                    asked = [
                        pool.submit(ask, prefill, decode, number + i) for i in range(NUM_CLIENTS)
                    ]
                    number += NUM_CLIENTS
                    time.sleep(draw.uniform(0.1, 1.5))
                    victim.kill_engine()
                    _, hanging = wait(asked, PATIENCE_SECONDS)
                    assert not hanging, "a request hangs"
                    endings.update(each.result() for each in asked)
                for server in (prefill, decode):
                    server.wait_until_ready()
                    until(lambda server=server: server.num_held() == 0)
                number += 1
                assert ask(prefill, decode, number) == "answered"
            print(name, "killed", times, "times:", dict(sorted(endings.items())), flush=True)
    finally:
        for server in (prefill, decode):
            server.process.terminate()
            server.process.wait(PATIENCE_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
