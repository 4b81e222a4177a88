"""A command line in the words of eyas, SGLang and vLLM, as one that the command can read.

Names may be abbreviated as long as only one option can be meant, and have underscores, as the peers'
may. Options come from a file too (`--config`), where the command line does not say the same.

Promises: what changes nothing is taken out and told; what cannot be had is found in all of the line.
Does not know: what options mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from typer.core import TyperCommand

from eyas.cli.options_file import CONFIG, OptionsFile
from eyas.peers.accepted import ACCEPTED, note_of
from eyas.peers.refused import REFUSED, SWITCHES, reason_for
from eyas.peers.translate import DRAFTING, SETTING, SPECULATIVE, SPELLINGS

META = "eyas.reading"
"""Where a command finds its `Reading`."""


@dataclass(frozen=True, slots=True)
class Word:
    """One option with its values, or values alone (no option). shown: as it was written. parameter: of
    the command's own."""

    option: str
    values: tuple[str, ...] = ()
    shown: str = ""
    parameter: Any = None

    @property
    def arguments(self) -> list[str]:
        """As the command reads it."""
        if not self.option:
            return list(self.values)
        if not self.values:
            return [self.option]
        if self.option.startswith("--"):
            return [f"{self.option}={value}" for value in self.values]
        return [self.option, *self.values]


@dataclass(slots=True)
class Reading:
    """arguments: for the command. notes: what changes nothing, and why. reasons: what cannot be had.
    is_of_peers: something is not in our words."""

    arguments: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    is_of_peers: bool = False


