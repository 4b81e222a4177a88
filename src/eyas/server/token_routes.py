"""The routes /tokenize, /detokenize and /v1/messages/count_tokens.

Promises: texts and ids may be longer than the context, since clients ask how much to leave out; the
limits of bodies and of the time to prepare them hold.
Does not know: requests of the engine.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from eyas.core import field_error
from eyas.server.formats import token_text
from eyas.server.http.error_context import ErrorContext
from eyas.server.http.sse import json_response
from eyas.server.messages.conversion import field_name, prepare_messages
from eyas.server.messages.models import CountTokensBody
from eyas.server.request_models import DetokenizeBody, TokenizeBody
from eyas.server.request_reader import RequestReader
from eyas.server.template_inputs import template_messages, template_options, template_tools
from eyas.server.text_processor import TextProcessor
from eyas.text import require_tokenizer


class TokenRoutes:
    """The handlers of these routes."""

    def __init__(self, reader: RequestReader) -> None:
        self._reader = reader

    async def tokenize(self, http: HttpRequest) -> Response:
        body, processor = await self._reader.read(http, TokenizeBody)
        with ErrorContext(body).explains():
            result = await self._reader.prepare(http, lambda: _tokenize(body, processor))
        return json_response(result)

    async def detokenize(self, http: HttpRequest) -> Response:
        body, processor = await self._reader.read(http, DetokenizeBody)
        with ErrorContext(body).explains():
            text = await self._reader.prepare(http, lambda: _detokenize(body, processor))
        return json_response({"prompt": text})

    async def count_tokens(self, http: HttpRequest) -> Response:
        body, processor = await self._reader.read(http, CountTokensBody)
        with ErrorContext(body, field_name).explains():
            chat = await self._reader.prepare(
                http, lambda: prepare_messages(body, processor.unlimited(), "", "")
            )
        return json_response({"input_tokens": len(chat.request.prompt_token_ids)})


def _detokenize(body: DetokenizeBody, processor: TextProcessor) -> str:
    if body.tokens and max(body.tokens) >= processor.vocab_size:
        raise field_error("tokens", f"holds ids beyond the vocabulary of {processor.vocab_size}")
    tokenizer = require_tokenizer(processor.tokenizer, "tokens")
    return tokenizer.decode(body.tokens, skip_special=False)


def _tokenize(body: TokenizeBody, processor: TextProcessor) -> dict[str, Any]:
    ids = _ids_of(body, processor)
    result: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": processor.max_model_len,
        "tokens": ids,
    }
    if body.return_token_strs:
        result["token_strs"] = [token_text(processor.tokenizer, token) for token in ids]
    return result


def _ids_of(body: TokenizeBody, processor: TextProcessor) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise field_error("prompt", "give either prompt or messages")
    if body.messages is not None:
        return processor.unlimited().encode_chat(
            template_messages(body.messages, processor),
            template_tools(body.tools),
            **template_options(processor, body.messages, body, None),
        )
    assert body.prompt is not None
    tokenizer = require_tokenizer(processor.tokenizer, "prompt")
    if body.add_special_tokens is False:
        return tokenizer.encode_text(body.prompt)
    return tokenizer.encode_prompt(body.prompt)
