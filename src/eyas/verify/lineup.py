"""One engine, loaded once, whose drafter changes between jobs: every way of drafting on equal terms.

Promises: plain decoding is the engine's own (no head runs, nothing is tapped), a fixed shape is the one
asked for, "auto" is what the engine chooses by cost; who drafts changes only while nothing runs. Built
with the largest shape; smaller ones are that drafter, narrowed.
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
from eyas.engine.build import compile_pool, connect
from eyas.engine.drafting import MAX_FORCED, pace
from eyas.llm import LLM
from eyas.verify.contestants import EngineContestant, Job, Measurement, same_tokens, summarise

PLAIN, AUTO = "plain", "auto"


@dataclass(frozen=True, slots=True)
class Lineup:
    """Who drafts. shape: of its trees; None where it chooses."""

    name: str
    drafter: Drafter
    shape: TreeShape | None = None


class FixedDrafter(DrafterWrapper):
    """Another drafter that always wishes for trees of one shape."""

    def __init__(self, inner: Drafter, shape: TreeShape) -> None:
        super().__init__(inner)
        self._wished = shape

    def preferred_shape(self, num_sequences: int, num_constrained: int = 0) -> TreeShape:
        return self._wished


class SwitchDrafter(DrafterWrapper):
    """Whichever drafter is in use. shape: of the largest tree that any of them proposes."""

    def __init__(self, shape: TreeShape) -> None:
        super().__init__(RootDrafter())
        self.shape = shape

    def use(self, drafter: Drafter) -> None:
        """From now on."""
        self._wrap(drafter)


class Stage:
    """An engine around a `SwitchDrafter`, and the drafters that may take part.

    llm: made for one drafter and nodes in numbers, without prefix cache (rows that a drafter was not
    there to make would be missing from a shared prefix), and not yet used. with_grammars: outputs may
    be constrained, and trees have room for forced spans.
    """

    def __init__(self, llm: LLM, *, with_grammars: bool = False) -> None:
        config, built = llm.config, llm.engine.drafter
        assert config.draft.nodes != "auto" and not config.cache.prefix_cache
        self.llm = llm
        self.built = built
        self.switch = SwitchDrafter(replace(built.shape, extra=MAX_FORCED * with_grammars))
        tokenizer = llm.tokenizer if llm.has_tokenizer else None
        grammars = compile_pool(config, llm.info, tokenizer) if with_grammars else None
        llm.engine = connect(config, llm.engine.runner, self.switch, llm.info, tokenizer, grammars)

    @property
    def kind(self) -> str:
        """What the engine was made with: head, model or ngram."""
        return self.built.sources[0]

    def use(self, lineup: Lineup) -> None:
        """Let others draft from now on; what is under way lands first."""
        engine = self.llm.engine
        while engine.has_work():
            engine.step()
        self.switch.use(lineup.drafter)

    def plain(self) -> Lineup:
        return Lineup(PLAIN, RootDrafter())

    def fixed(self, name: str, shape: TreeShape) -> Lineup:
        """Always this shape."""
        return Lineup(name, FixedDrafter(self.built, shape), shape)

    def auto(self) -> Lineup:
        """The shape that promises most tokens a second, step by step, as `nodes="auto"` has it."""
        llm, shape = self.llm, self.built.shape.within(AUTO_NODES)
        seats, longest = llm.config.scheduler.max_num_seqs, llm.info.max_model_len
        return Lineup(AUTO, pace(self.built, shape, llm.engine.runner, seats, longest))

    def forced(self, name: str, lineup: Lineup) -> Lineup:
        """Another lineup whose trees forced spans are added to."""
        return Lineup(name, ForcedDrafter(lineup.drafter, MAX_FORCED), lineup.shape)

    def ngram(self) -> Lineup:
        """Prompt lookup alone."""
        drafter = NgramDrafter(self.built.width - 1)
        return Lineup("ngram", drafter, drafter.shape)

    def blend(self) -> Lineup:
        """Prompt lookup and what the engine was made with, in one tree."""
        drafter = BlendDrafter([NgramDrafter(self.built.width - 1), self.built], self.built.width)
        return Lineup(f"ngram+{self.kind}", drafter, drafter.shape)


class LineupContestant:
    """A lineup on a stage. Jobs of all lineups run through the same stopwatch."""

    def __init__(self, stage: Stage, stopwatch: EngineContestant, lineup: Lineup) -> None:
        self.name = lineup.name
        self.lineup = lineup
        self._stage, self._stopwatch = stage, stopwatch

    def run(self, job: Job) -> Measurement:
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
    """Medians of every contestant, by name; its speed is divided by plain's of the same round."""
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
    """Facts of a model that a result is told with; the last part of its path stands for it."""
    info = msgspec.to_builtins(llm.info)
    kept = ("architecture", "dtype", "device", "exact", "exact_reason", "max_model_len")
    return {
        "name": llm.info.model.rstrip("/").rpartition("/")[2],
        "parameters": llm.info.num_parameters,
        **{name: info[name] for name in kept},
    }
