"""Keywords of SGLang's `Engine` and vLLM's `LLM`, as keywords of ours.

Promises: as for command lines, with names of Python. Does not know: what the settings do.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from eyas.peers.accepted import ACCEPTED
from eyas.peers.refused import REFUSED, Refused
from eyas.peers.translate import SETTING, SPECULATIVE, SPELLINGS, Said, in_our_words, option_of
from eyas.settings import MODEL, engine_config

_SETTINGS = frozenset(inspect.signature(engine_config).parameters)
_PEERS = frozenset(
    name.lstrip("-").replace("-", "_") for name in (*ACCEPTED, *REFUSED, *SPELLINGS)
) | {*SETTING, *SPECULATIVE, "speculative_config"} - {"model_argument"}
_OF_SERVERS = ("max_waiting", "drain_timeout")
_NOTHING_LISTENS = {
    **dict.fromkeys(("host", "port"), "nothing listens"),
    "log_level": "say how much is logged with the module logging, logger 'eyas'",
}
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)")


def our_keywords(
    own: Mapping[str, Any], others: Mapping[str, Any], callee: str
) -> tuple[dict[str, Any], Said]:
    """All settings as `eyas.settings.engine_config` takes them, and what else there is to say.

    own: settings that were given by our names. others: all other keywords. callee: whom they were
    given to. TypeError for a keyword that nobody knows, Refused for what cannot be.
    """
    settings = {name: value for name, value in others.items() if name in _SETTINGS}
    peers: dict[str, Any] = {}
    notes: list[str] = []
    for name, value in others.items():
        if name in _SETTINGS:
            continue
        if name in _NOTHING_LISTENS:
            notes.append(f"{name}: changes nothing here: {_NOTHING_LISTENS[name]}")
        elif name in _PEERS:
            peers[_spelled_out(name)] = value
        else:
            known = (*_SETTINGS, *_PEERS, *_NOTHING_LISTENS)
            near = get_close_matches(name, known, n=1, cutoff=0.75)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{callee} got an unexpected keyword argument {name!r}{hint}")
    given = {**own, **settings}
    given |= {"no_prefix_cache": True} if "prefix_cache" in given else {}
    said = in_our_words(peers, given.get("model", MODEL.path), given)
    reasons = [in_python(reason) for reason in said.reasons]
    reasons += [
        f"{in_python(said.flags[option_of(name)])}: is of a server; leave it out"
        for name in _OF_SERVERS
        if name in said.settings
    ]
    if reasons:
        raise Refused(reasons)
    settings |= said.settings
    if "no_prefix_cache" in settings:
        settings["prefix_cache"] = not settings.pop("no_prefix_cache")
    notes += [in_python(note) for note in said.notes]
    return {**own, **settings}, Said(settings, said.flags, tuple(notes), ())


def in_python(text: str) -> str:
    """A text about options, about keywords."""
    return _OPTION.sub(lambda match: match[1].replace("-", "_"), text)


def blamed(error: ValueError, flags: Mapping[str, str]) -> ValueError:
    """The same error, about the keyword that was given. flags: by an option of ours, what was."""
    setting, colon, rest = str(error).partition(":")
    last = setting.rpartition(".")[2]
    for name in (last, f"draft_{last}"):
        if option_of(name) in flags:
            return ValueError(f"{in_python(flags[option_of(name)])}{colon}{in_python(rest)}")
    return error


def _spelled_out(name: str) -> str:
    option = SPELLINGS.get(option_of(name))
    return name if option is None else option[2:].replace("-", "_")
