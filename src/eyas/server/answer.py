"""One answer from its first delta to its last: streamed or whole, counted, logged, ended in time.

Promises: nothing is sent before the engine has taken the request and said something, so refusals
keep their status; when the client leaves, the engine hears of it at once. Does not know: prompts.
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
from eyas.server import errors
from eyas.server.client import EngineOverloaded, EngineUnavailable
from eyas.server.codes import Code
from eyas.server.errors import ApiError
from eyas.server.formats import Choice, Format, usage_of
from eyas.server.service import Service
from eyas.server.sse import DONE, ClientLeft, EventStream, InPieces, event, unless_left

log = logging.getLogger("eyas.server")

MAX_PUMPED_DELTAS = 64
SMALL_VALUES = 1000
"""Tokens and log-probabilities that are written out in a millisecond or two."""


class Answer:
    """The answer to one HTTP request: one choice for each prompt and each of its n.

    with_drafts: usage says what became of the drafts as well.
    """

    def __init__(
        self,
        service: Service,
        answer_id: str,
        requests: list[Request],
        shape: Format,
        *,
        with_drafts: bool = False,
    ) -> None:
        self._service = service
        self._id = answer_id
        self._requests = requests
        self._shape = shape
        self._with_drafts = with_drafts
        self._num_each = requests[0].params.n
        self._num_choices = len(requests) * self._num_each
        self._usages: list[list[Usage | None]] = [[None] * self._num_each for _ in requests]
        self._started = time.perf_counter()
        self._first_at: float | None = None
        self._last_at: dict[int, float] = {}
        self._num_tokens = 0
        self._reasons: dict[int, str] = {}
        self._request_id = ""
        self._ending = "left"
        """Of choices that have no finish reason."""

    async def respond(self, http: HttpRequest, *, streams: bool, includes_usage: bool) -> Response:
        """The HTTP response. ApiError for what the engine refuses or fails at."""
        self._request_id = http.state.request_id
        if self._num_choices > self._service.options.max_queued_each:
            raise errors.never_fits(self._num_choices, self._service.options.max_queued_each)
        if self._shape.repeats or not streams:
            self._check_size()
        source = self._deltas()
        self._service.enter(self._id, [request.id for request in self._requests])
        is_handed_on = False
        try:
            if streams:
                first = await unless_left(http.receive, _next(source))
                is_handed_on = True
                return EventStream(
                    self._events(first, source, includes_usage),
                    lambda: self._close(source),
                )
            return await unless_left(http.receive, self._whole(source))
        except RequestError as error:
            self._ending = "refused"
            raise ApiError.of(error) from error
        except EngineOverloaded as error:
            self._ending = "refused"
            raise ApiError(Code.QUEUE_FULL) from error
        except EngineUnavailable as error:
            self._ending = "unavailable"
            raise self._service.unavailable(str(error)) from error
        except ClientLeft:
            raise  # its ending stands
        except Exception:
            self._ending = "failed"
            raise
        finally:
            if not is_handed_on:
                await self._close(source)

    async def _whole(self, source: AsyncIterator[tuple[int, Delta]]) -> Response:
        choices = [Choice(place) for place in range(self._num_choices)]
        async for place, delta in source:
            if failure := _failure_of(delta):
                raise failure
            choices[place].add(delta)

        def written() -> bytes:
            return msgspec.json.encode(self._shape.response(choices, self._usage()))

        if sum(choice.num_values for choice in choices) <= SMALL_VALUES:
            return InPieces(written())
        loop = asyncio.get_running_loop()
        return InPieces(await loop.run_in_executor(self._service.encode_pool, written))

    def _check_size(self) -> None:
        """ApiError for more log-probabilities than an answer may hold that is not sent as it comes. One
        choice is never too long: who leaves out max_tokens does not ask for the whole context."""
        params, info = self._requests[0].params, self._service.info
        num_beside = 0 if params.logprobs is None else params.logprobs + 1
        num_scored = 0 if params.prompt_logprobs is None else params.prompt_logprobs + 1
        limit = max(self._service.options.max_logprobs, info.max_model_len * num_beside)
        num_values = 0
        for request in self._requests:
            num_prompt = len(request.prompt_token_ids)
            num_output = info.max_model_len - num_prompt
            if params.max_tokens is not None:
                num_output = min(num_output, params.max_tokens)
            num_values += self._num_each * num_output * num_beside
            num_values += self._shape.prompt_copies * num_prompt * num_scored
        if num_values > limit:
            asked = self._shape.logprobs_param if num_beside else "prompt_logprobs"
            raise errors.too_many_logprobs(num_values, limit, asked)

    async def _events(
        self,
        first: tuple[int, Delta] | None,
        source: AsyncGenerator[tuple[int, Delta], None],
        includes_usage: bool,
    ) -> AsyncGenerator[bytes, None]:
        failures: list[ApiError] = []

        def written(place: int, delta: Delta) -> bytes:
            if failure := _failure_of(delta):
                failures.append(failure)
                return b""
            return b"".join(map(event, self._shape.chunks(place, delta)))

        try:
            if first is not None:
                yield written(*first)
            async for place, delta in source:
                if data := written(place, delta):
                    yield data
            if failures:
                yield event(failures[0].body())
            elif includes_usage:
                yield event(self._shape.usage_chunk(self._usage()))
            yield DONE
        except (RequestError, EngineUnavailable):
            self._ending = "unavailable"
            yield event(ApiError(Code.ANSWER_ENDED).body()) + DONE
        except Exception:
            self._ending = "failed"
            log.exception("answer %s failed", self._id, extra=self._extra)
            yield event(ApiError(Code.INTERNAL_ERROR).body()) + DONE

    def _usage(self) -> dict[str, Any]:
        return usage_of(self._usages, with_drafts=self._with_drafts)

    async def _deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """All requests' deltas with the place of their choice, as they come."""
        if len(self._requests) == 1:
            source = self._service.client.generate(self._requests[0])
            async with contextlib.aclosing(source) as deltas:  # pyrefly: ignore
                async for delta in deltas:
                    self._note(delta.index, delta)
                    yield delta.index, delta
            return
        queue: asyncio.Queue[tuple[int, Delta] | Exception | None] = asyncio.Queue(
            MAX_PUMPED_DELTAS
        )
        pumps = [asyncio.create_task(self._pump(p, queue)) for p in range(len(self._requests))]
        try:
            num_ended = 0
            while num_ended < len(pumps):
                item = await queue.get()
                if item is None:
                    num_ended += 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    self._note(*item)
                    yield item
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, prompt: int, queue: asyncio.Queue[tuple[int, Delta] | Exception | None]
    ) -> None:
        source = self._service.client.generate(self._requests[prompt])
        try:
            async with contextlib.aclosing(source) as deltas:  # pyrefly: ignore
                async for delta in deltas:
                    await queue.put((prompt * self._num_each + delta.index, delta))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    def _note(self, place: int, delta: Delta) -> None:
        now = time.perf_counter()
        metrics = self._service.metrics
        if delta.token_ids:
            if self._first_at is None:
                self._first_at = now
                metrics.first_token.observe(now - self._started)
            if place in self._last_at:
                gap = (now - self._last_at[place]) / len(delta.token_ids)
                metrics.between_tokens.observe(gap)
            self._last_at[place] = now
            self._num_tokens += len(delta.token_ids)
        if delta.usage is not None:
            self._usages[place // self._num_each][place % self._num_each] = delta.usage
        if delta.finish_reason is not None:
            self._reasons[place] = delta.finish_reason
            metrics.count_finished(delta.finish_reason)

    async def _close(self, source: AsyncGenerator[tuple[int, Delta], None]) -> None:
        """The end, however it came: the engine is told, the books are closed."""
        await source.aclose()
        self._service.leave(self._id)
        seconds = time.perf_counter() - self._started
        num_prompt = sum(len(request.prompt_token_ids) for request in self._requests)
        metrics = self._service.metrics
        metrics.whole.observe(seconds)
        metrics.prompt_tokens.observe(num_prompt)
        metrics.output_tokens.observe(self._num_tokens)
        metrics.choices.observe(self._num_choices)
        if self._first_at is not None and self._num_tokens > 1:
            metrics.per_token.observe(
                (self._started + seconds - self._first_at) / (self._num_tokens - 1)
            )
        reasons = [self._reasons.get(place, self._ending) for place in range(self._num_choices)]
        log.info(
            "%s (%s): %s, prompt %d tokens, output %d tokens, first after %s, whole %.3f s",
            self._id,
            self._request_id,
            " ".join(sorted(set(reasons))),
            num_prompt,
            self._num_tokens,
            "never" if self._first_at is None else f"{self._first_at - self._started:.3f} s",
            seconds,
            extra=self._extra,
        )

    @property
    def _extra(self) -> dict[str, str]:
        return {"request_id": self._request_id}


async def _next(source: AsyncIterator[tuple[int, Delta]]) -> tuple[int, Delta] | None:
    """The first delta. ApiError if it says that its only choice has failed."""
    async for place, delta in source:
        if failure := _failure_of(delta):
            raise failure
        return place, delta
    return None


def _failure_of(delta: Delta) -> ApiError | None:
    if delta.finish_reason == "error":
        if delta.code is not None:
            return ApiError(Code.of(delta.code), delta.error, param=delta.param)
        code = Code.ENGINE_ERROR if delta.param is None else Code.GRAMMAR_LIMIT_EXCEEDED
        return ApiError(code, delta.error, param=delta.param)
    if delta.finish_reason == "abort":
        return ApiError(Code.ANSWER_ENDED)
    return None
