"""Limits on the size of a schema, and on the characters in it.

Promises: reads every node once, without recursion, and stops at the first limit, so the time is
bounded for any input. A schema that passes can be traversed recursively.
Does not know: keywords, except those that hold patterns, names and plain data.
"""

from __future__ import annotations

import enum
import json
import math
import re
from typing import Any

from eyas.core import GrammarError, GrammarFault

MAX_BYTES = 256 * 1024
MAX_DEPTH = 96
"""Levels of arrays and objects; the backend's JSON reader goes to 128."""
MAX_NODES = 30_000
MAX_ENUM_VALUES = 10_000
MAX_PROPERTIES = 1_000
"""Of one object; compile time grows with the square of this number."""
MAX_SCHEMAS = 8_000
"""Rewritten schemas; the target of several references counts once."""
MAX_CASES = 2_000
"""Schemas that are visited or written out for complements and choices."""
MAX_SECONDS = 5.0
"""Processor time for one schema; schemas within the other limits take about 0.5 seconds."""
MAX_OUTPUT_DEPTH = 124

_SURROGATE = re.compile("[\ud800-\udfff]")
_SCHEMAS_BY_NAME = frozenset(
    {"properties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_DATA = frozenset({"const", "enum", "default", "examples"})


def fail(param: str, path: str, message: str, fault: GrammarFault) -> GrammarError:
    """Return the error for `path`, a JSON pointer that begins with #."""
    if len(path) > 200:
        path = f"{path[:120]}...{path[-60:]}"
    return GrammarError(f"{param}: {path}: {message}", fault, param=param)


def shortened(value: object) -> str:
    """Return a value as it is shown in an error."""
    if isinstance(value, (dict, list)):
        return _NAMES[type(value)] if value else _NAMES[type(value)].replace("an ", "an empty ")
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_NAMES: dict[type, str] = {dict: "an object", list: "an array"}


def under(path: str, *steps: str | int) -> str:
    """Return the JSON pointer `path` extended by `steps`."""
    escaped = (str(step).replace("~", "~0").replace("/", "~1") for step in steps)
    return "/".join((path, *escaped))


def read(text: str, param: str) -> Any:
    """Parse the JSON text of a schema. GrammarError for malformed or too long texts."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise _too_long(param)
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise _too_deep(param, "#") from None
    except ValueError as error:
        message = f"is not JSON ({error}); send a JSON schema"
        raise GrammarError(f"{param}: {message}", "invalid", param=param) from None


class _Kind(enum.Enum):
    """The kinds of values in a schema that differ in which characters they may contain."""

    SCHEMA = enum.auto()
    BY_NAME = enum.auto()
    BY_PATTERN = enum.auto()
    PATTERN = enum.auto()
    DATA = enum.auto()


def _kind_of(key: str, parent: _Kind) -> _Kind:
    """Return the kind of the value of a member `key`."""
    if parent is _Kind.DATA:
        return _Kind.DATA
    if parent is not _Kind.SCHEMA:
        return _Kind.SCHEMA
    if key in _DATA:
        return _Kind.DATA
    if key == "pattern":
        return _Kind.PATTERN
    if key == "patternProperties":
        return _Kind.BY_PATTERN
    return _Kind.BY_NAME if key in _SCHEMAS_BY_NAME else _Kind.SCHEMA


def check_size(schema: Any, param: str) -> None:
    """Raise GrammarError for a parsed schema that is over a limit or not JSON."""
    num_nodes = num_chars = 0
    waiting: list[tuple[Any, str, int, _Kind]] = [(schema, "#", 0, _Kind.SCHEMA)]
    while waiting:
        node, path, depth, kind = waiting.pop()
        num_nodes += 1
        if depth > MAX_DEPTH:
            raise _too_deep(param, path)
        if isinstance(node, dict):
            for key in node:
                if not isinstance(key, str):
                    raise fail(param, path, f"the key {key!r} must be a string", "invalid")
                _check_text(key, param, path, is_pattern=kind is _Kind.BY_PATTERN)
                num_chars += len(key) + 4
            waiting.extend(
                (value, under(path, key), depth + 1, _kind_of(key, kind))
                for key, value in node.items()
            )
            if len(node) > MAX_PROPERTIES:
                message = f"has {len(node)} members; the limit is {MAX_PROPERTIES}"
                raise fail(param, path, message, "too_complex")
        elif isinstance(node, (list, tuple)):
            if num_nodes + len(node) > MAX_NODES:
                raise _too_many(param)
            waiting.extend((value, path, depth + 1, kind) for value in node)
            num_chars += 2 * len(node)
        elif isinstance(node, str):
            _check_text(node, param, path, is_pattern=kind is _Kind.PATTERN)
            num_chars += len(node) + 2
        elif isinstance(node, float) and not math.isfinite(node):
            raise fail(param, path, f"{node} is not a JSON number", "invalid")
        elif isinstance(node, int) and not isinstance(node, bool) and abs(node) >= 10**308:
            raise fail(param, path, "the number is too large", "invalid")
        elif node is not None and not isinstance(node, (bool, int, float)):
            message = f"{type(node).__name__} is not JSON; send a JSON schema"
            raise fail(param, path, message, "invalid")
        if num_chars > MAX_BYTES:
            raise _too_long(param)
        if num_nodes > MAX_NODES:
            raise _too_many(param)


def depth_of(value: Any) -> int:
    """Return the number of nested levels of arrays and objects."""
    deepest = 0
    waiting = [(value, 0)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        if isinstance(node, dict):
            waiting.extend((child, depth + 1) for child in node.values())
        elif isinstance(node, list):
            waiting.extend((child, depth + 1) for child in node)
    return deepest


def _check_text(text: str, param: str, path: str, *, is_pattern: bool) -> None:
    if "\0" in text and not is_pattern:  # in a pattern the character and its escape mean the same
        raise fail(param, path, "holds a NUL character; remove it", "invalid")
    if _SURROGATE.search(text):
        message = "holds half a surrogate pair, which no text can contain; remove it"
        raise fail(param, path, message, "invalid")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _too_long(param: str) -> GrammarError:
    message = f"{param}: the schema is longer than {MAX_BYTES // 1024} KiB; make it smaller"
    return GrammarError(message, "too_complex", param=param)


def _too_deep(param: str, path: str) -> GrammarError:
    message = f"is nested deeper than {MAX_DEPTH} levels; move parts into $defs"
    return fail(param, path, message, "too_complex")


def _too_many(param: str) -> GrammarError:
    message = f"{param}: the schema has more than {MAX_NODES} values; make it smaller"
    return GrammarError(message, "too_complex", param=param)
