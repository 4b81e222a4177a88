"""`eyas bench tune`: find the fastest draft tree of a model for each batch size.

Promises: exit status 1 where a shape changed a token. Does not know: how anything is measured.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyas.cli import options
from eyas.cli.errors import CheckFailed
from eyas.cli.options import engine_config
from eyas.cli.results import Output, report_result, run_facts
from eyas.config import DEFAULTS
from eyas_bench.cli.measuring import TASKS_OF_A_ROUND, Workload, place, read_inputs, round_name

if TYPE_CHECKING:
    from eyas.draft import TreeShape
    from eyas.verify.lineup import Stage

_DRAFTERS = ("auto", "head", "model", "ngram")


def tune(
    *,
    model: options.Model = DEFAULTS.model.path,
    drafter: Annotated[
        str,
        typer.Option(
            "--drafter",
            "-d",
            help="Drafter: head, model, ngram (only chains), or auto (the model's own head, or "
            "the kind of --draft-model).",
        ),
    ] = "auto",
    draft_model: options.DraftModel = None,
    steps: Annotated[
        str, typer.Option(help="Numbers of levels to try, separated by commas.")
    ] = "1,3,5",
    topk: Annotated[
        str,
        typer.Option(
            help="Numbers of children per node to try, separated by commas; 1 is a chain."
        ),
    ] = "1,2,4",
    nodes: Annotated[
        str,
        typer.Option(
            help="Numbers of nodes to try, including the root, separated by commas.",
        ),
    ] = "4,8,16",
    batch: Annotated[
        str, typer.Option("--batch", "-b", help="Batch sizes, separated by commas.")
    ] = "1,2,4,8",
    workload: Annotated[
        Workload,
        typer.Option(
            help="Prompts: tasks (held-out tasks of the built-in model's families; answers end at "
            "end-of-text), chat (short tasks), copy (the answer is part of the prompt), or random "
            "(random tokens)."
        ),
    ] = "chat",
    prompts_file: Annotated[
        Path | None,
        typer.Option(
            help='JSON lines file of prompts: {"prompt": text or token ids}, used without a chat '
            'template, or {"messages": [...]}.',
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=2, help="Maximum length of an answer in tokens.")
    ] = 128,
    temperature: Annotated[
        float, typer.Option("--temperature", "-t", help="Sampling temperature; 0 is greedy.")
    ] = 0.0,
    repeats: Annotated[
        int,
        typer.Option(min=1, help="Number of measured rounds, after a warm-up round."),
    ] = 3,
    dtype: options.Dtype = "auto",
    max_model_len: options.MaxModelLen = None,
    device: options.Device = DEFAULTS.device.device,
    threads: options.Threads = None,
    offline: options.Offline = False,
    output: Output = None,
    plot: Annotated[Path | None, typer.Option(help="PNG file to write heat maps to.")] = None,
    as_json: options.Json = False,
) -> None:
    """Compare draft trees of all given sizes with plain decoding and auto; contestants take turns."""
    from eyas.cli.loading import open_model
    from eyas.cli.prompts_file import read_entries
    from eyas.core import SamplingParams
    from eyas.verify.inputs import check_lengths
    from eyas.verify.lineup import Stage, about
    from eyas.verify.shapes import batch_tokens
    from eyas_bench import plots
    from eyas_bench.tune import distinct_shapes, largest, numbers, sweep

    if drafter not in _DRAFTERS:
        raise ValueError(f"--drafter: {drafter!r} cannot be tuned; use {', '.join(_DRAFTERS)}")
    SamplingParams(temperature=temperature, max_tokens=max_tokens)
    sizes = numbers(batch, "--batch")
    shapes = distinct_shapes(
        numbers(steps, "--steps"),
        numbers(topk, "--topk"),
        numbers(nodes, "--nodes"),
        only_chains=drafter == "ngram",
    )
    entries = None if prompts_file is None else read_entries(prompts_file)
    if plot is not None:
        plots.require_matplotlib()
    largest_shape = largest(shapes)
    config = engine_config(
        model=model,
        dtype=dtype,
        max_model_len=max_model_len,
        device=device,
        threads=threads,
        offline=offline,
        drafter=_drafter(drafter, draft_model, model, offline),
        draft_model=draft_model,
        draft_steps=largest_shape.steps,
        draft_topk=largest_shape.topk,
        draft_nodes=largest_shape.nodes,
        max_num_seqs=max(sizes),
        max_batch_tokens=batch_tokens(sizes, [largest_shape]),
        prefix_cache=False,
    )
    with open_model(config, quiet=as_json) as llm:
        least = TASKS_OF_A_ROUND if workload == "tasks" else 1
        inputs = read_inputs(llm, workload, entries, max(least, *sizes))
        check_lengths(inputs, llm, max_tokens)
        stage = Stage(llm)
        num_runs = len(sizes) * (repeats + 1) * (len(shapes) + 2)
        with _progress(as_json, num_runs) as on_run:
            results = sweep(
                stage,
                shapes,
                inputs.token_ids,
                sizes,
                max_tokens=max_tokens,
                temperature=temperature,
                repeats=repeats,
                stops_at_eos=workload == "tasks" and entries is None,
                on_run=on_run,
            )
        result = {
            **run_facts(),
            "model": about(llm),
            "drafting": _about_drafting(stage, draft_model, shapes),
            "settings": {
                "workload": "file" if prompts_file else workload,
                "prompt_tokens": [len(prompt) for prompt in inputs.token_ids],
                "max_tokens": max_tokens,
                "temperature": temperature,
                "repeats": repeats,
            },
            "results": results,
            "advice": _advice(results, model, drafter, draft_model),
        }
    if plot is not None:
        plots.draw_sweep(result, plot)
    report_result(result, output, as_json, _show)
    changed = {name for entry in results for name in entry["changed_tokens"]}
    if changed:
        raise CheckFailed(
            f"tokens differ from plain decoding's with {', '.join(sorted(changed))}; please report "
            "it with this command"
        )


def _drafter(drafter: str, draft_model: str | None, model: str, offline: bool) -> str:
    """Return the drafter that "auto" selects, before anything is loaded. ValueError: there is none."""
    if drafter != "auto":
        return drafter
    from eyas.engine.startup.drafting import decide_drafting
    from eyas.models import locate_model, read_spec

    config = engine_config(model=model, offline=offline, draft_model=draft_model)
    directory = locate_model(model, None, offline)
    (name, *_) = decide_drafting(config, directory, read_spec(directory)).names
    if name == "forced":  # drafts only text that a grammar determines
        raise ValueError(
            f"--draft-model: {draft_model or model} has no draft head; give a head or a draft "
            "model, or use --drafter ngram"
        )
    return name


def _advice(
    results: list[dict[str, Any]], model: str, drafter: str, draft_model: str | None
) -> dict[str, Any]:
    """Return the fastest contestant and the options of `eyas serve` for it."""
    from eyas.verify.lineup import PLAIN
    from eyas_bench.tune import advised, options_of

    name, of_plain = advised(results)
    arguments = [] if model == DEFAULTS.model.path else ["--model", model]
    if name != PLAIN:
        arguments += [] if draft_model is None else ["--draft-model", draft_model]
        arguments += [] if drafter == "auto" else ["--drafter", drafter]
    return {
        "contestant": name,
        "of_plain": of_plain,
        "options": shlex.join([*arguments, *options_of(name, results[0])]),
    }


def _about_drafting(
    stage: Stage, draft_model: str | None, shapes: list[TreeShape]
) -> dict[str, Any]:
    return {
        "drafter": stage.kind,
        "model": None if draft_model is None else Path(draft_model).name,
        "shapes": [[shape.steps, shape.topk, shape.nodes] for shape in shapes],
    }


@contextmanager
def _progress(quiet: bool, num_runs: int) -> Iterator[Callable[[int, str, int], None]]:
    """Show a progress bar on standard error, and yield the function that advances it."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        TimeRemainingColumn(),
    )
    is_hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=is_hidden) as progress:
        task = progress.add_task("measuring", total=num_runs)

        def on_run(size: int, name: str, turn: int) -> None:
            what = f"batch {size}, {round_name(turn)}: {name}"
            progress.update(task, advance=1, description=what)

        yield on_run


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    model, machine = result["model"], result["machine"]
    table = Table(
        *("batch", "", "steps", "topk", "nodes", "tokens/s", "of plain", "accepted\na step"),
        title=f"{model['name']}, {model['dtype']} on {place(result)}, {machine['threads']} threads",
    )
    for entry in result["results"]:
        named = {"plain": "plain", "best shape": entry["best_shape"], "auto": "auto"}
        for label, name in named.items():
            one = entry["contestants"][name]
            sizes = [str(size) for size in one["shape"]] if one["shape"] else ["", "", ""]
            style = "bold" if name == entry["best"] else None
            table.add_row(
                str(entry["batch"]),
                label,
                *sizes,
                f"{one['tokens_per_second']:.1f}",
                f"{one['speed_ratio']:.2f}",
                f"{one['accepted_per_step']:.2f}",
                style=style,
            )
    Console().print(table)
    advice = result["advice"]
    print(
        f"Over these batch sizes {advice['contestant']} is {advice['of_plain']:.2f} times as fast as "
        "plain decoding. Options of eyas serve and eyas generate for it:"
    )
    print(advice["options"])
