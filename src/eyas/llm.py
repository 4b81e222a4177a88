"""The offline API: a model in this process, prompts in, answers out.

Promises: `generate`, `chat` and `stream` go through the same engine as the server; prompts are checked
before any work; text never becomes a control token, only the chat template makes those.
Does not know: HTTP, processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eyas.config import (
    Auto,
    CacheConfig,
    DeviceConfig,
    DraftConfig,
    DtypeName,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from eyas.core import Delta, Request, RequestError, SamplingParams
from eyas.draft import Drafter
from eyas.engine.build import Progress, build_engine
from eyas.models import locate_model
from eyas.outputs import Choice, GenerationOutput
from eyas.text import ChatTemplate, Tokenizer, sampling_defaults

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class LLM:
    """A model and its engine.

    model: "builtin", a directory, or a hub name. drafter: "auto", "root" (plain decoding), "ngram",
    "model", "head", some of them joined by "+", or a `Drafter` of your own; it and the other draft
    keywords are those of `eyas.config.DraftConfig`. config: every setting there is, instead of the
    keywords.
    """

    def __init__(
        self,
        model: str = "builtin",
        *,
        drafter: str | Drafter = "auto",
        draft_model: str | None = None,
        draft_steps: int | Auto = "auto",
        draft_topk: int = 4,
        draft_nodes: int | Auto = "auto",
        draft_token_map: str | None = None,
        dtype: DtypeName = "auto",
        max_model_len: int | None = None,
        device: str = "auto",
        num_threads: int | None = None,
        max_num_seqs: int = 64,
        num_slots: int | None = None,
        prefix_cache: bool = True,
        offline: bool = False,
        config: EngineConfig | None = None,
        progress: Progress | None = None,
    ) -> None:
        own_drafter = None if isinstance(drafter, str) else drafter
        self.config = config or EngineConfig(
            model=ModelConfig(
                path=model, dtype=dtype, max_model_len=max_model_len, offline=offline
            ),
            cache=CacheConfig(num_slots=num_slots, prefix_cache=prefix_cache),
            scheduler=SchedulerConfig(max_num_seqs=max_num_seqs),
            draft=DraftConfig(
                drafter=drafter if isinstance(drafter, str) else "root",
                model=draft_model,
                steps=draft_steps,
                topk=draft_topk,
                nodes=draft_nodes,
                token_map=draft_token_map,
            ),
            device=DeviceConfig(device=device, num_threads=num_threads),
        )
        chosen = self.config.model
        directory = locate_model(chosen.path, chosen.revision, chosen.offline)
        self.tokenizer = Tokenizer.from_directory(directory)
        self._template = ChatTemplate.from_directory(directory, self.tokenizer)
        self._defaults = sampling_defaults(directory)
        self.engine = build_engine(self.config, progress, own_drafter)
        self.info = self.engine.info
        self._num_requests = 0
        self._inboxes: dict[str, deque[Delta]] = {}

    def default_params(self, **changes: Any) -> SamplingParams:
        """The model's own sampling parameters (generation_config.json), with changes."""
        values: dict[str, Any] = {**self._defaults, **changes}
        return SamplingParams(**values)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[GenerationOutput]:
        """Continue prompts (texts or token ids); one output a prompt, in order."""
        listed = _as_prompts(prompts)
        return self._run([self._encode(prompt) for prompt in listed], params)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_options: Any,
    ) -> list[GenerationOutput]:
        """Answer one conversation, or several. template_options go to the chat template, such as
        enable_thinking."""
        conversations = _as_conversations(messages)
        prompts = [self.encode_chat(c, tools=tools, **template_options) for c in conversations]
        return self._run(prompts, params)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """Deltas of one prompt as they become final. Leaving the loop early ends the request."""
        return self._stream(self._encode(prompt), params)

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_options: Any,
    ) -> Iterator[Delta]:
        """Deltas of one conversation's answer as they become final."""
        return self._stream(self.encode_chat(messages, tools=tools, **template_options), params)

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_options: Any,
    ) -> list[int]:
        """Token ids of a conversation, ready for the answer."""
        if self._template is None:
            raise RequestError(
                "messages: this model has no chat template; use generate()", param="messages"
            )
        return self._template.render_ids(
            list(messages), tools=list(tools) if tools else None, **template_options
        )

    def close(self) -> None:
        """Give up the engine."""
        self.engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode_prompt(prompt)
        return list(prompt)

    def _request(self, prompt: list[int], params: SamplingParams | None) -> Request:
        self._num_requests += 1
        return Request(
            id=f"offline-{self._num_requests}",
            prompt_token_ids=prompt,
            params=params if params is not None else self.default_params(),
        )

    def _run(
        self,
        prompts: list[list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[GenerationOutput]:
        if params is None or isinstance(params, SamplingParams):
            each: list[SamplingParams | None] = [params] * len(prompts)
        else:
            each = list(params)
            if len(each) != len(prompts):
                raise RequestError(
                    f"params: {len(each)} for {len(prompts)} prompts; give one, or one each",
                    param="params",
                )
        requests = [self._request(p, s) for p, s in zip(prompts, each, strict=True)]
        outputs: list[GenerationOutput] = []
        try:
            for request in requests:
                self._open(request)
            for request in requests:
                choices = [Choice(index) for index in range(request.params.n)]
                output = GenerationOutput(request.prompt_token_ids, choices)
                for delta in self._deltas(request):
                    output.absorb(delta)
                outputs.append(output)
        finally:
            for request in requests:
                self._close(request)
        return outputs

    def _stream(self, prompt: list[int], params: SamplingParams | None) -> Iterator[Delta]:
        deltas = self._open_and_close(self._request(prompt, params))
        next(deltas)  # opens now; one that has begun also closes if nobody ever reads it
        return deltas

    def _open_and_close(self, request: Request) -> Iterator[Delta]:
        """An empty delta once the request is open, then its own."""
        self._open(request)
        try:
            yield Delta(request_id=request.id)
            yield from self._deltas(request)
        finally:
            self._close(request)

    def _open(self, request: Request) -> None:
        self.engine.add(request)
        self._inboxes[request.id] = deque()

    def _close(self, request: Request) -> None:
        """Forget a request; one that is still running ends."""
        if self._inboxes.pop(request.id, None) is not None:
            self.engine.abort(request.id)

    def _deltas(self, request: Request) -> Iterator[Delta]:
        """This request's deltas; those of other open requests wait in their own inboxes."""
        inbox = self._inboxes[request.id]
        num_open = request.params.n
        while num_open:
            while not inbox:
                for delta in self.engine.step():
                    if delta.request_id in self._inboxes:
                        self._inboxes[delta.request_id].append(delta)
            delta = inbox.popleft()
            num_open -= delta.finish_reason is not None
            yield delta


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    listed = list(prompts)
    if listed and isinstance(listed[0], int):
        return [listed]  # type: ignore[list-item]
    return listed  # type: ignore[return-value]


def _as_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[Sequence[Message]]:
    listed = list(messages)
    if not listed:
        raise RequestError("messages: give at least one message", param="messages")
    if isinstance(listed[0], Mapping):
        return [listed]  # type: ignore[list-item]
    return listed  # type: ignore[return-value]
