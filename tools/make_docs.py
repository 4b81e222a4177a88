"""Write the generated tables of README.md and docs/*.md.

Measured tables come from benchmarks/results/*.json, those of docs/peers.md from the tables of the
command line, that of error codes from `eyas.server.http.codes`, and that of clients from their locks.

`python tools/make_docs.py` replaces the text between `<!-- table:NAME -->` and `<!-- end -->`;
`--check` changes nothing and fails if a table is out of date.

Promises: no number in these tables is typed by hand. Does not know: how results are measured.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_tables import (
    attention_table,
    experts_table,
    parts_table,
    rates_table,
    schemas_table,
    serve_table,
    speed_table,
)
from eyas.server.http.codes import Code
from peers_tables import accepted_table, options_table, refused_table
from run_clients import versions_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / name
        for name in ("results.md", "facts.md", "peers.md", "errors.md", "serving.md")
    ),
)
HEADS = ("head_tree_greedy", "head_tree_sampled", "head_chain_greedy", "head_chain_sampled")
"""The results in the table of heads."""
SHOWN_FORMS, SCHEMA_COST = "forms, schema in the prompt", "head+forced / head, no schema"
"""The group of tasks and the ratio of `eyas bench structured` that are quoted."""
MARKED = re.compile(r"(<!-- table:([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Claim:
    """A measured number and its target. find: returns the number from a result. headline: the text in
    the README, where the claim stands alone; None if it is not there."""

    text: str
    result: str
    find: Callable[[dict[str, Any]], float]
    shown: str
    target: str
    holds: Callable[[float], bool]
    headline: str | None = None


def _batch(result: dict[str, Any], size: int) -> dict[str, Any]:
    return next(entry for entry in result["results"] if entry["batch"] == size)


def _faster(size: int) -> Callable[[dict[str, Any]], float]:
    return lambda result: _batch(result, size)["speed_ratios"]["plain / transformers"]


def _drafted(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the contestant that is compared with plain decoding."""
    return next(one for one in entry["contestants"].values() if "ratio" in one)


def _least_ratio(result: dict[str, Any]) -> float:
    """Return the smallest median ratio of all batch sizes but 1."""
    entries = [entry for entry in result["results"] if entry["batch"] > 1]
    return min(_drafted(entry)["ratio"]["median"] for entry in entries)


def _tokens_per_step(result: dict[str, Any]) -> float:
    return _drafted(result["results"][0])["tokens_per_step"]


