"""The choice of a model's dialect."""

from __future__ import annotations

from pathlib import Path

import pytest

import eyas.builtin
from eyas.dialect import Wanted, dialect_reason, find_dialect
from eyas.dialect.compose import ComposedDialect
from eyas.grammar import Json
from eyas.text.tokenizer import Tokenizer

from .cases import HARMONY_MARKERS, TOOLS
from .streams import Letters, Outcome, Stream

BARE = Letters("<t>")
THINKS = Letters("<t>", "<think>", "</think>")
MISTRAL = Letters("<t>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]")


@pytest.mark.parametrize(
    ("tokenizer", "template", "architecture", "name"),
    [
        (BARE, None, None, "generic"),
        (BARE, "<tool_call>", None, "qwen3"),
        (Letters("<tool_call>"), None, None, "qwen3"),
        (Letters("<tool_call>"), "<tool_call><function=f><parameter=p>", None, "qwen3_coder"),
        (Letters("<tool_call>"), "<tool_call>", "Qwen3_5ForCausalLM", "qwen3"),
        (Letters("<tool_call>"), None, "Qwen3_5MoeForConditionalGeneration", "qwen3_coder"),
        (BARE, None, "Qwen2ForCausalLM", "qwen3"),
        (Letters("<|python_tag|>"), None, "LlamaForCausalLM", "llama3"),
        (Letters("<|python_tag|>"), "<tool_call>", "LlamaForCausalLM", "qwen3"),
        (THINKS, "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>```json", None, "deepseek"),
        (THINKS, "<｜tool▁calls▁begin｜>", None, "deepseek_v31"),
        (BARE, None, "DeepseekV3ForCausalLM", "deepseek"),
        (Letters("<|tool_calls_section_begin|>"), None, "DeepseekV3ForCausalLM", "kimi_k2"),
        (BARE, "<|tool_calls_section_begin|>", "DeepseekV3ForCausalLM", "kimi_k2"),
        (BARE, "<minimax:tool_call>", "MiniMaxM2ForCausalLM", "minimax_m2"),
        (Letters("<minimax:tool_call>"), None, "MiniMaxM2ForCausalLM", "minimax_m2"),
        (BARE, "<seed:tool_call>", "SeedOssForCausalLM", "seed_oss"),
        (Letters("<seed:tool_call>"), None, "SeedOssForCausalLM", "seed_oss"),
        (BARE, None, "Glm4vMoeForConditionalGeneration", "glm"),
        (THINKS, None, "DeepseekV4ForCausalLM", "deepseek_v4"),
        (THINKS, "<｜DSML｜tool_calls>", None, "deepseek_v4"),
        (Letters("<tool_call>", "<arg_key>"), None, None, "glm"),
        (BARE, "<tool_call><arg_key>", "Glm4MoeForCausalLM", "glm"),
        (THINKS, "<arg_key>k</arg_key><arg_value>v</arg_value>", "Glm4MoeForCausalLM", "glm47"),
        (Letters(*HARMONY_MARKERS), "<|start|>", "GptOssForCausalLM", "harmony"),
        (BARE, "[TOOL_CALLS] [", "MistralForCausalLM", "mistral"),
        (BARE, "[TOOL_CALLS]f[CALL_ID]i[ARGS]{}", "MistralForCausalLM", "mistral_v11"),
        (MISTRAL, "[TOOL_CALLS]f[ARGS]{}", "MistralForCausalLM", "mistral_v13"),
        (Letters("[TOOL_CALLS]"), "[INST]", "MistralForCausalLM", "mistral"),
        (MISTRAL, None, "MistralForCausalLM", "mistral_v13"),
        (MISTRAL, "<tool_call>", "MistralForCausalLM", "qwen3"),
    ],
)
def test_the_checkpoint_shows_it(
    tokenizer: Letters, template: str | None, architecture: str | None, name: str
) -> None:
    assert find_dialect(tokenizer, template, architecture).name == name


