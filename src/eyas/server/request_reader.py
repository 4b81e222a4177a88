"""Reads a request of any route: its body, validated, and the work of preparing it, in its turn.

Promises: the bodies of all requests together fit in memory; errors in the body take precedence over
errors about the engine's state. Does not know: what the fields mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request as HttpRequest

from eyas.server.http.body import Body, BodyMemoryLimit, parse_off_event_loop, read_body
from eyas.server.http.sse import unless_disconnected
from eyas.server.service import Service
from eyas.server.text_processor import TextProcessor

Result = TypeVar("Result")


class RequestReader:
    """The reader that all routes of a server share."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._bodies = BodyMemoryLimit(service.options.max_body_memory)

    async def read(self, http: HttpRequest, kind: type[Body]) -> tuple[Body, TextProcessor]:
        """Read and validate the body. Return it with the text processor. ApiError if it is invalid, or
        if the server cannot accept work."""
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

    async def prepare(self, http: HttpRequest, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, run in a thread when it is this client's turn.

        ClientDisconnected if the client leaves before that.
        """
        client = self._service.client_of(http)
        prepared = self._service.prepare_pool.run(work, client, http.state.body_size)
        return await unless_disconnected(http.receive, prepared)
