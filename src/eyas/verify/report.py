"""The report of `eyas verify` on a model: exactness, drafter law, parity, acceptance, speed.

Promises: each of the five parts has a status (pass, fail or skipped) and its numbers. The report passes
unless the law or parity fails. One model is in memory at a time, with its drafting network. A
checkpoint without a tokenizer, template or head is verified as far as possible, and the report names
what was used instead.
Does not know: how a report is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from eyas.config import CacheConfig, DraftConfig, EngineConfig, SchedulerConfig
from eyas.draft import TreeShape
from eyas.engine.startup.drafting import decide_drafting
from eyas.llm import LLM
from eyas.models import Progress, locate_model, num_parameters, read_spec
from eyas.verify.contestants import EngineContestant, Job, take_turns
from eyas.verify.inputs import Inputs, check_lengths, from_entries, from_tasks
from eyas.verify.law import AllAnswers, Say, answer, count_acceptance, judge
from eyas.verify.lineup import PLAIN, Lineup, LineupContestant, Stage, about, compare
from eyas.verify.parity import Scores, check_parity, cut, free_memory, lacks_room, score
from eyas.verify.prompts import cycle_to
from eyas.verify.shapes import batch_tokens, normal

SPEED_BATCHES = (1, 4)
MOST_OWN_PARAMETERS = 500_000_000
"""Largest model without a head that is loaded a second time as its own draft model."""


@dataclass(frozen=True, slots=True)
class VerifyPlan:
    """What to verify.

    engine: the settings; `draft.nodes` must be a number. head: path of a draft head; None uses what
    the settings name. entries: prompts of a file; None uses the shared tasks. repeats: rounds of the
    speed part.
    """

    engine: EngineConfig
    head: str | None = None
    entries: Sequence[Mapping[str, Any]] | None = None
    num_prompts: int = 4
    max_tokens: int = 64
    repeats: int = 3
    with_parity: bool = True


def verify(plan: VerifyPlan, say: Say, progress: Progress | None = None) -> dict[str, Any]:
    """Verify a model and return the report. Raises ValueError for a plan that cannot be run.

    say: receives lines about what is being done. progress: see `engine.startup.build.build_engine`.
    """
    source = plan.engine.model
    directory = locate_model(source.path, source.revision, source.offline)
    draft, note = choose_drafting(plan, directory)
    config = msgspec.structs.replace(
        plan.engine,
        draft=draft,
        cache=msgspec.structs.replace(plan.engine.cache, prefix_cache=False),
        scheduler=_scheduling(plan, draft),
    )
    say("loading")
    report, texts, own, device = _with_engine(plan, config, note, say, progress)
    free_memory()
    report["parts"]["parity"] = _parity(plan, config, directory, texts, own, device, say)
    order = ("exactness", "law", "parity", "acceptance", "speed")
    report["parts"] = {name: report["parts"][name] for name in order}
    report["passed"] = all(report["parts"][name]["status"] != "fail" for name in ("law", "parity"))
    return report


def choose_drafting(plan: VerifyPlan, directory: Path) -> tuple[DraftConfig, str]:
    """Choose the drafter to verify in addition to prompt lookup. Returns its settings, and a note if it
    is not one that was asked for."""
    asked = plan.engine.draft
    if plan.head is not None and asked.model is not None:
        raise ValueError("--head: a draft model was given as well; give one of them")
    if asked.nodes == "auto":
        raise ValueError("draft.nodes: a number is needed here, the largest tree to verify")
    if plan.head is not None:
        asked = msgspec.structs.replace(asked, drafter="head", model=plan.head)
    config = msgspec.structs.replace(plan.engine, draft=asked)
    spec = read_spec(directory)
    try:
        names = decide_drafting(config, directory, spec).names
    except ValueError as error:
        if plan.head is None:
            raise
        raise ValueError(str(error).replace("draft.model:", "--head:", 1)) from error
    names = tuple(name for name in names if name != "forced")  # no output here has a grammar
    if names not in ((), ("root",)):
        return msgspec.structs.replace(asked, drafter="+".join(names)), ""
    if plan.engine.draft.model is not None:
        raise ValueError(f"draft.model: {asked.model} holds nothing that drafts")
    if num_parameters(spec) <= MOST_OWN_PARAMETERS:
        own = msgspec.structs.replace(asked, drafter="model", model=str(directory))
        return own, "no head was given: the model drafts for itself"
    lookup = msgspec.structs.replace(asked, drafter="ngram")
    return lookup, "no head was given: prompt lookup alone drafts"


def _scheduling(plan: VerifyPlan, draft: DraftConfig) -> SchedulerConfig:
    num_prompts = plan.num_prompts if plan.entries is None else len(plan.entries)
    num_seqs = max(*SPEED_BATCHES, min(num_prompts, plan.num_prompts))
    shape = TreeShape(draft.max_steps, draft.topk, draft.max_nodes)
    return msgspec.structs.replace(
        plan.engine.scheduler,
        max_num_seqs=num_seqs,
        max_batch_tokens=batch_tokens([num_seqs], [shape]),
    )


def _with_engine(
    plan: VerifyPlan,
    config: EngineConfig,
    note: str,
    say: Say,
    progress: Progress | None,
) -> tuple[dict[str, Any], list[list[int]], dict[str, Scores], str]:
    """Run all parts that need the engine in its own number format.

    Returns the report without parity, the texts for parity, their scores by number format, and the
    device.
    """
    with LLM(config=config, progress=progress) as llm:
        inputs = _inputs(plan, llm)
        stage = Stage(llm)
        lineups = _lineups(stage)
        all_answers = answer(stage, lineups, inputs.token_ids, plan.max_tokens, say)
        report = {
            "model": about(llm),
            "drafting": {
                "drafter": stage.kind,
                "note": note,
                "lineups": [lineup.name for lineup in lineups],
                "shapes": {lineup.name: _sizes(lineup) for lineup in lineups},
            },
            "prompts": {
                "source": inputs.source,
                "num_tokens": [len(prompt) for prompt in inputs.token_ids],
            },
            "settings": {"max_tokens": plan.max_tokens, "repeats": plan.repeats},
            "parts": {
                "exactness": {
                    "status": "pass" if llm.info.exact else "fail",
                    "text": llm.info.exact_reason,
                },
                "law": judge(all_answers, to_the_bit=llm.info.device == "cpu"),
                "acceptance": count_acceptance(all_answers),
                "speed": _speed(stage, lineups, inputs, plan, say),
            },
        }
        texts: list[list[int]] = []
        own: dict[str, Scores] = {}
        if plan.with_parity:
            say("scoring texts")
            stage.use(stage.plain())
            texts = _texts(inputs, all_answers, llm.info.max_model_len)
            own[llm.info.dtype] = score(llm, texts)
        return report, texts, own, llm.info.device


def _inputs(plan: VerifyPlan, llm: LLM) -> Inputs:
    if plan.entries is None:
        inputs = from_tasks(llm, plan.num_prompts)
    else:
        inputs = from_entries(llm, plan.entries[: plan.num_prompts])
    check_lengths(inputs, llm, plan.max_tokens)
    return inputs


def _lineups(stage: Stage) -> list[Lineup]:
    """Return the lineups to compare: plain decoding and the ways of drafting that this engine has."""
    if stage.kind == "ngram":
        return [stage.plain(), stage.ngram(), stage.auto()]
    config = stage.llm.config.draft
    tree = TreeShape(config.max_steps, config.topk, config.max_nodes).within(config.max_nodes)
    chain = normal(TreeShape(min(config.max_steps, config.max_nodes - 1), 1, 2))
    lineups = [stage.plain(), stage.fixed("chain", chain)]
    if tree.topk > 1:
        lineups.append(stage.fixed("tree", tree))
    return [*lineups, stage.auto(), stage.ngram(), stage.blend()]


def _speed(
    stage: Stage, lineups: Sequence[Lineup], inputs: Inputs, plan: VerifyPlan, say: Say
) -> dict[str, Any]:
    stopwatch = EngineContestant("stopwatch", stage.llm)
    contestants = [LineupContestant(stage, stopwatch, lineup) for lineup in lineups]
    results, texts = [], []
    for size in SPEED_BATCHES:
        job = Job(cycle_to(inputs.token_ids, size), size, plan.max_tokens)
        on_run = lambda name, turn, size=size: say(f"speed: batch {size}, {name}")  # noqa: E731
        compared = compare(contestants, take_turns(contestants, job, plan.repeats, on_run))
        results.append({"batch": size, "contestants": compared})
        drafted = {name: one["speed_ratio"] for name, one in compared.items() if name != PLAIN}
        best = max(drafted, key=drafted.__getitem__)
        texts.append(f"{drafted[best]:.2f} times plain at batch {size} ({best})")
    return {"status": "pass", "text": ", ".join(texts), "results": results}


def _texts(inputs: Inputs, all_answers: AllAnswers, max_model_len: int) -> list[list[int]]:
    """Return each prompt with its greedy answer, cut to the length that is scored."""
    answers = all_answers[PLAIN, 0.0].alone
    joined = [
        cut([*prompt, *choice.token_ids], max_model_len)
        for prompt, choice in zip(inputs.token_ids, answers, strict=True)
    ]
    return [text for text in joined if len(text) > 1]


def _parity(
    plan: VerifyPlan,
    config: EngineConfig,
    directory: Path,
    texts: list[list[int]],
    own: dict[str, Scores],
    device: str,
    say: Say,
) -> dict[str, Any]:
    if not plan.with_parity:
        return {"status": "skipped", "text": "was not asked for"}
    if shortage := lacks_room(num_parameters(read_spec(directory)), device):
        return {"status": "skipped", "text": shortage}
    if "float32" not in own:
        say("scoring texts in float32")
        try:
            own = {"float32": _score_in_float32(config, texts), **own}
        except (ValueError, MemoryError) as error:
            return {"status": "skipped", "text": f"no engine in float32: {error}"}
        free_memory()
    say("scoring texts with transformers")
    part = check_parity(directory, texts, device, own)
    free_memory()
    return part


def _score_in_float32(config: EngineConfig, texts: list[list[int]]) -> Scores:
    longest = max(len(text) for text in texts)
    small = msgspec.structs.replace(
        config,
        model=msgspec.structs.replace(
            config.model, dtype="float32", max_model_len=max(8, longest + 1)
        ),
        cache=CacheConfig(num_slots=longest + 64, prefix_cache=False),
        scheduler=SchedulerConfig(max_num_seqs=1),
        draft=DraftConfig(drafter="root"),
    )
    import torch

    try:
        with LLM(config=small) as llm:
            return score(llm, texts)
    except torch.OutOfMemoryError as error:
        raise MemoryError("it does not fit into memory") from error


def _sizes(lineup: Lineup) -> list[int] | None:
    shape = lineup.shape
    return None if shape is None else [shape.steps, shape.topk, shape.nodes]
