"""The routes: each handler reads a request, prepares it and returns its response.

Promises: answers and errors have the shapes of the route's API, those for unknown routes and methods
OpenAI's.
Does not know: how tokens are generated, sockets, processes.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

import eyas
from eyas.core import RequestError
from eyas.server import errors, server_info
from eyas.server.answer import Answer
from eyas.server.chat import prepare_chat
from eyas.server.chat_format import ChatFormat
from eyas.server.codes import Code
from eyas.server.completions import CompletionFormat, completion_requests
from eyas.server.error_context import ErrorContext
from eyas.server.errors import ApiError
from eyas.server.formats import token_text
from eyas.server.generate import GenerateFormat, generate_requests
from eyas.server.handover import hand_over, prompt_alone
from eyas.server.messages_routes import MessagesRoutes
from eyas.server.middleware import MESSAGES_ROUTE, ServerMiddleware, refusal
from eyas.server.missing_routes import no_such_route
from eyas.server.playground import page_files
from eyas.server.request_models import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerateBody,
    TokenizeBody,
)
from eyas.server.request_reader import RequestReader
from eyas.server.response_routes import ResponseRoutes
from eyas.server.sampling import includes_usage, includes_usage_so_far
from eyas.server.service import Service
from eyas.server.sse import ClientDisconnected
from eyas.server.template_inputs import template_messages, template_options, template_tools
from eyas.server.text_processor import TextProcessor
from eyas.text import require_tokenizer

Handler = Callable[[HttpRequest], Awaitable[Response]]


def create_app(service: Service) -> ASGIApp:
    """Create the ASGI application of one server."""
    reader = RequestReader(service)
    routes = _Routes(service, reader)
    responses = ResponseRoutes(service, reader)
    messages = MessagesRoutes(service, reader)
    table: list[tuple[str, str, Handler]] = [
        ("GET", "/health", routes.health),
        ("GET", "/livez", routes.health),
        ("GET", "/ping", routes.health),
        ("POST", "/ping", routes.health),
        ("GET", "/version", routes.version),
        ("GET", "/ready", routes.ready),
        ("GET", "/readyz", routes.ready),
        ("GET", "/health_generate", routes.ready),
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
        ("POST", "/v1/responses", responses.create),
        ("GET", "/v1/responses/{id}", responses.retrieve),
        ("DELETE", "/v1/responses/{id}", responses.delete),
        ("POST", MESSAGES_ROUTE, messages.create),
        ("POST", f"{MESSAGES_ROUTE}/count_tokens", messages.count_tokens),
        ("POST", "/generate", routes.generate),
        ("POST", "/flush_cache", routes.forget_prefixes),
        ("POST", "/reset_prefix_cache", routes.forget_prefixes),
        ("POST", "/tokenize", routes.tokenize),
        ("POST", "/detokenize", routes.detokenize),
    ]
    if service.options.playground:
        table += [("GET", file.path, file.respond) for file in page_files()]
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

    def __init__(self, service: Service, reader: RequestReader) -> None:
        self._service = service
        self._role = service.config.handover.role
        self._reader = reader

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

    async def version(self, http: HttpRequest) -> Response:
        return _json_response({"version": eyas.__version__})

    async def server_info(self, http: HttpRequest) -> Response:
        return _json_response(server_info.server_info(self._service))

    async def model_info(self, http: HttpRequest) -> Response:
        return _json_response(server_info.model_info(self._service))

    async def load(self, http: HttpRequest) -> Response:
        return _json_response(server_info.load(self._service))

    async def loads(self, http: HttpRequest) -> Response:
        return _json_response(server_info.loads(self._service))

    async def forget_prefixes(self, http: HttpRequest) -> Response:
        """Evict the cached prefixes that no running answer uses: SGLang's and vLLM's routes."""
        self._service.check_open()
        await self._service.client.forget_prefixes()
        return _json_response({"status": "ok"})

    async def chat(self, http: HttpRequest) -> Response:
        body, processor = await self._reader.read(http, ChatBody)
        answer_id = f"chatcmpl-{secrets.token_hex(12)}"
        salt = self._service.cache_salt(body.cache_salt, http)
        errors_of_body = ErrorContext(body)
        with errors_of_body.explains():
            body = prompt_alone(body, self._role)
            chat = await self._reader.prepare(
                http, lambda: prepare_chat(body, processor, answer_id, salt)
            )
            hand_over(body, [chat.request], self._role)
        tokenizer = require_tokenizer(processor.tokenizer, "messages")
        name = body.model or self._service.names[0]
        answer = Answer(
            self._service,
            answer_id,
            [chat.request],
            ChatFormat(tokenizer, answer_id, name, chat, includes_usage(body)),
            errors_of_body,
            with_drafts=bool(body.return_draft_details),
            with_usage_so_far=includes_usage_so_far(body),
            granularity=body.stream_granularity,
        )
        return await answer.respond(http, streams=bool(body.stream))

    async def completions(self, http: HttpRequest) -> Response:
        body, processor = await self._reader.read(http, CompletionBody)
        answer_id = f"cmpl-{secrets.token_hex(12)}"
        salt = self._service.cache_salt(body.cache_salt, http)
        errors_of_body = ErrorContext(body)
        with errors_of_body.explains():
            body = prompt_alone(body, self._role)
            requests = await self._reader.prepare(
                http, lambda: completion_requests(body, processor, answer_id, salt)
            )
            hand_over(body, requests, self._role)
        name = body.model or self._service.names[0]
        answer = Answer(
            self._service,
            answer_id,
            requests,
            CompletionFormat(processor.tokenizer, answer_id, name, requests, body),
            errors_of_body,
            with_drafts=bool(body.return_draft_details),
            with_usage_so_far=includes_usage_so_far(body),
            granularity=body.stream_granularity,
        )
        return await answer.respond(http, streams=bool(body.stream))

    async def generate(self, http: HttpRequest) -> Response:
        body, processor = await self._reader.read(http, GenerateBody)
        answer_id = secrets.token_hex(16)
        salt = self._service.cache_salt(body.cache_salt, http)
        errors_of_body = ErrorContext(body)
        with errors_of_body.explains():
            requests = await self._reader.prepare(
                http, lambda: generate_requests(body, processor, answer_id, salt)
            )
        answer = Answer(
            self._service,
            answer_id,
            requests,
            GenerateFormat(processor.tokenizer, answer_id, requests, body, processor.eos_token_ids),
            errors_of_body,
            granularity=body.stream_granularity,
        )
        return await answer.respond(http, streams=bool(body.stream))

    async def tokenize(self, http: HttpRequest) -> Response:
        body, processor = await self._reader.read(http, TokenizeBody)
        with ErrorContext(body).explains():
            ids = await self._reader.prepare(http, lambda: _tokenize(body, processor))
        result: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": processor.max_model_len,
            "tokens": ids,
        }
        if body.return_token_strs:
            result["token_strs"] = [token_text(processor.tokenizer, token) for token in ids]
        return _json_response(result)

    async def detokenize(self, http: HttpRequest) -> Response:
        body, processor = await self._reader.read(http, DetokenizeBody)
        with ErrorContext(body).explains():
            text = await self._reader.prepare(http, lambda: _detokenize(body, processor))
        return _json_response({"prompt": text})


def _detokenize(body: DetokenizeBody, processor: TextProcessor) -> str:
    if len(body.tokens) > processor.max_model_len:
        raise errors.too_long(str(len(body.tokens)), processor.max_model_len, "tokens")
    if body.tokens and max(body.tokens) >= processor.vocab_size:
        raise RequestError(
            f"tokens: holds ids beyond the vocabulary of {processor.vocab_size}", param="tokens"
        )
    tokenizer = require_tokenizer(processor.tokenizer, "tokens")
    return tokenizer.decode(body.tokens, skip_special=False)


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
    """Return an error for a client that has closed one side of its connection, or for metrics alone."""
    return refusal(http.scope, ApiError(Code.CLIENT_CLOSED))


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    assert error.status_code in (404, 405), error.status_code  # the router raises no others
    if error.status_code == 404:
        failure = no_such_route(http.method, http.url.path)
    else:
        message = f"this route does not take {http.method[:20]}"
        failure = ApiError(Code.METHOD_NOT_ALLOWED, message)
    response = refusal(http.scope, failure)
    response.headers.update(error.headers or {})
    return response


async def _internal_error(http: HttpRequest, error: Exception) -> Response:
    """Return a 500. Starlette raises the exception again, and the middleware logs it."""
    return refusal(http.scope, ApiError(Code.INTERNAL_ERROR))
