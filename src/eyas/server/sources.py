"""Schemas and grammars as requests carry them: objects or text, in several languages.

Promises: what is no schema or no grammar is refused with the field's name.
Does not know: which field it was, backends.
"""

from __future__ import annotations

import re
from typing import Any

from eyas.core import GrammarError, RequestError
from eyas.grammar import Source
from eyas.schemas import prepare
from eyas.server.body import json_object

_EBNF_RULE = re.compile(r"^[ \t]*[\w<>.\-]+[ \t]*::=", re.MULTILINE)


def prepared_schema(value: Any, param: str, *, lenient: bool = False) -> str:
    """A JSON schema, given as an object or as JSON text, as `eyas.schemas.prepare` returns it."""
    if isinstance(value, str):
        value = json_object(value, param)
    if not isinstance(value, dict):
        raise RequestError(
            f"{param}: must be a JSON schema: an object, or an object's JSON text", param=param
        )
    return prepare(value, param=param, lenient=lenient)


def grammar_source(text: str, param: str) -> Source:
    """A grammar, its language found by how it looks: llguidance's JSON, EBNF (also GBNF), or Lark.
    GrammarError for JSON that is none of llguidance's."""
    if text.lstrip().startswith("{"):
        if not isinstance(json_object(text, param).get("grammars"), list):
            raise GrammarError(
                f"{param}: is JSON but no grammar; llguidance's form has a list of 'grammars', and a "
                "JSON schema goes into response_format or json_schema",
                "invalid",
                param=param,
            )
        return Source("llguidance", text)
    if not text.strip():
        raise GrammarError(f"{param}: is empty; give a grammar", "invalid", param=param)
    is_ebnf = _EBNF_RULE.search(text) is not None and "%llguidance" not in text
    return Source("ebnf" if is_ebnf else "lark", text)
