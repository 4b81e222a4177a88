"""The sampling defaults in a model's generation_config.json.

Promises: returns only fields that `SamplingParams` has, with values that it accepts; leaves out a
field that is absent or, with a warning, out of range. Does not know: what a client asked for.
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

_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("min_length", "min_new_tokens", "no_repeat_ngram_size"), (0,)),
    **dict.fromkeys(("encoder_repetition_penalty", "typical_p", "guidance_scale"), (1.0,)),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "penalty_alpha"), (0.0,)),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "bad_words_ids"), ([],)),
    **dict.fromkeys(("sequence_bias", "forced_bos_token_id", "forced_eos_token_id"), ()),
    **dict.fromkeys(("exponential_decay_length_penalty", "top_h"), ()),
    "num_beams": (1,),
}
"""Fields that change what transformers generates and that eyas does not read, each with the values
that have no effect."""


def sampling_defaults(directory: str | Path) -> dict[str, float | int]:
    """Return temperature, top_p, top_k, min_p and repetition_penalty, as far as the model's file has
    them.

    temperature is 0 where the file has `do_sample: false`. Logs a warning that names values out of
    range, and unsupported fields whose values have an effect.
    """
    path = Path(directory) / "generation_config.json"
    config = read_json_object_if_there(path)
    unsupported = [
        name
        for name, no_effect in _UNSUPPORTED.items()
        if config.get(name) is not None and config[name] not in no_effect
    ]
    if unsupported:
        log.warning("%s: %s: not supported and left out", path, ", ".join(unsupported))
    if config.get("do_sample") is False:
        config = {**config, "temperature": 0.0}
    if config.get("top_k") == -1:  # off, as 0 is
        config = {**config, "top_k": 0}
    given = {name: config[name] for name in _FIELDS if config.get(name) is not None}
    defaults = {name: _FIELDS[name](x) for name, x in given.items() if _is_valid(name, x)}
    invalid = [f"{name} {x!r}" for name, x in given.items() if name not in defaults]
    if invalid:
        log.warning("%s: %s: not a valid value and left out", path, ", ".join(invalid)[:500])
    return defaults


def _is_valid(name: str, value: Any) -> bool:
    kind = _FIELDS[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != kind(value):
        return False
    field: dict[str, Any] = {name: kind(value)}
    try:
        SamplingParams(**field)
    except RequestError:
        return False
    return True
