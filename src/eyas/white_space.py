r"""White space between the parts of JSON: the default, and users' patterns for it.

Promises: a result allows nothing that the user's pattern does not, is bounded, and consists of classes,
groups and counts only, which all grammar libraries read alike. A pattern is parsed, never executed.
Does not know: grammars, the syntax of JSON.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_INDENTATION = 20
WHITE_SPACE = rf"[ \t]{{0,1}}(?:[\r]{{0,1}}[\n][ \t]{{0,{MAX_INDENTATION}}}){{0,1}}"
"""The default between two parts of JSON: one blank or tab, then one line end with indentation. Bounded,
because an uncertain model may generate white space without end."""
MAX_PATTERN_CHARS, MAX_WRITTEN_CHARS = 256, 4096
"""Length of a user's pattern, and of a pattern in the form written here."""
ENDLESS_CHARS = 32
"""The bound in characters that replaces an unbounded repetition."""
MAX_CHARS = 128
"""Characters of white space that one pattern may allow."""
MAX_GROUPS = 8
"""Levels of nested groups."""
_CHARS = {" ": " ", r"\ ": " ", "\t": "\t", r"\t": "\t", "\n": "\n", r"\n": "\n", "\r": "\r"}
_CHARS |= {r"\r": "\r", r"\s": " \t\n\r"}
_CODE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|x\{([0-9A-Fa-f]{1,6})\})")
_CHAR = re.compile(rf"{_CODE.pattern}|\\[ tnrs]|[ \t\n\r]")
_COUNT = re.compile(r"(?:([?*+])|\{(\d{1,4})?(?:(,)(\d{1,4})?)?\})\??")
_SHOWN = {" ": " ", "\t": r"\t", "\n": r"\n", "\r": r"\r"}


class WhiteSpace(NamedTuple):
    """A parsed pattern.

    pattern: its text in Rust's syntax, for grammar libraries. least, most: numbers of characters.
    alone: the characters that may be the whole text.
    """

    pattern: str
    least: int
    most: int
    alone: frozenset[str]

    @property
    def is_optional(self) -> bool:
        return self.least == 0


_NOTHING = WhiteSpace("", 0, 0, frozenset())


def read_white_space(pattern: str, max_chars: int = MAX_PATTERN_CHARS) -> WhiteSpace:
    """Parse a pattern of white space. ValueError for other characters, or for too many."""
    parser = _Parser(pattern, "must be white space that may be left out", max_chars)
    found = parser.options(0) if pattern else _NOTHING
    return parser.whole(found)


def read_optional(pattern: str, max_chars: int = MAX_PATTERN_CHARS) -> str:
    """Return a pattern that also matches the empty text. ValueError if it does not."""
    found = read_white_space(pattern, max_chars)
    if not found.is_optional:
        raise ValueError(
            "must be white space that may be left out, such as '', '[ ]?' or '[\\n\\t ]*'"
        )
    return found.pattern


def read_separator(pattern: str, sign: str, max_chars: int = MAX_PATTERN_CHARS) -> str:
    """Return a pattern of a comma or a colon (`sign`) with white space around it; plain text is
    returned unchanged. ValueError for other patterns."""
    must = f"must be {sign!r} with white space before or behind it, or neither"
    parser = _Parser(pattern, must, max_chars)
    before = parser.sequence(0) if not parser.at(sign) else _NOTHING
    parser.take(sign)
    after = parser.sequence(0) if parser.position < len(pattern) else _NOTHING
    parser.whole(_concatenated(before, after))
    return pattern if is_plain(pattern) else f"{before.pattern}{sign}{after.pattern}"


def is_plain(separator: str) -> bool:
    """Whether a separator is plain text, not a pattern."""
    return all(char in ",: \t\r\n" for char in separator)


class _Parser:
    """A recursive-descent parser. must: the beginning of error messages."""

    def __init__(self, pattern: str, must: str, max_chars: int) -> None:
        if len(pattern) > max_chars:
            raise ValueError(f"must have at most {max_chars} characters")
        self.pattern = pattern
        self.must = must
        self.position = 0

    def at(self, text: str) -> bool:
        return self.pattern.startswith(text, self.position)

    def take(self, sign: str) -> None:
        if not self.at(sign):
            raise self._wrong()
        self.position += 1

    def whole(self, found: WhiteSpace) -> WhiteSpace:
        """Return the result if it is the whole pattern and within the limits. ValueError."""
        if self.position < len(self.pattern):
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
            self.position += 1
            found.append(self.sequence(depth))
        return WhiteSpace(
            "|".join(part.pattern for part in found),
            min(part.least for part in found),
            max(part.most for part in found),
            frozenset().union(*(part.alone for part in found)),
        )

    def sequence(self, depth: int) -> WhiteSpace:
        """Read one or more parts."""
        found = self._counted(self._part(depth))
        while self.position < len(self.pattern) and self.pattern[self.position] not in "|),:":
            found = _concatenated(found, self._counted(self._part(depth)))
        return found

    def _part(self, depth: int) -> WhiteSpace:
        if self.at("("):
            if depth == MAX_GROUPS:
                raise ValueError(f"has more than {MAX_GROUPS} groups inside each other")
            self.position += 3 if self.at("(?:") else 1
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
        found = _CHAR.match(self.pattern, self.position)
        if found is None:
            raise self._wrong()
        code = next((digits for digits in found.groups() if digits), None)
        char = _CHARS.get(found[0] if code is None else chr(min(int(code, 16), 0x10FFFF)))
        if char is None:
            raise self._wrong()
        self.position = found.end()
        return char

    def _counted(self, part: WhiteSpace) -> WhiteSpace:
        found = _COUNT.match(self.pattern, self.position)
        if found is None:
            return part
        sign, low, comma, high = found.groups()
        if sign is None and low is None and high is None:
            raise self._wrong()
        self.position = found.end()
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
        if most > 1 and "{" in part.pattern:  # the number of parses of one text would multiply
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
        near = self.pattern[self.position : self.position + 10]
        what = f"holds {near!r} at position {self.position}" if near else "ends too early"
        return ValueError(
            f"{self.must}: blanks, \\t, \\n, \\r, \\s in classes, groups and counts, such as '[ ]?' or "
            f"'[\\n\\t ]*'; it {what}"
        )


def _concatenated(first: WhiteSpace, second: WhiteSpace) -> WhiteSpace:
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
