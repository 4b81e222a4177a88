"""The nouns of eyas: what a user asks for, what a step works on, what comes back.

Promises: plain data, no behaviour beyond validation; importing this module imports no torch, so the
HTTP process can use it. Everything that crosses a process border is a `msgspec.Struct`.
Does not know: how anything here is computed, stored or sent.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from eyas.grammar import OutputSpec

if TYPE_CHECKING:
    import torch

FinishReason = Literal["stop", "length", "abort", "error"]
GrammarFault = Literal["invalid", "unsupported", "too_complex", "timeout"]

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 512
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS_ENTRIES = 1024
MIN_PENALTY, MAX_PENALTY = 0.01, 100.0
"""Logits are divided by a repetition penalty; beyond these they leave the numbers' range."""


class RequestError(ValueError):
    """A request that cannot be served as asked; `param` names the field, the text names the remedy,
    `code` tells kinds of errors apart (docs/errors.md)."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str = "invalid_value"
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class GrammarError(RequestError):
    """An output that cannot be enforced, said before the request is admitted.

    fault: invalid (it is malformed), unsupported (a keyword that would be ignored), too_complex (over a
    limit), timeout (the compiler's deadline passed).
    """

    def __init__(self, message: str, fault: GrammarFault, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code=f"grammar_{fault}")
        self.fault = fault


class GrammarsBusy(GrammarError):
    """A grammar that nobody had time for; the same request may do well a little later."""


class GrammarsUnavailable(GrammarsBusy):
    """The system has no thread or process left to compile one."""


def _check(condition: bool, param: str, message: str) -> None:
    if not condition:
        raise RequestError(f"{param}: {message}", param=param)


def as_token_ids(value: Any, param: str) -> list[int]:
    """Token ids out of any sequence of whole numbers: lists, tuples, NumPy arrays, tensors.

    RequestError names `param` where there is anything else in it, or more than one dimension.
    """
    listed = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(listed, (list, tuple)):
        ids = [_as_int(each) for each in listed]
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
    """A whole number of any library; None for what is none."""
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
    """Can it be written? Not if it holds half of a surrogate pair, as JSON and Python's strings can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next token is chosen and when the text ends. Every field holds with every drafter.

    temperature: 0 is greedy. top_k: 0 is off. top_p, min_p: as usual, each renormalises what the
    filter before it left. repetition_penalty counts prompt and output; frequency_penalty and
    presence_penalty count the output. seed: 64 bits; drawn once per request when absent.
    max_tokens: None means up to the model's context, and so does more than that has room for: the
    answer then ends with "length". 0 makes no token, for who wants prompt_logprobs alone; the prompt
    may fill the context then. logprobs, prompt_logprobs: None is off, N gives
    the token's own log-probability and the N most likely ones, of the raw model (before bias).
    n: number of choices; they share their prompt.
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
        self._take_numbers_of_libraries()
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("frequency_penalty", -100.0, 100.0),
            ("presence_penalty", -100.0, 100.0),
        ):
            value = getattr(self, name)
            good = isinstance(value, (int, float)) and low <= value <= high
            _check(good, name, f"must be a number between {low:g} and {high:g}, not {value!r}")
        _check(self.temperature == 0 or self.temperature >= 1e-3, "temperature", "is 0 or >= 0.001")
        _check(self.top_p > 0, "top_p", "must be above 0; 1 is off")
        penalty = self.repetition_penalty
        good = isinstance(penalty, (int, float)) and MIN_PENALTY <= penalty <= MAX_PENALTY
        limits = f"must be between {MIN_PENALTY:g} and {MAX_PENALTY:g}; 1 is off"
        _check(good, "repetition_penalty", limits)
        for name, low, high in (
            ("top_k", 0, 2**31 - 1),
            ("n", 1, MAX_CHOICES),
            ("min_tokens", 0, 2**31 - 1),
        ):
            value = getattr(self, name)
            good = type(value) is int and low <= value <= high
            _check(good, name, f"must be a whole number between {low} and {high}, not {value!r}")
        for name, low, high in (
            ("seed", -(2**63), 2**64 - 1),
            ("max_tokens", 0, 2**31 - 1),
            ("logprobs", 0, MAX_LOGPROBS),
            ("prompt_logprobs", 0, MAX_LOGPROBS),
        ):
            value = getattr(self, name)
            good = value is None or (type(value) is int and low <= value <= high)
            _check(good, name, f"must be a whole number between {low} and {high}, not {value!r}")
        if self.max_tokens is not None:
            good = self.min_tokens <= self.max_tokens
            _check(
                good, "min_tokens", f"is above max_tokens ({self.min_tokens} > {self.max_tokens})"
            )
        _check(
            not isinstance(self.stop, str)
            and len(self.stop) <= MAX_STOP_STRINGS
            and all(isinstance(s, str) and 0 < len(s) <= MAX_STOP_STRING_CHARS for s in self.stop),
            "stop",
            f"takes a list of at most {MAX_STOP_STRINGS} non-empty strings of up to "
            f"{MAX_STOP_STRING_CHARS} characters",
        )
        _check(all(map(is_text, self.stop)), "stop", "holds half of a surrogate pair; remove it")
        _check(
            isinstance(self.stop_token_ids, (list, tuple))
            and len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS
            and all(type(i) is int and i >= 0 for i in self.stop_token_ids),
            "stop_token_ids",
            f"takes at most {MAX_STOP_TOKEN_IDS} token ids",
        )
        _check(
            len(self.logit_bias) <= MAX_LOGIT_BIAS_ENTRIES
            and all(
                type(i) is int and i >= 0 and isinstance(b, (int, float)) and -100 <= b <= 100
                for i, b in self.logit_bias.items()
            ),
            "logit_bias",
            f"maps at most {MAX_LOGIT_BIAS_ENTRIES} token ids to numbers between -100 and 100",
        )

    def _take_numbers_of_libraries(self) -> None:
        """NumPy's and torch's whole numbers and arrays of ids, as Python's own."""
        force = msgspec.structs.force_setattr
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
        if any(type(token) is not int for token in self.stop_token_ids):
            ids = as_token_ids(self.stop_token_ids, "stop_token_ids")
            force(self, "stop_token_ids", tuple(ids))
        if any(type(token) is not int for token in self.logit_bias):
            tokens = as_token_ids(list(self.logit_bias), "logit_bias")
            force(self, "logit_bias", dict(zip(tokens, self.logit_bias.values(), strict=True)))


