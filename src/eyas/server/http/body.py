"""Reads the body of an HTTP request and validates it: size, time, JSON, fields.

Promises: bounds the memory of one body and of all bodies together; every fault of a body is a 4xx
that names it, never a 500; a large body is parsed off the event loop, one at a time. Does not know:
what the fields mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from eyas.server.fields import FORMS, MAX_NAME_CHARS, StrictModel
from eyas.server.http.codes import Code
from eyas.server.http.errors import ApiError
from eyas.server.http.excerpts import excerpt_at
from eyas.server.http.json_text import JsonPath, json_object, path_text
from eyas.server.http.thread_pool import FairThreadPool
from eyas.server.http.unsupported import OTHER_NAMES, UNSUPPORTED

Body = TypeVar("Body", bound=StrictModel)

SMALL_BYTES = 64 * 1024
"""A body of this size is parsed in a millisecond or two, whatever it contains."""
PROGRESS_BYTES = 64 * 1024
"""An upload makes progress when so many more bytes have arrived: single bytes do not count."""
STALLED_SECONDS = 1.0
"""An upload without progress for so long can be ended when memory is needed."""

_PLAIN_TEXTS = frozenset(
    {"content", "text", "refusal", "reasoning_content", "reasoning", "arguments", "output"}
)
"""Fields of messages whose strings are only read by the model."""

_AS_JSON = {"True": "true", "False": "false"}
_OBJECTS = {
    "messages": '{"role": "user", "content": "..."}',
    "tools": '{"type": "function", "function": {"name": "..."}}',
    "response_format": '{"type": "json_object"}',
    "structured_outputs": '{"regex": "..."}',
    "stream_options": '{"include_usage": true}',
    "sampling_params": '{"max_new_tokens": 16}',
    "reasoning": '{"effort": "low"}',
    "text": '{"format": {"type": "json_object"}}',
}
"""Examples of fields that clients often send in a wrong form, such as the type alone."""


class BodyMemoryLimit:
    """The limit of memory for all bodies that are being read and validated.

    The first SMALL_BYTES of each body do not count. At the limit, the upload that has made no
    progress for the longest time is ended.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._last_progress: dict[_BodyShare, float] = {}
        """When each upload last made progress, the longest ago first."""

    @contextmanager
    def share(self) -> Iterator[_BodyShare]:
        """Open the share of one body, and release its memory at the end."""
        share = _BodyShare(self)
        try:
            yield share
        finally:
            self._num_bytes -= share.num_reserved
            share.num_reserved = 0

    def note_progress(self, share: _BodyShare) -> None:
        """Record that an upload has begun or made progress."""
        self._last_progress.pop(share, None)
        self._last_progress[share] = asyncio.get_running_loop().time()

    def end_upload(self, share: _BodyShare) -> None:
        """Record that an upload is complete or aborted. Its share still counts."""
        self._last_progress.pop(share, None)

    def reserve(self, share: _BodyShare, num_bytes: int) -> None:
        """Add bytes to a share. ApiError 429 if memory is full and no upload can be ended for it."""
        share.num_reserved += num_bytes
        self._num_bytes += num_bytes
        now = asyncio.get_running_loop().time()
        while self._num_bytes > self._max_bytes:
            slowest = next((other for other in self._last_progress if other is not share), None)
            if slowest is None or now - self._last_progress[slowest] < STALLED_SECONDS:
                raise ApiError(Code.QUEUE_FULL)
            self.end_upload(slowest)
            slowest.abort()
            self._num_bytes -= slowest.num_reserved
            slowest.num_reserved = 0


class _BodyShare:
    """The memory of one body."""

    def __init__(self, limit: BodyMemoryLimit) -> None:
        self.num_reserved = 0
        self._limit = limit
        self._num_received = 0
        self._deadline: asyncio.Timeout | None = None

    @asynccontextmanager
    async def uploading(self, timeout_seconds: float) -> AsyncIterator[None]:
        """Enclose the upload. TimeoutError when its time is over, or its memory is needed."""
        async with asyncio.timeout(timeout_seconds) as self._deadline:
            self._limit.note_progress(self)
            try:
                yield
            finally:
                self._limit.end_upload(self)

    def add(self, num_bytes: int) -> None:
        """Add bytes that have arrived. ApiError 429 if memory is full."""
        before, self._num_received = self._num_received, self._num_received + num_bytes
        if before // PROGRESS_BYTES < self._num_received // PROGRESS_BYTES:
            self._limit.note_progress(self)
        self._limit.reserve(self, max(0, self._num_received - SMALL_BYTES) - self.num_reserved)

    def abort(self) -> None:
        """End the upload with a TimeoutError."""
        assert self._deadline is not None
        self._deadline.reschedule(asyncio.get_running_loop().time())


