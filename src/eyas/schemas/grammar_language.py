"""Detection of the language that a grammar is written in.

Promises: refuses a text that is not a grammar with the field's name. Does not know: what grammars mean.
"""

from __future__ import annotations

import re

from eyas.core import GrammarError
from eyas.grammar import Source
from eyas.schemas.limits import read

_EBNF_RULE = re.compile(r"^[ \t]*[\w<>.\-]+[ \t]*::=", re.MULTILINE)


def grammar_source(text: str, param: str) -> Source:
    """Return a grammar with its language, detected from the text: llguidance (JSON), EBNF or Lark.

    GrammarError (invalid) for an empty text, and for JSON without llguidance's `grammars`.
    """
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
