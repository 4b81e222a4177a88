"""Parse a command line with options of eyas, SGLang and vLLM.

Names may be abbreviated while they are unambiguous, and may have underscores, as in SGLang and vLLM.
Members of an option whose value is a JSON object may be given one by one, as in vLLM (--option.key 3).
Options of a file (`--config`) apply unless the command line sets the same option.

Promises: options without effect are removed, with a note; all unsupported options of the line are
reported together. Does not know: what options mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from typer.core import TyperCommand

from eyas.cli.options_file import CONFIG, OptionsFile
from eyas.peers.accepted import ACCEPTED, note_of
from eyas.peers.refused import REFUSED, SWITCHES, reason_for
from eyas.peers.translate import DRAFTING, SETTING, SPECULATIVE, SPELLINGS

META = "eyas.command_line"
"""Key of the parsed command line in `context.meta`."""


@dataclass(frozen=True, slots=True)
class GivenOption:
    """An option with its values, or positional values (option is "").

    shown: the option as it was written. parameter: the command's own parameter; None for others.
    """

    option: str
    values: tuple[str, ...] = ()
    shown: str = ""
    parameter: Any = None

    @property
    def arguments(self) -> list[str]:
        """The arguments that the command parses."""
        if not self.option:
            return list(self.values)
        if not self.values:
            return [self.option]
        if self.option.startswith("--"):
            return [f"{self.option}={value}" for value in self.values]
        return [self.option, *self.values]


@dataclass(slots=True)
class ParsedLine:
    """A parsed command line.

    arguments: what the command parses. notes: a text for each option without effect. reasons: a
    text for each unsupported or unknown option. has_peer_options: whether an option of SGLang or
    vLLM was given.
    """

    arguments: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    has_peer_options: bool = False


class CommandLineParser:
    """A parser of the command lines of one command. parameters: click's parameters of it."""

    def __init__(self, parameters: Iterable[Any], help_names: Iterable[str] = ()) -> None:
        self._own: dict[str, Any] = dict.fromkeys(help_names)
        for parameter in parameters:
            if parameter.param_type_name == "option":
                names = (*parameter.opts, *parameter.secondary_opts)
                self._own |= dict.fromkeys(names, parameter)
        self._targets = {name: name for name in (*self._own, *ACCEPTED, *REFUSED)} | SPELLINGS

    def parse(self, arguments: Sequence[str]) -> ParsedLine:
        """Parse the arguments of a command line. ValueError: the file of --config cannot be read."""
        line = ParsedLine()
        options, rest = self._split(arguments, line)
        files = [given for given in options if given.option == CONFIG and given.values]
        options = [given for given in options if given.option != CONFIG]
        if files:
            settings = {_setting(given) for given in options}
            engines = {_drafting_engine(given) for given in options} - {""}
            from_file = self._options_of_file(OptionsFile.read(files[-1].values[-1]), line)
            options = [
                *(
                    given
                    for given in from_file
                    if _setting(given) not in settings
                    and (not engines or _drafting_engine(given) in ("", *engines))
                ),
                *options,
            ]
        for given in options:
            if given.option not in ACCEPTED and given.option not in REFUSED:
                line.arguments += given.arguments
                name = given.option[2:].replace("-", "_")
                line.has_peer_options |= name in (*SETTING, *SPECULATIVE, "speculative_config")
            else:
                self._remove(given, line)
        line.arguments += rest
        return line

    def _split(
        self, arguments: Sequence[str], line: ParsedLine
    ) -> tuple[list[GivenOption], Sequence[str]]:
        """Return the options with their values, and the arguments from a `--` on."""
        options: list[GivenOption] = []
        members: dict[str, dict[str, Any]] = {}
        has_model = False
        index = 0
        while index < len(arguments):
            argument = arguments[index]
            if argument == "--":
                break
            index += 1
            flag, equals, value = argument.partition("=")
            if not flag.startswith("-") or flag == "-":
                options.append(GivenOption("", (argument,)))
                has_model = True
                continue
            whole, _, path = flag.partition(".")
            if path and (of_object := self._json_option(whole)) is not None:
                if not equals and _is_value(arguments, index):
                    value, index = arguments[index], index + 1
                if of_object.option not in members:
                    members[of_object.option] = {}
                    options.append(of_object)
                _set_member(members[of_object.option], path.split("."), value)
                continue
            given = self._resolve(flag)
            if isinstance(given, str):
                line.reasons.append(given)
                index += not equals and _is_value(arguments, index)
                continue
            if equals:
                options.append(replace(given, values=(value,)))
                continue
            max_values = self._max_values(given, has_model)
            values: list[str] = []
            while index < len(arguments) and len(values) < max_values:
                # The first value of an option of eyas may start with a dash, as click allows.
                is_required = given.parameter is not None and not values
                if not is_required and not _is_value(arguments, index):
                    break
                values.append(arguments[index])
                index += 1
            has_model |= given.option in ("--model", "--model-path", "-m")
            options.append(replace(given, values=tuple(values)))
        options = [
            replace(given, values=(json.dumps(members[given.option]),))
            if given.option in members and not given.values
            else given
            for given in options
        ]
        return options, arguments[index:]

    def _json_option(self, name: str) -> GivenOption | None:
        """Return the option of this name if its value is a JSON object, else None."""
        given = self._resolve(name)
        return given if isinstance(given, GivenOption) and _takes_json(given) else None

    def _resolve(self, flag: str) -> GivenOption | str:
        """Return the option that a flag names, without values; or the error text of its name."""
        name = flag.replace("_", "-") if flag.startswith("--") else flag
        target = self._targets.get(name)
        if target is None and not flag.startswith("--"):
            return GivenOption(flag, (), flag)  # bundled short options, or an error for click
        if target is None:
            matches = sorted({self._targets[key] for key in self._targets if key.startswith(name)})
            if len(matches) > 1:
                return f"{flag}: could be {', '.join(matches)}; write the full name"
            if not matches:
                return f"{flag}: {self._no_such(name)}"
            target = matches[0]
        return GivenOption(target, (), flag, self._own.get(target))

    def _no_such(self, name: str) -> str:
        near = get_close_matches(name, self._targets, n=3, cutoff=0.75)
        shown = list(dict.fromkeys(self._targets[key] for key in near))
        return f"No such option; did you mean {' or '.join(shown)}?" if shown else "No such option"

    def _max_values(self, given: GivenOption, has_model: bool) -> int:
        """Return the maximum number of values that may follow an option."""
        if given.parameter is not None:
            if given.parameter.is_flag:
                return 0
            # As vLLM's --served-model-name A B; without a model, B may be the model's name.
            return 1000 if given.parameter.multiple and has_model else 1
        if given.option in ACCEPTED:
            return int(ACCEPTED[given.option].takes_value)
        if given.option in REFUSED:
            return 0 if given.option in SWITCHES else 1000
        return 0

    def _remove(self, given: GivenOption, line: ParsedLine) -> None:
        """Add the note of an option without effect, or the reason why it is refused."""
        line.has_peer_options = True
        value = " ".join(given.values) if given.values else True
        note = note_of(given.option, value)
        if note is not None:
            line.notes.append(note)
            return
        has_value = given.option in ACCEPTED and given.values
        shown = f"{given.shown} {value}" if has_value else given.shown
        line.reasons.append(reason_for(given.option, shown))

    def _options_of_file(self, file: OptionsFile, line: ParsedLine) -> list[GivenOption]:
        options = []
        for key, value in file.options.items():
            name = "--" + key.replace("_", "-")
            target = self._targets.get(name)
            shown = f"{key} (in {file.path})"
            if target is None:
                line.reasons.append(f"{shown}: {self._no_such(name).replace('--', '')}")
                continue
            if target in (CONFIG, "--help"):
                line.reasons.append(f"{shown}: is allowed only on the command line")
                continue
            given = GivenOption(target, (), shown, self._own.get(target))
            try:
                options += self._with_value(given, value)
            except ValueError as error:
                line.reasons.append(f"{shown}: {error}")
        return options

    def _with_value(self, given: GivenOption, value: Any) -> list[GivenOption]:
        """Return an option of a file with its value; [] for null and for a switch that is off."""
        parameter = given.parameter
        if (parameter is not None and parameter.is_flag) or (
            parameter is None and self._max_values(given, True) == 0
        ):
            if not isinstance(value, bool | None):
                raise ValueError(f"must be true or false, not {value!r}")
            off = None if parameter is None else next(iter(parameter.secondary_opts), None)
            if value is False and off is not None:
                return [replace(given, option=off)]
            return [given] if value else []
        if value is None:
            return []
        if isinstance(value, Mapping) and parameter and not _takes_json(given):
            raise ValueError("must be a text or a number, not keys and values")
        if isinstance(value, list):
            if parameter is not None and not parameter.multiple:
                raise ValueError("must be a single value, not a list")
            return [replace(given, values=tuple(map(_text, value)))]
        return [replace(given, values=(_text(value),))]


