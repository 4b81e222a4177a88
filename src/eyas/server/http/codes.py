"""The catalogue of error codes: every value of `error.code`.

Promises: every error that the server sends has one of these codes and its status. Codes never change,
texts may. docs/errors.md is generated from this module. Does not know: when a code applies.
"""

from __future__ import annotations

from enum import Enum


class Code(Enum):
    """The kinds of errors. `word` is the value of `error.code`.

    meaning, remedy: together the message of an error without a more specific one.
    """

    def __init__(self, status: int, meaning: str, remedy: str) -> None:
        self.status = status
        self.meaning = meaning
        self.remedy = remedy

    @property
    def word(self) -> str:
        return self.name.lower()

    @property
    def message(self) -> str:
        return f"{self.meaning}; {self.remedy}"

    @classmethod
    def of(cls, word: str) -> Code:
        return cls[word.upper()]

    MALFORMED_HTTP = (
        400,
        "this is not an HTTP request, or its head is ambiguous",
        "send HTTP/1.1 with one length, in lines that end in CR LF",
    )
    INVALID_JSON = (400, "the body is not a JSON object", "correct it at the named place")
    BODY_TOO_COMPLEX = (
        400,
        "the body is nested too deep or holds too many values",
        "flatten or split it",
    )
    UNKNOWN_PARAMETER = (
        400,
        "this route has no such field",
        "leave it out, or correct its spelling",
    )
    UNSUPPORTED_PARAMETER = (
        400,
        "a field of the API is not supported",
        "leave it out, or send what the message suggests",
    )
    MISSING_REQUIRED_PARAMETER = (400, "a field is missing", "add it")
    INVALID_TYPE = (400, "a field has a value of another type", "send the named type")
    INVALID_VALUE = (
        400,
        "a field has a value that cannot be served, or does not go with another field",
        "change it as the message says",
    )
    CONTEXT_LENGTH_EXCEEDED = (
        400,
        "the prompt is longer than the model's context",
        "shorten it",
    )
    TOO_MANY_CHOICES = (
        400,
        "the request asks for more answers than the server works on at a time",
        "ask for fewer",
    )
    TOO_MANY_LOGPROBS = (
        400,
        "the answer could have more log-probabilities than are allowed",
        "ask for fewer tokens, answers or alternatives, or for a stream",
    )
    KV_HANDLE_INVALID = (
        400,
        "the prompt that kv_transfer_params or bootstrap_room names cannot be taken over here",
        "send the request to the prefill server again, and its answer's kv_transfer_params here",
    )
    PROMPT_TOO_SLOW = (400, "the prompt took too long to prepare", "shorten it")
    GRAMMAR_INVALID = (
        400,
        "the schema, pattern or grammar of the output is malformed, or nothing can match it",
        "correct it at the named place",
    )
    GRAMMAR_UNSUPPORTED = (
        400,
        "the output's grammar uses a feature that cannot be enforced",
        "leave it out, or write it in another way",
    )
    GRAMMAR_TOO_COMPLEX = (400, "the output's grammar exceeds a limit", "make it smaller")
    GRAMMAR_TIMEOUT = (
        400,
        "the output's grammar was not compiled in time",
        "make it smaller, or raise --grammar-timeout",
    )
    GRAMMAR_LIMIT_EXCEEDED = (
        400,
        "the output's grammar exceeded a limit while the answer was generated",
        "make it simpler",
    )
    GRAMMAR_DEAD_END = (
        400,
        "the answer reached a place where its grammar allows no token: the grammar has no text from "
        "there on, or the model's tokens cannot spell it",
        "give every part of the grammar a text that can follow",
    )
    INVALID_API_KEY = (
        401,
        "no valid API key",
        "send it as the header 'Authorization: Bearer <key>' or 'x-api-key: <key>'",
    )
    HOST_NOT_ALLOWED = (
        403,
        "the Host header is not a name of this server",
        "use localhost or an address, or start the server with --allowed-host or an API key",
    )
    ORIGIN_NOT_ALLOWED = (
        403,
        "web pages of this origin may not use the server",
        "start it with --cors-origin to let them",
    )
    PREVIOUS_RESPONSE_NOT_FOUND = (
        400,
        "no response with this id is stored",
        "send the whole conversation as input",
    )
    ROUTE_NOT_FOUND = (404, "there is no such route", "correct the path of the URL")
    ROUTE_NOT_SUPPORTED = (
        404,
        "this part of the API is not served here",
        "use a server that has it, or what the message suggests",
    )
    RESPONSE_NOT_FOUND = (
        404,
        "no response with this id is stored: it was not sent with this key, was not stored, was "
        "deleted or has made room for later ones",
        "create it again",
    )
    MODEL_NOT_FOUND = (
        404,
        "another model is served",
        "send one of the names of GET /v1/models, or start the server with --served-model-name",
    )
    METHOD_NOT_ALLOWED = (405, "the route does not take this method", "see the Allow header")
    BODY_TIMEOUT = (408, "the request's body did not arrive in time", "send it again, faster")
    CLIENT_TOO_SLOW = (
        408,
        "the client read its answer too slowly, so the server ended it",
        "read it as it arrives",
    )
    BODY_TOO_LARGE = (
        413,
        "the body is too long",
        "shorten it, or raise --max-body-bytes",
    )
    CONTENT_TYPE_NOT_ALLOWED = (
        415,
        "a web page sent something other than JSON",
        "send it with Content-Type: application/json",
    )
    CONTENT_ENCODING_NOT_SUPPORTED = (
        415,
        "compressed bodies are not accepted",
        "send the JSON as it is",
    )
    HEAD_TOO_LARGE = (431, "the head of the request is too long", "shorten it")
    QUEUE_FULL = (429, "too many requests are waiting", "try again in a moment")
    CLIENT_CLOSED = (
        499,
        "the client closed its side of the connection before it had the answer",
        "keep it open until the answer has arrived",
    )
    INTERNAL_ERROR = (500, "the server failed on this request", "its log says why")
    ENGINE_ERROR = (500, "the engine failed on this answer", "try it again")
    ENGINE_STARTING = (503, "the model is still being loaded", "try again in a moment")
    ENGINE_RESTARTING = (
        503,
        "the engine process has ended and is being started again",
        "try again in a moment",
    )
    ENGINE_FAILED = (
        503,
        "the engine process has ended",
        "the server is shutting down, try another one",
    )
    ENGINE_BUSY = (503, "the engine could not take the request", "try it again")
    ENGINE_STALLED = (
        503,
        "the engine has not made a step for some time",
        "try again later",
    )
    ANSWER_LOST = (
        503,
        "the engine process has ended before the answer was complete",
        "send the request again",
    )
    ANSWER_ENDED = (
        503,
        "the request was ended by the server before it was finished",
        "send it again",
    )
    GRAMMARS_UNAVAILABLE = (
        503,
        "the engine has no thread left to compile output grammars",
        "try again later",
    )
    KV_UNAVAILABLE = (
        503,
        "the prompt could not be held for a decode server, or not be read from the prefill server",
        "send the request to the prefill server again",
    )
    PREPARATION_QUEUE_FULL = (
        503,
        "too many requests are being prepared",
        "try again in a moment",
    )
    DRAINING = (503, "the server is shutting down", "try another one")
