"""The data types of requests and answers, which all rooms share.

Promises: plain data, no behaviour beyond validation, and no torch, so that the HTTP process can use it.
What is sent between processes is a `msgspec.Struct`.
Does not know: how these data are computed, stored or sent.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal, cast

import msgspec

from eyas.grammar import OutputSpec

FinishReason = Literal["stop", "length", "abort", "error"]
GrammarFault = Literal["invalid", "unsupported", "too_complex", "timeout"]

MAX_CHOICES = 128
LEAST_TEMPERATURE, LEAST_TOP_P = 1e-3, 1e-9
"""Temperatures below are 0; a `top_p` of 0 is this one."""
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 512
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_RECORDED_STEPS = 512
"""Steps of a choice whose draft trees are recorded, where a request asks for them."""
STEP_FAILED = "the engine could not finish a step; the request was ended, try it again"
MIN_PENALTY, MAX_PENALTY = 0.01, 100.0
"""Limits of the repetition penalty, which divides logits: beyond them logits could overflow."""


class RequestError(ValueError):
    """A request that cannot be served as asked. The message names the remedy.

    param: the field at fault; None if there is none. code: the kind of error (docs/errors.md).
    """

    def __init__(
        self, message: str, *, param: str | None = None, code: str = "invalid_value"
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


def field_error(param: str, problem: str, *, code: str = "invalid_value") -> RequestError:
    """Return the error for a field that cannot be served as it was sent. param: its path, with which
    the message begins. problem: the rest of the message, with the remedy."""
    return RequestError(f"{param}: {problem}", param=param, code=code)


_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")


def token_id_of(key: str) -> int | None:
    """Return the token id that a key of a JSON object is; None if it is none. Each id has one text."""
    return int(key) if _TOKEN_ID.fullmatch(key) else None


def bias_by_token_id(bias: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a logit_bias with token ids as keys where they are texts, as in JSON."""
    ids = {key: token_id_of(key) if isinstance(key, str) else None for key in bias}
    return {key if ids[key] is None else ids[key]: value for key, value in bias.items()}


class GrammarError(RequestError):
    """An output specification that cannot be enforced. Raised before the request is admitted.

    fault: invalid (malformed), unsupported (has a keyword that would be ignored), too_complex (over a
    limit), timeout (compiling took longer than the deadline).
    """

    def __init__(self, message: str, fault: GrammarFault, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code=f"grammar_{fault}")
        self.fault = fault


class GrammarsBusy(GrammarError):
    """A grammar that was not compiled because the compilers are busy. The request can be retried."""


class GrammarsUnavailable(GrammarsBusy):
    """A grammar that was not compiled because the system has no thread or process for it."""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and type(value) is not bool


def _is_id(value: object) -> bool:
    return type(value) is int and value >= 0


def _check(condition: bool, param: str, message: str) -> None:
    if not condition:
        raise field_error(param, message)


def as_token_ids(value: Any, param: str) -> list[int]:
    """Convert a sequence of whole numbers (list, tuple, NumPy array, tensor) to a list of token ids.

    Raises RequestError that names `param` for any other value, or more than one dimension.
    """
    items = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(items, (list, tuple)):
        ids = [_as_int(item) for item in items]
        if None not in ids:
            return cast("list[int]", ids)
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    kind = f" and type {value.dtype}" if hasattr(value, "dtype") else ""
    raise RequestError(
        f"{param}: takes token ids, whole numbers in one dimension, not {type(value).__name__}"
        f"{shape}{kind}",
        param=param,
    )


