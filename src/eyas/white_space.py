r"""White space between the parts of JSON: how much an output may hold, and users' patterns for it.

Promises: what is read of a pattern allows nothing that the pattern does not, has an end, and consists
of classes, groups and counts alone, which every grammar library reads alike. A pattern is read, never
run.
Does not know: grammars, which parts of JSON there are.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_INDENTATION = 20
WHITE_SPACE = rf"[ \t]{{0,1}}(?:[\r]{{0,1}}[\n][ \t]{{0,{MAX_INDENTATION}}}){{0,1}}"
"""What may stand between the parts of JSON by itself: a blank, then one line's end and an indentation.
Bounded, because models that are at a loss go on with blanks and lines forever."""
MAX_PATTERN_CHARS, MAX_WRITTEN_CHARS = 256, 4096
"""Of a user's pattern, and of what is read of one."""
ENDLESS_CHARS = 32
"""What a repetition without an end stands for, in characters."""
MAX_CHARS = 128
"""Of white space that one pattern may allow."""
MAX_GROUPS = 8
"""Inside each other."""
_CHARS = {" ": " ", r"\ ": " ", "\t": "\t", r"\t": "\t", "\n": "\n", r"\n": "\n", "\r": "\r"}
_CHARS |= {r"\r": "\r", r"\s": " \t\n\r"}
_CODE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|x\{([0-9A-Fa-f]{1,6})\})")
_CHAR = re.compile(rf"{_CODE.pattern}|\\[ tnrs]|[ \t\n\r]")
_COUNT = re.compile(r"(?:([?*+])|\{(\d{1,4})?(?:(,)(\d{1,4})?)?\})\??")
_SHOWN = {" ": " ", "\t": r"\t", "\n": r"\n", "\r": r"\r"}


class WhiteSpace(NamedTuple):
    """pattern: as grammar libraries take it, in Rust's syntax. least, most: characters. alone: those
    that may stand alone."""

    pattern: str
    least: int
    most: int
    alone: frozenset[str]

    @property
    def is_optional(self) -> bool:
        return self.least == 0


_NOTHING = WhiteSpace("", 0, 0, frozenset())


def read_white_space(pattern: str, max_chars: int = MAX_PATTERN_CHARS) -> WhiteSpace:
    """A pattern of white space. ValueError says what else it holds, or how much too much."""
    reader = _Reader(pattern, "must be white space that may be left out", max_chars)
    found = reader.options(0) if pattern else _NOTHING
    return reader.whole(found)


def read_optional(pattern: str, max_chars: int = MAX_PATTERN_CHARS) -> str:
    """The pattern as it may stand anywhere, which must be nowhere if the model likes. ValueError."""
    found = read_white_space(pattern, max_chars)
    if not found.is_optional:
        raise ValueError(
            "must be white space that may be left out, such as '', '[ ]?' or '[\\n\\t ]*'"
        )
    return found.pattern


def read_separator(pattern: str, sign: str, max_chars: int = MAX_PATTERN_CHARS) -> str:
    """A comma or a colon with white space around it; a plain text stays as it is. ValueError."""
    must = f"must be {sign!r} with white space before or behind it, or neither"
    reader = _Reader(pattern, must, max_chars)
    before = reader.sequence(0) if not reader.at(sign) else _NOTHING
    reader.take(sign)
    after = reader.sequence(0) if reader.place < len(pattern) else _NOTHING
    reader.whole(_after_another(before, after))
    return pattern if is_plain(pattern) else f"{before.pattern}{sign}{after.pattern}"


def is_plain(separator: str) -> bool:
    """Does it stand for itself?"""
    return all(char in ",: \t\r\n" for char in separator)


