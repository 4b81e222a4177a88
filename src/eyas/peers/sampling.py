"""SGLang's sampling parameters: their names, which of them are ours too, what they come to.

Promises: the route /generate and `LLM` take the same fields and mean the same by them; a field that is
none is refused by name. Does not know: engines, what the values do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from eyas.core import RequestError, SamplingParams

DEFAULT_MAX_TOKENS = 128
"""Where SGLang is told no number of tokens."""
NAMES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "include_stop_str_in_output": "no_stop_trim",
}
"""Our name of a field, and SGLang's."""
SHARED = (
    *("n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty"),
    *("presence_penalty", "logit_bias", "stop", "stop_token_ids", "ignore_eos"),
    "skip_special_tokens",
)
CONSTRAINTS = ("json_schema", "regex", "ebnf", "structural_tag")


@contextmanager
def in_their_words(prefix: str) -> Iterator[None]:
    """A RequestError about one of the parameters says SGLang's name of it. prefix: of the field that
    they are in."""
    try:
        yield
    except RequestError as error:
        ours = error.param or ""
        if ours not in NAMES and ours not in SHARED:
            raise
        theirs = prefix + NAMES.get(ours, ours)
        message = theirs + error.message.removeprefix(ours)
        raise RequestError(message, param=theirs, code=error.code) from error


def fields_of(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(fields of `SamplingParams`, constraints) of SGLang's parameters; our own names are known too.
    What is None is left out. RequestError for a field that is neither."""
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
            raise RequestError(f"{name}: is there under two names; give one of them", param=name)
        if value is not None:
            fields[ours] = value
    if fields.get("top_k") == -1:
        fields["top_k"] = 0
    if isinstance(fields.get("stop"), str):
        fields["stop"] = (fields["stop"],)
    for name in ("stop", "stop_token_ids"):
        if isinstance(fields.get(name), list):
            fields[name] = tuple(fields[name])
    if isinstance(fields.get("logit_bias"), Mapping):
        bias = fields["logit_bias"].items()
        fields["logit_bias"] = {_token_id(token): value for token, value in bias}
    fields.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
    return fields, constraints


def _token_id(key: Any) -> Any:
    """SGLang writes token ids as texts, as JSON does."""
    is_number = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 10
    return int(key) if is_number else key


def _no_such(name: str, known: tuple[str, ...]) -> str:
    if name in ("custom_params", "custom_logit_processor"):
        return "requests set bias and grammars, not code; leave it out"
    near = get_close_matches(name, known, n=1)
    return f"is no sampling parameter{f'; did you mean {near[0]}?' if near else ''}"
