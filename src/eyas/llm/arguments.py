"""The arguments of `LLM`: their types, their checks, and what is made of them.

Promises: what cannot be used is a ValueError or RequestError that names the argument, before any work.
Does not know: models, engines.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Number, Real
from typing import Any, get_args, get_type_hints

from eyas.config import EngineConfig
from eyas.core import RequestError, SamplingParams
from eyas.dialect import Segmenter, Wanted, tool_specs
from eyas.grammar import Node, OutputSpec
from eyas.peers.offline import keyword_error, translate_keywords
from eyas.settings import engine_config
from eyas.typed import Grammar, Regex, Typed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt that is encoded, with what belongs to it.

    prompt: token ids. param: the argument that it came from, for errors. output: what its answer must
    be; None if it is free. new_segmenter: makes the segmenter of an answer; None if the text is not
    split.
    """

    prompt: list[int]
    param: str = "prompt"
    output: OutputSpec | None = None
    new_segmenter: Callable[[], Segmenter] | None = None

    def segmenters(self, num_choices: int) -> list[Segmenter] | None:
        """Return one segmenter for each choice; None if the text is not split."""
        new = self.new_segmenter
        return None if new is None else [new() for _ in range(num_choices)]


Prompt = str | Sequence[int] | Mapping[str, Any] | EncodedPrompt
"""A text, token ids, vLLM's mapping of one of them (`prompt`, `prompt_token_ids`), or a conversation
that `LLM.prepare_chat` has encoded."""
Message = Mapping[str, Any]
Conversation = Sequence[Message]
AnyParams = SamplingParams | Mapping[str, Any]
"""`SamplingParams`, or a mapping with SGLang's parameter names (and SGLang's default of
`max_new_tokens`)."""
Params = AnyParams | Sequence[AnyParams] | None
Tools = Sequence[Mapping[str, Any]] | None
ToolChoice = str | Mapping[str, Any] | None
TextOutput = Regex | Grammar | re.Pattern[str] | str | Node
"""Output types whose value is the text."""
_KINDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    type(None): "None",
}
_OF_PROMPTS = ("prompt", "prompts", "messages", "output")
"""Arguments of one prompt that are not among its `sampling_params`."""
_NUMBERS: dict[Any, type] = {int: Integral, float: Real}  # those of NumPy too


def config_of(changed: Mapping[str, Any], others: Mapping[str, Any]) -> EngineConfig:
    """Return the configuration of `LLM`'s keywords. Raises ValueError that names the keyword at fault.

    changed: settings of eyas that are not the default. others: keywords that may be those of other
    engines.
    """
    settings, translation = translate_keywords(changed, others)
    for note in translation.notes:
        log.info("%s", note)
    types = get_type_hints(engine_config)
    settings = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in settings.items()
    }
    try:
        for name, value in settings.items():
            allowed = get_args(types[name]) or (types[name],)
            needed = " or ".join(_KINDS[kind] for kind in allowed if kind in _KINDS)
            keyword = "num_threads" if name == "threads" else name
            check(keyword, value, types[name], needed)
        return engine_config(**settings)
    except ValueError as error:
        raise keyword_error(error, translation.flags) from error


def check(name: str, value: Any, allowed: Any, needed: str) -> None:
    """Raise ValueError that names a keyword whose value is none of the types `allowed`. Whole numbers
    are floats, truth values are no numbers. needed: the types in words."""
    kinds = get_args(allowed) or (allowed,)
    numbers = tuple(_NUMBERS[kind] for kind in kinds if kind in _NUMBERS)
    is_right = isinstance(value, (*kinds, *numbers))
    if not is_right or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f"{name}: must be {needed}, not {value!r:.80}")


@contextmanager
def naming(param: str, argument: str) -> Iterator[None]:
    """Rename the parameter of a RequestError, or what the path of its field begins with, to the
    argument that the caller gave."""
    try:
        yield
    except RequestError as error:
        given = error.param or ""
        if given == param or given.startswith((f"{param}.", f"{param}[")):
            _rename(error, argument + given.removeprefix(param))
        raise


