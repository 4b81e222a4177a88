"""`eyas bench decode`: measure decoding speed with and without drafts.

Promises: exit status 1 where a drafter changed a token. Does not know: how anything is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from eyas.cli import options
from eyas.cli.errors import CheckFailed
from eyas.cli.options import DraftOptions, engine_config, flattened
from eyas.cli.results import Output, report_result, run_facts
from eyas.config import DEFAULTS
from eyas_bench.cli.measuring import (
    TASKS_OF_A_ROUND,
    Workload,
    number,
    place,
    read_inputs,
    round_name,
    status_line,
)
from eyas_bench.cli.shape_measures import measure_shape
from eyas_bench.cli.shape_options import (
    NEW_TOKENS,
    PROMPT_TOKENS,
    REPEATS,
    TEXT_TOKENS,
    Protocol,
    ShapeOptions,
    with_aliases,
)


@dataclass(frozen=True, kw_only=True)
class Contender(DraftOptions):
    """The drafting that is compared with plain decoding; none by default."""

    drafter: options.Drafter = "root"


@flattened
def decode(
    *,
    model: options.Model = DEFAULTS.model.path,
    batch: Annotated[
        str,
        typer.Option("--batch", "-b", help="Batch sizes, separated by commas."),
    ] = "1,8",
    workload: Annotated[
        Workload,
        typer.Option(
            help="Prompts: tasks (held-out tasks of the built-in model's families, new ones in every "
            "round; answers end at end-of-text), chat (short tasks), copy (the answer is part of the "
            "prompt), or random (random tokens)."
        ),
    ] = "chat",
    prompts_file: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines file of text prompts, used without a chat template.",
        ),
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Length of random prompts in tokens. Default: 128; 1 with --schemas.",
        ),
    ] = None,
    num_prompts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of prompts in a round. Default: the batch size (twice that with "
            "--refill), and at least 13 with --workload tasks.",
        ),
    ] = None,
    refill: Annotated[
        bool,
        typer.Option(
            "--refill",
            help="Start the next prompt when an answer ends, so that the batch stays full.",
        ),
    ] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Maximum length of an answer in tokens. Default: 128; 256 with --shape.",
        ),
    ] = None,
    stop_at_eos: Annotated[
        bool,
        typer.Option(
            "--stop-at-eos", help="End answers at end-of-text tokens, which are ignored by default."
        ),
    ] = False,
    temperature: Annotated[
        float, typer.Option("--temperature", "-t", help="Sampling temperature; 0 is greedy.")
    ] = 0.0,
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of measured rounds, after a warm-up round. Default: 5; 3 with --shape.",
        ),
    ] = None,
    compare: Annotated[
        Literal["transformers"] | None,
        typer.Option(help="Also measure this engine with the same checkpoint."),
    ] = None,
    drafting: Contender,
    shaped: ShapeOptions,
    plain: Annotated[
        bool,
        typer.Option("--plain/--no-plain", help="With --drafter: also measure plain decoding."),
    ] = True,
    dtype: options.Dtype = "auto",
    device: options.Device = DEFAULTS.device.device,
    threads: options.Threads = None,
    exact: options.Exact = DEFAULTS.device.exact,
    kv_cache_dtype: options.KVCacheDtype = DEFAULTS.cache.dtype,
    offline: options.Offline = False,
    output: Output = None,
    as_json: options.Json = False,
) -> None:
    """Measure decoding: tokens per second, time to first token, step time and accepted tokens.

    Contestants take turns. Plain decoding is an engine without a drafter. A drafter keeps its
    measurements of cost and acceptance from round to round; a warm-up round is not counted.

    With --shape, one engine with random weights is measured: random prompts start together, tokens
    per second count from the last sequence's first token to the last sequence's last token, and the
    best round is reported. --schemas and --prefill measure schemas and long prompts instead.
    """
    from eyas_bench.tune import numbers

    shaped.check()
    drafting = with_aliases(drafting)
    batches = numbers(batch, "--batch")
    if shaped.shape is not None:
        for option, given in (
            ("--refill", refill),
            ("--compare", compare),
            ("--stop-at-eos", stop_at_eos),
            ("--prompts-file", prompts_file),
            ("--num-prompts", num_prompts),
        ):
            if given:
                raise ValueError(f"{option}: is not supported with --shape; leave it out")
        protocol = Protocol(
            batches=batches,
            prompt_tokens=prompt_tokens or (PROMPT_TOKENS if shaped.schemas is None else 1),
            max_tokens=max_tokens or (NEW_TOKENS if shaped.schemas is None else TEXT_TOKENS),
            temperature=temperature,
            repeats=repeats or REPEATS,
            dtype=dtype,
            device=device,
            threads=threads,
            exact=exact,
            kv_cache_dtype=kv_cache_dtype,
        )
        measure_shape(shaped, drafting, protocol, output, as_json)
        return
    max_tokens, repeats = max_tokens or 128, repeats or 5
    prompt_tokens = prompt_tokens or PROMPT_TOKENS
    from eyas.cli.loading import open_model
    from eyas.cli.models import model_directory
    from eyas.cli.prompts_file import read_entries
    from eyas.verify.contestants import EngineContestant, Job, same_tokens, summarise, take_turns
    from eyas.verify.lineup import about
    from eyas.verify.prompts import cycle_to
    from eyas_bench.peers import TransformersContestant
    from eyas_bench.ratio import ratio

    def open_contestant(name: str, chosen: DraftOptions) -> EngineContestant:
        config = engine_config(
            model=model,
            dtype=dtype,
            device=device,
            threads=threads,
            exact=exact,
            kv_cache_dtype=kv_cache_dtype,
            offline=offline,
            max_num_seqs=max(batches),
            prefix_cache=False,
            **vars(chosen),
        )
        return EngineContestant(name, open_model(config, quiet=as_json))

    if refill and compare is not None:
        raise ValueError("--refill: is not supported with --compare; leave one of them out")
    tasks = workload == "tasks" and prompts_file is None
    least = num_prompts or (TASKS_OF_A_ROUND if tasks else 1)
    contestants: list[Any] = []
    drafts = drafting.drafter != "root"
    if plain or not drafts:
        contestants.append(open_contestant("plain", Contender()))
    if drafts:
        contestants.append(open_contestant(drafting.drafter, drafting))
    llm = contestants[0].llm
    if compare is not None:
        peer = TransformersContestant(model_directory(llm), llm.info.dtype, llm.info.device)
        contestants.append(peer)
    counts = {
        size: max(least, 2 * size if refill and not num_prompts else size) for size in batches
    }
    most = max(counts.values()) * (repeats + 1 if tasks else 1)
    entries = None if prompts_file is None else read_entries(prompts_file)
    inputs = read_inputs(llm, workload, entries, most, prompt_tokens)
    prompts = cycle_to(inputs.token_ids, most)
    show_status = status_line(as_json)
    results, failed = [], []
    for size, count in counts.items():
        job = Job(
            prompts if tasks else prompts[:count],
            size,
            max_tokens,
            stops_at_eos=stop_at_eos or tasks,
            temperature=temperature,
            refills=refill,
            per_round=count if tasks else 0,
        )
        runs = take_turns(contestants, job, repeats, _show_round(show_status, size))
        names = list(runs)
        entry: dict[str, Any] = {
            "batch": size,
            "prompts_per_round": count,
            "contestants": {name: summarise(each) for name, each in runs.items()},
        }
        for name in names:
            if "plain" in names and name not in ("plain", compare):
                entry["contestants"][name]["ratio"] = ratio(runs[name], runs["plain"])
        speed = {name: entry["contestants"][name]["tokens_per_second"] for name in names}
        entry["speed_ratios"] = {
            f"{one} / {other}": round(speed[one] / speed[other], 3)
            for one, other in _pairs(names, compare)
        }
        entry["same_tokens"] = {name: same_tokens(runs[names[0]], runs[name]) for name in names[1:]}
        failed += [n for n, share in entry["same_tokens"].items() if n != compare and share < 1]
        results.append(entry)
    result = {
        **run_facts(),
        "model": about(llm),
        "settings": {
            "workload": "file" if prompts_file else workload,
            "prompt_tokens": _lengths(prompts),
            "max_tokens": max_tokens,
            "stop_at_eos": stop_at_eos or tasks,
            "refill": refill,
            "temperature": temperature,
            "repeats": repeats,
            "drafting": vars(drafting) if drafts else None,
        },
        "results": results,
    }
    show_status("")
    report_result(result, output, as_json, _show)
    if failed:
        raise CheckFailed("a drafter changed tokens; please report it with this command")


def _lengths(prompts: list[list[int]]) -> dict[str, int]:
    """Return the number of prompts and their lengths in tokens."""
    lengths = sorted(len(prompt) for prompt in prompts)
    middle = lengths[len(lengths) // 2]
    return {"prompts": len(lengths), "least": lengths[0], "median": middle, "most": lengths[-1]}


def _pairs(names: list[str], peer: str | None) -> list[tuple[str, str]]:
    """Return the pairs of contestants whose speed ratio is reported.

    Drafters are compared with plain decoding, and all engines of eyas with the peer.
    """
    ours = [name for name in names if name != peer]
    pairs = [(name, "plain") for name in ours if name != "plain" and "plain" in ours]
    return pairs + [(name, peer) for name in ours if peer is not None]


def _show_round(show_status: Callable[[str], None], size: int) -> Callable[[str, int], None]:
    return lambda name, turn: show_status(f"batch {size}: {round_name(turn)}, {name}")


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    model = result["model"]
    table = Table(
        *("batch", "", "tokens/s", "first\ntoken ms", "step\nms", "forward\nms", "rest\nms"),
        *("tokens\na step", "a draft", "same\ntokens"),
        title=f"{model['name']}, {model['dtype']} on {place(result)}, "
        f"{result['machine']['threads']} threads",
        padding=(0, 0),
    )
    for entry in result["results"]:
        for name, one in entry["contestants"].items():
            same = entry["same_tokens"].get(name)
            table.add_row(
                str(entry["batch"]),
                name,
                f"{one['tokens_per_second']:.1f}",
                number(one.get("first_token_ms")),
                number((one.get("step_ms") or {}).get("median")),
                number((one.get("forward_ms") or {}).get("median")),
                number((one.get("rest_ms") or {}).get("median")),
                number(one.get("tokens_per_step")),
                number(one.get("tokens_per_draft")),
                f"{100 * same:.0f} %" if same is not None else "",
            )
    console = Console()
    console.print(table)
    for entry in result["results"]:
        for pair, speeds in entry["speed_ratios"].items():
            console.print(f"batch {entry['batch']}: {pair}: {speeds:.2f}", highlight=False)
        for name, one in entry["contestants"].items():
            if found := one.get("ratio"):
                console.print(
                    f"batch {entry['batch']}: {name} / plain of the same round: median "
                    f"{found['median']:.3f} ({found['low']:.3f} to {found['high']:.3f}, "
                    f"{100 * found['coverage']:.0f} % of {found['rounds']} rounds)",
                    highlight=False,
                )
            if depths := one.get("acceptance_by_depth"):
                shares = " ".join(f"{share:.2f}" for share in depths)
                console.print(
                    f"batch {entry['batch']}: {name}: accepted by depth {shares}", highlight=False
                )
