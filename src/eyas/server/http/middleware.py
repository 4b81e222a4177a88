"""The ASGI middleware that every request and every answer passes.

Promises: denies by default: with keys, every route except the probes and the files of the server's own
page, which hold no secret, needs one; without keys, a web page's request must come from this server's
or a configured origin. Answers to pages of configured origins, errors included, have CORS headers.
Every answer has a request id. While the server drains, only probes and scrapes are accepted. A request
counts against the limit once its body has arrived. Any exception becomes a 500 in the route's shape
and a line in the log. A record of every request is reported when it has ended. Does not know: routes,
who reads the records.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eyas.server.http.codes import Code
from eyas.server.http.errors import ApiError
from eyas.server.http.origins import Origins
from eyas.server.playground import PATHS
from eyas.server.service import Service
from eyas.server.telemetry.record import RequestRecord

log = logging.getLogger("eyas.server")

MESSAGES_ROUTE = "/v1/messages"
"""The route whose errors, and those of routes below it, have Anthropic's shape."""
PROBES = frozenset({"/health", "/ping", "/ready", "/livez", "/readyz", "/health_generate"})
ALLOWED_WHILE_DRAINING = PROBES | {"/metrics"}
EXPOSED_HEADERS = ("x-request-id", "retry-after")
"""Headers of an answer that web pages may read, besides those that CORS always allows."""
ALLOWED_METHODS = ("GET", "POST", "DELETE")
"""What web pages of other origins may send."""
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class _CorsMiddleware(CORSMiddleware):
    """Starlette's CORS middleware, with errors in OpenAI's shape."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        requested = request_headers["access-control-request-method"][:20]
        message = f"web pages may send {', '.join(ALLOWED_METHODS)} here, not {requested!r}"
        refused = ApiError(Code.METHOD_NOT_ALLOWED, message).response()
        kept_prefixes = ("access-control-", "vary")
        refused.headers.update(
            {k: v for k, v in response.headers.items() if k.startswith(kept_prefixes)}
        )
        return refused


class ServerMiddleware:
    """The middleware around the whole application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        options = service.options
        self._app = app
        self._service = service
        self._key_hashes = [_hash(key.encode()) for key in options.api_keys]
        bound_to = options.host if options.uds is None else None
        self._open_paths = frozenset(PATHS.values() if options.playground else ())
        self._origins = Origins(bound_to, options.allowed_hosts, options.cors_origins)
        self._guarded_app: ASGIApp = self._handle
        if options.cors_origins:
            self._guarded_app = _CorsMiddleware(
                self._handle,
                allow_origins=options.cors_origins,
                allow_methods=ALLOWED_METHODS,
                allow_headers=("*",),
                allow_private_network=True,
                expose_headers=EXPOSED_HEADERS,
            )
        self._num_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = request_id_of(headers)
        record = RequestRecord(request_id=request_id, method=scope["method"], headers=headers)
        scope.setdefault("state", {}).update(request_id=request_id, record=record)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message.setdefault("headers", [])
                outgoing = MutableHeaders(scope=message)
                outgoing["x-request-id"] = request_id
                if self._service.is_draining:
                    outgoing["connection"] = "close"
                self._service.metrics.count_response(message["status"])
                record.status = message["status"]
            await send(message)

        try:
            self._check_host_and_origin(scope, headers)
        except ApiError as error:
            await refusal(scope, error)(scope, receive, send_with_headers)
        else:
            await self._guarded_app(scope, receive, send_with_headers)
        finally:
            record.end()
            self._service.report(record)

    def _check_host_and_origin(self, scope: Scope, headers: Headers) -> None:
        """Check Host and Origin. ApiError 403 if they are not allowed.

        With keys only preflight requests are checked: they have no key, while a foreign page does not
        know the key that all other requests need.
        """
        is_preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        if scope["path"] in PROBES:
            return
        if not self._key_hashes:
            self._origins.check_host(headers)
        if not self._key_hashes or is_preflight:
            self._origins.check_origin(headers)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = is_counted = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        async def receive_and_count() -> Message:
            nonlocal is_counted
            message = await receive()
            is_whole = message["type"] == "http.request" and not message.get("more_body", False)
            if is_whole and not is_counted:
                if self._num_requests >= self._service.options.max_requests:
                    self._make_place()
                is_counted = True
                self._num_requests += 1
            return message

        try:
            self._authorize(scope, Headers(scope=scope))
            await self._app(scope, receive_and_count, send_and_note)
        except ApiError as error:
            await refusal(scope, error)(scope, receive, send_and_note)
        except Exception:
            request_id = scope["state"]["request_id"]
            log.exception("request %s failed", request_id, extra={"request_id": request_id})
            if not has_started:
                failure = ApiError(Code.INTERNAL_ERROR)
                await refusal(scope, failure)(scope, receive, send_and_note)
        finally:
            self._num_requests -= is_counted

    def _make_place(self) -> None:
        """End the last in turn of the requests that wait to be prepared, for another one. ApiError 429
        if none waits."""
        if not self._service.prepare_pool.refuse_last():
            raise ApiError(Code.QUEUE_FULL)

    def _authorize(self, scope: Scope, headers: Headers) -> None:
        if scope["path"] in PROBES:
            return
        if not self._key_hashes:
            self._origins.check_content_type(scope["method"], headers)
        elif scope["path"] not in self._open_paths:
            scope["state"]["key"] = self._key_id(headers)
        if scope["path"] in ALLOWED_WHILE_DRAINING:
            return
        if self._service.is_draining:
            raise self._service.draining()

    def _key_id(self, headers: Headers) -> str:
        """Return an identity for the key in the Authorization or the x-api-key header; with both, the
        keys must be the same. ApiError 401 if the key is not valid.

        Compares with all keys in constant time.
        """
        authorizations, keys = headers.getlist("authorization"), headers.getlist("x-api-key")
        schemes = [value.partition(" ") for value in authorizations]
        is_bearer = all(scheme.lower() == "bearer" for scheme, _, _ in schemes)
        sent = [*(key for _, _, key in schemes), *keys]
        # latin-1 gives the original bytes of the header
        hashes = [_hash(key.strip(" \t").encode("latin-1")) for key in sent] or [b""]
        given = hashes[0]
        matches = [secrets.compare_digest(given, key_hash) for key_hash in self._key_hashes]
        is_one = len(authorizations) <= 1 and len(keys) <= 1 and hashes[-1] == given
        if not (is_bearer and is_one and any(matches)):
            raise ApiError(Code.INVALID_API_KEY)
        return given.hex()[:16]


def refusal(scope: Scope, error: ApiError) -> Response:
    """Return the response of an error, which the request's record then names."""
    scope["state"]["record"].error_code = error.code.word
    path = scope["path"]
    if path == MESSAGES_ROUTE or path.startswith(f"{MESSAGES_ROUTE}/"):
        body = {**error.anthropic_body(), "request_id": scope["state"]["request_id"]}
        return error.response(body)
    return error.response()


def request_id_of(headers: Headers) -> str:
    """Return the request id that the client sent, if it is valid; else a new one."""
    requested = headers.get("x-request-id", "")
    return requested if _REQUEST_ID.fullmatch(requested) else secrets.token_hex(12)


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
