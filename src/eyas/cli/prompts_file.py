"""Read a file of prompts (--prompts-file).

Promises: an invalid line is a ValueError that names it. Does not know: what prompts are used for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_entries(file: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of prompts.

    ValueError: the file cannot be read, or a line is invalid; the text names the line.
    """
    entries = [
        _entry(line, f"{file}:{number}")
        for number, line in enumerate(_read(file).splitlines(), start=1)
        if line.strip()
    ]
    if not entries:
        raise ValueError(f"--prompts-file: {file} contains no prompts")
    return entries


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--prompts-file: cannot read {file} ({error})") from error


def _entry(line: str, place: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ValueError(f"--prompts-file: {place} is not JSON ({error})") from error
    if not isinstance(entry, dict) or not ("prompt" in entry) ^ ("messages" in entry):
        raise ValueError(
            f'--prompts-file: {place} must be an object with either "prompt" or "messages"'
        )
    return entry
