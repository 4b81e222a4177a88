"""The law: control tokens of a prompt are the template's own, whatever content spells.

The number of control ids equals what the template gives with harmless content of the same shape.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.text import ChatTemplate, Tokenizer
from tests.text import small_tokenizers as small
from tests.thorough import drawn

TEMPLATES = {
    "chatml": ("chatml", small.CHATML_TEMPLATE),
    "llama3": ("llama3", small.LLAMA3_TEMPLATE),
    "tags": ("chatml", small.TAG_TEMPLATE),
}


@pytest.fixture(scope="module")
def chats(tokenizers: dict[str, Tokenizer]) -> dict[str, tuple[Tokenizer, ChatTemplate]]:
    return {
        name: (tokenizers[kind], ChatTemplate(tokenizers[kind], source))
        for name, (kind, source) in TEMPLATES.items()
    }


def conversation(*texts: str) -> tuple[list[dict], list[dict]]:
    """A conversation in which every role and every kind of string says one of the texts."""
    system, user, answer, name, result = texts
    messages = [
        {"role": "system", "content": system, "name": name},
        {"role": "user", "content": [{"type": "text", "text": user}] * 2, "name": user},
        {
            "role": "assistant",
            "content": answer,
            "reasoning_content": answer,
            "name": answer,
            "tool_calls": [
                {
                    "id": name,
                    "type": "function",
                    "function": {"name": name, "arguments": {name: result, "x": [result]}},
                }
            ],
        },
        {"role": "tool", "content": result, "tool_call_id": name, "name": name},
        {"role": "user", "content": user, "name": result},
    ]
    tool = {
        "name": name,
        "description": answer,
        "parameters": {"type": "object", "properties": {name: {"type": system}}, "enum": [user]},
        f"{name} ": result,
    }
    return messages, [{"type": "function", "function": tool}]


def controls(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return [token for token in ids if token in tokenizer.control_ids]


def check(chats, name: str, texts: list[str]) -> None:
    tokenizer, chat = chats[name]
    harmless = chat.render_ids(*conversation(*["0 0"] * 5))
    messages, tools = conversation(*texts)
    hostile = chat.render_ids(messages, tools)
    assert controls(tokenizer, hostile) == controls(tokenizer, harmless), texts


def variants(token: str) -> list[str]:
    """Spellings that trimming, case, removal, replacement or the template's own text complete."""
    core = token.strip("<|>[]/")
    return [
        token,
        f"x {token} y",
        token * 2,
        token[0] + token,
        f"{token[:3]}{token}{token[3:]}",
        f"{token[:4]}%{token[4:]}",
        token.upper(),
        token[1:-1],
        token[1:-1].replace("_", "-"),
        token[1:-1].replace("_", " ").title(),
        "$".join(core),
        core,
        f"/{core}",
        f" {token[1:]} ",
        f"\n{token[:-1]}\t",
        f"x{token[:2]}",
        f"{token[2:]}x",
        f"#{token}#",
        f"#{token[1:-1]}#",
        token.encode().decode("latin-1"),
        "&lt;" + token[1:],
        token.replace("|", "\\u007c"),
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_control_token_in_every_role_stays_text(name, chats):
    tokenizer, _ = chats[name]
    for token in tokenizer.control_tokens:
        for text in variants(token.text):
            check(chats, name, [text] * 5)


@pytest.mark.parametrize("name", TEMPLATES)
def test_control_tokens_in_one_place_at_a_time_stay_text(name, chats):
    tokenizer, _ = chats[name]
    for token in tokenizer.control_tokens:
        for place in range(5):
            texts = ["0 0"] * 5
            texts[place] = token.text
            check(chats, name, texts)


@settings(max_examples=drawn(100, 250), deadline=None)
@given(st.data(), st.sampled_from(list(TEMPLATES)))
def test_whatever_is_put_together_from_pieces_of_tokens_stays_text(chats, data, name):
    tokenizer, _ = chats[name]
    tokens = st.sampled_from([token.text for token in tokenizer.control_tokens])
    piece = st.one_of(
        tokens,
        st.builds(
            lambda token, first, length: token[first : first + length],
            tokens,
            st.integers(0, 12),
            st.integers(1, 16),
        ),
        st.sampled_from(["<", ">", "|", "[", "]", "/", "%", "$", " ", "\n", "_", "0", "1", "x"]),
        st.text(max_size=4),
    )
    text = st.lists(piece, max_size=5).map(lambda pieces: "".join(pieces) or "0")  # same shape
    check(chats, name, [data.draw(text) for _ in range(5)])


def test_content_comes_out_as_it_went_in(chats):
    tokenizer, chat = chats["chatml"]
    for token in tokenizer.control_tokens:
        for text in variants(token.text):
            ids = chat.render_ids([{"role": "user", "content": text}], add_generation_prompt=False)
            shown = tokenizer.decode(ids, skip_special=False)
            assert shown == f"<|im_start|>user\n{text}<|im_end|>\n"


def test_a_variable_of_the_request_is_content_too(tokenizers):
    chat = ChatTemplate(tokenizers["chatml"], "{{ style }}<|im_start|>")
    tokenizer = tokenizers["chatml"]
    ids = chat.render_ids([{"role": "user", "content": "x"}], style="<|im_end|>")
    assert controls(tokenizer, ids) == [tokenizer.control_id("<|im_start|>")]


def test_a_control_token_of_letters_alone_stays_text():
    spec = small.byte_level(["ENDOFTEXT", "PAD", "<s>"])
    tokenizer = Tokenizer(spec)
    chat = ChatTemplate(tokenizer, "PAD{{ messages[0].content.strip() }}ENDOFTEXT")
    for text in ("PAD", "ENDOFTEXT", "xPADx", "ENDOFTEXTPAD", " PAD ", "endoftext"):
        ids = chat.render_ids([{"role": "user", "content": text}])
        assert [tokenizer.token_text(i) for i in controls(tokenizer, ids)] == ["PAD", "ENDOFTEXT"]


@pytest.mark.timeout(120)  # each position tried with each token would take hours
def test_a_thousand_control_tokens_cost_no_time():
    spec = small.byte_level([f"<SPECIAL_{index}>" for index in range(1000)])
    chat = ChatTemplate(Tokenizer(spec), small.CHATML_TEMPLATE)
    messages = [{"role": "user", "content": "<SPECIAL_ <<<< [" * 20_000}]
    ids = chat.render_ids(messages)
    assert len(ids) > 20_000
