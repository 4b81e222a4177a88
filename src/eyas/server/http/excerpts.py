"""Excerpts of the values that errors are about.

Promises: an excerpt is short and its making is cheap, however large the value is. Does not know: which
field an error is about.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from pydantic import BaseModel

MAX_EXCERPT_CHARS = 100
_STEP = re.compile(r'\.?([^.\[\]"]+)|\[([0-9]{1,9})\]|\[("(?:[^"\\]|\\.)*")\]')
_MISSING = object()


def excerpt_at(body: Any, path: str | None) -> str | None:
    """Return the beginning of the JSON of a value in a body; None if there is no value at the path.

    body: JSON data, or a pydantic model of it. path: as `json_text.path_text` writes it.
    """
    value = body
    for step in _steps(path or ""):
        value = _member(value, step)
    if path is None or value is _MISSING:
        return None
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > MAX_EXCERPT_CHARS:
            return f"{readable(text[:MAX_EXCERPT_CHARS])}..."
    return readable(text)


def readable(text: str) -> str:
    """Return the text with halves of surrogate pairs replaced, which UTF-8 cannot contain."""
    return text.encode("utf-8", "replace").decode()


def _steps(path: str) -> Iterator[str | int | None]:
    """Yield the names and indices of a path; None where it cannot be read, for example cut off."""
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            yield None
            return
        name, index, quoted = step.groups()
        yield int(index) if index else json.loads(quoted) if quoted else name
        at = step.end()


def _member(value: Any, step: str | int | None) -> Any:
    if isinstance(value, BaseModel):
        value = dict(_fields(value))
    if isinstance(step, str) and isinstance(value, Mapping):
        return value.get(step, _MISSING)
    if isinstance(step, int) and isinstance(value, Sequence) and not isinstance(value, str):
        return value[step] if step < len(value) else _MISSING
    return _MISSING


def _fields(model: BaseModel) -> Iterator[tuple[str, Any]]:
    """Yield the fields that were sent, by their names in the body."""
    for name, field in type(model).model_fields.items():
        if name in model.model_fields_set:
            yield field.alias or name, getattr(model, name)


def _pieces(value: Any) -> Iterator[str]:
    """Yield the JSON of a value in pieces, each of them short or the beginning of a long string."""
    if isinstance(value, BaseModel):
        value = dict(_fields(value))
    if isinstance(value, Mapping):
        members = (
            (f"{json.dumps(str(name)[: MAX_EXCERPT_CHARS + 1], ensure_ascii=False)}: ", item)
            for name, item in value.items()
        )
        yield from _joined("{", members, "}")
    elif isinstance(value, (list, tuple)):
        yield from _joined("[", (("", item) for item in value), "]")
    elif isinstance(value, str):
        yield json.dumps(value[: MAX_EXCERPT_CHARS + 1], ensure_ascii=False)
    else:
        yield json.dumps(value)


def _joined(opening: str, members: Iterable[tuple[str, Any]], closing: str) -> Iterator[str]:
    yield opening
    for place, (name, item) in enumerate(islice(members, MAX_EXCERPT_CHARS)):
        yield (", " if place else "") + name
        yield from _pieces(item)
    yield closing
