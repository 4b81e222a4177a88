"""eyas: an LLM inference engine built around draft trees; speculation never changes the output."""

# Nothing is imported before it is asked for: torch takes seconds, and with `python -m eyas` imports
# from here would still look in the working directory first (see `eyas.__main__`).
TYPE_CHECKING = False

if TYPE_CHECKING:
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
    from eyas.llm import LLM
    from eyas.outputs import Choice, GenerationOutput, PartialOutput, ToolCall
    from eyas.typed import Grammar, JsonSchema, OutputIncomplete, Regex

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

_ROOMS = {
    "LLM": "llm",
    "OutputSpec": "grammar",
    **dict.fromkeys(("Choice", "GenerationOutput", "PartialOutput", "ToolCall"), "outputs"),
    "Grammar": "typed",
    "JsonSchema": "typed",
    "OutputIncomplete": "typed",
    "Regex": "typed",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'eyas' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"eyas.{_ROOMS.get(name, 'core')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
