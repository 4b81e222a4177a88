"""What /metrics says: `eyas_` and the names that dashboards of this field know.

Promises: the engine's own counts are read when asked for, from its last heartbeat; latencies are
measured where the client is, here. Does not know: who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eyas.core import DraftCounts
from eyas.schemas import PREPARED
from eyas.server.client import EngineHealth
from eyas.server.metrics_format import PREFIX, AliasedCollector, MetricsNames, render_metrics

MAX_DEPTHS, MAX_NAMES = 64, 16
"""Most values of a label that counts depths, and of one that names something."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_COUNTS = (1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144)


class _EngineCollector(Collector):
    def __init__(self, health: Callable[[], EngineHealth], model: str) -> None:
        self._health = health
        self._labels = {"model_name": model}

    def collect(self) -> Iterator[Metric]:
        health = self._health()
        stats = health.stats
        used = stats.num_slots - stats.num_free_slots - stats.num_cached_slots
        gauges = {
            "num_requests_running": ("Choices in the running batch", stats.num_running),
            "num_requests_waiting": ("Choices that wait for a place", stats.num_waiting),
            "kv_cache_usage_perc": (
                "Share of cache slots held by running choices; 1 is full",
                used / stats.num_slots if stats.num_slots else 0.0,
            ),
            "kv_cache_slots": ("Cache slots", stats.num_slots),
            "grammar_cache_bytes": (
                "Bytes that compiled grammars hold, those in use included",
                stats.grammar.cache_bytes,
            ),
            "prepared_schema_bytes": ("Prepared schemas held", PREPARED.num_bytes),
            "engine_ready": ("1 when the engine steps", int(health.state == "ready")),
            "engine_idle_seconds": (
                "Since the engine made a step or had nothing to do",
                health.idle_seconds,
            ),
            "last_step_seconds": ("Duration of the last step", health.last_step_seconds),
        }
        counters = {
            "engine_restarts": ("Engines started again after one died", health.num_restarts),
            "engine_steps": ("Steps", stats.num_steps),
            "prompt_tokens": ("Prompt tokens processed", stats.num_prompt_tokens),
            "generation_tokens": ("Tokens generated", stats.num_output_tokens),
            "num_preemptions": ("Preemptions", stats.num_preemptions),
            "failed_steps": ("Attempts at a step that failed", stats.num_failed_steps),
            "prefix_cache_queries": ("Tokens looked up", stats.num_prefix_query_tokens),
            "prefix_cache_hits": ("Tokens found", stats.num_prefix_hit_tokens),
            "spec_decode_num_drafts": ("Steps with a draft", stats.drafts.num_drafts),
            "spec_decode_num_draft_tokens": ("Tokens drafted", stats.num_draft_tokens),
            "spec_decode_num_accepted_tokens": ("Drafts accepted", stats.num_accepted_tokens),
            "spec_decode_num_pruned_tokens": (
                "Tokens drafted that a grammar refused before the step",
                stats.grammar.num_pruned,
            ),
            "prepared_schema_hits": ("Schemas found prepared", PREPARED.num_hits),
            "prepared_schema_misses": ("Schemas that had to be prepared", PREPARED.num_misses),
            "grammar_compiles": ("Output grammars compiled", stats.grammar.num_compiled),
            "grammar_cache_hits": ("Output grammars found compiled", stats.grammar.num_hits),
            "grammar_compile_seconds": ("Spent compiling", stats.grammar.compile_seconds),
            "grammar_replays": (
                "Grammars read anew because a limit was hit",
                stats.grammar.num_replays,
            ),
            "grammar_late_drafts": (
                "Drafts cut short because a step did not wait for their masks",
                stats.grammar.num_late,
            ),
            "grammar_masks": ("Rows of logits masked", stats.grammar.num_masks),
            "grammar_mask_seconds": ("Spent filling masks", stats.grammar.mask_seconds),
        }
        names, values = list(self._labels), list(self._labels.values())
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=names)
            gauge.add_metric(values, value)
            yield gauge
        for name, (text, value) in counters.items():
            counter = CounterMetricFamily(f"{PREFIX}{name}", text, labels=names)
            counter.add_metric(values, value)
            yield counter
        refused = CounterMetricFamily(
            f"{PREFIX}grammar_refusals", "Output grammars refused", labels=[*names, "fault"]
        )
        for fault, count in _few(stats.grammar.num_refused).items():
            refused.add_metric([*values, fault], count)
        yield refused
        yield from self._draft_counters(stats.drafts)

    def _draft_counters(self, drafts: DraftCounts) -> Iterator[Metric]:
        """What became of drafts, each with one more label. Depths count from 0, as vLLM's do."""
        for name, text, label, counts in (
            (
                "num_draft_tokens_per_pos",
                "Drafts that reached a depth",
                "position",
                _depths(drafts.drafted_by_depth),
            ),
            (
                "num_accepted_tokens_per_pos",
                "Drafts accepted to a depth",
                "position",
                _depths(drafts.accepted_by_depth),
            ),
            (
                "num_draft_tokens_by_source",
                "Tokens drafted, by who proposed them",
                "source",
                _few(drafts.drafted_by_source),
            ),
            (
                "num_accepted_tokens_by_source",
                "Drafts accepted, by who proposed them",
                "source",
                _few(drafts.accepted_by_source),
            ),
            (
                "draft_endings",
                "Drafts by why no more of them was accepted",
                "reason",
                _few(drafts.endings),
            ),
        ):
            counter = CounterMetricFamily(
                f"{PREFIX}spec_decode_{name}", text, labels=[*self._labels, label]
            )
            for key, value in counts.items():
                counter.add_metric([*self._labels.values(), key], value)
            yield counter


