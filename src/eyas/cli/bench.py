"""`eyas bench`: measurements, each with the command that repeats it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyas.cli import options
from eyas.cli.errors import CheckFailed
from eyas.cli.options import DEVICE, DRAFT, MODEL, engine_config

if TYPE_CHECKING:
    from eyas.llm import LLM

app = typer.Typer(help="Measure: decoding speed, the built-in model's answers, a long serve.")

Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Also write the result to this JSON file.")
]


class Workload(StrEnum):
    """What the prompts are."""

    chat = "chat"
    copy = "copy"
    random = "random"


class Peer(StrEnum):
    """Who may run the same checkpoint for comparison."""

    transformers = "transformers"


def _batch_sizes(text: str) -> list[int]:
    """The sizes that an option like 1,8,32 names, smallest first."""
    sizes = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if min(sizes) < 1:
        raise ValueError(f"--batch: whole numbers from 1 with commas between them, not {text!r}")
    return sorted(set(sizes))


@app.command("decode")
def decode(
    model: options.Model = MODEL.path,
    batch: Annotated[
        str,
        typer.Option("--batch", "-b", help="Batch sizes, with commas between them."),
    ] = "1,8",
    workload: Annotated[
        Workload,
        typer.Option(
            help="chat: short tasks; copy: answers that stand in the prompt; random: random tokens."
        ),
    ] = Workload.chat,
    prompts_file: Annotated[
        Path | None,
        typer.Option("--prompts-file", help="Text prompts of your own, JSON lines; raw."),
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", help="Length of random prompts.")
    ] = 128,
    num_prompts: Annotated[
        int | None,
        typer.Option(
            "--num-prompts",
            min=1,
            help="Prompts of a round, a batch at a time; the batch size by default.",
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Tokens of an answer.")] = 128,
    stop_at_eos: Annotated[
        bool,
        typer.Option(
            "--stop-at-eos", help="Let answers end by themselves; by default they do not."
        ),
    ] = False,
    temperature: Annotated[float, typer.Option("--temperature", "-t")] = 0.0,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Counted rounds after one to warm up.")
    ] = 5,
    compare: Annotated[
        Peer | None,
        typer.Option("--compare", help="Run the same checkpoint through this, in turn."),
    ] = None,
    drafter: options.Drafter = options.DrafterChoice.root,
    draft_model: options.DraftModel = None,
    draft_tokens: options.DraftTokens = DRAFT.num_tokens,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain/--no-plain", help="With a drafter: run plain decoding in turn as well."
        ),
    ] = True,
    dtype: options.Dtype = options.DtypeChoice.auto,
    device: options.Device = DEVICE.device,
    threads: options.Threads = None,
    offline: options.Offline = False,
    output: Output = None,
    as_json: options.Json = False,
) -> None:
    """Tokens per second, time to first token, step time, accepted tokens; contestants take turns."""
    from eyas.bench.decode import EngineContestant, Job, same_tokens, summarise, take_turns
    from eyas.bench.machine import describe_run, write_result
    from eyas.bench.peers import TransformersContestant
    from eyas.cli.loading import open_model
    from eyas.cli.models import model_directory

    def open_contestant(name: str, **drafting: Any) -> EngineContestant:
        config = engine_config(
            model=model,
            dtype=dtype,
            device=device,
            threads=threads,
            offline=offline,
            max_num_seqs=max(batches),
            prefix_cache=False,
            **drafting,
        )
        return EngineContestant(name, open_model(config, quiet=as_json))

    batches = _batch_sizes(batch)
    contestants: list[Any] = []
    if drafter == options.DrafterChoice.root or plain:
        contestants.append(open_contestant("plain"))
    if drafter != options.DrafterChoice.root:
        drafting = {"drafter": drafter, "draft_model": draft_model, "draft_tokens": draft_tokens}
        contestants.append(open_contestant(drafter.value, **drafting))
    llm = contestants[0].llm
    if compare is not None:
        peer = TransformersContestant(model_directory(llm), llm.info.dtype, llm.info.device)
        contestants.append(peer)
    most = max(num_prompts or 1, *batches)
    prompts = _prompts(llm, workload, prompts_file, prompt_tokens, most)
    results, failed = [], []
    for size in batches:
        count = max(size, num_prompts or 1)
        job = Job(prompts[:count], size, max_tokens, stop_at_eos, temperature)
        runs = take_turns(contestants, job, repeats, _narrator(as_json, size))
        entry: dict[str, Any] = {
            "batch": size,
            "contestants": {name: summarise(each) for name, each in runs.items()},
        }
        names = list(runs)
        speed = {name: entry["contestants"][name]["tokens_per_second"] for name in names}
        entry["speed_ratios"] = {
            f"{one} / {other}": round(speed[one] / speed[other], 3)
            for one, other in _pairs(names, compare)
        }
        entry["same_tokens"] = {name: same_tokens(runs[names[0]], runs[name]) for name in names[1:]}
        failed += [n for n, share in entry["same_tokens"].items() if n != compare and share < 1]
        results.append(entry)
    result = {
        **describe_run(_command()),
        "model": _about(llm),
        "settings": {
            "workload": "file" if prompts_file else workload.value,
            "prompt_tokens": [len(prompt) for prompt in prompts],
            "max_tokens": max_tokens,
            "stop_at_eos": stop_at_eos,
            "temperature": temperature,
            "repeats": repeats,
            "draft_tokens": draft_tokens if drafter != options.DrafterChoice.root else None,
        },
        "results": results,
    }
    if output is not None:
        write_result(result, output)
    print(json.dumps(result)) if as_json else _show(result)
    if failed:
        raise CheckFailed("a drafter changed tokens; please report it with this command")


@app.command("builtin")
def builtin(
    num_per_family: Annotated[
        int, typer.Option("--num-per-family", min=1, help="Held-out conversations of each family.")
    ] = 50,
    seed: Annotated[str, typer.Option("--seed", help="Which held-out conversations.")] = "0",
    drafter: options.Drafter = options.DrafterChoice.root,
    model: options.Model = MODEL.path,
    show_misses: Annotated[int, typer.Option("--show-misses", help="Wrong answers to print.")] = 0,
    output: Output = None,
    as_json: options.Json = False,
) -> None:
    """How often the built-in model's greedy answers to held-out conversations are right."""
    from dataclasses import asdict

    from eyas.bench.answers import engine_answers
    from eyas.bench.builtin import evaluate
    from eyas.bench.machine import describe_run, write_result
    from eyas.cli.loading import open_model

    with open_model(engine_config(model=model, drafter=drafter), quiet=as_json) as llm:
        report = evaluate(engine_answers(llm), num_per_family, seed)
    measured = {**asdict(report), "misses": [asdict(miss) for miss in report.misses[:20]]}
    result = {**describe_run(_command()), **measured}
    if output is not None:
        write_result(result, output)
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("family", "exact answers", title=f"{report.num_examples} held-out conversations")
    for family, rate in report.families.items():
        table.add_row(family, f"{100 * rate:.1f} %")
    table.add_row("[bold]overall[/bold]", f"[bold]{100 * report.overall:.1f} %[/bold]")
    Console().print(table)
    for miss in report.misses[:show_misses]:
        print(f"\n{miss.family}: {miss.asked}\n  right: {miss.expected}\n  given: {miss.answered}")


