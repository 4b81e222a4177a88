"""An HTTP request as a value that can be sent to another process, and the beginning of its prompt.

Promises: the server's application receives the same request as if the client had sent it there. Does
not know: Ray, what the application does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive

MAX_QUEUED_MESSAGES = 16


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One HTTP request with its body. prefix: the beginning of its prompt; requests with the same
    prefix should go to the same engine."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    client: tuple[str, int] | None
    body: bytes
    prefix: str


async def read_call(request: Request, max_body_bytes: int, prefix_chars: int) -> HttpCall:
    """Read a request. A body that is too large is cut after `max_body_bytes` + 1 bytes, so that the
    application refuses it."""
    parts: list[bytes] = []
    missing = max_body_bytes + 1
    async for part in request.stream():
        parts.append(part[:missing])
        missing -= len(parts[-1])
        if not missing:
            break
    body = b"".join(parts)
    scope = request.scope
    return HttpCall(
        method=scope["method"],
        path=scope["path"],
        raw_path=scope.get("raw_path") or scope["path"].encode(),
        query=scope.get("query_string", b""),
        headers=[(bytes(name), bytes(value)) for name, value in scope["headers"]],
        client=None if scope.get("client") is None else tuple(scope["client"]),
        body=body,
        prefix=prompt_prefix(body, prefix_chars),
    )


class _Prompt(msgspec.Struct):
    """The fields of requests that hold prompts, on all routes."""

    messages: Any = None
    prompt: Any = None
    input: Any = None
    instructions: Any = None
    text: Any = None
    input_ids: Any = None
    cache_salt: Any = None


def prompt_prefix(body: bytes, max_chars: int) -> str:
    """Return the beginning of a request's prompt; empty if it has none, or cannot be read."""
    try:
        prompt = msgspec.json.decode(body, type=_Prompt)
    except (msgspec.DecodeError, RecursionError):
        return ""
    parts: list[str] = []
    left = max_chars
    stack = [
        value
        for value in (prompt.input_ids, prompt.text, prompt.input, prompt.prompt, prompt.messages)
        if value is not None
    ]
    stack += [value for value in (prompt.instructions, prompt.cache_salt) if value is not None]
    while stack and left > 0:
        match stack.pop():
            case str(text):
                parts.append(text[:left])
                left -= len(text) + 1
            case list(items):
                stack.extend(reversed(items[:left]))
            case dict(fields):
                stack.extend(fields.get(name) for name in ("text", "content") if name in fields)
            case int(token):
                parts.append(str(token))
                left -= len(parts[-1]) + 1
    return "\n".join(parts)[:max_chars]


async def run_call(app: ASGIApp, call: HttpCall) -> AsyncGenerator[Message, None]:
    """Yield the messages of the application's response: its start, then the parts of its body.
    Closing the generator has the effect of a client that disconnects."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "method": call.method,
        "path": call.path,
        "raw_path": call.raw_path,
        "query_string": call.query,
        "root_path": "",
        "headers": call.headers,
        "client": call.client,
        "server": None,
    }
    messages: asyncio.Queue[Message | None] = asyncio.Queue(MAX_QUEUED_MESSAGES)

    async def run() -> None:
        try:
            await app(scope, _receiver(call.body), messages.put)
        finally:
            await messages.put(None)

    task = asyncio.create_task(run())
    try:
        while (message := await messages.get()) is not None:
            yield message
        await task
    finally:
        task.cancel()
        while not task.done():  # it may wait for room
            while not messages.empty():
                messages.get_nowait()
            await asyncio.wait([task], timeout=0.05)


def _receiver(body: bytes) -> Receive:
    """Return the receiving side of a connection on which the whole body has arrived."""
    is_read = False

    async def receive() -> Message:
        nonlocal is_read
        if is_read:
            await asyncio.Event().wait()  # until the application's task is cancelled
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
