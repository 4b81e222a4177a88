"""Every example runs with the built-in model."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.conftest import serving

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
GUIDE = ROOT / "docs" / "structured-output.md"
BORDER = "=====\n"
NAMES = sorted(file.stem for file in EXAMPLES.glob("*.py"))


def run(name: str, *arguments: str, stdin: str = "") -> str:
    """What an example, or a script, prints. It runs in this process, which has imported torch."""
    script = name if name.endswith(".py") else str(EXAMPLES / f"{name}.py")
    with (
        pytest.MonkeyPatch.context() as patched,
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        patched.setattr(sys, "argv", [script, *arguments])
        patched.setattr(sys, "stdin", io.StringIO(stdin))
        runpy.run_path(script, run_name="__main__")
    return printed.getvalue()


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """A server of the built-in model on a free port."""
    with serving("--threads", "1") as url:
        yield f"{url}/v1"


def test_every_example_is_run_here() -> None:
    assert [name for name in NAMES if f"test_{name}" not in globals()] == []


def test_generate() -> None:
    output = run("generate")
    assert "Paris" in output
    assert "three answers:" in output


def test_chat_stream() -> None:
    output = run("chat_stream", stdin="What is the capital of Peru?\n\n")
    assert "Lima" in output
    assert "steps)" in output


def test_tokens_identical() -> None:
    assert run("tokens_identical").count("same tokens") == 3


def test_custom_drafter() -> None:
    assert run("custom_drafter").count("the same as plain decoding's") == 2


def test_train_a_head() -> None:
    output = run("train_a_head", "1")
    steps = {name: int(count) for name, count in re.findall(r"(\w+): 100 tokens in (\d+)", output)}
    assert steps["plain"] == 100 > steps["drafted"]


def test_openai_client(server_url: str) -> None:
    output = run("openai_client", server_url)
    assert "Paris" in output
    assert re.search(r"\d+ tokens", output)


def test_structured_output() -> None:
    output = run("structured_output")
    assert "Person(name='Maria Silva', age=34)" in output
    assert "\npositive\nParis\n" in output
    assert "call: get_weather({'city': 'Oslo'})" in output


def test_structured_client(server_url: str) -> None:
    output = run("structured_client", server_url)
    assert "Person(name='Maria Silva', age=34)\nParis\n" in output
    assert 'call: get_weather({"city": "Oslo"})' in output
    assert "cloudy" in output


def test_the_guide_prints_what_it_says(server_url: str, tmp_path: Path) -> None:
    text = GUIDE.read_text().replace("http://127.0.0.1:8000", server_url.removesuffix("/v1"))
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    kinds, bodies = zip(*blocks, strict=True)
    assert kinds == ("python", "text") * (len(blocks) // 2), (
        "every block is followed by what it prints"
    )
    script = tmp_path / "guide.py"
    script.write_text(f"print({BORDER!r}, end='')\n".join(bodies[::2]))
    assert run(str(script)).split(BORDER) == list(bodies[1::2])
