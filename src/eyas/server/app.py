"""The routes: each handler reads a request, prepares it and returns its response.

Promises: answers and errors have OpenAI's shapes, those for unknown routes and methods included.
Does not know: how tokens are generated, sockets, processes.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from eyas.core import RequestError
from eyas.server import errors, server_info
from eyas.server.answer import Answer
from eyas.server.body import Body, BodyMemoryLimit, parse_off_event_loop, read_body
from eyas.server.chat import prepare_chat
from eyas.server.chat_format import ChatFormat
from eyas.server.codes import Code
from eyas.server.completions import CompletionFormat, completion_requests
from eyas.server.errors import ApiError
from eyas.server.formats import token_text
from eyas.server.generate import GenerateFormat, generate_requests
from eyas.server.middleware import ServerMiddleware, refusal
from eyas.server.request_models import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerateBody,
    TokenizeBody,
)
from eyas.server.sampling import includes_usage
from eyas.server.service import Service
from eyas.server.sse import ClientDisconnected, unless_disconnected
from eyas.server.template_inputs import template_messages, template_options, template_tools
from eyas.server.text_processor import TextProcessor
from eyas.text import require_tokenizer

Result = TypeVar("Result")
Handler = Callable[[HttpRequest], Awaitable[Response]]

MAX_LARGE_BODIES = 32
"""How many bodies of the largest size may be in memory at once."""


def create_app(service: Service) -> ASGIApp:
    """Create the ASGI application of one server."""
    routes = _Routes(service)
    table: list[tuple[str, str, Handler]] = [
        ("GET", "/health", routes.health),
        ("GET", "/livez", routes.health),
        ("GET", "/ready", routes.ready),
        ("GET", "/readyz", routes.ready),
        ("GET", "/metrics", routes.metrics),
        ("GET", "/v1/models", routes.models),
        ("GET", "/v1/models/{name:path}", routes.model),
        ("GET", "/server_info", routes.server_info),
        ("GET", "/get_server_info", routes.server_info),
        ("GET", "/model_info", routes.model_info),
        ("GET", "/get_model_info", routes.model_info),
        ("GET", "/get_load", routes.load),
        ("GET", "/loads", routes.loads),
        ("GET", "/v1/loads", routes.loads),
        ("POST", "/v1/chat/completions", routes.chat),
        ("POST", "/v1/completions", routes.completions),
        ("POST", "/generate", routes.generate),
        ("POST", "/tokenize", routes.tokenize),
        ("POST", "/detokenize", routes.detokenize),
    ]
    app = Starlette(
        routes=[
            Route(path, _with_route(path, handler), methods=[method])
            for method, path, handler in table
        ],
        exception_handlers={
            ApiError: _api_error,
            RequestError: _request_error,
            ClientDisconnected: _client_disconnected,
            HTTPException: _http_error,
            Exception: _internal_error,
        },
    )
    app.router.redirect_slashes = False
    return ServerMiddleware(app, service)


def _with_route(path: str, handler: Handler) -> Handler:
    """Return a handler that enters its route into the request's record."""

    async def handle(http: HttpRequest) -> Response:
        http.state.record.route = path
        return await handler(http)

    return handle


