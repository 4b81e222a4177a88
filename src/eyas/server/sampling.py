"""Converts a request's sampling fields to `SamplingParams`, with the model's defaults for absent
fields.

Promises: refuses a field that cannot be honoured by name. Does not know: prompts.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from eyas.core import SamplingParams, field_error, token_id_of
from eyas.server.fields import refuse_fields
from eyas.server.request_models import CompletionFields

SEED_BITS = 53
"""Bits of a randomly drawn seed: few enough for clients that store numbers as doubles."""


def refuse_unsupported(body: CompletionFields) -> None:
    """Raise RequestError for fields that are known but not supported, or do not go together."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise field_error(
            "best_of",
            "is not supported; leave it out, and ask for n answers",
            code="unsupported_parameter",
        )
    refuse_fields(body, {"use_beam_search": "is not supported; send n for several choices"})
    if body.stream_options is not None and not body.stream:
        raise field_error("stream_options", "is for stream: true only")
    if includes_usage_so_far(body) and not includes_usage(body):
        param = "stream_options.continuous_usage_stats"
        raise field_error(param, "needs include_usage: true")
    if body.return_draft_details and body.stream and not includes_usage(body):
        raise field_error(
            "return_draft_details",
            "is part of usage; with stream: true send stream_options: "
            '{"include_usage": true} as well',
        )
    if body.prompt_logprobs is not None and body.stream:
        raise field_error("prompt_logprobs", "is not for stream: true")


def check_alternatives(body: Any, limit: int, *names: str) -> None:
    """Raise RequestError if one of the fields asks for more log-probabilities per token than allowed.

    limit: the server's limit. names: the fields.
    """
    for name in names:
        num_alternatives = getattr(body, name)
        if num_alternatives is not None and num_alternatives > limit:
            raise field_error(
                name,
                f"this server gives the log-probabilities of at most {limit} alternatives to a "
                "token (--max-logprobs); ask for fewer",
            )


def includes_usage(body: CompletionFields) -> bool:
    """Whether a stream ends with a chunk of usage."""
    return bool(body.stream_options and body.stream_options.include_usage)


def includes_usage_so_far(body: CompletionFields) -> bool:
    """Whether each chunk of a stream has the usage up to it."""
    return bool(body.stream_options and body.stream_options.continuous_usage_stats)


def sampling_params(
    body: CompletionFields,
    defaults: Mapping[str, Any],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """Return the sampling parameters, with a random seed if the request has none.

    RequestError names a field that is out of range.
    """
    fields: dict[str, Any] = {
        name: value
        for name in (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "repetition_penalty",
            "frequency_penalty",
            "presence_penalty",
            "min_tokens",
            "ignore_eos",
            "include_stop_str_in_output",
            "skip_special_tokens",
        )
        if (value := getattr(body, name)) is not None
    }
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return SamplingParams(
        **(dict(defaults) | fields),
        n=body.n or 1,
        seed=secrets.randbits(SEED_BITS) if body.seed is None else body.seed,
        max_tokens=max_tokens,
        stop=tuple(stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logit_bias=_logit_bias(body.logit_bias or {}),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _logit_bias(entries: Mapping[str, float]) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in entries.items():
        token_id = token_id_of(key)
        if token_id is None:
            raise field_error("logit_bias", "keys must be token ids")
        bias[token_id] = float(value)
    return bias
