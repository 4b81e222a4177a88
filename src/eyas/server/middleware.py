"""What every request passes before it reaches a route, and every answer on its way out.

Promises: deny by default: all routes but the probes need a key where keys are set, and come from this
machine's own pages or none where they are not; answers to the pages of configured origins, errors too,
say so; every answer has a request id; while the server drains nothing new gets in but probes and
scrapes; a request counts from when all of it is there, and one too many is told so; whatever goes wrong
inside becomes a 500 in OpenAI's shape and a line in the log. Does not know: routes.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eyas.server.codes import Code
from eyas.server.errors import ApiError
from eyas.server.origins import Origins
from eyas.server.service import Service

log = logging.getLogger("eyas.server")

PROBES = frozenset({"/health", "/ready", "/livez", "/readyz"})
ALLOWED_WHILE_DRAINING = PROBES | {"/metrics"}
EXPOSED_HEADERS = ("x-request-id", "retry-after")
"""What pages may read of an answer's head, beside what they may read of any."""
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class _CorsMiddleware(CORSMiddleware):
    """Starlette's, with errors in our shape. Origins and headers are not its own to refuse here."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        asked = request_headers["access-control-request-method"][:20]
        message = f"web pages may send GET and POST here, not {asked!r}"
        refused = ApiError(Code.METHOD_NOT_ALLOWED, message).response()
        kept = ("access-control-", "vary")
        refused.headers.update({k: v for k, v in response.headers.items() if k.startswith(kept)})
        return refused


class ServerMiddleware:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        options = service.options
        self._app = app
        self._service = service
        self._key_hashes = [_hash(key.encode()) for key in options.api_keys]
        place = options.host if options.uds is None else None
        self._origins = Origins(place, options.allowed_hosts, options.cors_origins)
        self._guarded_app: ASGIApp = self._handle
        if options.cors_origins:
            self._guarded_app = _CorsMiddleware(
                self._handle,
                allow_origins=options.cors_origins,
                allow_methods=("GET", "POST"),
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
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_out(message: Message) -> None:
            if message["type"] == "http.response.start":
                message.setdefault("headers", [])
                outgoing = MutableHeaders(scope=message)
                outgoing["x-request-id"] = request_id
                if self._service.is_draining:
                    outgoing["connection"] = "close"
                self._service.metrics.count_response(message["status"])
            await send(message)

        try:
            self._check_origin(scope, headers)
        except ApiError as error:
            await error.response()(scope, receive, send_out)
        else:
            await self._guarded_app(scope, receive, send_out)

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """A key says who asks, and no page of others knows it: with keys, only a browser's question
        whether a page may ask is answered here, since it comes without the key."""
        is_question = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        if scope["path"] in PROBES:
            return
        if not self._key_hashes:
            self._origins.check_host(headers)
        if not self._key_hashes or is_question:
            self._origins.check_origin(headers)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = is_counted = False

        async def send_on(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        async def receive_in() -> Message:
            nonlocal is_counted
            message = await receive()
            is_whole = message["type"] == "http.request" and not message.get("more_body", False)
            if is_whole and not is_counted:
                if self._num_requests >= self._service.options.max_requests:
                    raise ApiError(Code.QUEUE_FULL)
                is_counted = True
                self._num_requests += 1
            return message

        try:
            self._authorize(scope, Headers(scope=scope))
            await self._app(scope, receive_in, send_on)
        except ApiError as error:
            await error.response()(scope, receive, send_on)
        except Exception:
            request_id = scope["state"]["request_id"]
            log.exception("request %s failed", request_id, extra={"request_id": request_id})
            if not has_started:
                failure = ApiError(Code.INTERNAL_ERROR)
                await failure.response()(scope, receive, send_on)
        finally:
            self._num_requests -= is_counted

    def _authorize(self, scope: Scope, headers: Headers) -> None:
        if scope["path"] in PROBES:
            return
        if not self._key_hashes:
            self._origins.check_content_type(scope["method"], headers)
        else:
            scope["state"]["key"] = self._key_id(headers.getlist("authorization"))
        if scope["path"] in ALLOWED_WHILE_DRAINING:
            return
        if self._service.is_draining:
            raise self._service.draining()

    def _key_id(self, values: Sequence[str]) -> str:
        """What stands for the key that was sent, however its header is written. ApiError 401 for none
        that opens, found in constant time, whichever key it is."""
        scheme, _, key = values[0].partition(" ") if len(values) == 1 else ("", "", "")
        given = _hash(key.strip(" \t").encode("latin-1"))  # the bytes as they were sent
        matches = [secrets.compare_digest(given, known) for known in self._key_hashes]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(Code.INVALID_API_KEY)
        return given.hex()[:16]


def request_id_of(headers: Headers) -> str:
    """The id that the client gave its request, if it is one; else a new one."""
    asked = headers.get("x-request-id", "")
    return asked if _REQUEST_ID.fullmatch(asked) else secrets.token_hex(12)


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
