"""Lineups: drafter configurations that are compared on one engine, whose drafter changes between jobs.

Promises: plain decoding runs no drafting network and reads no taps. A fixed shape is the given one, and
"auto" is the choice by cost. The drafter changes only while no request runs. The engine is built for
the largest shape; a smaller one is that drafter with a smaller preferred shape.
Does not know: prompts, how results are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import msgspec

from eyas.config import AUTO_NODES
from eyas.draft import (
    BlendDrafter,
    Drafter,
    DrafterWrapper,
    ForcedDrafter,
    NgramDrafter,
    RootDrafter,
    TreeShape,
)
from eyas.engine.startup.build import connect
from eyas.engine.startup.drafting import MAX_FORCED
from eyas.engine.startup.step_costs import with_adaptive_shape
from eyas.llm import LLM
from eyas.verify.contestants import EngineContestant, Job, Measurement, same_tokens, summarise

PLAIN, AUTO = "plain", "auto"


@dataclass(frozen=True, slots=True)
class Lineup:
    """A drafter to compare. shape: of its trees; None if it chooses."""

    name: str
    drafter: Drafter
    shape: TreeShape | None = None


class FixedDrafter(DrafterWrapper):
    """A drafter with a fixed preferred shape."""

    def __init__(self, inner: Drafter, shape: TreeShape) -> None:
        super().__init__(inner)
        self._preferred = shape

    def preferred_shape(
        self, num_sequences: int, num_constrained: int = 0, num_prompt_rows: int = 0
    ) -> TreeShape:
        return self._preferred


class SwitchDrafter(DrafterWrapper):
    """A drafter that forwards to the one in use. shape: of the largest tree that any of them
    proposes."""

    def __init__(self, shape: TreeShape) -> None:
        super().__init__(RootDrafter())
        self.shape = shape

    def use(self, drafter: Drafter) -> None:
        """Forward to this drafter from now on."""
        self._wrap(drafter)


class Stage:
    """A model's engine, replaced by one with a `SwitchDrafter`, and the lineups that it can run.

    llm: not used before, built for one drafter with a number of nodes (not "auto"), and without a
    prefix cache, since a prefix that was shared while one drafter was in use lacks the rows of
    another one.
    with_forced_spans: whether lineups may add forced spans to trees.
    """

    def __init__(self, llm: LLM, *, with_forced_spans: bool = False) -> None:
        config, engine = llm.config, llm.engine
        built = engine.drafter
        assert config.draft.nodes != "auto" and not config.cache.prefix_cache
        self.llm = llm
        self.built = built
        self.switch = SwitchDrafter(replace(built.shape, extra=MAX_FORCED * with_forced_spans))
        tokenizer = llm.tokenizer if llm.has_tokenizer else None
        on_gpu = engine.table.device.type == "cuda"
        switched = connect(
            config,
            config.scheduler.limits(on_gpu=on_gpu, num_seats=llm.info.max_num_seqs),
            engine.runner,
            self.switch,
            llm.info,
            tokenizer,
            engine.grammars,
            ranks=engine.ranks,
        )
        llm.shared_engine.replace(switched)
        engine.launcher.masking.close()

    @property
    def kind(self) -> str:
        """The kind of the drafter that the engine was built with: head, model or ngram."""
        return self.built.sources[0]

    def use(self, lineup: Lineup) -> None:
        """Use a lineup from now on, after all requests have ended."""
        engine = self.llm.engine
        while engine.has_work():
            engine.step()
        self.switch.use(lineup.drafter)

    def plain(self) -> Lineup:
        """Return plain decoding."""
        return Lineup(PLAIN, RootDrafter())

    def fixed(self, name: str, shape: TreeShape) -> Lineup:
        """Return the engine's drafter with a fixed shape."""
        return Lineup(name, FixedDrafter(self.built, shape), shape)

    def auto(self) -> Lineup:
        """Return the engine's drafter with the shape chosen step by step, as with `nodes="auto"`."""
        llm, shape = self.llm, self.built.shape.within(AUTO_NODES)
        max_num_seqs, max_length = llm.info.max_num_seqs, llm.info.max_model_len
        return Lineup(
            AUTO,
            with_adaptive_shape(self.built, shape, llm.engine.runner, max_num_seqs, max_length),
        )

    def forced(self, name: str, lineup: Lineup) -> Lineup:
        """Return a lineup with forced spans added to its trees."""
        return Lineup(name, ForcedDrafter(lineup.drafter, MAX_FORCED), lineup.shape)

    def ngram(self) -> Lineup:
        """Return prompt lookup alone."""
        drafter = NgramDrafter(self.built.width - 1)
        return Lineup("ngram", drafter, drafter.shape)

    def blend(self) -> Lineup:
        """Return a blend of prompt lookup and the engine's drafter."""
        drafter = BlendDrafter([NgramDrafter(self.built.width - 1), self.built], self.built.width)
        return Lineup(f"ngram+{self.kind}", drafter, drafter.shape)


class LineupContestant:
    """A lineup that runs jobs. stopwatch: times the engine of the stage, shared by all lineups."""

    def __init__(self, stage: Stage, stopwatch: EngineContestant, lineup: Lineup) -> None:
        self.name = lineup.name
        self.lineup = lineup
        self._stage, self._stopwatch = stage, stopwatch

    def run(self, job: Job) -> Measurement:
        """Use the lineup and run a job. Raises RuntimeError if a step failed."""
        self._stage.use(self.lineup)
        metrics = self._stage.llm.engine.metrics
        failed = metrics.num_failed_steps
        run = self._stopwatch.run(job)
        if metrics.num_failed_steps > failed:
            raise RuntimeError(f"a step failed with {self.name}; the log says how")
        return run


def compare(
    contestants: Sequence[LineupContestant], runs: Mapping[str, Sequence[Measurement]]
) -> dict[str, dict[str, Any]]:
    """Return the medians of all contestants, by name, with the median ratio of their speed to that of
    plain decoding in the same round."""
    plain = runs[PLAIN]
    compared: dict[str, dict[str, Any]] = {}
    for contestant in contestants:
        own = runs[contestant.name]
        shape = contestant.lineup.shape
        pairs = zip(own, plain, strict=True)
        ratio = median(one.speed / other.speed for one, other in pairs)
        is_same = all(same_tokens([run], plain) == 1 for run in own)
        compared[contestant.name] = {
            "shape": None if shape is None else [shape.steps, shape.topk, shape.nodes],
            **summarise(own),
            "speed_ratio": round(ratio, 3),
            "same_tokens": is_same,
        }
    return compared


def about(llm: LLM) -> dict[str, Any]:
    """Return the facts about a model that belong to a result. Of its path only the last part is
    used."""
    info = msgspec.to_builtins(llm.info)
    names = (
        "architecture",
        "dtype",
        "kv_cache_dtype",
        "device",
        "exact",
        "exact_reason",
        "max_model_len",
    )
    return {
        "name": llm.info.model.rstrip("/").rpartition("/")[2],
        "parameters": llm.info.num_parameters,
        **{name: info[name] for name in names},
    }
