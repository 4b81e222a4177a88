"""OpenTelemetry: one span for each request that asks a model for text.

Promises: attributes have the names of OpenTelemetry's conventions for generative AI
(https://github.com/open-telemetry/semantic-conventions-genai); none holds text of a request or an
answer. The span continues the trace of the request's `traceparent` and follows its sampling decision.
A span is queued without waiting; another thread exports it, and the oldest spans are dropped when the
queue is full. Needs the extra `otel`. Does not know: when a request ends.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from eyas.core import SamplingParams
from eyas.server.telemetry.record import AnswerRecord, RequestRecord

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/generate": "text_completion",
}
"""`gen_ai.operation.name` of a route. Requests to other routes have no span."""
JSON_FIELDS = frozenset(
    "response_format.json_schema.schema text.format.schema output_config.format.schema "
    "structured_outputs.json structured_outputs.json_object guided_json json_schema "
    "sampling_params.json_schema".split()
)
"""The fields whose output has the `gen_ai.output.type` json."""
PROVIDER = "eyas"
MAX_QUEUED_SPANS, MAX_EXPORTED_SPANS = 2048, 512
EXPORT_EVERY_SECONDS = 2.0
EXPORT_SECONDS = 5
"""The limit of one export, its retries included."""
CLOSE_SECONDS = 3.0
"""How long the end of the server waits for the last spans to be exported."""


class Traces:
    """The spans of one server. exporter: where they go; `to_collector` makes one."""

    def __init__(
        self, exporter: SpanExporter, *, export_every_seconds: float = EXPORT_EVERY_SECONDS
    ) -> None:
        eyas_version = version("eyas")
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "eyas", "service.version": eyas_version}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                max_queue_size=MAX_QUEUED_SPANS,
                max_export_batch_size=MAX_EXPORTED_SPANS,
                schedule_delay_millis=1000 * export_every_seconds,
            )
        )
        self._tracer = self._provider.get_tracer("eyas.server", eyas_version)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to_collector(cls, endpoint: str) -> Traces:
        """Export to the URL of a collector: OTLP, protobuf over HTTP."""
        return cls(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS))

    def report(self, record: RequestRecord) -> None:
        """Queue the span of a request that has ended."""
        operation = OPERATIONS.get(record.route)
        if operation is None:
            return
        span = self._tracer.start_span(
            f"{operation} {record.model}".rstrip(),
            context=self._propagator.extract(record.headers),
            kind=SpanKind.SERVER,
            attributes=attributes_of(record, operation),
            start_time=record.started_ns,
        )
        if record.status >= 500 or _failures(record.answer):
            span.set_status(Status(StatusCode.ERROR))
        span.end(record.started_ns + round(1e9 * record.seconds))

    def close(self) -> None:
        """Export what is queued, for `CLOSE_SECONDS` at most. Spans that come later are dropped."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


def attributes_of(record: RequestRecord, operation: str) -> dict[str, Any]:
    """Return the attributes of a request's span."""
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": record.model or None,
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status or None,
        "error.type": _error_type(record),
        "eyas.request.id": record.request_id,
    }
    if record.answer is not None:
        attributes |= _of_params(record.answer.params)
        attributes |= _of_answer(record, record.answer)
    return {name: value for name, value in attributes.items() if value is not None}


def _of_params(params: SamplingParams) -> dict[str, Any]:
    """Return what the request asked for. Stop strings are left out: they are text of the request."""
    return {
        "gen_ai.request.temperature": float(params.temperature),
        "gen_ai.request.top_p": float(params.top_p),
        "gen_ai.request.top_k": params.top_k or None,
        "gen_ai.request.frequency_penalty": float(params.frequency_penalty),
        "gen_ai.request.presence_penalty": float(params.presence_penalty),
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.seed": _int64(params.seed),
        "gen_ai.request.choice.count": params.n if params.n > 1 else None,
    }


def _of_answer(record: RequestRecord, answer: AnswerRecord) -> dict[str, Any]:
    reasons = [reason if reason in ("stop", "length") else "error" for reason in answer.reasons]
    is_streamed = answer.is_streamed or None
    return {
        "gen_ai.request.stream": is_streamed,
        "gen_ai.output.type": "json" if answer.constraint in JSON_FIELDS else None,
        "gen_ai.response.id": answer.id,
        "gen_ai.response.model": record.model,
        "gen_ai.response.finish_reasons": reasons,
        "gen_ai.response.time_to_first_chunk": is_streamed and record.first_token_seconds,
        "gen_ai.usage.input_tokens": answer.num_prompt_tokens,
        "gen_ai.usage.output_tokens": answer.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": answer.num_cached_tokens,
        "eyas.queue_seconds": answer.queue_seconds,
        "eyas.time_to_first_token": record.first_token_seconds,
        "eyas.constraint": answer.constraint,
        "eyas.draft_tokens": answer.num_draft_tokens,
        "eyas.accepted_tokens": answer.num_accepted_tokens,
    }


def _failures(answer: AnswerRecord | None) -> Sequence[str]:
    """Return the reasons of choices that ended with an error of the server."""
    reasons = () if answer is None else answer.reasons
    return [reason for reason in reasons if reason in ("abort", "error", "failed", "unavailable")]


def _error_type(record: RequestRecord) -> str | None:
    """Return the code of an error, or how a stream failed that had begun; None without a failure."""
    if record.error_code is not None:
        return record.error_code
    failures = _failures(record.answer)
    return failures[0] if failures else None


def _int64(number: int | None) -> int | None:
    """Return the number with 64 bits as a signed one, which attributes are."""
    return None if number is None else (number + 2**63) % 2**64 - 2**63
