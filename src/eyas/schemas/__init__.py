"""JSON schemas: from what a user sends to what a grammar enforces.

Promises: `prepare` returns a schema of which every keyword is enforced, or says which one is not and
where; what it returns never allows more than what it was given. It takes time that the limits bound,
so a server may call it between two requests.
Does not know: grammars, tokenizers, the backends' libraries.
"""

from eyas.schemas.guidance import json_node
from eyas.schemas.ignored import check_ignored
from eyas.schemas.joined import leading_back
from eyas.schemas.languages import grammar_source
from eyas.schemas.names import unspelled
from eyas.schemas.prepare import PREPARED, prepare
from eyas.schemas.python_patterns import rust_pattern

__all__ = [
    "PREPARED",
    "check_ignored",
    "grammar_source",
    "json_node",
    "leading_back",
    "prepare",
    "rust_pattern",
    "unspelled",
]
