"""The routes about the server: probes, metrics, models, load.

Promises: those that SGLang's routers use have its new and its old names. Does not know: answers.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

import eyas
from eyas.server import server_info
from eyas.server.http.sse import json_response
from eyas.server.service import Service


class InfoRoutes:
    """The handlers of the routes about the server."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, http: HttpRequest) -> Response:
        """Whether the HTTP process runs, whatever the state of the engine."""
        return json_response({"status": "ok"})

    async def ready(self, http: HttpRequest) -> Response:
        """Whether the model is loaded, the engine makes steps and requests of all kinds are
        accepted."""
        self._service.check_ready()
        stats = self._service.client.health().stats
        return json_response(
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
        return json_response({"object": "list", "data": cards})

    async def model(self, http: HttpRequest) -> Response:
        name = http.path_params["name"]
        self._service.check_model(name)
        self._service.check_open()
        return json_response(self._card(name))

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
        return json_response({"version": eyas.__version__})

    async def server_info(self, http: HttpRequest) -> Response:
        return json_response(server_info.server_info(self._service))

    async def model_info(self, http: HttpRequest) -> Response:
        return json_response(server_info.model_info(self._service))

    async def load(self, http: HttpRequest) -> Response:
        return json_response(server_info.load(self._service))

    async def server_load(self, http: HttpRequest) -> Response:
        """The requests that run or wait, as vLLM's route tells them."""
        stats = self._service.client.health().stats
        return json_response({"server_load": stats.num_running + stats.num_waiting})

    async def loads(self, http: HttpRequest) -> Response:
        return json_response(server_info.loads(self._service))

    async def forget_prefixes(self, http: HttpRequest) -> Response:
        """Evict the cached prefixes that no running answer uses: SGLang's and vLLM's routes."""
        self._service.check_open()
        await self._service.client.forget_prefixes()
        return json_response({"status": "ok"})
