"""An application of Ray Serve: `serve run eyas.deploy.ray:app`, or a YAML file with `Settings`.

Two deployments. `Ingress` reads a request and streams its response. `Engine` is an engine process with
the routes of `eyas serve`; Ray chooses one by the beginning of the prompt (`eyas.deploy.ray_policies`)
and starts as many as the engines' own queues need.

Promises: a request whose engine dies before the response has begun is sent to another one, once;
after that its stream ends with an error event, as when an engine process dies. The request of a
client that disconnects ends in the engine. Does not know: how an engine works.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from eyas.deploy.http_call import HttpCall, read_call
from eyas.deploy.local_server import LocalServer
from eyas.deploy.ray_policies import PrefixRouter, desired_replicas
from eyas.deploy.settings import Settings, read_settings
from eyas.server.http.codes import Code
from eyas.server.http.errors import ApiError
from eyas.server.http.sse import DONE_EVENT, encode_event

log = logging.getLogger("eyas.deploy")

MAX_ATTEMPTS = 2
"""Engines that a request is sent to: it may be what made the first one fail."""
FAILURES = (RayError, RayServeException)


class Engine:
    """One engine process with its routes. Ray replaces it if `check_health` raises."""

    async def __init__(self, settings: Settings) -> None:
        self._server = LocalServer(settings.engine_config(), settings.server_options())
        await self._server.start()

    async def call(self, call: HttpCall) -> AsyncIterator[Message]:
        """Yield the messages of a response."""
        async with aclosing(self._server.call(call)) as messages:
            async for message in messages:
                yield message

    async def check_health(self) -> None:
        self._server.check()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the figures that `desired_replicas` reads."""
        return self._server.load()

    async def process_id(self) -> int | None:
        """Return the id of the engine process."""
        return self._server.process_id

    async def __del__(self) -> None:
        await self._server.close()


class Ingress:
    """Passes requests on to engines."""

    def __init__(self, engines: DeploymentHandle, settings: Settings) -> None:
        self._engines = engines.options(stream=True)
        self._max_body_bytes = settings.server_options().max_body_bytes
        self._prefix_chars = settings.prefix_chars

    async def __call__(self, request: Request) -> Response:
        call = await read_call(request, self._max_body_bytes, self._prefix_chars)
        for attempt in range(1, MAX_ATTEMPTS + 1):
            response = self._engines.call.remote(call)
            try:
                start = await anext(response)
                first = await anext(response, None)
            except FAILURES as error:
                log.warning("attempt %d of a request failed: %s", attempt, error)
                continue
            answer = StreamingResponse((), start["status"])
            answer.raw_headers = list(start["headers"])
            has_events = answer.headers.get("content-type", "").startswith("text/event-stream")
            answer.body_iterator = _body(first, response, has_events)
            return answer
        return ApiError(Code.ANSWER_LOST).response()


async def _body(first: Message | None, response: Any, has_events: bool) -> AsyncIterator[bytes]:
    """Yield the body of a response. If its engine dies, a stream of events ends with an error event,
    and the connection of any other body is closed before its end."""
    is_whole = False
    try:
        if first is not None:
            yield first["body"]
        async for message in response:
            yield message["body"]
        is_whole = True
    except FAILURES as error:
        log.warning("a response was interrupted: %s", error)
        is_whole = True
        if not has_events:
            raise
        yield encode_event(ApiError(Code.ANSWER_LOST).body())
        yield DONE_EVENT
    finally:
        if not is_whole:
            response.cancel()  # the client has gone


def app(given: Mapping[str, Any]) -> serve.Application:
    """Build the application. ValueError names a setting that cannot be used.

    given: the fields of `eyas.deploy.settings.Settings`, as `serve run` and the `args` of a YAML file
    pass them.
    """
    settings = read_settings(given)
    options = settings.server_options()
    engines = serve.deployment(
        Engine,
        max_ongoing_requests=settings.max_ongoing,
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": settings.gpus},
        autoscaling_config=AutoscalingConfig(
            min_replicas=settings.min_replicas,
            max_replicas=settings.max_replicas,
            target_ongoing_requests=settings.target,
            upscale_delay_s=settings.upscale_delay,
            downscale_delay_s=settings.downscale_delay,
            policy=AutoscalingPolicy(policy_function=desired_replicas),
        ),
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
        health_check_period_s=2,
        graceful_shutdown_timeout_s=options.drain_seconds + 5,
    )
    ingress = serve.deployment(
        Ingress,
        num_replicas=settings.ingress_replicas,
        max_ongoing_requests=options.max_requests,
        ray_actor_options={"num_cpus": 0},
    )
    return ingress.bind(engines.bind(settings), settings)
