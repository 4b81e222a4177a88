"""The sampling defaults a model brings along in its generation_config.json.

Promises: only fields that `SamplingParams` has, only values that it accepts; a field that is absent
or out of range is left out. Does not know: what a client asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyas.core import RequestError, SamplingParams
from eyas.text.files import read_json_object_if_there

_FIELDS = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
}


def sampling_defaults(directory: str | Path) -> dict[str, float | int]:
    """temperature, top_p, top_k, min_p and repetition_penalty, as far as the model's file gives them;
    temperature is 0 where the file says not to sample."""
    found = read_json_object_if_there(Path(directory) / "generation_config.json")
    if found.get("do_sample") is False:
        found = {**found, "temperature": 0.0}
    defaults: dict[str, float | int] = {}
    for name, kind in _FIELDS.items():
        value = found.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != kind(value):
            continue
        field: dict[str, Any] = {name: kind(value)}
        try:
            SamplingParams(**field)
        except RequestError:
            continue
        defaults.update(field)
    return defaults
