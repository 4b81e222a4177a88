"""The offline API: a model in this process that answers prompts.

Promises: `generate`, `chat` and `stream` use the same engine as the server. Prompts are checked before
any work. Text of users never becomes a control token; only the chat template inserts those. Several
threads may use an `LLM`; their requests are answered together.
Does not know: HTTP, processes, formats of model families.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import msgspec

from eyas.config import (
    DEFAULTS,
    Auto,
    DtypeName,
    EngineConfig,
)
from eyas.core import Delta, Request, RequestError, SamplingParams, as_token_ids
from eyas.dialect import Dialect, Wanted, find_dialect
from eyas.draft import CheckedDrafter, Drafter
from eyas.engine.engine import Engine
from eyas.engine.startup.build import build_engine
from eyas.grammar import OutputSpec
from eyas.llm.answers import empty_output, events, partials, to_values
from eyas.llm.arguments import (
    AnyParams,
    Conversation,
    EncodedPrompt,
    Params,
    Prompt,
    TextOutput,
    ToolChoice,
    Tools,
    as_list,
    check,
    check_tools,
    config_of,
    naming,
    naming_params,
    nth_seed,
    split_prompts,
    text_or_ids,
    wanted_of,
)
from eyas.llm.shared_engine import SharedEngine
from eyas.models import Progress, locate_model
from eyas.outputs import GenerationOutput, PartialOutput
from eyas.peers.sampling import errors_with_sglang_names, fields_of
from eyas.settings import engine_config
from eyas.text import ChatTemplate, Tokenizer, require_tokenizer, sampling_defaults
from eyas.text.template import require_template, template_text
from eyas.typed import Grammar, JsonSchema, Regex, Typed, typed

_RENDER_OPTIONS = ("add_generation_prompt", "continue_final_message")
"""Template options that work with every chat template."""
T = TypeVar("T")
if TYPE_CHECKING:
    # For types that are not classes, such as `int | None` and `Literal["yes", "no"]`.
    from typing_extensions import TypeForm


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
    report_draft_trees: whether choices and deltas report the draft tree of each step, of the first 512
    of a choice.
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
        report_draft_trees: bool = False,
        **others: Any,
    ) -> None:
        check("model", model, str | os.PathLike, "'builtin', a directory, or a hub name")
        check("drafter", drafter, str | Drafter, "the name of one, or an object of a Drafter class")
        own_drafter = None if isinstance(drafter, str) else CheckedDrafter(drafter)
        check("config", config, EngineConfig | None, "an EngineConfig")
        check("seed", seed, int | None, "a whole number")
        check("chat_template", chat_template, str | os.PathLike | None, "a text, or a path")
        check("progress", progress, Callable | None, "a function")
        check("report_draft_trees", report_draft_trees, bool, "True or False")
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
            self.config = config_of(changed, others)
        elif others or set(changed) - ({"drafter"} if own_drafter is not None else set()):
            raise ValueError("config: holds every setting; give it alone, or keywords without it")
        else:
            self.config = config
        self._seed = seed
        self._reports_draft_trees = report_draft_trees
        template = None if chat_template is None else template_text(os.fspath(chat_template))
        source = self.config.model
        directory = locate_model(source.path, source.revision, source.offline)
        self._tokenizer = Tokenizer.from_directory_if_there(directory)
        self._template = ChatTemplate.from_directory(directory, self._tokenizer, template)
        self._defaults = sampling_defaults(directory)
        self.shared_engine = SharedEngine(build_engine(self.config, progress, own_drafter))
        self.info = self.engine.info
        self._numbers = count(1)

    @property
    def engine(self) -> Engine:
        """The engine that runs all requests."""
        return self.shared_engine.engine

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
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        output: None = None,
    ) -> list[GenerationOutput]: ...

    @overload
    def generate(
        self, prompts: Prompt, sampling_params: Params = None, *, output: TextOutput
    ) -> str: ...

    @overload
    def generate(
        self, prompts: Prompt, sampling_params: Params = None, *, output: type[T]
    ) -> T: ...

    @overload
    def generate(
        self, prompts: Prompt, sampling_params: Params = None, *, output: TypeForm[T]
    ) -> T: ...

    @overload
    def generate(
        self, prompts: Sequence[Prompt], sampling_params: Params = None, *, output: TextOutput
    ) -> list[str]: ...

    @overload
    def generate(
        self, prompts: Sequence[Prompt], sampling_params: Params = None, *, output: type[T]
    ) -> list[T]: ...

    @overload
    def generate(
        self, prompts: Sequence[Prompt], sampling_params: Params = None, *, output: TypeForm[T]
    ) -> list[T]: ...

    @overload
    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None, *, output: Any
    ) -> Any: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        output: Any = None,
    ) -> Any:
        """Continue prompts. Returns one GenerationOutput a prompt, in order.

        prompts: one or several, each a text, token ids (a list, tuple, NumPy array or tensor),
        vLLM's mapping {"prompt": text} or {"prompt_token_ids": ids}, or what `prepare_chat` returns.
        sampling_params: for all prompts, or one for each. output: what the continuation must be, as in
        `chat`.
        """
        type_ = None if output is None else typed(output)
        listed, is_one = split_prompts(prompts)
        names = ["prompts"] if is_one else [f"prompts[{i}]" for i in range(len(listed))]
        asked = [
            self._encoded(prompt, type_, name) for prompt, name in zip(listed, names, strict=True)
        ]
        return to_values(self._run(asked, sampling_params), type_, is_one=is_one)

    @overload
    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
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
        sampling_params: Params = None,
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
        sampling_params: Params = None,
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
        sampling_params: Params = None,
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
        sampling_params: Params = None,
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
        sampling_params: Params = None,
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
        sampling_params: Params = None,
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
        sampling_params: Params = None,
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
        sampling_params: Params = None,
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
        sampling_params: Params = None,
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
        wanted = wanted_of(type_, tools, tool_choice, parallel_tool_calls, max_reasoning_tokens)
        listed = as_list(messages)
        is_one = isinstance(listed[0], Mapping)
        asked = []
        for index, one in enumerate([listed] if is_one else listed):
            param = "messages" if is_one else f"messages[{index}]"
            is_text = isinstance(one, str)  # `messages` is a text, or one message
            with naming("messages", "messages" if is_text or len(listed) == 1 else param):
                encoded = self._encoded_chat(one, wanted, tools, template_options)
            asked.append(replace(encoded, param=param))
        return to_values(self._run(asked, sampling_params), type_, is_one=is_one)

    @overload
    def stream(
        self, prompt: Prompt, sampling_params: AnyParams | None = None, *, output: None = None
    ) -> Iterator[Delta]: ...

    @overload
    def stream(
        self, prompt: Prompt, sampling_params: AnyParams | None = None, *, output: TextOutput
    ) -> Iterator[PartialOutput[str]]: ...

    @overload
    def stream(
        self, prompt: Prompt, sampling_params: AnyParams | None = None, *, output: type[T]
    ) -> Iterator[PartialOutput[T]]: ...

    @overload
    def stream(
        self, prompt: Prompt, sampling_params: AnyParams | None = None, *, output: TypeForm[T]
    ) -> Iterator[PartialOutput[T]]: ...

    @overload
    def stream(
        self, prompt: Prompt, sampling_params: AnyParams | None = None, *, output: Any
    ) -> Iterator[PartialOutput[Any]]: ...

    def stream(
        self,
        prompt: Prompt,
        sampling_params: AnyParams | None = None,
        *,
        output: Any = None,
    ) -> Iterator[Any]:
        """Yield the deltas of one prompt as they become final. Leaving the loop early ends the request.

        output: what the continuation must be, as in `chat`. With it each delta comes in a
        `PartialOutput` with the part of the value so far, and the last one of a choice with the
        value. OutputIncomplete is raised if the answer is not complete.
        """
        type_ = None if output is None else typed(output)
        if isinstance(prompt, (list, tuple)) and any(isinstance(part, str) for part in prompt):
            message = "prompt: is one text or its token ids; stream each text by itself"
            raise RequestError(message, param="prompt")
        return self._stream(self._encoded(prompt, type_, "prompt"), sampling_params, type_)

    @overload
    def stream_chat(
        self,
        messages: Conversation,
        sampling_params: AnyParams | None = None,
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
        sampling_params: AnyParams | None = None,
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
        sampling_params: AnyParams | None = None,
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
        sampling_params: AnyParams | None = None,
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
        sampling_params: AnyParams | None = None,
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
        sampling_params: AnyParams | None = None,
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
        wanted = wanted_of(type_, tools, tool_choice, parallel_tool_calls, max_reasoning_tokens)
        asked = self._encoded_chat(messages, wanted, tools, template_options)
        return self._stream(asked, sampling_params, type_)

    def prepare_chat(
        self,
        messages: Conversation,
        *,
        tools: Tools = None,
        tool_choice: ToolChoice = None,
        parallel_tool_calls: bool = True,
        max_reasoning_tokens: int | None = None,
        **template_options: Any,
    ) -> EncodedPrompt:
        """Encode a conversation for `generate` or `stream`, which answer it as `chat` does, together
        with other prompts and with conversations that have other tools. The arguments are those of
        `chat`."""
        wanted = wanted_of(None, tools, tool_choice, parallel_tool_calls, max_reasoning_tokens)
        return self._encoded_chat(messages, wanted, tools, template_options)

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
        check_tools(tools)
        for name in template_options:
            if name not in _RENDER_OPTIONS and not template.mentions(name):
                raise RequestError(
                    f"{name}: is nothing that this model's chat template reads", param=name
                )
        return template.render_ids(
            as_list(messages), tools=list(tools) if tools else None, **template_options
        )

    def close(self) -> None:
        """Shut the engine down. Requests that are running raise ValueError."""
        self.shared_engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _encoded(self, prompt: Prompt, type_: Typed | None, param: str) -> EncodedPrompt:
        """Encode a prompt and its output type. param: as in `EncodedPrompt`."""
        if isinstance(prompt, EncodedPrompt):
            if type_ is not None:
                message = "output: is for prompts and `chat`, not for an encoded conversation"
                raise RequestError(message, param="output")
            return replace(prompt, param=param)
        output = None if type_ is None else OutputSpec(root=type_.node, param="output")
        content = text_or_ids(prompt, param)
        if isinstance(content, str):
            ids = require_tokenizer(self._tokenizer, param).encode_prompt(content)
        else:
            ids = as_token_ids(content, param)
        return EncodedPrompt(ids, param, output)

    def _encoded_chat(
        self,
        messages: Conversation,
        wanted: Wanted,
        tools: Tools,
        template_options: Mapping[str, Any],
    ) -> EncodedPrompt:
        """Encode a conversation, and build the output grammar of its answer in the model's dialect."""
        shown = None if wanted.choice == "none" else tools
        prompt = self.encode_chat(messages, tools=shown, **template_options)
        output = self.dialect.output(wanted, prompt)
        if output is not None and wanted.answer is not None:
            output = msgspec.structs.replace(output, param="output")
        return EncodedPrompt(
            prompt, "messages", output, lambda: self.dialect.segmenter(wanted, prompt)
        )

    def _request(self, asked: EncodedPrompt, params: AnyParams | None) -> Request:
        output = asked.output
        if isinstance(params, Mapping):
            params, output = self._from_mapping(params, asked)
        if not isinstance(params, SamplingParams | None):
            raise RequestError(
                "sampling_params: takes SamplingParams or a mapping, for several prompts also a "
                f"list of them, not {type(params).__name__}",
                param="sampling_params",
            )
        params = params if params is not None else self.default_params()
        number = next(self._numbers)
        if params.seed is None and self._seed is not None:
            seed = nth_seed(self._seed, number)
            params = msgspec.structs.replace(params, seed=seed)
        return Request(
            id=f"offline-{number}",
            prompt_token_ids=asked.prompt,
            params=params,
            output=output,
            with_marks=asked.new_segmenter is not None,
            with_draft_trees=self._reports_draft_trees,
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
        with naming("output", name):
            return sampling, OutputSpec(root=typed(kinds[name](value)).node, param=name)

    def _run(self, asked: list[EncodedPrompt], params: Params) -> list[GenerationOutput]:
        """Answer prompts together. Returns their outputs in order."""
        own_params: Sequence[AnyParams | None]
        indices: Sequence[int | None] = [None] * len(asked)
        if isinstance(params, str) or not isinstance(params, Sequence):
            own_params = [params] * len(asked)
        else:
            own_params, indices = params, range(len(asked))
            if len(own_params) != len(asked):
                raise RequestError(
                    f"sampling_params: {len(own_params)} for {len(asked)} prompts; give one, or one "
                    "each",
                    param="sampling_params",
                )
        requests: list[Request] = []
        for prompt, own, index in zip(asked, own_params, indices, strict=True):
            with naming_params(index):
                requests.append(self._request(prompt, own))
        outputs: list[GenerationOutput] = []
        try:
            for request, prompt, index in zip(requests, asked, indices, strict=True):
                with naming_params(index), naming("prompt", prompt.param):
                    self.shared_engine.open(request)
            for request, prompt in zip(requests, asked, strict=True):
                outputs.append(self._collect(request, prompt))
        finally:
            for request in requests:
                self.shared_engine.end(request)
        return outputs

    def _collect(self, request: Request, asked: EncodedPrompt) -> GenerationOutput:
        """Step until all choices of a request have ended. Returns its output."""
        output = empty_output(request)
        segmenters = asked.segmenters(request.params.n)
        for delta in self.shared_engine.deltas(request):
            output.absorb(delta, events(delta, segmenters))
        return output

    def _stream(
        self, asked: EncodedPrompt, params: AnyParams | None, type_: Typed | None
    ) -> Iterator[Any]:
        request = self._request(asked, params)
        deltas = self._open_and_close(request)
        with naming("prompt", asked.param):
            # Opens the request now, and lets the generator close it if it is never read.
            next(deltas)
        if type_ is None:
            return deltas
        return partials(deltas, empty_output(request), asked.segmenters(request.params.n), type_)

    def _open_and_close(self, request: Request) -> Iterator[Delta]:
        """Open a request, yield an empty delta and then its deltas, and close it at the end."""
        self.shared_engine.open(request)
        try:
            yield Delta(request_id=request.id)
            yield from self.shared_engine.deltas(request)
        finally:
            self.shared_engine.end(request)
