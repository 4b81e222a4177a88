"""The choice of a model's dialect: from its files, or by the parser names of SGLang and vLLM.

Promises: the formats of reasoning and of calls may come from different families, except Harmony's,
which belong together.
Does not know: the fields of a request.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from eyas.dialect.base import Dialect, Vocabulary
from eyas.dialect.compose import ComposedDialect
from eyas.dialect.deepseek import (
    DeepSeekCalls,
    deepseek,
    deepseek_v31,
    v31_reasoning,
    writes_fences,
)
from eyas.dialect.deepseek_v4 import DsmlCalls, deepseek_v4
from eyas.dialect.generic import generic, generic_reasoning
from eyas.dialect.glm import GlmCalls, glm, glm47, glm_reasoning
from eyas.dialect.harmony import harmony
from eyas.dialect.llama3 import LlamaCalls, llama3
from eyas.dialect.mistral import (
    ARGUMENTS,
    BEGIN,
    REASONING,
    MistralList,
    MistralNames,
    call_format,
    mistral,
    mistral_reasoning,
    mistral_v11,
    mistral_v13,
)
from eyas.dialect.qwen3 import HermesCalls, qwen3
from eyas.dialect.qwen3_coder import TaggedCalls, qwen3_coder
from eyas.dialect.reasoning import ReasoningFormat
from eyas.dialect.tools import ToolFormat

_REASONING_NAMES = {
    "qwen3": "qwen3",
    "qwen3-thinking": "qwen3",
    "qwq": "qwen3",
    "mimo": "qwen3",
    "kimi-k2": "qwen3",
    "interns1": "qwen3",
    "deepseek-r1": "deepseek",
    "step3": "deepseek",
    "deepseek-v3": "deepseek_v31",
    "deepseek-v31": "deepseek_v31",
    "deepseek-v32": "deepseek_v31",
    "deepseek-v4": "deepseek_v31",
    "glm": "glm",
    "glm45": "glm",
    "glm47": "glm",
    "glm4-moe": "glm",
    "gpt-oss": "harmony",
    "openai-gptoss": "harmony",
    "openai": "harmony",
    "harmony": "harmony",
    "mistral": "mistral",
    "generic": "generic",
    "none": "none",
}
_TOOL_NAMES = {
    "qwen3": "hermes",
    "qwen": "hermes",
    "qwen25": "hermes",
    "hermes": "hermes",
    "generic": "hermes",
    "qwen3-coder": "tagged",
    "qwen3-xml": "tagged",
    "llama3": "llama3",
    "llama3-json": "llama3",
    "llama4-json": "llama3",
    "deepseek-v3": "deepseek",
    "deepseek-r1": "deepseek",
    "deepseek-v31": "deepseek_v31",
    "deepseek-v4": "dsml",
    "glm": "glm",
    "glm45": "glm",
    "glm47": "glm47",
    "glm47-moe": "glm47",
    "glm4-moe": "glm",
    "gpt-oss": "harmony",
    "openai-gptoss": "harmony",
    "openai": "harmony",
    "harmony": "harmony",
    "mistral": "mistral",
    "none": "none",
}
_MISTRAL = ("mistral", "mistral_v11", "mistral_v13")
"""The formats of calls that other servers know by one name; the checkpoint says which of them it is."""
_FOREIGN = {
    "deepseek-v32": "calls in the markup (DSML) of DeepSeek-V3.2, whose tags are not those of V4,",
    "kimi-k2": "calls in sections of Kimi's own",
    "mimo": "calls in XML",
    "pythonic": "calls in Python",
    "llama4-pythonic": "calls in Python",
    "minimax": "calls as MiniMax writes them",
    "minimax-m2": "calls in XML",
    "step3": "calls as Step-3 writes them",
    "kimi": "reasoning between marks of Kimi's own",
    "granite": "reasoning in words of Granite's own",
    "ernie45": "reasoning and calls as ERNIE writes them",
    "seed-oss": "reasoning and calls between marks of Seed's own",
    "hunyuan-a13b": "reasoning as Hunyuan writes it",
}
"""Formats that SGLang or vLLM name and that are not supported."""
_SEPARATORS = re.compile(r"[-_.]")
_FAMILIES: dict[str, Callable[[Vocabulary], Dialect]] = {
    "qwen3": qwen3,
    "qwen3_coder": qwen3_coder,
    "llama3": llama3,
    "deepseek": deepseek,
    "deepseek_v31": deepseek_v31,
    "deepseek_v4": deepseek_v4,
    "glm": glm,
    "glm47": glm47,
    "harmony": harmony,
    "mistral": mistral,
    "mistral_v11": mistral_v11,
    "mistral_v13": mistral_v13,
    "generic": generic,
}
_PARTS = {
    # family: (format of reasoning, format of calls)
    "qwen3": ("qwen3", "hermes"),
    "qwen3_coder": ("qwen3", "tagged"),
    "llama3": ("none", "llama3"),
    "deepseek": ("deepseek", "deepseek"),
    "deepseek_v31": ("deepseek_v31", "deepseek_v31"),
    "deepseek_v4": ("deepseek_v31", "dsml"),
    "glm": ("glm", "glm"),
    "glm47": ("glm", "glm47"),
    "mistral": ("mistral", "mistral"),
    "mistral_v11": ("mistral", "mistral_v11"),
    "mistral_v13": ("mistral", "mistral_v13"),
    "generic": ("generic", "hermes"),
}


def find_dialect(
    tokenizer: Vocabulary, template_source: str | None, architecture: str | None
) -> Dialect:
    """Return the dialect for a checkpoint's tokenizer, chat template and architecture."""
    family, _ = _family(tokenizer, template_source or "", architecture or "")
    if family not in _PARTS:
        return _FAMILIES[family](tokenizer)
    reasoning, tools = _found_parts(family, tokenizer, template_source or "")
    if (reasoning, tools) == _PARTS[family]:
        return _FAMILIES[family](tokenizer)
    return ComposedDialect(
        family, tokenizer, _reasoning(tokenizer, reasoning), _tools(tokenizer, tools)
    )


