"""In which language a grammar is written.

Promises: what is no grammar is refused with the field's name. Does not know: grammars' meaning.
"""

from __future__ import annotations

import re

from eyas.core import GrammarError
from eyas.grammar import Source
from eyas.schemas.limits import read

_EBNF_RULE = re.compile(r"^[ \t]*[\w<>.\-]+[ \t]*::=", re.MULTILINE)


def grammar_source(text: str, param: str) -> Source:
    """A grammar, its language found by how it looks: llguidance's JSON, EBNF (also GBNF), or Lark.
    GrammarError for an empty one, and for JSON that is none of llguidance's."""
    if text.lstrip().startswith("{"):
        value = read(text, param)
        if not (isinstance(value, dict) and isinstance(value.get("grammars"), list)):
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