CLAIMS = (
    Claim(
        "plain decoding, speed relative to `transformers.generate`, short tasks, batch 1",
        "decode_cpu",
        _faster(1),
        "{:.2f}x",
        ">= 1.5x",
        lambda value: value >= 1.5,
        headline="built-in model, plain, chats, batch 1: speed relative to `transformers.generate`",
    ),
    Claim(
        "the same, batch 8 (prompts of different lengths)",
        "decode_cpu",
        _faster(8),
        "{:.2f}x",
        ">= 1.5x",
        lambda value: value >= 1.5,
    ),
    Claim(
        "the same, batch 8, equally long random prompts",
        "decode_random",
        _faster(8),
        "{:.2f}x",
        ">= 1.5x",
        lambda value: value >= 1.5,
    ),
    Claim(
        "n-gram drafting, speed relative to plain decoding, answers that repeat the prompt",
        "ngram_copy",
        lambda result: _drafted(_batch(result, 1))["ratio"]["median"],
        "{:.2f}x",
        ">= 1.3x",
        lambda value: value >= 1.3,
    ),
    Claim(
        "the head's tree 5/4/16, held-out prompts, greedy: tokens a step",
        "head_tree_greedy",
        _tokens_per_step,
        "{:.2f}",
        ">= 3.0",
        lambda value: value >= 3.0,
        headline="the same with its head, a tree of 16 nodes, held-out prompts, greedy: tokens a step",
    ),
    Claim(
        "`auto`, speed relative to plain decoding, held-out prompts, batch 1 (median of the rounds)",
        "auto_together",
        lambda result: _drafted(_batch(result, 1))["ratio"]["median"],
        "{:.2f}x",
        ">= 1.5x",
        lambda value: value >= 1.5,
        headline="the same, `--drafter auto`, batch 1: speed relative to plain decoding",
    ),
    Claim(
        "the same, the lowest of the medians at batch 2, 4, 8 and 16",
        "auto_together",
        _least_ratio,
        "{:.2f}x",
        ">= 0.97x",
        lambda value: value >= 0.97,
    ),
    Claim(
        "built-in model's own JSON tasks with a schema, chain of 5: tokens a step with forced spans, "
        "of the head alone",
        "structured",
        lambda result: result["groups"]["own tasks"]["tokens_per_step_ratio"]["ratio"],
        "{:.2f}x",
        ">= 1.3x",
        lambda value: value >= 1.3,
    ),
    Claim(
        "the same for forms with long field names, the schema in the prompt",
        "structured",
        lambda result: result["groups"][SHOWN_FORMS]["tokens_per_step_ratio"]["ratio"],
        "{:.2f}x",
        ">= 1.3x",
        lambda value: value >= 1.3,
    ),
    Claim(
        "own JSON tasks: tokens/s with a schema relative to those without, drafted (chain of 5)",
        "structured",
        lambda result: result["groups"]["own tasks"]["speed_ratios"][SCHEMA_COST]["median"],
        "{:.2f}x",
        ">= 1.0x",
        lambda value: value >= 1.0,
    ),
    Claim(
        "invalid instances that a grammar let through (JSONSchemaBench, 200 schemas)",
        "grammar",
        lambda result: result["invalid_accepted"],
        "{:.0f}",
        "0",
        lambda value: value == 0,
        headline="invalid instances that a grammar let through (JSONSchemaBench, 200 schemas)",
    ),
    Claim(
        "masks of a 64-node tree, one core, a vocabulary of 152k (median)",
        "grammar",
        lambda result: result["milliseconds"]["tree_fill"]["p50"],
        "{:.2f} ms",
        "<= 0.5 ms",
        lambda value: value <= 0.5,
    ),
    Claim(
        "built-in model, exact answers to held-out conversations",
        "builtin_answers",
        lambda result: 100 * result["overall"],
        "{:.1f} %",
        ">= 85 %",
        lambda value: value >= 85,
    ),
    Claim(
        "32 clients for 10 minutes, some with invalid requests: answers that fail, or differ from "
        "those without load",
        "serve_soak",
        lambda result: result["num_mismatches"] + result["num_errors"],
        "{:.0f}",
        "0",
        lambda value: value == 0,
    ),
    Claim(
        "one H200, Llama-3.1-8B shape, random weights: plain tokens/s, batch 32",
        "h200_plain",
        lambda result: _batch(result, 32)["tokens_per_second"],
        "{:,.0f}",
        ">= 6,150",
        lambda value: value >= 6150,
        headline="Llama-3.1-8B shape, random weights, batch 32: plain tokens/s",
    ),
    Claim(
        "the same with an EAGLE-3 chain of 5, synthetic acceptance of 3.52, batch 1",
        "h200_chain",
        lambda result: _batch(result, 1)["tokens_per_second"],
        "{:,.0f}",
        ">= 590",
        lambda value: value >= 590,
    ),
    Claim(
        "the same, batch 32",
        "h200_chain",
        lambda result: _batch(result, 32)["tokens_per_second"],
        "{:,.0f}",
        ">= 13,200",
        lambda value: value >= 13200,
        headline="… with an EAGLE-3 chain of 5, synthetic acceptance of 3.52 tokens a step: tokens/s",
    ),
    Claim(
        "a step with a tree of 32 nodes for each of 8 sequences, drafting included",
        "h200_tree_32",
        lambda result: _batch(result, 8)["step_ms"],
        "{:.2f} ms",
        "<= 10.0 ms",
        lambda value: value <= 10.0,
    ),
    Claim(
        "a JSON schema on each of 32 requests: mean step time relative to none (Qwen3-8B shape)",
        "h200_schemas",
        lambda result: _batch(result, 32)["ratio"]["mean"],
        "{:.3f}x",
        "<= 1.03x",
        lambda value: value <= 1.03,
        headline="32 requests with a JSON schema each: mean step time relative to none",
    ),
    Claim(
        "the same for 8 requests with trees of 32 nodes",
        "h200_schemas_tree",
        lambda result: _batch(result, 8)["ratio"]["mean"],
        "{:.3f}x",
        "<= 1.15x",
        lambda value: value <= 1.15,
    ),
    Claim(
        "a prompt of 8192 tokens: fraction of 790 TFLOP/s",
        "h200_prefill",
        lambda result: 100 * result["results"][0]["share_of_peak"],
        "{:.1f} %",
        ">= 75 %",
        lambda value: value >= 75,
    ),
    Claim(
        "256 sequences that decode together, plain: tokens/s (256 tokens in the time of a step)",
        "h200_dense_bf16",
        lambda result: 256 / _batch(result, 256)["step_ms"] * 1000,
        "{:,.0f}",
        ">= 28,000",
        lambda value: value >= 28000,
    ),
    Claim(
        "100,000 and more logits rows in other batches, trees, chunks and after preemption: "
        "rows that differ",
        "h200_exact",
        lambda result: result["all"]["num_different"],
        "{}",
        "0",
        lambda value: value == 0,
        headline="100,000 logits rows in other batches, trees and chunks: rows that differ",
    ),
)