def _as_int(value: Any) -> int | None:
    """Convert a whole number of any library to an int. Returns None for other values."""
    if type(value) is int:
        return value
    is_flag = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
    if is_flag or not hasattr(value, "__index__") or getattr(value, "shape", ()) != ():
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def is_text(text: str) -> bool:
    """Whether a string can be encoded. One with half of a surrogate pair cannot, but is valid in
    JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_REAL_FIELDS = (
    *("temperature", "top_p", "min_p", "repetition_penalty"),
    *("frequency_penalty", "presence_penalty"),
)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next token is chosen and when the text ends. Every field works with every drafter.

    temperature: 0 is greedy.
    top_k: 0 is off, and so is -1. top_p, min_p: 1 and 0 are off; each filter renormalises what the one
    before it left.
    repetition_penalty: counts tokens of prompt and output; frequency_penalty and presence_penalty
    count those of the output. 1, 0 and 0 are off.
    logit_bias: by token id.
    seed: 64 bits; None draws one for the request.
    n: number of choices; they share their prompt.
    max_tokens: None, or more than the model's context can hold, generates up to the end of the
    context, and the answer ends with "length". 0 generates no token, for prompt_logprobs alone; the
    prompt may then fill the whole context.
    min_tokens: end-of-sequence and stop tokens are not chosen before so many tokens.
    stop: texts that end the output, one or several.
    logprobs, prompt_logprobs: None is off; N returns the log-probabilities of the token and of the
    N most likely tokens, from raw logits (before bias).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        self._take_other_forms()
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("frequency_penalty", -100.0, 100.0),
            ("presence_penalty", -100.0, 100.0),
        ):
            value = getattr(self, name)
            good = _is_number(value) and low <= value <= high
            _check(good, name, f"must be a number between {low:g} and {high:g}, not {value!r}")
        penalty = self.repetition_penalty
        good = _is_number(penalty) and MIN_PENALTY <= penalty <= MAX_PENALTY
        limits = f"between {MIN_PENALTY:g} and {MAX_PENALTY:g}, not {penalty!r}; 1 is off"
        _check(good, "repetition_penalty", f"must be a number {limits}")
        for name, low, high in (
            ("top_k", 0, 2**31 - 1),
            ("n", 1, MAX_CHOICES),
            ("min_tokens", 0, 2**31 - 1),
        ):
            value = getattr(self, name)
            good = type(value) is int and low <= value <= high
            off = "; 0 is off" if name == "top_k" else ""
            needed = f"must be a whole number between {low} and {high}, not {value!r}{off}"
            _check(good, name, needed)
        for name, low, high in (
            ("seed", -(2**63), 2**64 - 1),
            ("max_tokens", 0, 2**31 - 1),
            ("logprobs", 0, MAX_LOGPROBS),
            ("prompt_logprobs", 0, MAX_LOGPROBS),
        ):
            value = getattr(self, name)
            good = value is None or (type(value) is int and low <= value <= high)
            _check(good, name, f"must be a whole number between {low} and {high}, not {value!r}")
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            value = getattr(self, name)
            _check(type(value) is bool, name, f"must be True or False, not {value!r}")
        if self.max_tokens is not None:
            good = self.min_tokens <= self.max_tokens
            _check(
                good, "min_tokens", f"is above max_tokens ({self.min_tokens} > {self.max_tokens})"
            )
        _check(
            isinstance(self.stop, (list, tuple))
            and len(self.stop) <= MAX_STOP_STRINGS
            and all(isinstance(s, str) and 0 < len(s) <= MAX_STOP_STRING_CHARS for s in self.stop),
            "stop",
            f"takes a list of at most {MAX_STOP_STRINGS} non-empty strings of up to "
            f"{MAX_STOP_STRING_CHARS} characters",
        )
        _check(all(map(is_text, self.stop)), "stop", "holds half of a surrogate pair; remove it")
        _check(
            isinstance(self.stop_token_ids, (list, tuple))
            and len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS,
            "stop_token_ids",
            f"takes a list of at most {MAX_STOP_TOKEN_IDS} token ids",
        )
        for i in self.stop_token_ids:
            _check(_is_id(i), "stop_token_ids", f"takes token ids, whole numbers from 0, not {i!r}")
        _check(
            isinstance(self.logit_bias, Mapping) and len(self.logit_bias) <= MAX_LOGIT_BIAS_ENTRIES,
            "logit_bias",
            f"maps at most {MAX_LOGIT_BIAS_ENTRIES} token ids to numbers",
        )
        for i, bias in self.logit_bias.items():
            _check(_is_id(i), "logit_bias", f"maps token ids, whole numbers from 0, not {i!r}")
            good = _is_number(bias) and -100 <= bias <= 100
            _check(good, "logit_bias", f"of {i} must be between -100 and 100, not {bias!r}")

    def _take_other_forms(self) -> None:
        """Replace numbers and arrays of NumPy and torch by Python's, one text of `stop` by a tuple, the
        -1 with which other engines switch `top_k` off, a temperature that is as good as 0 by 0, and a
        `top_p` of 0, the most likely token alone, by the least one. Lists and dicts are copied: their
        owner may change them."""
        force = msgspec.structs.force_setattr
        if isinstance(self.stop, (str, list)):
            force(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        if self.top_k == -1:
            force(self, "top_k", 0)
        for name in _REAL_FIELDS:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) and isinstance(value, Real):
                force(self, name, float(value))
        if _is_number(self.temperature) and 0 < self.temperature < LEAST_TEMPERATURE:
            force(self, "temperature", 0.0)
        if _is_number(self.top_p) and self.top_p == 0:
            force(self, "top_p", LEAST_TOP_P)
        for name in (
            "top_k",
            "n",
            "min_tokens",
            "seed",
            "max_tokens",
            "logprobs",
            "prompt_logprobs",
        ):
            number = _as_int(value := getattr(self, name))
            if number is not None and number is not value:
                force(self, name, number)
        _check(isinstance(self.logit_bias, dict), "logit_bias", "maps token ids to numbers")
        ids = self.stop_token_ids
        if not isinstance(ids, tuple) or any(type(token) is not int for token in ids):
            ids = as_token_ids(self.stop_token_ids, "stop_token_ids")
            force(self, "stop_token_ids", tuple(ids))
        tokens = list(self.logit_bias)
        if any(type(token) is not int for token in tokens):
            tokens = as_token_ids(tokens, "logit_bias")
        force(self, "logit_bias", dict(zip(tokens, self.logit_bias.values(), strict=True)))


def check_min_tokens(num_prompt_tokens: int, params: SamplingParams, max_model_len: int) -> None:
    """Raise RequestError if prompt and `min_tokens` are longer than the context."""
    most = max_model_len - num_prompt_tokens
    _check(
        params.min_tokens <= most,
        "min_tokens",
        f"asks for {params.min_tokens} tokens, but this model's context holds {max_model_len} and the "
        f"prompt has {num_prompt_tokens}; ask for {max(0, most)} or fewer, or shorten the prompt",
    )


class KVHandle(msgspec.Struct, frozen=True, kw_only=True):
    """Where a prefill server holds the keys and values of a prompt for a decode server.

    engine_id: of the engine that holds them; empty if the router has named the prompt. host, port:
    where it is asked for them. key: names the prompt there; a random number that nobody can guess.
    is_awaited: the router has named the prompt, which may not be computed yet.
    """

    engine_id: str
    host: str
    port: int
    key: str
    is_awaited: bool = False


class Request(msgspec.Struct, kw_only=True):
    """One prompt and how to continue it. id: unique among live requests. output: what the output must
    be; None if it is free."""

    id: str
    prompt_token_ids: list[int]
    params: SamplingParams = msgspec.field(default_factory=SamplingParams)
    output: OutputSpec | None = None
    with_marks: bool = False
    """Whether deltas report the positions of control tokens in their text."""
    cache_salt: str = ""
    """Prefix-cache namespace: requests with different salts never share stored prefixes."""
    client: str = ""
    """Identifies the client: waiting clients get seats evenly."""
    max_draft_nodes: int | None = None
    """Most nodes of a draft tree, the root included; 1 decodes without drafts. None is no limit. The
    output is the same with any limit."""
    with_draft_trees: bool = False
    """Whether deltas report the draft tree of each step, of the first `MAX_RECORDED_STEPS` of a
    choice."""
    offers_kv: bool = False
    """Whether the keys and values of the prompt are held for a decode server when the request ends."""
    kv_key: str | None = None
    """The name of the prompt that is held, if the router has named it; else it gets a random one."""
    kv_handle: KVHandle | None = None
    """Where the keys and values of the prompt are read before the request runs."""


class TokenLogprob(msgspec.Struct, frozen=True):
    """The log-probability of a token from raw logits, and the (id, log-probability) of the most likely
    ones."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


