"""SGLang's sampling parameters: their names and their meaning in eyas.

Promises: the route /generate and `LLM` accept the same fields with the same meaning; an unknown field
is refused by name. Does not know: engines, what the values do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from eyas.core import RequestError, SamplingParams, bias_by_token_id

DEFAULT_MAX_TOKENS = 128
"""SGLang's default of max_new_tokens."""
NAMES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "include_stop_str_in_output": "no_stop_trim",
}
"""Field of `SamplingParams` -> SGLang's name of it."""
_RENAMED = re.compile(rf"\b(?:{'|'.join(name for name in NAMES if '_' in name)})\b")
"""Names in the text of an error; `seed` is also a word."""
SHARED = (
    *("n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty"),
    *("presence_penalty", "logit_bias", "stop", "stop_token_ids", "ignore_eos"),
    "skip_special_tokens",
)
"""Fields that have the same name in SGLang and in eyas."""
CONSTRAINTS = ("json_schema", "regex", "ebnf", "structural_tag")


@contextmanager
def errors_with_sglang_names(prefix: str) -> Iterator[None]:
    """Rename the parameter of a RequestError, and others that it mentions, to SGLang's names.

    prefix: the path of the object that holds the parameters, such as "sampling_params.".
    """
    try:
        yield
    except RequestError as error:
        ours = error.param or ""
        if ours not in NAMES and ours not in SHARED:
            raise
        theirs = prefix + NAMES.get(ours, ours)
        rest = _RENAMED.sub(lambda name: NAMES[name[0]], error.message.removeprefix(ours))
        message = theirs + rest
        raise RequestError(message, param=theirs, code=error.code) from error


def fields_of(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split SGLang's parameters into (fields of `SamplingParams`, constraints).

    Names of eyas are accepted too. Fields that are None are omitted.
    RequestError: a field is unknown, or given under two names.
    """
    ours_of = {theirs: ours for ours, theirs in NAMES.items()}
    own = SamplingParams.__struct_fields__
    fields: dict[str, Any] = {}
    constraints: dict[str, Any] = {}
    for name, value in given.items():
        if name in CONSTRAINTS:
            if value is not None:
                constraints[name] = value
            continue
        if name == "spaces_between_special_tokens" and value in (None, True):
            continue
        ours = ours_of.get(name, name)
        if ours not in own:
            raise RequestError(f"{name}: {_no_such(name, (*ours_of, *own))}", param=name)
        if ours in fields:
            raise RequestError(f"{name}: is given under two names; give one of them", param=name)
        if value is not None:
            fields[ours] = value
    if isinstance(fields.get("logit_bias"), Mapping):
        fields["logit_bias"] = bias_by_token_id(fields["logit_bias"])
    fields.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
    return fields, constraints


def _no_such(name: str, known: tuple[str, ...]) -> str:
    if name in ("custom_params", "custom_logit_processor"):
        return "requests can set logit bias and grammars, but not code; leave it out"
    near = get_close_matches(str(name), known, n=1)
    return f"is not a sampling parameter{f'; did you mean {near[0]}?' if near else ''}"
