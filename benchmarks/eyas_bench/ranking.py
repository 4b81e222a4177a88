"""Compare rankings of draft candidates, with and without the target's noise, by accepted tokens.

Promises: all rankings use the same tree shapes, head, prompts, seeds and settings; answers are
compared with plain decoding. Counts are exact and repeatable; nothing is timed. The interval of a
gain is over draws of prompts.
Does not know: how results are shown.

Rankings: "top-k" takes the most likely tokens of the head, without noise; "noise" ranks by
beta * (q / T + g) with the beta that the head's training fitted for the nearest temperature;
"noise, beta 1" does so with beta = 1, for trees only: beta does not change the order of the
children of one node, so a chain is the same with every beta.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.core import SamplingParams
from eyas.draft import TreeDrafter, TreeShape
from eyas.outputs import Choice
from eyas.verify.contestants import acceptance
from eyas.verify.lineup import PLAIN, FixedDrafter, Lineup, Stage

TOPK, NOISE, UNFITTED = "top-k", "noise", "noise, beta 1"
NUM_RESAMPLES = 1000

ShowStatus = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """Sampling parameters."""

    temperature: float
    top_p: float


def rankings(stage: Stage) -> dict[str, TreeDrafter]:
    """Return a drafter for each ranking, with the network of the stage's engine."""
    built, engine, config = stage.built, stage.llm.engine, stage.llm.config
    assert isinstance(built, TreeDrafter)
    (network,) = built.networks
    on_gpu = engine.table.device.type == "cuda"
    trusts = {TOPK: None, NOISE: network.beta, UNFITTED: lambda temperature: 1.0}
    return {
        name: TreeDrafter(
            network,
            built.shape,
            first_scratch=engine.info.num_slots + 1,
            max_rows=config.scheduler.limits(on_gpu=on_gpu).max_rows,
            trust=trust,
        )
        for name, trust in trusts.items()
    }


def betas(built: TreeDrafter, temperatures: Sequence[float]) -> dict[str, float]:
    """Return the fitted beta of each temperature."""
    return {f"{t:g}": built.networks[0].beta(t) for t in temperatures}


def measure(
    stage: Stage,
    prompts: Sequence[list[int]],
    settings: Sequence[Setting],
    shapes: Sequence[TreeShape],
    *,
    num_seeds: int,
    max_tokens: int,
    show_status: ShowStatus,
) -> list[dict[str, Any]]:
    """Return an entry for each setting, shape and ranking. stage: with a head or a draft model."""
    drafters = rankings(stage)
    results: list[dict[str, Any]] = []
    for setting in settings:
        show_status(f"temperature {setting.temperature:g}, top_p {setting.top_p:g}: plain")
        plain = _answers(stage, stage.plain(), prompts, setting, num_seeds, max_tokens)
        for shape in shapes:
            base: list[Choice] = []
            for name, drafter in drafters.items():
                if name == UNFITTED and shape.topk == 1:
                    continue
                show_status(f"temperature {setting.temperature:g}, top_p {setting.top_p:g}: {name}")
                lineup = Lineup(name, FixedDrafter(drafter, shape), shape)
                given = _answers(stage, lineup, prompts, setting, num_seeds, max_tokens)
                base = base or given
                results.append(
                    {
                        "temperature": setting.temperature,
                        "top_p": setting.top_p,
                        "shape": [shape.steps, shape.topk, shape.nodes],
                        "ranking": name,
                        **_counted(given),
                        "gain": gain(_steps(given, num_seeds), _steps(base, num_seeds)),
                        "changed_answers": sum(map(_differs, given, plain)),
                    }
                )
    return results


def gain(own: Sequence[tuple[int, int]], base: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Return the ratio of tokens per step to that of `base`, with a 95 % interval over draws of
    prompts.

    own, base: (tokens, steps) of each prompt, summed over its seeds.
    """
    draw = random.Random(0)
    places = range(len(own))
    found = [
        _quotient(own, base, [draw.choice(places) for _ in places]) for _ in range(NUM_RESAMPLES)
    ]
    found.sort()
    cut = NUM_RESAMPLES // 40
    return {
        "ratio": round(_quotient(own, base, places), 3),
        "low": round(found[cut], 3),
        "high": round(found[-1 - cut], 3),
    }


def _quotient(
    own: Sequence[tuple[int, int]], base: Sequence[tuple[int, int]], places: Sequence[int]
) -> float:
    speeds = [sum(x[i][0] for i in places) / sum(x[i][1] for i in places) for x in (own, base)]
    return speeds[0] / speeds[1]


def _answers(
    stage: Stage,
    lineup: Lineup,
    prompts: Sequence[list[int]],
    setting: Setting,
    num_seeds: int,
    max_tokens: int,
) -> list[Choice]:
    """Return the answers to every prompt with every seed, grouped by prompt."""
    stage.use(lineup)
    metrics = stage.llm.engine.metrics
    before = metrics.num_failed_steps
    asked = [list(prompt) for prompt in prompts for _ in range(num_seeds)]
    params = [
        SamplingParams(
            temperature=setting.temperature, top_p=setting.top_p, seed=i, max_tokens=max_tokens
        )
        for i in range(len(asked))
    ]
    choices = [output.choices[0] for output in stage.llm.generate(asked, params)]
    if metrics.num_failed_steps > before:
        raise RuntimeError(f"a step failed with {lineup.name}; see the log")
    drafts = any(choice.usage.num_draft_tokens for choice in choices)
    if drafts != (lineup.name != PLAIN):
        raise RuntimeError(f"{lineup.name}: drafted {'tokens' if drafts else 'nothing'}")
    return choices


def _counted(given: Sequence[Choice]) -> dict[str, Any]:
    num_steps = sum(choice.usage.num_steps for choice in given)
    num_tokens = sum(choice.usage.num_output_tokens for choice in given)
    num_accepted = sum(choice.usage.num_accepted_tokens for choice in given)
    drafts = acceptance([choice.usage.drafts for choice in given])
    return {
        "num_answers": len(given),
        "num_tokens": num_tokens,
        "tokens_per_step": round(num_tokens / max(1, num_steps), 3),
        "tokens_per_draft": round(1 + num_accepted / max(1, drafts["num_drafts"]), 3),
        **drafts,
    }


def _steps(given: Sequence[Choice], num_seeds: int) -> list[tuple[int, int]]:
    used = [(choice.usage.num_output_tokens, choice.usage.num_steps) for choice in given]
    return [
        (sum(t for t, _ in used[i : i + num_seeds]), sum(n for _, n in used[i : i + num_seeds]))
        for i in range(0, len(used), num_seeds)
    ]


def _differs(one: Choice, other: Choice) -> bool:
    return (one.token_ids, one.finish_reason) != (other.token_ids, other.finish_reason)