def check_parsers(reasoning_parser: str | None, tool_call_parser: str | None) -> None:
    """Raise ValueError for unknown or unsupported parser names."""
    _known("reasoning-parser", reasoning_parser, _REASONING_NAMES)
    _known("tool-call-parser", tool_call_parser, _TOOL_NAMES)


def named_dialect(
    tokenizer: Vocabulary,
    reasoning_parser: str | None,
    tool_call_parser: str | None,
    template_source: str | None,
    architecture: str | None,
) -> Dialect:
    """Return the dialect with these parser names. "none" disables a part; None selects it as
    `find_dialect` does. ValueError lists the supported names."""
    if reasoning_parser is None and tool_call_parser is None:
        return find_dialect(tokenizer, template_source, architecture)
    family, _ = _family(tokenizer, template_source or "", architecture or "")
    reasoning = _known("reasoning-parser", reasoning_parser, _REASONING_NAMES)
    tools = _known("tool-call-parser", tool_call_parser, _TOOL_NAMES)
    if "harmony" in (reasoning, tools):
        if {reasoning, tools} - {"harmony", None}:
            raise ValueError(
                f"--reasoning-parser {reasoning_parser} with --tool-call-parser {tool_call_parser}: "
                "Harmony's reasoning and calls are one format; name it for both or for one alone"
            )
        return harmony(tokenizer)
    found_reasoning, found_tools = _found_parts(family, tokenizer, template_source or "")
    if tools in _MISTRAL and found_tools in _MISTRAL:
        tools = found_tools
    reasoning, tools = reasoning or found_reasoning, tools or found_tools
    for name, parts in _PARTS.items():
        if parts == (reasoning, tools):
            return _FAMILIES[name](tokenizer)
    return ComposedDialect(
        f"{reasoning}+{tools}",
        tokenizer,
        _reasoning(tokenizer, reasoning),
        _tools(tokenizer, tools),
    )


def dialect_reason(
    tokenizer: Vocabulary, template_source: str | None, architecture: str | None
) -> str:
    """Return why `find_dialect` finds its dialect, for the log."""
    return _family(tokenizer, template_source or "", architecture or "")[1]


