"""The model of a chat behind a server with OpenAI's chat completions.

Promises: an answer that is not read to its end closes the connection, which stops it on the server. A
constraint is sent only in a form that the server is known to enforce.
Does not know: terminals, engines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from eyas.cli.chat.conversation import Constraint, Question, StepTree, TreeNode, Turn
from eyas.dialect import Event
from eyas.typed import Regex

TIMEOUT = httpx.Timeout(10.0, read=600.0)
"""Seconds; the longest wait is that for the first token of a long prompt."""


class RemoteModel:
    """A model of a server.

    url: of the API, such as http://localhost:8000/v1. name: of the model; None is the server's first
    model. key: API key. template_options: passed to the chat template. Raises ValueError if the
    server cannot be reached, or has no such model.
    """

    def __init__(
        self, url: str, name: str | None, key: str | None, template_options: Mapping[str, Any]
    ) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        try:
            self._client = httpx.Client(
                base_url=url.rstrip("/") + "/", headers=headers, timeout=TIMEOUT
            )
            response = self._client.get("models")
            if response.status_code == 404 and not url.rstrip("/").endswith("/v1"):
                url = url.rstrip("/") + "/v1"
                self._client.base_url = httpx.URL(url + "/")
                response = self._client.get("models")
        except (httpx.HTTPError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ValueError(f"--url: cannot reach {url} ({error})") from error
        cards = _object(response).get("data")
        by_name = {str(card.get("id")): card for card in cards or () if isinstance(card, dict)}
        if response.status_code != 200 or not by_name:
            raise ValueError(
                f"--url: {url}/models lists no models ({_error_text(response)}); the URL of an "
                "OpenAI-style API mostly ends in /v1"
            )
        self._name = next(iter(by_name)) if name is None else name
        if self._name not in by_name:
            raise ValueError(f"--model: {url} has no {name!r}; it has {', '.join(by_name)}")
        self._url = url
        self._is_eyas = by_name[self._name].get("owned_by") == "eyas"
        self._template_options = dict(template_options)

    @property
    def description(self) -> str:
        """A description of the model in one line."""
        return f"{self._name} at {self._url}"

    def check(self, constraint: Constraint) -> None:
        """Raise ValueError for a pattern if the server is not one of eyas: others may ignore the
        field. What eyas cannot enforce is an error of the next answer."""
        if isinstance(constraint, Regex) and not self._is_eyas:
            raise ValueError("/regex: only a server of eyas is known to enforce patterns")

    def answer(self, question: Question, turn: Turn) -> Iterator[Event]:
        """See `ChatModel.answer`."""
        body = {
            "model": self._name,
            "messages": list(question.messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **question.changes,
        }
        if question.tools:
            body["tools"] = list(question.tools)
        if self._template_options:
            body["chat_template_kwargs"] = self._template_options
        if self._is_eyas:
            body |= {"return_draft_details": True, "return_draft_trees": True}
        match question.constraint:
            case Regex(pattern):
                body["regex"] = pattern
            case None:
                pass
            case constraint:
                named = {"name": "answer", "schema": constraint.schema, "strict": True}
                body["response_format"] = {"type": "json_schema", "json_schema": named}
        try:
            with self._client.stream("POST", "chat/completions", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise ValueError(_error_text(response))
                for chunk in _chunks(response):
                    yield from _events(chunk, turn)
        except httpx.HTTPError as error:
            turn.error = f"the connection to {self._url} failed ({error or type(error).__name__})"

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _chunks(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream of server-sent events."""
    for line in response.iter_lines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            yield json.loads(data)


def _events(chunk: dict[str, Any], turn: Turn) -> Iterator[Event]:
    """Yield the pieces in a chunk of a stream, and record its facts about the answer."""
    if (error := chunk.get("error")) is not None:
        turn.error = str(error.get("message") if isinstance(error, dict) else error)
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
            yield Event("reasoning", reasoning)
        if delta.get("content"):
            yield Event("content", delta["content"])
        for call in delta.get("tool_calls") or ():
            function, index = call.get("function") or {}, call.get("index", 0)
            if function.get("name"):
                yield Event("tool_call", index=index, name=function["name"])
            if function.get("arguments"):
                yield Event("arguments", function["arguments"], index=index)
        turn.trees += map(_tree, choice.get("draft_trees") or ())
        turn.finish_reason = choice.get("finish_reason") or turn.finish_reason
    if (usage := chunk.get("usage")) is not None:
        turn.num_tokens = usage.get("completion_tokens")
        drafts = usage.get("draft_details") or {}
        turn.num_steps, turn.num_accepted = drafts.get("steps"), drafts.get("accepted_tokens")


def _tree(tree: dict[str, Any]) -> StepTree:
    """Return a draft tree that a server of eyas has sent."""
    nodes = [
        TreeNode(node["text"], node["parent"], node["source"], node["score"], node["fate"])
        for node in tree["nodes"]
    ]
    return StepTree(nodes, "".join(token["text"] for token in tree["tokens"]))


def _object(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of a response; an empty one if it has none."""
    try:
        content = response.json()
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _error_text(response: httpx.Response) -> str:
    """Return the error text of a response."""
    error = _object(response).get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or f"status {response.status_code}")
