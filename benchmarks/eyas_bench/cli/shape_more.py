"""`eyas bench decode --shape` with --schemas or --prefill: steps with schemas, or long prompts.

Promises: the result says which parts are synthetic. Does not know: how anything is measured.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from eyas.cli.errors import CheckFailed
from eyas.cli.options import DraftOptions
from eyas.cli.results import report_result
from eyas_bench.cli.measuring import number, status_line
from eyas_bench.cli.shape_options import Protocol, ShapeOptions, shape_config
from eyas_bench.cli.shape_results import finish, result_of, show_rounds, title_of

PREFILL_ROWS, INTERFERE_ROWS = 8192, 2048


def schema_steps(
    options: ShapeOptions,
    drafting: DraftOptions,
    protocol: Protocol,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure steps with and without schemas at every batch size."""
    from eyas.text import Tokenizer
    from eyas.verify.machine import write_result
    from eyas_bench import schema_steps as bench
    from eyas_bench import schema_texts
    from eyas_bench.shape import dummy_engine

    assert options.shape is not None and options.schemas is not None
    assert options.tokenizer is not None
    accepted = options.synthetic_acceptance
    drafts = drafting.drafter != "root"
    if drafts and (drafting.drafter != "head" or accepted is None):
        raise ValueError(
            "--schemas: supports only the drafts of a head with synthetic acceptance; give --drafter "
            "eagle3 --synthetic-acceptance, or no drafter"
        )
    if protocol.temperature:
        raise ValueError("--temperature: is not supported with --schemas; leave it out")
    config = shape_config(options, drafting, protocol, spare_seats=max(protocol.batches))
    shape = config.draft.max_steps, drafting.draft_topk if drafts else 1
    teacher = schema_texts.Teacher(protocol.prompt_tokens, accepted, *shape)
    show_status = status_line(as_json)
    show_status("filling weights")
    engine = dummy_engine(
        options.shape,
        config,
        quantization=options.quantization,
        tokenizer_directory=options.tokenizer,
        verify=teacher.verify,
        captures=False,
    )
    found = schema_texts.read_texts(
        engine,
        Tokenizer.from_directory(options.tokenizer),
        options.schemas,
        protocol.max_tokens,
        topk=shape[1],
        on_text=lambda number: show_status(f"{number} instances"),
    )
    teacher.teach(engine, found.texts)
    lengths = sorted(len(text.tokens) for text in found.texts)
    settings = {
        "protocol": "instances of schemas, with schemas and without in turn; a full batch's steps",
        "acceptance": schema_texts.NAME if shape[1] == 1 else schema_texts.OF_TREES,
        "instances": len(found.texts),
        "schemas": len({text.name for text in found.texts}),
        "instance_tokens": [lengths[0], lengths[len(lengths) // 2], lengths[-1]],
        "left_out": dict(found.left_out),
        "refused_instances": found.refused,
        "grammar_backend": engine.info.grammar_backend,
    }
    results: list[dict[str, Any]] = []
    result = result_of(engine, options.shape, drafting, protocol, settings, results)
    for size in protocol.batches:
        before = teacher.num_2.tolist()
        held, free = bench.take_turns(
            engine,
            found.texts,
            size,
            protocol.prompt_tokens,
            accepted or 1.0,
            protocol.repeats,
            on_round=show_rounds(show_status, f"batch {size}"),
        )
        refused, late = (
            now - then for now, then in zip(teacher.num_2.tolist(), before, strict=True)
        )
        entry = {
            "batch": size,
            "drafter": drafting.drafter if drafts else "plain",
            "synthetic_acceptance": accepted,
            **bench.summarise(held, free),
            "refused": refused,
            "cut_by_masks": late,
        }
        results.append(entry)
        if output is not None:
            write_result(result, output)  # so that an interrupted run has the finished batches
        if not as_json:
            print(_ratios(entry), file=sys.stderr, flush=True)
    finish(engine, show_status)
    report_result(result, output, as_json, _show_steps)
    failed = sum(entry[one]["failed"] for entry in results for one in ("with_schemas", "without"))
    if failed or any(entry["refused"] for entry in results):
        raise CheckFailed(f"{failed} requests failed; instances' tokens were refused")


def prefill(
    options: ShapeOptions,
    drafting: DraftOptions,
    protocol: Protocol,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure prompts alone, and prompts that arrive while other sequences decode."""
    from eyas.engine.verifier import verify
    from eyas_bench import prefill as bench
    from eyas_bench import synthetic
    from eyas_bench.shape import dummy_engine
    from eyas_bench.shapes import find_shape

    assert options.shape is not None and options.prefill is not None
    num_tokens, others = options.prefill, options.interfere
    rows = options.max_batch_tokens or (PREFILL_ROWS if others is None else INTERFERE_ROWS)
    nodes = int(drafting.draft_nodes) if drafting.draft_nodes.isdecimal() else 1
    length = bench.longest(num_tokens, protocol.prompt_tokens, others or 0, rows, nodes)
    length = max(length, protocol.prompt_tokens + protocol.max_tokens)
    config = shape_config(
        replace(options, max_batch_tokens=rows, max_model_len=options.max_model_len or length),
        drafting,
        replace(protocol, batches=[1 + (others or 0)]),
    )
    accepted = options.synthetic_acceptance
    steps = config.draft.max_steps
    drawn = None if accepted is None else synthetic.SyntheticAcceptance(accepted, steps)
    show_status = status_line(as_json)
    show_status("filling weights")
    quantization = options.quantization
    engine = dummy_engine(options.shape, config, quantization=quantization, verify=drawn or verify)
    if num_tokens >= engine.info.max_model_len:
        raise ValueError(
            f"--prefill: must be less than the context length of {engine.info.max_model_len} tokens"
        )
    spec = find_shape(options.shape).model
    seconds = bench.time_prompts(
        engine, num_tokens, protocol.repeats, show_rounds(show_status, "prompt")
    )
    entry: dict[str, Any] = bench.summarise_prompts(seconds, spec, num_tokens, rows)
    if others is not None:
        gaps = bench.interfere(
            engine,
            others,
            protocol.prompt_tokens,
            num_tokens,
            protocol.repeats,
            show_rounds(show_status, f"{others} others"),
        )
        entry["interference"] = bench.summarise_interference(gaps, others, entry)
    settings = {
        "protocol": "fresh random prompts, one at a time, from their arrival to their first token",
        "acceptance": "real" if accepted is None else synthetic.NAME,
        "synthetic_acceptance": accepted,
        "max_batch_tokens": rows,
    }
    result = result_of(engine, options.shape, drafting, protocol, settings, [entry])
    finish(engine, show_status)
    report_result(result, output, as_json, _show_prefill)


def _show_steps(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        *("batch", "", "steps", "mean\nms", "p50\nms", "p99\nms", "tokens\nper draft"),
        *("masks\nms", "walks\nms", "wait for\ntrees ms", "wait for\nresults ms", "failed"),
        title=title_of(result),
        padding=(0, 0),
    )
    for entry in result["results"]:
        for name in ("with_schemas", "without"):
            one = entry[name]
            table.add_row(
                str(entry["batch"]),
                name.replace("_", " "),
                str(one["steps"]),
                *(number(one["step_ms"].get(key)) for key in ("mean", "p50", "p99")),
                number(one["tokens_per_draft"]),
                *(f"{spent:.3f}" for spent in one["spent_ms"].values()),
                str(one["failed"]),
            )
    console = Console()
    console.print(table)
    for entry in result["results"]:
        console.print(_ratios(entry), highlight=False)


def _ratios(entry: dict[str, Any]) -> str:
    ratios = ", ".join(f"{name} {ratio:.3f}" for name, ratio in entry["ratio"].items())
    return (
        f"batch {entry['batch']}: with schemas / without: {ratios}, tokens per second "
        f"{number(entry['speed'])}; refused {entry['refused']}, cut by late masks "
        f"{entry['cut_by_masks']}"
    )


def _show_prefill(result: dict[str, Any]) -> None:
    from rich.console import Console

    entry = result["results"][0]
    console = Console()
    console.print(title_of(result))
    console.print(
        f"a prompt of {entry['prompt_tokens']} tokens in {entry['chunks']} chunks: first token after "
        f"{entry['first_token_ms']:.1f} ms (best {entry['best_ms']:.1f}), "
        f"{entry['tflops']:.1f} TFLOP/s, {entry['share_of_peak']:.1%} of {entry['peak_tflops']:g}",
        highlight=False,
    )
    if (found := entry.get("interference")) is None:
        return
    calm, during = found["gap_ms"]["calm"], found["gap_ms"]["during"]
    console.print(
        f"time between tokens of {found['sequences']} running sequences: p50 {during['p50']:.2f} "
        f"ms, p99 {during['p99']:.2f} ms; before the prompt arrived {calm['p50']:.2f} and "
        f"{calm['p99']:.2f} ms.\nBound (p50 before, plus a chunk): {found['bound_ms']:.2f} ms; p99 is "
        f"{found['p99_over_bound']:.2f} of it. First token of the prompt after "
        f"{found['first_token_ms']:.1f} ms",
        highlight=False,
    )