FLOAT32 = "float32/"
"""The directory of results of the same commands on a processor without bfloat16 instructions."""


def read_results() -> dict[str, dict[str, Any]]:
    """Return all stored results by name; a name includes the subdirectory."""
    files = sorted(RESULTS.rglob("*.json"))
    return {
        str(file.relative_to(RESULTS).with_suffix("")): json.loads(file.read_text())
        for file in files
    }


def claims_table(results: dict[str, dict[str, Any]]) -> str:
    """Return the table of claims: the measured number, the machine, and whether the target is met."""
    lines = ["| | measured | target | met | on |", "|---|---|---|---|---|"]
    for claim in CLAIMS:
        if claim.result not in results:
            lines.append(f"| {claim.text} | not measured | {claim.target} | | |")
            continue
        for name in (claim.result, FLOAT32 + claim.result):
            if name in results:
                text = claim.text if name == claim.result else "… in float32"
                lines.append(_claim_row(claim, text, results[name]))
    return "\n".join(lines)


def _claim_row(claim: Claim, text: str, result: dict[str, Any]) -> str:
    value = claim.find(result)
    met = "yes" if claim.holds(value) else "**no**"
    cells = (text, claim.shown.format(value), claim.target, met, _place(result))
    return f"| {' | '.join(cells)} |"


def headline_table(results: dict[str, dict[str, Any]]) -> str:
    """Return the table of the README's claims, without their targets."""
    lines = ["| | | on |", "|---|---|---|"]
    for claim in CLAIMS:
        if claim.headline is not None:
            result = results[claim.result]
            value = claim.shown.format(claim.find(result))
            lines.append(f"| {claim.headline} | **{value}** | {_place(result)} |")
    return "\n".join(lines)


def _place(result: dict[str, Any]) -> str:
    """Return the processor or device, and the number format of the computation."""
    machine = result["machine"]
    name = machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores"
    model = result.get("model")
    dtype = model.get("dtype") if isinstance(model, dict) else None
    return f"{name}, {dtype}" if dtype else name


def decode_table(result: dict[str, Any]) -> str:
    """Return the table of a decode measurement, with ratios to plain decoding where there are any."""
    has_ratios = any("ratio" in c for e in result["results"] for c in e["contestants"].values())
    lines = [
        _origin(result),
        "",
        "| batch | | tokens/s | first token ms | step ms | forward ms | rest ms | accepted a step |"
        + (" of plain | 95 % |" if has_ratios else ""),
        "|---|---|---|---|---|---|---|---|" + ("---|---|" if has_ratios else ""),
    ]
    for entry in result["results"]:
        for name, one in entry["contestants"].items():
            cells = [
                one.get("first_token_ms"),
                *(one.get(key, {}).get("median") for key in ("step_ms", "forward_ms", "rest_ms")),
                one.get("accepted_per_step"),
            ]
            shown = " | ".join("" if cell is None else f"{cell:.2f}" for cell in cells)
            speed = f"{one['tokens_per_second']:.1f}"
            line = f"| {entry['batch']} | {name} | {speed} | {shown} |"
            if has_ratios:
                found = one.get("ratio")
                line += f" {_interval(found, 'median')} |" if found else " | |"
            lines.append(line)
    return "\n".join(lines)


