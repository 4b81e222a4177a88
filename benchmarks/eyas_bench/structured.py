"""Measure the cost of a schema and the gain of forced spans: the same prompts with and without a
schema.

Promises: one engine, one request at a time; every prompt is answered by all contestants in turn,
and their order changes from prompt to prompt and round to round. Grammars, including those of
forced spans, are compiled before the measurement. Token counts are exact, and so are step counts of
fixed shapes if no mask is late; ratios of speeds are taken within a round.
Does not know: how results are shown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from builtin_model.families import draw_example
from eyas.core import Delta, Request
from eyas.dialect import Wanted
from eyas.draft import TreeShape
from eyas.grammar import Json, OutputSpec
from eyas.llm import LLM
from eyas.outputs import Choice, GenerationOutput
from eyas.schemas import prepare
from eyas.verify.contestants import Measurement, acceptance, same_tokens
from eyas.verify.lineup import AUTO, PLAIN, Lineup, Stage
from eyas_bench.forms import FORMS, Form
from eyas_bench.ranking import gain
from eyas_bench.ratio import ratio

OWN_TASKS, FORMS_ALONE, FORMS_SHOWN = "own tasks", "forms", "forms, schema in the prompt"
OWN_FAMILIES = ("json_words", "json_schema", "extract")
HEAD, FORCED = "head", "head+forced"
FREE = ", no schema"
SPEED_RATIOS = (
    (FORCED, HEAD),
    (FORCED, HEAD + FREE),
    (AUTO, AUTO + FREE),
    (AUTO, HEAD + FREE),
    (FORCED, PLAIN),
    (AUTO, PLAIN),
)
"""Pairs of contestants whose ratio of tokens per second is reported."""
CANONICAL_SECONDS = 10.0
"""Seconds to wait for the grammars of forced spans; after that, spans are omitted."""

Message = Mapping[str, Any]
ShowStatus = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Task:
    """A conversation and the schema of its answer."""

    title: str
    messages: tuple[Message, ...]
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """A tokenized task with its compiled schema."""

    task: Task
    prompt: list[int]
    wanted: Wanted
    output: OutputSpec


@dataclass(frozen=True, slots=True)
class Contestant:
    """A drafter, and whether answers are constrained to their schemas."""

    name: str
    lineup: Lineup
    has_schema: bool


@dataclass(slots=True)
class Round:
    """A pass of a contestant over the tasks.

    step_seconds: of the steps after the step of the prompt.
    """

    run: Measurement = field(default_factory=Measurement)
    choices: list[Choice] = field(default_factory=list)
    step_seconds: float = 0.0
    mask_seconds: float = 0.0


def own_tasks(count: int) -> list[Task]:
    """Return held-out prompts of the built-in model's JSON families, with schemas of the answers."""
    tasks: list[Task] = []
    number = 0
    while len(tasks) < count:
        for family in OWN_FAMILIES:
            example = draw_example(family, f"structured/{number}", "heldout")
            try:
                value = json.loads(example.reference())
            except ValueError:  # some of them answer in another format
                continue
            if isinstance(value, dict):
                tasks.append(Task(family, tuple(example.request.messages), schema_of(value)))
        number += 1
    return tasks[:count]


def form_tasks(count: int, *, shows_schema: bool = False) -> list[Task]:
    """Return `count` tasks of the forms, equally many of each where `count` allows it."""
    most = max(len(form.prompts) for form in FORMS)
    tasks = [
        Task(form.name, _messages(form, form.prompts[i], shows_schema), form.schema)
        for i in range(most)
        for form in FORMS
        if i < len(form.prompts)
    ]
    return tasks[:count]


def groups(count: int) -> dict[str, list[Task]]:
    """Return groups of `count` tasks by name."""
    return {
        OWN_TASKS: own_tasks(count),
        FORMS_ALONE: form_tasks(count),
        FORMS_SHOWN: form_tasks(count, shows_schema=True),
    }


def _messages(form: Form, facts: str, shows_schema: bool) -> tuple[Message, ...]:
    if not shows_schema:
        return ({"role": "user", "content": f"{facts}\n\nWrite this as a JSON object."},)
    instruction = f"Answer with a JSON object that follows this schema:\n{json.dumps(form.schema)}"
    return ({"role": "system", "content": instruction}, {"role": "user", "content": facts})


def schema_of(value: Any) -> dict[str, Any]:
    """Return a closed schema of values with the same structure as this one."""
    match value:
        case dict():
            return {
                "type": "object",
                "properties": {name: schema_of(each) for name, each in value.items()},
                "required": list(value),
                "additionalProperties": False,
            }
        case list():
            return {"type": "array", **({"items": schema_of(value[0])} if value else {})}
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case None:
            return {"type": "null"}
    return {"type": "string"}


