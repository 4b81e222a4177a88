"""Reading a model directory's small JSON files, with errors that name the file and the remedy.

Promises: whatever is wrong with a file becomes a ValueError that a person can act on.
Does not know: what the files mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. ValueError if it is missing, unreadable or not an object."""
    try:
        value = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); check the file") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path}: is not valid JSON ({error}); download the model again"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: holds no JSON object; download the model again")
    return value


def read_json_object_if_there(path: Path) -> dict[str, Any]:
    """As `read_json_object`, but an absent file is an empty object."""
    return read_json_object(path) if path.is_file() else {}
