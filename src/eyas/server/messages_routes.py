"""The routes of Anthropic's Messages API.

Promises: a message is generated as the answer of a chat is, in the same turn and within the same
bounds. Does not know: how requests are converted, how messages are formatted.
"""

from __future__ import annotations

import secrets

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from eyas.server.answer import Answer
from eyas.server.error_context import ErrorContext
from eyas.server.messages import field_name, prepare_messages
from eyas.server.messages_format import MessagesFormat
from eyas.server.messages_models import CountTokensBody, MessagesBody
from eyas.server.request_reader import RequestReader
from eyas.server.service import Service
from eyas.server.sse import json_response
from eyas.text import require_tokenizer


class MessagesRoutes:
    """The handlers of /v1/messages."""

    def __init__(self, service: Service, reader: RequestReader) -> None:
        self._service = service
        self._reader = reader

    async def create(self, http: HttpRequest) -> Response:
        body, processor = await self._reader.read(http, MessagesBody)
        message_id = f"msg_{secrets.token_hex(12)}"
        salt = self._service.cache_salt(body.cache_salt, http)
        errors_of_body = ErrorContext(body, field_name)
        with errors_of_body.explains():
            chat = await self._reader.prepare(
                http, lambda: prepare_messages(body, processor, message_id, salt)
            )
        tokenizer = require_tokenizer(processor.tokenizer, "messages")
        name = body.model or self._service.names[0]
        answer = Answer(
            self._service,
            message_id,
            [chat.request],
            MessagesFormat(tokenizer, message_id, name, chat),
            errors_of_body,
            with_drafts=bool(body.return_draft_details),
            granularity=body.stream_granularity,
        )
        return await answer.respond(http, streams=bool(body.stream))

    async def count_tokens(self, http: HttpRequest) -> Response:
        body, processor = await self._reader.read(http, CountTokensBody)
        with ErrorContext(body, field_name).explains():
            chat = await self._reader.prepare(
                http, lambda: prepare_messages(body, processor, "", "")
            )
        return json_response({"input_tokens": len(chat.request.prompt_token_ids)})
