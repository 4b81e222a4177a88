"""Measure a trained head in the engine: tokens per step, overall and by depth, and plain decoding.

Promises: measured by decoding prompts that were not trained on. Does not know: training.

A record has shape, temperature, tokens_per_step (accepted tokens plus the chosen one), num_tokens,
num_steps, same_tokens (as plain decoding), and accepted_by_depth: the fraction of drafts whose node
at that depth below the root was accepted. The first records are those of plain decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from eyas.config import DeviceConfig, DraftConfig, EngineConfig, ModelConfig, SchedulerConfig
from eyas.core import Request, SamplingParams, Usage
from eyas.engine.engine import Engine
from eyas.engine.startup.build import build_engine
from eyas.train.head.config import HeadTraining
from eyas.train.head.progress import Progress, Reporter

PLAIN = "no head"
SHAPES = {"chain 5": (5, 1, 6), "tree 5/4/16": (5, 4, 16)}
"""Name -> (levels, children per node, nodes)."""
TEMPERATURES = (0.0, 1.0)
_Tokens = dict[str, list[int]]
"""Request id -> tokens."""


def evaluate_in_engine(
    config: HeadTraining,
    head: Path,
    prompts: list[list[int]],
    reporter: Reporter,
) -> list[dict[str, Any]]:
    """Decode the prompts without and with the head.

    Returns a record for each tree shape and temperature.
    """
    records: list[dict[str, Any]] = []
    plain: dict[float, _Tokens] = {}
    total = len(prompts) * len(TEMPERATURES) * (len(SHAPES) + 1)
    num_ended = 0

    def ended(shape: str) -> None:
        nonlocal num_ended
        num_ended += 1
        reporter.progress(Progress("evaluation", num_ended, total, shape))

    drafts = {PLAIN: DraftConfig(drafter="root")} | {
        name: DraftConfig(drafter="head", model=str(head), steps=steps, topk=topk, nodes=nodes)
        for name, (steps, topk, nodes) in SHAPES.items()
    }
    for name, draft in drafts.items():
        engine = build_engine(
            EngineConfig(
                model=ModelConfig(path=config.model, dtype=config.dtype, offline=config.offline),
                scheduler=SchedulerConfig(max_num_seqs=min(16, config.max_num_seqs)),
                draft=draft,
                device=DeviceConfig(device=config.device),
            )
        )
        try:
            for temperature in TEMPERATURES:
                record, tokens = _decode(
                    engine, prompts, temperature, config.max_tokens, lambda name=name: ended(name)
                )
                same = tokens == plain.setdefault(temperature, tokens)
                records.append(
                    {
                        "shape": name,
                        "temperature": temperature,
                        **record,
                        "same_tokens": same,
                    }
                )
                reporter.log(f"engine: {name} at temperature {temperature:g}: {_shown(record)}")
        finally:
            engine.shutdown()
    return records


def _shown(record: dict[str, Any]) -> str:
    by_depth = record["accepted_by_depth"]
    depths = ", accepted by depth " + " ".join(f"{share:.2f}" for share in by_depth)
    return f"{record['tokens_per_step']:.3f} tokens per step{depths if by_depth else ''}"


def _decode(
    engine: Engine,
    prompts: list[list[int]],
    temperature: float,
    max_tokens: int,
    ended: Callable[[], None],
) -> tuple[dict[str, Any], _Tokens]:
    """Decode all prompts, and return the record and the answers. ended: called after each answer."""
    for seed, prompt in enumerate(prompts):
        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
        engine.add(Request(id=str(seed), prompt_token_ids=prompt, params=params))
    answers: _Tokens = {str(seed): [] for seed in range(len(prompts))}
    usages: list[Usage] = []
    while len(usages) < len(prompts):
        for delta in engine.step():
            answers[delta.request_id] += delta.token_ids
            if delta.finish_reason is not None:
                usages.append(delta.usage or Usage())
                ended()
    tokens = steps = drafts = 0
    accepted: list[int] = []
    for usage in usages:
        tokens += usage.num_output_tokens
        steps += usage.num_steps
        drafts += usage.drafts.num_drafts
        by_depth = usage.drafts.accepted_by_depth
        accepted += [0] * (len(by_depth) - len(accepted))
        for depth, count in enumerate(by_depth):
            accepted[depth] += count
    record = {
        "tokens_per_step": round(tokens / max(1, steps), 4),
        "accepted_by_depth": [round(count / max(1, drafts), 4) for count in accepted],
        "num_tokens": tokens,
        "num_steps": steps,
    }
    return record, answers