class _Reader:
    """must: how an error begins."""

    def __init__(self, pattern: str, must: str, max_chars: int) -> None:
        if len(pattern) > max_chars:
            raise ValueError(f"must have at most {max_chars} characters")
        self.pattern = pattern
        self.must = must
        self.place = 0

    def at(self, text: str) -> bool:
        return self.pattern.startswith(text, self.place)

    def take(self, sign: str) -> None:
        if not self.at(sign):
            raise self._wrong()
        self.place += 1

    def whole(self, found: WhiteSpace) -> WhiteSpace:
        """What was read, if that is all."""
        if self.place < len(self.pattern):
            raise self._wrong()
        if found.most > MAX_CHARS:
            raise ValueError(
                f"allows {found.most} characters of white space in a row; lower its counts to "
                f"{MAX_CHARS} or less"
            )
        return found

    def options(self, depth: int) -> WhiteSpace:
        found = [self.sequence(depth)]
        while self.at("|"):
            self.place += 1
            found.append(self.sequence(depth))
        return WhiteSpace(
            "|".join(part.pattern for part in found),
            min(part.least for part in found),
            max(part.most for part in found),
            frozenset().union(*(part.alone for part in found)),
        )

    def sequence(self, depth: int) -> WhiteSpace:
        """At least one part."""
        found = self._counted(self._part(depth))
        while self.place < len(self.pattern) and self.pattern[self.place] not in "|),:":
            found = _after_another(found, self._counted(self._part(depth)))
        return found

    def _part(self, depth: int) -> WhiteSpace:
        if self.at("("):
            if depth == MAX_GROUPS:
                raise ValueError(f"has more than {MAX_GROUPS} groups inside each other")
            self.place += 3 if self.at("(?:") else 1
            found = self.options(depth + 1)
            self.take(")")
            return found._replace(pattern=f"(?:{found.pattern})")
        chars = self._class() if self.at("[") else self._char()
        shown = "".join(text for char, text in _SHOWN.items() if char in chars)
        return WhiteSpace(f"[{shown}]", 1, 1, frozenset(chars))

    def _class(self) -> str:
        self.take("[")
        chars = self._char()
        while not self.at("]"):
            chars += self._char()
        self.take("]")
        return chars

    def _char(self) -> str:
        found = _CHAR.match(self.pattern, self.place)
        if found is None:
            raise self._wrong()
        code = next((digits for digits in found.groups() if digits), None)
        char = _CHARS.get(found[0] if code is None else chr(min(int(code, 16), 0x10FFFF)))
        if char is None:
            raise self._wrong()
        self.place = found.end()
        return char

    def _counted(self, part: WhiteSpace) -> WhiteSpace:
        found = _COUNT.match(self.pattern, self.place)
        if found is None:
            return part
        sign, low, comma, high = found.groups()
        if sign is None and low is None and high is None:
            raise self._wrong()
        self.place = found.end()
        least = int(low or 0) if sign is None else int(sign == "+")
        endless = max(least, ENDLESS_CHARS // max(1, part.most), 1)
        if sign is not None:
            most = 1 if sign == "?" else endless
        else:
            most = least if comma is None else endless if high is None else int(high)
        if most < least:
            raise ValueError(f"has a count that ends before it begins: {found[0]}")
        if most == 0:
            return _NOTHING
        if most > 1 and "{" in part.pattern:  # ways to read one text would multiply
            raise ValueError(
                "repeats a group that has counts itself; write it with one of the counts"
            )
        may_be_alone = least <= 1 or part.is_optional
        return WhiteSpace(
            f"{part.pattern}{{{least},{most}}}",
            part.least * least,
            part.most * most,
            part.alone if may_be_alone else frozenset(),
        )

    def _wrong(self) -> ValueError:
        near = self.pattern[self.place : self.place + 10]
        what = f"holds {near!r} at position {self.place}" if near else "ends too early"
        return ValueError(
            f"{self.must}: blanks, \\t, \\n, \\r, \\s in classes, groups and counts, such as '[ ]?' or "
            f"'[\\n\\t ]*'; it {what}"
        )


def _after_another(first: WhiteSpace, second: WhiteSpace) -> WhiteSpace:
    alone: frozenset[str] = frozenset()
    if second.is_optional:
        alone |= first.alone
    if first.is_optional:
        alone |= second.alone
    return WhiteSpace(
        first.pattern + second.pattern,
        first.least + second.least,
        first.most + second.most,
        alone,
    )
