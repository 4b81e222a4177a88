"""All dialects, with tokenizers with and without their control tokens, and all kinds of requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from eyas.dialect.base import Dialect, Segmenter, ToolSpec, Vocabulary, Wanted
from eyas.dialect.choose import family_dialect
from eyas.grammar import Json

from .streams import Letters

WEATHER = ToolSpec(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    strict=True,
)
CLOCK = ToolSpec("time", {})
TOOLS = (WEATHER, CLOCK)
PERSON = Json(
    '{"type":"object","properties":{"name":{"type":"string"}},"required":["name"],'
    '"additionalProperties":false}'
)
JSON_PIECES = ('{"name": "get_weather", "arguments": {"city": "x"}}', '{"name": "', '"}', "\\")


@dataclass(frozen=True)
class Family:
    """A family by its name, and the parts of its format."""

    name: str
    markers: tuple[str, ...]
    prompts: tuple[str, ...]
    pieces: tuple[str, ...] = ()

    def dialect(self, tokenizer: Vocabulary) -> Dialect:
        return family_dialect(self.name, tokenizer)


@dataclass(frozen=True)
class Case:
    name: str
    family: Family
    tokenizer: Letters
    prompt: str
    wanted: Wanted = field(default_factory=Wanted)

    @property
    def dialect(self) -> Dialect:
        return self.family.dialect(self.tokenizer)

    @property
    def pieces(self) -> tuple[str, ...]:
        return (*self.family.markers, *self.family.pieces)

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.tokenizer.tokens(self.prompt)

    @property
    def is_told_by_tokens(self) -> bool:
        """Whether the prompt's open message is recognisable: only control tokens show it."""
        return not self.prompt.endswith("<|message|>") or (
            self.tokenizer.control_id("<|message|>") is not None
        )

    def segmenter(self) -> Segmenter:
        return self.dialect.segmenter(self.wanted, self.prompt_token_ids)


THINK = ("<think>", "</think>")
OPENED, CLOSED, NEITHER = "<t>a:<think>\n", "<t>a:<think>\n\n</think>\n\n", "<t>a:"

DEEPSEEK_MARKERS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
GLM_MARKERS = (
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)
KIMI_MARKERS = (
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)
MISTRAL_THINK = ("[THINK]", "[/THINK]")
HARMONY_MARKERS = (
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
)

