"""The metrics of /metrics.

Promises: counters of the engine are those of its last heartbeat; latencies are measured here, where the
client is. Does not know: who reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, zip_longest

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eyas.config import KVEventsConfig
from eyas.core import DraftCounts
from eyas.schemas import PREPARED
from eyas.server.process.client import EngineHealth
from eyas.server.telemetry.metrics_format import (
    PREFIX,
    AliasedCollector,
    MetricsNames,
    render_metrics,
)
from eyas.wire import NodeCounts

MAX_DEPTHS, MAX_NAMES = 64, 16
"""Maximum number of values of a label for depths, and of a label for names."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_COUNTS = (1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144)


class _EngineCollector(Collector):
    def __init__(self, health: Callable[[], EngineHealth], model: str, block_size: int) -> None:
        self._health = health
        self._block_size = block_size
        self._labels = {"model_name": model}

    def collect(self) -> Iterator[Metric]:
        health = self._health()
        stats = health.stats
        names, values = list(self._labels), list(self._labels.values())
        yield self._cache_config(stats.num_slots)
        for name, (text, value) in _gauges(health).items():
            gauge = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=names)
            gauge.add_metric(values, value)
            yield gauge
        for name, (text, value) in _counters(health).items():
            counter = CounterMetricFamily(f"{PREFIX}{name}", text, labels=names)
            counter.add_metric(values, value)
            yield counter
        refused = CounterMetricFamily(
            f"{PREFIX}grammar_refusals", "Output grammars refused", labels=[*names, "fault"]
        )
        for fault, count in _limited(stats.grammar.num_refused).items():
            refused.add_metric([*values, fault], count)
        yield refused
        yield from self._draft_counters(stats.drafts)
        yield self._node_counter(stats.nodes)

    def _cache_config(self, num_slots: int) -> Metric:
        """Return the size of the cache in blocks of events, as routers count it. There is none before
        the engine is ready."""
        labels = [*self._labels, "block_size", "num_gpu_blocks"]
        info = GaugeMetricFamily(
            f"{PREFIX}cache_config_info", "Size of the cache in blocks, as labels", labels=labels
        )
        if num_slots:
            blocks = (str(self._block_size), str(num_slots // self._block_size))
            info.add_metric([*self._labels.values(), *blocks], 1)
        return info

    def _draft_counters(self, drafts: DraftCounts) -> Iterator[Metric]:
        """Yield the counters of drafts, each with one more label. Depths start at 0, as in vLLM."""
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
                "Draft tokens by source",
                "source",
                _limited(drafts.drafted_by_source),
            ),
            (
                "num_accepted_tokens_by_source",
                "Accepted draft tokens by source",
                "source",
                _limited(drafts.accepted_by_source),
            ),
            (
                "draft_endings",
                "Drafts by the reason why no further token was accepted",
                "reason",
                _limited(drafts.endings),
            ),
        ):
            counter = CounterMetricFamily(
                f"{PREFIX}spec_decode_{name}", text, labels=[*self._labels, label]
            )
            for key, value in counts.items():
                counter.add_metric([*self._labels.values(), key], value)
            yield counter

    def _node_counter(self, nodes: NodeCounts) -> Metric:
        """Return the counter of nodes by source, depth and outcome. Outcomes add up to what was
        proposed."""
        counter = CounterMetricFamily(
            f"{PREFIX}spec_decode_nodes",
            "Nodes of draft trees by source and depth: accepted, rejected by the model, or refused by "
            "a grammar",
            labels=[*self._labels, "source", "position", "outcome"],
        )
        for source in sorted(nodes.proposed)[:MAX_NAMES]:
            columns = (nodes.proposed, nodes.accepted, nodes.illegal)
            by_depth = zip_longest(*(each.get(source, ()) for each in columns), fillvalue=0)
            for position, (proposed, accepted, illegal) in enumerate(islice(by_depth, MAX_DEPTHS)):
                rejected = proposed - accepted - illegal
                counts = {"accepted": accepted, "rejected": rejected, "grammar": illegal}
                for outcome, count in counts.items():
                    labels = (*self._labels.values(), source, str(position), outcome)
                    counter.add_metric(labels, count)
        return counter


def _gauges(health: EngineHealth) -> dict[str, tuple[str, float]]:
    """Return the text and the value of each gauge, by name."""
    stats = health.stats
    return {
        "num_requests_running": ("Choices in the running batch", stats.num_running),
        "num_requests_waiting": ("Choices waiting to be scheduled", stats.num_waiting),
        "kv_cache_usage_perc": (
            "Share of cache slots held by running choices; 1 is full",
            stats.cache_usage,
        ),
        "kv_cache_slots": ("Cache slots", stats.num_slots),
        "kv_cache_prefix_slots": (
            "Cache slots with prefixes that no running choice uses",
            stats.num_cached_slots,
        ),
        "kv_transfer_prompts": (
            "Prompts held for decode servers, or being read from prefill servers",
            stats.num_held_prompts,
        ),
        "grammar_cache_bytes": (
            "Bytes of compiled grammars, those in use included",
            stats.grammar.cache_bytes,
        ),
        "prepared_schema_bytes": ("Bytes of cached prepared schemas", PREPARED.num_bytes),
        "engine_ready": ("1 if the engine is ready", int(health.state == "ready")),
        "engine_idle_seconds": (
            "Seconds since the engine made a step or had no work",
            health.idle_seconds,
        ),
        "last_step_seconds": ("Duration of the last step", health.last_step_seconds),
    }


