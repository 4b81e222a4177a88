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
from eyas.dialect.deepseek import DeepSeekCalls, v31_reasoning, writes_fences
from eyas.dialect.glm import GlmCalls, glm_reasoning
from eyas.dialect.harmony import Harmony
from eyas.dialect.kimi import SECTION, KimiCalls
from eyas.dialect.llama3 import LlamaCalls
from eyas.dialect.markup import DsmlCalls, MiniMaxCalls
from eyas.dialect.mistral import (
    ARGUMENTS,
    BEGIN,
    REASONING,
    MistralList,
    MistralNames,
    call_format,
    mistral_reasoning,
)
from eyas.dialect.qwen3 import HermesCalls
from eyas.dialect.reasoning import ReasoningFormat
from eyas.dialect.tagged import SEED_THINK, SeedCalls, TaggedCalls, seed_reasoning
from eyas.dialect.tools import ToolFormat

_REASONING_NAMES = {
    "qwen3": "qwen3",
    "qwen3-thinking": "qwen3",
    "qwq": "qwen3",
    "mimo": "qwen3",
    "kimi-k2": "deepseek_v31",
    "minimax-m2": "qwen3",
    "seed-oss": "seed",
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
    "minimax-m2": "minimax",
    "kimi-k2": "kimi",
    "seed-oss": "seed",
    "none": "none",
}
_MISTRAL = ("mistral", "mistral_v11", "mistral_v13")
"""The formats of calls that other servers know by one name; the checkpoint says which of them it is."""
_FOREIGN = {
    "deepseek-v32": "calls in the markup (DSML) of DeepSeek-V3.2, whose tags are not those of V4,",
    "mimo": "calls in XML",
    "pythonic": "calls in Python",
    "llama4-pythonic": "calls in Python",
    "minimax": "calls as MiniMax writes them",
    "step3": "calls as Step-3 writes them",
    "kimi": "reasoning between marks of Kimi's own",
    "granite": "reasoning in words of Granite's own",
    "ernie45": "reasoning and calls as ERNIE writes them",
    "hunyuan-a13b": "reasoning as Hunyuan writes it",
}
"""Formats that SGLang or vLLM name and that are not supported."""
_SEPARATORS = re.compile(r"[-_.]")
_REASONING: dict[str, Callable[[Vocabulary], ReasoningFormat | None]] = {
    "qwen3": ReasoningFormat.of,
    "deepseek": ReasoningFormat.of,
    "deepseek_v31": v31_reasoning,
    "glm": glm_reasoning,
    "mistral": mistral_reasoning,
    "seed": seed_reasoning,
    # A model of an unknown family reasons only if the prompt opens it.
    "generic": lambda tokenizer: ReasoningFormat.of(tokenizer, may_open=False),
    "none": lambda tokenizer: None,
}
_TOOLS: dict[str, Callable[[Vocabulary], ToolFormat | None]] = {
    "hermes": HermesCalls,
    "tagged": TaggedCalls,
    "llama3": LlamaCalls,
    "deepseek": lambda tokenizer: DeepSeekCalls(tokenizer, fences=True),
    "deepseek_v31": lambda tokenizer: DeepSeekCalls(tokenizer, fences=False),
    "dsml": DsmlCalls,
    "minimax": MiniMaxCalls,
    "seed": SeedCalls,
    "kimi": KimiCalls,
    "glm": GlmCalls,
    "glm47": lambda tokenizer: GlmCalls(tokenizer, has_lines=False),
    "mistral": MistralList,
    "mistral_v11": lambda tokenizer: MistralNames(tokenizer, has_ids=True),
    "mistral_v13": MistralNames,
    "none": lambda tokenizer: None,
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
    "minimax_m2": ("qwen3", "minimax"),
    "kimi_k2": ("deepseek_v31", "kimi"),
    "seed_oss": ("seed", "seed"),
    "generic": ("generic", "hermes"),
}


def check_parsers(reasoning_parser: str | None, tool_call_parser: str | None) -> None:
    """Raise ValueError for unknown or unsupported parser names."""
    _known("reasoning-parser", reasoning_parser, _REASONING_NAMES)
    _known("tool-call-parser", tool_call_parser, _TOOL_NAMES)


def find_dialect(
    tokenizer: Vocabulary,
    template_source: str | None,
    architecture: str | None,
    reasoning_parser: str | None = None,
    tool_call_parser: str | None = None,
) -> Dialect:
    """Return the dialect of a checkpoint, by its tokenizer, chat template and architecture.

    reasoning_parser, tool_call_parser: names of the formats of reasoning and of calls to take instead;
    "none" disables a part. ValueError lists the supported names.
    """
    reasoning = _known("reasoning-parser", reasoning_parser, _REASONING_NAMES)
    tools = _known("tool-call-parser", tool_call_parser, _TOOL_NAMES)
    family, _ = _family(tokenizer, template_source or "", architecture or "")
    is_found = reasoning is None and tools is None
    if "harmony" in (reasoning, tools) or (is_found and family == "harmony"):
        if {reasoning, tools} - {"harmony", None}:
            raise ValueError(
                f"--reasoning-parser {reasoning_parser} with --tool-call-parser {tool_call_parser}: "
                "Harmony's reasoning and calls are one format; name it for both or for one alone"
            )
        return Harmony(tokenizer)
    found_reasoning, found_tools = _found_parts(family, tokenizer, template_source or "")
    if tools in _MISTRAL and found_tools in _MISTRAL:
        tools = found_tools
    parts = reasoning or found_reasoning, tools or found_tools
    families = (name for name, usual in _PARTS.items() if usual == parts)
    name = family if is_found else next(families, "+".join(parts))
    return _composed(name, tokenizer, *parts)


def family_dialect(family: str, tokenizer: Vocabulary) -> Dialect:
    """Return the dialect of a family with its usual formats, whatever the checkpoint has."""
    if family == "harmony":
        return Harmony(tokenizer)
    return _composed(family, tokenizer, *_PARTS[family])


def _composed(name: str, tokenizer: Vocabulary, reasoning: str, tools: str) -> Dialect:
    return ComposedDialect(
        name, tokenizer, _REASONING[reasoning](tokenizer), _TOOLS[tools](tokenizer)
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
    if "minimax:tool_call>" in template:
        return "minimax_m2", "<minimax:tool_call> in the chat template"
    if "seed:tool_call>" in template:
        return "seed_oss", "<seed:tool_call> in the chat template"
    if "<tool_call>" in template and "<function=" in template and "<parameter=" in template:
        return "qwen3_coder", "<function= and <parameter= in the chat template"
    if "<tool_call>" in template:
        return "qwen3", "<tool_call> in the chat template"
    if (calls := call_format(template)) is not None:
        return calls, f"{BEGIN} in the chat template"
    if "<|python_tag|>" in template or '"parameters": ' in template:
        return "llama3", "the calls in the chat template"
    if has(SECTION) or SECTION in template:
        return "kimi_k2", f"{SECTION}, which begins calls"
    by_name = f"the architecture {architecture}"
    if has("<arg_key>"):
        return "glm", "the token <arg_key>"
    if architecture.startswith(("Glm4Moe", "Glm4vMoe")):
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
    for family, token in (("minimax_m2", "<minimax:tool_call>"), ("seed_oss", "<seed:tool_call>")):
        if has(token):
            return family, f"the token {token}"
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
    own_mark = {"mistral": REASONING, "seed": SEED_THINK}.get(reasoning)
    if own_mark is not None and has(own_mark):
        return reasoning, tools
    if not has("<think>"):
        return "generic", tools
    return "deepseek_v31" if own_mark is not None else reasoning, tools


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
