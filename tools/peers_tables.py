"""The tables of docs/peers.md, generated from the tables that the command line uses.

Promises: every option that is translated, ignored or refused is in one of them.
Does not know: measurements.
"""

from __future__ import annotations

from typing import get_args, get_type_hints

from eyas.cli.peers import PeerOptions
from eyas.peers.accepted import ACCEPTED
from eyas.peers.refused import REFUSED
from eyas.peers.translate import SPELLINGS


def options_table() -> str:
    """Return the table of options that are other names of options of eyas."""
    lines = ["| option | of | here |", "|---|---|---|"]
    for name, hint in get_type_hints(PeerOptions, include_extras=True).items():
        if name == "model_argument":
            continue
        engine, _, meaning = get_args(hint)[1].help.partition(": ")
        option = "--" + name.replace("_", "-")
        lines.append(f"| {_spellings(option)} | {engine} | {_cell(meaning.rstrip('.'))} |")
    return "\n".join(lines)


def accepted_table() -> str:
    """Return the table of options without effect."""
    lines = ["| option | why it has no effect |", "|---|---|"]
    for reason in dict.fromkeys(accepted.reason for accepted in ACCEPTED.values()):
        options = [
            _spellings(
                option, f" {'|'.join(accepted.only or ('...',))}" if accepted.takes_value else ""
            )
            for option, accepted in ACCEPTED.items()
            if accepted.reason == reason
        ]
        lines.append(f"| {', '.join(options)} | {_cell(reason)} |")
    return "\n".join(lines)


def refused_table() -> str:
    """Return the table of options that are refused."""
    lines = ["| option | error text |", "|---|---|"]
    for reason in dict.fromkeys(REFUSED.values()):
        options = [
            _spellings(option) + (" (other values)" if option in ACCEPTED else "")
            for option, its_reason in REFUSED.items()
            if its_reason == reason
        ]
        lines.append(f"| {', '.join(options)} | {_cell(reason)} |")
    return "\n".join(lines)


def _spellings(option: str, values: str = "") -> str:
    """Return the option and its other spellings, each followed by `values`."""
    names = [option, *(other for other, target in SPELLINGS.items() if target == option)]
    return ", ".join(f"`{_cell(name + values)}`" for name in names)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
