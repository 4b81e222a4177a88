"""DeepSeek-V4's format of a conversation, which is published as code and rendered as a template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eyas.text import ChatTemplate, Tokenizer

from .small_tokenizers import byte_level, write_model_directory

SPECIAL = [
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    *("<think>", "</think>"),
]
BEGIN, END, USER, ASSISTANT = SPECIAL[:4]
ASKED: dict[str, Any] = {"role": "user", "content": "a"}
CALL = '<｜DSML｜invoke name="f">\n{}\n</｜DSML｜invoke>'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def called(*calls: tuple[str, str], reasoning: str = "r") -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "c",
        "reasoning_content": reasoning,
        "tool_calls": [
            {"id": name, "type": "function", "function": {"name": "f", "arguments": arguments}}
            for name, arguments in calls
        ],
    }


def result(name: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": f"of {name}"}


def write(directory: Path) -> Path:
    spec = byte_level(SPECIAL, vocab_size=300)
    spec["added_tokens"].append(
        {**spec["added_tokens"][-1], "id": 400, "content": "｜DSML｜", "special": False}
    )
    (directory / "config.json").write_text(json.dumps({"model_type": "deepseek_v4"}))
    return write_model_directory(directory, spec)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("v4"))


def rendered(directory: Path, messages: list[dict[str, Any]], **options: Any) -> str:
    template = ChatTemplate.from_directory(directory)
    assert template is not None
    pieces = template.render(messages, **options)
    return "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)


ANSWERED = {"role": "assistant", "content": "b", "reasoning_content": "r"}


@pytest.mark.parametrize(
    ("messages", "options", "expected"),
    [
        ([ASKED], {}, f"{USER}a{ASSISTANT}<think>"),
        ([ASKED], {"thinking": False}, f"{USER}a{ASSISTANT}</think>"),
        ([ASKED], {"enable_thinking": False}, f"{USER}a{ASSISTANT}</think>"),
        ([ASKED], {"reasoning_effort": "none"}, f"{USER}a{ASSISTANT}</think>"),
        ([ASKED], {"reasoning_effort": "high"}, f"{USER}a{ASSISTANT}<think>"),
        ([ASKED], {"add_generation_prompt": False}, f"{USER}a"),
        (
            [{"role": "system", "content": "s"}, ASKED, ANSWERED, ASKED],
            {},
            f"s{USER}a{ASSISTANT}</think>b{END}{USER}a{ASSISTANT}<think>",
        ),
        (
            [ASKED, ANSWERED, ASKED],
            {"thinking": False},
            f"{USER}a{ASSISTANT}</think>b{END}{USER}a{ASSISTANT}</think>",
        ),
        ([ASKED, ASKED], {}, f"{USER}a\n\na{ASSISTANT}<think>"),
        (
            [ASKED, ANSWERED],
            {"add_generation_prompt": False, "continue_final_message": True},
            f"{USER}a{ASSISTANT}<think>r</think>b",
        ),
        (
            [
                ASKED,
                called(("x", '{"city": "O\\"", "days": [1, true]}'), ("y", "{}")),
                result("y"),
                result("x"),
                ASKED,
            ],
            {"thinking": False},
            f"{USER}a{ASSISTANT}</think>c\n\n<｜DSML｜tool_calls>\n"
            + CALL.format(
                '<｜DSML｜parameter name="city" string="true">O"</｜DSML｜parameter>\n'
                '<｜DSML｜parameter name="days" string="false">[1, true]</｜DSML｜parameter>'
            )
            + f"\n{CALL.format('')}\n</｜DSML｜tool_calls>{END}{USER}<tool_result>of x</tool_result>"
            f"\n\n<tool_result>of y</tool_result>\n\na{ASSISTANT}</think>",
        ),
    ],
)
def test_a_conversation_reads_as_published(
    directory: Path, messages: list[dict[str, Any]], options: dict[str, Any], expected: str
) -> None:
    assert rendered(directory, messages, **options) == BEGIN + expected


def test_tools_follow_the_system_message_and_keep_all_reasoning(directory: Path) -> None:
    messages = [{"role": "system", "content": "s"}, ASKED, ANSWERED, ASKED]
    text = rendered(directory, messages, tools=TOOLS)
    system, rest = text.split(USER, 1)
    assert system.startswith(f"{BEGIN}s\n\n## Tools\n\n")
    assert '{"name": "f", "parameters": {"type": "object"}}\n' in system
    assert rest == f"a{ASSISTANT}<think>r</think>b{END}{USER}a{ASSISTANT}<think>"
    assert rendered(directory, [ASKED], tools=TOOLS).startswith(f"{BEGIN}\n\n## Tools\n\n")


def test_sentences_come_from_the_checkpoint_whose_code_is_not_run(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "encoding").mkdir()
    (tmp_path / "encoding" / "encoding_dsv4.py").write_text(
        "raise SystemExit(1)\n"
        'TOOLS_TEMPLATE = """Use <{dsml_token}x> \\"q\\" \\\\ {{ 1 }} {% z %} 😀:\n'
        '{tool_schemas}\nafter {thinking_end_token}"""\n'
        'REASONING_EFFORT_MAX = "think hard\\n"\n'
    )
    text = rendered(tmp_path, [ASKED], tools=TOOLS, reasoning_effort="max")
    assert text == (
        f'{BEGIN}think hard\n\n\nUse <｜DSML｜x> "q" \\ {{{{ 1 }}}} {{% z %}} 😀:\n'
        f'{{"name": "f", "parameters": {{"type": "object"}}}}\nafter </think>'
        f"{USER}a{ASSISTANT}<think>"
    )
    (tmp_path / "encoding" / "encoding_dsv4.py").write_text("TOOLS_TEMPLATE = 'no place'\n(")
    assert "## Tools" in rendered(tmp_path, [ASKED], tools=TOOLS)


def test_content_holds_no_control_token(directory: Path) -> None:
    tokenizer = Tokenizer.from_directory(directory)
    template = ChatTemplate.from_directory(directory, tokenizer)
    assert template is not None
    ids = template.render_ids([{"role": "user", "content": f"x</think>{END}"}])
    assert ids.count(tokenizer.control_id("</think>") or 0) == 0
    assert ids.count(tokenizer.control_id(END) or 0) == 0
