"""Reads JSON schemas that a request holds as objects or as JSON text.

Promises: refuses what is not a schema, with the field's name. Does not know: which field it is,
backends.
"""

from __future__ import annotations

from typing import Any

from eyas.core import field_error
from eyas.grammar import Json
from eyas.schemas import json_node
from eyas.server.http.json_text import json_object


def schema_node(value: Any, param: str, *, lenient: bool = False) -> Json:
    """Return the grammar node of a JSON schema, given as an object or as JSON text.

    lenient: ignore keywords that cannot be enforced. RequestError names the field `param`.
    """
    if isinstance(value, str):
        value = json_object(value, param)
    if not isinstance(value, dict):
        raise field_error(param, "must be a JSON schema: an object, or an object's JSON text")
    return json_node(value, param=param, lenient=lenient)
