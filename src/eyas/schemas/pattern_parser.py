"""The parser of patterns in the syntax of JSON Schema (ECMA-262).

Promises: `read` returns a pattern that allows no text that the original does not, or reports the error
and its position. Rust's additions (\\A, \\z, (?i), (?s:.), (?P<name>, \\p{L}) are accepted too, unless
they have another meaning in ECMA-262.
Narrowing: a class without the quote or the backslash excludes NUL (see `charsets`).
Does not know: schemas, limits of the backend.
"""

from __future__ import annotations

import re
from functools import lru_cache

from eyas.schemas import charsets
from eyas.schemas.charsets import Ranges
from eyas.schemas.pattern_lengths import MAX_COUNT
from eyas.schemas.pattern_tree import (
    Chars,
    Choice,
    Edge,
    Node,
    PatternFault,
    Repeat,
    Series,
    check_edges,
)

MAX_NESTING = 80
"""Levels of groups; Rust's parser allows 250."""
_META = frozenset("\\.+*?()|[]{}^$#&~/-")
_CLASSES = {"d": charsets.DIGITS, "w": charsets.WORD, "s": charsets.SPACE}
_CLASSES |= {name.upper(): charsets.other_than(ranges) for name, ranges in _CLASSES.items()}
_CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11}
_COUNT = re.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}")
_RUN = re.compile(r"[A-Za-z0-9_ @%=:;,'!]+(?=[A-Za-z0-9_ @%=:;,'!])")
"""Characters without special meaning and without a count."""
_NO_LEAST, _LOOK = re.compile(r"\{,[0-9]+\}"), re.compile(r"\?<?[=!]")
_NAMED = re.compile(r"\[:\^?\w+:\]")
_HEX = re.compile(
    r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|[xu]\{([0-9a-fA-F]{1,8})\}|U([0-9a-fA-F]{8})|c([A-Za-z])"
)
_LOW_HALF = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_PROPERTY = re.compile(r"([pP])(?:([A-Za-z])|\{(\^?)([A-Za-z_]+(?:[=:][A-Za-z_]+)?)\})")
_TEXTUAL = re.compile(
    r"(?:[LMNPSZ][a-z]?|Letter|Mark|Number|Punctuation|Symbol|Separator|Alphabetic|Lowercase"
    r"|Uppercase|Emoji|(?:Script|sc|Script_Extensions|scx)[=:]\w+)"
)
"""Unicode properties that no control character has."""
_GROUP = re.compile(r"\?(?:P?<[A-Za-z_][\w.]*>|([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)]))")


def read(pattern: str) -> Node:
    """Return the syntax tree of a pattern. PatternFault for malformed or unsupported patterns."""
    reader = _Reader(pattern)
    node = reader.choice(0)
    if reader.position < len(pattern):
        raise PatternFault(reader.position, "the parenthesis closes nothing", "invalid")
    check_edges(node, at_start=True, at_end=True)
    return node


