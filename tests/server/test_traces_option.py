"""--otlp-traces-endpoint: what it takes, and what it says without the extra."""

from __future__ import annotations

import sys

import pytest

from eyas.config import EngineConfig
from eyas.server.options import ServerOptions, traces_endpoint
from eyas.server.process.launch import serve


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("https://otel.example/", "https://otel.example/v1/traces"),
        ("http://otel.example/api/otlp/v1/traces", "http://otel.example/api/otlp/v1/traces"),
    ],
)
def test_the_usual_route_is_added(given: str, used: str) -> None:
    assert traces_endpoint(given) == used == traces_endpoint(used)
    assert ServerOptions(otlp_traces_endpoint=used).otlp_traces_endpoint == used


@pytest.mark.parametrize(
    "given", ["", "localhost:4318", "grpc://localhost:4317", "http://", "http://[", "http://a:b"]
)
def test_anything_but_an_http_address_is_refused(given: str) -> None:
    with pytest.raises(
        ValueError, match=r"^otlp_traces_endpoint: .* such as http://localhost:4318"
    ):
        traces_endpoint(given)
    with pytest.raises(ValueError, match="otlp_traces_endpoint"):
        ServerOptions(otlp_traces_endpoint=given)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "eyas.server.telemetry.traces", raising=False)
    for name in [each for each in sys.modules if each.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    options = ServerOptions(otlp_traces_endpoint="http://localhost:4318/v1/traces")
    with pytest.raises(ValueError, match=r"pip install 'eyas\[otel\]'"):
        serve(EngineConfig(), options)
