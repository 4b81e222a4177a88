"""The routes of OpenAI's chat and text completions, and SGLang's /generate.

Promises: a request that has errors is refused before it takes a place in the queue. Does not know: how
requests are converted, how answers are formatted.
"""

from __future__ import annotations

import secrets

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from eyas.server.answer import Answer
from eyas.server.chat import prepare_chat
from eyas.server.chat_format import ChatFormat
from eyas.server.completions import CompletionFormat, completion_requests
from eyas.server.error_context import ErrorContext
from eyas.server.generate import GenerateFormat, generate_requests
from eyas.server.handover import hand_over, prompt_alone
from eyas.server.request_models import ChatBody, CompletionBody, GenerateBody
from eyas.server.request_reader import RequestReader
from eyas.server.sampling import includes_usage, includes_usage_so_far
from eyas.server.service import Service
from eyas.text import require_tokenizer


class AnswerRoutes:
    """The handlers of /v1/chat/completions, /v1/completions and /generate."""

    def __init__(self, service: Service, reader: RequestReader) -> None:
        self._service = service
        self._role = service.config.handover.role
        self._reader = reader

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