FAMILIES: dict[str, Family] = {
    "qwen3": Family(
        "qwen3",
        (*THINK, "<tool_call>", "</tool_call>"),
        (OPENED, CLOSED, NEITHER),
        JSON_PIECES,
    ),
    "qwen3_coder": Family(
        "qwen3_coder",
        (*THINK, "<tool_call>", "</tool_call>"),
        (OPENED, CLOSED, NEITHER),
        (
            "\n<function=get_weather>\n",
            "<parameter=city>\n",
            "<parameter=days>\n3",
            "\n</parameter>\n",
            "</function>\n",
        ),
    ),
    "generic": Family(
        "generic",
        (*THINK, "<tool_call>", "</tool_call>"),
        (OPENED, NEITHER),
        JSON_PIECES,
    ),
    "llama3": Family(
        "llama3",
        ("<|python_tag|>",),
        (NEITHER,),
        ('{"name": "time", "parameters": {}}', "; ", *JSON_PIECES),
    ),
    "deepseek": Family(
        "deepseek",
        (*THINK, *DEEPSEEK_MARKERS),
        (OPENED, CLOSED, NEITHER),
        ("function", "time\n", "```json\n", "{}", '{"city": "x"}', "\n```"),
    ),
    "deepseek_v31": Family(
        "deepseek_v31",
        (*THINK, *DEEPSEEK_MARKERS),
        ("<t>a:<think>", "<t>a:</think>"),
        ("time", "{}", '{"city": "x"}'),
    ),
    "deepseek_v4": Family(
        "deepseek_v4",
        THINK,
        ("<t>a:<think>", "<t>a:</think>"),
        (
            "<｜DSML｜tool_calls>\n",
            '<｜DSML｜invoke name="get_weather">\n',
            '<｜DSML｜parameter name="city" string="true">',
            '" string="false">3',
            "</｜DSML｜parameter>\n",
            "</｜DSML｜invoke>\n",
            "</｜DSML｜tool_calls>",
        ),
    ),
    "glm": Family(
        "glm",
        (*THINK, *GLM_MARKERS),
        ("<t>a:", "<t>a:\n<think></think>"),
        ("get_weather\n", "city", "days", "unit", "3", "C"),
    ),
    "glm47": Family(
        "glm47",
        (*THINK, *GLM_MARKERS),
        ("<t>a:<think>", "<t>a:</think>"),
        ("get_weather", "city", "days", "unit", "3", "C"),
    ),
    "mistral": Family(
        "mistral",
        (*MISTRAL_THINK, "[TOOL_CALLS]"),
        (NEITHER, "<t>a:[THINK]"),
        ("[", "]", ", ", '", "id": "a1b2c3d4e"}', *JSON_PIECES),
    ),
    "mistral_v11": Family(
        "mistral_v11",
        (*MISTRAL_THINK, "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        (NEITHER, "<t>a:[THINK]"),
        ("get_weather", "time", "a1b2c3d4e", "{}", '{"city": "x"}'),
    ),
    "mistral_v13": Family(
        "mistral_v13",
        (*MISTRAL_THINK, "[TOOL_CALLS]", "[ARGS]"),
        (NEITHER, "<t>a:[THINK]"),
        ("get_weather", "time", "{}", '{"city": "x"}'),
    ),
    "minimax_m2": Family(
        "minimax_m2",
        (*THINK, "<minimax:tool_call>", "</minimax:tool_call>"),
        (OPENED, NEITHER),
        (
            '\n<invoke name="get_weather">\n',
            '<parameter name="city">',
            '<parameter name="days">3',
            "</parameter>\n",
            "</invoke>\n",
        ),
    ),
    "seed_oss": Family(
        "seed_oss",
        ("<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"),
        ("<t>a:<seed:think>", "<t>a:<seed:think></seed:think>\n", NEITHER),
        (
            "\n<function=get_weather>\n",
            "<parameter=city>",
            "<parameter=days>3",
            "</parameter>\n",
            "</function>\n",
        ),
    ),
    "kimi_k2": Family(
        "kimi_k2",
        (*THINK, *KIMI_MARKERS),
        ("<t>a:<think>", "<t>a:<think></think>", NEITHER),
        ("functions.get_weather:0", "functions.time:1", "{}", '{"city": "x"}'),
    ),
    "harmony": Family(
        "harmony",
        HARMONY_MARKERS,
        (
            "<|start|>user<|message|>a<|end|><|start|>assistant",
            "<|start|>assistant<|channel|>analysis<|message|>",
            "<|start|>assistant<|channel|>final<|message|>",
        ),
        ("analysis", "commentary", "final", " to=functions.time", "json", "{}", "assistant"),
    ),
}

WANTED: dict[str, Wanted] = {
    "anything": Wanted(),
    "an answer": Wanted(answer=PERSON),
    "calls or text": Wanted(tools=TOOLS, choice="auto"),
    "calls or an answer": Wanted(answer=PERSON, tools=TOOLS, choice="auto"),
    "a call": Wanted(tools=TOOLS, choice="required", parallel=False),
}


def tokenizers(family: Family) -> dict[str, Letters]:
    """Return tokenizers with the markers as visible control tokens, hidden ones, and as text."""
    return {
        "shown": Letters("<t>", *family.markers),
        "skipped": Letters("<t>", hidden=family.markers),
        "text": Letters("<t>"),
    }


ALL_CASES = [
    Case(f"{name}, {kind}, {prompt!r}, {asked}", family, tokenizer, prompt, wanted)
    for name, family in FAMILIES.items()
    for kind, tokenizer in tokenizers(family).items()
    for prompt in family.prompts
    for asked, wanted in WANTED.items()
]
CASES = [
    case
    for case in ALL_CASES
    if case.is_told_by_tokens
    and not (case.prompt.endswith("final<|message|>") and case.wanted.choice == "required")
]
"""All cases except required calls after a prompt that has begun the answer."""


def cases_of(family: str) -> st.SearchStrategy[Case]:
    return st.sampled_from([case for case in CASES if case.family is FAMILIES[family]])
