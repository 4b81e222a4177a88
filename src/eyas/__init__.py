"""eyas: an LLM inference engine built around draft trees; speculation never changes the output."""

from typing import TYPE_CHECKING

from eyas.core import (
    Delta,
    GrammarError,
    Request,
    RequestError,
    SamplingParams,
    TokenLogprob,
    Usage,
)
from eyas.grammar import OutputSpec
from eyas.typed import Grammar, JsonSchema, OutputIncomplete, Regex

if TYPE_CHECKING:
    from eyas.llm import LLM  # imported when it is first used: torch takes seconds

__version__ = "0.4.1"

__all__ = [
    "LLM",
    "Delta",
    "Grammar",
    "GrammarError",
    "JsonSchema",
    "OutputIncomplete",
    "OutputSpec",
    "Regex",
    "Request",
    "RequestError",
    "SamplingParams",
    "TokenLogprob",
    "Usage",
]


def __getattr__(name: str) -> object:
    if name == "LLM":
        from eyas.llm import LLM

        return LLM
    raise AttributeError(f"module 'eyas' has no attribute {name!r}")
