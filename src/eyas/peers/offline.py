"""Translate keywords of SGLang's `Engine` and vLLM's `LLM` into keywords of eyas.

Promises: the same as for command lines, with Python names in notes and errors.
Does not know: what the settings do.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from eyas.config import DEFAULTS
from eyas.peers.accepted import ACCEPTED
from eyas.peers.refused import REFUSED, Refused
from eyas.peers.translate import (
    SETTING,
    SPECULATIVE,
    SPELLINGS,
    Translation,
    option_of,
    translate_options,
)
from eyas.settings import engine_config

_SETTINGS = frozenset(inspect.signature(engine_config).parameters)
_PEERS = frozenset(
    name.lstrip("-").replace("-", "_") for name in (*ACCEPTED, *REFUSED, *SPELLINGS)
) | {*SETTING, *SPECULATIVE, "speculative_config"} - {"model_argument"}
_SHORT_NAMES = {
    "tp": "tensor_parallel_size",
    "tp_size": "tensor_parallel_size",
    "dp": "data_parallel_size",
    "dp_size": "data_parallel_size",
    "ep": "expert_parallel_size",
    "ep_size": "expert_parallel_size",
}
"""Other names of settings, as their options have on a command line."""
_SERVER_ONLY = ("max_waiting", "drain_timeout")
_NO_EFFECT = {
    **dict.fromkeys(("host", "port"), "no server is started"),
    "log_level": "set the level of the logger 'eyas' with the module logging",
}
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)")


def translate_keywords(
    own: Mapping[str, Any], others: Mapping[str, Any]
) -> tuple[dict[str, Any], Translation]:
    """Return all settings as `eyas.settings.engine_config` takes them, and the translation's notes.

    own: keywords that are names of eyas. others: all other keywords.
    TypeError: a keyword is unknown. Refused: a keyword or its value is not supported.
    """
    others = {_SHORT_NAMES.get(name, name): value for name, value in others.items()}
    settings = {name: value for name, value in others.items() if name in _SETTINGS}
    peers: dict[str, Any] = {}
    notes: list[str] = []
    for name, value in others.items():
        if name in _SETTINGS:
            continue
        if name in _NO_EFFECT:
            notes.append(f"{name}: has no effect: {_NO_EFFECT[name]}")
        elif name in _PEERS:
            peers[_canonical(name)] = value
        else:
            known = (*_SETTINGS, *_PEERS, *_NO_EFFECT)
            near = get_close_matches(name, known, n=1, cutoff=0.75)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"LLM() got an unexpected keyword argument {name!r}{hint}")
    given = {**own, **settings}
    given |= {"no_prefix_cache": True} if "prefix_cache" in given else {}
    translation = translate_options(peers, given.get("model", DEFAULTS.model.path), given)
    reasons = [with_keywords(reason) for reason in translation.reasons]
    reasons += [
        f"{with_keywords(translation.flags[option_of(name)])}: is an option of the server alone; "
        "leave it out"
        for name in _SERVER_ONLY
        if name in translation.settings
    ]
    if reasons:
        raise Refused(reasons)
    settings |= translation.settings
    if "no_prefix_cache" in settings:
        settings["prefix_cache"] = not settings.pop("no_prefix_cache")
    notes += [with_keywords(note) for note in translation.notes]
    return {**own, **settings}, Translation(settings, translation.flags, tuple(notes), ())


def with_keywords(text: str) -> str:
    """Replace `--option-names` in a text by `keyword_names`."""
    return _OPTION.sub(lambda match: match[1].replace("-", "_"), text)


def keyword_error(error: ValueError, flags: Mapping[str, str]) -> ValueError:
    """Return the error with the name of the setting replaced by the keyword that was given.

    flags: of the `Translation`.
    """
    setting, colon, rest = str(error).partition(":")
    last = setting.rpartition(".")[2]
    for name in (last, f"draft_{last}"):
        if option_of(name) in flags:
            keyword = with_keywords(flags[option_of(name)])
            return ValueError(f"{keyword}{colon}{with_keywords(rest)}")
    return error


def _canonical(name: str) -> str:
    option = SPELLINGS.get(option_of(name))
    return name if option is None else option[2:].replace("-", "_")
