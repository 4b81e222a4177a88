"""The offline API: a model in this process that answers prompts.

Promises: `generate`, `chat` and `stream` use the same engine as the server. Prompts are checked before
any work. Text of users never becomes a control token; only the chat template inserts those. Several
threads may use an `LLM`; their requests are answered together.
Does not know: HTTP, processes, formats of model families.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from numbers import Integral, Number, Real
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_type_hints, overload

import msgspec

from eyas.config import (
    DEFAULTS,
    Auto,
    DtypeName,
    EngineConfig,
)
from eyas.core import Delta, Request, RequestError, SamplingParams, as_token_ids
from eyas.dialect import Dialect, Event, Segmenter, Wanted, find_dialect, tool_specs
from eyas.draft import Drafter
from eyas.engine.startup.build import build_engine
from eyas.grammar import Node, OutputSpec
from eyas.models import Progress, locate_model
from eyas.outputs import Choice, GenerationOutput, PartialOutput
from eyas.peers.offline import keyword_error, translate_keywords
from eyas.peers.sampling import errors_with_sglang_names, fields_of
from eyas.runner.device import selected
from eyas.settings import engine_config
from eyas.text import ChatTemplate, Tokenizer, require_tokenizer, sampling_defaults
from eyas.text.template import require_template, template_text
from eyas.typed import Grammar, JsonSchema, OutputIncomplete, Regex, Typed, typed

log = logging.getLogger(__name__)

Prompt = str | Sequence[int]
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
_RENDER_OPTIONS = ("add_generation_prompt", "continue_final_message")
"""Template options that work with every chat template."""
_KINDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    type(None): "None",
}
_NUMBERS: dict[Any, type] = {int: Integral, float: Real}  # those of NumPy too
T = TypeVar("T")
if TYPE_CHECKING:
    # For types that are not classes, such as `int | None` and `Literal["yes", "no"]`.
    from typing_extensions import TypeForm


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """One prompt. param: the argument that it came from, for errors. output: what its answer must be;
    None if it is free. new_segmenter: makes the segmenter of an answer; None if the text is not
    split."""

    prompt: list[int]
    param: str = "prompt"
    output: OutputSpec | None = None
    new_segmenter: Callable[[], Segmenter] | None = None

    def segmenters(self, num_choices: int) -> list[Segmenter] | None:
        """Return one segmenter for each choice; None if the text is not split."""
        new = self.new_segmenter
        return None if new is None else [new() for _ in range(num_choices)]


class LLM:
    """A model and its engine.

    Several threads may use it at once. It cannot be used after `close`, and in no forked process.

    model: "builtin", a directory (a text or a path), or a hub name.
    drafter: as in `eyas.config.DraftConfig`, which also describes the other draft keywords, or an
    object of a `Drafter` class.
    seed: requests without a seed get one derived from it and from the number of requests before.
    chat_template: a Jinja file or the text of a template, used instead of the model's.
    config: all settings, instead of keywords (a `Drafter` object can be given with it).
    progress: called with (stage, bytes done, bytes in all) while the model is loaded; both are 0 if a
    stage has no bytes to count.
    others: more settings, with the names of `eyas.settings.engine_config`, and keywords of SGLang's
    Engine and vLLM's LLM. Raises ValueError that names the keyword for those that are not supported,
    and for values that cannot be used.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULTS.model.path,
        *,
        drafter: str | Drafter = DEFAULTS.draft.drafter,
        draft_model: str | os.PathLike[str] | None = DEFAULTS.draft.model,
        draft_steps: int | Auto = DEFAULTS.draft.steps,
        draft_topk: int = DEFAULTS.draft.topk,
        draft_nodes: int | Auto = DEFAULTS.draft.nodes,
        draft_token_map: str | os.PathLike[str] | None = DEFAULTS.draft.token_map,
        dtype: DtypeName | Literal["half", "float"] = DEFAULTS.model.dtype,
        max_model_len: int | None = DEFAULTS.model.max_model_len,
        device: str = DEFAULTS.device.device,
        num_threads: int | None = DEFAULTS.device.num_threads,
        max_num_seqs: int | str = DEFAULTS.scheduler.max_num_seqs,
        num_slots: int | None = DEFAULTS.cache.num_slots,
        prefix_cache: bool = DEFAULTS.cache.prefix_cache,
        offline: bool = DEFAULTS.model.offline,
        seed: int | None = None,
        chat_template: str | os.PathLike[str] | None = None,
        config: EngineConfig | None = None,
        progress: Progress | None = None,
        **others: Any,
    ) -> None:
        own_drafter = None if isinstance(drafter, str) else drafter
        _check("model", model, str | os.PathLike, "'builtin', a directory, or a hub name")
        _check(
            "drafter", drafter, str | Drafter, "the name of one, or an object of a Drafter class"
        )
        _check("config", config, EngineConfig | None, "an EngineConfig")
        _check("seed", seed, int | None, "a whole number")
        _check("chat_template", chat_template, str | os.PathLike | None, "a text, or a path")
        _check("progress", progress, Callable | None, "a function")
        settings = {
            "model": model,
            "dtype": dtype,
            "max_model_len": max_model_len,
            "offline": offline,
            "num_slots": num_slots,
            "prefix_cache": prefix_cache,
            "max_num_seqs": max_num_seqs,
            "drafter": drafter if isinstance(drafter, str) else "root",
            "draft_model": draft_model,
            "draft_steps": draft_steps,
            "draft_topk": draft_topk,
            "draft_nodes": draft_nodes,
            "draft_token_map": draft_token_map,
            "device": str(device),
            "threads": num_threads,
        }
        parameters = inspect.signature(engine_config).parameters
        changed = {k: value for k, value in settings.items() if value != parameters[k].default}
        if config is None:
            self.config = _config(changed, others)
        elif others or set(changed) - ({"drafter"} if own_drafter is not None else set()):
            raise ValueError("config: holds every setting; give it alone, or keywords without it")
        else:
            self.config = config
        self._seed = seed
        template = None if chat_template is None else template_text(os.fspath(chat_template))
        source = self.config.model
        directory = locate_model(source.path, source.revision, source.offline)
        self._tokenizer = Tokenizer.from_directory_if_there(directory)
        self._template = ChatTemplate.from_directory(directory, self._tokenizer, template)
        self._defaults = sampling_defaults(directory)
        self.engine = build_engine(self.config, progress, own_drafter)
        self.info = self.engine.info
        self._numbers = count(1)
        self._inboxes: dict[str, deque[Delta]] = {}
        self._left: deque[str] = deque()
        self._process = os.getpid()
        self._is_closed = False
        self._next_turn, self._engine_lock = threading.Lock(), threading.Lock()

    @property
    def has_tokenizer(self) -> bool:
        """Whether the model has a tokenizer. Without one prompts and answers are token ids, and texts
        are empty."""
        return self._tokenizer is not None

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises RequestError if it has none."""
        return require_tokenizer(self._tokenizer)

    @cached_property
    def dialect(self) -> Dialect:
        """The dialect of the model: how it writes reasoning and tool calls. Raises RequestError if it
        has no tokenizer."""
        source = None if self._template is None else self._template.source
        return find_dialect(self.tokenizer, source, self.info.architecture)

    def default_params(self, **changes: Any) -> SamplingParams:
        """Return the model's sampling parameters (generation_config.json), with changes."""
        values: dict[str, Any] = {**self._defaults, **changes}
        return SamplingParams(**values)

    @overload
    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None, *, output: None = None
    ) -> list[GenerationOutput]: ...

    @overload
    def generate(self, prompts: Prompt, params: Params = None, *, output: TextOutput) -> str: ...

    @overload
    def generate(self, prompts: Prompt, params: Params = None, *, output: type[T]) -> T: ...

    @overload
    def generate(self, prompts: Prompt, params: Params = None, *, output: TypeForm[T]) -> T: ...

    @overload
    def generate(
        self, prompts: Sequence[Prompt], params: Params = None, *, output: TextOutput
    ) -> list[str]: ...

    @overload
    def generate(
        self, prompts: Sequence[Prompt], params: Params = None, *, output: type[T]
    ) -> list[T]: ...

    @overload
    def generate(
        self, prompts: Sequence[Prompt], params: Params = None, *, output: TypeForm[T]
    ) -> list[T]: ...

    @overload
    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None, *, output: Any
    ) -> Any: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        output: Any = None,
    ) -> Any:
        """Continue prompts. Returns one GenerationOutput a prompt, in order.

        prompts: one or several, each a text or token ids (a list, tuple, NumPy array or tensor).
        params: for all prompts, or one for each. output: what the continuation must be, as in `chat`.
        """
        type_ = None if output is None else typed(output)
        listed, is_one = _split_prompts(prompts)
        names = ["prompts"] if is_one else [f"prompts[{i}]" for i in range(len(listed))]
        asked = [
            self._encoded(prompt, type_, name) for prompt, name in zip(listed, names, strict=True)
        ]
        return _to_values(self._run(asked, params), type_, is_one=is_one)

    @overload
    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        params: Params = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: None = None,
        **template_options: Any,
    ) -> list[GenerationOutput]: ...

    @overload
    def chat(
        self,
        messages: Conversation,
        params: Params = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: TextOutput,
        **template_options: Any,
    ) -> str: ...

    @overload
    def chat(
        self,
        messages: Conversation,
        params: Params = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: type[T],
        **template_options: Any,
    ) -> T: ...

    @overload
    def chat(
        self,
        messages: Conversation,
        params: Params = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: TypeForm[T],
        **template_options: Any,
    ) -> T: ...

    @overload
    def chat(
        self,
        messages: Sequence[Conversation],
        params: Params = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: TextOutput,
        **template_options: Any,
    ) -> list[str]: ...

    @overload
    def chat(
        self,
        messages: Sequence[Conversation],
        params: Params = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: type[T],
        **template_options: Any,
    ) -> list[T]: ...

    @overload
    def chat(
        self,
        messages: Sequence[Conversation],
        params: Params = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: TypeForm[T],
        **template_options: Any,
    ) -> list[T]: ...

    @overload
    def chat(
        self,
        messages: Conversation,
        params: Params = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: Any,
        **template_options: Any,
    ) -> Any: ...

    @overload
    def chat(
        self,
        messages: Sequence[Conversation],
        params: Params = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: Any,
        **template_options: Any,
    ) -> Any: ...

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        params: Params = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: Any = None,
        **template_options: Any,
    ) -> Any:
        """Answer one conversation or several. Returns one GenerationOutput each, in order.

        tools: functions in OpenAI's format. tool_choice: none, auto (the default), required, or the
        name of a tool (or OpenAI's object that names it). parallel_tool_calls: whether an answer may
        have several calls. max_reasoning_tokens: after so many tokens the reasoning is closed.
        template_options: passed to the chat template, such as enable_thinking.

        output: what the content must be: a pydantic class, a dataclass, list[...] of one, a Literal,
        re.compile(...), the text of a grammar, Regex(...), Grammar(...) or JsonSchema(...). With it the
        value is returned: a list of values for several conversations, and with `n` above 1 a list of
        values for each of them (which the annotations do not express). OutputIncomplete is raised if an
        answer was cut off, or called a tool instead.
        """
        type_ = None if output is None else typed(output)
        wanted = _wanted(type_, tools, tool_choice, parallel_tool_calls, max_reasoning_tokens)
        shown = None if wanted.choice == "none" else tools
        listed = _as_list(messages)
        is_one = isinstance(listed[0], Mapping)
        asked = [
            self._encoded_chat(
                self.encode_chat(one, tools=shown, **template_options),
                wanted,
                "messages" if is_one else f"messages[{index}]",
            )
            for index, one in enumerate([listed] if is_one else listed)
        ]
        return _to_values(self._run(asked, params), type_, is_one=is_one)

    @overload
    def stream(
        self, prompt: Prompt, params: AnyParams | None = None, *, output: None = None
    ) -> Iterator[Delta]: ...

    @overload
    def stream(
        self, prompt: Prompt, params: AnyParams | None = None, *, output: TextOutput
    ) -> Iterator[PartialOutput[str]]: ...

    @overload
    def stream(
        self, prompt: Prompt, params: AnyParams | None = None, *, output: type[T]
    ) -> Iterator[PartialOutput[T]]: ...

    @overload
    def stream(
        self, prompt: Prompt, params: AnyParams | None = None, *, output: TypeForm[T]
    ) -> Iterator[PartialOutput[T]]: ...

    @overload
    def stream(
        self, prompt: Prompt, params: AnyParams | None = None, *, output: Any
    ) -> Iterator[PartialOutput[Any]]: ...

    def stream(
        self,
        prompt: Prompt,
        params: AnyParams | None = None,
        *,
        output: Any = None,
    ) -> Iterator[Any]:
        """Yield the deltas of one prompt as they become final. Leaving the loop early ends the request.

        output: what the continuation must be, as in `chat`. With it each delta comes in a
        `PartialOutput` with the part of the value so far, and the last one of a choice with the
        value. OutputIncomplete is raised if the answer is not complete.
        """
        type_ = None if output is None else typed(output)
        return self._stream(self._encoded(prompt, type_, "prompt"), params, type_)

    @overload
    def stream_chat(
        self,
        messages: Conversation,
        params: AnyParams | None = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: None = None,
        **template_options: Any,
    ) -> Iterator[Delta]: ...

    @overload
    def stream_chat(
        self,
        messages: Conversation,
        params: AnyParams | None = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: TextOutput,
        **template_options: Any,
    ) -> Iterator[PartialOutput[str]]: ...

    @overload
    def stream_chat(
        self,
        messages: Conversation,
        params: AnyParams | None = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: type[T],
        **template_options: Any,
    ) -> Iterator[PartialOutput[T]]: ...

    @overload
    def stream_chat(
        self,
        messages: Conversation,
        params: AnyParams | None = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: TypeForm[T],
        **template_options: Any,
    ) -> Iterator[PartialOutput[T]]: ...

    @overload
    def stream_chat(
        self,
        messages: Conversation,
        params: AnyParams | None = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: Any,
        **template_options: Any,
    ) -> Iterator[PartialOutput[Any]]: ...

    def stream_chat(
        self,
        messages: Conversation,
        params: AnyParams | None = None,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        output: Any = None,
        **template_options: Any,
    ) -> Iterator[Any]:
        """Yield the deltas of the answer to one conversation as they become final.

        The arguments are those of `chat`. The text of a delta is as the model writes it;
        `LLM.dialect.segmenter` splits it. With `output` the elements are those of `stream`, and the
        value is that of the content.
        """
        type_ = None if output is None else typed(output)
        wanted = _wanted(type_, tools, tool_choice, parallel_tool_calls, max_reasoning_tokens)
        shown = None if wanted.choice == "none" else tools
        prompt = self.encode_chat(messages, tools=shown, **template_options)
        return self._stream(self._encoded_chat(prompt, wanted, "messages"), params, type_)

    def encode_chat(
        self,
        messages: Conversation,
        *,
        tools: Tools = None,
        **template_options: Any,
    ) -> list[int]:
        """Return the token ids of a conversation, up to where the answer begins.

        Raises RequestError for an option that the chat template does not read.
        """
        require_tokenizer(self._tokenizer, "messages")
        template = require_template(self._template)
        _check_tools(tools)
        for name in template_options:
            if name not in _RENDER_OPTIONS and not template.mentions(name):
                raise RequestError(
                    f"{name}: is nothing that this model's chat template reads", param=name
                )
        return template.render_ids(
            _as_list(messages), tools=list(tools) if tools else None, **template_options
        )

    def close(self) -> None:
        """Shut the engine down. Requests that are running raise ValueError."""
        if os.getpid() == self._process and not self._is_closed:
            with self._turn():
                self._is_closed = True
                self.engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _encoded(self, prompt: Prompt, type_: Typed | None, param: str) -> EncodedPrompt:
        """Encode a prompt and its output type. param: as in `EncodedPrompt`."""
        output = None if type_ is None else OutputSpec(root=type_.node, param="output")
        if isinstance(prompt, str):
            ids = require_tokenizer(self._tokenizer, param).encode_prompt(prompt)
        else:
            ids = as_token_ids(prompt, param)
        return EncodedPrompt(ids, param, output)

    def _encoded_chat(self, prompt: list[int], wanted: Wanted, param: str) -> EncodedPrompt:
        """Build the output grammar of an answer in the model's dialect. prompt: token ids. param: as in
        `EncodedPrompt`."""
        output = self.dialect.output(wanted, prompt)
        if output is not None and wanted.answer is not None:
            output = msgspec.structs.replace(output, param="output")
        return EncodedPrompt(
            prompt,
            param,
            output,
            lambda: self.dialect.segmenter(wanted, prompt),
        )

    def _request(self, asked: EncodedPrompt, params: AnyParams | None) -> Request:
        output = asked.output
        if isinstance(params, Mapping):
            params, output = self._from_mapping(params, asked)
        if not isinstance(params, SamplingParams | None):
            raise RequestError(
                "params: takes SamplingParams or a mapping, for several prompts also a list of them, "
                f"not {type(params).__name__}",
                param="params",
            )
        params = params if params is not None else self.default_params()
        number = next(self._numbers)
        if params.seed is None and self._seed is not None:
            seed = _nth_seed(self._seed, number)
            params = msgspec.structs.replace(params, seed=seed)
        return Request(
            id=f"offline-{number}",
            prompt_token_ids=asked.prompt,
            params=params,
            output=output,
            with_marks=asked.new_segmenter is not None,
        )

    def _from_mapping(
        self, params: Mapping[str, Any], asked: EncodedPrompt
    ) -> tuple[SamplingParams, OutputSpec | None]:
        """Convert parameters with SGLang's names. Returns them, and the output that they or `output`
        specify."""
        fields, constraints = fields_of(params)
        with errors_with_sglang_names(""):
            sampling = self.default_params(**fields)
        if not constraints:
            return sampling, asked.output
        name, value = next(iter(constraints.items()))
        if len(constraints) > 1 or asked.output is not None or asked.new_segmenter is not None:
            raise RequestError(f"{name}: pass what the answer must be as output= alone", param=name)
        if name == "structural_tag":
            raise RequestError(f"{name}: is for servers; pass output= here", param=name)
        kinds = {"json_schema": JsonSchema, "regex": Regex, "ebnf": Grammar}
        with _naming("output", name):
            return sampling, OutputSpec(root=typed(kinds[name](value)).node, param=name)

    def _run(self, asked: list[EncodedPrompt], params: Params) -> list[GenerationOutput]:
        """Answer prompts together. Returns their outputs in order."""
        own_params: list[AnyParams | None]
        if isinstance(params, str) or not isinstance(params, Sequence):
            own_params = [params] * len(asked)
        else:
            own_params = list(params)
            if len(own_params) != len(asked):
                raise RequestError(
                    f"params: {len(own_params)} for {len(asked)} prompts; give one, or one each",
                    param="params",
                )
        requests = [self._request(a, p) for a, p in zip(asked, own_params, strict=True)]
        outputs: list[GenerationOutput] = []
        try:
            for request, prompt in zip(requests, asked, strict=True):
                with _naming("prompt", prompt.param):
                    self._open(request)
            for request, prompt in zip(requests, asked, strict=True):
                outputs.append(self._collect(request, prompt))
        finally:
            for request in requests:
                self._close(request)
        return outputs

    def _collect(self, request: Request, asked: EncodedPrompt) -> GenerationOutput:
        """Step until all choices of a request have ended. Returns its output."""
        output = _empty_output(request)
        segmenters = asked.segmenters(request.params.n)
        for delta in self._deltas(request):
            output.absorb(delta, _events(delta, segmenters))
        return output

    def _stream(
        self, asked: EncodedPrompt, params: AnyParams | None, type_: Typed | None
    ) -> Iterator[Any]:
        request = self._request(asked, params)
        deltas = self._open_and_close(request)
        with _naming("prompt", asked.param):
            # Opens the request now, and lets the generator close it if it is never read.
            next(deltas)
        if type_ is None:
            return deltas
        return _partials(deltas, _empty_output(request), asked.segmenters(request.params.n), type_)

    def _open_and_close(self, request: Request) -> Iterator[Delta]:
        """Open a request, yield an empty delta and then its deltas, and close it at the end."""
        self._open(request)
        try:
            yield Delta(request_id=request.id)
            yield from self._deltas(request)
        finally:
            self._close(request)

    def _open(self, request: Request) -> None:
        """Add a request to the engine, with an inbox for its deltas."""
        self._require_usable()
        grammar = None
        if request.output is not None:
            self.engine.check_request(request)  # before its grammar is compiled
            grammar = self.engine.compile(request.output).result()
        with self._turn():
            self.engine.add(request, grammar)
            self._inboxes[request.id] = deque()

    def _close(self, request: Request) -> None:
        """Remove a request's inbox, and end the request if it is running. The garbage collector may
        call this anywhere, also inside a step."""
        if self._inboxes.pop(request.id, None) is not None:
            self._left.append(request.id)
            self._end_left()

    def _deltas(self, request: Request) -> Iterator[Delta]:
        """Yield a request's deltas, stepping the engine as needed. Deltas of other open requests are
        put into their inboxes."""
        inbox = self._inboxes[request.id]
        num_open = request.params.n
        while num_open:
            while not inbox:
                with self._turn():
                    if not inbox:  # another thread may have stepped
                        self._step()
            delta = inbox.popleft()
            num_open -= delta.finish_reason is not None
            yield delta

    def _step(self) -> None:
        """Step the engine, and put the deltas into the inboxes of their requests."""
        for delta in self.engine.step():
            inbox = self._inboxes.get(delta.request_id)
            if inbox is not None:
                inbox.append(delta)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Give the engine to one thread at a time. A thread that steps it again and again lets those
        that wait go first: they hold `_next_turn` while they wait. Raises ValueError if the engine
        cannot be used."""
        self._require_usable()
        with self._next_turn:
            self._engine_lock.acquire()
        try:
            self._require_usable()
            with selected(self.engine.table.device):
                yield
        finally:
            self._engine_lock.release()
            self._end_left()

    def _end_left(self) -> None:
        """End the requests that nobody reads any more; while a thread has the engine, it does this when
        it gives the engine back."""
        while self._left and self._engine_lock.acquire(blocking=False):
            try:
                while self._left:
                    self.engine.abort(self._left.popleft())
            finally:
                self._engine_lock.release()

    def _require_usable(self) -> None:
        """Raise ValueError in a forked process, whose copy of the engine lacks its threads, and after
        `close`."""
        if os.getpid() != self._process:
            raise ValueError(
                f"this LLM belongs to process {self._process}, and this process was forked from it; "
                "make an LLM in each process"
            )
        if self._is_closed:
            raise ValueError("this LLM is closed; make another one")


def _config(changed: Mapping[str, Any], others: Mapping[str, Any]) -> EngineConfig:
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
            _check(keyword, value, types[name], needed)
        return engine_config(**settings)
    except ValueError as error:
        raise keyword_error(error, translation.flags) from error


def _check(name: str, value: Any, allowed: Any, needed: str) -> None:
    """Raise ValueError that names a keyword whose value is none of the types `allowed`. Whole numbers
    are floats, truth values are no numbers. needed: the types in words."""
    kinds = get_args(allowed) or (allowed,)
    numbers = tuple(_NUMBERS[kind] for kind in kinds if kind in _NUMBERS)
    is_right = isinstance(value, (*kinds, *numbers))
    if not is_right or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(f"{name}: must be {needed}, not {value!r:.80}")


@contextmanager
def _naming(param: str, argument: str) -> Iterator[None]:
    """Rename the parameter of a RequestError to the argument that the caller gave."""
    try:
        yield
    except RequestError as error:
        if error.param == param:
            error.param = argument
            error.message = f"{argument}: {error.message.removeprefix(f'{param}: ')}"
            error.args = (error.message,)
        raise


def _nth_seed(seed: int, number: int) -> int:
    """Derive a seed of 63 bits for the request with this number."""
    digest = hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def _split_prompts(prompts: Any) -> tuple[list[Any], bool]:
    """Return the prompts, and whether it is one (a text or token ids) that was not in a list."""
    if isinstance(prompts, str) or hasattr(prompts, "shape"):
        return [prompts], True
    if not isinstance(prompts, Iterable) or isinstance(prompts, Mapping | Set | bytes):
        raise RequestError(
            "prompts: must be a text, token ids, or a list of either, not "
            f"{type(prompts).__name__}",
            param="prompts",
        )
    listed = list(prompts)
    first = listed[0] if listed else ""
    is_one = isinstance(first, Number) or getattr(first, "shape", None) == ()
    return ([listed], True) if is_one else (listed, False)


def _as_list(messages: Any) -> list[Any]:
    """Return messages, or conversations, as a list. Raises RequestError if it has none."""
    listed = list(messages) if isinstance(messages, Iterable) else []
    if not listed:
        raise RequestError(
            'messages: give at least one message, in a list: {"role": "user", "content": "..."}',
            param="messages",
        )
    return listed


def _check_tools(tools: Any) -> None:
    """Raise RequestError if tools are no list of objects."""
    is_list = isinstance(tools, Sequence) and all(isinstance(tool, Mapping) for tool in tools)
    if tools is not None and not is_list:
        raise RequestError(
            'tools: must be a list of functions {"type": "function", "function": {"name": ...}}',
            param="tools",
        )


def _wanted(
    output: Typed | None,
    tools: Tools,
    choice: ToolChoice,
    parallel: bool,
    max_reasoning_tokens: int | None,
) -> Wanted:
    _check_tools(tools)
    limit = max_reasoning_tokens
    if limit is not None and not (type(limit) is int and limit >= 0):
        raise RequestError(
            f"max_reasoning_tokens: must be a whole number, 0 or more, not {limit!r:.80}",
            param="max_reasoning_tokens",
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


def _empty_output(request: Request) -> GenerationOutput:
    """Return the output of a request without any deltas."""
    choices = [Choice(index) for index in range(request.params.n)]
    return GenerationOutput(request.prompt_token_ids, choices)


def _events(delta: Delta, segmenters: Sequence[Segmenter] | None) -> list[Event] | None:
    """Split the text of a delta. Returns None without segmenters."""
    if segmenters is None:
        return None
    segmenter = segmenters[delta.index]
    events = segmenter.push(delta.text, delta.marks)
    return events if delta.finish_reason is None else events + segmenter.finish()


def _partials(
    deltas: Iterator[Delta],
    output: GenerationOutput,
    segmenters: Sequence[Segmenter] | None,
    type_: Typed,
) -> Iterator[PartialOutput[Any]]:
    """Yield each delta with the content and the partial value of its choice so far."""
    for delta in deltas:
        output.absorb(delta, _events(delta, segmenters))
        choice = output.choices[delta.index]
        value = None if delta.finish_reason is None else _value(choice, type_)
        yield PartialOutput(delta, choice.content, type_.partial(choice.content), value)


def _value(choice: Choice, type_: Typed) -> Any:
    """Parse a finished answer. Raises OutputIncomplete if it is not complete."""
    is_complete = choice.finish_reason == "stop" and choice.stop_reason is None
    if not is_complete or choice.tool_calls:
        raise OutputIncomplete(choice)
    return type_.parse(choice.content)


def _to_values(outputs: list[GenerationOutput], type_: Typed | None, *, is_one: bool) -> Any:
    """Return the outputs, or with an output type their values: a list, or the value of one prompt."""
    if type_ is None:
        return outputs
    values = []
    for output in outputs:
        answers = [_value(choice, type_) for choice in output.choices]
        values.append(answers[0] if len(answers) == 1 else answers)
    return values[0] if is_one else values
