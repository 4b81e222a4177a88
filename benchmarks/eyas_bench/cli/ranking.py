"""`eyas bench ranking`: compare rankings of draft candidates with and without the sampling noise.

Promises: exit status 1 where a ranking changed a token. Does not know: how anything is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyas.cli import options
from eyas.cli.errors import CheckFailed
from eyas.cli.options import engine_config
from eyas.cli.results import Output, report_result, run_facts, status
from eyas.config import DEFAULTS
from eyas_bench.cli.measuring import prefixed

if TYPE_CHECKING:
    from eyas.draft import TreeShape


def ranking(
    *,
    model: options.Model = DEFAULTS.model.path,
    draft_model: Annotated[
        str | None,
        typer.Option(help="Draft head. Default: the model's own."),
    ] = None,
    temperatures: Annotated[
        str,
        typer.Option(help="Sampling temperatures above 0, separated by commas."),
    ] = "0.6,1",
    top_p: Annotated[str, typer.Option(help="Values of top-p, separated by commas.")] = "1,0.95",
    shapes: Annotated[
        str,
        typer.Option(help="Tree sizes as steps/topk/nodes, separated by commas."),
    ] = "5/1/6,5/4/16",
    families: Annotated[
        str,
        typer.Option(
            help="Groups of task families, separated by semicolons; families of a group are separated "
            "by commas. all is every family.",
        ),
    ] = "all;pick,talk",
    num_prompts: Annotated[int, typer.Option(min=2, help="Number of prompts in a group.")] = 39,
    num_seeds: Annotated[
        int,
        typer.Option(min=1, help="Number of answers per prompt, each with a seed."),
    ] = 2,
    max_tokens: Annotated[
        int, typer.Option(min=2, help="Maximum length of an answer in tokens.")
    ] = 256,
    dtype: options.Dtype = "auto",
    device: options.Device = DEFAULTS.device.device,
    threads: options.Threads = None,
    offline: options.Offline = False,
    output: Output = None,
    as_json: options.Json = False,
) -> None:
    """Compare accepted tokens of rankings with and without the noise of the target."""
    from builtin_model.families import FAMILIES
    from eyas.cli.loading import open_model
    from eyas.verify.inputs import check_lengths, from_tasks
    from eyas.verify.lineup import Stage, about
    from eyas.verify.shapes import batch_tokens
    from eyas_bench import ranking as bench
    from eyas_bench.prompts import heldout_tasks
    from eyas_bench.tune import largest

    tree_shapes = _shapes(shapes)
    settings = [
        bench.Setting(temperature, p)
        for temperature in _numbers(temperatures, "--temperatures", 2.0)
        for p in _numbers(top_p, "--top-p", 1.0)
    ]
    groups = {
        text.strip(): list(FAMILIES) if text.strip() == "all" else _names(text)
        for text in families.split(";")
    }
    tasks = {name: heldout_tasks(num_prompts, chosen) for name, chosen in groups.items()}
    largest_shape = largest(tree_shapes)
    config = engine_config(
        model=model,
        dtype=dtype,
        device=device,
        threads=threads,
        offline=offline,
        drafter="head",
        draft_model=draft_model,
        draft_steps=largest_shape.steps,
        draft_topk=largest_shape.topk,
        draft_nodes=largest_shape.nodes,
        max_num_seqs=16,
        max_batch_tokens=batch_tokens([16], [largest_shape]),
        prefix_cache=False,
    )
    results = []
    with open_model(config, quiet=as_json) as llm, status(as_json) as show_status:
        stage = Stage(llm)
        for name, chosen in tasks.items():
            inputs = from_tasks(llm, len(chosen), tasks=chosen)
            check_lengths(inputs, llm, max_tokens)
            counted = bench.measure(
                stage,
                inputs.token_ids,
                settings,
                tree_shapes,
                num_seeds=num_seeds,
                max_tokens=max_tokens,
                show_status=prefixed(show_status, name),
            )
            results += [{"families": name, **entry} for entry in counted]
        assert isinstance(stage.built, bench.TreeDrafter)
        fitted = bench.betas(stage.built, sorted({s.temperature for s in settings}))
        result = {
            **run_facts(),
            "model": about(llm),
            "settings": {
                "head": draft_model or "the model's own",
                "beta": fitted,
                "num_prompts": num_prompts,
                "num_seeds": num_seeds,
                "max_tokens": max_tokens,
            },
            "results": results,
        }
    report_result(result, output, as_json, _show)
    if any(entry["changed_answers"] for entry in results):
        raise CheckFailed("a ranking changed tokens; please report it with this command")


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str, option: str, maximum: float) -> list[float]:
    """Parse numbers above 0 and at most `maximum`, separated by commas."""
    try:
        values = sorted({float(part) for part in text.split(",")}, reverse=maximum == 1.0)
    except ValueError:
        values = [0.0]
    if not all(0 < value <= maximum for value in values):
        raise ValueError(
            f"{option}: must be numbers above 0 and at most {maximum:g}, separated by commas, not "
            f"{text!r}"
        )
    return values


def _shapes(text: str) -> list[TreeShape]:
    """Parse tree sizes such as 5/4/16, separated by commas."""
    from eyas.draft import TreeShape
    from eyas.verify.shapes import normal
    from eyas_bench.tune import LIMITS

    shapes = []
    for part in text.split(","):
        sizes = [int(size) if size.isdecimal() else 0 for size in part.strip().split("/")]
        limits = (LIMITS["--steps"], LIMITS["--topk"], LIMITS["--nodes"])
        fits = len(sizes) == 3 and all(
            low <= size <= high for size, (low, high) in zip(sizes, limits, strict=True)
        )
        if not fits:
            raise ValueError(
                "--shapes: must be trees as steps/topk/nodes such as 5/4/16, separated by commas (at "
                f"most 32/32/128), not {text!r}"
            )
        shapes.append(normal(TreeShape(*sizes)))
    return shapes


def _show(result: dict[str, Any]) -> None:
    """Print a table for each group of families, with a row for each setting and shape."""
    from rich.console import Console
    from rich.table import Table

    settings, console = result["settings"], Console()
    rows: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
    for entry in result["results"]:
        key = (entry["temperature"], entry["top_p"], *entry["shape"])
        rows.setdefault(entry["families"], {}).setdefault(key, {})[entry["ranking"]] = entry
    for families, of_group in rows.items():
        table = Table(
            *("T", "top_p", "tree", "top-k", "noise", "gain", "(95 %)", "beta 1"),
            title=f"{families}: tokens per step, {settings['num_prompts']} prompts, "
            f"{settings['num_seeds']} answers to each",
        )
        for (temperature, top_p, *shape), found in of_group.items():
            one, gain = found["noise"], found["noise"]["gain"]
            unfitted = found.get("noise, beta 1")
            table.add_row(
                f"{temperature:g}",
                f"{top_p:g}",
                "/".join(map(str, shape)),
                f"{found['top-k']['tokens_per_step']:.2f}",
                f"{one['tokens_per_step']:.2f}",
                f"{gain['ratio']:.3f}",
                f"{gain['low']:.3f} to {gain['high']:.3f}",
                "" if unfitted is None else f"{unfitted['tokens_per_step']:.2f}",
            )
        console.print(table)