class OptionReader:
    """Reads command lines of one command. parameters: click's."""

    def __init__(self, parameters: Iterable[Any], help_names: Iterable[str] = ()) -> None:
        self._own: dict[str, Any] = dict.fromkeys(help_names)
        for parameter in parameters:
            if parameter.param_type_name == "option":
                names = (*parameter.opts, *parameter.secondary_opts)
                self._own |= dict.fromkeys(names, parameter)
        self._targets = {name: name for name in (*self._own, *ACCEPTED, *REFUSED)} | SPELLINGS

    def read(self, arguments: Sequence[str]) -> Reading:
        """ValueError for a file that cannot be read."""
        reading = Reading()
        words, rest = self._words(arguments, reading)
        files = [word for word in words if word.option == CONFIG and word.values]
        words = [word for word in words if word.option != CONFIG]
        if files:
            said = {_setting(word) for word in words}
            ways = {_way(word) for word in words} - {""}
            from_file = self._words_of_file(OptionsFile.read(files[-1].values[-1]), reading)
            words = [
                *(
                    word
                    for word in from_file
                    if _setting(word) not in said and (not ways or _way(word) in ("", *ways))
                ),
                *words,
            ]
        for word in words:
            if word.parameter is not None or not word.option or word.option in self._own:
                reading.arguments += word.arguments
                reading.is_of_peers |= word.option[2:].replace("-", "_") in (*SETTING, *SPECULATIVE)
                reading.is_of_peers |= word.option == "--speculative-config"
            else:
                self._pass_over(word, reading)
        reading.arguments += rest
        return reading

    def _words(
        self, arguments: Sequence[str], reading: Reading
    ) -> tuple[list[Word], Sequence[str]]:
        """The words, and what follows a `--`."""
        words: list[Word] = []
        has_model = False
        place = 0
        while place < len(arguments):
            argument = arguments[place]
            if argument == "--":
                return words, arguments[place:]
            place += 1
            flag, equals, value = argument.partition("=")
            if not flag.startswith("-") or flag == "-":
                words.append(Word("", (argument,)))
                has_model = True
                continue
            word = self._meant(flag)
            if isinstance(word, str):
                reading.reasons.append(word)
                place += not equals and _is_value(arguments, place)
                continue
            if equals:
                words.append(replace(word, values=(value,)))
                continue
            most = self._num_values(word, has_model)
            values: list[str] = []
            while place < len(arguments) and len(values) < most:
                # a first value of our own may begin as it likes, as everywhere
                is_sure = word.parameter is not None and not values
                if not is_sure and not _is_value(arguments, place):
                    break
                values.append(arguments[place])
                place += 1
            has_model |= word.option in ("--model", "--model-path", "-m")
            words.append(replace(word, values=tuple(values)))
        return words, ()

    def _meant(self, flag: str) -> Word | str:
        """The option, without values; or what is wrong with its name."""
        name = flag.replace("_", "-") if flag.startswith("--") else flag
        target = self._targets.get(name)
        if target is None and not flag.startswith("--"):
            return Word(flag, (), flag)  # bundled, or wrong: click says so
        if target is None:
            found = sorted({self._targets[each] for each in self._targets if each.startswith(name)})
            if len(found) > 1:
                return f"{flag}: could be {', '.join(found)}; write out which one"
            if not found:
                return f"{flag}: {self._no_such(name)}"
            target = found[0]
        return Word(target, (), flag, self._own.get(target))

    def _no_such(self, name: str) -> str:
        near = get_close_matches(name, self._targets, n=3, cutoff=0.75)
        shown = list(dict.fromkeys(self._targets[each] for each in near))
        return f"No such option; did you mean {' or '.join(shown)}?" if shown else "No such option"

    def _num_values(self, word: Word, has_model: bool) -> int:
        """How many may follow."""
        if word.parameter is not None:
            if word.parameter.is_flag:
                return 0
            # vLLM's --served-model-name a b; the first one behind it may be the model else
            return 1000 if word.parameter.multiple and has_model else 1
        if word.option in ACCEPTED:
            return int(ACCEPTED[word.option].takes)
        if word.option in REFUSED:
            return 0 if word.option in SWITCHES else 1000
        return 0

    def _pass_over(self, word: Word, reading: Reading) -> None:
        reading.is_of_peers = True
        value = " ".join(word.values) if word.values else True
        note = note_of(word.option, value)
        if note is not None:
            reading.notes.append(note)
            return
        has_value = word.option in ACCEPTED and word.values
        shown = f"{word.shown} {value}" if has_value else word.shown
        reading.reasons.append(reason_for(word.option, shown))

    def _words_of_file(self, file: OptionsFile, reading: Reading) -> list[Word]:
        words = []
        for key, value in file.options.items():
            name = "--" + key.replace("_", "-")
            target = self._targets.get(name)
            shown = f"{key} (in {file.path})"
            if target is None:
                reading.reasons.append(f"{shown}: {self._no_such(name).replace('--', '')}")
                continue
            if target in (CONFIG, "--help"):
                reading.reasons.append(f"{shown}: is for the command line alone")
                continue
            word = Word(target, (), shown, self._own.get(target))
            try:
                words += self._valued(word, value)
            except ValueError as error:
                reading.reasons.append(f"{shown}: {error}")
        return words

    def _valued(self, word: Word, value: Any) -> list[Word]:
        """A word of a file with its value; none for what is not said, or is off."""
        parameter = word.parameter
        if (parameter is not None and parameter.is_flag) or (
            parameter is None and self._num_values(word, True) == 0
        ):
            if not isinstance(value, bool | None):
                raise ValueError(f"must be true or false, not {value!r}")
            off = None if parameter is None else next(iter(parameter.secondary_opts), None)
            if value is False and off is not None:
                return [replace(word, option=off)]
            return [word] if value else []
        if value is None:
            return []
        if isinstance(value, Mapping) and parameter and word.option != "--speculative-config":
            raise ValueError("takes a text or a number, not keys and values")
        if isinstance(value, list):
            if parameter is not None and not parameter.multiple:
                raise ValueError("takes one value, not a list")
            return [replace(word, values=tuple(map(_text, value)))]
        return [replace(word, values=(_text(value),))]


def _text(value: Any) -> str:
    """A value as a command line has it."""
    import json

    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise ValueError(f"must be a text or a number, not {type(value).__name__}")
    return str(value)


def _is_value(arguments: Sequence[str], place: int) -> bool:
    """May it be the value of the option before?"""
    if place >= len(arguments):
        return False
    argument = arguments[place]
    return not argument.startswith("-") or argument[1:2].isdigit() or argument == "-"


def _setting(word: Word) -> str:
    """What a word sets: what is said of it in a file does not count where the command line does too."""
    if not word.option:
        return "model"
    name = word.parameter.name if word.parameter is not None else word.option[2:].replace("-", "_")
    return SETTING.get(name, name)


def _way(word: Word) -> str:
    """Whose words for drafting it is; they do not mix. Empty for what is not about drafting."""
    setting = _setting(word)
    if setting in DRAFTING:
        return "eyas"
    if setting in SPECULATIVE:
        return "SGLang"
    return "vLLM" if setting == "speculative_config" else ""


class PeersCommand(TyperCommand):
    """A command that peers have too, so that their options may be given to it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        reader = OptionReader(self.get_params(ctx), self.get_help_option_names(ctx))
        reading = ctx.meta[META] = reader.read(args)
        return super().parse_args(ctx, reading.arguments)
