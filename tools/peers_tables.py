"""The tables of docs/peers.md, from what the command line itself goes by.

Promises: an option that is taken, told or refused is in one of them. Does not know: measurements.
"""

from __future__ import annotations

from typing import get_args, get_type_hints

from eyas.cli.peers import PeerOptions
from eyas.peers.accepted import ACCEPTED
from eyas.peers.refused import REFUSED
from eyas.peers.translate import SPELLINGS


def options_table() -> str:
    """What is another name of something here."""
    lines = ["| option | of | here |", "|---|---|---|"]
    for name, hint in get_type_hints(PeerOptions, include_extras=True).items():
        if name == "model_argument":
            continue
        whose, _, says = get_args(hint)[1].help.partition(": ")
        option = "--" + name.replace("_", "-")
        lines.append(f"| {_written(option)} | {whose} | {_cell(says.rstrip('.'))} |")
    return "\n".join(lines)


def accepted_table() -> str:
    """What changes nothing."""
    lines = ["| option | why it changes nothing |", "|---|---|"]
    for says in dict.fromkeys(each.says for each in ACCEPTED.values()):
        options = [
            _written(option, f" {'|'.join(accepted.only or ('...',))}" if accepted.takes else "")
            for option, accepted in ACCEPTED.items()
            if accepted.says == says
        ]
        lines.append(f"| {', '.join(options)} | {_cell(says)} |")
    return "\n".join(lines)


def refused_table() -> str:
    """What is an error."""
    lines = ["| option | what the error says |", "|---|---|"]
    for reason in dict.fromkeys(REFUSED.values()):
        options = [
            _written(option) + (" (other values)" if option in ACCEPTED else "")
            for option, own in REFUSED.items()
            if own == reason
        ]
        lines.append(f"| {', '.join(options)} | {_cell(reason)} |")
    return "\n".join(lines)


def _written(option: str, values: str = "") -> str:
    """With all its spellings."""
    names = [option, *(each for each, meant in SPELLINGS.items() if meant == option)]
    return ", ".join(f"`{_cell(name + values)}`" for name in names)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
