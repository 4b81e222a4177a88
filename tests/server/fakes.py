"""An engine client that says what the test wants, and a real server around it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from eyas.config import EngineConfig, EngineInfo, ModelConfig
from eyas.core import Delta, DraftCounts, Mark, Request, RequestError, TokenLogprob, Usage
from eyas.grammar import Marker
from eyas.server.constraints.free_text import ControlTokenSplitter
from eyas.server.options import ServerOptions
from eyas.server.process.client import EngineHealth, State
from eyas.server.process.launch import new_server
from eyas.server.service import Service
from eyas.text import Detokenizer, Tokenizer
from eyas.wire import EngineStats, GrammarStats, NodeCounts
from tests.server.engine_info import engine_info
from tests.text import small_tokenizers as small

ANSWER = "The capital of France is Paris. Zebras and quokkas say: 你好 🎉"

DRAFTS = DraftCounts(
    num_drafts=4,
    drafted_by_depth=[4, 3, 1],
    accepted_by_depth=[3, 2],
    drafted_by_source={"ngram": 5, "head": 10},
    accepted_by_source={"head": 5},
    endings={"leaf": 1, "target": 2, "stop": 1},
)

NODES = NodeCounts(
    proposed={"ngram": [3, 2, 1], "head": [6, 4]},
    accepted={"head": [3, 2]},
    illegal={"ngram": [0, 1, 1]},
)


def model_directory(path: Path, **generation: float) -> Path:
    directory = small.write_model_directory(
        path, small.chatml_spec(), template=small.CHATML_TEMPLATE, eos_token="<|im_end|>"
    )
    if generation:
        import json

        (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


class FakeClient:
    """answer(request, index) is the text of a choice. delay: seconds between deltas."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer = Tokenizer.from_directory(directory)
        self._info = engine_info(directory)
        self.reset()

    def reset(self) -> None:
        """Make it as new."""
        self.info: EngineInfo | None = self._info
        self.answer: Callable[[Request, int], str] = lambda request, index: ANSWER
        self.delay = 0.0
        self.failure: Exception | None = None
        self.error_after: int | None = None
        self.error_param: str | None = None
        self.error_code: str | None = None
        self.state: State | None = None
        self.requests: list[Request] = []
        self.aborted: list[str] = []
        self.idle_seconds = 0.0
        self.num_forgotten = 0

    def health(self) -> EngineHealth:
        return EngineHealth(
            state=self.state or ("ready" if self.info else "starting"),
            idle_seconds=self.idle_seconds,
            stats=EngineStats(
                num_slots=10,
                num_free_slots=6,
                num_output_tokens=7,
                num_draft_tokens=15,
                num_accepted_tokens=5,
                drafts=DRAFTS,
                nodes=NODES,
                grammar=GrammarStats(
                    num_compiled=3,
                    num_hits=2,
                    num_refused={"timeout": 1},
                    mask_seconds=0.5,
                    num_late=4,
                ),
            ),
        )

    async def forget_prefixes(self) -> None:
        self.num_forgotten += 1

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def generate(self, request: Request) -> AsyncIterator[Delta]:
        self.requests.append(request)
        if self.failure is not None:
            raise self.failure
        is_finished = False
        try:
            streams = [self._deltas(request, index) for index in range(request.params.n)]
            while streams:
                for stream in list(streams):
                    delta = next(stream, None)
                    if delta is None:
                        streams.remove(stream)
                    elif request.id not in self.aborted:
                        yield delta
                        await asyncio.sleep(self.delay)
                    else:
                        yield Delta(request_id=request.id, index=delta.index, finish_reason="abort")
                        streams.remove(stream)
            is_finished = True
        finally:
            if not is_finished:
                self.aborted.append(request.id)

    def ids_of(self, text: str) -> list[int]:
        """Tokens of a model's text, control tokens where it spells them."""
        ids: list[int] = []
        for piece in ControlTokenSplitter(self.tokenizer).split(text):
            is_control = isinstance(piece, Marker)
            ids += [piece.token_id] if is_control else self.tokenizer.encode_text(piece.text)
        return ids

    def _deltas(self, request: Request, index: int) -> Iterator[Delta]:
        params = request.params
        ids = self.ids_of(self.answer(request, index))
        limit = len(ids) if params.max_tokens is None else params.max_tokens
        prompt_logprobs = None
        if index == 0 and params.prompt_logprobs is not None:
            scored = [logprob(i, params.prompt_logprobs) for i in request.prompt_token_ids[1:]]
            prompt_logprobs = [None, *scored]
        text = Detokenizer(self.tokenizer, params.skip_special_tokens, continues=True)
        for place, token_id in enumerate(ids[:limit]):
            if self.error_after == place:
                yield Delta(
                    request_id=request.id,
                    index=index,
                    finish_reason="error",
                    error="a fake error",
                    param=self.error_param,
                    code=self.error_code,
                )
                return
            delta = Delta(request_id=request.id, index=index, token_ids=[token_id])
            delta.text = text.push(token_id)
            if request.with_marks and token_id in self.tokenizer.control_ids:
                delta.marks = [Mark(0, token_id, len(delta.text))]
            if params.logprobs is not None:
                delta.logprobs = [logprob(token_id, params.logprobs)]
            delta.prompt_logprobs, prompt_logprobs = prompt_logprobs, None
            yield delta
        yield Delta(
            request_id=request.id,
            index=index,
            text=text.finish(),
            prompt_logprobs=prompt_logprobs,
            finish_reason="stop" if limit >= len(ids) else "length",
            usage=Usage(
                num_prompt_tokens=len(request.prompt_token_ids),
                num_output_tokens=min(limit, len(ids)),
                num_cached_tokens=1,
                num_steps=6,
                num_draft_tokens=15,
                num_accepted_tokens=5,
                queue_seconds=0.25,
                drafts=DRAFTS,
            ),
            seed=params.seed,
        )


def logprob(token_id: int, num_top: int) -> TokenLogprob:
    value = -(token_id % 7) / 8
    return TokenLogprob(token_id, value, [(token_id + k, value - k) for k in range(num_top)])


class LiveServer:
    """A service behind a real socket, its loop in a thread of its own."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = new_server(service, lambda number: None)
        self.server.main_loop = self._until_told  # type: ignore[method-assign]
        self._is_told = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        with contextlib.suppress(ValueError):
            await self.service.load_text_processor()
        await self.server.serve(sockets=[self._socket])

    async def _until_told(self) -> None:
        """uvicorn looks ten times a second whether it is to end."""
        await self.server.on_tick(0)
        await self._is_told.wait()

    def __enter__(self) -> LiveServer:
        self._thread.start()
        while not self.server.started:
            self._thread.join(0.005)
            assert self._thread.is_alive()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.loop.call_soon_threadsafe(self._is_told.set)
        self._thread.join(10)
        self.service.close()


@contextlib.contextmanager
def live_server(client: FakeClient, **options: object) -> Iterator[LiveServer]:
    config = EngineConfig(model=ModelConfig(path="tiny"))
    service = Service(config, ServerOptions(**options), client)
    with LiveServer(service) as server:
        yield server


def refusal() -> RequestError:
    return RequestError("stop: is too odd", param="stop")
