"""JSON schemas: from a user's schema to one that a grammar enforces completely.

Promises: `prepare` returns a schema of which every keyword is enforced, or refuses the schema with the
path of a keyword that is not. The result never allows more than the original. The time is bounded, so
a server may call it between two requests.
Does not know: grammars, tokenizers, the backends' libraries.
"""

from eyas.schemas.backend_limits import leading_back
from eyas.schemas.formats import NARROW_PATTERNS
from eyas.schemas.grammar_language import grammar_source
from eyas.schemas.guidance import json_node
from eyas.schemas.keywords import with_children
from eyas.schemas.name_spelling import unspelled
from eyas.schemas.pattern_tree import PatternFault
from eyas.schemas.prepare import PREPARED, prepare
from eyas.schemas.python_patterns import rust_pattern
from eyas.schemas.string_rules import ANY_STRING, NO_CHARACTERS, string_rule, text_rule
from eyas.schemas.xgrammar_ignored import check_ignored

__all__ = [
    "ANY_STRING",
    "NO_CHARACTERS",
    "NARROW_PATTERNS",
    "PREPARED",
    "PatternFault",
    "check_ignored",
    "grammar_source",
    "json_node",
    "leading_back",
    "prepare",
    "rust_pattern",
    "string_rule",
    "text_rule",
    "unspelled",
    "with_children",
]
