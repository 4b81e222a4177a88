"""Counters of an engine since its start, for `/metrics`.

Promises: plain numbers, updated when steps land.
Does not know: how they are exported.
"""

from __future__ import annotations

import msgspec

from eyas.cache import CacheManager
from eyas.constraint import CompilePool
from eyas.engine.scheduler import Scheduler
from eyas.wire import EngineStats


class Metrics(EngineStats, kw_only=True):
    """The counters that steps update. `stats` adds those of the scheduler, the cache and grammars."""

    def count_step(self, num_drafted: int, num_accepted: int, num_taken: int) -> None:
        """Count the tokens of one sequence in a landed step: drafted, accepted, and used in total."""
        self.num_output_tokens += num_taken
        if num_drafted:
            self.num_draft_tokens += num_drafted
            self.num_accepted_tokens += num_accepted

    def stats(
        self, scheduler: Scheduler, cache: CacheManager, grammars: CompilePool | None
    ) -> EngineStats:
        """Return all counts, and the gauges at this moment."""
        if grammars is not None:
            compiled = grammars.stats()
            self.grammar.num_compiled = compiled.num_compiled
            self.grammar.num_hits = compiled.num_hits
            self.grammar.num_refused = dict(compiled.num_refused)
            self.grammar.compile_seconds = compiled.compile_seconds
            self.grammar.num_cached = compiled.num_cached
            self.grammar.cache_bytes = compiled.num_bytes
            self.grammar.can_compile = grammars.can_compile()
        slots = cache.stats()
        return msgspec.structs.replace(
            self,
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_slots=slots.num_slots,
            num_free_slots=slots.num_free,
            num_cached_slots=slots.num_cached,
            num_preemptions=scheduler.num_preemptions,
            num_prefix_hit_tokens=scheduler.num_hit_tokens,
            num_prefix_query_tokens=scheduler.num_query_tokens,
        )
