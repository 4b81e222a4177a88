"""The sampling defaults a model brings along in its generation_config.json.

Promises: only fields that `SamplingParams` has, only values that it accepts; a field that is absent
or out of range is left out. Does not know: what a client asked for.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from eyas.core import RequestError, SamplingParams
from eyas.text.files import read_json_object_if_there

log = logging.getLogger(__name__)

_FIELDS = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
}

_LEFT_OUT: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("min_length", "min_new_tokens", "no_repeat_ngram_size"), (0,)),
    **dict.fromkeys(("encoder_repetition_penalty", "typical_p", "guidance_scale"), (1.0,)),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "penalty_alpha"), (0.0,)),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "bad_words_ids"), ([],)),
    **dict.fromkeys(("sequence_bias", "forced_bos_token_id", "forced_eos_token_id"), ()),
    **dict.fromkeys(("exponential_decay_length_penalty", "top_h"), ()),
    "num_beams": (1,),
}
"""Fields that change what transformers generates and have no counterpart among a model's defaults here,
with values that do nothing."""


def sampling_defaults(directory: str | Path) -> dict[str, float | int]:
    """temperature, top_p, top_k, min_p and repetition_penalty, as far as the model's file gives them;
    temperature is 0 where the file says not to sample. Other fields that ask for something are named in
    a warning."""
    path = Path(directory) / "generation_config.json"
    found = read_json_object_if_there(path)
    left_out = [
        name
        for name, nothing in _LEFT_OUT.items()
        if found.get(name) is not None and found[name] not in nothing
    ]
    if left_out:
        log.warning("%s: %s: not supported and left out", path, ", ".join(left_out))
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
