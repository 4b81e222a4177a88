"""Reads the small JSON files of a model directory.

Promises: every problem with a file raises a ValueError that names the file and the remedy.
Does not know: what the files mean.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`. ValueError if it is missing, unreadable or not an object."""
    try:
        text = path.read_bytes()
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError:
            value = json.loads(text)  # with NaN and Infinity, which transformers writes
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); check the file") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: is not valid JSON ({error}); download the model again"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: does not contain a JSON object; download the model again")
    return value


def read_json_object_if_there(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`, or an empty one if there is no such file."""
    return read_json_object(path) if path.is_file() else {}
