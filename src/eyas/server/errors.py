"""Every error a client can get, in OpenAI's shape.

Promises: the texts come from here or from `RequestError`, never from an exception's repr; no status
without a body that says what to do. Does not know: routes.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.responses import Response

from eyas.core import RequestError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "server_error",
    503: "service_unavailable_error",
}
RETRY_SECONDS = 1

INTERNAL = "the server failed on this request; its log says why"
ENGINE_GONE = "the engine process has ended; the server is shutting down"
ENGINE_STARTING = "the model is still being loaded; try again in a moment"
ENGINE_RESTARTING = "the engine process has ended and is being started again; try again in a moment"
ENGINE_BUSY = "the engine could not take the request; try it again"
ANSWER_LOST = "the engine process has ended, and this answer with it; send the request again"
ENGINE_STALLED = "the engine has not made a step for some time; try again later"
NO_GRAMMARS = "the engine has no thread left to compile output grammars; try again later"
DRAINING = "the server is shutting down; try another one"
TOO_MANY = "too many requests are waiting; try again in a moment"
TOO_SLOW = "the client reads its answer too slowly; it was given up"
ABORTED = "the request was ended by the server before it was finished"
UNAVAILABLE = frozenset({ANSWER_LOST, ABORTED})
"""Ends of answers for which nobody's request is to blame."""
NO_KEY = "no valid API key; send it as the header 'Authorization: Bearer <key>'"
BODY_TOO_LATE = "the request's body did not arrive in time"
TEXT_TOO_SLOW = "the prompt took too long to prepare; shorten it"
TEXT_QUEUE = "too many requests are being prepared; try again in a moment"


MAX_MESSAGE_CHARS = 800
MAX_PARAM_CHARS = 200


class ApiError(Exception):
    """An answer that is an error, short whatever it repeats of the request. `code` is OpenAI's
    machine-readable word, where it has one."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _shortened(message, MAX_MESSAGE_CHARS)
        self.param = None if param is None else _shortened(param, MAX_PARAM_CHARS)
        self.code = code
        self.retry_after = retry_after

    @classmethod
    def of(cls, error: RequestError) -> ApiError:
        """A request that cannot be served as asked."""
        return cls(400, error.message, param=error.param)

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, "server_error"),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> Response:
        headers = {}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.retry_after is not None:
            headers["retry-after"] = str(math.ceil(self.retry_after))
        if self.status in (408, 413) or self.message == DRAINING:
            headers["connection"] = "close"
        return Response(
            msgspec.json.encode(self.body()),
            self.status,
            headers=headers,
            media_type="application/json",
        )


def unavailable(message: str, retry_after: float = RETRY_SECONDS) -> ApiError:
    return ApiError(503, message, code="service_unavailable", retry_after=retry_after)


def overloaded() -> ApiError:
    return ApiError(429, TOO_MANY, code="queue_full", retry_after=RETRY_SECONDS)


def never_fits(num_choices: int, max_queued: int) -> ApiError:
    """More answers than there is room for, however long one waits."""
    return ApiError(
        400,
        f"n: this server works on at most {max_queued} answers at a time, running or waiting, and "
        f"this request asks for {num_choices}; ask for fewer",
        param="n",
    )


def too_many_logprobs(num_values: int, limit: int, param: str) -> ApiError:
    """num_values: as many as the answer may come to have."""
    return ApiError(
        400,
        f"{param}: an answer has at most {limit} log-probabilities, and this one could have "
        f"{num_values}: those of a token and its alternatives, for each scored token of the prompt and "
        "each token of the n answers; ask for a smaller n, fewer tokens or fewer alternatives",
        param=param,
    )


def too_long(num_tokens: str, max_model_len: int, param: str) -> ApiError:
    """num_tokens: of the prompt, or what it has "at least"; one more is needed for the answer."""
    return ApiError(
        400,
        f"this model's context holds {max_model_len} tokens, the answer's included, but the prompt "
        f"has {num_tokens}; shorten it",
        param=param,
        code="context_length_exceeded",
    )


def model_not_found(name: str, served: tuple[str, ...]) -> ApiError:
    return ApiError(
        404,
        f"the model {name[:200]!r} is not served here; this server has {', '.join(served)}",
        param="model",
        code="model_not_found",
    )


def _shortened(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}..."
