"""Prompts for the engine: tokenising and rendering.

Promises: a prompt that cannot fit is refused before it is read whole. Does not know: HTTP, the engine.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.config import EngineConfig, EngineInfo
from eyas.core import MAX_LOGPROBS, Request, RequestError, SamplingParams, check_room
from eyas.dialect import Dialect, find_dialect, named_dialect
from eyas.grammar import OutputSpec
from eyas.server import errors
from eyas.server.free_text import Spelling
from eyas.text import ChatTemplate, Tokenizer, require_tokenizer, sampling_defaults
from eyas.text.template import require_template


class TextProcessor:
    """What the server knows of a model: its tokenizer, template, dialect, sampling defaults, limits.

    tokenizer, template: None where the model has none; without the first there is no second.
    """

    def __init__(
        self,
        directory: Path,
        info: EngineInfo,
        reasoning_parser: str | None = None,
        tool_call_parser: str | None = None,
        *,
        chat_template: str | None = None,
        max_top_logprobs: int = MAX_LOGPROBS,
    ) -> None:
        """ValueError names a file that is missing or broken, or a parser that is unknown. Without
        parsers the checkpoint says what its dialect is. chat_template: in place of its own."""
        self.tokenizer = Tokenizer.from_directory_if_there(directory)
        self.template = ChatTemplate.from_directory(directory, self.tokenizer, chat_template)
        self.max_top_logprobs = max_top_logprobs
        self._dialect: Dialect | None = None
        if self.tokenizer is not None:
            self._dialect = _dialect(
                self.tokenizer, self.template, info, reasoning_parser, tool_call_parser
            )
        self.spelling = Spelling(self.tokenizer, info.eos_token_ids)
        self.defaults = sampling_defaults(directory)
        self.eos_token_ids = frozenset(info.eos_token_ids)
        self.max_model_len = info.max_model_len
        self.vocab_size = info.vocab_size

    @property
    def dialect(self) -> Dialect:
        """How the model writes reasoning and calls. RequestError without a tokenizer."""
        require_tokenizer(self.tokenizer, "messages")
        assert self._dialect is not None
        return self._dialect

    def encode_prompt(
        self, prompt: str | Sequence[int], param: str, num_reserved: int = 1
    ) -> list[int]:
        """Ids of a raw prompt. ApiError or RequestError if it is empty, no prompt, or too long to leave
        room for `num_reserved` tokens."""
        if isinstance(prompt, str):
            self.check_length(prompt, param, num_reserved)
            ids = require_tokenizer(self.tokenizer, param).encode_prompt(prompt)
        else:
            ids = self.checked(list(prompt), param, num_reserved)
            if max(ids) >= self.vocab_size:
                raise RequestError(
                    f"{param}: holds token ids beyond the vocabulary of {self.vocab_size}",
                    param=param,
                )
        return self.checked(ids, param, num_reserved)

    def make_requests(
        self,
        prompts: Mapping[str, str | Sequence[int]],
        params: SamplingParams,
        output: OutputSpec | None,
        request_id: str,
        cache_salt: str,
    ) -> list[Request]:
        """A request for each raw prompt, given by its field. Errors are those of `encode_prompt`; a
        RequestError where there is no room for `min_tokens`."""
        num_reserved = int(params.max_tokens != 0)
        ids = [self.encode_prompt(prompt, param, num_reserved) for param, prompt in prompts.items()]
        for each in ids:
            check_room(len(each), params, self.max_model_len)
        return [
            Request(
                id=f"{request_id}-{place}" if len(ids) > 1 else request_id,
                prompt_token_ids=each,
                params=params,
                output=output,
                cache_salt=cache_salt,
            )
            for place, each in enumerate(ids)
        ]

    def encode_chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        **options: Any,
    ) -> list[int]:
        """Ids of a rendered conversation. Nothing that cannot fit is rendered, whatever field it is in,
        and no rendered text that cannot is tokenised."""
        require_tokenizer(self.tokenizer, "messages")
        template = require_template(self.template)
        apart = [{k: v for k, v in message.items() if k != "content"} for message in messages]
        self._check_lengths(apart, "messages")
        self._check_lengths(tools, "tools")
        messages = template.normal(messages, tools)
        self._check_lengths(messages, "messages")
        # Templates may leave out earlier reasoning, but what was said they show.
        said = _texts_of([message.get("content") for message in messages])
        self.check_length("".join(said), "messages")
        pieces = template.render(messages, tools, **options)
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        self.check_length(text, "messages")
        return self.checked(template.ids_of(pieces), "messages")

    def check_length(self, text: str, param: str, num_reserved: int = 1) -> None:
        """ApiError if `text` cannot fit; cheap, however long it is."""
        tokenizer = require_tokenizer(self.tokenizer, param)
        num_tokens = tokenizer.min_num_tokens(text, self.max_model_len)
        if num_tokens + num_reserved > self.max_model_len:
            raise errors.too_long(f"at least {num_tokens}", self.max_model_len, param)

    def _check_lengths(self, value: Any, param: str) -> None:
        """ApiError if a string in plain JSON data cannot fit."""
        for text in _texts_of(value):
            self.check_length(text, param)

    def checked(self, ids: list[int], param: str, num_reserved: int = 1) -> list[int]:
        """The ids, if they are a prompt that leaves room for so many tokens of an answer."""
        if not ids:
            raise RequestError(f"{param}: is empty; give at least one token", param=param)
        if len(ids) + num_reserved > self.max_model_len:
            raise errors.too_long(str(len(ids)), self.max_model_len, param)
        return ids


def model_directory(config: EngineConfig, info: EngineInfo) -> Path:
    """Where the model's text files are. ValueError if nobody says."""
    if info.directory:
        return Path(info.directory)
    if config.model.path == "builtin":
        return Path(str(importlib.resources.files("eyas") / "builtin" / "checkpoint"))
    directory = Path(config.model.path)
    if not directory.is_dir():
        raise ValueError(f"{config.model.path}: the engine does not say where its tokenizer is")
    return directory


def _dialect(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    info: EngineInfo,
    reasoning_parser: str | None,
    tool_call_parser: str | None,
) -> Dialect:
    source = template.source if template else ""
    if reasoning_parser is None and tool_call_parser is None:
        return find_dialect(tokenizer, source, info.architecture)
    return named_dialect(tokenizer, reasoning_parser, tool_call_parser, source, info.architecture)


def _texts_of(value: Any) -> Iterator[str]:
    """Every string in plain JSON data, names included. No recursion."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            todo += (*item.keys(), *item.values())
        elif isinstance(item, (list, tuple)):
            todo += item