def check_room(num_prompt_tokens: int, params: SamplingParams, max_model_len: int) -> None:
    """RequestError where an answer of `min_tokens` has no room behind such a prompt."""
    room = max_model_len - num_prompt_tokens
    _check(
        params.min_tokens <= room,
        "min_tokens",
        f"asks for {params.min_tokens} tokens, but this model's context holds {max_model_len} and the "
        f"prompt has {num_prompt_tokens}; ask for {max(0, room)} or fewer, or shorten the prompt",
    )


class Request(msgspec.Struct, kw_only=True):
    """One prompt and how to continue it. `id` is unique among live requests."""

    id: str
    prompt_token_ids: list[int]
    params: SamplingParams = msgspec.field(default_factory=SamplingParams)
    output: OutputSpec | None = None
    with_marks: bool = False
    """Deltas say where control tokens stand in their text."""
    cache_salt: str = ""
    """Prefix-cache namespace: requests with different salts never share stored prefixes."""
    client: str = ""
    """Who asks; seats are shared evenly among those who wait."""


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token's raw-model log-probability, and the `top` most likely (id, log-probability) pairs."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


class DraftCounts(msgspec.Struct, kw_only=True):
    """What became of drafts.

    num_drafts: steps with a drafted token. drafted_by_depth, accepted_by_depth: entry i counts the
    steps that had, and that accepted, a node i + 1 below the root. drafted_by_source,
    accepted_by_source: nodes by the drafter that proposed them. endings: why walks stopped: "leaf"
    (all that was drafted below was accepted), "target" (the model chose otherwise), "grammar" (no
    drafted continuation was legal), "stop" (the text ended).
    """

    num_drafts: int = 0
    drafted_by_depth: list[int] = msgspec.field(default_factory=list)
    accepted_by_depth: list[int] = msgspec.field(default_factory=list)
    drafted_by_source: dict[str, int] = msgspec.field(default_factory=dict)
    accepted_by_source: dict[str, int] = msgspec.field(default_factory=dict)
    endings: dict[str, int] = msgspec.field(default_factory=dict)


