"""Schemas as requests carry them: objects, or JSON text.

Promises: what is no schema is refused with the field's name.
Does not know: which field it was, backends.
"""

from __future__ import annotations

from typing import Any

from eyas.core import RequestError
from eyas.schemas import prepare
from eyas.server.json_text import json_object


def prepared_schema(value: Any, param: str, *, lenient: bool = False) -> str:
    """A JSON schema, given as an object or as JSON text, as `eyas.schemas.prepare` returns it."""
    if isinstance(value, str):
        value = json_object(value, param)
    if not isinstance(value, dict):
        raise RequestError(
            f"{param}: must be a JSON schema: an object, or an object's JSON text", param=param
        )
    return prepare(value, param=param, lenient=lenient)
