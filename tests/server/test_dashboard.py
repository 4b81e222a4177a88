"""The Grafana dashboard asks only for what a live server exports, by labels that it has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import NEEDS_CHECKPOINT

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "eyas.json"
SELECTOR = re.compile(r"\b(eyas_\w+)\{([^}]*)\}")
GROUPING = re.compile(r"\b(?:by|ignoring) \(([^)]*)\)")
OWN_LABELS = {"le", "__name__"}

pytestmark = NEEDS_CHECKPOINT


def targets() -> list[dict[str, Any]]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target for panel in panels for target in panel.get("targets", ())]


def words(text: str) -> set[str]:
    return {word.strip() for word in text.split(",") if word.strip()}


def exported(url: str) -> dict[str, set[str]]:
    """The labels of every sample of a server that has answered a schema, and refused a pattern."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    prompt = [{"role": "user", "content": "Specify a random city as JSON."}]
    chat = {"messages": prompt, "max_tokens": 60, "seed": 1}
    for fields in ({"guided_json": schema}, {"regex": "(a|b}"}):
        httpx.post(f"{url}/v1/chat/completions", json={**chat, **fields})
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
        if family.type == "counter":  # it has no samples before it has counted something
            labels.setdefault(f"{family.name}_total", set())
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def test_a_live_server_exports_what_the_dashboard_shows(live_url: str) -> None:
    labels = exported(live_url)
    asked = targets()
    assert len(asked) > 40
    for target in asked:
        query = target["expr"]
        selectors = SELECTOR.findall(query)
        assert selectors and len(selectors) == len(re.findall(r"\beyas_", query)), query
        for name, matchers in selectors:
            assert name in labels, f"{name} is not exported: {query}"
            matched = {matcher.partition("=")[0].strip() for matcher in matchers.split(",")}
            assert not labels[name] or matched <= labels[name], query
        known = set().union(*(labels[name] for name, _ in selectors))
        grouped = set().union(*map(words, GROUPING.findall(query)))
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert shown <= grouped, query
        assert not known - {"model_name"} or grouped <= known | {"fault"}, query


def test_every_panel_says_what_it_shows() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["type"] == "row" or len(panel["description"]) > 20, panel["title"]
