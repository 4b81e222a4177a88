"""/v1/chat/completions: messages in, one request for the engine.

Promises: what the request asks of the output, constraint, tools and reasoning, becomes one grammar of
the model's dialect, from the first token to the last; each field is kept or refused by name.
Does not know: HTTP, how answers are written out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eyas.core import Request, RequestError, check_room
from eyas.dialect import CHOICES, Segmenter, Wanted
from eyas.server.constraints import Constraint, constraint_of, with_param
from eyas.server.messages import plain_messages, plain_tools, template_options
from eyas.server.request_models import ChatBody
from eyas.server.sampling import check_alternatives, refuse_unsupported, sampling_params
from eyas.server.text_processor import TextProcessor
from eyas.server.tools import offered_tools


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat request, understood.

    new_segmenter: splits one choice; None where the text stays as the model wrote it.
    may_call: there are tools. is_named: one of them was named. shows_reasoning: reasoning is part of
    the answer; streams_reasoning: piece by piece.
    """

    request: Request
    new_segmenter: Callable[[], Segmenter] | None = None
    may_call: bool = False
    is_named: bool = False
    shows_reasoning: bool = True
    streams_reasoning: bool = True


def chat_of(body: ChatBody, processor: TextProcessor, request_id: str, cache_salt: str) -> Chat:
    """RequestError or ApiError names what cannot be done; slow, pure work."""
    refuse_unsupported(body)
    check_alternatives(body, processor.max_top_logprobs, "top_logprobs", "prompt_logprobs")
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs: needs logprobs: true", param="top_logprobs")
    params = sampling_params(
        body,
        processor.defaults,
        max_tokens=_limit(body),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
    )
    offer = offered_tools(body)
    constraint = constraint_of(body, processor.spelling)
    wanted = Wanted(
        answer=None if constraint is None else constraint.node,
        tools=offer.tools,
        choice=offer.choice,
        parallel=offer.parallel,
        max_reasoning_tokens=_the_one_of(
            body, "max_reasoning_tokens", "thinking_token_budget", "thinking_budget"
        ),
    )
    splits = body.separate_reasoning is not False
    if offer.tools and not splits:
        raise RequestError(
            "separate_reasoning: false leaves the text as the model wrote it, so that no tool call "
            "can be told apart; leave it out or send tool_choice 'none'",
            param="separate_reasoning",
        )
    ids = processor.encode_chat(
        plain_messages(body.messages, processor),
        plain_tools(body.tools) if offer.tools else None,
        **template_options(
            processor,
            body.messages,
            body.chat_template_kwargs,
            body.reasoning_effort,
            body.add_generation_prompt,
            body.continue_final_message,
        ),
    )
    check_room(len(ids), params, processor.max_model_len)
    output = processor.dialect.output(wanted, ids)
    if output is not None:
        output = with_param(output, _param_of(constraint, wanted), ignore_eos=params.ignore_eos)
    request = Request(
        id=request_id,
        prompt_token_ids=ids,
        params=params,
        output=output,
        with_marks=splits,
        cache_salt=cache_salt,
    )
    return Chat(
        request,
        (lambda: processor.dialect.segmenter(wanted, ids)) if splits else None,
        may_call=bool(offer.tools),
        is_named=offer.choice not in CHOICES,
        shows_reasoning=body.include_reasoning is not False,
        streams_reasoning=body.stream_reasoning is not False,
    )


def _param_of(constraint: Constraint | None, wanted: Wanted) -> str:
    if constraint is not None:
        return constraint.param
    if wanted.tools:
        return "tools"
    return "max_reasoning_tokens"


def _limit(body: ChatBody) -> int | None:
    limit = _the_one_of(body, "max_completion_tokens", "max_tokens")
    if limit == 0:
        raise RequestError("max_tokens: must be at least 1", param="max_tokens")
    return limit


def _the_one_of(body: ChatBody, *names: str) -> int | None:
    """The value of a field that goes by several names."""
    given = [name for name in names if getattr(body, name) is not None]
    values = {getattr(body, name) for name in given}
    if len(values) > 1:
        raise RequestError(
            f"{given[-1]}: differs from {given[0]}; give one of them", param=given[-1]
        )
    return values.pop() if values else None
