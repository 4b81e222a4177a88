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
from eyas.outputs import Choice, GenerationOutput, PartialOutput, ToolCall
from eyas.typed import Grammar, JsonSchema, OutputIncomplete, Regex

if TYPE_CHECKING:
    from eyas.llm import LLM  # imported when it is first used: torch takes seconds

__version__ = "0.4.1"

__all__ = [
    "LLM",
    "Choice",
    "Delta",
    "GenerationOutput",
    "Grammar",
    "GrammarError",
    "JsonSchema",
    "OutputIncomplete",
    "OutputSpec",
    "PartialOutput",
    "Regex",
    "Request",
    "RequestError",
    "SamplingParams",
    "TokenLogprob",
    "ToolCall",
    "Usage",
]


def __getattr__(name: str) -> object:
    if name == "LLM":
        from eyas.llm import LLM

        return LLM
    raise AttributeError(f"module 'eyas' has no attribute {name!r}")
