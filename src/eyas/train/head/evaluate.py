"""A trained head in the engine: accepted tokens a step, overall and by depth.

Promises: the numbers of real decoding, on prompts that were not trained on. Does not know: training.

A record: shape and temperature, tokens_per_step (what a step yields, accepted or chosen), num_tokens,
num_steps, and accepted_by_depth: the share of drafts in which the node so many below the root was
accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eyas.config import DeviceConfig, DraftConfig, EngineConfig, ModelConfig, SchedulerConfig
from eyas.core import Request, SamplingParams, Usage
from eyas.engine.build import build_engine
from eyas.engine.engine import Engine
from eyas.train.head.answers import Say
from eyas.train.head.config import HeadTraining

SHAPES = {"chain 5": (5, 1, 6), "tree 5/4/16": (5, 4, 16)}
"""Levels, children a node, nodes."""
TEMPERATURES = (0.0, 1.0)


def evaluate_in_engine(
    config: HeadTraining, head: Path, prompts: list[list[int]], say: Say
) -> list[dict[str, Any]]:
    """Decode the prompts with the head as drafter; one record for each tree shape and temperature."""
    records: list[dict[str, Any]] = []
    for name, (steps, topk, nodes) in SHAPES.items():
        draft = DraftConfig(drafter="head", model=str(head), steps=steps, topk=topk, nodes=nodes)
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
                record = {"shape": name, "temperature": temperature}
                record |= _decode(engine, prompts, temperature, config.max_tokens)
                records.append(record)
                say(
                    f"engine: {name} at temperature {temperature:g}: "
                    f"{record['tokens_per_step']:.3f} tokens a step, accepted by depth "
                    f"{record['accepted_by_depth']}"
                )
        finally:
            engine.shutdown()
    return records


def _decode(
    engine: Engine, prompts: list[list[int]], temperature: float, max_tokens: int
) -> dict[str, Any]:
    for seed, prompt in enumerate(prompts):
        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
        engine.add(Request(id=str(seed), prompt_token_ids=prompt, params=params))
    usages: list[Usage] = []
    while len(usages) < len(prompts):
        ended = [delta for delta in engine.step() if delta.finish_reason is not None]
        usages += [delta.usage or Usage() for delta in ended]
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
    return {
        "tokens_per_step": round(tokens / max(1, steps), 4),
        "accepted_by_depth": [round(count / max(1, drafts), 4) for count in accepted],
        "num_tokens": tokens,
        "num_steps": steps,
    }
