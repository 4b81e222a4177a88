"""One answer from its first delta to its last: streamed or whole, with metrics and a record of it.

Promises: sends nothing before the engine has accepted the request and returned a delta, so refusals
keep their status. When the client disconnects, the engine is told at once. Does not know: prompts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from eyas.core import Delta, Request, RequestError, Usage
from eyas.server.formats import (
    AnswerFormat,
    ChoiceOutput,
    num_cached_tokens,
    token_counts,
    usage_object,
)
from eyas.server.http import errors
from eyas.server.http.codes import Code
from eyas.server.http.error_context import ErrorContext
from eyas.server.http.errors import ApiError
from eyas.server.http.sse import (
    ChunkedJsonResponse,
    ClientDisconnected,
    EventStreamResponse,
    unless_disconnected,
)
from eyas.server.options import StreamGranularity
from eyas.server.process.client import EngineOverloaded, EngineUnavailable
from eyas.server.service import Service
from eyas.server.telemetry.record import AnswerRecord
from eyas.server.token_texts import TokenTexts, split_by_token

log = logging.getLogger("eyas.server")

MAX_QUEUED_DELTAS = 64
SMALL_VALUES = 1000
"""Tokens and log-probabilities that are encoded in a millisecond or two."""


class Answer:
    """The answer to one HTTP request. It has n choices for each prompt.

    error_context: explains errors of this request. with_drafts: usage includes statistics of the
    drafts. granularity: how a stream is cut into events; None is the server's setting.
    with_usage_so_far: each object of a stream has the usage up to it.
    """

    def __init__(
        self,
        service: Service,
        http: HttpRequest,
        answer_id: str,
        requests: list[Request],
        answer_format: AnswerFormat,
        error_context: ErrorContext,
        *,
        with_drafts: bool = False,
        granularity: StreamGranularity | None = None,
        with_usage_so_far: bool = False,
    ) -> None:
        self._service = service
        self._http = http
        self._id = answer_id
        self._requests = requests
        self._format = answer_format
        self._errors = error_context
        self._with_drafts = with_drafts
        self._granularity = granularity or service.options.stream_granularity
        self._with_usage_so_far = with_usage_so_far
        self._num_per_prompt = requests[0].params.n
        self._num_choices = len(requests) * self._num_per_prompt
        self._usages: list[list[Usage | None]] = [[None] * self._num_per_prompt for _ in requests]
        self._started = time.perf_counter()
        self._first_at: float | None = None
        self._last_at: dict[int, float] = {}
        self._num_tokens = 0
        self._reasons: dict[int, str] = {}
        self._is_streamed = False
        self._ending = "left"
        """What is reported of choices without a finish reason."""

    async def respond(self, *, streams: bool) -> Response:
        """Return the HTTP response. ApiError if the engine refuses the request or fails."""
        http, self._is_streamed = self._http, streams
        for request in self._requests:
            request.client = self._service.client_of(http)
        if self._num_choices > self._service.options.max_queued_each:
            of = self._format
            param = of.choices_param if self._num_per_prompt > 1 else of.prompt_param
            limit = self._service.options.max_queued_each
            raise errors.too_many_choices(self._num_choices, limit, param)
        if self._format.repeats or not streams:
            self._check_size()
        by_token = streams and self._granularity == "token"
        source = self._deltas_by_token() if by_token else self._deltas()
        self._service.add_answer(self._id, [request.id for request in self._requests])
        is_streaming = False
        try:
            if streams:
                first = await unless_disconnected(http.receive, self._first_delta(source))
                is_streaming = True
                return EventStreamResponse(self._events(first, source), lambda: self._close(source))
            return await unless_disconnected(http.receive, self._whole(source))
        except RequestError as error:
            self._ending = "refused"
            raise self._errors.explained(error) from error
        except EngineOverloaded as error:
            self._ending = "refused"
            raise ApiError(Code.QUEUE_FULL) from error
        except EngineUnavailable as error:
            self._ending = "unavailable"
            raise self._service.unavailable(str(error)) from error
        except ClientDisconnected:
            raise  # the ending stays "left"
        except Exception:
            self._ending = "failed"
            raise
        finally:
            if not is_streaming:
                await self._close(source)

    async def _whole(self, source: AsyncIterator[tuple[int, Delta]]) -> Response:
        choices = [ChoiceOutput(choice_index) for choice_index in range(self._num_choices)]
        async for choice_index, delta in source:
            if error := _error_of(delta):
                raise self._errors.explained(error)
            choices[choice_index].add(delta)

        def encode() -> bytes:
            return msgspec.json.encode(self._format.response(choices, self._usage()))

        if sum(choice.num_values for choice in choices) <= SMALL_VALUES:
            return ChunkedJsonResponse(encode())
        loop = asyncio.get_running_loop()
        return ChunkedJsonResponse(await loop.run_in_executor(self._service.encode_pool, encode))

    def _check_size(self) -> None:
        """Raise ApiError if an answer that is held in memory could have too many log-probabilities.

        One choice is never too long: a request without max_tokens rarely fills the whole context.
        """
        params, info = self._requests[0].params, self._service.info
        num_per_output_token = 0 if params.logprobs is None else params.logprobs + 1
        num_per_prompt_token = 0 if params.prompt_logprobs is None else params.prompt_logprobs + 1
        limit = max(
            self._service.options.max_held_logprobs, info.max_model_len * num_per_output_token
        )
        num_values = 0
        for request in self._requests:
            num_prompt = len(request.prompt_token_ids)
            num_output = info.max_model_len - num_prompt
            if request.params.max_tokens is not None:
                num_output = min(num_output, request.params.max_tokens)
            num_values += self._num_per_prompt * num_output * num_per_output_token
            num_values += self._format.prompt_copies * num_prompt * num_per_prompt_token
        if num_values > limit:
            param = self._format.logprobs_param if num_per_output_token else "prompt_logprobs"
            raise errors.too_many_logprobs(num_values, limit, param)

    async def _events(
        self,
        first: tuple[int, Delta] | None,
        source: AsyncGenerator[tuple[int, Delta], None],
    ) -> AsyncGenerator[bytes, None]:
        failures: list[ApiError] = []
        num_prompt = sum(len(request.prompt_token_ids) for request in self._requests)
        num_output = 0

        def events(chunks: list[dict[str, Any]]) -> bytes:
            return b"".join(map(self._format.encode, chunks))

        def failure(error: ApiError) -> bytes:
            return events(self._format.failure(error)) + self._format.end_of_stream

        def encode(choice_index: int, delta: Delta) -> bytes:
            nonlocal num_output
            if error := _error_of(delta):
                failures.append(self._errors.explained(error))
                return b""
            chunks = self._format.chunks(choice_index, delta)
            num_output += len(delta.token_ids)
            if self._with_usage_so_far:
                usage = token_counts(num_prompt, num_output)
                chunks = [{**chunk, "usage": usage} for chunk in chunks]
            return events(chunks)

        try:
            if first is not None:
                yield encode(*first)
            async for choice_index, delta in source:
                if data := encode(choice_index, delta):
                    yield data
            if failures:
                yield failure(failures[0])
            else:
                yield events(self._format.ending(self._usage())) + self._format.end_of_stream
        except (RequestError, EngineUnavailable):
            self._ending = "unavailable"
            yield failure(ApiError(Code.ANSWER_ENDED))
        except Exception:
            self._ending = "failed"
            extra = {"request_id": self._http.state.request_id}
            log.exception("answer %s failed", self._id, extra=extra)
            yield failure(ApiError(Code.INTERNAL_ERROR))

    def _usage(self) -> dict[str, Any]:
        return usage_object(self._usages, with_drafts=self._with_drafts)

    async def _first_delta(
        self, source: AsyncIterator[tuple[int, Delta]]
    ) -> tuple[int, Delta] | None:
        """Return the first delta. ApiError if it reports a failure."""
        async for choice_index, delta in source:
            if error := _error_of(delta):
                raise self._errors.explained(error)
            return choice_index, delta
        return None

    async def _deltas_by_token(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """Yield the deltas of all requests, each of them with one token."""
        tokenizer = self._service.text_processor.tokenizer
        skips = self._requests[0].params.skip_special_tokens
        texts = [TokenTexts(tokenizer, skip_special=skips) for _ in range(self._num_choices)]
        async with contextlib.aclosing(self._deltas()) as deltas:
            async for choice_index, delta in deltas:
                for part in split_by_token(delta, texts[choice_index]):
                    yield choice_index, part

    async def _deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """Yield the deltas of all requests with the index of their choice, as they arrive."""
        if len(self._requests) == 1:
            source = self._service.client.generate(self._requests[0])
            async with contextlib.aclosing(source) as deltas:  # pyrefly: ignore
                async for delta in deltas:
                    self._record(delta.index, delta)
                    yield delta.index, delta
            return
        queue: asyncio.Queue[tuple[int, Delta] | Exception | None] = asyncio.Queue(
            MAX_QUEUED_DELTAS
        )
        forwarders = [
            asyncio.create_task(self._forward(prompt, queue))
            for prompt in range(len(self._requests))
        ]
        try:
            num_ended = 0
            while num_ended < len(forwarders):
                item = await queue.get()
                if item is None:
                    num_ended += 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    self._record(*item)
                    yield item
        finally:
            for forwarder in forwarders:
                forwarder.cancel()
            await asyncio.gather(*forwarders, return_exceptions=True)

    async def _forward(
        self, prompt: int, queue: asyncio.Queue[tuple[int, Delta] | Exception | None]
    ) -> None:
        source = self._service.client.generate(self._requests[prompt])
        try:
            async with contextlib.aclosing(source) as deltas:  # pyrefly: ignore
                async for delta in deltas:
                    await queue.put((prompt * self._num_per_prompt + delta.index, delta))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    def _record(self, choice_index: int, delta: Delta) -> None:
        now = time.perf_counter()
        metrics = self._service.metrics
        if delta.token_ids:
            if self._first_at is None:
                self._first_at = now
                metrics.time_to_first_token.observe(now - self._started)
            if choice_index in self._last_at:
                gap = (now - self._last_at[choice_index]) / len(delta.token_ids)
                metrics.inter_token_latency.observe(gap)
            self._last_at[choice_index] = now
            self._num_tokens += len(delta.token_ids)
        if delta.usage is not None:
            self._usages[choice_index // self._num_per_prompt][
                choice_index % self._num_per_prompt
            ] = delta.usage
        if delta.finish_reason is not None:
            self._reasons[choice_index] = delta.finish_reason
            metrics.count_finished(delta.finish_reason)

    async def _close(self, source: AsyncGenerator[tuple[int, Delta], None]) -> None:
        """End the answer: abort what still runs in the engine, observe metrics and record what became
        of it."""
        await source.aclose()
        self._service.remove_answer(self._id)
        seconds = time.perf_counter() - self._started
        num_prompt = sum(len(request.prompt_token_ids) for request in self._requests)
        metrics = self._service.metrics
        metrics.request_latency.observe(seconds)
        metrics.prompt_tokens.observe(num_prompt)
        metrics.output_tokens.observe(self._num_tokens)
        metrics.num_choices.observe(self._num_choices)
        if self._first_at is not None and self._num_tokens > 1:
            metrics.time_per_output_token.observe(
                (self._started + seconds - self._first_at) / (self._num_tokens - 1)
            )
        answer = self._http.state.record.answer = self._answer_record(num_prompt)
        if answer.queue_seconds is not None and self._first_at is not None:
            metrics.observe_phases(
                answer.queue_seconds,
                self._first_at - self._started - answer.queue_seconds,
                max(self._last_at.values()) - self._first_at,
            )

    def _answer_record(self, num_prompt_tokens: int) -> AnswerRecord:
        """Return what is known of the answer, which has ended."""
        output = self._requests[0].output
        record = AnswerRecord(
            id=self._id,
            params=self._requests[0].params,
            constraint=None if output is None else output.param,
            is_streamed=self._is_streamed,
            reasons=[self._reasons.get(i, self._ending) for i in range(self._num_choices)],
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=self._num_tokens,
            first_token_at=self._first_at,
        )
        usages = [usage for choices in self._usages for usage in choices if usage is not None]
        if usages:
            record.num_cached_tokens = num_cached_tokens(self._usages)
            record.num_draft_tokens = sum(usage.num_draft_tokens for usage in usages)
            record.num_accepted_tokens = sum(usage.num_accepted_tokens for usage in usages)
            record.queue_seconds = min(usage.queue_seconds for usage in usages)
        return record


def _error_of(delta: Delta) -> ApiError | None:
    if delta.finish_reason == "error":
        code = Code.ENGINE_ERROR if delta.code is None else Code.of(delta.code)
        return ApiError(code, delta.error, param=delta.param)
    if delta.finish_reason == "abort":
        return ApiError(Code.ANSWER_ENDED)
    return None
