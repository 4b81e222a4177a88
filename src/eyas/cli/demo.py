"""`eyas demo`: real prompts, plain and drafted, and the proof that the tokens are the same."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from eyas.cli import options
from eyas.cli.errors import CheckFailed
from eyas.cli.options import DEVICE, MODEL, engine_config

if TYPE_CHECKING:
    from eyas.bench.prompts import Task
    from eyas.llm import LLM
    from eyas.outputs import Choice

SEED = 7


def demo(
    model: options.Model = MODEL.path,
    draft_tokens: options.DraftTokens = 8,
    dtype: options.Dtype = options.DtypeChoice.auto,
    device: options.Device = DEVICE.device,
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Answer a few prompts plain and drafted; status 1 if any token differs."""
    from eyas.bench.prompts import TASKS
    from eyas.cli.loading import open_model

    shared = {"model": model, "dtype": dtype, "device": device, "threads": threads}
    plain_config = engine_config(**shared, prefix_cache=False)
    drafted_config = engine_config(
        **shared, prefix_cache=False, drafter="ngram", draft_tokens=draft_tokens
    )
    with (
        open_model(plain_config, quiet=as_json) as plain,
        open_model(drafted_config, quiet=as_json) as drafted,
    ):
        if not as_json:
            _introduce(plain)
        for llm in (plain, drafted):
            answer(llm, TASKS[0])
        rows = []
        for task in TASKS:
            row = compare(plain, drafted, task)
            rows.append(row)
            if not as_json:
                _show_answer(task, row)
        result = summary(plain, rows)
    print(json.dumps(result, ensure_ascii=False)) if as_json else _show_summary(result)
    if not result["identical"]:
        different = ", ".join(row["task"] for row in rows if not row["identical"])
        raise CheckFailed(f"drafted tokens differ from plain ones: {different}")


def answer(llm: LLM, task: Task) -> tuple[Choice, float]:
    """The answer to a task and the seconds it took."""
    params = llm.default_params(
        temperature=task.temperature,
        seed=SEED,
        max_tokens=task.max_tokens,
        skip_special_tokens=False,
    )
    started = time.perf_counter()
    output = llm.chat(task.messages, params, tools=task.tools or None, enable_thinking=task.thinks)[
        0
    ]
    return output.choices[0], time.perf_counter() - started


def compare(plain: LLM, drafted: LLM, task: Task) -> dict[str, Any]:
    """One task answered both ways."""
    from eyas.bench.answers import without_end

    first, plain_seconds = answer(plain, task)
    second, drafted_seconds = answer(drafted, task)
    usage = second.usage
    return {
        "task": task.title,
        "prompt": task.messages[-1]["content"],
        "temperature": task.temperature,
        "answer": without_end(first.text).strip(),
        "error": first.error or second.error,
        "num_tokens": first.usage.num_output_tokens,
        "plain_seconds": plain_seconds,
        "drafted_seconds": drafted_seconds,
        "plain_steps": first.usage.num_steps,
        "drafted_steps": usage.num_steps,
        "accepted_per_step": usage.num_accepted_tokens / max(1, usage.num_steps),
        "identical": first.token_ids == second.token_ids and first.error is None,
    }


def summary(llm: LLM, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows and their totals."""
    num_tokens = sum(row["num_tokens"] for row in rows)
    plain_steps, drafted_steps = (sum(row[k] for row in rows) for k in _STEPS)
    return {
        "model": llm.info.model,
        "parameters": llm.info.num_parameters,
        "dtype": llm.info.dtype,
        "exact": llm.info.exact,
        "drafter": "ngram",
        "tasks": rows,
        "num_tokens": num_tokens,
        "plain_tokens_per_second": num_tokens / sum(row["plain_seconds"] for row in rows),
        "drafted_tokens_per_second": num_tokens / sum(row["drafted_seconds"] for row in rows),
        "plain_steps": plain_steps,
        "drafted_steps": drafted_steps,
        "identical": all(row["identical"] for row in rows),
    }


_STEPS = ("plain_steps", "drafted_steps")


def _introduce(llm: LLM) -> None:
    from rich.console import Console

    info = llm.info
    Console().print(
        f"[bold]{info.model}[/bold]: {info.architecture}, {info.num_parameters / 1e6:.1f} M "
        f"parameters, {info.dtype} on {info.device}; exact: {'yes' if info.exact else 'no'}"
        f" ({info.exact_reason})",
        highlight=False,
    )


def _show_answer(task: Task, row: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    text = Text()
    text.append(row["prompt"], style="dim")
    text.append("\n\n")
    text.append(row["answer"] or "(nothing)", style="bold")
    temperature = f", temperature {task.temperature:g}" if task.temperature else ""
    verdict = "same tokens" if row["identical"] else "TOKENS DIFFER"
    footer = (
        f"{row['num_tokens']} tokens in {row['plain_steps']} steps plain, "
        f"{row['drafted_steps']} drafted: {verdict}"
    )
    Console().print(
        Panel(text, title=f"{task.title}{temperature}", subtitle=footer, title_align="left")
    )


def _show_summary(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "tokens/s", "steps", "tokens a step", title="all prompts")
    for name, label in (("plain", "plain"), ("drafted", f"drafted ({result['drafter']})")):
        steps = result[f"{name}_steps"]
        table.add_row(
            label,
            f"{result[f'{name}_tokens_per_second']:.0f}",
            str(steps),
            f"{result['num_tokens'] / max(1, steps):.2f}",
        )
    console = Console()
    console.print(table)
    if result["identical"]:
        console.print(
            f"[green]All {result['num_tokens']} tokens are identical, plain and drafted.[/green]",
            highlight=False,
        )
