"""The steps of every route that answers, in their order.

Promises: a request that has errors is refused before it takes a place in the queue; an error names the
field that was sent. Does not know: how requests are converted, how answers are formatted.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Concatenate, Generic, NamedTuple, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from eyas.core import Request
from eyas.server.answer import Answer
from eyas.server.formats import AnswerFormat
from eyas.server.http.error_context import ErrorContext, Rename
from eyas.server.request_models import AnswerFields
from eyas.server.request_reader import RequestReader
from eyas.server.service import Service
from eyas.server.text_processor import TextProcessor

Body = TypeVar("Body", bound=AnswerFields)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class AnswerRequest(Generic[Body]):
    """A request that has been read. id: of its answer. model: the name that the answer has."""

    service: Service
    http: HttpRequest
    body: Body
    processor: TextProcessor
    id: str
    model: str
    reader: RequestReader

    async def prepared(
        self,
        convert: Callable[Concatenate[Body, TextProcessor, str, str, ...], Result],
        body: Body,
        *more: bytes,
    ) -> Result:
        """Return what `convert` makes of a body, with the processor, the answer's id and the salt of
        the prefix cache, in a thread when it is this client's turn."""
        salt = self.service.cache_salt(body.cache_salt, self.http)
        work = partial(convert, body, self.processor, self.id, salt, *more)
        return await self.reader.prepare(self.http, work)


class Translation(NamedTuple):
    """A request as those of the engine, and the format of their answer. Other fields: as in
    `Answer`."""

    requests: list[Request]
    answer_format: AnswerFormat
    with_drafts: bool | None = False
    with_usage_so_far: bool = False


def answer_route(
    service: Service,
    reader: RequestReader,
    kind: type[Body],
    id_prefix: str,
    translate: Callable[[AnswerRequest[Body]], Awaitable[Translation]],
    *,
    num_id_bytes: int = 12,
    rename: Rename = lambda path: path,
) -> Callable[[HttpRequest], Awaitable[Response]]:
    """Return the handler of a route that answers. kind: of its bodies. rename: as in `ErrorContext`."""

    async def handle(http: HttpRequest) -> Response:
        body, processor = await reader.read(http, kind)
        answer_id = id_prefix + secrets.token_hex(num_id_bytes)
        model = body.model or service.names[0]
        asked = AnswerRequest(service, http, body, processor, answer_id, model, reader)
        error_context = ErrorContext(body, rename)
        with error_context.explains():
            translation = await translate(asked)
        answer = Answer(
            service,
            http,
            answer_id,
            translation.requests,
            translation.answer_format,
            error_context,
            with_drafts=bool(translation.with_drafts),
            with_usage_so_far=translation.with_usage_so_far,
            granularity=body.stream_granularity,
        )
        return await answer.respond(streams=bool(body.stream))

    return handle