class DraftCounts(msgspec.Struct, kw_only=True):
    """Counts of drafts and their results.

    num_drafts: steps with a drafted token. drafted_by_depth, accepted_by_depth: entry i counts the
    steps that drafted, and that accepted, a node i + 1 levels below the root. drafted_by_source,
    accepted_by_source: nodes by the drafter that proposed them. endings: why walks stopped: "leaf"
    (at a leaf of the tree), "target" (the model chose another token), "grammar" (no drafted
    continuation was legal), "stop" (the text ended).
    """

    num_drafts: int = 0
    drafted_by_depth: list[int] = msgspec.field(default_factory=list)
    accepted_by_depth: list[int] = msgspec.field(default_factory=list)
    drafted_by_source: dict[str, int] = msgspec.field(default_factory=dict)
    accepted_by_source: dict[str, int] = msgspec.field(default_factory=dict)
    endings: dict[str, int] = msgspec.field(default_factory=dict)


class Usage(msgspec.Struct, kw_only=True):
    """Counts of one choice so far.

    num_accepted_tokens: without the last token of each step, which is not drafted, unless the answer
    ends with a drafted one. queue_seconds: how long it waited for its first seat in the running batch.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_preemptions: int = 0
    queue_seconds: float = 0.0
    drafts: DraftCounts = msgspec.field(default_factory=DraftCounts)


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A control token in the text of a delta: `length` characters at `offset`. The length is 0 if
    special tokens are skipped."""

    offset: int
    token_id: int
    length: int