def _depths(counts: list[int]) -> dict[str, int]:
    return {str(depth): count for depth, count in enumerate(counts[:MAX_DEPTHS])}


def _few(counts: dict[str, int]) -> dict[str, int]:
    """The counts, those beyond a number of names as one."""
    names = sorted(counts)
    few = {name: counts[name] for name in names[:MAX_NAMES]}
    if len(names) > MAX_NAMES:
        few["other"] = sum(counts[name] for name in names[MAX_NAMES:])
    return few


class Metrics:
    """One server's metrics, in a registry of their own."""

    def __init__(
        self, health: Callable[[], EngineHealth], model: str, names: MetricsNames = "eyas"
    ) -> None:
        """names: whose the metrics have as well."""
        self.registry = prometheus_client.CollectorRegistry()
        self.registry.register(_EngineCollector(health, model))
        self._model = model
        self._collector = AliasedCollector(
            self.registry, names, lambda: health().stats, {"model_name": model}
        )

        def histogram(
            name: str, text: str, buckets: tuple[float, ...]
        ) -> prometheus_client.Histogram:
            metric = prometheus_client.Histogram(
                f"{PREFIX}{name}", text, ["model_name"], buckets=buckets, registry=self.registry
            )
            return metric.labels(model)

        self.first_token = histogram(
            "time_to_first_token_seconds", "From request to first token", _SECONDS
        )
        self.between_tokens = histogram(
            "inter_token_latency_seconds", "From one token to the next", _SHORT_SECONDS
        )
        self.per_token = histogram(
            "request_time_per_output_token_seconds", "Mean of a request", _SHORT_SECONDS
        )
        self.whole = histogram("e2e_request_latency_seconds", "From request to end", _SECONDS)
        self.prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens", _COUNTS)
        self.output_tokens = histogram("request_generation_tokens", "Output tokens", _COUNTS)
        self.choices = histogram("request_params_n", "Choices asked for", (1, 2, 4, 8, 16, 64, 128))
        self._finished = prometheus_client.Counter(
            f"{PREFIX}request_success",
            "Choices finished",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self._responses = prometheus_client.Counter(
            f"{PREFIX}http_responses",
            "Responses by status",
            ["model_name", "status"],
            registry=self.registry,
        )

    def count_finished(self, reason: str) -> None:
        self._finished.labels(self._model, reason).inc()

    def count_response(self, status: int) -> None:
        self._responses.labels(self._model, str(status)).inc()

    def render(self, accept: str) -> tuple[bytes, str]:
        """All of them and the content type, as a request's Accept header asks."""
        return render_metrics(self._collector, accept)
