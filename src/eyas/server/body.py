"""From an HTTP request to a checked body: size, time, JSON, fields; each fault a 4xx that names it.

Promises: never reads more than it may, of one body or of all together; never a 500 for what a client
sent; a large body is checked off the event loop, one at a time. Does not know: what the fields mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from eyas.server.errors import BODY_TOO_LATE, ApiError, overloaded
from eyas.server.fields import FORMS
from eyas.server.json_text import json_object, path_of
from eyas.server.texts import TextWorkers

Body = TypeVar("Body", bound=BaseModel)

SMALL_BYTES = 64 * 1024
"""A body of this size is checked in a millisecond or two, whatever it holds."""

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


class BodyRoom:
    """Memory for the bodies that are being read and checked, all together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """What takes some more of it, until the end. ApiError 429 where there is no more."""
        num_taken = 0

        def take(num_bytes: int) -> None:
            nonlocal num_taken
            num_taken += num_bytes
            self._num_bytes += num_bytes
            if self._num_bytes > self._max_bytes:
                raise overloaded()

        try:
            yield take
        finally:
            self._num_bytes -= num_taken


async def read_body(
    request: Request, max_bytes: int, timeout_seconds: float, take: Callable[[int], None]
) -> bytes:
    """The whole body. ApiError 413 if it is longer than `max_bytes`, 408 if it does not come, and what
    `take` raises when it hears of each piece's size."""
    too_large = ApiError(413, f"the request's body is longer than {max_bytes} bytes; shorten it")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise too_large
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(415, "compressed bodies are not accepted; send the JSON as it is")
    pieces: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(timeout_seconds):
            async for piece in request.stream():
                num_bytes += len(piece)
                if num_bytes > max_bytes:
                    raise too_large
                take(len(piece))
                pieces.append(piece)
    except TimeoutError as error:
        raise ApiError(408, BODY_TOO_LATE) from error
    except ClientDisconnect as error:
        raise ApiError(408, BODY_TOO_LATE) from error
    return b"".join(pieces)


async def parsed(body: bytes, kind: type[Body], workers: TextWorkers) -> Body:
    """The body as `kind`, as `parse` has it; `workers` take the large ones."""
    if len(body) <= SMALL_BYTES:
        return parse(body, kind)
    return await workers.run(lambda: parse(body, kind))


def parse(body: bytes, kind: type[Body]) -> Body:
    """The body as `kind`. ApiError 400 names the field and what is wrong with it."""
    value = json_object(body)
    for name, remedy in _UNSUPPORTED.items():
        if value.get(name) is not None and name not in kind.model_fields:
            raise ApiError(400, f"{name}: {remedy}", param=name)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _field_error(error) from error
    except RecursionError as error:
        raise ApiError(400, "the body is nested too deep") from error


def _field_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = path_of([step for step in first["loc"] if step not in FORMS])
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{path}: is not a field of this request", param=path)
    if first["type"] == "missing":
        return ApiError(400, f"{path}: is required", param=path)
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{path}: {message}", param=path)
