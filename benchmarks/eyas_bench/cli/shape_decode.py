"""`eyas bench decode --shape`: measure decoding of a model with random weights.

Promises: results with synthetic acceptance say so. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.cli.errors import CheckFailed
from eyas.cli.options import DraftOptions
from eyas.cli.results import report_result
from eyas_bench.cli.measuring import number, status_line
from eyas_bench.cli.shape_options import Protocol, ShapeOptions, shape_config
from eyas_bench.cli.shape_results import finish, result_of, show_rounds, title_of

if TYPE_CHECKING:
    from eyas_bench.synthetic import SyntheticAcceptance


def decode_shape(
    options: ShapeOptions,
    drafting: DraftOptions,
    protocol: Protocol,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure every batch size with one engine."""
    from eyas.engine.startup.kv_format import resolve_kv_dtype
    from eyas.engine.verifier import verify
    from eyas.verify.prompts import random_prompts
    from eyas_bench import synthetic
    from eyas_bench.limits import least_step_ms
    from eyas_bench.shape import dummy_engine
    from eyas_bench.shapes import dummy_layouts, find_shape
    from eyas_bench.step_profile import profile_steps
    from eyas_bench.together import repeat, requests, summarise

    assert options.shape is not None
    shape = find_shape(options.shape)
    drafts = drafting.drafter != "root"
    accepted = options.synthetic_acceptance
    config = shape_config(options, drafting, protocol)
    drawn = None
    if accepted is not None:
        steps, alike = config.draft.max_steps, options.synthetic_alike
        drawn = synthetic.SyntheticAcceptance(accepted, steps, alike=alike)
    show_status = status_line(as_json)
    show_status("filling weights")
    quantization = options.quantization
    engine = dummy_engine(shape.name, config, quantization=quantization, verify=drawn or verify)
    layouts = dummy_layouts(shape.model, quantization)
    model = engine.runner.model
    results: list[dict[str, Any]] = []
    for size in protocol.batches:
        prompts = random_prompts(size, protocol.prompt_tokens, shape.model.vocab_size)
        runs = repeat(
            engine,
            prompts,
            max_tokens=protocol.max_tokens,
            temperature=protocol.temperature,
            repeats=protocol.repeats,
            on_round=show_rounds(show_status, f"batch {size}"),
        )
        _check_drawn(drawn)
        entry: dict[str, Any] = {
            "batch": size,
            "drafter": drafting.drafter if drafts else "plain",
            "synthetic_acceptance": accepted,
            **summarise(runs),
            "least_step_ms": least_step_ms(
                shape.model,
                model.dtype,
                kv_dtype=resolve_kv_dtype(config.cache.dtype, model.dtype, model.device),
                num_rows=size * (engine.drafter.shape.width if drafts else 1),
                num_sequences=size,
                length=protocol.prompt_tokens + protocol.max_tokens // 2,
                layouts=layouts,
            ),
        }
        if options.profile:
            show_status(f"batch {size}: profile")
            most = engine.info.max_model_len - protocol.prompt_tokens
            batch = requests(prompts, most, protocol.temperature, f"profile-{size}")
            entry["profile"] = profile_steps(engine, batch)
        results.append(entry)
    settings = {
        "protocol": "random prompts that start together; tokens after t_1 over t_n - t_1",
        "acceptance": _acceptance(options),
        "quantization": quantization,
        "max_batch_tokens": config.scheduler.max_batch_tokens,
        "tp": config.parallel.tp,
        "ep": config.parallel.ep,
        "exact_across_tp": config.parallel.exact_across_tp,
        "max_graph_batch": config.scheduler.max_graph_batch,
    }
    result = result_of(engine, shape.name, drafting, protocol, settings, results)
    finish(engine, show_status)
    report_result(result, output, as_json, _show)


def _acceptance(options: ShapeOptions) -> str:
    from eyas_bench import synthetic

    if options.synthetic_acceptance is None:
        return "real"
    return synthetic.ALIKE if options.synthetic_alike else synthetic.NAME


def _check_drawn(drawn: SyntheticAcceptance | None) -> None:
    if drawn is not None and not drawn.num_calls:
        raise CheckFailed("synthetic acceptance was never used, because no step had a draft")


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        *("batch", "drafter", "tokens/s", "step\nms", "least\nms", "target\ntokens\nper step"),
        *("tokens\nper step", "tokens\nper draft", "first\ntokens ms", "tokens/s of every round"),
        title=title_of(result),
        padding=(0, 0),
    )
    for one in result["results"]:
        table.add_row(
            str(one["batch"]),
            one["drafter"],
            f"{one['tokens_per_second']:.1f}",
            f"{one['step_ms']:.3f}",
            f"{one['least_step_ms']:.3f}",
            number(one["synthetic_acceptance"]),
            number(one["tokens_per_step"]),
            number(one["tokens_per_draft"]),
            f"{one['first_tokens_ms']:.1f}",
            " ".join(f"{run['tokens_per_second']:.1f}" for run in one["runs"]),
        )
    console = Console()
    console.print(table)
    for one in result["results"]:
        if profile := one.get("profile"):
            console.print(_profile_table(one["batch"], profile))


def _profile_table(batch: int, profile: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(
        *("", "ms", "share", "kernels"),
        title=f"a step at batch {batch}: {profile['step_ms']:.3f} ms",
    )
    step = profile["step_ms"]
    for kind, one in profile["kinds"].items():
        table.add_row(kind, f"{one['ms']:.3f}", f"{one['ms'] / step:.1%}", f"{one['kernels']:g}")
    gaps = profile["gaps_ms"]
    table.add_row("gaps", f"{gaps:.3f}", f"{gaps / step:.1%}", "")
    table.add_section()
    for part, spent in profile["parts"].items():
        table.add_row(f"part: {part}", f"{spent:.3f}", f"{spent / step:.1%}", "")
    table.add_row("busy", f"{profile['busy_ms']:.3f}", "", f"{profile['kernels_per_step']:g}")
    return table
