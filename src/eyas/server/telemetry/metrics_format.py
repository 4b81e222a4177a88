"""Writes metrics as Prometheus' text or as OpenMetrics, under names of other engines as well.

Promises: the format is Prometheus' text unless the Accept header prefers OpenMetrics. Names of vLLM's
or SGLang's metrics are written beside our own, with the same values. Does not know: what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from eyas.wire import EngineStats

MetricsNames = Literal["eyas", "vllm", "sglang"]
PREFIX = "eyas_"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_SAME_IN_VLLM = """
num_requests_running num_requests_waiting cache_config_info num_preemptions prompt_tokens
generation_tokens prefix_cache_queries prefix_cache_hits spec_decode_num_drafts
spec_decode_num_draft_tokens spec_decode_num_accepted_tokens spec_decode_num_accepted_tokens_per_pos
time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds
e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds
request_decode_time_seconds request_inference_time_seconds request_prompt_tokens
request_generation_tokens request_params_n request_success
""".split()
ALIASES: Mapping[MetricsNames, Mapping[str, Sequence[str]]] = {
    "eyas": {},
    "vllm": {
        **{name: (f"vllm:{name}",) for name in _SAME_IN_VLLM},
        "kv_cache_usage_perc": (
            "vllm:kv_cache_usage_perc",
            "vllm:gpu_cache_usage_perc",  # its older name, which endpoint pickers may still read
        ),
        "inter_token_latency_seconds": (
            "vllm:inter_token_latency_seconds",
            "vllm:time_per_output_token_seconds",  # its older name, which dashboards still have
        ),
    },
    "sglang": {
        "num_requests_running": ("sglang:num_running_reqs",),
        "num_requests_waiting": ("sglang:num_queue_reqs",),
        "kv_cache_usage_perc": ("sglang:token_usage",),
        "kv_cache_slots": ("sglang:max_total_num_tokens",),
        "prompt_tokens": ("sglang:prompt_tokens",),
        "generation_tokens": ("sglang:generation_tokens",),
        "time_to_first_token_seconds": ("sglang:time_to_first_token_seconds",),
        "inter_token_latency_seconds": ("sglang:inter_token_latency_seconds",),
        "e2e_request_latency_seconds": ("sglang:e2e_request_latency_seconds",),
    },
}
"""The names that another engine has for `eyas_NAME`, by engine and NAME."""


class AliasedCollector(Collector):
    """A collector of the metrics of `source` and of their copies under another engine's names.

    stats: the engine's counters, for ratios that only the other engine has.
    """

    def __init__(
        self,
        source: Collector,
        names: MetricsNames,
        stats: Callable[[], EngineStats],
        labels: Mapping[str, str],
    ) -> None:
        self._source = source
        self._names: MetricsNames = names
        self._stats = stats
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        aliases = ALIASES[self._names]
        for metric in self._source.collect():
            yield metric
            for alias in aliases.get(metric.name.removeprefix(PREFIX), ()):
                yield _renamed(metric, alias)
        if self._names == "sglang":
            for name, (text, value) in _ratios(self._stats()).items():
                gauge = GaugeMetricFamily(f"sglang:{name}", text, labels=list(self._labels))
                gauge.add_metric(list(self._labels.values()), value)
                yield gauge


def _ratios(stats: EngineStats) -> dict[str, tuple[str, float]]:
    """Return SGLang's metrics that are not copies. Its rates are momentary, these are since the
    start."""
    num_drafts = stats.drafts.num_drafts
    return {
        "num_used_tokens": ("Cache slots held by running choices", stats.num_used_slots),
        "cache_hit_rate": (
            "Share of the prompts' tokens that were found in the cache, since the start",
            stats.prefix_hit_rate,
        ),
        "spec_accept_length": (
            "Mean tokens of a step with a draft, since the start",
            1 + stats.num_accepted_tokens / num_drafts if num_drafts else 0.0,
        ),
        "spec_accept_rate": (
            "Share of the drafted tokens that were accepted, since the start",
            stats.num_accepted_tokens / max(1, stats.num_draft_tokens),
        ),
    }


def _renamed(metric: Metric, name: str) -> Metric:
    other = Metric(name, metric.documentation, metric.type, metric.unit)
    other.samples = [
        sample._replace(name=name + sample.name.removeprefix(metric.name))
        for sample in metric.samples
    ]
    return other


def render_metrics(metrics: Collector, accept: str) -> tuple[bytes, str]:
    """Return the metrics as text, and its content type, according to the Accept header."""
    if wants_open_metrics(accept):
        # The default escaping replaces colons in the names of samples, but not of their families.
        unescaped = openmetrics.ALLOWUTF8
        return openmetrics.generate_latest(metrics, escaping=unescaped), OPEN_METRICS
    return generate_latest(metrics), TEXT  # pyrefly: ignore


def wants_open_metrics(accept: str) -> bool:
    """Whether an Accept header names OpenMetrics 1.0 and prefers no other format.

    Ignores the escaping scheme, since our names need no escaping.
    """
    open_metrics = text = 0.0
    for media_range in accept.split(","):
        kind, *rest = (part.strip() for part in media_range.lower().split(";"))
        params: dict[str, str] = {}
        for part in rest:
            name, _, value = part.partition("=")
            params[name] = value
        quality = _quality(params.get("q", "1"))
        if kind == "application/openmetrics-text":
            if params.get("version", "1.0.0").strip('"') == "1.0.0":
                open_metrics = max(open_metrics, quality)
        elif kind in ("text/plain", "text/*", "*/*"):
            text = max(text, quality)
    return open_metrics > 0 and open_metrics >= text


def _quality(text: str) -> float:
    """Return the quality value, or 0 if it is not a number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 <= value <= 1 else 0.0
