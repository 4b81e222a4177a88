"""Messages reach a template in the form it reads: transformers' prompts, and nothing of them lost."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from eyas.text import ChatTemplate
from eyas.text.renderers import BoundedTemplate
from tests.text import small_tokenizers as small

USER = {"role": "user", "content": "Hi"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
OBJECT_CALL = {**CALL, "function": {"name": "f", "arguments": {"x": 1}}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "5", "tool_call_id": "1"}

SPLITS_BY_MEMBERSHIP = """\
{%- for message in messages %}
    {%- if message.role == 'user' and not message.content.startswith('<tool_response>') %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- else %}
        {%- set answer = message.content %}
        {%- set thoughts = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set thoughts = message.reasoning_content %}
        {%- elif '</think>' in message.content %}
            {%- set answer = message.content.split('</think>')[-1].lstrip('\\n') %}
            {%- set thoughts = message.content.split('</think>')[0].split('<think>')[-1] %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.last %}{{- '<think>' + thoughts.strip('\\n') + '</think>' }}{% endif %}
        {{- answer + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
"""
"""In the shape of the first Qwen3 template: it never asks whether content is a string."""

TAKES_TEXT_ALONE = """\
{%- for message in messages %}
    {%- if message['role'] == 'user' %}{{ 'U:' + message['content'] }}{% endif %}
    {%- if message['role'] == 'assistant' and message['content'] is none %}
        {%- for call in message['tool_calls'] %}
            {{- 'C:' + call['function']['name'] + '\\n' + call['function']['arguments'] }}
        {%- endfor %}
    {%- endif %}
    {%- if message['role'] == 'assistant' and message['content'] is not none %}
        {%- set content = message['content'] %}
        {%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
        {{- 'A:' + content }}
    {%- endif %}
    {%- if message['role'] == 'tool' %}{{ 'R:' + message['content'] }}{% endif %}
{%- endfor %}
"""
"""In the shape of DeepSeek R1's: a call is an answer whose content is none, its arguments are text."""


def each(body: str) -> str:
    return "{% for m in messages %}" + body + "{% endfor %}"


PARTS = "{% for p in LOOP %}{{ p.text }}{% endfor %}"
LOOKING_INTO_PARTS = {
    "attribute": each(PARTS.replace("LOOP", "m.content")),
    "item": each(PARTS.replace("LOOP", "m['content']").replace("p.text", "p['text']")),
    "get": each(PARTS.replace("LOOP", "m.get('content')").replace("p.text", "p.get('text')")),
    "set": each("{% set c = m.content %}{% set d = c %}" + PARTS.replace("LOOP", "d")),
    "namespace": "{% set ns = namespace(c='') %}"
    + each("{% set ns.c = m.content %}" + PARTS.replace("LOOP", "ns.c")),
    "macro": "{% macro show(c) %}"
    + PARTS.replace("LOOP", "c")
    + "{% endmacro %}"
    + each("{{ show(m.content) }}"),
    "keyword of a macro": "{% macro show(x, c) %}"
    + PARTS.replace("LOOP", "c")
    + "{% endmacro %}"
    + each("{{ show(c=m.content, x=1) }}"),
    "filters": each(PARTS.replace("LOOP", "m.content | selectattr('type', 'equalto', 'text')")),
    "no loop": each("{{ m.content | map(attribute='text') | join }}"),
    "the first": each("{{ m.content[0].text }}"),
    "either": each(PARTS.replace("LOOP", "(m.content if m.role else [])")),
}
TAKING_STRINGS = {
    "membership": each("{% if 'Sun' in m.content %}Y{% endif %}{{ m.content }}"),
    "no membership": each("{% if 'Sun' not in m['content'] %}Y{% endif %}{{ m['content'] }}"),
    "membership of what was set": each("{% set c = m.content %}{{ 'S' in c }}{{ c }}"),
    "lines": each("{% for line in m.content.split('\\n') %}{{ line }}{% endfor %}"),
    "characters": each("{% for c in m.content %}{{ c.upper() }}{% endfor %}"),
    "asked": each(
        "{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
    ),
    "asked of what was set": each(
        "{% set c = m.content %}{% if c is not string %}"
        "{% for p in c %}{{ p.text }}{% endfor %}{% else %}{{ c }}{% endif %}"
    ),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    directory = small.write_model_directory(tmp_path_factory.mktemp("text"), small.chatml_spec())
    return PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))


def texts(
    tokenizers, reference, source: str, messages: list[Any], **options: Any
) -> tuple[str, str]:
    """What eyas makes of messages, and what transformers does."""
    ids = ChatTemplate(tokenizers["chatml"], source).render_ids(messages, **options)
    expected = reference.apply_chat_template(messages, chat_template=source, tokenize=False)
    return tokenizers["chatml"].decode(ids, skip_special=False), expected


@pytest.mark.parametrize("name", LOOKING_INTO_PARTS)
def test_a_template_that_looks_into_parts_gets_parts(name: str, tokenizers):
    source = LOOKING_INTO_PARTS[name]
    assert BoundedTemplate(source).uses.wants_parts
    ids = ChatTemplate(tokenizers["chatml"], source).render_ids([USER])
    assert tokenizers["chatml"].decode(ids) == "Hi"


@pytest.mark.parametrize("name", TAKING_STRINGS)
def test_a_template_that_takes_strings_gets_strings(name: str, tokenizers, reference):
    source = TAKING_STRINGS[name]
    assert not BoundedTemplate(source).uses.wants_parts
    messages = [{"role": "user", "content": "Sunny"}]
    found, expected = texts(tokenizers, reference, source, messages)
    assert found == expected


def test_content_may_be_searched_by_a_template_that_never_asks_what_it_is(tokenizers, reference):
    answer = {"role": "assistant", "content": "Hello"}
    for messages in ([USER], [USER, answer, USER], [USER, answer]):
        found, expected = texts(tokenizers, reference, SPLITS_BY_MEMBERSHIP, messages)
        assert found == expected


@pytest.mark.parametrize("source", [SPLITS_BY_MEMBERSHIP, TAKES_TEXT_ALONE])
@pytest.mark.parametrize(
    "content", ["<think>\nlong secret\n</think>\n\nok", "secret</think>ok", "<think>a</think>b"]
)
def test_old_reasoning_leaves_the_prompt_as_the_template_says(
    source: str, content: str, tokenizers, reference
):
    answer = {"role": "assistant", "content": content}
    found, expected = texts(tokenizers, reference, source, [USER, answer, USER])
    assert found == expected and "secret" not in found
    found, expected = texts(tokenizers, reference, source, [USER, answer])
    assert found == expected


def test_a_template_that_knows_no_reasoning_shows_content_as_it_is(tokenizers, reference):
    source = each("{{ m.content }}") + "{% if quiet %}<think></think>{% endif %}"
    answer = {"role": "assistant", "content": "<think>a</think>b"}
    found, expected = texts(tokenizers, reference, source, [USER, answer])
    assert found == expected == "Hi<think>a</think>b"


def test_a_field_that_is_none_is_absent(tokenizers, reference):
    source = each(
        "{% if 'name' in m %}[{{ m.name }}]{% endif %}{{ 'tool_calls' in m }}{{ m.content }}"
    )
    as_dumped = {"name": None, "tool_calls": None, "refusal": None, "audio": None}
    messages = [{**USER, **as_dumped}, {"role": "assistant", "content": "ok", **as_dumped}]
    found, expected = texts(tokenizers, reference, source, messages)
    assert found == expected == "FalseHiFalseok"


def test_a_call_without_content_is_shown_by_a_template_that_asks_for_none(tokenizers):
    chat = ChatTemplate(tokenizers["chatml"], TAKES_TEXT_ALONE)
    absent = {key: value for key, value in CALLING.items() if key != "content"}
    for calling in (CALLING, absent, {**CALLING, "tool_calls": [{**CALL, "index": None}]}):
        ids = chat.render_ids([USER, calling, RESULT])
        assert tokenizers["chatml"].decode(ids) == 'U:HiC:f\n{"x":1}R:5'
    with_object = {**CALLING, "tool_calls": [OBJECT_CALL]}
    ids = chat.render_ids([USER, with_object, RESULT])
    assert tokenizers["chatml"].decode(ids) == 'U:HiC:f\n{"x": 1}R:5'
    ids = chat.render_ids([USER, {"role": "assistant", "content": None}])
    assert tokenizers["chatml"].decode(ids) == "U:HiA:"


def test_a_message_without_content_has_none_where_the_template_asks(tokenizers, reference):
    source = each("{{ m.role }}{% if 'content' in m %}[{{ m.content }}]{% endif %}")
    defined = each("{{ m.role }}{% if m.content is defined %}[{{ m.content }}]{% endif %}")
    for each_source in (source, defined):
        found, expected = texts(
            tokenizers, reference, each_source, [USER, {"role": "assistant", "tool_calls": []}]
        )
        assert found == expected == "user[Hi]assistant"
    plain = ChatTemplate(tokenizers["chatml"], each("{{ m.content + '.' }}"))
    assert tokenizers["chatml"].decode(plain.render_ids([{"role": "assistant"}])) == "."


ARGUMENTS = {
    "concatenated": ("{{ 'x' + c.function.arguments }}", "text"),
    "joined": ("{{ 'x' ~ c.function.arguments }}", "text"),
    "put out": ("{{ c.function.arguments }}", "text"),
    "through a name": ("{% set f = c.function %}{% set a = f.arguments %}{{ 'x' + a }}", "text"),
    "written": ("{{ 'x' + c.function.arguments | tojson }}", "object"),
    "written with its call": ("{{ c | tojson }}", "object"),
    "walked through": (
        "{% for k, v in c.function.arguments.items() %}{{ v }}{% endfor %}",
        "object",
    ),
    "items": ("{% for k, v in c.function.arguments | items %}{{ v }}{% endfor %}", "object"),
    "asked": (
        "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}",
        "given",
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_what_the_template_can_read(name: str, tokenizers):
    body, kind = ARGUMENTS[name]
    source = each("{% for c in m.tool_calls or [] %}" + body + "{% endfor %}")
    assert BoundedTemplate(source).uses.arguments == kind
    chat = ChatTemplate(tokenizers["chatml"], source)
    shown = {
        tokenizers["chatml"].decode(chat.render_ids([{**CALLING, "tool_calls": [call]}]))
        for call in (CALL, OBJECT_CALL)
    }
    without_space = {text.replace(": ", ":") for text in shown}
    assert len(without_space) == 1 and "1" in without_space.pop()


def test_arguments_that_are_no_object_stay_text(tokenizers):
    source = each("{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}")
    chat = ChatTemplate(tokenizers["chatml"], source)
    for arguments, shown in (("{oops", '"{oops"'), ("[1]", '"[1]"'), ("[" * 9999, None)):
        call = {**CALL, "function": {"name": "f", "arguments": arguments}}
        ids = chat.render_ids([{**CALLING, "tool_calls": [call]}])
        assert tokenizers["chatml"].decode(ids) == (shown or f'"{arguments}"')


@pytest.mark.parametrize("source", [SPLITS_BY_MEMBERSHIP, TAKES_TEXT_ALONE, small.CHATML_TEMPLATE])
def test_messages_are_normal_once_they_were_made_so(source: str, tokenizers):
    chat = ChatTemplate(tokenizers["chatml"], source)
    answer = {"role": "assistant", "content": "<think>a</think>\n\nb</think>c", "name": None}
    once = chat.normalize([USER, answer, CALLING, RESULT, {"role": "assistant"}])
    assert chat.normalize(once) == once


def test_ids_of_calls_get_the_length_that_the_template_compares_them_with(tokenizers):
    strict = each(
        "{% if m.tool_call_id and m['tool_call_id']|length != 9 %}{{ raise_exception('9') }}{% endif %}"
        "{% for c in m.tool_calls or [] %}{% if not c.id is defined or c.id|length != 9 %}"
        "{{ raise_exception('9') }}{% endif %}{{ c.id }}{% endfor %}{{ m.tool_call_id }}"
    )
    plain = each(
        "{% if m.tool_call_id and m.tool_call_id|length != 0 %}{% endif %}"
        "{% for c in m.tool_calls or [] %}{{ c.id }}{% endfor %}{{ m.tool_call_id }}"
    )
    chat, other = (ChatTemplate(tokenizers["chatml"], source) for source in (strict, plain))
    for given in ("call_0123456789abcdef", "x", "a-b-c-d-e", "abcd56789"):
        messages = [{**CALLING, "tool_calls": [{**CALL, "id": given}]}]
        messages.append({**RESULT, "tool_call_id": given})
        [text] = chat.render(messages)
        assert text[:9] == text[9:] and text.isalnum() and len(text) == 18
        assert (given in text) == (given == "abcd56789")
        assert other.render(messages) == [2 * given]
        assert chat.normalize(chat.normalize(messages)) == chat.normalize(messages)


def test_ids_of_calls_name_their_functions_where_the_template_writes_them(tokenizers):
    """As Kimi-K2's, which has no other place for the name."""
    kimi = each(
        "{% for c in m.tool_calls or [] %}<|tool_call_begin|>{{ c.id }} {% endfor %}"
        "{{ m.tool_call_id }}"
    )
    chat = ChatTemplate(tokenizers["chatml"], kimi)
    other = {**CALL, "id": "call_b", "function": {**CALL["function"], "name": "other"}}
    messages = [
        {**CALLING, "tool_calls": [{**CALL, "id": "call_a"}, other]},
        {**RESULT, "tool_call_id": "call_b"},
        {**RESULT, "tool_call_id": "call_a"},
        {**CALLING, "tool_calls": [{**CALL, "id": "call_c"}]},
        {**RESULT, "tool_call_id": "call_c"},
    ]
    name = CALL["function"]["name"]
    normal = chat.normalize(messages)
    assert [call["id"] for call in normal[0]["tool_calls"]] == [
        f"functions.{name}:0",
        "functions.other:1",
    ]
    assert [m.get("tool_call_id") for m in normal[1:3]] == [
        "functions.other:1",
        f"functions.{name}:0",
    ]
    assert normal[4]["tool_call_id"] == normal[3]["tool_calls"][0]["id"] == f"functions.{name}:2"
    assert chat.normalize(normal) == normal