def contestants(stage: Stage, steps: int) -> list[Contestant]:
    """Return the contestants.

    stage: with a head and grammars. steps: of the chain of fixed size.
    """
    head = stage.fixed(HEAD, TreeShape(steps, 1, steps + 1))
    return [
        Contestant(PLAIN, stage.plain(), True),
        Contestant(HEAD, head, True),
        Contestant(FORCED, stage.forced(FORCED, head), True),
        Contestant(AUTO, stage.forced(AUTO, stage.auto()), True),
        Contestant(HEAD + FREE, head, False),
        Contestant(AUTO + FREE, stage.forced(AUTO + FREE, stage.auto()), False),
    ]


def prepare_tasks(llm: LLM, tasks: Sequence[Task]) -> tuple[list[PreparedTask], list[float]]:
    """Tokenize the tasks and compile their schemas.

    Returns the tasks, and the compile time of each schema in seconds, including the first mask.
    """
    prepared: list[PreparedTask] = []
    grammars = []
    seconds: list[float] = []
    for task in tasks:
        prompt = llm.encode_chat(task.messages, enable_thinking=False)
        wanted = Wanted(answer=Json(prepare(task.schema, param="schema")))
        output = llm.dialect.output(wanted, prompt)
        assert output is not None
        prepared.append(PreparedTask(task, prompt, wanted, output))
        num_compiled = llm.engine.stats().grammar.num_compiled
        before = time.perf_counter()
        grammars.append(llm.engine.compile(output).result())
        now = time.perf_counter()
        if llm.engine.stats().grammar.num_compiled > num_compiled:
            seconds.append(now - before)
    deadline = time.monotonic() + CANONICAL_SECONDS
    while not all(grammar.canonical for grammar in grammars) and time.monotonic() < deadline:
        time.sleep(0.01)
    return prepared, seconds


def measure(
    stage: Stage,
    lineup: Sequence[Contestant],
    prepared: Sequence[PreparedTask],
    *,
    max_tokens: int,
    repeats: int,
    show_status: ShowStatus,
) -> dict[str, list[Round]]:
    """Run `repeats` rounds of every contestant, after a warm-up round.

    Return the rounds by contestant.
    """
    rounds: dict[str, list[Round]] = {each.name: [] for each in lineup}
    for turn in range(repeats + 1):
        show_status(f"round {turn}" if turn else "warm-up")
        current = {each.name: Round() for each in lineup}
        for number, one in enumerate(prepared):
            first = (turn + number) % len(lineup)
            for each in [*lineup[first:], *lineup[:first]]:
                _answer(stage, each, one, max_tokens, current[each.name])
        if turn:
            for name, done in current.items():
                rounds[name].append(done)
    return rounds


def _answer(
    stage: Stage, contestant: Contestant, prepared: PreparedTask, max_tokens: int, done: Round
) -> None:
    """Generate an answer, timed from the request to its last token."""
    stage.use(contestant.lineup)
    engine, llm = stage.llm.engine, stage.llm
    request = Request(
        id="structured",
        prompt_token_ids=prepared.prompt,
        params=llm.default_params(temperature=0.0, seed=0, max_tokens=max_tokens),
        output=prepared.output if contestant.has_schema else None,
        with_marks=True,
    )
    deltas: list[Delta] = []
    masks = engine.metrics.grammar.mask_seconds
    started = before = time.perf_counter()
    engine.add(request)
    while not deltas or deltas[-1].finish_reason is None:
        num_landed = len(deltas)
        deltas += engine.step()
        if not num_landed and deltas:
            before = time.perf_counter()
    now = time.perf_counter()
    usage = deltas[-1].usage
    if deltas[-1].finish_reason == "error" or usage is None:
        raise RuntimeError(f"{prepared.task.title}: a measured request failed: {deltas[-1].error}")
    answer = GenerationOutput(prepared.prompt, [Choice(0)])
    segmenter = llm.dialect.segmenter(prepared.wanted, prepared.prompt)
    for delta in deltas:
        events = segmenter.push(delta.text, delta.marks)
        answer.absorb(delta, events + (segmenter.finish() if delta.finish_reason else []))
    done.choices += answer.choices
    done.step_seconds += now - before
    done.mask_seconds += engine.metrics.grammar.mask_seconds - masks
    run = done.run
    run.seconds += now - started
    run.token_ids.append(answer.token_ids)
    run.drafts.append(usage.drafts)
    run.num_steps += usage.num_steps
    run.num_accepted += usage.num_accepted_tokens
    run.num_drafted += usage.num_draft_tokens


