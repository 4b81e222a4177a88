"""/generate, SGLang's native route: converts its requests to engine requests, and formats the answers.

Promises: SGLang's shapes: one object for one answer, a list for several. Each event of a stream
repeats the whole text so far; a long stream has fewer events, so that its size is proportional to its
answer. A constraint applies to the whole output. Does not know: HTTP, chat templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from eyas.core import Delta, Request, SamplingParams, TokenLogprob, field_error
from eyas.peers.sampling import DEFAULT_MAX_TOKENS, NAMES, SHARED, errors_with_sglang_names
from eyas.server.constraints.fields import constrained_output, constraint_of
from eyas.server.fields import prompts_in
from eyas.server.formats import AnswerFormat, ChoiceOutput, finite, to_raw_json, token_text
from eyas.server.request_models import CompletionFields, GenerateBody, GenerateParams
from eyas.server.sampling import check_alternatives, sampling_params
from eyas.server.text_processor import TextProcessor
from eyas.text import Tokenizer

MAX_REPEATS = 128
"""A stream sends an event when the new tokens are at least 1 / MAX_REPEATS of those in the last
event. So each of the first MAX_REPEATS tokens has its event, and the size of all events is bounded by
a multiple of the answer's size."""
_PREFIX = "sampling_params."


def generate_requests(
    body: GenerateBody, processor: TextProcessor, request_id: str, cache_salt: str
) -> list[Request]:
    """Return one request per prompt. RequestError or ApiError names the field that cannot be
    honoured."""
    check_alternatives(body, processor.max_top_logprobs, "top_logprobs_num")
    if (body.text is None) == (body.input_ids is None):
        raise field_error("text", "give either text or input_ids")
    if body.top_logprobs_num and not body.return_logprob:
        raise field_error("top_logprobs_num", "needs return_logprob: true")
    start = _scored_from(body)
    if start is not None and body.stream:
        raise field_error(
            "logprob_start_len", "log-probabilities of the prompt are not for stream: true; send -1"
        )
    param = "input_ids" if body.text is None else "text"
    asked = body.sampling_params or GenerateParams()
    first = asked[0] if isinstance(asked, list) else asked
    prompts = prompts_in(getattr(body, param), param, first.n or 1)
    if isinstance(body.rid, list):
        _check_number("rid", len(body.rid), len(prompts))
    if not isinstance(asked, list):
        requests = _requests(body, asked, _PREFIX, prompts, processor, request_id, cache_salt)
    else:
        _check_number("sampling_params", len(asked), len(prompts))
        requests = []
        for number, (fields, name) in enumerate(zip(asked, prompts, strict=True)):
            prefix, prompt = f"sampling_params[{number}].", {name: prompts[name]}
            if (fields.n or 1) != (first.n or 1):
                raise field_error(f"{prefix}n", "must be the same for all prompts of a request")
            each_id = f"{request_id}-{number}"
            requests += _requests(body, fields, prefix, prompt, processor, each_id, cache_salt)
    shortest = min(len(request.prompt_token_ids) for request in requests)
    if start is not None and start >= shortest:
        raise field_error(
            "logprob_start_len",
            f"is the index of a prompt token, below the {shortest} of the prompt",
        )
    return requests


def _check_number(name: str, num_given: int, num_prompts: int) -> None:
    if num_given != num_prompts:
        raise field_error(
            name, f"has {num_given} items for {num_prompts} prompts; give one for each"
        )


def _requests(
    body: GenerateBody,
    fields: GenerateParams,
    prefix: str,
    prompts: Mapping[str, str | Sequence[int]],
    processor: TextProcessor,
    request_id: str,
    cache_salt: str,
) -> list[Request]:
    """Return the requests of prompts with the same parameters. prefix: of the names of their fields."""
    with errors_with_sglang_names(prefix):
        params = _params(body, fields, processor)
    constraint = constraint_of(fields, processor.splitter, prefix)
    output = constrained_output(constraint, ignore_eos=params.ignore_eos)
    with errors_with_sglang_names(prefix):
        return processor.make_requests(prompts, params, output, request_id, cache_salt)


