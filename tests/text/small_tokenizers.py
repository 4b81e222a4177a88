"""Small tokenizers of the kinds that models use, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = [
    "The capital of France is Paris. Specify a random city, please: Amsterdam, Rome or Oslo.",
    "You are a helpful assistant. What is the weather in Paris? It is sunny and 21 degrees.",
    '{"name": "get_weather", "arguments": {"city": "Paris"}} user system assistant tool',
    "import math\n\ndef area(radius):\n    return math.pi * radius ** 2\n",
    "Äpfel, naïve café, 你好世界, привет мир, 🎉🚀 and so on and so forth.",
] * 4

CHATML_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML_MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "<|im|>"]
LLAMA3_TOKENS = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
]

CHATML_TEMPLATE = """\
{%- macro reply(message) %}
    {%- if message.reasoning_content is defined and message.reasoning_content %}
        {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n' }}
    {%- endif %}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
        {%- set call = call.function if call.function else call %}
        {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
        {{- call.arguments if call.arguments is string else call.arguments | tojson }}
        {{- '}\\n</tool_call>' }}
    {%- endfor %}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
    {{- '# Tools\\n' }}
    {%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + reply(message) + '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

LLAMA3_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('One call at a time.') }}
        {%- endif %}
        {{- message.tool_calls[0].function | tojson(indent=2) }}
    {%- else %}
        {{- message['content'] | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if tools is not none %}
    {%- for tool in tools %}{{ tool.function.name }}: {{ tool.function.description }} {% endfor %}
{%- endif %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

TAG_TEMPLATE = """\
{#- Writes keys of a tool as tags, with characters replaced, as coder models do. #}
{%- for tool in tools or [] %}
    {%- for key, value in tool.function.items() %}
        {%- set tag = key | replace('-', '_') | replace(' ', '_') | replace('$', '') | lower %}
        {{- '<' ~ tag ~ '>' ~ value ~ '</' ~ tag ~ '>' }}
    {%- endfor %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|' + message.role + '|>[' ~ message.name ~ ']' }}
    {{- message.content.replace('%', '') ~ ']>' }}
    {{- '<' ~ message.content[1:-1] ~ '>' ~ message.content | upper ~ '<|im_end|>' }}
{%- endfor %}
"""


def byte_level(
    special: list[str], markers: list[str] = (), *, vocab_size: int = 420
) -> dict[str, Any]:
    """A byte-level BPE tokenizer.json, as Qwen's and Llama-3's are."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(list(special))
    tokenizer.add_tokens(list(markers))
    return json.loads(tokenizer.to_str())


def words(special: list[str] = ()) -> dict[str, Any]:
    """A tokenizer.json of whole words without a decoder, as tutorials make one."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["<unk>", *special], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return json.loads(tokenizer.to_str())


def byte_fallback(*, prepend: str = "normalizer") -> dict[str, Any]:
    """A SentencePiece-style BPE tokenizer.json with <0xNN> tokens and <s>, </s> in its vocabulary.

    prepend: "normalizer" as Llama-2's file does it; "first" and "never" by a metaspace.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    tokenizer.train_from_iterator(CORPUS[:4], trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = sorted(trained["vocab"], key=trained["vocab"].__getitem__)
    vocab = {name: index for index, name in enumerate([*names, *pieces])}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    spec: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": name, "special": True, **flags}
            for index, name in enumerate(names[:3])
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            **trained,
            "vocab": vocab,
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }
    if prepend == "normalizer":
        spec["normalizer"] = {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        }
    else:
        spec["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": "\u2581",
            "prepend_scheme": prepend,
            "split": True,
        }
        if prepend == "never":
            spec["decoder"]["decoders"].pop()
    return spec


def chatml_spec() -> dict[str, Any]:
    return byte_level(CHATML_TOKENS, CHATML_MARKERS)


def write_model_directory(
    path: Path, spec: dict[str, Any], *, template: str | None = None, **config: Any
) -> Path:
    """A model directory as far as text is concerned."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    if template is not None:
        (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    return path