def _counters(health: EngineHealth) -> dict[str, tuple[str, float]]:
    """Return the text and the value of each counter without labels of its own, by name."""
    stats = health.stats
    return {
        "engine_restarts": ("Engine processes started after one ended", health.num_restarts),
        "engine_steps": ("Steps", stats.num_steps),
        "prompt_tokens": ("Prompt tokens of requests", stats.num_asked_tokens),
        "prefill_tokens": (
            "Prompt tokens computed: those that are not cached, but for the last one",
            stats.num_prompt_tokens,
        ),
        "generation_tokens": ("Tokens generated", stats.num_output_tokens),
        "num_preemptions": ("Preemptions", stats.num_preemptions),
        "failed_steps": ("Attempts at a step that failed", stats.num_failed_steps),
        "prefix_cache_queries": ("Tokens looked up", stats.num_prefix_query_tokens),
        "prefix_cache_hits": ("Tokens found", stats.num_prefix_hit_tokens),
        "spec_decode_num_drafts": ("Steps with a draft", stats.drafts.num_drafts),
        "spec_decode_num_draft_tokens": ("Tokens drafted", stats.num_draft_tokens),
        "spec_decode_num_accepted_tokens": ("Drafts accepted", stats.num_accepted_tokens),
        "spec_decode_num_pruned_tokens": (
            "Draft tokens removed by a grammar before the forward pass",
            stats.grammar.num_pruned,
        ),
        "prepared_schema_hits": (
            "Schemas found in the cache of prepared schemas",
            PREPARED.num_hits,
        ),
        "prepared_schema_misses": ("Schemas prepared", PREPARED.num_misses),
        "grammar_compiles": ("Output grammars compiled", stats.grammar.num_compiled),
        "grammar_cache_hits": (
            "Output grammars found in the cache of compiled grammars",
            stats.grammar.num_hits,
        ),
        "grammar_compile_seconds": (
            "Seconds spent compiling output grammars",
            stats.grammar.compile_seconds,
        ),
        "grammar_replays": (
            "Grammars replayed because a limit was exceeded",
            stats.grammar.num_replays,
        ),
        "grammar_late_drafts": (
            "Drafts cut short because their masks were not ready in time",
            stats.grammar.num_late,
        ),
        "grammar_left_out_tokens": (
            "Drafted tokens without a mask since the forward had ended",
            stats.grammar.num_left_out,
        ),
        "grammar_masks": ("Logits rows masked", stats.grammar.num_masks),
        "grammar_mask_seconds": ("Seconds spent filling masks", stats.grammar.mask_seconds),
    }


def _depths(counts: list[int]) -> dict[str, int]:
    return {str(depth): count for depth, count in enumerate(counts[:MAX_DEPTHS])}


def _limited(counts: dict[str, int]) -> dict[str, int]:
    """Return the counts of the first MAX_NAMES names, and the sum of the others as "other"."""
    names = sorted(counts)
    limited = {name: counts[name] for name in names[:MAX_NAMES]}
    if len(names) > MAX_NAMES:
        limited["other"] = sum(counts[name] for name in names[MAX_NAMES:])
    return limited


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(
        self,
        health: Callable[[], EngineHealth],
        model: str,
        names: MetricsNames = "eyas",
        block_size: int = KVEventsConfig().block_size,
    ) -> None:
        """names: the engine whose names the metrics have in addition. block_size: tokens of a block of
        the cache's events."""
        self.registry = prometheus_client.CollectorRegistry()
        self.registry.register(_EngineCollector(health, model, block_size))
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

        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "Seconds from the request to the first token", _SECONDS
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Seconds from one token to the next", _SHORT_SECONDS
        )
        self.time_per_output_token = histogram(
            "request_time_per_output_token_seconds",
            "Mean seconds per output token of a request",
            _SHORT_SECONDS,
        )
        self.queue_time = histogram(
            "request_queue_time_seconds",
            "Seconds until the first choice of a request had a seat in the running batch",
            _SECONDS,
        )
        self.prefill_time = histogram(
            "request_prefill_time_seconds", "Seconds from that seat to the first token", _SECONDS
        )
        self.decode_time = histogram(
            "request_decode_time_seconds", "Seconds from the first token to the last", _SECONDS
        )
        self.inference_time = histogram(
            "request_inference_time_seconds", "Seconds from that seat to the last token", _SECONDS
        )
        self.request_latency = histogram(
            "e2e_request_latency_seconds",
            "Seconds from the request to the end of the answer",
            _SECONDS,
        )
        self.prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens", _COUNTS)
        self.output_tokens = histogram("request_generation_tokens", "Output tokens", _COUNTS)
        self.num_choices = histogram(
            "request_params_n", "Choices per request", (1, 2, 4, 8, 16, 64, 128)
        )
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

    def observe_phases(self, queued: float, prefill: float, decode: float) -> None:
        """Observe the seconds of the phases of one request. prefill is at least 0: the clocks of two
        processes measure it."""
        prefill = max(0.0, prefill)
        self.queue_time.observe(queued)
        self.prefill_time.observe(prefill)
        self.decode_time.observe(decode)
        self.inference_time.observe(prefill + decode)

    def count_finished(self, reason: str) -> None:
        self._finished.labels(self._model, reason).inc()

    def count_response(self, status: int) -> None:
        self._responses.labels(self._model, str(status)).inc()

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics as text, and its content type, according to the Accept header."""
        return render_metrics(self._collector, accept)