def _takes_json(given: GivenOption) -> bool:
    """Whether the value of an option is a JSON object."""
    return given.parameter is not None and given.parameter.metavar == "<json>"


def _set_member(members: dict[str, Any], path: Sequence[str], value: str) -> None:
    """Set a member of an option's object, as vLLM has it: --option.a.b 3. Texts need no quotes."""
    for step in path[:-1]:
        inner = members.setdefault(step, {})
        members = inner if isinstance(inner, dict) else {}
    try:
        members[path[-1]] = json.loads(value)
    except (ValueError, RecursionError):
        members[path[-1]] = value


def _text(value: Any) -> str:
    """Return a value as the text that a command line has for it."""
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise ValueError(f"must be a text or a number, not {type(value).__name__}")
    return str(value)


def _is_value(arguments: Sequence[str], index: int) -> bool:
    """Whether the argument at `index` can be a value of the option before it."""
    if index >= len(arguments):
        return False
    argument = arguments[index]
    return not argument.startswith("-") or argument[1:2].isdigit() or argument == "-"


def _setting(given: GivenOption) -> str:
    """Return the setting of eyas that an option sets."""
    if not given.option:
        return "model"
    own = given.parameter
    name = own.name if own is not None else given.option[2:].replace("-", "_")
    return SETTING.get(name, name)


def _drafting_engine(given: GivenOption) -> str:
    """Return the engine whose drafting option it is, since they cannot be mixed; "" for any other."""
    setting = _setting(given)
    if setting in DRAFTING:
        return "eyas"
    if setting in SPECULATIVE:
        return "SGLang"
    return "vLLM" if setting == "speculative_config" else ""


class PeersCommand(TyperCommand):
    """A command that accepts the options of SGLang and vLLM as well."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        parser = CommandLineParser(self.get_params(ctx), self.get_help_option_names(ctx))
        line = ctx.meta[META] = parser.parse(args)
        return super().parse_args(ctx, line.arguments)
