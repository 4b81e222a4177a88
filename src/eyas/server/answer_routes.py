"""The translations of the routes for chats, text completions, SGLang's /generate and Anthropic's
messages: a body to requests of the engine, and their answer's format.

Does not know: the steps before and after, how requests are converted, how answers are formatted.
"""

from __future__ import annotations

from typing import TypeVar

from eyas.server.answering import AnswerRequest, Translation
from eyas.server.chat import prepare_chat
from eyas.server.chat_format import ChatFormat
from eyas.server.completions import CompletionFormat, completion_requests
from eyas.server.disaggregation import hand_over, prompt_alone
from eyas.server.generate import GenerateFormat, generate_requests
from eyas.server.messages.conversion import prepare_messages
from eyas.server.messages.format import MessagesFormat
from eyas.server.messages.models import MessagesBody
from eyas.server.request_models import ChatBody, CompletionBody, CompletionFields, GenerateBody
from eyas.server.sampling import includes_usage, includes_usage_so_far
from eyas.text import require_tokenizer

CHAT_PREFIX, COMPLETION_PREFIX = "chatcmpl-", "cmpl-"
"""What the ids of answers begin with."""
Fields = TypeVar("Fields", bound=CompletionFields)


async def chat(asked: AnswerRequest[ChatBody]) -> Translation:
    role = asked.service.config.disaggregation.role
    body = prompt_alone(asked.body, role)
    chat = await asked.prepared(prepare_chat, body)
    hand_over(body, [chat.request], role)
    tokenizer = require_tokenizer(asked.processor.tokenizer, "messages")
    answer_id = _shown_id(asked, CHAT_PREFIX)
    answer_format = ChatFormat(tokenizer, answer_id, asked.model, chat, includes_usage(body))
    usage_so_far = includes_usage_so_far(body)
    return Translation([chat.request], answer_format, body.return_draft_details, usage_so_far)


async def completion(asked: AnswerRequest[CompletionBody]) -> Translation:
    role = asked.service.config.disaggregation.role
    body = prompt_alone(asked.body, role)
    requests = await asked.prepared(completion_requests, body)
    hand_over(body, requests, role)
    tokenizer = asked.processor.tokenizer
    answer_id = _shown_id(asked, COMPLETION_PREFIX)
    answer_format = CompletionFormat(tokenizer, answer_id, asked.model, requests, body)
    usage_so_far = includes_usage_so_far(body)
    return Translation(requests, answer_format, body.return_draft_details, usage_so_far)


async def generate(asked: AnswerRequest[GenerateBody]) -> Translation:
    body, processor = asked.body, asked.processor
    requests = await asked.prepared(generate_requests, body)
    return Translation(
        requests,
        GenerateFormat(processor.tokenizer, asked.id, requests, body, processor.eos_token_ids),
    )


async def message(asked: AnswerRequest[MessagesBody]) -> Translation:
    chat = await asked.prepared(prepare_messages, asked.body)
    tokenizer = require_tokenizer(asked.processor.tokenizer, "messages")
    answer_format = MessagesFormat(tokenizer, asked.id, asked.model, chat)
    return Translation([chat.request], answer_format, asked.body.return_draft_details)


def _shown_id(asked: AnswerRequest[Fields], prefix: str) -> str:
    """Return the id that the answer shows: the client's, as SGLang (rid) and vLLM (request_id) show
    it, or a new one. Clients may repeat theirs, so within the server only the new one counts."""
    body = asked.body
    if body.rid is not None:
        return body.rid
    return asked.id if body.request_id is None else prefix + body.request_id