def report(
    lineup: Sequence[Contestant],
    prepared: Sequence[PreparedTask],
    rounds: Mapping[str, Sequence[Round]],
    compile_seconds: Sequence[float],
) -> dict[str, Any]:
    """Return the results of a group: every contestant, and the ratios between them.

    compile_seconds: [] if an earlier group had the same schemas.
    """
    runs = {name: [each.run for each in own] for name, own in rounds.items()}
    counts = {name: _counts(own) for name, own in rounds.items()}
    plain = runs[PLAIN]
    return {
        "num_tasks": len(prepared),
        "num_schemas": len({one.output.key for one in prepared}),
        "compile_ms": {
            "median": round(1000 * median(compile_seconds), 2),
            "max": round(1000 * max(compile_seconds), 2),
        }
        if compile_seconds
        else None,
        "contestants": {
            each.name: {
                "has_schema": each.has_schema,
                **_summary(rounds[each.name]),
                **(_validated(prepared, rounds[each.name]) if each.has_schema else {}),
                **({"same_tokens": same_tokens(runs[each.name], plain)} if each.has_schema else {}),
            }
            for each in lineup
        },
        "tokens_per_step_ratio": gain(counts[FORCED], counts[HEAD]),
        "speed_ratios": {
            f"{one} / {other}": ratio(runs[one], runs[other]) for one, other in SPEED_RATIOS
        },
    }


def _counts(rounds: Sequence[Round]) -> list[tuple[int, int]]:
    """Return (tokens, steps) of each task, summed over all rounds."""
    by_task = zip(*(done.choices for done in rounds), strict=True)
    usages = [[choice.usage for choice in choices] for choices in by_task]
    return [
        (sum(usage.num_output_tokens for usage in own), sum(usage.num_steps for usage in own))
        for own in usages
    ]


def _summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Summarise the rounds of a contestant.

    Counts are the same in every round, unless the drafter decides by time, or a busy machine makes
    masks or forced spans late.
    """
    runs = [each.run for each in rounds]
    num_tokens, num_steps = sum(run.num_tokens for run in runs), sum(run.num_steps for run in runs)
    later = [max(1, each.run.num_steps - len(each.choices)) for each in rounds]
    drafts = [counts for run in runs for counts in run.drafts]
    by_source: dict[str, list[int]] = {}
    for each in drafts:
        for source, count in each.drafted_by_source.items():
            entry = by_source.setdefault(source, [0, 0])
            entry[0] += count
            entry[1] += each.accepted_by_source.get(source, 0)
    return {
        "tokens_per_step": round(num_tokens / num_steps, 3),
        "tokens_per_second": round(median(run.speed for run in runs), 1),
        "step_ms": round(
            1000 * median(r.step_seconds / n for r, n in zip(rounds, later, strict=True)), 3
        ),
        "mask_ms_per_step": round(
            1000 * median(each.mask_seconds / each.run.num_steps for each in rounds), 3
        ),
        "num_tokens": runs[0].num_tokens,
        "num_steps": runs[0].num_steps,
        "finished": _share([c.finish_reason == "stop" for c in rounds[0].choices]),
        "nodes_per_step_by_source": {
            source: {
                "drafted": round(drafted / num_steps, 3),
                "accepted": round(accepted / num_steps, 3),
            }
            for source, (drafted, accepted) in by_source.items()
        },
        **acceptance(drafts),
    }


def _validated(prepared: Sequence[PreparedTask], rounds: Sequence[Round]) -> dict[str, Any]:
    """Return `valid`, the fraction of answers that jsonschema accepts, and `broken`, the titles of
    finished but invalid answers.
    """
    accepts = [
        accepted(one.task.schema, choice.content)
        for one, choice in zip(prepared, rounds[0].choices, strict=True)
    ]
    return {
        "valid": _share(accepts),
        "broken": [
            one.task.title
            for one, choice, is_valid in zip(prepared, rounds[0].choices, accepts, strict=True)
            if choice.finish_reason == "stop" and not is_valid
        ],
    }


def accepted(schema: dict[str, Any], text: str) -> bool:
    """Whether the text is JSON that jsonschema accepts."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return require_validator()(schema).is_valid(value)


def require_validator() -> Any:
    """Return the validator class of jsonschema. ValueError: it is not installed."""
    try:
        from jsonschema import Draft202012Validator
    except ImportError as error:
        raise ValueError(
            "answers are judged by jsonschema, which is not installed; run pip install jsonschema"
        ) from error
    return Draft202012Validator


def _share(each: Sequence[bool]) -> float:
    return round(sum(each) / len(each), 4)
