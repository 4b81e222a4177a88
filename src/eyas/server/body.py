"""From an HTTP request to a checked body: size, time, JSON, fields; each fault a 4xx that names it.

Promises: never reads more than it may, never recurses without bound, never a 500 for what a client
sent. Does not know: what the fields mean.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from eyas.server.errors import BODY_TOO_LATE, ApiError

Body = TypeVar("Body", bound=BaseModel)

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


async def read_body(request: Request, max_bytes: int, timeout_seconds: float) -> bytes:
    """The whole body. ApiError 413 if it is longer than `max_bytes`, 408 if it does not come."""
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
                pieces.append(piece)
    except TimeoutError as error:
        raise ApiError(408, BODY_TOO_LATE) from error
    except ClientDisconnect as error:
        raise ApiError(408, BODY_TOO_LATE) from error
    return b"".join(pieces)


def parse(body: bytes, kind: type[Body]) -> Body:
    """The body as `kind`. ApiError 400 names the field and what is wrong with it."""
    value = json_object(body)
    for name in value:
        if name in _UNSUPPORTED and name not in kind.model_fields:
            if value[name] is None:
                continue
            raise ApiError(400, f"{name}: {_UNSUPPORTED[name]}", param=name)
    known = {
        name: item
        for name, item in value.items()
        if item is not None or name in kind.model_fields or name not in _UNSUPPORTED
    }
    try:
        return kind.model_validate(known)
    except ValidationError as error:
        raise _field_error(error) from error
    except RecursionError as error:
        raise ApiError(400, "the body is nested too deep") from error


def json_object(text: str | bytes, param: str | None = None) -> dict[str, Any]:
    """A JSON object's text, read. ApiError 400 says where it is wrong. param: the field that holds the
    text; None is the body."""
    subject = "the body" if param is None else f"{param}:"
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise ApiError(400, f"{subject} is nested too deep", param=param) from error
    except ValueError as error:
        raise ApiError(
            400, f"{subject} is not valid JSON: {_place_of(error)}", param=param
        ) from error
    if not isinstance(value, dict):
        raise ApiError(400, f"{subject} must be a JSON object", param=param)
    has_escapes = "\\u" in text if isinstance(text, str) else b"\\u" in text
    return _without_lone_surrogates(value) if has_escapes else value


def _place_of(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}"
    return "it is not UTF-8 text, or holds a number out of range"


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError("not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("out of range")
    return value


def _field_error(error: ValidationError) -> ApiError:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    # Of the errors in a union's branches the one that got furthest is the telling one.
    first = max(found, key=lambda item: len(item["loc"]))
    path = ""
    for part in first["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier():
            path += f".{part}" if path else part
        elif not path:
            path = part[:64]
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{path}: is not a field of this request", param=path)
    if first["type"] == "missing":
        return ApiError(400, f"{path}: is required", param=path)
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{path}: {message}", param=path)


def _without_lone_surrogates(value: dict[str, Any]) -> dict[str, Any]:
    """JSON can spell half of a surrogate pair; such halves become U+FFFD. No recursion."""
    root = [value]
    todo: list[Any] = [root]
    while todo:
        container = todo.pop()
        if isinstance(container, dict):
            cleaned = {_cleaned(key): item for key, item in container.items()}
            container.clear()
            container.update(cleaned)
        for key, item in container.items() if isinstance(container, dict) else enumerate(container):
            if isinstance(item, str):
                container[key] = _cleaned(item)
            elif isinstance(item, (dict, list)):
                todo.append(item)
    return root[0]


def _cleaned(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
