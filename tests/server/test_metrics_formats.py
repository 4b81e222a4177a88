"""What /metrics is written in, and whose names it has."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families as read_text

from eyas.server.telemetry.metrics_format import ALIASES, OPEN_METRICS, TEXT, wants_open_metrics
from tests.server.fakes import FakeClient, live_server

OPEN = "application/openmetrics-text"
PROMETHEUS_2 = (
    f"{OPEN};version=1.0.0,{OPEN};version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    f"{OPEN};version=1.0.0;escaping=allow-utf-8;q=0.6,{OPEN};version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
        (OPEN, True),
        (f'{OPEN}; version="1.0.0"', True),
        (f"text/plain, {OPEN}", True),
        (f"{OPEN};q=0.5, */*;q=0.5", True),
        ("", False),
        ("*/*", False),
        ("application/*", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        (f"text/plain;q=0.9, {OPEN};q=0.1", False),
        (f"{OPEN};q=0", False),
        (f"{OPEN};q=nan", False),
        (f"{OPEN};q=7", False),
        (f"{OPEN};q=", False),
        (f"{OPEN};version=0.0.1", False),
        (f"{OPEN};version=2.0.0", False),
        (";,;=;", False),
    ],
)
def test_open_metrics_is_for_who_names_it_and_likes_nothing_better(accept: str, is_open: bool):
    assert wants_open_metrics(accept) == is_open


def scraped(url: str, accept: str) -> httpx.Response:
    response = httpx.get(f"{url}/metrics", headers={"accept": accept}, timeout=60)
    assert response.status_code == 200 and response.headers["vary"] == "Accept"
    return response


@pytest.mark.parametrize("names", ["eyas", "vllm", "sglang"])
def test_both_formats_say_the_same(directory: Path, names: str):
    with live_server(FakeClient(directory), metrics_names=names) as server:
        httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"}, timeout=60)
        text, open_metrics = scraped(server.url, "*/*"), scraped(server.url, PROMETHEUS_3)
    assert text.headers["content-type"] == TEXT
    assert open_metrics.headers["content-type"] == OPEN_METRICS
    assert open_metrics.text.endswith("# EOF\n")
    values = [
        {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in read(response.text)
            for sample in family.samples
            if not re.search("_created$|idle_seconds|http_responses", sample.name)
        }
        for read, response in ((read_text, text), (read_open, open_metrics))
    ]
    assert values[0] == values[1] and len(values[0]) > 100


def test_names_have_no_colon_but_where_a_peers_are_asked_for(directory: Path):
    with live_server(FakeClient(directory)) as server:
        families = list(read_open(scraped(server.url, OPEN).text))
    assert families and all(family.name.startswith("eyas_") for family in families)
    assert not any(":" in family.name for family in families)


@pytest.mark.parametrize("names", ["vllm", "sglang"])
def test_a_peers_names_stand_beside_ours_with_our_values(directory: Path, names: str):
    with live_server(FakeClient(directory), metrics_names=names) as server:
        httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"}, timeout=60)
        found = {f.name: f for f in read_open(scraped(server.url, OPEN).text)}
    pairs = [(ours, theirs) for ours, names in ALIASES[names].items() for theirs in names]
    for ours, theirs in pairs:
        mine, other = found[f"eyas_{ours}"], found[theirs]
        assert mine.type == other.type
        assert [(s.name.removeprefix(theirs), s.labels, s.value) for s in other.samples] == [
            (s.name.removeprefix(f"eyas_{ours}"), s.labels, s.value) for s in mine.samples
        ]


def test_dashboards_of_peers_find_what_they_ask_for(directory: Path):
    expected = {
        "vllm": [
            'vllm:num_requests_running{model_name="tiny"} 0.0',
            'vllm:num_requests_waiting{model_name="tiny"} 0.0',
            'vllm:kv_cache_usage_perc{model_name="tiny"} 0.4',
            'vllm:generation_tokens_total{model_name="tiny"} 7.0',
            'vllm:spec_decode_num_drafts_total{model_name="tiny"} 4.0',
            'vllm:spec_decode_num_accepted_tokens_total{model_name="tiny"} 5.0',
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="tiny",position="1"} 2.0',
            'vllm:request_success_total{finished_reason="length",model_name="tiny"} 1.0',
            'vllm:time_to_first_token_seconds_count{model_name="tiny"} 1.0',
            'vllm:request_queue_time_seconds_sum{model_name="tiny"} 0.25',
            'vllm:request_prefill_time_seconds_count{model_name="tiny"} 1.0',
            'vllm:request_decode_time_seconds_count{model_name="tiny"} 1.0',
        ],
        "sglang": [
            'sglang:num_running_reqs{model_name="tiny"} 0.0',
            'sglang:num_queue_reqs{model_name="tiny"} 0.0',
            'sglang:token_usage{model_name="tiny"} 0.4',
            'sglang:num_used_tokens{model_name="tiny"} 4.0',
            'sglang:cache_hit_rate{model_name="tiny"} 0.0',
            'sglang:spec_accept_length{model_name="tiny"} 2.25',
            'sglang:e2e_request_latency_seconds_count{model_name="tiny"} 1.0',
        ],
    }
    for names, lines in expected.items():
        with live_server(FakeClient(directory), metrics_names=names) as server:
            httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"}, timeout=60)
            text = scraped(server.url, "").text.splitlines()
        for line in lines:
            assert line in text, line
