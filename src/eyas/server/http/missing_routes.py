"""What a client is told of routes that are not served.

Promises: a request to a part of OpenAI's or SGLang's API that is out of scope says so and what to do
instead. Does not know: routes that are served.
"""

from __future__ import annotations

from eyas.server.http.codes import Code
from eyas.server.http.errors import ApiError

_NO_FILES = "files and jobs are not stored here; send the requests themselves, many at a time"
_NO_MEDIA = "models here read and write text only; use a server of such models"
_NO_STATE = "assistants are not served; send conversations to /v1/chat/completions or /v1/responses"
_REASONS = {
    "embeddings": "models here generate text; use a server of an embedding model",
    "rerank": "models here generate text; use a server of a ranking model",
    "score": "models here generate text; use a server of a ranking model",
    "moderations": "models here generate text; use a server of a moderation model",
    **dict.fromkeys(("batches", "files", "uploads"), _NO_FILES),
    **dict.fromkeys(("images", "audio", "videos", "realtime"), _NO_MEDIA),
    **dict.fromkeys(("assistants", "threads", "vector_stores", "conversations"), _NO_STATE),
    "fine_tuning": "models are not trained over HTTP; see 'eyas train'",
}
"""Why a part of the API is not served, and what to do, by the segment after /v1/."""
_OF_RESPONSES = {
    "input_items": "keep the input of a response where you send it",
    "input_tokens": "send the messages to /tokenize, which counts their tokens",
    "cancel": "responses do not run in the background; close the connection of one to end it",
    "compact": "send the parts of a conversation that the model is to read",
}
"""The same for what is done with a response, by the last segment."""
_NO_ABORT = "close the connection of a request to end it"


def not_supported(path: str) -> ApiError | None:
    """Return the 404 for a path that other servers have; None for other paths."""
    segments = path.strip("/").split("/")
    match segments:
        case ["v1", name, *_] if name in _REASONS:
            reason = f"/v1/{name} is not served here: {_REASONS[name]}"
        case ["v1", "responses", *_, name] if name in _OF_RESPONSES:
            reason = f"{name} of responses is not served here: {_OF_RESPONSES[name]}"
        case ["abort_request"]:
            reason = f"/abort_request is not served here: {_NO_ABORT}"
        case _:
            return None
    return ApiError(Code.ROUTE_NOT_SUPPORTED, reason)


def no_such_route(method: str, path: str) -> ApiError:
    """Return the 404 for a path without a route."""
    refused = ApiError(Code.ROUTE_NOT_FOUND, f"there is no route {method} {path[:200]!r}")
    return not_supported(path) or refused