class _Reader:
    """A recursive-descent parser. position: index of the next character."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = 0
        self._flags: frozenset[str] = frozenset()

    def choice(self, depth: int) -> Node:
        """Read alternatives up to a closing parenthesis or the end."""
        if depth > MAX_NESTING:
            raise PatternFault(self.position, "nested too deeply; flatten it", "too_complex")
        options = [self._series(depth)]
        while self._take("|"):
            options.append(self._series(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _take(self, text: str) -> bool:
        found = self.pattern.startswith(text, self.position)
        self.position += len(text) * found
        return found

    def _series(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.position < len(self.pattern) and self.pattern[self.position] not in "|)":
            run = _RUN.match(self.pattern, self.position)
            if run is not None and "i" not in self._flags:
                parts += map(_plain, run[0])
                self.position = run.end()
            begin = self.position
            node = self._atom(depth)
            if node is None:
                continue  # a group of flags only
            count = self._count()
            if count is not None:
                if isinstance(node, Edge):
                    raise PatternFault(begin, "^ and $ cannot repeat; write it without")
                node = Repeat(node, *count)
            parts.append(node)
        return parts[0] if len(parts) == 1 else Series(tuple(parts))

    def _count(self) -> tuple[int, int | None] | None:
        """Read the count after an atom, if there is one."""
        if self.position == len(self.pattern):
            return None
        begin, sign = self.position, self.pattern[self.position]
        found = _COUNT.match(self.pattern, begin)
        if sign in "*+?":
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
            self.position += 1
        elif found is not None:
            if max(len(found[1]), len(found[3] or "")) > 7:
                raise PatternFault(begin, "repeats too often; lower the count", "too_complex")
            least = int(found[1])
            most = least if not found[2] else int(found[3]) if found[3] else None
            if max(least, most or 0) > MAX_COUNT:
                raise PatternFault(begin, "repeats too often; lower the count", "too_complex")
            if most is not None and least > most:
                raise PatternFault(begin, f"{found[0]} asks for more than it allows", "invalid")
            self.position = found.end()
        else:
            return None
        self._take("?")  # a lazy count allows the same texts
        if _COUNT.match(self.pattern, self.position) or self._next_is("*+?"):
            raise PatternFault(self.position, "there is nothing to repeat", "invalid")
        return least, most

    def _next_is(self, signs: str) -> bool:
        return self.pattern[self.position : self.position + 1] in tuple(signs)

    def _atom(self, depth: int) -> Node | None:
        begin, char = self.position, self.pattern[self.position]
        self.position += 1
        match char:
            case "(":
                return self._group(depth)
            case "[":
                return self._folded(self._class(begin))
            case "\\":
                return self._escape(begin)
            case ".":
                if "s" in self._flags:
                    return Chars(charsets.ALL, "(?s:.)")
                return Chars(charsets.other_than(((10, 10),)), ".")
            case "^" | "$":
                return Edge(char == "$", begin)
            case "*" | "+" | "?":
                raise PatternFault(begin, "there is nothing to repeat", "invalid")
            case "{":
                if _COUNT.match(self.pattern, begin):
                    raise PatternFault(begin, "there is nothing to repeat", "invalid")
                if _NO_LEAST.match(self.pattern, begin):
                    raise PatternFault(begin, "{,n} has two meanings; write {0,n}")
        return self._one(ord(char), begin)

    def _one(self, code: int, begin: int) -> Node:
        """Return the node of one character."""
        if 0xD800 <= code <= 0xDFFF:
            raise PatternFault(begin, "half a surrogate pair, which no text contains", "invalid")
        ranges: Ranges = ((code, code),)
        char = chr(code)
        if not code:
            ranges, plain = (), charsets.written(ranges)
        elif self.position == begin + 1:  # it stands for itself
            plain = r"\{" if char == "{" else char
        else:
            plain = f"\\{char}" if char in _META else charsets.shown(code)
        return self._folded(Chars(ranges, plain))

    def _folded(self, chars: Chars) -> Chars:
        return Chars(None, f"(?i:{chars.text})") if "i" in self._flags else chars

    def _group(self, depth: int) -> Node | None:
        begin, before = self.position - 1, self._flags
        if self._next_is("?"):
            if _LOOK.match(self.pattern, self.position):
                raise PatternFault(begin, "look-around is not supported; write it in another way")
            found = _GROUP.match(self.pattern, self.position)
            if found is None:
                raise PatternFault(begin, "no such kind of group", "invalid")
            self.position = found.end()
            if found[3] is not None:
                self._set_flags(begin, found[1], found[2] or "")
                if found[3] == ")":
                    if found[0] == "?)":
                        raise PatternFault(begin, "no such kind of group", "invalid")
                    return None
        node = self.choice(depth + 1)
        if not self._take(")"):
            raise PatternFault(begin, "the parenthesis is not closed", "invalid")
        self._flags = before
        return node

    def _set_flags(self, begin: int, added: str, taken: str) -> None:
        if set(added) - set("isu") or set(taken) - set("is"):
            message = "of the flags only i and s are supported; write it without"
            raise PatternFault(begin, message)
        self._flags = (self._flags | set(added)) - set(taken)

    def _escape(self, begin: int) -> Node:
        """Read an escape outside of classes, after its backslash."""
        char = self.pattern[self.position : self.position + 1]
        if char in _CLASSES:
            self.position += 1
            ranges = _CLASSES[char]
            text = charsets.written(ranges) if char in "sS" else f"\\{char}"
            return self._folded(Chars(ranges, text))
        if char and char in "Az":
            self.position += 1
            return Edge(char == "z", begin)
        if char and char in "bBZG":
            raise PatternFault(begin, f"\\{char} is not supported; write it in another way")
        if char and (char in "123456789" or self.pattern.startswith("k<", self.position)):
            raise PatternFault(begin, "backreferences are not supported; write it in another way")
        found = _PROPERTY.match(self.pattern, self.position)
        if found is not None:
            self.position = found.end()
            text = f"\\{found[0]}"
            return self._folded(Chars(None, text if _is_textual(found) else _without_nul(text)))
        return self._one(self._code(begin), begin)

    def _code(self, begin: int) -> int:
        """Read an escape for one character, after its backslash."""
        char = self.pattern[self.position : self.position + 1]
        if not char:
            raise PatternFault(begin, "ends with a lone backslash", "invalid")
        found = _HEX.match(self.pattern, self.position)
        if found is not None:
            self.position = found.end()
            if found[5]:
                return ord(found[5].upper()) - 64
            code = int(found[1] or found[2] or found[3] or found[4], 16)
            low = _LOW_HALF.match(self.pattern, self.position)
            if found[2] and 0xD800 <= code < 0xDC00 and low is not None:
                self.position = low.end()
                code = 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00
            if code > charsets.LAST:
                raise PatternFault(
                    begin, f"{self.pattern[begin : self.position]} is no character", "invalid"
                )
            return code
        self.position += 1
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "0" and not self._next_is("0123456789"):
            return 0
        if char.isascii() and char.isalnum():
            raise PatternFault(begin, f"\\{char} has no meaning", "invalid")
        return ord(char)

    def _class(self, begin: int) -> Chars:
        is_negated = self._take("^")
        if self._next_is("]"):
            if self.pattern.find("]", self.position + 1) >= 0:
                raise PatternFault(
                    begin, r"an empty class has two meanings; write \] for a bracket"
                )
            self.position += 1
            ranges = charsets.ALL if is_negated else ()
            return Chars(ranges, charsets.written(ranges))
        items: list[tuple[int, int]] = []
        texts: list[str] = []
        is_known = is_safe = True
        while not self._take("]"):
            low, text = self._member(begin)
            if isinstance(low, re.Match):
                is_known, is_safe = False, is_safe and _is_textual(low)
            elif isinstance(low, tuple):
                items += low
            else:
                high, text = self._range(low, text, begin)
                items.append((low, high))
            texts.append(text)
        sign, body = "^" * is_negated, "".join(texts)
        ranges = charsets.union(items)
        if not is_known:
            text = f"[{sign}{body}]"
            is_plain = is_safe and not is_negated and not charsets.holds(ranges, "\0")
            return Chars(None, text if is_plain else _without_nul(text))
        if not ranges and not is_negated:
            raise PatternFault(
                begin, "halves of surrogate pairs, which no text contains", "invalid"
            )
        if is_negated:
            ranges = charsets.other_than(ranges)
        if not charsets.is_quoted_wrongly(ranges):
            has_halves = any(low <= 0xDFFF and high >= 0xD800 for low, high in items)
            exact = charsets.written(ranges) if has_halves else f"[{sign}{body}]"
            return Chars(ranges, exact)
        if is_negated and not any(low <= 0xDFFF and high >= 0xD800 for low, high in items):
            return Chars(_without(ranges), rf"[^{body}\x00]")
        return Chars(_without(ranges), charsets.written(ranges))

    def _range(self, low: int, text: str, begin: int) -> tuple[int, str]:
        """Read the end of a range, if one begins with `low`; return its last character and its text."""
        after = self.position
        if not self._next_is("-") or self.pattern.startswith("-]", after):
            return low, text
        self.position += 1
        high, upper = self._member(begin)
        if not isinstance(high, int):
            self.position = after
            return low, text
        if high < low:
            raise PatternFault(begin, "a range of a class runs backwards", "invalid")
        return high, f"{text}-{upper}"

    def _member(self, begin: int) -> tuple[int | Ranges | re.Match[str], str]:
        """Read one member of a class: a character, a set, or a Unicode property."""
        if self.position >= len(self.pattern):
            raise PatternFault(begin, "the class is not closed", "invalid")
        here, char = self.position, self.pattern[self.position]
        self.position += 1
        if char == "[" and _NAMED.match(self.pattern, here):
            raise PatternFault(here, "classes with names are not supported; write their characters")
        if self.pattern.startswith(("&&[", "--[", "~~["), here):  # Rust's, and characters in ECMA
            message = "operations on classes are not supported; write the characters out"
            raise PatternFault(here, message)
        if char == "\0":
            return 0, charsets.shown(0)
        if char != "\\":
            return ord(char), f"\\{char}" if char in "[&~^-" else char
        char = self.pattern[self.position : self.position + 1]
        if char in _CLASSES:
            self.position += 1
            ranges = _CLASSES[char]
            return ranges, charsets.members(ranges) if char in "sS" else f"\\{char}"
        if char == "b":
            self.position += 1
            return 8, r"\x08"
        found = _PROPERTY.match(self.pattern, self.position)
        if found is not None:
            self.position = found.end()
            return found, f"\\{found[0]}"
        code = self._code(here)
        return code, charsets.shown(code)


@lru_cache(maxsize=256)
def _plain(char: str) -> Chars:
    return Chars(((ord(char), ord(char)),), char)


def _is_textual(found: re.Match[str]) -> bool:
    is_negated = (found[1] == "P") != (found[3] == "^")
    return not is_negated and _TEXTUAL.fullmatch(found[2] or found[4]) is not None


def _without_nul(text: str) -> str:
    return rf"[{text}&&[^\x00]]"


def _without(ranges: Ranges) -> Ranges:
    return charsets.common(ranges, ((1, charsets.LAST),))