def _params(
    body: GenerateBody, sampling_fields: GenerateParams, processor: TextProcessor
) -> SamplingParams:
    fields = {name: getattr(sampling_fields, name) for name in SHARED}
    fields |= {
        our_name: getattr(sampling_fields, sglang_name) for our_name, sglang_name in NAMES.items()
    }
    limit = fields.pop("max_tokens")
    scores_prompt = _scored_from(body) is not None
    num_top = (body.top_logprobs_num or 0) if body.return_logprob else None
    return sampling_params(
        CompletionFields(**fields),
        processor.defaults,
        max_tokens=DEFAULT_MAX_TOKENS if limit is None else limit,
        logprobs=num_top,
        prompt_logprobs=num_top if scores_prompt else None,
    )


def _scored_from(body: GenerateBody) -> int | None:
    """Return the index of the first prompt token with a log-probability; None if there is none."""
    start = body.logprob_start_len
    return start if body.return_logprob and start is not None and start >= 0 else None


@dataclass(slots=True)
class _ChoiceProgress:
    """The output of one choice so far.

    logprobs, tops: entries that are encoded already, since each event of a stream repeats them.
    """

    choice: ChoiceOutput
    num_shown: int = 0
    logprobs: bytearray = field(default_factory=bytearray)
    tops: bytearray = field(default_factory=bytearray)


