"""A folder with Python files in it, such as a checkpoint's, is a place to work in like any other."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
BUILTIN = ROOT / "src" / "eyas" / "builtin" / "checkpoint"
NEEDS_CHECKPOINT = pytest.mark.skipif(
    not (BUILTIN / "model.safetensors").exists(), reason="needs the built-in model"
)
LIBRARIES = (
    "h11 httpx huggingface_hub jinja2 llguidance matplotlib msgspec numpy prometheus_client psutil "
    "rich safetensors starlette tokenizers torch transformers triton typer uvicorn xgrammar zmq"
)
OF_PYTHON = (
    "asyncio concurrent dataclasses json logging multiprocessing pickle socket struct typing"
)
BEFORE_US = (
    "warnings collections types functools contextlib keyword operator reprlib importlib io os"
)
"""What `python -m` imports by itself before anything of ours runs; nothing can be done about these."""


class Folder:
    """A folder whose modules write their names down when they are imported."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        self.marker = path.parent / "imported.txt"

    def plant(self, names: str) -> Folder:
        code = f"open({str(self.marker)!r}, 'a').write(__name__ + '\\n')\nraise SystemExit(77)\n"
        for name in names.split():
            (self.path / f"{name}.py").write_text(code)
        return self

    def plant_eyas(self) -> Folder:
        """And what children are asked for by name."""
        (self.path / "eyas").mkdir()
        self.plant("eyas/__init__")
        for room, module in (("engine", "worker"), ("constraint", "xgrammar_worker")):
            (self.path / "eyas" / room).mkdir()
            self.plant(f"eyas/{room}/__init__ eyas/{room}/{module}")
        return self

    @property
    def imported(self) -> list[str]:
        return self.marker.read_text().split() if self.marker.exists() else []

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "folder")


def environment(*more: Path) -> dict[str, str]:
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT, *more)))
    hidden = {"PYTHONSAFEPATH": "", "PYTHONPATH": paths, "NO_COLOR": "1"}
    return {**os.environ, **hidden}


def eyas_command() -> list[str]:
    return [str(Path(sys.executable).with_name("eyas"))]


@NEEDS_CHECKPOINT
@pytest.mark.parametrize("by_module", [False, True], ids=["eyas", "python -m eyas"])
def test_generate_imports_nothing_of_the_working_directory(folder: Folder, by_module: bool):
    folder.plant(f"{LIBRARIES} {OF_PYTHON}")
    if by_module:
        command = [sys.executable, "-m", "eyas"]
    else:
        command = eyas_command()
        folder.plant(BEFORE_US).plant_eyas()
    done = folder.run([*command, "generate", "Hello", "--max-tokens", "2", "--drafter", "root"])
    assert folder.imported == [] and done.returncode == 0, done.stderr
    assert done.stdout.strip(), "the answer is printed"


@NEEDS_CHECKPOINT
def test_a_server_and_both_its_children_import_nothing_of_the_checkpoints_folder(folder: Folder):
    folder.plant(f"{LIBRARIES} {OF_PYTHON} {BEFORE_US}").plant_eyas()
    for file in BUILTIN.iterdir():
        (folder.path / file.name).symlink_to(file)
    command = [*eyas_command(), "serve", "--model", ".", "--port", "0"]
    command += ["--grammar-backend", "xgrammar", "--grammar-timeout", "60", "--drafter", "root"]
    process = subprocess.Popen(
        command, cwd=folder.path, env=environment(), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stderr.readline, "")))
    reader.start()
    try:
        url, is_ready, deadline = "", False, time.monotonic() + 300
        while not is_ready:
            assert process.poll() is None and time.monotonic() < deadline, "".join(lines)
            time.sleep(0.1)
            if found := re.search(r"listening on (http://\S+);", "".join(lines)):
                url = found[1]
                is_ready = httpx.get(f"{url}/ready", timeout=60).status_code == 200
        body = {"prompt": "x", "max_tokens": 8, "guided_regex": "[ab]{2}"}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=300)
        assert answer.status_code == 200, answer.text
        assert re.fullmatch("[ab]{2}", answer.json()["choices"][0]["text"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, "".join(lines)
    finally:
        process.kill()
        process.wait(60)
        reader.join(60)
        process.stderr.close()
    assert folder.imported == []


@NEEDS_CHECKPOINT
def test_training_and_its_processes_import_nothing_of_the_working_directory(folder: Folder):
    """Texts are shared out by twenty here, and not by thousands."""
    folder.plant(f"{LIBRARIES} {OF_PYTHON} {BEFORE_US}").plant_eyas()
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (folder.path / "texts.jsonl").write_text((json.dumps({"messages": talk}) + "\n") * 60)
    script = folder.path.parent / "train.py"
    script.write_text(
        "if __name__ == '__main__':\n"
        "    from eyas.cli import main\n"
        "    from eyas.train.head import answers\n"
        "    answers._CHUNK = 20\n"
        "    main()\n"
    )
    command = [sys.executable, str(script), "train", "head", "--conversations", "texts.jsonl"]
    done = folder.run([*command, "--output", "run", "--device", "cpu", "--stop-after", "0.01"])
    assert folder.imported == [] and done.returncode == 0, done.stderr
    assert "57 to train on" in done.stdout


def test_the_engine_process_takes_modules_of_pythonpath_alone(folder: Folder, tmp_path: Path):
    """Its command line is the server's own; what the user names in PYTHONPATH stays importable."""
    folder.plant("msgspec zmq numpy").plant_eyas()
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "chosen_by_the_user.py").write_text("VALUE = 5\n")
    code = (
        "import subprocess, sys; from eyas.children import python_command;"
        "found = subprocess.run(python_command('chosen_by_the_user'), check=False).returncode;"
        "lost = subprocess.run(python_command('eyas.engine.worker'), input=b'', check=False);"
        "sys.exit(0 if found == 0 and lost.returncode not in (0, 77) else 9)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=folder.path,
        env=environment(tmp_path / "named"),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "DecodeError" in done.stderr, "it read the setup that was not there"
    assert folder.imported == []


def test_flags_that_keep_a_users_own_places_out_are_passed_on():
    code = "from eyas.children import python_command; print(*python_command('m', 'x')[1:])"
    for flags, expected in (([], "-P -m m x"), (["-s"], "-P -s -m m x")):
        done = subprocess.run(
            [sys.executable, *flags, "-c", code],
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected
