"""Tokenizes prompts and renders conversations.

Promises: refuses a prompt that cannot fit before it is tokenized completely. Does not know: HTTP, the
engine.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from eyas.config import EngineInfo, StartChoice
from eyas.core import (
    MAX_LOGPROBS,
    Request,
    SamplingParams,
    check_min_tokens,
    field_error,
)
from eyas.dialect import Dialect, dialect_reason, find_dialect
from eyas.grammar import OutputSpec
from eyas.server.constraints.free_text import ControlTokenSplitter
from eyas.server.fields import MAX_PROMPT_TOKENS
from eyas.server.http import errors
from eyas.text import ChatTemplate, Tokenizer, require_tokenizer, sampling_defaults
from eyas.text.template import require_template


class TextProcessor:
    """A model's tokenizer, chat template, dialect, sampling defaults and limits.

    tokenizer, template: None if the model has none. Without a tokenizer there is no template.
    default_options: of the template, for requests that leave them open. choices: what was found of
    these, for the log.
    """

    def __init__(
        self,
        directory: Path,
        info: EngineInfo,
        reasoning_parser: str | None = None,
        tool_call_parser: str | None = None,
        *,
        chat_template: str | None = None,
        default_options: Mapping[str, Any] = MappingProxyType({}),
        max_top_logprobs: int = MAX_LOGPROBS,
    ) -> None:
        """Load the files of a model directory.

        Without parsers the dialect is detected from the checkpoint. chat_template: replaces the model's
        own. ValueError names a file that is missing or broken, or a parser that is unknown.
        """
        self.tokenizer = Tokenizer.from_directory_if_there(directory)
        self.template = ChatTemplate.from_directory(directory, self.tokenizer, chat_template)
        self.default_options = dict(default_options)
        self.defaults = sampling_defaults(directory)
        self.max_top_logprobs = max_top_logprobs
        self._dialect: Dialect | None = None
        if self.tokenizer is not None:
            self._dialect = find_dialect(
                self.tokenizer,
                None if self.template is None else self.template.source,
                info.architecture,
                reasoning_parser,
                tool_call_parser,
            )
        self.choices = self._choices(info, reasoning_parser, tool_call_parser, chat_template)
        self.splitter = ControlTokenSplitter(self.tokenizer, info.eos_token_ids)
        self.eos_token_ids = frozenset(info.eos_token_ids)
        self.max_model_len = info.max_model_len
        self.vocab_size = info.vocab_size

    @property
    def dialect(self) -> Dialect:
        """The format in which the model writes reasoning and tool calls. RequestError without a
        tokenizer."""
        require_tokenizer(self.tokenizer, "messages")
        assert self._dialect is not None
        return self._dialect

    def _choices(
        self,
        info: EngineInfo,
        reasoning_parser: str | None,
        tool_call_parser: str | None,
        chat_template: str | None,
    ) -> tuple[StartChoice, ...]:
        defaults = ", ".join(f"{name} {value:g}" for name, value in self.defaults.items())
        sampling = StartChoice(
            "sampling",
            defaults or "as in OpenAI's API",
            "generation_config.json" if defaults else "generation_config.json sets nothing",
        )
        if self._dialect is None:
            return (
                StartChoice("prompts", "token ids alone", "the model has no tokenizer"),
                sampling,
            )
        source = None if self.template is None else self.template.source
        given = {"--reasoning-parser": reasoning_parser, "--tool-call-parser": tool_call_parser}
        options = [f"{option} {name}" for option, name in given.items() if name is not None]
        if len(options) < 2:
            found = dialect_reason(require_tokenizer(self.tokenizer), source, info.architecture)
            options.append(f"detected: {found}")
        is_given = self.template is not None and chat_template is not None
        template_reason = "--chat-template" if is_given else "the model's files"
        if self.template is not None and not self.template.mentions("tools"):
            template_reason += "; it does not show tools to the model"
        return (
            StartChoice(
                "chat template",
                "none" if self.template is None else f"{len(self.template.source):,} characters",
                template_reason,
            ),
            StartChoice("dialect", self._dialect.name, "; ".join(options)),
            sampling,
        )

    def unlimited(self) -> Self:
        """Return a copy for texts that only have to be counted, of any length."""
        other = copy.copy(self)
        other.max_model_len = MAX_PROMPT_TOKENS
        return other

    def encode_prompt(
        self, prompt: str | Sequence[int], param: str, num_reserved: int = 1
    ) -> list[int]:
        """Return the token ids of a raw prompt.

        ApiError or RequestError if it is empty, invalid, or leaves no space for `num_reserved` tokens.
        """
        if isinstance(prompt, str):
            self.check_length(prompt, param, num_reserved)
            ids = require_tokenizer(self.tokenizer, param).encode_prompt(prompt)
        else:
            ids = self.check_ids(list(prompt), param, num_reserved)
            if max(ids) >= self.vocab_size:
                raise field_error(
                    param, f"holds token ids beyond the vocabulary of {self.vocab_size}"
                )
        return self.check_ids(ids, param, num_reserved)

    def make_requests(
        self,
        prompts: Mapping[str, str | Sequence[int]],
        params: SamplingParams,
        output: OutputSpec | None,
        request_id: str,
        cache_salt: str,
    ) -> list[Request]:
        """Return one request for each raw prompt. prompts: by their path in the body.

        Errors are those of `encode_prompt`; RequestError if there is no space for `min_tokens`.
        """
        num_reserved = int(params.max_tokens != 0)
        ids = [self.encode_prompt(prompt, param, num_reserved) for param, prompt in prompts.items()]
        for prompt_ids in ids:
            check_min_tokens(len(prompt_ids), params, self.max_model_len)
        return [
            Request(
                id=f"{request_id}-{index}" if len(ids) > 1 else request_id,
                prompt_token_ids=prompt_ids,
                params=params,
                output=output,
                cache_salt=cache_salt,
            )
            for index, prompt_ids in enumerate(ids)
        ]

    def encode_chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        **options: Any,
    ) -> list[int]:
        """Return the prompt token ids of a conversation.

        options: keyword arguments of `ChatTemplate.render`. Checks the length of every field before
        rendering, and of the rendered text before tokenizing. ApiError if the prompt cannot fit.
        """
        require_tokenizer(self.tokenizer, "messages")
        template = require_template(self.template)
        # Of the two fields, the one with more text is named where only their sum is too long.
        longer = max(
            ("messages", messages), ("tools", tools), key=lambda field: num_chars(field[1])
        )[0]
        without_content = [
            {k: v for k, v in message.items() if k != "content"} for message in messages
        ]
        self._check_lengths(without_content, "messages")
        self._check_lengths(tools, "tools")
        messages = template.normalize(messages, tools)
        self._check_lengths(messages, "messages")
        # The sum is over content only: templates may leave out reasoning of earlier messages.
        contents = _strings_in([message.get("content") for message in messages])
        self.check_length("".join(contents), "messages")
        pieces = template.render(messages, tools, **options)
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        self.check_length(text, longer)
        return self.check_ids(template.ids_of(pieces), longer)

    def check_length(self, text: str, param: str, num_reserved: int = 1) -> None:
        """Raise ApiError if `text` cannot fit. Cheap, however long the text is."""
        tokenizer = require_tokenizer(self.tokenizer, param)
        num_tokens = tokenizer.min_num_tokens(text, self.max_model_len)
        if num_tokens + num_reserved > self.max_model_len:
            raise errors.too_long(f"at least {num_tokens}", self.max_model_len, param)

    def _check_lengths(self, value: Any, param: str) -> None:
        """Raise ApiError if any string in plain JSON data cannot fit."""
        for text in _strings_in(value):
            self.check_length(text, param)

    def check_ids(self, ids: list[int], param: str, num_reserved: int = 1) -> list[int]:
        """Return the ids. Errors if they are empty or leave no space for `num_reserved` tokens."""
        if not ids:
            raise field_error(param, "is empty; give at least one token")
        if len(ids) + num_reserved > self.max_model_len:
            raise errors.too_long(str(len(ids)), self.max_model_len, param)
        return ids


def num_chars(value: Any) -> int:
    """Return the length of all strings in plain JSON data."""
    return sum(map(len, _strings_in(value)))


def _strings_in(value: Any) -> Iterator[str]:
    """Yield every string in plain JSON data, names of members included. Not recursive."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            stack += (*item.keys(), *item.values())
        elif isinstance(item, (list, tuple)):
            stack += item