class GenerateFormat(AnswerFormat):
    """Formats one answer as SGLang's objects. Each event of a stream repeats the output so far."""

    logprobs_param = "return_logprob"
    choices_param = "sampling_params.n"
    repeats = True

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        answer_id: str,
        requests: list[Request],
        body: GenerateBody,
        eos_token_ids: frozenset[int],
    ) -> None:
        self.prompt_param = "input_ids" if body.text is None else "text"
        self._tokenizer = tokenizer
        self._ids = body.rid if isinstance(body.rid, list) else [body.rid or answer_id]
        self._requests = requests
        self._num_each = self.prompt_copies = requests[0].params.n
        self._is_list = isinstance(body.text, list) or self._num_each > 1
        if body.input_ids is not None:
            self._is_list = self._is_list or isinstance(body.input_ids[0], list)
        self._with_logprobs = bool(body.return_logprob)
        self._with_top = bool(body.top_logprobs_num)
        self._with_texts = bool(body.return_text_in_logprobs)
        self._scored_from = _scored_from(body)
        self._eos_token_ids = eos_token_ids
        self._progress: dict[int, _ChoiceProgress] = {}

    def chunks(self, choice_index: int, delta: Delta) -> list[dict[str, Any]]:
        progress = self._progress.setdefault(
            choice_index, _ChoiceProgress(ChoiceOutput(choice_index))
        )
        self._add_logprobs(progress, delta.logprobs or ())
        progress.choice.add(msgspec.structs.replace(delta, logprobs=None))
        num_tokens = len(progress.choice.token_ids)
        if delta.finish_reason is None:
            if num_tokens - progress.num_shown < max(1, progress.num_shown // MAX_REPEATS):
                return []
        progress.num_shown = num_tokens
        written = self._to_object(progress)
        return [{**written, "index": choice_index} if self._is_list else written]

    def ending(self, usage: dict[str, Any]) -> list[dict[str, Any]]:
        return []  # the last object of each choice has its usage

    def response(self, choices: list[ChoiceOutput], usage: dict[str, Any]) -> Any:
        written = []
        for choice in choices:
            progress = _ChoiceProgress(choice)
            self._add_logprobs(progress, choice.logprobs)
            # Only the first choice of a prompt has the prompt's log-probabilities.
            first = choices[choice.index - choice.index % self._num_each]
            answer = self._to_object(progress)
            answer["meta_info"] |= self._prompt_logprobs(choice.index, first.prompt_logprobs)
            written.append(to_raw_json(answer))
        return written if self._is_list else written[0]

    def _add_logprobs(self, progress: _ChoiceProgress, entries: Sequence[TokenLogprob]) -> None:
        for entry in entries if self._with_logprobs else ():
            _append(progress.logprobs, self._entry(entry.token_id, entry.logprob))
            if self._with_top:
                _append(progress.tops, [self._entry(*pair) for pair in entry.top])

    def _prompt_logprobs(
        self, choice_index: int, entries: Sequence[TokenLogprob | None] | None
    ) -> dict[str, Any]:
        """Return the prompt's log-probabilities. As in SGLang, the first entry is None, as for a
        token without predecessors, and a request that does not say where to begin has the last token's
        alone."""
        if not self._with_logprobs or (self._scored_from is not None and entries is None):
            return {}
        prompt = self._requests[choice_index // self._num_each].prompt_token_ids
        chosen: list[Any] = []
        tops: list[Any] = []
        first = len(prompt) - 1 if self._scored_from is None else self._scored_from
        for index in range(first, len(prompt)):
            entry = entries[index] if entries is not None and index > first else None
            text = token_text(self._tokenizer, prompt[index]) if self._with_texts else None
            if entry is None:
                chosen.append([None, prompt[index], text])
                tops.append(None)
            else:
                chosen.append(self._entry(entry.token_id, entry.logprob))
                tops.append([self._entry(*pair) for pair in entry.top])
        meta = {"input_token_logprobs": to_raw_json(chosen)}
        return {**meta, "input_top_logprobs": to_raw_json(tops)} if self._with_top else meta

    def _to_object(self, progress: _ChoiceProgress) -> dict[str, Any]:
        choice = progress.choice
        request = self._requests[choice.index // self._num_each]
        last = choice.last
        usage = None if last is None else last.usage
        meta: dict[str, Any] = {
            "id": self._name(choice.index),
            "finish_reason": None if last is None else self._finish_reason(choice, last),
            "prompt_tokens": len(request.prompt_token_ids),
            "completion_tokens": len(choice.token_ids),
            "cached_tokens": 0 if usage is None else usage.num_cached_tokens,
        }
        if usage is not None:
            meta["completion_tokens"] = usage.num_output_tokens
        if last is not None:
            meta["seed"] = request.params.seed if last.seed is None else last.seed
        if self._with_logprobs:
            meta["output_token_logprobs"] = msgspec.Raw(b"[%b]" % progress.logprobs)
            if self._with_top:
                meta["output_top_logprobs"] = msgspec.Raw(b"[%b]" % progress.tops)
            if self._scored_from is None:
                meta |= self._prompt_logprobs(choice.index, None)
        return {"text": choice.text, "output_ids": choice.token_ids, "meta_info": meta}

    def _name(self, choice_index: int) -> str:
        if len(self._ids) == 1:
            return f"{self._ids[0]}-{choice_index}" if self._is_list else self._ids[0]
        prompt, number = divmod(choice_index, self._num_each)
        return f"{self._ids[prompt]}-{number}" if self._num_each > 1 else self._ids[prompt]

    def _finish_reason(self, choice: ChoiceOutput, last: Delta) -> dict[str, Any]:
        if last.finish_reason == "length":
            return {"type": "length", "length": len(choice.token_ids)}
        matched = last.stop_reason
        if matched is None and choice.token_ids and choice.token_ids[-1] in self._eos_token_ids:
            matched = choice.token_ids[-1]
        return {"type": last.finish_reason, "matched": matched}

    def _entry(self, token_id: int, logprob: float) -> list[Any]:
        text = token_text(self._tokenizer, token_id) if self._with_texts else None
        return [finite(logprob), token_id, text]


def _append(items: bytearray, item: list[Any]) -> None:
    """Append an item to the encoded items of a JSON list."""
    items += b"," if items else b""
    items += msgspec.json.encode(item)
