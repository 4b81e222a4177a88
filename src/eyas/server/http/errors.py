"""The errors that clients get, in OpenAI's shape, and for /v1/messages in Anthropic's.

Promises: messages are written here, in `codes` or in a `RequestError`; none is the repr of an
exception. Every error has a body with a remedy, a code and the address of its explanation.
Does not know: routes.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.responses import Response

from eyas.core import RequestError
from eyas.server.http.codes import Code

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
    499: "invalid_request_error",
    500: "server_error",
    503: "service_unavailable_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
"""Other statuses are an invalid_request_error."""
RETRY_SECONDS = 1
DOCS = "https://github.com/eyas-engine/eyas/blob/main/docs/errors.md"

MAX_MESSAGE_CHARS = 800
MAX_PARAM_CHARS = 200


class ApiError(Exception):
    """An error that becomes the response. Long messages and params are cut.

    code: the kind of error; determines the status. message: by default the code's own. param: the path
    of the field at fault in the body. excerpt: the beginning of that field's value as JSON
    (`eyas.server.http.excerpts`). retry_after: seconds, sent with 429 and 503.
    """

    def __init__(
        self,
        code: Code,
        message: str | None = None,
        *,
        param: str | None = None,
        excerpt: str | None = None,
        retry_after: float = RETRY_SECONDS,
    ) -> None:
        self.code = code
        self.status = code.status
        self.message = _shorten(message or code.message, MAX_MESSAGE_CHARS)
        super().__init__(self.message)
        self.param = None if param is None else _shorten(param, MAX_PARAM_CHARS)
        self.excerpt = excerpt
        self.retry_after = retry_after if self.status in (429, 503) else None

    @classmethod
    def of(cls, error: RequestError) -> ApiError:
        """Convert a RequestError."""
        return cls(Code.of(error.code), error.message, param=error.param)

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": _TYPES[self.status],
                "param": self.param,
                "code": self.code.word,
                "excerpt": self.excerpt,
                "docs": f"{DOCS}#{self.code.word}",
            }
        }

    def anthropic_body(self) -> dict[str, Any]:
        """Return the body for /v1/messages: the same fields, and the code where Anthropic's clients
        read it."""
        error = {
            **self.body()["error"],
            "type": _ANTHROPIC_TYPES.get(self.status, "invalid_request_error"),
            "details": {"error_code": self.code.word},
        }
        return {"type": "error", "error": error}

    def response(self, body: dict[str, Any] | None = None) -> Response:
        """Return the response. body: by default in OpenAI's shape."""
        headers = {}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.retry_after is not None:
            headers["retry-after"] = str(math.ceil(self.retry_after))
        if self.status in (408, 413) or self.code is Code.DRAINING:
            headers["connection"] = "close"
        return Response(
            msgspec.json.encode(self.body() if body is None else body),
            self.status,
            headers=headers,
            media_type="application/json",
        )


def too_many_choices(num_choices: int, max_queued: int, param: str) -> ApiError:
    """Return the error for more answers than the queue can ever hold for one client."""
    return ApiError(
        Code.TOO_MANY_CHOICES,
        f"{param}: a client may have at most {max_queued} answers at a time, running or waiting, and "
        f"this request asks for {num_choices}; ask for fewer",
        param=param,
    )


def too_many_logprobs(num_values: int, limit: int, param: str) -> ApiError:
    """Return the error for an answer that could have `num_values` log-probabilities, more than
    `limit`."""
    return ApiError(
        Code.TOO_MANY_LOGPROBS,
        f"{param}: an answer has at most {limit} log-probabilities, and this one could have "
        f"{num_values}: those of a token and its alternatives, for each scored token of the prompt and "
        "each token of the n answers; ask for a smaller n, fewer tokens or fewer alternatives",
        param=param,
    )


def too_long(num_tokens: str, max_model_len: int, param: str) -> ApiError:
    """Return the error for a prompt that does not fit. num_tokens: a number, or "at least" a number."""
    return ApiError(
        Code.CONTEXT_LENGTH_EXCEEDED,
        f"this model's context holds {max_model_len} tokens, the answer's included, but the prompt "
        f"has {num_tokens}; shorten it",
        param=param,
    )


def model_not_found(name: str, served: tuple[str, ...]) -> ApiError:
    """Return the error for a model that is not served."""
    return ApiError(
        Code.MODEL_NOT_FOUND,
        f"the model {name[:200]!r} is not served here; this server has {', '.join(served)}",
        param="model",
    )


def _shorten(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}..."
