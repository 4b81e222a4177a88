"""Golden renderings of the chat template, and agreement with transformers."""

import jinja2
import pytest
from transformers import AutoTokenizer

from builtin_model.families import mixture
from builtin_model.template import TEMPLATE_FILE, render
from eyas import builtin

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "description": "é", "parameters": {}}}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": "ü"}}}


def test_system_message_is_optional() -> None:
    assert render([USER]) == "<|im_start|>user\nHi<|im_end|>\n"
    system = {"role": "system", "content": "Be brief."}
    assert render([system, USER]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    )


def test_generation_prompt_with_and_without_thinking() -> None:
    head = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render([USER], add_generation_prompt=True) == head
    without = render([USER], add_generation_prompt=True, enable_thinking=False)
    assert without == head + "<think>\n\n</think>\n\n"


def test_reasoning_stays_in_the_last_answer_only() -> None:
    answer = {"role": "assistant", "content": "B", "reasoning_content": "R"}
    assert render([USER, answer]).endswith(
        "<|im_start|>assistant\n<think>\nR\n</think>\n\nB<|im_end|>\n"
    )
    assert render([USER, answer, USER]) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
    )
    inline = {"role": "assistant", "content": "<think>\nR\n</think>\n\nB"}
    assert render([USER, inline, USER]) == render([USER, answer, USER])
    assert render([USER, inline]) == render([USER, answer])


def test_answer_without_reasoning_continues_the_prompt_without_thinking() -> None:
    prompt = render([USER], add_generation_prompt=True, enable_thinking=False)
    whole = render([USER, {"role": "assistant", "content": "B"}])
    assert whole == prompt + "B<|im_end|>\n"


def test_tools_calls_and_results() -> None:
    calls = {"role": "assistant", "content": None, "tool_calls": [CALL, CALL["function"]]}
    results = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    text = render([USER, calls, *results], [TOOL], add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou may call these functions:\n<tools>\n"
        '{"type": "function", "function": {"name": "f", "description": "é", "parameters": {}}}\n'
        "</tools>\nTo call one, answer with its name and arguments as JSON.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "f", "arguments": {"x": "ü"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": {"x": "ü"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n"
        "<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_arguments_may_be_a_string_and_content_may_precede_calls() -> None:
    call = {"function": {"name": "f", "arguments": '{"x": 1}'}}
    text = render([USER, {"role": "assistant", "content": "Wait.", "tool_calls": [call]}])
    assert text.endswith(
        'Wait.\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call><|im_end|>\n'
    )


def test_unknown_role_is_refused() -> None:
    with pytest.raises(jinja2.TemplateError, match="unknown role"):
        render([{"role": "wizard", "content": "x"}])


def test_shipped_template_renders_as_transformers_does() -> None:
    directory = builtin.path()
    assert (directory / "chat_template.jinja").read_text() == TEMPLATE_FILE.read_text()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    for example in mixture("template", "train", 50):
        theirs = tokenizer.apply_chat_template(
            list(example.request.messages),
            tools=list(example.tools) or None,
            add_generation_prompt=True,
            enable_thinking=example.enable_thinking,
            tokenize=False,
        )
        assert theirs == render(
            example.request.messages,
            example.tools,
            add_generation_prompt=True,
            enable_thinking=example.enable_thinking,
        )