@app.command("serve-soak")
def serve_soak(
    clients: Annotated[int, typer.Option("--clients", min=1, help="Streams at once.")] = 64,
    seconds: Annotated[float, typer.Option("--seconds", help="How long they go on.")] = 120.0,
    vanish: Annotated[
        float, typer.Option("--vanish", min=0, max=1, help="Share of streams left half way.")
    ] = 0.2,
    max_growth: Annotated[
        float, typer.Option("--max-growth", help="Growth of memory that is still flat.")
    ] = 0.05,
    seed: Annotated[int, typer.Option("--seed", help="Which requests are drawn.")] = 0,
    drafter: options.Drafter = options.DrafterChoice.root,
    output: Output = None,
) -> None:
    """Many streaming clients against a live server: nothing lost or doubled, memory flat."""
    import contextlib
    import io

    from eyas.bench import serve_soak as bench
    from eyas.bench.machine import describe_run, write_result

    printed = io.StringIO()
    arguments = [
        *("--clients", str(clients), "--seconds", str(seconds), "--vanish", str(vanish)),
        *("--max-growth", str(max_growth), "--seed", str(seed)),
        *("--", "--drafter", drafter.value, "--log-level", "warning"),
    ]
    with contextlib.redirect_stdout(printed):
        status = bench.main(arguments)
    result = {**describe_run(_command()), **json.loads(printed.getvalue())}
    del result["machine"]["threads"]  # those of this process, not the server's
    if output is not None:
        write_result(result, output)
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if status:
        raise CheckFailed("the soak did not hold; its report says where")