async def read_body(
    request: Request, max_bytes: int, timeout_seconds: float, share: _BodyShare
) -> bytes:
    """Return the whole body. ApiError 413 if it is longer than `max_bytes`, 408 if it does not arrive
    in time, 429 if memory is full."""
    too_large = ApiError(
        Code.BODY_TOO_LARGE, f"the request's body is longer than {max_bytes} bytes; shorten it"
    )
    content_length = request.headers.get("content-length", "")
    if content_length.isdecimal() and int(content_length[:20]) > max_bytes:
        raise too_large
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(Code.CONTENT_ENCODING_NOT_SUPPORTED)
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        async with share.uploading(timeout_seconds):
            async for chunk in request.stream():
                num_bytes += len(chunk)
                if num_bytes > max_bytes:
                    raise too_large
                share.add(len(chunk))
                chunks.append(chunk)
    except TimeoutError as error:
        raise ApiError(Code.BODY_TIMEOUT) from error
    except ClientDisconnect as error:
        raise ApiError(Code.CLIENT_CLOSED) from error
    return b"".join(chunks)


async def parse_off_event_loop(
    body: bytes, kind: type[Body], pool: FairThreadPool, client: str
) -> Body:
    """Return `parse(body, kind)`, run in a thread of `pool` if the body is large."""
    if len(body) <= SMALL_BYTES:
        return parse(body, kind)
    return await pool.run(lambda: parse(body, kind), client, len(body))


def parse(body: bytes, kind: type[Body]) -> Body:
    """Return the body as a model of type `kind`. ApiError 400 names the field and the problem."""
    value = json_object(body, is_plain_text=_is_plain_text)
    for name, unsupported in UNSUPPORTED.items():
        if name not in kind.known_names and kind.asks_for(value, name):
            raise ApiError(
                Code.UNSUPPORTED_PARAMETER,
                f"{name}: {unsupported.message(kind.known_names)}",
                param=name,
                excerpt=excerpt_at(value, name),
            )
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _field_error(error, value, kind) from error
    except RecursionError as error:
        raise ApiError(Code.BODY_TOO_COMPLEX, "the body is nested too deep") from error


def _is_plain_text(path: JsonPath) -> bool:
    """Whether the string at this path is only read by the model."""
    if path[0] in ("prompt", "text", "system"):
        return True
    if path[0] in ("instructions", "input") and len(path) == 1:
        return True
    return path[0] in ("messages", "prediction", "input") and not _PLAIN_TEXTS.isdisjoint(path[1:])


def _field_error(error: ValidationError, body: dict[str, Any], kind: type[StrictModel]) -> ApiError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = path_text([step for step in first["loc"] if step not in FORMS])
    excerpt = excerpt_at(body, path)
    if first["type"] == "extra_forbidden":
        names = sorted(kind.known_names)
        near = get_close_matches(
            str(first["loc"][-1])[:MAX_NAME_CHARS].lower(), names, n=1, cutoff=0.7
        )
        name = str(first["loc"][-1])
        remedy = f"did you mean {near[0]}?" if near and len(first["loc"]) == 1 else "leave it out"
        if first["loc"][0] == "sampling_params" and name in OTHER_NAMES:
            remedy = f"send {OTHER_NAMES[name]}"
        message = f"{path}: is not a field of this request; {remedy}"
        return ApiError(Code.UNKNOWN_PARAMETER, message, param=path, excerpt=excerpt)
    if first["type"] == "missing":
        return ApiError(Code.MISSING_REQUIRED_PARAMETER, f"{path}: is required", param=path)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in ("dict_type", "model_type", "model_attributes_type"):
        names = [step for step in first["loc"] if isinstance(step, str)]
        example = _OBJECTS.get(names[0]) if len(names) == 1 else None
        message = f"must be an object such as {example}" if example else "must be an object"
    elif first["type"] == "list_type":
        message = "must be a list"
    elif first["type"] == "literal_error":
        expected = message.removeprefix("Input should be ")
        message = f"must be {_AS_JSON.get(expected, expected)}"
    code = Code.INVALID_TYPE if first["type"].endswith("_type") else Code.INVALID_VALUE
    return ApiError(code, f"{path}: {message}", param=path, excerpt=excerpt)
