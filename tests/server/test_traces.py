"""OpenTelemetry: a span of each request, in its client's trace, without content, without waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from eyas.server.options import ServerOptions, traces_endpoint
from eyas.server.telemetry.record import RequestRecord
from tests.server.fakes import ANSWER, FakeClient, LiveServer
from tests.server.test_launch import SECONDS, chat, served
from tests.server.test_limits import until

sdk = pytest.importorskip("opentelemetry.sdk.trace.export")
in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
traces = pytest.importorskip("eyas.server.telemetry.traces")
protobuf = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
status = pytest.importorskip("opentelemetry.trace.status")

CHAT = "/v1/chat/completions"
SECRET = "a secret word"
BODY = {"messages": [{"role": "user", "content": SECRET}], "stop": [SECRET], "temperature": 0.5}
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans(server: LiveServer) -> Iterator[Any]:
    """What the shared server exports while a test runs."""
    exporter = in_memory.InMemorySpanExporter()
    made = traces.Traces(exporter, export_every_seconds=0.01)
    server.service.reporters.append(made.report)
    yield exporter
    server.service.reporters.remove(made.report)
    made.close()


def only(exporter: Any) -> Any:
    assert until(lambda: bool(exporter.get_finished_spans()))
    (span,) = exporter.get_finished_spans()
    return span


def test_a_chat_has_a_span_with_current_names_and_no_content(
    http: httpx.Client, fake: FakeClient, spans: Any
) -> None:
    headers = {"x-request-id": "mine", "traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
    schema = {"type": "object"}
    fields = {"n": 2, "seed": 2**64 - 1, "max_tokens": 500, "guided_json": schema}
    answer = http.post(CHAT, json={**BODY, **fields}, headers=headers).json()
    span = only(spans)
    assert span.name == "chat tiny" and span.kind.name == "SERVER"
    assert f"{span.context.trace_id:032x}" == TRACE_ID and f"{span.parent.span_id:016x}" == SPAN_ID
    assert span.end_time > span.start_time
    assert span.status.status_code is status.StatusCode.UNSET
    found = dict(span.attributes)
    assert found.pop("eyas.time_to_first_token") > 0
    num_output = 2 * len(fake.tokenizer.encode_text(ANSWER))
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "eyas",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.max_tokens": 500,
        "gen_ai.request.seed": -1,
        "gen_ai.request.choice.count": 2,
        "gen_ai.output.type": "json",
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ("stop", "stop"),
        "gen_ai.usage.input_tokens": len(fake.requests[-1].prompt_token_ids),
        "gen_ai.usage.output_tokens": num_output,
        "gen_ai.usage.cache_read.input_tokens": 1,
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "eyas.request.id": "mine",
        "eyas.constraint": "guided_json",
        "eyas.queue_seconds": 0.25,
        "eyas.draft_tokens": 30,
        "eyas.accepted_tokens": 10,
    }
    assert SECRET not in span.to_json() and "capital" not in span.to_json()


def test_a_message_has_the_span_of_a_chat(http: httpx.Client, fake: FakeClient, spans: Any) -> None:
    message = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 5}
    http.post("/v1/messages", json=message)
    span = only(spans)
    assert span.name == "chat tiny" and span.attributes["gen_ai.request.max_tokens"] == 5
    assert SECRET not in span.to_json()


def test_a_stream_tells_when_its_first_chunk_came(
    http: httpx.Client, fake: FakeClient, spans: Any
) -> None:
    http.post("/v1/completions", json={"prompt": "x", "stream": True})
    span = only(spans)
    assert span.name == "text_completion tiny" and span.parent is None
    assert span.attributes["gen_ai.request.stream"] is True
    assert span.attributes["gen_ai.response.time_to_first_chunk"] > 0


def test_errors_have_a_type_and_only_ours_are_failures(
    http: httpx.Client, fake: FakeClient, spans: Any
) -> None:
    http.post(CHAT, json={"messages": SECRET})
    assert until(lambda: len(spans.get_finished_spans()) == 1)
    fake.failure = RuntimeError("a bug of ours")
    http.post(CHAT, json=BODY)
    assert until(lambda: len(spans.get_finished_spans()) == 2)
    fake.failure, fake.error_after = None, 3
    http.post(CHAT, json={**BODY, "stream": True})
    assert until(lambda: len(spans.get_finished_spans()) == 3)
    refused, failed, broken = spans.get_finished_spans()
    assert refused.attributes["error.type"] == "invalid_type"
    assert refused.status.status_code is status.StatusCode.UNSET
    assert failed.attributes["error.type"] == "internal_error"
    assert failed.status.status_code is status.StatusCode.ERROR
    assert broken.attributes["error.type"] == "error"
    assert broken.attributes["gen_ai.response.finish_reasons"] == ("error",)
    assert broken.status.status_code is status.StatusCode.ERROR
    assert SECRET not in refused.to_json() + failed.to_json() + broken.to_json()


def test_what_a_client_does_not_sample_is_not_sent(
    http: httpx.Client, fake: FakeClient, spans: Any
) -> None:
    http.post(CHAT, json=BODY, headers={"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-00"})
    for path in ("/health", "/v1/models", "/metrics"):
        http.get(path)
    http.post("/tokenize", json={"prompt": "x"})
    http.post(CHAT, json=BODY, headers={"traceparent": "not one", "x-request-id": "last"})
    assert only(spans).attributes["eyas.request.id"] == "last"


class StuckExporter(sdk.SpanExporter):
    """A collector that does not answer."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def export(self, batch: Any) -> Any:
        self.has_begun.set()
        self.may_end.wait(60)
        return sdk.SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.may_end.set()


def test_a_collector_that_does_not_answer_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "CLOSE_SECONDS", 0.1)
    exporter = StuckExporter()
    made = traces.Traces(exporter, export_every_seconds=0.01)
    record = RequestRecord(request_id="x", method="POST", headers={}, route=CHAT, model="tiny")
    made.report(record)
    assert exporter.has_begun.wait(60)
    for _ in range(traces.MAX_QUEUED_SPANS + 100):
        made.report(record)  # returns although nothing is taken
    (processor,) = made._provider._active_span_processor._span_processors
    assert len(processor._batch_processor._queue) == traces.MAX_QUEUED_SPANS
    made.close()
    assert not exporter.may_end.is_set(), "the end of the server did not wait for the collector"
    exporter.may_end.set()


class Collector(BaseHTTPRequestHandler):
    """Keeps what is posted to it."""

    bodies: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        self.bodies.append((self.path, self.rfile.read(length)))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_exports_to_a_collector_what_it_has_left_at_its_end(directory: Path) -> None:
    Collector.bodies.clear()
    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        endpoint = traces_endpoint(f"http://127.0.0.1:{collector.server_port}")
        with served(directory, f"otlp_traces_endpoint={endpoint}") as server:
            assert chat(server.wait_until_ready(), max_tokens=3).status_code == 200
            server.process.terminate()
            assert server.process.wait(SECONDS) == 0
        collector.shutdown()
    ((path, data),) = Collector.bodies
    assert path == "/v1/traces"
    (of_server,) = protobuf.ExportTraceServiceRequest.FromString(data).resource_spans
    resource = {each.key: each.value.string_value for each in of_server.resource.attributes}
    assert resource["service.name"] == "eyas" and resource["service.version"]
    (span,) = of_server.scope_spans[0].spans
    assert span.name == "chat tiny"


def test_without_an_endpoint_nothing_is_traced(server: LiveServer) -> None:
    assert ServerOptions().otlp_traces_endpoint is None
    assert len(server.service.reporters) == 1
