"""`eyas serve` up to the start of the server, and servers of whole lines."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from eyas import cli
from eyas.config import EngineConfig
from tests.server.forked_serve import forked_eyas

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """config, options: what would be served; None where nothing is. errors: what is printed instead."""

    config: EngineConfig | None
    options: Any
    errors: list[str]

    @property
    def notes(self) -> tuple[str, ...]:
        assert self.config is not None, self.errors
        return self.options.notes

    @property
    def translated(self) -> list[str]:
        """The arguments of the equivalent command."""
        said = (*self.errors, *(self.options.notes if self.options else ()))
        (line,) = (each for each in said if "eyas serve" in each)
        return shlex.split(line.partition("eyas serve")[2])


def outcome(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> Outcome:
    """Of `eyas serve` with these arguments."""
    started: list[tuple[EngineConfig, Any]] = []

    def start(config: EngineConfig, options: Any, *_: Any) -> int:
        started.append((config, options))
        return 0

    monkeypatch.setattr("eyas.server.process.launch.serve", start)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", *arguments])
    errors = capsys.readouterr().err
    assert ended.value.code == (0 if started else 2), errors
    config, options = started[0] if started else (None, None)
    return Outcome(config, options, errors.splitlines())


@contextmanager
def running(arguments: list[str]) -> Iterator[tuple[httpx.Client, list[str]]]:
    """A server of these arguments, once it is ready, and its log."""
    command = [*forked_eyas(), "serve", *arguments]
    environment = {**os.environ, "NO_COLOR": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    lines: list[str] = []

    def read() -> None:
        assert process.stderr is not None
        lines.extend(iter(process.stderr.readline, ""))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    client = None
    try:
        while client is None:
            assert process.poll() is None, "".join(lines)
            found = [line for line in lines if "listening on " in line]
            if found:
                place = found[0].partition("listening on ")[2].partition(";")[0]
                path = place.removeprefix("unix:")
                if path != place:
                    client = httpx.Client(
                        transport=httpx.HTTPTransport(uds=path), base_url="http://eyas"
                    )
                else:
                    client = httpx.Client(base_url=place)
                client.timeout = httpx.Timeout(300)
            time.sleep(0.05)
        while client.get("/ready").status_code != 200:
            assert process.poll() is None, "".join(lines)
            time.sleep(0.1)
        yield client, lines
        process.terminate()
        assert process.wait(120) == 0, "".join(lines)
    finally:
        if client is not None:
            client.close()
        process.kill()
        process.wait(120)
        reader.join(30)
        assert process.stderr is not None
        process.stderr.close()
