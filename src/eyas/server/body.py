"""From an HTTP request to a checked body: size, time, JSON, fields; each fault a 4xx that names it.

Promises: never reads more than it may, of one body or of all together; never a 500 for what a client
sent; a large body is checked off the event loop, one at a time. Does not know: what the fields mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from eyas.server.codes import Code
from eyas.server.errors import ApiError
from eyas.server.fields import FORMS
from eyas.server.json_text import Way, json_object, path_of
from eyas.server.thread_pool import FairThreadPool

Body = TypeVar("Body", bound=BaseModel)

SMALL_BYTES = 64 * 1024
"""A body of this size is checked in a millisecond or two, whatever it holds."""
MOVE_BYTES = 64 * 1024
STILL_SECONDS = 1.0
"""A body that has not moved for so long may have to go."""

_UNSUPPORTED = {
    "grammar": "is not supported; send ebnf, or structured_outputs with grammar",
    "format": "is not supported; send response_format",
    "guided_options_request": "is not supported; send structured_outputs",
    **dict.fromkeys(
        ("functions", "function_call"), "is OpenAI's old form; send tools and tool_choice"
    ),
    **dict.fromkeys(
        ("lora", "lora_request", "lora_adapter", "lora_path", "adapter", "adapters"),
        "adapters are not supported",
    ),
    "chat_template": "templates of a request are not accepted; the model's own is used",
    "documents": "is not supported; put them into a message",
}

_PLAIN_TEXTS = frozenset(
    {"content", "text", "refusal", "reasoning_content", "reasoning", "arguments"}
)
"""Fields of messages that are read, and what is inside them."""

_OBJECTS = {
    "messages": '{"role": "user", "content": "..."}',
    "tools": '{"type": "function", "function": {"name": "..."}}',
    "response_format": '{"type": "json_object"}',
    "structured_outputs": '{"regex": "..."}',
    "stream_options": '{"include_usage": true}',
    "sampling_params": '{"max_new_tokens": 16}',
}
"""What clients write as something else, such as the type alone."""


class BodyMemoryLimit:
    """Memory for the bodies that are being read and checked, all together. A body's first SMALL_BYTES
    are free. Where the rest is full, the one that has not moved for longest has to go."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._coming: dict[_Share, float] = {}
        """When each last moved, longest ago first."""

    @contextmanager
    def share(self) -> Iterator[_Share]:
        """One body's part, until the end."""
        share = _Share(self)
        try:
            yield share
        finally:
            self._num_bytes -= share.num_held
            share.num_held = 0

    def moved(self, share: _Share) -> None:
        self._coming.pop(share, None)
        self._coming[share] = asyncio.get_running_loop().time()

    def arrived(self, share: _Share) -> None:
        self._coming.pop(share, None)

    def hold(self, share: _Share, num_bytes: int) -> None:
        """So much more. ApiError 429 where there is no room, and nobody who keeps it for nothing."""
        share.num_held += num_bytes
        self._num_bytes += num_bytes
        now = asyncio.get_running_loop().time()
        while self._num_bytes > self._max_bytes:
            stillest = next((other for other in self._coming if other is not share), None)
            if stillest is None or now - self._coming[stillest] < STILL_SECONDS:
                raise ApiError(Code.QUEUE_FULL)
            self.arrived(stillest)
            stillest.give_up()
            self._num_bytes -= stillest.num_held
            stillest.num_held = 0


class _Share:
    """What one body takes of the room. A body moves when another MOVE_BYTES of it have come: bytes that
    come one by one do not count."""

    def __init__(self, room: BodyMemoryLimit) -> None:
        self.num_held = 0
        self._room = room
        self._num_bytes = 0
        self._deadline: asyncio.Timeout | None = None

    @asynccontextmanager
    async def coming(self, timeout_seconds: float) -> AsyncIterator[None]:
        """While it is being read. TimeoutError when its time is up, or its place is needed."""
        async with asyncio.timeout(timeout_seconds) as self._deadline:
            self._room.moved(self)
            try:
                yield
            finally:
                self._room.arrived(self)

    def add(self, num_bytes: int) -> None:
        """So much more has come. ApiError 429 where there is no room."""
        before, self._num_bytes = self._num_bytes, self._num_bytes + num_bytes
        if before // MOVE_BYTES < self._num_bytes // MOVE_BYTES:
            self._room.moved(self)
        self._room.hold(self, max(0, self._num_bytes - SMALL_BYTES) - self.num_held)

    def give_up(self) -> None:
        assert self._deadline is not None
        self._deadline.reschedule(asyncio.get_running_loop().time())


async def read_body(
    request: Request, max_bytes: int, timeout_seconds: float, share: _Share
) -> bytes:
    """The whole body. ApiError 413 if it is longer than `max_bytes`, 408 if it does not come, 429 if
    there is no room for it."""
    too_large = ApiError(
        Code.BODY_TOO_LARGE, f"the request's body is longer than {max_bytes} bytes; shorten it"
    )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise too_large
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(Code.CONTENT_ENCODING_NOT_SUPPORTED)
    pieces: list[bytes] = []
    num_bytes = 0
    try:
        async with share.coming(timeout_seconds):
            async for piece in request.stream():
                num_bytes += len(piece)
                if num_bytes > max_bytes:
                    raise too_large
                share.add(len(piece))
                pieces.append(piece)
    except (TimeoutError, ClientDisconnect) as error:
        raise ApiError(Code.BODY_TIMEOUT) from error
    return b"".join(pieces)


async def parse_off_event_loop(
    body: bytes, kind: type[Body], pool: FairThreadPool, client: str
) -> Body:
    """The body as `kind`, as `parse` has it; `pool` takes the large ones."""
    if len(body) <= SMALL_BYTES:
        return parse(body, kind)
    return await pool.run(lambda: parse(body, kind), client, len(body))


def parse(body: bytes, kind: type[Body]) -> Body:
    """The body as `kind`. ApiError 400 names the field and what is wrong with it."""
    value = json_object(body, is_plain_text=_is_plain_text)
    for name, remedy in _UNSUPPORTED.items():
        if value.get(name) is not None and name not in kind.model_fields:
            raise ApiError(Code.UNSUPPORTED_PARAMETER, f"{name}: {remedy}", param=name)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _field_error(error) from error
    except RecursionError as error:
        raise ApiError(Code.BODY_TOO_COMPLEX, "the body is nested too deep") from error


def _is_plain_text(way: Way) -> bool:
    """Is it a text that the model reads, and nothing else does?"""
    if way[0] in ("prompt", "text"):
        return True
    return way[0] in ("messages", "prediction") and not _PLAIN_TEXTS.isdisjoint(way[1:])


def _field_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = path_of([step for step in first["loc"] if step not in FORMS])
    if first["type"] == "extra_forbidden":
        return ApiError(
            Code.UNKNOWN_PARAMETER, f"{path}: is not a field of this request", param=path
        )
    if first["type"] == "missing":
        return ApiError(Code.MISSING_REQUIRED_PARAMETER, f"{path}: is required", param=path)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in ("dict_type", "model_type", "model_attributes_type"):
        names = [step for step in first["loc"] if isinstance(step, str)]
        example = _OBJECTS.get(names[0]) if len(names) == 1 else None
        message = f"must be an object such as {example}" if example else "must be an object"
    elif first["type"] == "list_type":
        message = "must be a list"
    code = Code.INVALID_TYPE if first["type"].endswith("_type") else Code.INVALID_VALUE
    return ApiError(code, f"{path}: {message}", param=path)
