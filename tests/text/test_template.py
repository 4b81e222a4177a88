"""Chat templates give transformers' ids for harmless content, and errors that help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from eyas.core import RequestError
from eyas.text import ChatTemplate, Tokenizer
from eyas.text.template import require_template
from tests.text import small_tokenizers as small

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    },
}
CALL = {
    "type": "function",
    "id": "call_1",
    "function": {"name": "get_weather", "arguments": {"city": "Paris"}},
}
CONVERSATIONS = {
    "one": [{"role": "user", "content": "Specify a random city. 1 < 2, [x] > y."}],
    "system": [
        {"role": "system", "content": "  You are helpful. "},
        {"role": "user", "content": "你好 🎉\n\n"},
        {"role": "assistant", "content": "Hello <b>there</b>", "reasoning_content": "short"},
        {"role": "user", "content": ""},
    ],
    "tools": [
        {"role": "user", "content": "Weather in Paris?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"degrees": 21}', "tool_call_id": "call_1"},
    ],
}
FAMILIES = {
    "chatml": (small.chatml_spec(), small.CHATML_TEMPLATE, {"eos_token": "<|im_end|>"}),
    "llama3": (
        small.byte_level(small.LLAMA3_TOKENS),
        small.LLAMA3_TEMPLATE,
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("with_tools", [False, True])
@pytest.mark.parametrize("prompt", [False, True])
def test_harmless_conversations_have_the_ids_of_transformers(
    tmp_path: Path, family: str, name: str, with_tools: bool, prompt: bool
):
    spec, template, config = FAMILIES[family]
    directory = small.write_model_directory(tmp_path, spec, template=template, **config)
    reference = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"), **config)
    tools = [WEATHER] if with_tools else None
    expected = reference.apply_chat_template(
        CONVERSATIONS[name],
        tools=tools,
        chat_template=template,
        add_generation_prompt=prompt,
        tokenize=True,
        return_dict=False,
    )
    chat = ChatTemplate.from_directory(directory)
    assert chat is not None
    assert chat.render_ids(CONVERSATIONS[name], tools, add_generation_prompt=prompt) == expected


def test_keyword_arguments_reach_the_template(tokenizers):
    chat = ChatTemplate(tokenizers["chatml"], small.CHATML_TEMPLATE)
    messages = CONVERSATIONS["one"]
    plain = chat.render_ids(messages)
    silent = chat.render_ids(messages, enable_thinking=False)
    text = tokenizers["chatml"].decode(silent[len(plain) :], skip_special=False)
    assert text == "<think>\n\n</think>\n\n"
    assert chat.mentions("enable_thinking") and not chat.mentions("thinking_budget")
    assert not chat.mentions("enable_") and not chat.mentions("thinking enable_thinking")


def test_parts_of_content_are_joined_or_kept_as_the_template_wants(tokenizers):
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "world"}]
    tokenizer = tokenizers["chatml"]
    joined = ChatTemplate(tokenizer, "{% for m in messages %}{{ m.content }}{% endfor %}")
    kept = ChatTemplate(
        tokenizer,
        "{% for m in messages %}{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endfor %}",
    )
    messages = [{"role": "user", "content": parts}, {"role": "user", "content": "!"}]
    assert tokenizer.decode(joined.render_ids(messages)) == "Hello\nworld!"
    assert tokenizer.decode(kept.render_ids(messages)) == "[Hello][world][!]"


def test_a_message_without_parts_is_continued(tokenizers):
    tokenizer = tokenizers["chatml"]
    kept = ChatTemplate(
        tokenizer,
        "{% for m in messages %}{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endfor %}",
    )
    for content, shown in (([], "[!]["), ("", "[!]["), (None, "[!]["), ("a", "[!][a")):
        messages = [{"role": "user", "content": "!"}, {"role": "assistant", "content": content}]
        ids = kept.render_ids(messages, add_generation_prompt=False, continue_final_message=True)
        assert tokenizer.decode(ids) == shown


@pytest.mark.parametrize(
    "named",
    [
        [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}],
        {"default": "plain", "tool_use": "tools"},
    ],
    ids=["list", "object"],
)
def test_named_templates_are_told_apart(named: object, tmp_path: Path):
    small.write_model_directory(tmp_path, small.chatml_spec(), chat_template=named)
    chat = ChatTemplate.from_directory(tmp_path)
    assert chat is not None
    tokenizer = Tokenizer.from_directory(tmp_path)
    messages = CONVERSATIONS["one"]
    assert tokenizer.decode(chat.render_ids(messages)) == "plain"
    assert tokenizer.decode(chat.render_ids(messages, [WEATHER])) == "tools"
    assert chat.source == "plain\ntools"


def test_a_model_of_images_has_its_template_in_a_file_of_its_own(tmp_path: Path):
    small.write_model_directory(tmp_path, small.chatml_spec())
    (tmp_path / "chat_template.json").write_text('{"chat_template": "of images"}')
    chat = ChatTemplate.from_directory(tmp_path)
    assert chat is not None and chat.source == "of images"
    small.write_model_directory(tmp_path, small.chatml_spec(), chat_template="of the tokenizer")
    chat = ChatTemplate.from_directory(tmp_path)
    assert chat is not None and chat.source == "of the tokenizer"


@pytest.mark.parametrize("inline", [None, "inline", [{"name": "default", "template": "inline"}]])
def test_templates_in_files_of_their_own_come_first(tmp_path: Path, inline: object):
    config = {} if inline is None else {"chat_template": inline}
    small.write_model_directory(tmp_path, small.chatml_spec(), template="plain", **config)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools", "utf-8")
    chat, tokenizer = ChatTemplate.from_directory(tmp_path), Tokenizer.from_directory(tmp_path)
    assert chat is not None
    assert tokenizer.decode(chat.render_ids(CONVERSATIONS["one"])) == "plain"
    assert tokenizer.decode(chat.render_ids(CONVERSATIONS["one"], [WEATHER])) == "tools"
    (tmp_path / "chat_template.jinja").unlink()
    chat = ChatTemplate.from_directory(tmp_path)
    assert chat is not None
    shown = "tools" if inline is None else "inline"
    assert tokenizer.decode(chat.render_ids(CONVERSATIONS["one"])) == shown


def test_white_space_beside_a_stripping_token_belongs_to_it():
    spec = small.chatml_spec()
    for token in spec["added_tokens"]:
        token["rstrip"] = token["content"] == "<|im_end|>"
        token["lstrip"] = token["content"] == "<|im_start|>"
    template = "a \n<|im_start|> b <|im_end|> \n c<|im_end|>"
    reference = PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(spec))
    )
    expected = reference.apply_chat_template(
        CONVERSATIONS["one"], chat_template=template, tokenize=True, return_dict=False
    )
    assert ChatTemplate(Tokenizer(spec), template).render_ids(CONVERSATIONS["one"]) == expected


def test_a_model_without_a_template_says_what_to_do(tmp_path: Path):
    small.write_model_directory(tmp_path, small.chatml_spec())
    with pytest.raises(RequestError, match=r"no chat template.*/v1/completions"):
        require_template(ChatTemplate.from_directory(tmp_path))


def test_a_template_that_cannot_be_compiled_is_named(tmp_path: Path):
    small.write_model_directory(tmp_path, small.chatml_spec(), template="{% for %}")
    with pytest.raises(ValueError, match="chat template cannot be compiled"):
        ChatTemplate.from_directory(tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ 'x' * (messages | length * 100000000) }}",
        "{{ (messages | length + 9) ** 99999 ** 99 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{{ messages }}{% endfor %}"
        "{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_a_misbehaving_template_is_a_request_error(source, tokenizers, monkeypatch):
    monkeypatch.setattr("eyas.text.renderers.DEADLINE_SECONDS", 0.2)
    chat = ChatTemplate(tokenizers["chatml"], source)
    with pytest.raises(RequestError, match="chat template"):
        chat.render_ids(CONVERSATIONS["one"])


def test_a_template_that_counts_without_end_is_stopped(tokenizers, monkeypatch):
    monkeypatch.setattr("eyas.text.renderers.DEADLINE_SECONDS", 0.2)
    source = (
        "{% set n = namespace(x=0) %}{% for i in range(99999) %}{% for j in range(99999) %}"
        "{% set n.x = n.x + messages | length %}{% endfor %}{% endfor %}"
    )
    with pytest.raises(RequestError, match="too long to render"):
        ChatTemplate(tokenizers["chatml"], source).render_ids(CONVERSATIONS["one"])


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "wizard", "content": "x"}],
        [{"content": "x"}],
        [{"role": "<|im_end|>", "content": "x"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": ["x"]}],
    ],
)
def test_messages_of_another_shape_are_refused(messages, tokenizers):
    chat = ChatTemplate(tokenizers["chatml"], small.CHATML_TEMPLATE)
    with pytest.raises(RequestError, match=r"messages\[0\]"):
        chat.render_ids(messages)


def test_content_nested_too_deep_is_refused(tokenizers):
    deep: object = "x"
    for _ in range(5000):
        deep = [deep]
    chat = ChatTemplate(tokenizers["chatml"], small.CHATML_TEMPLATE)
    with pytest.raises(RequestError, match=r"^messages: .* deep") as refused:
        chat.render_ids([{"role": "user", "content": "x", "extra": deep}])
    assert refused.value.param == "messages"
    with pytest.raises(RequestError, match=r"^tools: .* deep") as refused:
        chat.render_ids([{"role": "user", "content": "x"}], [{"type": "function", "extra": deep}])
    assert refused.value.param == "tools"


def test_options_keep_names_and_values_that_are_parts_of_control_tokens():
    tokens = [*small.CHATML_TOKENS, "<think>", "<|vision_start|>", "end"]
    tokenizer = Tokenizer(small.byte_level(tokens))
    source = (
        "{% if think %}thinks{% endif %} {{ 'yes' if vision == 'on' else 'no' }} "
        '{{ {"start": 1}[vision] }} {{ "<" ~ shown ~ ">" }} {{ "end" == shown }}'
    )
    chat = ChatTemplate(tokenizer, source)

    def rendered(**options: object) -> str:
        return tokenizer.decode(chat.render_ids([], **options), skip_special=False)

    assert rendered(think=True, vision="on") == "thinks yes  <> False"
    assert rendered(vision="start") == " no 1 <> False"
    assert rendered(vision="vision_start") == " no  <> False"
    for shown in ("think", "end", "|vision_start|"):  # no words of the template, or whole tokens
        pieces = chat.render([], shown=shown)
        assert pieces == [f" no  <{shown}> False"]
