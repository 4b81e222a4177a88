"""/v1/chat/completions: converts a request's messages and fields to one engine request.

Promises: everything that the request requires of its output (constraint, tools, reasoning) becomes one
grammar in the model's dialect, from the first token to the last; each field is honoured or refused by
name.
Does not know: HTTP, how answers are formatted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from eyas.core import Request, check_min_tokens, field_error
from eyas.dialect import CHOICES, Segmenter, Wanted
from eyas.server.constraints.fields import Constraint, constraint_of, with_param
from eyas.server.request_models import ChatBody
from eyas.server.sampling import check_alternatives, refuse_unsupported, sampling_params
from eyas.server.template_inputs import template_messages, template_options, template_tools
from eyas.server.text_processor import TextProcessor
from eyas.server.tools import wanted_tools


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A chat request as an engine request, and how its answer is to be formatted.

    new_segmenter: makes a segmenter for one choice; None if the text stays as the model wrote it.
    may_call: the request has tools. is_named: it names one function to call. shows_reasoning: the
    answer includes reasoning. streams_reasoning: a stream sends reasoning in pieces, not all at its
    end.
    """

    request: Request
    new_segmenter: Callable[[], Segmenter] | None = None
    may_call: bool = False
    is_named: bool = False
    shows_reasoning: bool = True
    streams_reasoning: bool = True


def prepare_chat(
    body: ChatBody, processor: TextProcessor, request_id: str, cache_salt: str
) -> PreparedChat:
    """Convert the request. Slow, without side effects: run it in a thread.

    RequestError or ApiError names the field that cannot be honoured.
    """
    refuse_unsupported(body)
    check_alternatives(body, processor.max_top_logprobs, "top_logprobs", "prompt_logprobs")
    if body.top_logprobs and not body.logprobs:
        raise field_error("top_logprobs", "needs logprobs: true")
    if body.return_draft_trees and (body.n or 1) > 1:
        raise field_error("return_draft_trees", "is for one answer; leave n out")
    params = sampling_params(
        body,
        processor.defaults,
        max_tokens=_max_tokens(body),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
    )
    wanted = wanted_tools(body)
    constraint = constraint_of(body, processor.splitter)
    wanted = replace(
        wanted,
        answer=None if constraint is None else constraint.node,
        max_reasoning_tokens=_value_of(
            body, "max_reasoning_tokens", "thinking_token_budget", "thinking_budget"
        ),
    )
    separates_reasoning = body.separate_reasoning is not False
    if wanted.tools and not separates_reasoning:
        raise field_error(
            "separate_reasoning",
            "false leaves the text as the model wrote it, so that no tool call "
            "can be told apart; leave it out or send tool_choice 'none'",
        )
    ids = processor.encode_chat(
        template_messages(body.messages, processor),
        template_tools(body.tools) if wanted.tools else None,
        **template_options(processor, body.messages, body, body.reasoning_effort),
    )
    check_min_tokens(len(ids), params, processor.max_model_len)
    output = processor.dialect.output(wanted, ids)
    if output is not None:
        output = with_param(output, _param_of(constraint, wanted), ignore_eos=params.ignore_eos)
    request = Request(
        id=request_id,
        prompt_token_ids=ids,
        params=params,
        output=output,
        with_marks=separates_reasoning,
        cache_salt=cache_salt,
        max_draft_nodes=body.max_draft_nodes,
        with_draft_trees=bool(body.return_draft_trees),
    )
    return PreparedChat(
        request,
        (lambda: processor.dialect.segmenter(wanted, ids)) if separates_reasoning else None,
        may_call=bool(wanted.tools),
        is_named=wanted.choice not in CHOICES,
        shows_reasoning=body.include_reasoning is not False,
        streams_reasoning=body.stream_reasoning is not False,
    )


def _param_of(constraint: Constraint | None, wanted: Wanted) -> str:
    if constraint is not None:
        return constraint.param
    if wanted.tools:
        return "tools"
    return "max_reasoning_tokens"


def _max_tokens(body: ChatBody) -> int | None:
    limit = _value_of(body, "max_completion_tokens", "max_tokens")
    if limit == 0:
        raise field_error("max_tokens", "must be at least 1")
    return limit


def _value_of(body: ChatBody, *names: str) -> int | None:
    """Return the value of a field that has several names. RequestError if the names have several
    values."""
    given_names = [name for name in names if getattr(body, name) is not None]
    values = {getattr(body, name) for name in given_names}
    if len(values) > 1:
        raise field_error(given_names[-1], f"differs from {given_names[0]}; give one of them")
    return values.pop() if values else None
