"""The machine of a measurement, and files of results.

Promises: each result has the machine, date, commit and command, without names of hosts, users or paths.
Does not know: what was measured.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """Return CPU, cores, GPU and the versions that results depend on."""
    import psutil
    import torch

    machine = {
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    return machine


def describe_run(command: list[str]) -> dict[str, Any]:
    """Return the head of a result: date, command, commit and machine."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(command),
        "commit": git_commit(),
        "machine": describe_machine(),
    }


def git_commit() -> str:
    """Return the short commit of the working tree, with "+" if it has changes; "unknown" without
    one."""
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "--short", "HEAD")
        return commit + ("+" if _git(here, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def write_result(result: dict[str, Any], file: Path) -> None:
    """Write a result as indented JSON. Missing directories are created. OSError names the file."""
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