def heads_table(results: dict[str, dict[str, Any]]) -> str:
    """Return the table of accepted drafts of the head: all shapes, greedy and sampled."""
    lines = [
        "| steps/topk/nodes | temperature | tokens a step | tokens a draft | accepted by depth "
        "| of plain | 95 % | measured by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in HEADS:
        if name not in results:
            lines.append(f"| {name} | not measured | | | | | | |")
            continue
        settings, one = results[name]["settings"], _drafted(results[name]["results"][0])
        drafting = settings["drafting"]
        shape = "/".join(str(drafting[f"draft_{size}"]) for size in ("steps", "topk", "nodes"))
        shares = " ".join(f"{share:.2f}" for share in one["acceptance_by_depth"])
        lines.append(
            f"| {shape} | {settings['temperature']:g} | {one['tokens_per_step']:.2f} "
            f"| {one['tokens_per_draft']:.2f} | {shares} | {_interval(one['ratio'], 'median')} "
            f"| `benchmarks/results/{name}.json` |"
        )
    return "\n".join(lines)


def ranking_table(result: dict[str, Any]) -> str:
    """Return the table of rankings with noise compared with top-k."""
    lines = [
        _origin(result),
        "",
        "| families | temperature | top_p | steps/topk/nodes | ranking | tokens a step "
        "| of top-k | 95 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for entry in result["results"]:
        shape = "/".join(map(str, entry["shape"]))
        of_topk = "| |" if entry["ranking"] == "top-k" else f"{_interval(entry['gain'], 'ratio')} |"
        lines.append(
            f"| {entry['families']} | {entry['temperature']:g} | {entry['top_p']:g} | {shape} "
            f"| {entry['ranking']} | {entry['tokens_per_step']:.2f} | {of_topk}"
        )
    return "\n".join(lines)


def grammar_table(result: dict[str, Any]) -> str:
    """Return the table of the cost of compilation and masks, and of accepted instances."""
    lines = [
        _origin(result),
        "",
        "| milliseconds | p50 | p95 | p99 | max |",
        "|---|---|---|---|---|",
    ]
    names = {
        "prepare": "check and rewrite a schema",
        "compile": "compile, without the first mask",
        "first_mask": "first mask",
        "mask": "mask of a token",
        "tree_walk": f"walk of a tree of {result['tree_nodes']} nodes",
        "tree_fill": "its masks",
    }
    for key, name in names.items():
        times = result["milliseconds"][key]
        cells = " | ".join(f"{times[p]:.2f}" for p in ("p50", "p95", "p99", "max"))
        lines.append(f"| {name} | {cells} |")
    refused = ", ".join(f"{key} {count}" for key, count in result["refused_by_keyword"].items())
    lines += [
        "",
        f"{result['schemas']} schemas, {result['refused']} refused ({refused}); valid instances "
        f"rejected {result['valid_rejected']} of {result['valid']}, invalid ones accepted "
        f"{result['invalid_accepted']} of {result['invalid']}.",
    ]
    return "\n".join(lines)


def structured_table(result: dict[str, Any]) -> str:
    """Return the table of all groups of tasks: the gain of each drafter, and the cost of a schema."""
    lines = [
        _origin(result),
        "",
        "| tasks | | tokens a step | tokens/s | step ms | of that masks |",
        "|---|---|---|---|---|---|",
    ]
    for group, entry in result["groups"].items():
        for name, one in entry["contestants"].items():
            lines.append(
                f"| {group} | {name} | {one['tokens_per_step']:.2f} | {one['tokens_per_second']:.0f} "
                f"| {one['step_ms']:.2f} | {one['mask_ms_per_step']:.2f} |"
            )
    lines += ["", "| tasks | ratio | median | 95 % |", "|---|---|---|---|"]
    for group, entry in result["groups"].items():
        found = _interval(entry["tokens_per_step_ratio"], "ratio")
        lines.append(f"| {group} | tokens a step, head+forced / head | {found} |")
        for name, ratio in entry["speed_ratios"].items():
            lines.append(f"| {group} | tokens/s, {name} | {_interval(ratio, 'median')} |")
    return "\n".join(lines)


def tune_table(result: dict[str, Any]) -> str:
    """Return the table of the best fixed shape and auto at every batch size, and the picture."""
    lines = [
        _origin(result),
        "",
        "| batch | | steps/topk/nodes | tokens/s | of plain | accepted a step |",
        "|---|---|---|---|---|---|",
    ]
    for entry in result["results"]:
        for label, name in {"plain": "plain", "best": entry["best_shape"], "auto": "auto"}.items():
            one = entry["contestants"][name]
            shape = "/".join(map(str, one["shape"])) if one["shape"] and name != "plain" else ""
            lines.append(
                f"| {entry['batch']} | {label} | {shape} | {one['tokens_per_second']:.1f} "
                f"| {one['speed_ratio']:.2f} | {one['accepted_per_step']:.2f} |"
            )
    if (ROOT / "docs" / "facts" / "tune.png").exists():
        lines += ["", "![Speed and accepted tokens of every shape](facts/tune.png)"]
    return "\n".join(lines)


def verify_table(result: dict[str, Any]) -> str:
    """Return the table of the parts of a report."""
    lines = [_origin(result), "", "| part | | |", "|---|---|---|"]
    lines += [
        f"| {name} | {part['status']} | {part['text']} |" for name, part in result["parts"].items()
    ]
    return "\n".join(lines)


def _interval(found: dict[str, float], middle: str) -> str:
    """Return two table cells: a ratio and its interval."""
    return f"{found[middle]:.3f} | {found['low']:.3f} to {found['high']:.3f}"


def answers_table(result: dict[str, Any]) -> str:
    """Return the table of correct answers by family."""
    lines = [_origin(result), "", "| family | exact answers |", "|---|---|"]
    lines += [f"| {family} | {100 * rate:.1f} % |" for family, rate in result["families"].items()]
    lines.append(f"| **overall** | **{100 * result['overall']:.1f} %** |")
    return "\n".join(lines)


def soak_table(result: dict[str, Any]) -> str:
    """Return the table of the soak test."""
    mib = 2**20
    rows = {
        "clients at once": result["num_clients"],
        "seconds": f"{result['seconds']:.0f}",
        "streams compared with the answer alone": result["num_completed"],
        "of them different, or failed": result["num_mismatches"] + result["num_errors"],
        "streams that their client left half way": result["num_vanished"],
        "output tokens/s": f"{result['tokens_per_second']:.0f}",
        "first event, median": f"{1000 * result['first_event_p50']:.0f} ms",
        "first event, 99 of 100": f"{1000 * result['first_event_p99']:.0f} ms",
        "memory after warm-up": f"{result['rss_warm'] / mib:.0f} MiB",
        "memory at the end": f"{result['rss_end'] / mib:.0f} MiB",
        "server at rest afterwards": "yes" if result["is_idle_after"] else "no",
    }
    lines = [_origin(result), "", "| | |", "|---|---|"]
    return "\n".join(lines + [f"| {key} | {value} |" for key, value in rows.items()])


def _origin(result: dict[str, Any]) -> str:
    machine = result["machine"]
    threads = f"{machine['threads']} thread(s), " if "threads" in machine else ""
    return (
        f"{result['date']}, commit {result['commit']}, {machine['cpu']}, {machine['cores']} cores, "
        f"{threads}torch {machine['torch']}: `{result['command']}`"
    )


def tables(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return all tables by the name of their marker: a result's name, or that of a combined table."""
    made = {"claims": claims_table(results), "heads": heads_table(results)}
    made["headlines"] = headline_table(results)
    made |= {"h200": speed_table(results), "h200_parts": parts_table(results)}
    made |= {"h200_experts": experts_table(results)}
    made["h200_schema_steps"] = schemas_table(results)
    made["h200_attention_cases"] = attention_table(results)
    made["h200_loads"] = serve_table(results)
    made["h200_loads_by_rate"] = rates_table(results)
    made |= {"peers_options": options_table(), "peers_accepted": accepted_table()}
    made["peers_refused"] = refused_table()
    for name, result in results.items():
        if name.startswith("h200_"):
            made[name] = _origin(result)
            continue
        command = re.match(r"eyas (?:bench )?([\w-]+)", result.get("command", ""))
        if command and command[1] in TABLES:
            made[name] = TABLES[command[1]](result)
    return made


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "decode": decode_table,
    "grammar": grammar_table,
    "ranking": ranking_table,
    "structured": structured_table,
    "tune": tune_table,
    "verify": verify_table,
    "builtin": answers_table,
    "serve-soak": soak_table,
}
"""Command of a measurement -> function that returns its table."""


def errors_table() -> str:
    """Return the table of error codes, by status."""
    lines = ["| code | status | what it means | what to do |", "|---|---|---|---|"]
    for code in sorted(Code, key=lambda each: each.status):
        name = f'<a id="{code.word}"></a>`{code.word}`'
        lines.append(f"| {name} | {code.status} | {code.meaning} | {code.remedy} |")
    return "\n".join(lines)


def filled(text: str, made: dict[str, str]) -> str:
    """Return the text of a page with its tables replaced."""

    def fill(match: re.Match[str]) -> str:
        table = made.get(match[2], "not measured")
        return f"{match[1]}{table}\n{match[3]}"

    return MARKED.sub(fill, text)


def main(arguments: list[str]) -> int:
    """Rewrite the pages, or check them."""
    made = {**tables(read_results()), "errors": errors_table(), "clients": versions_table()}
    stale = []
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = filled(before, made)
        if before != after:
            stale.append(page.name)
            if "--check" not in arguments:
                page.write_text(after, encoding="utf-8")
    if "--check" in arguments and stale:
        print(f"{', '.join(stale)}: not what results and code say; run `make docs`")
        return 1
    agrees = "tables agree with benchmarks/results and the code"
    print(agrees if not stale else f"rewrote {', '.join(stale)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