def _prompts(
    llm: LLM, workload: Workload, prompts_file: Path | None, prompt_tokens: int, count: int
) -> list[list[int]]:
    """`count` prompts as token ids."""
    from eyas.bench import prompts as shared
    from eyas.cli.generate import read_entries

    if prompts_file is not None:
        texts = [str(entry.get("prompt", "")) for entry in read_entries(prompts_file)]
        return shared.cycle_to([llm.tokenizer.encode_prompt(text) for text in texts], count)
    if workload is Workload.random:
        return shared.random_prompts(count, prompt_tokens, llm.info.vocab_size)
    tasks = shared.TASKS if workload is Workload.chat else shared.COPY_TASKS
    encoded = [
        llm.encode_chat(task.messages, tools=task.tools or None, enable_thinking=task.thinks)
        for task in tasks
    ]
    return shared.cycle_to(encoded, count)


def _pairs(names: list[str], peer: str | None) -> list[tuple[str, str]]:
    """Whose speed is divided by whose: drafters by plain, everybody of ours by the peer."""
    ours = [name for name in names if name != peer]
    pairs = [(name, "plain") for name in ours if name != "plain" and "plain" in ours]
    return pairs + [(name, peer) for name in ours if peer is not None]


def _narrator(quiet: bool, size: int) -> Callable[[str, int], None] | None:
    if quiet or not sys.stderr.isatty():
        return None

    def say(name: str, turn: int) -> None:
        what = f"round {turn}" if turn else "warm-up"
        print(f"\rbatch {size}: {what}, {name:<14}", end="", file=sys.stderr, flush=True)

    return say


def _command() -> list[str]:
    return ["eyas", *sys.argv[1:]]


def _about(llm: LLM) -> dict[str, Any]:
    info = llm.info
    return {
        "name": Path(info.model).name,
        "architecture": info.architecture,
        "parameters": info.num_parameters,
        "dtype": info.dtype,
        "device": info.device,
        "exact": info.exact,
    }


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    model, machine = result["model"], result["machine"]
    table = Table(
        *("batch", "", "tokens/s", "first\ntoken ms", "step\nms", "forward\nms", "rest\nms"),
        *("accepted\na step", "same\ntokens"),
        title=f"{model['name']}, {model['dtype']} on {machine['cpu']}, {machine['threads']} threads",
        padding=(0, 0),
    )
    for entry in result["results"]:
        for name, one in entry["contestants"].items():
            same = entry["same_tokens"].get(name)
            table.add_row(
                str(entry["batch"]),
                name,
                f"{one['tokens_per_second']:.1f}",
                _number(one.get("first_token_ms")),
                _number((one.get("step_ms") or {}).get("median")),
                _number((one.get("forward_ms") or {}).get("median")),
                _number((one.get("rest_ms") or {}).get("median")),
                _number(one.get("accepted_per_step")),
                f"{100 * same:.0f} %" if same is not None else "",
            )
    console = Console()
    if sys.stderr.isatty():
        print("\r" + " " * 48 + "\r", end="", file=sys.stderr)
    console.print(table)
    for entry in result["results"]:
        for pair, ratio in entry["speed_ratios"].items():
            console.print(f"batch {entry['batch']}: {pair}: {ratio:.2f}", highlight=False)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