DraftFate = Literal["root", "accepted", "chosen", "refused", "unused"]


class DraftNode(msgspec.Struct, frozen=True, array_like=True):
    """A node of a draft tree.

    parent: its number in the tree, -1 for the root. source: the drafter that proposed it, "" for the
    root. score: the sum of the drafter's log-probabilities from the root; None if it gives none.
    fate: "refused" by the output's grammar, "accepted", "chosen" (the model chose its token, but the
    walk did not enter it: nothing can follow it, or its mask was not ready), or "unused" (the model
    chose another token there or above).
    """

    token_id: int
    parent: int
    source: str
    score: float | None
    fate: DraftFate


class TreeRecord(msgspec.Struct, frozen=True, array_like=True):
    """The draft tree of one step of one choice, as it was proposed, and the tokens that the step added
    to the output: the accepted ones and the one chosen after them, up to a stop."""

    nodes: list[DraftNode]
    token_ids: list[int]


class Delta(msgspec.Struct, kw_only=True):
    """What one step added to one choice of one request.

    index: number of the choice.
    text: text that became final; never part of a stop string or an incomplete character.
    token_ids: the tokens whose text became final. Tokens are held back together with their text.
    marks: the control tokens in `text`, in order, if the request asked for them.
    finish_reason, usage, seed: set on the last delta of a choice.
    stop_reason: the stop string or token id that ended the text; None for an end-of-sequence token.
    error: why the choice ended with an error.
    param: the field of the request at fault, if there is one. code: the kind of error, if it is
    known (`eyas.server.http.codes`).
    kv_handle: of the prompt's keys and values, on the last delta, if the request offers them.
    """

    request_id: str
    index: int = 0
    token_ids: list[int] = msgspec.field(default_factory=list)
    text: str = ""
    marks: list[Mark] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    """Only on the first delta, if requested. Entry 0 is None, since no token precedes it."""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    param: str | None = None
    code: str | None = None
    usage: Usage | None = None
    seed: int | None = None
    draft_trees: list[TreeRecord] = msgspec.field(default_factory=list)
    """The trees of these steps, if the request asked for them."""
    kv_handle: KVHandle | None = None


ENDING_FIELDS = tuple("finish_reason stop_reason error param code usage seed kv_handle".split())
"""The fields that only the last delta of a choice has."""