class Usage(msgspec.Struct, kw_only=True):
    """What one choice has used so far. Accepted tokens exclude the one a step always yields."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_preemptions: int = 0
    drafts: DraftCounts = msgspec.field(default_factory=DraftCounts)


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A control token in a delta's text: it stands at `offset` and shows as `length` characters there
    (0 where special tokens are skipped)."""

    offset: int
    token_id: int
    length: int


class Delta(msgspec.Struct, kw_only=True):
    """What one step added to one choice of one request.

    text: newly final text; never part of a stop string, never half a character.
    token_ids: the tokens whose text is final (with stop strings they are held back like their text).
    marks: the control tokens in `text`, in order, when the request asked for them.
    The last delta of a choice has finish_reason set, and usage filled in.
    stop_reason: the stop string or token id that ended it, None for the end-of-sequence token.
    error: why it could not go on; param: the field of the request that is to blame, where one is; code:
    what kind of error it is, where whoever made the delta knows (`eyas.server.codes`).
    """

    request_id: str
    index: int = 0
    token_ids: list[int] = msgspec.field(default_factory=list)
    text: str = ""
    marks: list[Mark] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    """On the first delta only, when asked for; entry 0 is None (nothing precedes it)."""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    param: str | None = None
    code: str | None = None
    usage: Usage | None = None
    seed: int | None = None


@dataclass(slots=True)
class DraftTree:
    """Candidate continuations of B sequences; node 0 of each is the root (its last known token).

    Legend: B sequences, W nodes.
    tokens_BW, parents_BW: int64, on the device. parents[:, 0] = -1 and 0 <= parents[i] < i. Siblings
    carry different tokens. Nodes at and beyond sizes_B are padding.
    is_chain: every parent is the node before it.
    source_BW: which drafter of a blend proposed the node (index into its sources), for metrics.
    caught_up: its drafter first made many rows that were missing, so that the step says little about
    the next.
    """

    tokens_BW: torch.Tensor
    parents_BW: torch.Tensor
    sizes_B: torch.Tensor
    is_chain: bool
    source_BW: torch.Tensor | None = None
    caught_up: bool = False

    @property
    def width(self) -> int:
        return self.tokens_BW.shape[1]


@dataclass(slots=True)
class Verdict:
    """What the target model decided for each sequence of a batch.

    tokens_BW[b, :counts_B[b]]: the accepted draft tokens and then the one chosen after them.
    nodes_BW[b, j]: the tree node whose row chose token j (0 is the root), so nodes_BW[b, 1:count]
    are the accepted nodes, in order. counts_B is 0 where the span had no root, and -1 where the
    first row could not choose (not a number, or nothing was legal).
    chosen_logprobs_BW, top_ids_BWN, top_logprobs_BWN: raw-model, only when somebody asked.
    report_BX: int64 [B, 2W + 1]: tokens, nodes and counts are its columns, in this order, so that one
    copy brings them to the host.
    """

    report_BX: torch.Tensor
    chosen_logprobs_BW: torch.Tensor | None = None
    top_ids_BWN: torch.Tensor | None = None
    top_logprobs_BWN: torch.Tensor | None = None
    tokens_BW: torch.Tensor = field(init=False)
    nodes_BW: torch.Tensor = field(init=False)
    counts_B: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.tokens_BW = self.report_BX[:, : self.width]
        self.nodes_BW = self.report_BX[:, self.width : -1]
        self.counts_B = self.report_BX[:, -1]

    @property
    def width(self) -> int:
        return self.report_BX.shape[1] // 2
