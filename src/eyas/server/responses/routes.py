"""The routes of OpenAI's Responses API.

Promises: a response is generated as a chat is, in the same turn and within the same bounds; it can be
read and continued with the key that created it. Does not know: how requests are converted, how
responses are formatted.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from eyas.core import field_error
from eyas.server.answering import AnswerRequest, Translation
from eyas.server.http.codes import Code
from eyas.server.http.errors import ApiError
from eyas.server.http.sse import ChunkedJsonResponse, json_response
from eyas.server.responses.conversion import (
    PreparedResponse,
    encode_conversation,
    prepare_response,
)
from eyas.server.responses.format import ResponsesFormat
from eyas.server.responses.input import placed_messages
from eyas.server.responses.models import InputItem, ResponseBody
from eyas.server.responses.store import StoredResponse
from eyas.server.service import Service
from eyas.text import require_tokenizer

_ITEMS: TypeAdapter[list[Any]] = TypeAdapter(list[InputItem])


class ResponseRoutes:
    """The translation and the other handlers of /v1/responses."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def translate(self, asked: AnswerRequest[ResponseBody]) -> Translation:
        """Return the request and the format of its answer, which is stored if the body says so."""
        body = asked.body
        is_stored = self._is_stored(body)
        prepared = await asked.prepared(prepare_response, body, self._history(body, asked.http))
        owner = self._owner(asked.http)

        def store(written: bytes, items: list[dict[str, Any]]) -> None:
            if is_stored:
                stored = StoredResponse(written, _continued(prepared, items))
                self._service.response_store.put(owner, asked.id, stored)

        answer_format = ResponsesFormat(
            require_tokenizer(asked.processor.tokenizer, "input"),
            asked.id,
            asked.model,
            body,
            prepared.chat,
            is_stored=is_stored,
            finished=store,
        )
        return Translation([prepared.chat.request], answer_format, body.return_draft_details)

    async def retrieve(self, http: HttpRequest) -> Response:
        if http.query_params.get("stream", "false").lower() != "false":
            raise ApiError(
                Code.UNSUPPORTED_PARAMETER,
                "stream: a stored response is not sent as a stream; leave it out",
                param="stream",
            )
        found = self._service.response_store.get(self._owner(http), http.path_params["id"])
        if found is None:
            raise ApiError(Code.RESPONSE_NOT_FOUND)
        return ChunkedJsonResponse(found.response)

    async def delete(self, http: HttpRequest) -> Response:
        response_id = http.path_params["id"]
        if not self._service.response_store.delete(self._owner(http), response_id):
            raise ApiError(Code.RESPONSE_NOT_FOUND)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    def _owner(self, http: HttpRequest) -> str:
        """Return who may read the responses of this request: its key; without keys, everybody who
        knows their ids."""
        return http.state.key if self._service.options.api_keys else ""

    def _is_stored(self, body: ResponseBody) -> bool:
        is_on = self._service.response_store.is_on
        if body.store and not is_on:
            raise field_error(
                "store",
                "this server stores no responses (--response-store 0); send false",
                code=Code.UNSUPPORTED_PARAMETER.word,
            )
        return is_on and body.store is not False

    def _history(self, body: ResponseBody, http: HttpRequest) -> bytes:
        """Return the conversation that the request continues; empty if there is none."""
        if body.previous_response_id is None:
            return b""
        found = self._service.response_store.get(self._owner(http), body.previous_response_id)
        if found is None:
            code = Code.PREVIOUS_RESPONSE_NOT_FOUND
            message = f"previous_response_id: {code.message}"
            raise ApiError(code, message, param="previous_response_id")
        return found.conversation


def _continued(prepared: PreparedResponse, items: list[dict[str, Any]]) -> bytes:
    """Return the conversation with the answer, whose items are read as those of an input."""
    answer = placed_messages(_ITEMS.validate_python(list(map(_without_logprobs, items))), "output")
    messages = [*prepared.conversation, *(placed.message for placed in answer)]
    return encode_conversation(messages)


def _without_logprobs(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] != "message":
        return item
    return {**item, "content": [{**part, "logprobs": None} for part in item["content"]]}
