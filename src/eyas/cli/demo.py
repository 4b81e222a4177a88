"""`eyas demo`: answer prompts with and without drafts, and compare the tokens.

Promises: every way of decoding answers every prompt with the same parameters and seed, one prompt at
a time; accepted draft tokens are coloured. The last prompts constrain the answer: a pattern, a schema
after reasoning, a tool call. Does not know: how drafting works.

With --json: `tasks` (task, prompt, form, temperature, answer, reasoning, content, tool_calls,
num_tokens, identical, and by contestant seconds, steps, accepted_per_step) and over all of them
num_tokens, identical, and by contestant tokens_per_second, speedup (over plain), steps,
accepted_per_step, best_task and best_speedup.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from eyas.cli import options
from eyas.cli.errors import CheckFailed
from eyas.cli.options import DraftOptions, engine_config, flattened
from eyas.config import DEFAULTS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.panel import Panel

    from eyas.core import Usage
    from eyas.dialect import Wanted
    from eyas.llm import LLM
    from eyas.outputs import Choice
    from eyas.verify.prompts import Task

SEED = 7
NUM_SLOTS, MAX_MODEL_LEN = 2048, 1024
"""Enough for one prompt at a time, so that the cache is allocated quickly."""
PLAIN = "plain"
PURPOSE = """\
This demo answers the same prompts with and without drafts, and compares every token.
With drafts, one step of the model yields several tokens. Large models answer faster for it; a step of
this one is so short that little time is saved. Text, JSON and tool calls must not change, at any
temperature.
"""


@dataclass(frozen=True, kw_only=True)
class DemoDrafting(DraftOptions):
    """The default drafting of the demo: the model's own head, with chains, which a CPU records."""

    draft_steps: options.DraftSteps = "4"
    draft_topk: options.DraftTopk = 1
    draft_nodes: options.DraftNodes = "5"


PROMPT_LOOKUP = DemoDrafting(drafter="ngram", draft_steps="8", draft_topk=1, draft_nodes="9")
"""Prompt lookup, which is compared as well with --drafter auto."""


