"""Parses JSON from clients within limits; each fault is a 400 that names its place.

Promises: creates no more objects, arrays and members than a request can use, so that memory is
bounded by a small multiple of the text's size; no recursion; no numbers that are not finite; no lone
surrogates, except in strings that the caller declares to be plain text, where they are replaced.
Does not know: what the fields mean.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from eyas.core import is_text
from eyas.server.http.codes import Code
from eyas.server.http.errors import ApiError
from eyas.server.http.excerpts import excerpt_at, readable
from eyas.text.messages import MAX_STRUCTURE

MAX_VALUES = 1_200_000
"""Limit of all values in a text, strings and numbers included: parsing them holds the GIL."""
MAX_DIGITS = 400
"""Limit for an integer. Parsing takes quadratic time, and no double has more digits."""
MAX_NAME_CHARS = 64
AROUND_CHARS = 40
"""The characters before and after a fault that an error shows."""
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_PART = re.compile(rf'(?:[^"]++|{_STRING.pattern}){{1,8192}}+', re.DOTALL)
"""Matches a part of a JSON text that ends outside of its strings."""
_MANY_DIGITS = re.compile(rf"[0-9](?<![0-9]{{2}})[0-9]{{{MAX_DIGITS}}}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_PART_CHARS = 65_536
LONE_SURROGATE = (
    "holds half of a surrogate pair, which no text can contain; send both halves, or none"
)


class TooManyValues(ValueError):
    """The text has more values than a request can use."""


JsonPath: TypeAlias = Sequence[str | int]
"""The path to a value: names of members and indices of arrays, from the outermost."""


def json_object(
    text: str | bytes,
    param: str | None = None,
    *,
    is_plain_text: Callable[[JsonPath], bool] = lambda path: False,
) -> dict[str, Any]:
    """Parse the text of a JSON object. ApiError 400 names the place of a fault.

    param: the field that holds the text; None is the body. is_plain_text: whether lone surrogates in
    the string at a path become U+FFFD. In other strings they are refused, since replacing them could
    make two names or patterns equal.
    """
    subject = "the body" if param is None else f"{param}:"
    try:
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        value, is_finite = parse_json(text)
    except RecursionError as error:
        raise ApiError(
            Code.BODY_TOO_COMPLEX, f"{subject} is nested too deep", param=param
        ) from error
    except TooManyValues as error:
        message = f"{subject} holds more than {error}"
        raise ApiError(Code.BODY_TOO_COMPLEX, message, param=param) from error
    except ValueError as error:
        message = f"{subject} is not valid JSON: {_position_of(error)}"
        around = _text_around(error)
        raise ApiError(Code.INVALID_JSON, message, param=param, excerpt=around) from error
    if not isinstance(value, dict):
        raise ApiError(Code.INVALID_JSON, f"{subject} must be a JSON object", param=param)
    prefix: JsonPath = [param] if param else []
    if not is_finite:
        field = path_text(prefix, _path_to_non_finite(value))
        message = f"{field}: holds a number that is not finite or too large"
        raise ApiError(Code.INVALID_VALUE, message, param=field, excerpt=excerpt_at(value, field))
    if "\\u" in text and (path := _path_to_lone_surrogate(value, is_plain_text)) is not None:
        field = path_text(prefix, path)
        excerpt = excerpt_at(value, field)
        message = f"{field}: {LONE_SURROGATE}"
        raise ApiError(Code.INVALID_VALUE, message, param=field, excerpt=excerpt)
    return value


def parse_json(text: str) -> tuple[Any, bool]:
    """Return the value of a JSON text, and whether all its numbers are finite.

    ValueError or RecursionError if it cannot be parsed, TooManyValues if it exceeds a limit.
    """
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


def path_text(*paths: JsonPath) -> str:
    """Return a path as errors write it: `messages[0].content`, `logit_bias["5"]`. Long names are
    cut."""
    written = ""
    for key in (key for path in paths for key in path):
        name = key[:MAX_NAME_CHARS] if isinstance(key, str) else ""
        if written and name.isidentifier():
            written += f".{name}"
        elif written or not name or not is_text(name):
            written += f"[{json.dumps(name if isinstance(key, str) else key)}]"
        else:
            written = name
    return written


def _check_structure(text: str) -> None:
    """Raise TooManyValues if the text has too many values.

    Counts the characters of the whole text first, and leaves out strings only if that is too many.
    """
    if sum(map(text.count, "[{:")) <= MAX_STRUCTURE and text.count(",") <= MAX_VALUES:
        return
    num_structure = num_values = 0
    part: re.Match[str] | None = None
    while part := _PART.match(text, part.end() if part else 0):
        bare = _STRING.sub("", part[0])
        num_structure += sum(map(bare.count, "[{:"))
        num_values += bare.count(",")
        if num_structure > MAX_STRUCTURE:
            raise TooManyValues(f"{MAX_STRUCTURE} objects, arrays and members")
        if num_values > MAX_VALUES:
            raise TooManyValues(f"{MAX_VALUES} values")


def _has_many_digits(text: str) -> bool:
    """Whether the text has a number of many digits. Searches in parts, so that other threads can
    run."""
    starts = range(0, len(text), _PART_CHARS)
    return any(_MANY_DIGITS.search(text, at, at + _PART_CHARS + MAX_DIGITS) for at in starts)


def _position_of(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}"
    return "it is not UTF-8 text"


def _text_around(error: ValueError) -> str | None:
    """Return the text at the place of a fault, if that is known."""
    if not isinstance(error, json.JSONDecodeError):
        return None
    begin = max(0, error.pos - AROUND_CHARS)
    return readable(error.doc[begin : error.pos + AROUND_CHARS])


def _path_to_non_finite(value: dict[str, Any]) -> list[str | int]:
    """Return the path to the first number that is not finite."""
    for path, _, item in _members(value):
        if isinstance(item, float) and not math.isfinite(item):
            return [*path]
    return []


def _path_to_lone_surrogate(
    value: dict[str, Any], is_plain_text: Callable[[JsonPath], bool]
) -> list[str | int] | None:
    """Return the path to the first string or name with a lone surrogate, or None if there is none.

    Replaces lone surrogates in plain texts.
    """
    for path, container, item in _members(value):
        if isinstance(path[-1], str) and not is_text(path[-1]):
            return [*path]
        if isinstance(item, str) and not is_text(item):
            if not is_plain_text(path):
                return [*path]
            container[path[-1]] = _without_lone_surrogates(item)
    return None


def _members(value: dict[str, Any]) -> Iterator[tuple[list[str | int], Any, Any]]:
    """Yield for each member and item its path, its container and its value. Not recursive. All paths
    are the same list, which changes."""
    path: list[str | int] = [""]
    stack: list[tuple[Any, Iterator[tuple[str | int, Any]]]] = [(value, iter(value.items()))]
    while stack:
        container, members = stack[-1]
        for path[-1], item in members:
            yield path, container, item
            if isinstance(item, (dict, list)):
                children = item.items() if isinstance(item, dict) else enumerate(item)
                stack.append((item, iter(children)))
                path.append("")
                break
        else:
            stack.pop()
            del path[-1]


def _without_lone_surrogates(text: str) -> str:
    """Replace lone surrogates by U+FFFD. Works in parts, so that other threads can run."""
    starts = range(0, len(text), _PART_CHARS)
    return "".join(_SURROGATE.sub("\ufffd", text[at : at + _PART_CHARS]) for at in starts)
