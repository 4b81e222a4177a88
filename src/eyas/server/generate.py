"""/generate, SGLang's native route: prompts and sampling_params in, texts with their meta_info out.

Promises: SGLang's shapes: one object for one answer, a list for several; a stream repeats all of the
text so far, a long one less often, so that it is never more than a constant times its answer. A
constraint covers the whole output. Does not know: HTTP, chat templates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from eyas.core import Delta, Request, RequestError, SamplingParams, TokenLogprob
from eyas.peers.sampling import DEFAULT_MAX_TOKENS, NAMES, SHARED, errors_with_sglang_names
from eyas.server.fields import prompts_in
from eyas.server.formats import Choice, encoded, finite, token_text
from eyas.server.sampling import check_alternatives, sampling_params
from eyas.server.schema import GenerateBody, GenerateParams, Sampled
from eyas.server.texts import ModelTexts
from eyas.server.wanted import constraint_of, whole_output
from eyas.text import Tokenizer

MAX_REPEATS = 128
"""An event of a stream comes when the tokens since the one before are this part of what that said, so
that a stream repeats its answer as often at most; the first so many tokens come one by one."""
_PREFIX = "sampling_params."


def generate_requests(
    body: GenerateBody, texts: ModelTexts, request_id: str, cache_salt: str
) -> list[Request]:
    """One request for each prompt. RequestError or ApiError names what cannot be done."""
    check_alternatives(body, texts.max_top_logprobs, "top_logprobs_num")
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("text: give either text or input_ids", param="text")
    if body.top_logprobs_num and not body.return_logprob:
        raise RequestError("top_logprobs_num: needs return_logprob: true", param="top_logprobs_num")
    asked = body.sampling_params or GenerateParams()
    start = _scored_from(body)
    if start is not None and body.stream:
        raise RequestError(
            "logprob_start_len: log-probabilities of the prompt are not for stream: true; send -1",
            param="logprob_start_len",
        )
    param = "input_ids" if body.text is None else "text"
    prompts = prompts_in(getattr(body, param), param, asked.n or 1)
    with errors_with_sglang_names(_PREFIX):
        params = _params(body, asked, texts)
    constraint = constraint_of(asked, texts.spelling, _PREFIX)
    output = whole_output(constraint, ignore_eos=params.ignore_eos)
    with errors_with_sglang_names(_PREFIX):
        return texts.raw_requests(prompts, params, output, request_id, cache_salt)


def _params(body: GenerateBody, asked: GenerateParams, texts: ModelTexts) -> SamplingParams:
    fields = {name: getattr(asked, name) for name in SHARED}
    fields |= {ours: getattr(asked, theirs) for ours, theirs in NAMES.items()}
    limit = fields.pop("max_tokens")
    scores_prompt = _scored_from(body) is not None
    if limit == 0 and not scores_prompt:
        raise RequestError(
            f"{_PREFIX}max_new_tokens: must be at least 1, but where logprob_start_len asks for the "
            "prompt's log-probabilities",
            param=f"{_PREFIX}max_new_tokens",
        )
    num_top = (body.top_logprobs_num or 0) if body.return_logprob else None
    return sampling_params(
        Sampled(**fields),
        texts.defaults,
        max_tokens=DEFAULT_MAX_TOKENS if limit is None else limit,
        logprobs=num_top,
        prompt_logprobs=num_top if scores_prompt else None,
    )


def _scored_from(body: GenerateBody) -> int | None:
    """The place in the prompt from which on its tokens are scored; None where they are not."""
    start = body.logprob_start_len
    return start if body.return_logprob and start is not None and start >= 0 else None


@dataclass(slots=True)
class _SoFar:
    """What one choice has said. Log-probabilities are the JSON that they become, as a stream has them
    in every event again."""

    choice: Choice
    num_shown: int = 0
    logprobs: bytearray = field(default_factory=bytearray)
    tops: bytearray = field(default_factory=bytearray)


class GenerateFormat:
    """SGLang's answer objects, whole or as a stream that repeats itself."""

    logprobs_param = "return_logprob"
    repeats = True

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        answer_id: str,
        requests: list[Request],
        body: GenerateBody,
        eos_token_ids: frozenset[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._id = body.rid or answer_id
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
        self._so_far: dict[int, _SoFar] = {}

    def chunks(self, place: int, delta: Delta) -> list[dict[str, Any]]:
        so_far = self._so_far.setdefault(place, _SoFar(Choice(place)))
        self._score(so_far, delta.logprobs or ())
        so_far.choice.add(msgspec.structs.replace(delta, logprobs=None))
        num_tokens = len(so_far.choice.token_ids)
        if delta.finish_reason is None:
            if num_tokens - so_far.num_shown < max(1, so_far.num_shown // MAX_REPEATS):
                return []
        so_far.num_shown = num_tokens
        written = self._written(so_far)
        return [{**written, "index": place} if self._is_list else written]

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("a native stream has no chunk of usage")

    def response(self, choices: list[Choice], usage: dict[str, Any]) -> Any:
        written = []
        for choice in choices:
            so_far = _SoFar(choice)
            self._score(so_far, choice.logprobs)
            # The first choice of a prompt carries what was learnt of the prompt.
            first = choices[choice.place - choice.place % self._num_each]
            answer = self._written(so_far)
            answer["meta_info"] |= self._scored_prompt(choice.place, first.prompt_logprobs)
            written.append(encoded(answer))
        return written if self._is_list else written[0]

    def _score(self, so_far: _SoFar, entries: Sequence[TokenLogprob]) -> None:
        for entry in entries if self._with_logprobs else ():
            _append(so_far.logprobs, self._entry(entry.token_id, entry.logprob))
            if self._with_top:
                _append(so_far.tops, [self._entry(*pair) for pair in entry.top])

    def _scored_prompt(
        self, place: int, entries: Sequence[TokenLogprob | None] | None
    ) -> dict[str, Any]:
        """The prompt's log-probabilities, as SGLang has them: of the first token that is scored it says
        nothing, as of one that nothing stands before."""
        if self._scored_from is None or entries is None:
            return {}
        prompt = self._requests[place // self._num_each].prompt_token_ids
        own: list[Any] = []
        tops: list[Any] = []
        for index in range(self._scored_from, len(prompt)):
            entry = entries[index] if index > self._scored_from else None
            text = token_text(self._tokenizer, prompt[index]) if self._with_texts else None
            if entry is None:
                own.append([None, prompt[index], text])
                tops.append(None)
            else:
                own.append(self._entry(entry.token_id, entry.logprob))
                tops.append([self._entry(*pair) for pair in entry.top])
        meta = {"input_token_logprobs": encoded(own)}
        return {**meta, "input_top_logprobs": encoded(tops)} if self._with_top else meta

    def _written(self, so_far: _SoFar) -> dict[str, Any]:
        choice = so_far.choice
        request = self._requests[choice.place // self._num_each]
        last = choice.last
        usage = None if last is None else last.usage
        meta: dict[str, Any] = {
            "id": f"{self._id}-{choice.place}" if self._is_list else self._id,
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
            meta["output_token_logprobs"] = msgspec.Raw(b"[%b]" % so_far.logprobs)
            if self._with_top:
                meta["output_top_logprobs"] = msgspec.Raw(b"[%b]" % so_far.tops)
        return {"text": choice.text, "output_ids": choice.token_ids, "meta_info": meta}

    def _finish_reason(self, choice: Choice, last: Delta) -> dict[str, Any]:
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
    """One more item of a list that is JSON already."""
    items += b"," if items else b""
    items += msgspec.json.encode(item)