@pytest.mark.parametrize(
    ("reasoning", "tools", "name"),
    [
        ("qwen3", None, "qwen3"),
        ("qwen3", "qwen3_coder", "qwen3_coder"),
        (None, "qwen3_xml", "qwen3_coder"),
        ("deepseek-r1", "deepseek_v3", "deepseek"),
        ("deepseek_r1", "hermes", "qwen3"),
        ("deepseek-v3", "deepseekv31", "deepseek_v31"),
        ("deepseek-v4", "deepseekv4", "deepseek_v4"),
        ("glm45", "glm45", "glm"),
        ("glm45", "glm47", "glm47"),
        ("gpt-oss", "openai", "harmony"),
        (None, "gpt-oss", "harmony"),
        ("openai_gptoss", None, "harmony"),
        ("none", "llama3_json", "llama3"),
        ("minimax_m2", "minimax_m2", "minimax_m2"),
        ("kimi_k2", "kimi_k2", "kimi_k2"),
        ("seed_oss", "seed_oss", "seed_oss"),
        ("deepseek_r1", "llama3_json", "deepseek+llama3"),
        ("none", "none", "none+none"),
    ],
)
def test_the_names_of_other_servers_mean_the_same(
    reasoning: str | None, tools: str | None, name: str
) -> None:
    found = find_dialect(THINKS, "<tool_call>", None, reasoning, tools).name
    equal = {"deepseek+hermes": "qwen3"}
    assert equal.get(found, found) == name


@pytest.mark.parametrize("tools", [None, "mistral"])
def test_mistrals_calls_are_those_of_the_template(tools: str | None) -> None:
    template = "[TOOL_CALLS]f[CALL_ID]i[ARGS]{}"
    assert find_dialect(MISTRAL, template, None, "mistral", tools).name == "mistral_v11"
    assert find_dialect(BARE, None, None, "none", "mistral").name == "none+mistral"


@pytest.mark.parametrize(
    ("tokenizer", "template", "text"),
    [
        (MISTRAL, "[TOOL_CALLS]", "[THINK]a[/THINK]b"),
        (BARE, "[TOOL_CALLS] <think>", "<think>a</think>b"),
    ],
    ids=["with tokens", "as the first ones"],
)
def test_mistrals_reasoning_is_that_of_the_checkpoint(
    tokenizer: Letters, template: str, text: str
) -> None:
    dialect = find_dialect(tokenizer, template, "MistralForCausalLM")
    segmenter = dialect.segmenter(Wanted(), tokenizer.tokens("<t>"))
    events = tokenizer.stream(tokenizer.tokens(text)).at_once(segmenter)
    assert Outcome.of(events) == Outcome("a", "b", ())


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"--reasoning-parser foo.*qwen3"):
        find_dialect(BARE, None, None, "foo", None)
    with pytest.raises(ValueError, match=r"--tool-call-parser foo.*hermes"):
        find_dialect(BARE, None, None, None, "foo")
    with pytest.raises(ValueError, match="one format"):
        find_dialect(BARE, None, None, "harmony", "hermes")


def test_a_model_without_reasoning_is_not_expected_to_open_it() -> None:
    dialect = find_dialect(BARE, "<tool_call>", "Qwen2ForCausalLM")
    reason = dialect_reason(BARE, "<tool_call>", "Qwen2ForCausalLM")
    assert reason == "<tool_call> in the chat template"
    assert dialect_reason(BARE, None, "Qwen2ForCausalLM") == "the architecture Qwen2ForCausalLM"
    assert isinstance(dialect, ComposedDialect)
    events = Stream("<think>a</think>", ()).at_once(dialect.segmenter(Wanted(), BARE.tokens("<t>")))
    assert Outcome.of(events) == Outcome("", "<think>a</think>", ())


def test_reasoning_and_calls_of_two_families_go_together() -> None:
    dialect = find_dialect(THINKS, None, None, "deepseek-r1", "llama3")
    wanted = Wanted(tools=TOOLS, choice="auto")
    ids = THINKS.tokens('a</think>\n\n{"name": "time", "parameters": {}}')
    segmenter = dialect.segmenter(wanted, THINKS.tokens("<t><think>\n"))
    events = THINKS.stream(ids).at_once(segmenter)
    assert Outcome.of(events) == Outcome("a", "", (("time", "{}"),))


def test_the_built_in_model_reasons_and_calls() -> None:
    directory = Path(eyas.builtin.__file__).parent / "checkpoint"
    tokenizer = Tokenizer.from_directory(directory)
    template = (directory / "chat_template.jinja").read_text()
    dialect = find_dialect(tokenizer, template, None)
    assert dialect.name == "qwen3"
    prompt = [tokenizer.control_id("<|im_start|>") or 0, *tokenizer.encode_text("assistant\n")]
    wanted = Wanted(tools=TOOLS, choice="required", max_reasoning_tokens=8)
    spec = dialect.output(wanted, prompt)
    assert spec is not None
    assert spec.budget is not None
    assert spec.budget.closing[0] == tokenizer.control_id("</think>")
    assert dialect.output(Wanted(answer=Json("{}")), prompt) is not None
    assert dialect.output(Wanted(), prompt) is None
