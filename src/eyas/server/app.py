"""The application of a server: its table of routes, and the responses to errors.

Promises: errors have the shape of the route's API, those of unknown routes and methods OpenAI's.
Does not know: what handlers do, sockets, processes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from eyas.core import RequestError
from eyas.server import answer_routes
from eyas.server.answering import answer_route
from eyas.server.http.codes import Code
from eyas.server.http.errors import ApiError
from eyas.server.http.middleware import MESSAGES_ROUTE, ServerMiddleware, refusal
from eyas.server.http.missing_routes import no_such_route, not_supported
from eyas.server.http.sse import ClientDisconnected
from eyas.server.info_routes import InfoRoutes
from eyas.server.messages.conversion import field_name as field_of_message
from eyas.server.messages.models import MessagesBody
from eyas.server.playground import page_files
from eyas.server.request_models import ChatBody, CompletionBody, GenerateBody
from eyas.server.request_reader import RequestReader
from eyas.server.responses.conversion import field_name as field_of_response
from eyas.server.responses.models import ResponseBody
from eyas.server.responses.routes import ResponseRoutes
from eyas.server.service import Service
from eyas.server.token_routes import TokenRoutes

Handler = Callable[[HttpRequest], Awaitable[Response]]


def create_app(service: Service) -> ASGIApp:
    """Create the ASGI application of one server."""
    reader = RequestReader(service)
    info = InfoRoutes(service)
    answer = partial(answer_route, service, reader)
    tokens = TokenRoutes(reader)
    stored = ResponseRoutes(service)
    create_chat = answer(ChatBody, answer_routes.CHAT_PREFIX, answer_routes.chat)
    create_completion = answer(
        CompletionBody, answer_routes.COMPLETION_PREFIX, answer_routes.completion
    )
    generate = answer(GenerateBody, "", answer_routes.generate, num_id_bytes=16)
    create_response = answer(
        ResponseBody, "resp_", stored.translate, num_id_bytes=24, rename=field_of_response
    )
    create_message = answer(MessagesBody, "msg_", answer_routes.message, rename=field_of_message)
    table: list[tuple[str, str, Handler]] = [
        ("GET", "/health", info.health),
        ("GET", "/livez", info.health),
        ("GET", "/ping", info.health),
        ("POST", "/ping", info.health),
        ("GET", "/version", info.version),
        ("GET", "/ready", info.ready),
        ("GET", "/readyz", info.ready),
        ("GET", "/health_generate", info.ready),
        ("GET", "/metrics", info.metrics),
        ("GET", "/v1/models", info.models),
        ("GET", "/v1/models/{name:path}", info.model),
        ("GET", "/server_info", info.server_info),
        ("GET", "/get_server_info", info.server_info),
        ("GET", "/model_info", info.model_info),
        ("GET", "/get_model_info", info.model_info),
        ("GET", "/get_load", info.load),
        ("GET", "/load", info.server_load),
        ("GET", "/loads", info.loads),
        ("GET", "/v1/loads", info.loads),
        ("POST", "/v1/chat/completions", create_chat),
        ("POST", "/v1/completions", create_completion),
        ("POST", "/v1/responses", create_response),
        ("GET", "/v1/responses/{id}", stored.retrieve),
        ("DELETE", "/v1/responses/{id}", stored.delete),
        ("POST", MESSAGES_ROUTE, create_message),
        ("POST", f"{MESSAGES_ROUTE}/count_tokens", tokens.count_tokens),
        ("POST", "/generate", generate),
        ("POST", "/flush_cache", info.forget_prefixes),
        ("POST", "/reset_prefix_cache", info.forget_prefixes),
        ("POST", "/tokenize", tokens.tokenize),
        ("POST", "/v1/tokenize", tokens.tokenize),
        ("POST", "/detokenize", tokens.detokenize),
        ("POST", "/v1/detokenize", tokens.detokenize),
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
        refused = ApiError(Code.METHOD_NOT_ALLOWED, message)
        failure = not_supported(http.url.path) or refused
    response = refusal(http.scope, failure)
    response.headers.update(error.headers or {})
    return response


async def _internal_error(http: HttpRequest, error: Exception) -> Response:
    """Return a 500. Starlette raises the exception again, and the middleware logs it."""
    return refusal(http.scope, ApiError(Code.INTERNAL_ERROR))
