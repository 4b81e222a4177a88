"""The log of a server: coloured for people, JSON for machines, the same events."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from eyas.config import StartChoice
from eyas.logs import JsonFormatter, OneLineFormatter, shows_colours
from eyas.server.process.launch import is_reached_by_others
from eyas.server.process.start_choices import as_fields, as_table
from tests import forked
from tests.server.test_launch import ENVIRONMENT, SECONDS, chat, served


def record(message: str, *values: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("eyas.server", logging.WARNING, "file", 1, message, values, None)
    vars(made).update(extra)
    return made


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_and_nobody_else(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert shows_colours(Terminal()) and not shows_colours(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not shows_colours(Terminal())
    monkeypatch.setenv("NO_COLOR", "")
    assert shows_colours(Terminal()), "an empty NO_COLOR says nothing"
    monkeypatch.setenv("TERM", "dumb")
    assert not shows_colours(Terminal())


def test_the_level_alone_is_coloured_and_no_message_can_colour():
    line = OneLineFormatter(with_colours=True).format(record("a WARNING \x1b[31mred"))
    assert line.count("\x1b") == 2 and " \x1b[33mWARNING\x1b[0m eyas.server: " in line
    assert line.endswith("a WARNING \\x1b[31mred")
    assert "\x1b" not in OneLineFormatter().format(record("x"))


def test_lines_of_a_record_follow_it_and_none_can_be_forged():
    text = OneLineFormatter().format(record("ready", lines=["a  1", "b\n2025 INFO forged"]))
    first, *rest = text.splitlines()
    assert first.endswith("eyas.server: ready")
    assert rest == ["    a  1", "    b\\n2025 INFO forged"]


def test_a_table_of_choices_has_aligned_columns():
    choices = [
        StartChoice("device", "cpu", "--device"),
        StartChoice("context", "9 tokens", "the model's", 1.5),
        StartChoice("exact", "no: " + "x" * 60, "a law", 0.25),
    ]
    one, two, three = as_table(choices)
    assert one.index("--device") == two.index("the model's")
    assert two == "context  9 tokens   1.50 s  the model's"
    assert three.endswith("x   0.25 s  a law")
    assert as_fields(choices)["choices"][1] == {
        "name": "context",
        "value": "9 tokens",
        "reason": "the model's",
        "seconds": 1.5,
    }


def test_a_json_line_is_one_object():
    fields = {"status": 200}
    line = JsonFormatter().format(record("a %s", "b\r\n\u2028", request_id="mine", fields=fields))
    assert "\n" not in line and line.isascii()
    written = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", written.pop("time"))
    assert written == {
        "level": "warning",
        "logger": "eyas.server",
        "message": "a b\r\n\u2028",
        "request_id": "mine",
        "status": 200,
    }
    try:
        raise ValueError("x\ny")
    except ValueError:
        failed = record("failed", exc_info=sys.exc_info())
    line = JsonFormatter().format(failed)
    assert "\n" not in line and "ValueError: x\ny" in json.loads(line)["exception"]


def test_a_server_that_logs_json_logs_nothing_else(directory: Path):
    with served(directory, "log_format=json", "max_restarts=0") as server:
        url = server.wait_until_ready()
        headers = {"x-request-id": "mine"}
        body = {"messages": [{"role": "user", "content": "a secret word"}], "max_tokens": 3}
        httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=SECONDS)
        chat(url, cache_salt="raise")  # the engine process logs a traceback
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(SECONDS) == 0
    lines = [json.loads(line) for line in server.log]
    assert {"eyas.server", "eyas.engine"} <= {line["logger"] for line in lines}
    (mine,) = [line for line in lines if line.get("request_id") == "mine"]
    assert (mine["route"], mine["status"]) == ("/v1/chat/completions", 200)
    assert (mine["finish_reasons"], mine["completion_tokens"]) == (["length"], 3)
    failed = [line for line in lines if "exception" in line]
    assert failed and "RuntimeError" in failed[0]["exception"]
    (choices,) = [line["choices"] for line in lines if "choices" in line]
    chosen = {choice["name"]: choice for choice in choices}
    assert {"dialect", "chat template", "queue", "API keys"} <= set(chosen)
    assert all(choice["reason"] for choice in choices)
    assert not any("a secret word" in line for line in server.log)


def test_a_server_at_a_terminal_colours_levels(directory: Path):
    main, end = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [*forked.command("tests.server.served"), str(directory), "no_model"],
        stderr=end,
        env=environment,
    )
    os.close(end)
    seen = b""
    try:
        while piece := os.read(main, 65536):
            seen += piece
    except OSError:  # how a terminal's end shows on Linux
        pass
    finally:
        os.close(main)
        assert process.wait(SECONDS) == 1
    assert b"\x1b[32mINFO\x1b[0m eyas.server: listening" in seen
    assert b"\x1b[31mERROR\x1b[0m eyas.server: model.path: there is no model here" in seen


OPEN = "open without a key to everybody who can reach this machine"


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        (["host=0.0.0.0"], True),
        (["host=127.0.0.1"], False),
        (["host=0.0.0.0", "allow_no_key=true"], False),
        (["host=0.0.0.0", "api_keys=secret"], False),
    ],
)
def test_an_address_for_others_without_a_key_is_warned_of(
    directory: Path, options: list[str], warns: bool
):
    with served(directory, "no_model", *options) as server:
        assert server.process.wait(SECONDS) == 1
    warnings = [line for line in server.log if OPEN in line]
    assert len(warnings) == warns
    assert all(" WARNING " in line and "--api-key-file" in line for line in warnings)


@pytest.mark.parametrize(
    ("host", "is_reached"),
    [("0.0.0.0", True), ("::", True), ("127.0.0.1", False), ("127.0.0.2", False), ("::1", False)],
)
def test_only_a_loopback_address_is_out_of_others_reach(host: str, is_reached: bool):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        assert is_reached_by_others(listener) == is_reached
