"""The files in deploy/ agree with each other, with the README and with the program. They are read here,
not run: that takes Docker."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.lines import outcome

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROMETHEUS_PORT = 9090


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile: name and arguments."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines]


def all_of(name: str) -> list[str]:
    return [arguments for each, arguments in instructions() if each == name]


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def test_the_image_copies_what_there_is_and_what_it_may_see() -> None:
    seen = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    copied = [
        source
        for arguments in all_of("COPY")
        if not arguments.startswith("--from")
        for source in arguments.split()[:-1]
    ]
    assert set(copied) == seen
    assert all((ROOT / source).exists() for source in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= seen


def test_the_image_installs_what_the_readme_says() -> None:
    (line,) = re.findall(r"^pip install torch.*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    torch, _, package = line.partition(" && ")
    (index,) = [each for each in all_of("ARG") if each.startswith("TORCH_INDEX=")]
    commands = " ".join(all_of("RUN")).replace("--no-cache-dir ", "")
    commands = commands.replace("${TORCH_INDEX}", index.partition("=")[2])
    assert torch in commands and package in commands
    assert torch.split()[2] in (ROOT / "constraints.txt").read_text().splitlines()
    bases = {arguments.split()[0] for arguments in all_of("FROM")}
    (version,) = {base.partition(":")[2].partition("-")[0] for base in bases}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={version}"
    assert f"python{version}/site-packages" in commands


def test_the_image_serves_without_privileges_and_says_how_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [name for name, _ in instructions()]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert all_of("USER") == ["10001"] and all_of("ENTRYPOINT") == ['["eyas"]']
    command = json.loads(all_of("CMD")[0])
    assert command[0] == "serve"
    served = outcome(monkeypatch, capsys, command[1:])
    assert served.errors == [] and str(served.options.port) == all_of("EXPOSE")[0]
    assert f"http://127.0.0.1:{served.options.port}/ready" in all_of("HEALTHCHECK")[0]


def test_the_composed_services_reach_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    services = read("compose.yaml")["services"]
    server = services["eyas"]
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    command = server["command"]
    assert command[0] == "serve", shlex.join(command)
    served = outcome(monkeypatch, capsys, command[1:])
    assert served.errors == []
    (scrape,) = read("prometheus.yml")["scrape_configs"]
    (target,) = scrape["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert host in services and int(port) == served.options.port
    assert host in served.options.allowed_hosts
    (source,) = read("grafana/datasources.yaml")["datasources"]
    assert source["url"] == f"http://prometheus:{PROMETHEUS_PORT}" and "prometheus" in services
    for service in services.values():
        for published in service.get("ports", ()):
            assert published.startswith("127.0.0.1:"), "there is no key"


def test_grafana_finds_the_dashboard_and_its_data() -> None:
    compose = read("compose.yaml")
    mounts = dict[str, str]()
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source, target = volume.split(":")[:2]
            if source in compose["volumes"]:
                continue
            assert (DEPLOY / source).is_file(), volume
            mounts[source] = target
    (provider,) = read("grafana/dashboards.yaml")["providers"]
    assert mounts["./grafana/eyas.json"].startswith(provider["options"]["path"] + "/")
    (source,) = read("grafana/datasources.yaml")["datasources"]
    dashboard = json.loads((DEPLOY / "grafana" / "eyas.json").read_text())
    (variable,) = [each for each in dashboard["templating"]["list"] if each["type"] == "datasource"]
    assert variable["query"] == source["type"] and source["isDefault"]
    asked = {json.dumps(panel["datasource"]) for panel in dashboard["panels"] if "targets" in panel}
    wanted = {"type": source["type"], "uid": "${" + variable["name"] + "}"}
    assert {json.dumps(wanted)} == {json.dumps(json.loads(each)) for each in asked}
