"""Write a command line with options of SGLang or vLLM as one with options of eyas.

Promises: both have the same meaning; API keys are not shown. Does not know: the peers' options.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from eyas.cli.errors import with_option_name
from eyas.cli.options import given_names
from eyas.cli.peers import PANEL

_NOT_SHOWN = ("config", "api_key")


def translated(context: Any, settings: Mapping[str, Any], dropped: Collection[str]) -> str:
    """Return `eyas serve ...` with the options of the command line.

    context: typer's. settings: values that replace or add to those of the command line. dropped:
    options to omit.
    """
    words, given = ["eyas", "serve"], given_names(context)
    for parameter in context.command.params:
        name = parameter.name
        if name in _NOT_SHOWN or getattr(parameter, "rich_help_panel", None) == PANEL:
            continue
        value = context.params.get(name)
        if parameter.opts[0] in dropped:
            continue
        if name in settings:
            value = settings[name]
        elif name not in given:
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
    for item in value if isinstance(value, list | tuple) else [value]:
        shown = str(item)
        if shown.startswith("-"):
            yield f"{parameter.opts[0]}={shown}"
        else:
            yield from (parameter.opts[0], shown)


def error_text(error: ValueError, flags: Mapping[str, str]) -> str:
    """Return the text of an error with the option that the user wrote. flags: of the `Translation`."""
    option, colon, rest = with_option_name(str(error)).partition(":")
    return f"{flags.get(option, option)}{colon}{rest}"


def option_of_error(error: ValueError) -> str:
    """Return the option of eyas that an error is about."""
    return with_option_name(str(error)).partition(":")[0].partition(" ")[0]


def unreadable_model(model: str, revision: str | None) -> list[str]:
    """Return the error of the model's configuration, if any; nothing is downloaded for it."""
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
