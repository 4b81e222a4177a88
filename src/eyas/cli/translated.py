"""A peer's command line written in words of eyas.

Promises: it asks for what the other asked for; keys are not shown. Does not know: the peers' words.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from eyas.cli.errors import in_words_of_options
from eyas.cli.peers import PANEL

_NOT_SHOWN = ("config", "api_key")


def translated(context: Any, settings: Mapping[str, Any], dropped: Collection[str]) -> str:
    """`eyas serve ...` with what is on the command line and `settings`, but for those of `dropped`."""
    words = ["eyas", "serve"]
    for parameter in context.command.params:
        name = parameter.name
        if name in _NOT_SHOWN or getattr(parameter, "rich_help_panel", None) == PANEL:
            continue
        is_given = context.get_parameter_source(name)
        value = context.params.get(name)
        if parameter.opts[0] in dropped:
            continue
        if name in settings:
            value = settings[name]
        elif not (is_given and is_given.name == "COMMANDLINE"):
            continue
        words += _words(parameter, value)
    return shlex.join(words)


def _words(parameter: Any, value: Any) -> Iterator[str]:
    if parameter.param_type_name == "argument":
        return
    if parameter.is_flag:
        names = parameter.opts if value else parameter.secondary_opts
        yield from names[:1]
        return
    for each in value if isinstance(value, list | tuple) else [value]:
        shown = str(each.value if isinstance(each, Enum) else each)
        if shown.startswith("-"):
            yield f"{parameter.opts[0]}={shown}"
        else:
            yield from (parameter.opts[0], shown)


def blamed(error: ValueError, flags: Mapping[str, str]) -> str:
    """What is wrong, about what the user wrote. flags: by an option of ours, what stands for it."""
    option, colon, rest = in_words_of_options(str(error)).partition(":")
    return f"{flags.get(option, option)}{colon}{rest}"


def option_of_error(error: ValueError) -> str:
    """Our own option that it is about."""
    return in_words_of_options(str(error)).partition(":")[0].partition(" ")[0]


def unreadable_model(model: str, revision: str | None) -> list[str]:
    """Why the model could not be served either, as far as its files are here."""
    if not Path(model).is_dir() and "/" not in model:
        return []
    from eyas.models import locate_model
    from eyas.models.registry import read_spec

    try:
        directory = locate_model(model, revision, offline=True)
    except ValueError:
        return []
    try:
        read_spec(directory)
    except ValueError as error:
        return [f"--model {model}: {error}"]
    return []