def _json_response(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


class _Routes:
    """The handlers of all routes. Those that SGLang's routers use have its new and its old names."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._bodies = BodyMemoryLimit(MAX_LARGE_BODIES * service.options.max_body_bytes)

    async def health(self, http: HttpRequest) -> Response:
        """Whether the HTTP process runs, whatever the state of the engine."""
        return _json_response({"status": "ok"})

    async def ready(self, http: HttpRequest) -> Response:
        """Whether the model is loaded, the engine makes steps and requests of all kinds are
        accepted."""
        self._service.check_ready()
        stats = self._service.client.health().stats
        return _json_response(
            {"status": "ready", "running": stats.num_running, "waiting": stats.num_waiting}
        )

    async def metrics(self, http: HttpRequest) -> Response:
        accept = ",".join(http.headers.getlist("accept"))
        text, content_type = self._service.metrics.render(accept)
        return Response(text, headers={"content-type": content_type, "vary": "Accept"})

    async def models(self, http: HttpRequest) -> Response:
        """List the models, once they accept requests: readiness probes use this route as well."""
        self._service.check_open()
        cards = [self._card(name) for name in self._service.names]
        return _json_response({"object": "list", "data": cards})

    async def model(self, http: HttpRequest) -> Response:
        name = http.path_params["name"]
        self._service.check_model(name)
        self._service.check_open()
        return _json_response(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        info = self._service.info
        return {
            "id": name,
            "object": "model",
            "created": self._service.started_at,
            "owned_by": "eyas",
            "max_model_len": info.max_model_len,
        }

    async def server_info(self, http: HttpRequest) -> Response:
        return _json_response(server_info.server_info(self._service))

    async def model_info(self, http: HttpRequest) -> Response:
        return _json_response(server_info.model_info(self._service))

    async def load(self, http: HttpRequest) -> Response:
        return _json_response(server_info.load(self._service))

    async def loads(self, http: HttpRequest) -> Response:
        return _json_response(server_info.loads(self._service))

    async def chat(self, http: HttpRequest) -> Response:
        body, processor = await self._read_body(http, ChatBody)
        answer_id = f"chatcmpl-{secrets.token_hex(12)}"
        salt = self._service.cache_salt(body.cache_salt, http)
        chat = await self._prepare(http, lambda: prepare_chat(body, processor, answer_id, salt))
        with_usage = includes_usage(body)
        tokenizer = require_tokenizer(processor.tokenizer, "messages")
        answer_format = ChatFormat(
            tokenizer, answer_id, body.model or self._service.names[0], chat, with_usage
        )
        answer = Answer(
            self._service,
            answer_id,
            [chat.request],
            answer_format,
            with_drafts=bool(body.return_draft_details),
        )
        return await answer.respond(http, streams=bool(body.stream), includes_usage=with_usage)

    async def completions(self, http: HttpRequest) -> Response:
        body, processor = await self._read_body(http, CompletionBody)
        answer_id = f"cmpl-{secrets.token_hex(12)}"
        salt = self._service.cache_salt(body.cache_salt, http)
        requests = await self._prepare(
            http, lambda: completion_requests(body, processor, answer_id, salt)
        )
        with_usage = includes_usage(body)
        answer_format = CompletionFormat(
            processor.tokenizer, answer_id, body.model or self._service.names[0], requests, body
        )
        answer = Answer(
            self._service,
            answer_id,
            requests,
            answer_format,
            with_drafts=bool(body.return_draft_details),
        )
        return await answer.respond(http, streams=bool(body.stream), includes_usage=with_usage)

    async def generate(self, http: HttpRequest) -> Response:
        body, processor = await self._read_body(http, GenerateBody)
        answer_id = secrets.token_hex(16)
        salt = self._service.cache_salt(body.cache_salt, http)
        requests = await self._prepare(
            http, lambda: generate_requests(body, processor, answer_id, salt)
        )
        answer_format = GenerateFormat(
            processor.tokenizer, answer_id, requests, body, processor.eos_token_ids
        )
        answer = Answer(self._service, answer_id, requests, answer_format)
        return await answer.respond(http, streams=bool(body.stream), includes_usage=False)

    async def tokenize(self, http: HttpRequest) -> Response:
        body, processor = await self._read_body(http, TokenizeBody)
        ids = await self._prepare(http, lambda: _tokenize(body, processor))
        result: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": processor.max_model_len,
            "tokens": ids,
        }
        if body.return_token_strs:
            result["token_strs"] = [token_text(processor.tokenizer, token) for token in ids]
        return _json_response(result)

    async def detokenize(self, http: HttpRequest) -> Response:
        body, processor = await self._read_body(http, DetokenizeBody)
        if len(body.tokens) > processor.max_model_len:
            raise errors.too_long(str(len(body.tokens)), processor.max_model_len, "tokens")
        if body.tokens and max(body.tokens) >= processor.vocab_size:
            raise ApiError(
                Code.INVALID_VALUE,
                f"tokens: holds ids beyond the vocabulary of {processor.vocab_size}",
                param="tokens",
            )
        tokenizer = require_tokenizer(processor.tokenizer, "tokens")
        text = await self._prepare(http, lambda: tokenizer.decode(body.tokens, skip_special=False))
        return _json_response({"prompt": text})

    async def _read_body(self, http: HttpRequest, kind: type[Body]) -> tuple[Body, TextProcessor]:
        """Read and validate the body. Return it with the text processor.

        Errors in the body take precedence over errors about the engine's state.
        """
        options, client = self._service.options, self._service.client_of(http)
        with self._bodies.share() as share:
            seconds = options.read_timeout_seconds
            data = await read_body(http, options.max_body_bytes, seconds, share)
            http.state.body_size = len(data)
            body = await parse_off_event_loop(data, kind, self._service.parse_pool, client)
            model = getattr(body, "model", None)
            self._service.check_model(model)
            http.state.record.model = model or self._service.names[0]
            if self._service.is_starting:
                await unless_disconnected(http.receive, self._service.wait_for_start(client))
        self._service.check_open()
        return body, self._service.text_processor

    async def _prepare(self, http: HttpRequest, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, run in a thread when it is this client's turn."""
        client = self._service.client_of(http)
        return await self._service.prepare_pool.run(work, client, http.state.body_size)


def _tokenize(body: TokenizeBody, processor: TextProcessor) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("prompt: give either prompt or messages", param="prompt")
    if body.messages is not None:
        options = template_options(
            processor,
            body.messages,
            body.chat_template_kwargs,
            None,
            body.add_generation_prompt,
            body.continue_final_message,
        )
        messages = template_messages(body.messages, processor)
        return processor.encode_chat(messages, template_tools(body.tools), **options)
    assert body.prompt is not None
    processor.check_length(body.prompt, "prompt")
    tokenizer = require_tokenizer(processor.tokenizer, "prompt")
    if body.add_special_tokens is False:
        return tokenizer.encode_text(body.prompt)
    return tokenizer.encode_prompt(body.prompt)


async def _api_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return refusal(http.scope, error)


async def _request_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return refusal(http.scope, ApiError.of(error))


async def _client_disconnected(http: HttpRequest, error: Exception) -> Response:
    """Return a response that only metrics see: the client has disconnected."""
    return Response(status_code=499)


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    assert error.status_code in (404, 405), error.status_code  # the router raises no others
    if error.status_code == 404:
        message = f"there is no route {http.method} {http.url.path[:200]!r}"
        response = refusal(http.scope, ApiError(Code.ROUTE_NOT_FOUND, message))
    else:
        message = f"this route does not take {http.method[:20]}"
        response = refusal(http.scope, ApiError(Code.METHOD_NOT_ALLOWED, message))
    response.headers.update(error.headers or {})
    return response


async def _internal_error(http: HttpRequest, error: Exception) -> Response:
    """Return a 500. Starlette raises the exception again, and the middleware logs it."""
    return refusal(http.scope, ApiError(Code.INTERNAL_ERROR))
