"""`eyas bench ranking`: what a head gains from ranking candidates with the target's noise.

Promises: status 1 where a ranking changed a token. Does not know: how anything is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyas.cli import options
from eyas.cli.errors import CheckFailed
from eyas.cli.options import DEVICE, MODEL, engine_config
from eyas.cli.results import Output, report_result, run_facts, status
from eyas_bench.cli.measuring import prefixed

if TYPE_CHECKING:
    from eyas.draft import TreeShape


def ranking(
    *,
    model: options.Model = MODEL.path,
    draft_model: Annotated[
        str | None,
        typer.Option("--draft-model", help="A draft head; the model's own by default."),
    ] = None,
    temperatures: Annotated[
        str, typer.Option("--temperatures", help="Above 0, with commas between them.")
    ] = "0.6,1",
    top_p: Annotated[str, typer.Option("--top-p", help="With commas between them.")] = "1,0.95",
    shapes: Annotated[
        str, typer.Option("--shapes", help="Trees as steps/topk/nodes, with commas between them.")
    ] = "5/1/6,5/4/16",
    families: Annotated[
        str,
        typer.Option(
            "--families",
            help="Kinds of held-out tasks, with commas between them; groups with a semicolon "
            "between them; all names every kind.",
        ),
    ] = "all;pick,talk",
    num_prompts: Annotated[
        int, typer.Option("--num-prompts", min=2, help="Prompts of a group.")
    ] = 39,
    num_seeds: Annotated[
        int, typer.Option("--num-seeds", min=1, help="Answers to a prompt, with a seed each.")
    ] = 2,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=2, help="Longest answer; they end by themselves.")
    ] = 256,
    dtype: options.Dtype = options.DtypeChoice.auto,
    device: options.Device = DEVICE.device,
    threads: options.Threads = None,
    offline: options.Offline = False,
    output: Output = None,
    as_json: options.Json = False,
) -> None:
    """Accepted tokens with candidates ranked by the model's noise and by likelihood alone."""
    from builtin_model.families import FAMILIES
    from eyas.cli.loading import open_model
    from eyas.verify.inputs import check_lengths, from_tasks
    from eyas.verify.lineup import Stage, about
    from eyas.verify.shapes import batch_tokens
    from eyas_bench import ranking as bench
    from eyas_bench.prompts import heldout_tasks
    from eyas_bench.tune import largest

    grown = _shapes(shapes)
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
    most = largest(grown)
    config = engine_config(
        model=model,
        dtype=dtype,
        device=device,
        threads=threads,
        offline=offline,
        drafter="head",
        draft_model=draft_model,
        draft_steps=most.steps,
        draft_topk=most.topk,
        draft_nodes=most.nodes,
        max_num_seqs=16,
        max_batch_tokens=batch_tokens([16], [most]),
        prefix_cache=False,
    )
    results = []
    with open_model(config, quiet=as_json) as llm, status(as_json) as say:
        stage = Stage(llm)
        for name, chosen in tasks.items():
            inputs = from_tasks(llm, len(chosen), tasks=chosen)
            check_lengths(inputs, llm, max_tokens)
            counted = bench.measure(
                stage,
                inputs.token_ids,
                settings,
                grown,
                num_seeds=num_seeds,
                max_tokens=max_tokens,
                say=prefixed(say, name),
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


def _numbers(text: str, option: str, most: float) -> list[float]:
    """Numbers above 0, at most `most`."""
    try:
        values = sorted({float(part) for part in text.split(",")}, reverse=most == 1.0)
    except ValueError:
        values = [0.0]
    if not all(0 < value <= most for value in values):
        raise ValueError(
            f"{option}: numbers above 0, at most {most:g}, with commas between them, not {text!r}"
        )
    return values


def _shapes(text: str) -> list[TreeShape]:
    """Trees like 5/4/16."""
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
                f"--shapes: trees as steps/topk/nodes such as 5/4/16 with commas between them (at "
                f"most 32/32/128), not {text!r}"
            )
        shapes.append(normal(TreeShape(*sizes)))
    return shapes


def _show(result: dict[str, Any]) -> None:
    """A table for each group of families, a row for each setting and shape."""
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
            title=f"{families}: tokens a step, {settings['num_prompts']} prompts, "
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
