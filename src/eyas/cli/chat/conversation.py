"""A conversation with a model: messages, constraint, tools, and the answers.

Promises: an answer that fails, or that is stopped before it has content, leaves the conversation as it
was.
Does not know: terminals, engines, HTTP.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from eyas.core import DraftFate, SamplingParams
from eyas.dialect import Event, tool_specs
from eyas.outputs import ToolCall
from eyas.typed import JsonSchema, Regex

Constraint = JsonSchema | Regex


class TreeNode(NamedTuple):
    """A node of a draft tree; the fields are those of `eyas.core.DraftNode`."""

    text: str
    parent: int
    source: str
    score: float | None
    fate: DraftFate


class StepTree(NamedTuple):
    """The draft tree of a step, and the text that the step added to the answer."""

    nodes: list[TreeNode]
    added: str


@dataclass(slots=True)
class Turn:
    """Facts about an answer. num_tokens, num_steps, num_accepted: tokens of the answer, its steps,
    and the accepted drafted tokens; None if the server does not report them. seconds, first_after:
    time from the question to the end and to the first piece. finish_reason: None if the user stopped
    the answer. error: why it failed. trees: of the first steps, if the model reports them.
    """

    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    num_tokens: int | None = None
    num_steps: int | None = None
    num_accepted: int | None = None
    seconds: float = 0.0
    first_after: float | None = None
    finish_reason: str | None = None
    error: str | None = None
    trees: list[StepTree] = field(default_factory=list)

    def absorb(self, event: Event) -> None:
        """Append a piece of the answer."""
        match event.kind:
            case "content":
                self.content += event.text
            case "tool_call":
                self.tool_calls.append(ToolCall(event.name, event.text))
            case "arguments":
                self.tool_calls[event.index].arguments += event.text


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a model. changes: sampling parameters that differ from the model's."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    constraint: Constraint | None
    changes: Mapping[str, Any]


class ChatModel(Protocol):
    """A model that answers a conversation."""

    @property
    def description(self) -> str:
        """A description of the model in one line."""
        ...

    def check(self, constraint: Constraint) -> None:
        """Raise RequestError or ValueError if the constraint cannot be enforced."""
        ...

    def answer(self, question: Question, turn: Turn) -> Iterator[Event]:
        """Yield the pieces of an answer, and set the counts, `trees`, `finish_reason` and `error` of
        `turn`.

        Ctrl-C ends it, either by an exception or by an end without a finish reason; closing the
        iterator ends it too. RequestError or ValueError: the question cannot be answered.
        """
        ...

    def close(self) -> None: ...


class Conversation:
    """A conversation with one model."""

    def __init__(
        self,
        model: ChatModel,
        changes: Mapping[str, Any],
        *,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.model = model
        self.system = system
        self.tools = tools
        self.turn: Turn | None = None
        self._given = dict(changes)
        self._changes = dict(changes)
        self._messages: list[dict[str, Any]] = []
        self._constraint: Constraint | None = None
        self._num_calls = 0

    def say(self, text: str) -> None:
        """Add a message of the user."""
        self._messages.append({"role": "user", "content": text})

    def give_result(self, text: str) -> None:
        """Add the result of the next tool call without one. ValueError: there is none."""
        called = [call for message in self._messages for call in message.get("tool_calls", ())]
        done = {message.get("tool_call_id") for message in self._messages}
        waiting = [call["id"] for call in called if call["id"] not in done]
        if not waiting:
            raise ValueError("/result: the last answer has not called a tool")
        self._messages.append({"role": "tool", "tool_call_id": waiting[0], "content": text})

    def reset(self) -> None:
        """Delete the messages, but not the system message, the constraint and the tools."""
        self._messages.clear()
        self.turn = None

    def constrain(self, constraint: Constraint | None) -> None:
        """Set the constraint of the next answers. RequestError or ValueError: it cannot be
        enforced."""
        if constraint is not None:
            self.model.check(constraint)
        self._constraint = constraint

    def set_temperature(self, temperature: float | None) -> None:
        """Set the temperature of the next answers; None is the initial one. ValueError: it is out of
        range."""
        changes = {name: v for name, v in self._changes.items() if name != "temperature"}
        if temperature is not None:
            changes["temperature"] = temperature
        elif "temperature" in self._given:
            changes["temperature"] = self._given["temperature"]
        SamplingParams(**changes)
        self._changes = changes

    def answer(self) -> Generator[Event]:
        """Yield the pieces of the answer to the last message. Closing the iterator stops the answer.

        RequestError or ValueError: the message cannot be answered, and is removed.
        """
        turn, started = Turn(), time.perf_counter()
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        question = Question([*system, *self._messages], self.tools, self._constraint, self._changes)
        is_refused = True
        try:
            for event in self.model.answer(question, turn):
                self.turn = turn
                turn.seconds = time.perf_counter() - started
                turn.first_after = turn.first_after or turn.seconds
                turn.absorb(event)
                yield event
            self.turn, is_refused = turn, False
        except (KeyboardInterrupt, GeneratorExit):
            self.turn, is_refused = turn, False
            raise
        finally:
            turn.seconds = time.perf_counter() - started
            is_stopped = turn.finish_reason is None
            if is_refused or turn.error or (is_stopped and not turn.content):
                self._messages.pop()
            else:
                self._messages.append(self._message(turn))

    def _message(self, turn: Turn) -> dict[str, Any]:
        """Return an answer as a message. Tool calls of an answer that was cut off may be incomplete,
        and are left out."""
        message: dict[str, Any] = {"role": "assistant", "content": turn.content}
        calls = [] if turn.finish_reason in (None, "length") else turn.tool_calls
        if calls:
            first = self._num_calls + 1
            self._num_calls += len(calls)
            message["tool_calls"] = [
                {
                    "id": f"call_{number}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for number, call in enumerate(calls, first)
            ]
        return message


def read_tools(given: str, what: str) -> list[dict[str, Any]]:
    """Return the functions that JSON, or a file with it, defines. ValueError: they are invalid.

    what: the option or command, for errors.
    """
    tools = read_json(given, what)
    tools = tools if isinstance(tools, list) else [tools]
    if not all(isinstance(tool, dict) for tool in tools):
        raise ValueError(f"{what}: must be a list of functions in OpenAI's format")
    tools = [
        tool if "function" in tool else {"type": "function", "function": tool} for tool in tools
    ]
    tool_specs(tools)
    return tools


def read_json(given: str, what: str) -> Any:
    """Return JSON that is given as text, or as the name of a file. ValueError: it is invalid."""
    text = given
    if not given.lstrip().startswith(("{", "[")):
        try:
            text = Path(given).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{what}: cannot read the file {given} ({error})") from error
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{what}: is not JSON ({error})") from error
