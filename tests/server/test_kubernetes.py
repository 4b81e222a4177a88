"""The recipe for Kubernetes names only options, ports, routes and metrics that exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from eyas.cli import app
from eyas.config import EngineConfig
from eyas.server.options import ServerOptions
from tests.server.fakes import FakeClient, live_server

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
SERVER, GATEWAY = FOLDER / "server.yaml", FOLDER / "gateway.yaml"


def resources(file: Path) -> dict[str, Any]:
    """The resources of a file by kind and name."""
    found = list(yaml.safe_load_all(file.read_text()))
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


def pod(resource: Any) -> Any:
    return resource["spec"]["template"]


@pytest.fixture(scope="module")
def server() -> dict[str, Any]:
    return resources(SERVER)


@pytest.fixture(scope="module")
def gateway() -> dict[str, Any]:
    return resources(GATEWAY)


@pytest.fixture
def started(
    server: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[EngineConfig, ServerOptions]:
    """What the container's command line starts."""
    calls: list[tuple[EngineConfig, ServerOptions]] = []
    monkeypatch.setattr(
        "eyas.server.process.launch.serve", lambda *settings: calls.append(settings[:2]) or 0
    )
    (container,) = pod(server["Deployment/eyas"])["spec"]["containers"]
    assert container["command"] == ["eyas", "serve"]
    done = CliRunner().invoke(app, ["serve", *container["args"]])
    assert done.exit_code == 0, done.output
    return calls[0]


def test_servers_listen_where_everything_looks_for_them(
    server: dict[str, Any],
    gateway: dict[str, Any],
    started: tuple[EngineConfig, ServerOptions],
) -> None:
    engine, options = started
    template = pod(server["Deployment/eyas"])
    (container,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    events = engine.cache.kv_events
    assert events.is_on and options.host == "0.0.0.0"
    assert ports == {
        "http": options.port,
        "kv-events": int(events.endpoint.rpartition(":")[2]),
        "kv-replay": int((events.replay_endpoint or "").rpartition(":")[2]),
    }
    assert template["spec"]["terminationGracePeriodSeconds"] > options.drain_seconds
    pool = gateway["InferencePool/eyas"]["spec"]
    assert pool["targetPorts"] == [{"number": options.port}]
    for selector in (pool["selector"], server["Deployment/eyas"]["spec"]["selector"]):
        assert selector["matchLabels"].items() <= template["metadata"]["labels"].items()
    (service,) = server["Service/eyas"]["spec"]["ports"]
    assert service["port"] == options.port and service["targetPort"] in ports


def test_the_picker_is_where_the_pool_looks_for_it(gateway: dict[str, Any]) -> None:
    reference = gateway["InferencePool/eyas"]["spec"]["endpointPickerRef"]
    service = gateway[f"Service/{reference['name']}"]["spec"]
    assert [port["port"] for port in service["ports"]] == [reference["port"]["number"]]
    template = pod(gateway["Deployment/eyas-epp"])
    assert service["selector"] == template["metadata"]["labels"]
    (container,) = template["spec"]["containers"]
    asked = dict(argument.split("=", 1) for argument in container["args"])
    assert f"InferencePool/{asked['--pool-name']}" in gateway
    assert int(asked["--grpc-port"]) == service["ports"][0]["targetPort"]
    assert container["readinessProbe"]["grpc"]["port"] == int(asked["--grpc-health-port"])
    (route,) = gateway["HTTPRoute/eyas"]["spec"]["rules"]
    assert f"InferencePool/{route['backendRefs'][0]['name']}" in gateway
    (volume,) = template["spec"]["volumes"]
    assert f"ConfigMap/{volume['configMap']['name']}" in gateway
    assert f"ServiceAccount/{template['spec']['serviceAccountName']}" in gateway


def picker(gateway: dict[str, Any]) -> Any:
    return yaml.safe_load(gateway["ConfigMap/eyas-epp"]["data"]["config.yaml"])


def test_the_picker_uses_the_plugins_that_it_configures(gateway: dict[str, Any]) -> None:
    config = picker(gateway)
    types = {plugin["type"] for plugin in config["plugins"]}
    (profile,) = config["schedulingProfiles"]
    assert {plugin["pluginRef"] for plugin in profile["plugins"]} <= types


def test_probes_and_metrics_are_served(
    directory: Path, server: dict[str, Any], gateway: dict[str, Any]
) -> None:
    (container,) = pod(server["Deployment/eyas"])["spec"]["containers"]
    parameters = {each["type"]: each.get("parameters") for each in picker(gateway)["plugins"]}
    (engine,) = parameters["core-metrics-extractor"]["engineConfigs"]
    assert engine["name"] == parameters["core-metrics-extractor"]["defaultEngine"]
    with live_server(FakeClient(directory), metrics_names="vllm") as live:
        for probe in ("livenessProbe", "readinessProbe"):
            path = container[probe]["httpGet"]["path"]
            assert httpx.get(f"{live.url}{path}").status_code == 200
        path = parameters["metrics-data-source"]["path"]
        families = {
            family.name: family
            for family in text_string_to_metric_families(httpx.get(f"{live.url}{path}").text)
        }
    for field, name in engine.items():
        if field.endswith("Spec"):
            assert families[name].type == "gauge" and families[name].samples, name
    info = families[engine["cacheInfoSpec"]].samples[0]
    # 10 slots are no whole block of 16
    assert (info.labels["block_size"], info.labels["num_gpu_blocks"], info.value) == ("16", "0", 1)
    # The names that a picker which is configured for vLLM reads.
    for name in (
        "num_requests_waiting",
        "num_requests_running",
        "kv_cache_usage_perc",
        "gpu_cache_usage_perc",
        "cache_config_info",
    ):
        assert families[f"vllm:{name}"].type == "gauge"
