"""JSON as strangers send it: read in bounds, each fault a 400 that says where it is.

Promises: no more objects, arrays and members are made than a request can use, so that memory stays a
small multiple of the text; no recursion; no number that is not finite; no half of a surrogate pair,
but for texts of which the caller says that they are read and no more.
Does not know: what the fields mean.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from eyas.core import is_text
from eyas.server.codes import Code
from eyas.server.errors import ApiError
from eyas.text.messages import MAX_STRUCTURE

MAX_VALUES = 1_200_000
"""Values of one text, strings and numbers included: one call reads them all, and all else waits."""
MAX_DIGITS = 400
"""Of a whole number. Reading one takes the square of them; no double has more."""
MAX_NAME_CHARS = 64
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_PIECE = re.compile(rf'(?:[^"]++|{_STRING.pattern}){{1,8192}}+', re.DOTALL)
"""Some strings and what stands between them; no string is cut."""
_MANY_DIGITS = re.compile(rf"[0-9](?<![0-9]{{2}})[0-9]{{{MAX_DIGITS}}}")
_HALF = re.compile("[\ud800-\udfff]")
_PIECE_CHARS = 65_536
HALF_A_PAIR = "holds half of a surrogate pair, which no text can contain; send both halves, or none"


class TooManyValues(ValueError):
    """The text holds more than a request can use."""


Way: TypeAlias = Sequence[str | int]
"""From the outside to a value: names of members and places in arrays."""


def json_object(
    text: str | bytes,
    param: str | None = None,
    *,
    is_plain_text: Callable[[Way], bool] = lambda way: False,
) -> dict[str, Any]:
    """A JSON object's text, read. ApiError 400 says where it is wrong.

    param: the field that holds the text; None is the body. is_plain_text: whether the string there is
    one of which halves of surrogate pairs, which JSON can spell and no text can hold, become U+FFFD.
    Elsewhere they are refused: two names, or two patterns, might become the same.
    """
    subject = "the body" if param is None else f"{param}:"
    try:
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        value, is_finite = load(text)
    except RecursionError as error:
        raise ApiError(
            Code.BODY_TOO_COMPLEX, f"{subject} is nested too deep", param=param
        ) from error
    except TooManyValues as error:
        message = f"{subject} holds more than {error}"
        raise ApiError(Code.BODY_TOO_COMPLEX, message, param=param) from error
    except ValueError as error:
        message = f"{subject} is not valid JSON: {_place_of(error)}"
        raise ApiError(Code.INVALID_JSON, message, param=param) from error
    if not isinstance(value, dict):
        raise ApiError(Code.INVALID_JSON, f"{subject} must be a JSON object", param=param)
    if not is_finite:
        path = path_of([param] if param else [], _way_to_no_number(value))
        message = f"{path}: holds a number that is not finite or too large"
        raise ApiError(Code.INVALID_VALUE, message, param=path)
    if "\\u" in text and (way := _way_to_a_half(value, is_plain_text)) is not None:
        path = path_of([param] if param else [], way)
        raise ApiError(Code.INVALID_VALUE, f"{path}: {HALF_A_PAIR}", param=path)
    return value


def load(text: str) -> tuple[Any, bool]:
    """The value of a JSON text, and whether all of its numbers are finite. ValueError or RecursionError
    for what cannot be read, TooManyValues for what is not worth it."""
    _check_structure(text)
    is_finite = True

    def number(digits: str) -> float:
        nonlocal is_finite
        value = float(digits)
        is_finite = is_finite and math.isfinite(value)
        return value

    def whole(digits: str) -> int | float:
        return int(digits) if len(digits) <= MAX_DIGITS else number(digits)

    parse_int = whole if _has_many_digits(text) else None
    value = json.loads(text, parse_constant=number, parse_float=number, parse_int=parse_int)
    return value, is_finite


def path_of(*ways: Way) -> str:
    """A place in a body as errors name it: `messages[0].content`, `logit_bias["5"]`. Names are cut
    short."""
    path = ""
    for step in (step for way in ways for step in way):
        name = step[:MAX_NAME_CHARS] if isinstance(step, str) else ""
        if path and name.isidentifier():
            path += f".{name}"
        elif path or not name or not is_text(name):
            path += f"[{json.dumps(name if isinstance(step, str) else step)}]"
        else:
            path = name
    return path


def _check_structure(text: str) -> None:
    """TooManyValues for a text that would become too many objects. What stands in strings counts for
    nothing, but is looked at only where the whole is suspicious."""
    if sum(map(text.count, "[{:")) <= MAX_STRUCTURE and text.count(",") <= MAX_VALUES:
        return
    num_structure = num_values = 0
    piece: re.Match[str] | None = None
    while piece := _PIECE.match(text, piece.end() if piece else 0):
        bare = _STRING.sub("", piece[0])
        num_structure += sum(map(bare.count, "[{:"))
        num_values += bare.count(",")
        if num_structure > MAX_STRUCTURE:
            raise TooManyValues(f"{MAX_STRUCTURE} objects, arrays and members")
        if num_values > MAX_VALUES:
            raise TooManyValues(f"{MAX_VALUES} values")


def _has_many_digits(text: str) -> bool:
    """Looked for a piece at a time, so that other threads have their turn."""
    starts = range(0, len(text), _PIECE_CHARS)
    return any(_MANY_DIGITS.search(text, at, at + _PIECE_CHARS + MAX_DIGITS) for at in starts)


def _place_of(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}"
    return "it is not UTF-8 text"


def _way_to_no_number(value: dict[str, Any]) -> list[str | int]:
    """The way to the first number that is not finite."""
    for way, _, item in _members(value):
        if isinstance(item, float) and not math.isfinite(item):
            return [*way]
    return []


def _way_to_a_half(
    value: dict[str, Any], is_plain_text: Callable[[Way], bool]
) -> list[str | int] | None:
    """The way to the first half of a surrogate pair, be it in a name; those in plain texts are replaced
    before."""
    for way, container, item in _members(value):
        if isinstance(way[-1], str) and not is_text(way[-1]):
            return [*way]
        if isinstance(item, str) and not is_text(item):
            if not is_plain_text(way):
                return [*way]
            container[way[-1]] = _without_halves(item)
    return None


def _members(value: dict[str, Any]) -> Iterator[tuple[list[str | int], Any, Any]]:
    """The way to each member and item, what it is in, and itself. No recursion; the way is one list,
    which changes."""
    way: list[str | int] = [""]
    open_ones: list[tuple[Any, Iterator[tuple[str | int, Any]]]] = [(value, iter(value.items()))]
    while open_ones:
        container, members = open_ones[-1]
        for way[-1], item in members:
            yield way, container, item
            if isinstance(item, (dict, list)):
                inside = item.items() if isinstance(item, dict) else enumerate(item)
                open_ones.append((item, iter(inside)))
                way.append("")
                break
        else:
            open_ones.pop()
            del way[-1]


def _without_halves(text: str) -> str:
    """Piece by piece, so that other threads have their turn."""
    starts = range(0, len(text), _PIECE_CHARS)
    return "".join(_HALF.sub("\ufffd", text[at : at + _PIECE_CHARS]) for at in starts)
