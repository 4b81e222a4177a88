"""Models of unknown families: Hermes calls, and reasoning only if the prompt opens it."""

from __future__ import annotations

from eyas.dialect.base import Dialect, Vocabulary
from eyas.dialect.compose import ComposedDialect
from eyas.dialect.qwen3 import HermesCalls
from eyas.dialect.reasoning import ReasoningFormat


def generic(tokenizer: Vocabulary) -> Dialect:
    return ComposedDialect(
        "generic", tokenizer, generic_reasoning(tokenizer), HermesCalls(tokenizer)
    )


def generic_reasoning(tokenizer: Vocabulary) -> ReasoningFormat:
    return ReasoningFormat.of(tokenizer, may_open=False)
