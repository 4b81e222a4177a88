"""A conversation and the check of its answer.

Promises: `Example.check` accepts `Example.reference()`; a check depends only on the text of an
answer. Does not know: how conversations are drawn, rendered or tokenized.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Message = dict[str, Any]
Tool = dict[str, Any]
CheckKind = Literal[
    "exact", "one_of", "distinct", "range", "number", "contains", "json", "conforms", "tool_calls"
]

_FENCED = re.compile(r"\A```(?:json)?\n(.*)\n```\Z", re.DOTALL)
_CALL = re.compile(r"<tool_call>\n?(.*?)\n?</tool_call>", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def final_text(answer: str) -> str:
    """Return the part of an answer after its reasoning, without surrounding white space."""
    return answer.rpartition("</think>")[2].removesuffix("<|im_end|>").strip()


def tool_call_text(calls: Iterable[dict[str, Any]]) -> str:
    """Return tool calls as the model writes them: a JSON object between markers for each call."""
    bodies = (json.dumps(call, ensure_ascii=False) for call in calls)
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _NOT_JSON


_NOT_JSON = object()


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a JSON value is valid for a schema of the small subset that the generator uses."""
    if "enum" in schema:
        return any(_canonical(value) == _canonical(choice) for choice in schema["enum"])
    if "type" not in schema:
        return True
    wanted = schema["type"]
    if isinstance(value, bool) and wanted != "boolean":
        return False
    if not isinstance(value, _JSON_TYPES[wanted]):
        return False
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    if isinstance(value, list):
        count = len(value)
        if not schema.get("minItems", 0) <= count <= schema.get("maxItems", count):
            return False
        return all(conforms(item, schema["items"]) for item in value)
    if isinstance(value, dict):
        known = schema.get("properties", {})
        if any(key not in value for key in schema.get("required", ())) or set(value) - set(known):
            return False
        return all(conforms(item, known[key]) for key, item in value.items())
    return True


def _plain(text: str) -> str:
    return text.strip().removesuffix(".").strip().casefold()


@dataclass(frozen=True)
class Check:
    """The check of an answer.

    `expected` by kind: exact: the text. one_of: allowed texts (case and a final full stop are
    free). distinct: (allowed items, number of them, separator). range: (minimum, maximum) of a
    whole number. number: the last number of the answer. contains: texts that must all occur. json:
    the value. conforms: a schema. tool_calls: list of {"name", "arguments"}. `fenced`: json and
    conforms need a markdown fence around the value; otherwise a fence is an error.
    """

    kind: CheckKind
    expected: Any
    fenced: bool = False

    def accepts(self, answer: str) -> bool:
        """Whether the answer, with or without reasoning, is correct."""
        text = final_text(answer)
        match self.kind:
            case "exact":
                return text == str(self.expected).strip()
            case "one_of":
                return _plain(text) in {_plain(choice) for choice in self.expected}
            case "distinct":
                allowed, count, separator = self.expected
                items = [_plain(item) for item in text.split(separator)]
                known = {_plain(item) for item in allowed}
                return len(items) == count == len(set(items)) and set(items) <= known
            case "range":
                low, high = self.expected
                return re.fullmatch(r"-?\d+", text) is not None and low <= int(text) <= high
            case "number":
                numbers = _NUMBER.findall(text)
                return bool(numbers) and float(numbers[-1]) == float(self.expected)
            case "contains":
                return all(part in text for part in self.expected)
            case "json" | "conforms":
                return self._accepts_json(text)
            case "tool_calls":
                calls = [_loads(body) for body in _CALL.findall(text)]
                if _NOT_JSON in calls or _CALL.sub("", text).strip():
                    return False
                return _canonical(calls) == _canonical(self.expected)

    def _accepts_json(self, text: str) -> bool:
        fence = _FENCED.match(text)
        if (fence is not None) != self.fenced:
            return False
        value = _loads(fence.group(1) if fence else text)
        if value is _NOT_JSON:
            return False
        if self.kind == "conforms":
            return conforms(value, self.expected)
        return _canonical(value) == _canonical(self.expected)


@dataclass(frozen=True)
class ChatRequest:
    """A request to a model: the conversation so far, the tools, and whether thinking is on."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    enable_thinking: bool = True


@dataclass(frozen=True)
class Example:
    """A conversation that ends with the assistant's answer, and the check of that answer."""

    family: str
    messages: tuple[Message, ...]
    check: Check
    tools: tuple[Tool, ...] = ()
    enable_thinking: bool = True

    @property
    def request(self) -> ChatRequest:
        """The conversation without its last answer."""
        return ChatRequest(self.messages[:-1], self.tools, self.enable_thinking)

    def reference(self) -> str:
        """Return the correct answer as the model would write it, without reasoning."""
        last = self.messages[-1]
        calls = last.get("tool_calls")
        if calls:
            return tool_call_text(call["function"] for call in calls)
        return str(last["content"])
