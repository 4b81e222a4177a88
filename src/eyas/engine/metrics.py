"""Counters of an engine's life, read by `/metrics` and the bench.

Promises: plain integers, updated when steps land. Does not know: how they are exported.
"""

from __future__ import annotations

from eyas.cache import CacheManager
from eyas.constraint import CompilePool
from eyas.core import DraftCounts
from eyas.engine.scheduler import Scheduler
from eyas.wire import EngineStats, GrammarStats


class Metrics:
    """Counts since the engine started."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.num_failed_steps = 0
        self.drafts = DraftCounts()
        self.grammar = GrammarStats()

    def count_step(self, num_drafted: int, num_accepted: int, num_taken: int) -> None:
        """One sequence's part of a landed step."""
        self.num_output_tokens += num_taken
        if num_drafted:
            self.num_draft_tokens += num_drafted
            self.num_accepted_tokens += num_accepted

    def stats(
        self, scheduler: Scheduler, cache: CacheManager, grammars: CompilePool | None
    ) -> EngineStats:
        slots = cache.stats()
        if grammars is not None:
            compiled = grammars.stats()
            self.grammar.num_compiled = compiled.num_compiled
            self.grammar.num_hits = compiled.num_hits
            self.grammar.num_refused = dict(compiled.num_refused)
            self.grammar.compile_seconds = compiled.compile_seconds
            self.grammar.num_cached = compiled.num_cached
            self.grammar.cache_bytes = compiled.num_bytes
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_slots=slots.num_slots,
            num_free_slots=slots.num_free,
            num_cached_slots=slots.num_cached,
            num_steps=self.num_steps,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
            num_preemptions=scheduler.num_preemptions,
            num_prefix_hit_tokens=cache.num_hit_tokens,
            num_prefix_query_tokens=cache.num_query_tokens,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
            num_failed_steps=self.num_failed_steps,
            drafts=self.drafts,
            grammar=self.grammar,
        )
