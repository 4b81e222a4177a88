"""/v1/completions: converts raw prompts to engine requests, and formats the answers.

Promises: the shapes of OpenAI's text completions, `echo` and its log-probabilities included. A raw
prompt is plain text: it contains no control tokens; a client that wants them sends token ids. A
constraint applies to the whole output.
Does not know: HTTP, chat templates.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Sequence
from typing import Any

from eyas.core import Delta, Request, SamplingParams, TokenLogprob, field_error
from eyas.server.constraints.fields import constrained_output, constraint_of
from eyas.server.disaggregation import transfer_fields
from eyas.server.fields import prompts_in, refuse_fields
from eyas.server.formats import (
    AnswerFormat,
    ChoiceOutput,
    ending_fields,
    finite,
    prompt_logprobs,
    to_raw_json,
    token_text,
)
from eyas.server.request_models import CompletionBody
from eyas.server.sampling import (
    check_alternatives,
    includes_usage,
    refuse_unsupported,
    sampling_params,
)
from eyas.server.text_processor import TextProcessor
from eyas.text import Detokenizer, Tokenizer

DEFAULT_MAX_TOKENS = 16


def completion_requests(
    body: CompletionBody, processor: TextProcessor, request_id: str, cache_salt: str
) -> list[Request]:
    """Return one request per prompt. RequestError or ApiError names the field that cannot be
    honoured."""
    refuse_unsupported(body)
    check_alternatives(body, processor.max_top_logprobs, "logprobs", "prompt_logprobs")
    if body.max_tokens == 0 and not body.echo:
        raise field_error("max_tokens", "0 is for echo: true only")
    refuse_fields(body, {"suffix": "is not supported; put what follows into the prompt"})
    if body.echo and body.stream and body.logprobs is not None:
        raise field_error("echo", "with logprobs is not for stream: true")
    prompts = prompts_in(body.prompt, "prompt", body.n or 1)
    scores_prompt = body.echo and body.logprobs is not None
    params = sampling_params(
        body,
        processor.defaults,
        max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if scores_prompt else body.prompt_logprobs,
    )
    output = constrained_output(
        constraint_of(body, processor.splitter), ignore_eos=params.ignore_eos
    )
    return processor.make_requests(prompts, params, output, request_id, cache_salt)


def _decode(tokenizer: Tokenizer | None, prompt: Sequence[int]) -> str:
    return "" if tokenizer is None else tokenizer.decode(prompt, skip_special=False)


class CompletionFormat(AnswerFormat):
    """Formats one answer as text completion objects.

    The log-probabilities of a prompt are in its first choice; those of an echoed prompt in each of its
    choices.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        answer_id: str,
        model: str,
        requests: list[Request],
        body: CompletionBody,
    ) -> None:
        self._tokenizer = tokenizer
        self._params = requests[0].params
        self._requests = requests
        self._with_usage = includes_usage(body)
        self._echoes: list[str] | None = None
        if body.echo:
            self._echoes = [
                prompt if isinstance(prompt, str) else _decode(tokenizer, prompt)
                for prompt in prompts_in(body.prompt, "prompt").values()
            ]
        self.prompt_copies = self._params.n if body.echo and body.logprobs is not None else 1
        self._shows_prompt_logprobs = body.prompt_logprobs is not None
        self._writers: dict[int, _LogprobWriter] = {}
        self._head = {
            "id": answer_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    def chunks(self, choice_index: int, delta: Delta) -> list[dict[str, Any]]:
        chunks = []
        if choice_index not in self._writers and (echo := self._echo(choice_index)):
            chunks.append(self._chunk(choice_index, echo, None))
        writer = self._writer(choice_index)
        if delta.text or delta.logprobs:
            chunks.append(self._chunk(choice_index, delta.text, writer.write(delta.logprobs or [])))
        if delta.finish_reason is not None:
            last = self._chunk(choice_index, "", None)
            last["choices"][0]["finish_reason"] = delta.finish_reason
            last["choices"][0].update(ending_fields(delta, self._params.seed))
            chunks.append(last)
        return chunks

    def ending(self, usage: dict[str, Any]) -> list[dict[str, Any]]:
        return [{**self._head, "choices": [], "usage": usage}] if self._with_usage else []

    def response(self, choices: list[ChoiceOutput], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            **self._head,
            "choices": [to_raw_json(self._choice(choice, choices)) for choice in choices],
            "usage": usage,
            **transfer_fields(choices),
        }

    def _choice(self, choice: ChoiceOutput, choices: list[ChoiceOutput]) -> dict[str, Any]:
        assert choice.last is not None
        # Only the first choice of a prompt has the prompt's log-probabilities.
        first = choices[choice.index - choice.index % self._params.n]
        prompt_entries = first.prompt_logprobs
        writer = self._writer(choice.index)
        if (
            self._echoes is not None
            and self._params.logprobs is not None
            and prompt_entries is not None
        ):
            prompt = self._requests[choice.index // self._params.n].prompt_token_ids
            logprobs = writer.write([*prompt_entries, *choice.logprobs], unscored_ids=prompt[:1])
        else:
            logprobs = writer.write(choice.logprobs)
        result = {
            "index": choice.index,
            "text": self._echo(choice.index) + choice.text,
            "logprobs": logprobs,
            "finish_reason": choice.last.finish_reason,
            **ending_fields(choice.last, self._params.seed),
        }
        if self._shows_prompt_logprobs and prompt_entries is not None:
            shown = prompt_logprobs(self._tokenizer, prompt_entries) if choice is first else None
            result["prompt_logprobs"] = shown
        return result

    def _echo(self, choice_index: int) -> str:
        return "" if self._echoes is None else self._echoes[choice_index // self._params.n]

    def _writer(self, choice_index: int) -> _LogprobWriter:
        if choice_index not in self._writers:
            scores_prompt = self._echoes is not None and self._params.prompt_logprobs is not None
            self._writers[choice_index] = _LogprobWriter(
                self._tokenizer,
                self._params,
                offset=0 if scores_prompt else len(self._echo(choice_index)),
                continues=not scores_prompt,
            )
        return self._writers[choice_index]

    def _chunk(
        self, choice_index: int, text: str, logprobs: dict[str, Any] | None
    ) -> dict[str, Any]:
        choice = {"index": choice_index, "text": text, "logprobs": logprobs, "finish_reason": None}
        chunk = {**self._head, "choices": [choice]}
        return {**chunk, "usage": None} if self._with_usage else chunk


class _LogprobWriter:
    """Formats the log-probabilities of one choice as parallel lists with offsets in the text."""

    def __init__(
        self, tokenizer: Tokenizer | None, params: SamplingParams, *, offset: int, continues: bool
    ) -> None:
        """offset: that of the first token. continues: the text follows a prompt, echoed or not."""
        self._tokenizer = tokenizer
        self._num_top = params.logprobs
        self._offset = offset
        self._detokenizer = None
        if tokenizer is not None:
            self._detokenizer = Detokenizer(
                tokenizer, params.skip_special_tokens, continues=continues
            )

    def write(
        self, entries: Sequence[TokenLogprob | None], unscored_ids: Sequence[int] = ()
    ) -> dict[str, Any] | None:
        """Return the lists for these entries. unscored_ids: the tokens of the entries that are None,
        in order."""
        if self._num_top is None:
            return None
        tokenizer, unscored = self._tokenizer, iter(unscored_ids)
        lists: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for entry in entries:
            token_id = next(unscored) if entry is None else entry.token_id
            lists["tokens"].append(_shown(tokenizer, token_id))
            lists["text_offset"].append(self._place(token_id))
            if entry is None:
                lists["token_logprobs"].append(None)
                lists["top_logprobs"].append(None)
            else:
                lists["token_logprobs"].append(finite(entry.logprob))
                pairs: dict[str, float] = {}
                for token, logprob in entry.top:  # the most likely first
                    pairs.setdefault(_shown(tokenizer, token), finite(logprob))
                # The token itself is always there, as at OpenAI, and no other that is shown like it.
                pairs[lists["tokens"][-1]] = finite(entry.logprob)
                lists["top_logprobs"].append(to_raw_json(pairs))
        return dict(lists)

    def _place(self, token_id: int) -> int:
        """Return where the text of the next token begins. Bytes of an incomplete character that it does
        not complete become U+FFFD before it."""
        if self._tokenizer is None or self._detokenizer is None:
            return self._offset
        begin, data = self._offset, self._tokenizer.token_bytes(token_id)
        text = self._detokenizer.push(token_id)
        self._offset += len(text)
        begins_character = bool(data) and data[0] & 0xC0 != 0x80
        own = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
        return begin + max(0, len(text) - len(own)) if text and begins_character else begin


def _shown(tokenizer: Tokenizer | None, token_id: int) -> str:
    """Return the text of a token; its bytes if they are no whole characters, as OpenAI wrote them
    (`bytes:\\xe6`), so that tokens do not look alike."""
    if tokenizer is None:
        return token_text(tokenizer, token_id)
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
