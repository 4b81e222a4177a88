"""The requests of a soak test, and the comparison of answers.

Promises: an answer depends only on its request, which has a seed. Does not know: servers, time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NUM_WORKLOADS = 32

_QUESTIONS = (
    "What is the capital of France?",
    "Specify a random city.",
    "Anna has 12 apples and gives 5 to Ben. How many are left?",
    "Write three short sentences about the sea.",
    "Copy this text: the quick brown fox jumps over the lazy dog, again and again and again.",
    "Is this review positive or negative? I love this lamp, it works perfectly.",
    "Hello, how are you today? 你好 🎉",
    "Give me a JSON object with the fields name and age for Tom, who is 31 years old.",
)
_SYSTEMS = (None, "You are a helpful assistant.", "Answer in one short sentence.")


@dataclass(frozen=True)
class Workload:
    """A request, without `stream`."""

    name: str
    path: str
    body: dict[str, Any]


def drawn_workloads(seed: int) -> list[Workload]:
    """Return a mixture of chats and completions: greedy and sampled, with reasoning, schemas,
    patterns, tools, stop strings, several choices and log-probabilities.
    """
    draw = random.Random(seed)
    return [_drawn(draw, index) for index in range(NUM_WORKLOADS)]


def _drawn(draw: random.Random, index: int) -> Workload:
    question = _QUESTIONS[index % len(_QUESTIONS)]
    body: dict[str, Any] = {
        "seed": draw.randrange(2**53),
        "temperature": draw.choice([0, 0.7, 1.0, 1.3]),
        "max_tokens": draw.choice([4, 16, 48, 120]),
        "n": draw.choice([1, 1, 1, 2]),
    }
    if draw.random() < 0.25:
        body |= {"stop": draw.choice([[". "], ["e ", "\n"], ["zzz"]])}
    if draw.random() < 0.25:
        body |= {"frequency_penalty": 0.5, "repetition_penalty": 1.1}
    if draw.random() < 0.25:
        body |= {"ignore_eos": True, "top_p": 0.9, "top_k": 40}
    if index % 4 == 3:
        body |= {"prompt": question, "logprobs": draw.choice([None, 2])}
        return Workload(f"completion {index}", "/v1/completions", body)
    system = draw.choice(_SYSTEMS)
    messages = [{"role": "user", "content": question}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    thinks = draw.random() < 0.5
    body |= {
        "messages": messages,
        "logprobs": draw.random() < 0.25,
        "chat_template_kwargs": {"enable_thinking": thinks},
    }
    if thinks and draw.random() < 0.5:
        body |= {"stop": ["\n\n\n", "zzz"]}
    if (form := _FORMS[index % len(_FORMS)]) and not body.get("ignore_eos"):
        body |= form
    return Workload(f"chat {index}", "/v1/chat/completions", body)


_FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"regex": "(Paris|Amsterdam)"},
    {},
    {
        "json_schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 20},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
            },
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    },
    {
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string", "maxLength": 20}},
                        "required": ["city"],
                    },
                },
            }
        ]
    },
)

_ASKED = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
HOSTILE: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[1, 2]",
    b"\xff\xfe{}",
    b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    *(
        json.dumps({**_ASKED, **fields}).encode()
        for fields in (
            {"colour": "red"},
            {"temperature": "hot"},
            {"max_tokens": -1},
            {"messages": []},
            {"messages": [{"role": "user"}]},
            {"messages": [{"role": "user", "content": "word " * 20_000}]},
            {"logit_bias": {"99999999": 1}},
            {"regex": "(Paris|Amsterdam}"},
            {"regex": "a(?=b)"},
            {"regex": "\ud800"},
            {"json_schema": {"type": "strin"}},
            {"json_schema": {"properties": {"\ud800": {}}}},
            {"json_schema": {"allOf": [{"not": {"const": k}} for k in range(3000)]}},
            {"ebnf": "root ::= root"},
            {"model": "another"},
            {"n": 100_000},
        )
    ),
)
"""Chat request bodies that must be refused with a status from 400 to 499."""


def answer_of(objects: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the part of an answer to compare, from its streamed objects or from the whole response."""
    choices: dict[int, dict[str, Any]] = {}
    usage: dict[str, Any] = {}
    for value in objects:
        usage = value.get("usage") or usage
        for choice in value["choices"]:
            known = choices.setdefault(
                choice["index"],
                {"text": "", "reasoning": "", "calls": {}, "logprobs": [], "finish_reason": None},
            )
            part = choice.get("delta") or choice.get("message") or choice
            known["text"] += part.get("content") or part.get("text") or ""
            known["reasoning"] += part.get("reasoning_content") or ""
            for place, call in enumerate(part.get("tool_calls") or ()):
                told = known["calls"].setdefault(call.get("index", place), ["", ""])
                told[0] += call["function"].get("name") or ""
                told[1] += call["function"].get("arguments") or ""
            known["finish_reason"] = choice["finish_reason"] or known["finish_reason"]
            known["logprobs"] += _logprobs_of(choice.get("logprobs") or {})
    counted: dict[str, Any] = {
        name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")
    }
    counted["reasoning_tokens"] = (usage.get("completion_tokens_details") or {}).get(
        "reasoning_tokens"
    )
    return {"choices": [choices[index] for index in sorted(choices)], **counted}


def _logprobs_of(logprobs: dict[str, Any]) -> list[list[Any]]:
    if "content" in logprobs:
        return [[entry["token"], entry["logprob"]] for entry in logprobs["content"] or ()]
    pairs = zip(logprobs.get("tokens", ()), logprobs.get("token_logprobs", ()), strict=True)
    return [list(pair) for pair in pairs]