FIELDS = {
    "type": "object",
    "properties": {
        "family_name": {"type": "string", "maxLength": 24},
        "years_of_age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["family_name", "years_of_age"],
    "additionalProperties": False,
}
"""Field names that differ from those in the prompt, so that the schema has an effect."""


@dataclass(frozen=True, slots=True)
class DemoTask:
    """A task and the constraint of its answer. form: the constraint as text; None without one."""

    task: Task
    wanted: Wanted
    form: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer by one way of decoding.

    pieces: the text in parts, each with whether its tokens were accepted draft tokens. choice: the
    answer, split into reasoning, content and tool calls. seconds: time of generation.
    """

    pieces: list[tuple[str, bool]]
    choice: Choice
    seconds: float

    @property
    def token_ids(self) -> list[int]:
        return self.choice.token_ids

    @property
    def usage(self) -> Usage:
        return self.choice.usage


@flattened
def demo(
    *,
    model: options.Model = DEFAULTS.model.path,
    drafting: DemoDrafting,
    dtype: options.Dtype = "auto",
    device: options.Device = DEFAULTS.device.device,
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Answer a few prompts with and without drafts, and exit with status 1 if a token differs."""
    from rich.console import Console

    from eyas.core import RequestError

    console = Console(quiet=as_json)
    shared = {"model": model, "dtype": dtype, "device": device, "threads": threads}
    if not as_json:
        print(PURPOSE)
    with ExitStack() as stack:
        llms = open_contestants(stack, shared, drafting, quiet=as_json)
        _introduce(console, llms)
        tasks = free_tasks()
        for llm in llms.values():
            answer(llm, tasks[0])
        for constrained in constrained_tasks():
            try:
                for llm in llms.values():
                    answer(llm, constrained)  # compiles the grammar before it is measured
            except RequestError as error:
                skipped = f"{constrained.task.title} is skipped: {error}"
                console.print(skipped, markup=False, highlight=False)
            else:
                tasks.append(constrained)
        rows = []
        for task in tasks:
            answers = {name: answer(llm, task) for name, llm in llms.items()}
            rows.append(compare(task, answers))
            console.print(answer_panel(rows[-1], answers))
        result = summary(llms[PLAIN], rows)
    print(json.dumps(result, ensure_ascii=False)) if as_json else _show_summary(console, result)
    if not result["identical"]:
        different = ", ".join(row["task"] for row in rows if not row["identical"])
        raise CheckFailed(f"drafted tokens differ from plain ones: {different}")


def open_contestants(
    stack: ExitStack, shared: dict[str, Any], drafting: DraftOptions, *, quiet: bool
) -> dict[str, LLM]:
    """Load the model once for each way of decoding, and return them by name.

    These are plain decoding, the given drafting, and prompt lookup where the drafter is auto.
    """
    from eyas.cli.loading import open_model

    def load(options: DraftOptions) -> LLM:
        config = engine_config(
            **shared,
            **vars(options),
            prefix_cache=False,
            num_slots=NUM_SLOTS,
            max_model_len=MAX_MODEL_LEN,
        )
        return stack.enter_context(open_model(config, quiet=quiet))

    drafted = load(drafting)
    if drafted.info.drafter == "root":  # --drafter auto, and a model without a head
        llms = {PLAIN: drafted}
    else:
        llms = {PLAIN: load(DemoDrafting(drafter="root")), drafted.info.drafter: drafted}
    if drafting.drafter == "auto":
        llms[PROMPT_LOOKUP.drafter] = load(PROMPT_LOOKUP)
    return llms


def free_tasks() -> list[DemoTask]:
    """Return the tasks without a constraint."""
    from eyas.dialect import Wanted
    from eyas.verify.prompts import TASKS

    return [DemoTask(task, Wanted()) for task in TASKS]


def constrained_tasks() -> list[DemoTask]:
    """Return the tasks with a constraint that changes the answer."""
    from eyas.dialect import Wanted, tool_specs
    from eyas.grammar import Json, Regex
    from eyas.schemas import prepare
    from eyas.verify.prompts import TASKS, Task

    def user_task(title: str, text: str, **settings: Any) -> Task:
        return Task(title, ({"role": "user", "content": text},), **settings)

    with_tools = next(task for task in TASKS if task.tools)
    return [
        DemoTask(
            user_task("pattern", "What is the capital of France?", temperature=1.0),
            Wanted(answer=Regex("(Paris|Amsterdam)")),
            "(Paris|Amsterdam)",
        ),
        DemoTask(
            user_task(
                "schema",
                "Extract name and age as JSON: Maria Silva is 34 years old.",
                thinks=True,
            ),
            Wanted(answer=Json(prepare(FIELDS, param="schema"))),
            "a schema with the fields family_name and years_of_age",
        ),
        DemoTask(
            replace(with_tools, title="required call", thinks=True),
            Wanted(tools=tool_specs(with_tools.tools), choice="required"),
            "a call of get_weather",
        ),
    ]


def answer(llm: LLM, demo_task: DemoTask) -> Answer:
    """Generate the answer to a task. RequestError: the constraint is not supported for this model."""
    from eyas.core import Request
    from eyas.outputs import Choice, GenerationOutput

    task, wanted = demo_task.task, demo_task.wanted
    params = llm.default_params(
        temperature=task.temperature,
        seed=SEED,
        max_tokens=task.max_tokens,
        skip_special_tokens=False,
    )
    prompt = llm.encode_chat(task.messages, tools=task.tools or None, enable_thinking=task.thinks)
    output = llm.dialect.output(wanted, prompt)
    request = Request(
        id="demo", prompt_token_ids=prompt, params=params, output=output, with_marks=True
    )
    llm.shared_engine.open(request)
    started = time.perf_counter()
    deltas = list(llm.shared_engine.deltas(request))
    seconds = time.perf_counter() - started
    llm.shared_engine.end(request)
    segmenter = llm.dialect.segmenter(wanted, prompt)
    collected = GenerationOutput(prompt, [Choice(0)])
    pieces: list[tuple[str, bool]] = []
    for delta in deltas:
        events = segmenter.push(delta.text, delta.marks)
        if delta.finish_reason is not None:
            events += segmenter.finish()
        collected.absorb(delta, events)
        drafted = llm.tokenizer.decode(delta.token_ids[:-1], skip_special=False)
        if not delta.text.startswith(drafted):  # the tokens end within a character
            drafted = ""
        pieces += [(drafted, True), (delta.text[len(drafted) :], False)]
    return Answer(pieces, collected.choices[0], seconds)


def compare(demo_task: DemoTask, answers: dict[str, Answer]) -> dict[str, Any]:
    """Return the result of a task. answers: by way of decoding."""
    from eyas.builtin import without_end

    task, plain = demo_task.task, answers[PLAIN]
    error = next((given.choice.error for given in answers.values() if given.choice.error), None)
    return {
        "task": task.title,
        "prompt": task.messages[-1]["content"],
        "form": demo_task.form,
        "temperature": task.temperature,
        "answer": without_end(plain.choice.text).strip(),
        "reasoning": plain.choice.reasoning,
        "content": without_end(plain.choice.content).strip(),
        "tool_calls": [
            {"name": call.name, "arguments": call.arguments} for call in plain.choice.tool_calls
        ],
        "error": error,
        "num_tokens": len(plain.token_ids),
        "contestants": {
            name: {
                "seconds": given.seconds,
                "steps": given.usage.num_steps,
                "accepted_per_step": given.usage.num_accepted_tokens
                / max(1, given.usage.num_steps),
            }
            for name, given in answers.items()
        },
        "identical": not error
        and all(given.token_ids == plain.token_ids for given in answers.values()),
    }


def summary(llm: LLM, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the result of the demo: the results of all tasks and their totals."""
    return {
        "model": llm.info.model,
        "parameters": llm.info.num_parameters,
        "dtype": llm.info.dtype,
        "exact": llm.info.exact,
        "tasks": rows,
        "num_tokens": sum(row["num_tokens"] for row in rows),
        "contestants": {name: _totals(name, rows) for name in rows[0]["contestants"]},
        "identical": all(row["identical"] for row in rows),
    }


def _totals(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    own = [row["contestants"][name] for row in rows]
    plain = [row["contestants"][PLAIN] for row in rows]
    seconds = sum(entry["seconds"] for entry in own)
    plain_seconds = sum(entry["seconds"] for entry in plain)
    steps = sum(entry["steps"] for entry in own)
    accepted = sum(entry["accepted_per_step"] * entry["steps"] for entry in own)
    speedups = {
        row["task"]: of_plain["seconds"] / entry["seconds"]
        for row, entry, of_plain in zip(rows, own, plain, strict=True)
    }
    best = max(speedups, key=lambda task: speedups[task])
    return {
        "tokens_per_second": sum(row["num_tokens"] for row in rows) / seconds,
        "speedup": plain_seconds / seconds,
        "steps": steps,
        "accepted_per_step": accepted / max(1, steps),
        "best_task": best,
        "best_speedup": speedups[best],
    }


def _introduce(console: Console, llms: dict[str, LLM]) -> None:
    info = llms[PLAIN].info
    console.print(
        f"[bold]{info.model}[/bold]: {info.architecture}, {info.num_parameters / 1e6:.1f} M "
        f"parameters, {info.dtype} on {info.device}; exact: {'yes' if info.exact else 'no'}"
        f" ({info.exact_reason})",
        highlight=False,
    )
    console.print(
        "Each prompt is answered by "
        + ", ".join(f"[bold]{name}[/bold]" for name in llms)
        + ". [green]Green[/green] tokens are accepted draft tokens.",
        highlight=False,
    )


def answer_panel(row: dict[str, Any], answers: dict[str, Answer]) -> Panel:
    """Return a panel with a task and its answer. row: from `compare`."""
    from rich.panel import Panel
    from rich.text import Text

    text = Text()
    text.append(row["prompt"], style="dim")
    if row["form"]:
        text.append(f"\nConstrained to {row['form']}.", style="cyan")
    text.append("\n\n")
    fewest_steps = min(answers.values(), key=lambda given: given.usage.num_steps)
    text.append_text(coloured(fewest_steps.pieces, row["answer"]))
    for name, part in _parts(row):
        text.append(f"\n{name}: ", style="cyan")
        text.append(part, style="bold")
    temperature = f", temperature {row['temperature']:g}" if row["temperature"] else ""
    verdict = "same tokens" if row["identical"] else row["error"] or "TOKENS DIFFER"
    steps = ", ".join(f"{entry['steps']} {name}" for name, entry in row["contestants"].items())
    footer = f"{row['num_tokens']} tokens; steps: {steps}; {verdict}"
    return Panel(text, title=f"{row['task']}{temperature}", subtitle=footer, title_align="left")


def _parts(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text) of the parts of a constrained answer; [] where it has only content."""
    calls = [f"{call['name']}({call['arguments']})" for call in row["tool_calls"]]
    if not row["form"] or not (row["reasoning"] or calls):
        return []
    parts = [("reasoning", row["reasoning"]), ("content", row["content"])]
    return [(name, part) for name, part in (*parts, *(("call", call) for call in calls)) if part]


def coloured(pieces: list[tuple[str, bool]], shown: str) -> Any:
    """Return the part `shown` of an answer, with accepted draft tokens in green."""
    from rich.text import Text

    text = Text()
    for part, is_drafted in pieces:
        text.append(part, style="green" if is_drafted else "bold")
    start = max(0, text.plain.find(shown))
    return text[start : start + len(shown)] if shown else Text("(nothing)", style="bold")


def _show_summary(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title="all prompts")
    for column in ("", "tokens/s", "speed", "steps", "accepted a step", "best prompt"):
        table.add_column(column, justify="right" if column else "left")
    for name, entry in result["contestants"].items():
        best = f"{entry['best_task']} {entry['best_speedup']:.1f}x"
        table.add_row(
            name,
            f"{entry['tokens_per_second']:.0f}",
            f"{entry['speedup']:.2f}x",
            str(entry["steps"]),
            f"{entry['accepted_per_step']:.2f}",
            best if name != PLAIN else "",
        )
    console.print(table)
    if result["identical"]:
        num_contestants = len(result["contestants"])
        console.print(
            f"[green]All {result['num_tokens']} tokens are identical with {num_contestants} "
            "ways of decoding.[/green]",
            highlight=False,
        )