@contextmanager
def naming_params(index: int | None) -> Iterator[None]:
    """Say which of several `sampling_params` a RequestError is about that is not about a prompt or its
    output; None: there is one for all."""
    try:
        yield
    except RequestError as error:
        given = error.param or ""
        if index is not None and given == "sampling_params":
            _rename(error, f"{given}[{index}]")
        elif index is not None and given and re.split(r"[.\[]", given)[0] not in _OF_PROMPTS:
            _rename(error, f"sampling_params[{index}].{given}")
        raise


def _rename(error: RequestError, param: str) -> None:
    error.message = f"{param}: {error.message.removeprefix(f'{error.param}: ')}"
    error.param, error.args = param, (error.message,)


def nth_seed(seed: int, number: int) -> int:
    """Derive a seed of 63 bits for the request with this number."""
    digest = hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def split_prompts(prompts: Any) -> tuple[list[Any], bool]:
    """Return the prompts, and whether it is one (a `Prompt`) that was not in a list."""
    if isinstance(prompts, str | Mapping | EncodedPrompt) or hasattr(prompts, "shape"):
        return [prompts], True
    if not isinstance(prompts, Iterable) or isinstance(prompts, Set | bytes):
        raise RequestError(
            "prompts: must be a text, token ids, or a list of either, not "
            f"{type(prompts).__name__}",
            param="prompts",
        )
    listed = list(prompts)
    first = listed[0] if listed else ""
    is_one = isinstance(first, Number) or getattr(first, "shape", None) == ()
    return ([listed], True) if is_one else (listed, False)


def text_or_ids(prompt: str | Sequence[int] | Mapping[str, Any], param: str) -> str | Sequence[int]:
    """Return what a mapping holds; the ids if it has both. Raises RequestError for other mappings.

    param: the argument that the prompt came in.
    """
    if not isinstance(prompt, Mapping):
        return prompt
    given = {key: value for key, value in prompt.items() if value is not None}
    text, ids = given.pop("prompt", None), given.pop("prompt_token_ids", None)
    if given or (ids is None and not isinstance(text, str)):
        raise RequestError(
            f"{param}: a mapping takes a text as prompt, or prompt_token_ids; this one has "
            f"{', '.join(map(repr, prompt)) or 'nothing'}",
            param=param,
        )
    return text if ids is None else ids


def as_list(messages: Any) -> list[Any]:
    """Return messages, or conversations, as a list. Raises RequestError if it has none."""
    listed = list(messages) if isinstance(messages, Iterable) else []
    if not listed:
        raise RequestError(
            'messages: give at least one message, in a list: {"role": "user", "content": "..."}',
            param="messages",
        )
    return listed


def check_tools(tools: Any) -> None:
    """Raise RequestError if tools are no list of objects."""
    is_list = isinstance(tools, Sequence) and all(isinstance(tool, Mapping) for tool in tools)
    if tools is not None and not is_list:
        raise RequestError(
            'tools: must be a list of functions {"type": "function", "function": {"name": ...}}',
            param="tools",
        )


def wanted_of(
    output: Typed | None,
    tools: Tools,
    choice: ToolChoice,
    parallel: bool,
    max_reasoning_tokens: int | None,
) -> Wanted:
    check_tools(tools)
    limit = max_reasoning_tokens
    if limit is not None and not (type(limit) is int and limit >= 0):
        raise RequestError(
            f"max_reasoning_tokens: must be a whole number, 0 or more, not {limit!r:.80}",
            param="max_reasoning_tokens",
        )
    if type(parallel) is not bool:
        raise RequestError(
            f"parallel_tool_calls: must be True or False, not {parallel!r:.80}",
            param="parallel_tool_calls",
        )
    if isinstance(choice, Mapping):
        function = choice.get("function")
        choice = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(choice, str):
            raise RequestError(
                'tool_choice: an object must be {"type": "function", "function": {"name": ...}}',
                param="tool_choice",
            )
    return Wanted(
        answer=None if output is None else output.node,
        tools=tool_specs(tools),
        choice=choice or ("auto" if tools else "none"),
        parallel=parallel,
        max_reasoning_tokens=max_reasoning_tokens,
    )