def _family(tokenizer: Vocabulary, template: str, architecture: str) -> tuple[str, str]:
    """Return the family, and what it was recognised by. The template counts first, since fine-tuned
    models keep unused tokens."""

    def has(text: str) -> bool:
        return tokenizer.control_id(text) is not None

    if has("<|channel|>") and has("<|message|>"):
        return "harmony", "the tokens <|channel|> and <|message|>"
    if "</arg_key><arg_value>" in template:
        return "glm47", "</arg_key><arg_value> in the chat template"
    if "<arg_key>" in template:
        return "glm", "<arg_key> in the chat template"
    if "｜DSML｜tool_calls" in template:
        return "deepseek_v4", "｜DSML｜tool_calls in the chat template"
    if "tool▁calls▁begin" in template:
        family = "deepseek" if writes_fences(template) else "deepseek_v31"
        return family, "tool▁calls▁begin in the chat template"
    if "<tool_call>" in template and "<function=" in template and "<parameter=" in template:
        return "qwen3_coder", "<function= and <parameter= in the chat template"
    if "<tool_call>" in template:
        return "qwen3", "<tool_call> in the chat template"
    if (calls := call_format(template)) is not None:
        return calls, f"{BEGIN} in the chat template"
    if "<|python_tag|>" in template or '"parameters": ' in template:
        return "llama3", "the calls in the chat template"
    by_name = f"the architecture {architecture}"
    if has("<arg_key>"):
        return "glm", "the token <arg_key>"
    if architecture.startswith("Glm4Moe"):
        return "glm", by_name
    if architecture.startswith("DeepseekV4"):
        return "deepseek_v4", by_name
    if has("<｜tool▁calls▁begin｜>"):
        return "deepseek", "the token <｜tool▁calls▁begin｜>"
    if architecture.startswith("Deepseek"):
        return "deepseek", by_name
    if architecture.startswith("Qwen3_5"):
        return "qwen3_coder", by_name
    if has("<tool_call>"):
        return "qwen3", "the token <tool_call>"
    if architecture.startswith(("Qwen2", "Qwen3")):
        return "qwen3", by_name
    if has("<|python_tag|>"):
        return "llama3", "the token <|python_tag|>"
    if has(BEGIN):
        return "mistral_v13" if has(ARGUMENTS) else "mistral", f"the token {BEGIN}"
    return "generic", "no marks of another dialect"


def _found_parts(family: str, tokenizer: Vocabulary, template: str) -> tuple[str, str]:
    """Return the formats of reasoning and of calls. Where nothing shows that the model may open
    reasoning by itself, it does so only if the prompt does. Mistral's first reasoning models write
    <think>."""

    def has(text: str) -> bool:
        return tokenizer.control_id(text) is not None or text in template

    reasoning, tools = _PARTS.get(family, _PARTS["generic"])
    if reasoning == "mistral" and has(REASONING):
        return reasoning, tools
    if not has("<think>"):
        return "generic", tools
    return "deepseek_v31" if reasoning == "mistral" else reasoning, tools


def _known(option: str, name: str | None, names: dict[str, str]) -> str | None:
    if name is None:
        return None
    plain = _plain(name)
    found = next((family for known, family in names.items() if _plain(known) == plain), None)
    if found is not None:
        return found
    foreign = next((says for known, says in _FOREIGN.items() if _plain(known) == plain), None)
    why = "is not known" if foreign is None else f"{foreign} are not read here"
    if foreign is not None and foreign.startswith("reasoning"):
        why = f"{foreign} is not read here"
    raise ValueError(f"--{option} {name}: {why}; name one of {', '.join(sorted(names))}")


def _plain(name: str) -> str:
    """Normalise a name: lower case, without separators."""
    return _SEPARATORS.sub("", name.lower())


def _reasoning(tokenizer: Vocabulary, name: str) -> ReasoningFormat | None:
    match name:
        case "none":
            return None
        case "glm":
            return glm_reasoning(tokenizer)
        case "deepseek_v31":
            return v31_reasoning(tokenizer)
        case "mistral":
            return mistral_reasoning(tokenizer)
        case "generic":
            return generic_reasoning(tokenizer)
    return ReasoningFormat.of(tokenizer)


def _tools(tokenizer: Vocabulary, name: str) -> ToolFormat | None:
    match name:
        case "none":
            return None
        case "glm":
            return GlmCalls(tokenizer)
        case "glm47":
            return GlmCalls(tokenizer, has_lines=False)
        case "llama3":
            return LlamaCalls(tokenizer)
        case "deepseek" | "deepseek_v31":
            return DeepSeekCalls(tokenizer, fences=name == "deepseek")
        case "dsml":
            return DsmlCalls()
        case "mistral":
            return MistralList(tokenizer)
        case "mistral_v11" | "mistral_v13":
            return MistralNames(tokenizer, has_ids=name == "mistral_v11")
        case "tagged":
            return TaggedCalls(tokenizer)
    return HermesCalls(tokenizer)
