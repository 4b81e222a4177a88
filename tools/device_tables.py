"""The tables of GPU measurements, for `make_docs`.

Promises: numbers come from results that include their command, machine and commit.
Does not know: where tables are inserted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Results = Mapping[str, dict[str, Any]]

SPEEDS: tuple[tuple[str, str, int, float], ...] = (
    ("plain", "h200_plain", 1, 218),
    ("plain", "h200_plain", 8, 1690),
    ("plain", "h200_plain", 32, 6150),
    ("chain of 5, acceptance 3.52", "h200_chain", 1, 590),
    ("chain of 5, acceptance 3.52", "h200_chain", 8, 4350),
    ("chain of 5, acceptance 3.52", "h200_chain", 32, 13200),
    ("the same, all sequences alike", "h200_chain_alike", 32, 13200),
)
"""Description, result, batch size, target in tokens per second."""
STEPS: tuple[tuple[str, str, int, float], ...] = (
    ("tree of 5 levels, top-k 8, 32 nodes", "h200_tree_32", 1, 6.8),
    ("tree of 5 levels, top-k 8, 32 nodes", "h200_tree_32", 8, 10.0),
    ("tree of 7 levels, top-k 10, 60 nodes", "h200_tree_60", 1, 7.4),
)
"""Description, result, batch size, target in milliseconds per step."""
FAST = "_fast"
"""Suffix of the names of results that were measured with --no-exact."""
KINDS = (
    ("GEMMs", "GEMMs"),
    ("attention", "attention"),
    ("small kernels", "small"),
    ("draft trees", "trees"),
    ("sampling, verify", "verify"),
    ("copies", "copies"),
)


def _entry(results: Results, name: str, batch: int) -> dict[str, Any] | None:
    entries = results.get(name, {}).get("results", ())
    return next((entry for entry in entries if entry["batch"] == batch), None)


def speed_table(results: Results) -> str:
    """Return the table of tokens per second and step times, exact and not, with their targets."""
    lines = [
        "| Llama-3.1-8B shape, bfloat16 | batch | exact | --no-exact | target |",
        "|---|---|---|---|---|",
    ]
    for text, name, batch, aim in SPEEDS:
        cells = [_entry(results, name + suffix, batch) for suffix in ("", FAST)]
        if cells == [None, None]:
            continue
        shown = ["" if c is None else f"{c['tokens_per_second']:,.0f}" for c in cells]
        lines.append(f"| {text}, tokens/s | {batch} | {shown[0]} | {shown[1]} | {aim:,} |")
    for text, name, batch, aim in STEPS:
        cells = [_entry(results, name + suffix, batch) for suffix in ("", FAST)]
        if cells == [None, None]:
            continue
        shown = ["" if c is None else f"{c['step_ms']:.2f}" for c in cells]
        lines.append(f"| {text}, ms a step | {batch} | {shown[0]} | {shown[1]} | {aim} |")
    return "\n".join(lines)


EXPERTS = (
    ("Qwen3-30B-A3B, bfloat16, plain", "h200_moe_plain"),
    ("Qwen3-30B-A3B, bfloat16, chain of 3, acceptance 2.5", "h200_moe_chain"),
    ("Qwen3-30B-A3B, FP8 blocks, plain", "h200_moe_fp8"),
    ("the same, chain of 3, acceptance 2.5", "h200_moe_fp8_chain"),
    ("gpt-oss-120b, MXFP4, plain", "h200_gpt_oss_120b"),
    ("the same, chain of 3, acceptance 2.5", "h200_gpt_oss_120b_chain"),
    ("GLM-4.5-Air, FP8 with a scale for each row, plain", "h200_glm_air_fp8"),
    ("the same, chain of 3, acceptance 2.5", "h200_glm_air_fp8_chain"),
    ("Qwen3-Next-80B-A3B, FP8 blocks, plain", "h200_qwen3_next_fp8"),
    ("the same, chain of 3, acceptance 2.5", "h200_qwen3_next_fp8_chain"),
    ("DeepSeek-V2-Lite, bfloat16, plain", "h200_v2_lite"),
    ("the same, chain of 3, acceptance 2.5", "h200_v2_lite_chain"),
    ("DeepSeek-V3, 6 of 61 layers, FP8 blocks, plain", "h200_v3_cut_fp8"),
    ("the same, chain of 3, acceptance 2.5", "h200_v3_cut_fp8_chain"),
    ("DeepSeek-V4, 4 layers, FP8 blocks, plain", "h200_v4_cut_fp8"),
    ("the same, chain of 3, acceptance 2.5", "h200_v4_cut_fp8_chain"),
    ("Llama-3.1-8B, bfloat16, plain", "h200_dense_bf16"),
    ("Llama-3.1-8B, FP8 blocks, plain", "h200_dense_fp8"),
)
"""Description and result."""


def experts_table(results: Results) -> str:
    """Return the table of models with experts: steps, and the least time that reading takes."""
    lines = [
        "| shape | batch | tokens/s | ms a step | least ms | least / step |",
        "|---" * 6 + "|",
    ]
    for text, name in EXPERTS:
        for entry in results.get(name, {}).get("results", ()):
            step, least = entry["step_ms"], entry["least_step_ms"]
            share = f"{100 * least / step:.0f} %" if entry["drafter"] == "plain" else ""
            lines.append(
                f"| {text} | {entry['batch']} | {entry['tokens_per_second']:,.0f} | {step:.2f} "
                f"| {least:.2f} | {share} |"
            )
    return "\n".join(lines)


def parts_table(results: Results) -> str:
    """Return the table of the parts of a step by the profiler, in milliseconds."""
    heads = " | ".join(short for _, short in KINDS)
    lines = [
        f"| step | batch | ms | {heads} | gaps | kernels |",
        "|---" * (len(KINDS) + 5) + "|",
    ]
    seen = dict.fromkeys((text, name) for text, name, _, _ in (*SPEEDS, *STEPS))
    for text, name in seen:
        for suffix, way in (("", "exact"), (FAST, "--no-exact")):
            for entry in results.get(name + suffix, {}).get("results", ()):
                profile = entry.get("profile")
                if not profile:
                    continue
                kinds = [profile["kinds"].get(kind, {"ms": 0.0})["ms"] for kind, _ in KINDS]
                cells = " | ".join(f"{ms:.2f}" for ms in kinds)
                lines.append(
                    f"| {text}, {way} | {entry['batch']} | {profile['step_ms']:.2f} | {cells} "
                    f"| {profile['gaps_ms']:.2f} | {profile['kernels_per_step']:.0f} |"
                )
    return "\n".join(lines)


def schemas_table(results: Results) -> str:
    """Return the table of steps with a JSON schema in every request, compared with steps without."""
    lines = [
        "| draft | batch | without, ms | with, ms | mean | p50 | p99 | tokens a draft: without, with |",
        "|---" * 8 + "|",
    ]
    for name, draft in (("h200_schemas", "chain of 5"), ("h200_schemas_tree", "tree of 32")):
        for entry in results.get(name, {}).get("results", ()):
            held, free, ratio = entry["with_schemas"], entry["without"], entry["ratio"]
            lengths = f"{free['tokens_per_draft']:.2f}, {held['tokens_per_draft']:.2f}"
            times = f"{free['step_ms']['mean']:.2f} | {held['step_ms']['mean']:.2f}"
            ratios = f"{ratio['mean']:.3f}x | {ratio['p50']:.3f}x | {ratio['p99']:.2f}x"
            lines.append(f"| {draft} | {entry['batch']} | {times} | {ratios} | {lengths} |")
    return "\n".join(lines)


def attention_table(results: Results) -> str:
    """Return the table of attention kernels, each case with its fastest tiles."""
    found = results.get("h200_attention", {"rows": [], "copy_tb_s": 0.0})
    lines = ["| case | us a layer | TB/s | of a copy | error |", "|---" * 5 + "|"]
    fastest: dict[str, dict[str, Any]] = {}
    for row in found["rows"]:
        best = fastest.setdefault(row["case"], row)
        if row["us"] < best["us"]:
            fastest[row["case"]] = row
    for case, row in fastest.items():
        if "tflop_s" in row:
            speed = f"{row['tflop_s']:.0f} TFLOP/s | "
        else:
            speed = f"{row['tb_s']:.2f} | {100 * row['tb_s'] / found['copy_tb_s']:.0f} %"
        lines.append(f"| {case} | {row['us']:.1f} | {speed} | {row['error']:.1e} |")
    return "\n".join(lines)


SERVED = (
    ("h200_serve", "free", "Llama-3.1-8B, chain of 5, synthetic acceptance of 3.52"),
    ("h200_serve_http", "free", "twice the rate without drafts, over HTTP, from `eyas serve`"),
    ("h200_serve_schemas", "free", "Qwen3-8B, drafts of a random head: requests without a schema"),
    ("h200_serve_schemas", "schema", "those with one, a quarter, beside them"),
)
"""Result, kind of its requests, description."""


def serve_table(results: Results) -> str:
    """Return the table of an open load: latencies, and requests within the targets."""
    lines = [
        "| load | requests/s | tokens/s | first token p50, p99 | between tokens p50, p99 | in time |",
        "|---" * 6 + "|",
    ]
    for name, kind, text in SERVED:
        if name not in results:
            continue
        (found,) = results[name]["results"]
        if kind not in found["kinds"]:
            continue
        of = found["kinds"][kind]
        first, between = of["first_token_ms"], of["inter_token_ms"]
        rates = " | "
        if kind == "free":  # of the load, all kinds together
            rates = f"{found['ended_per_second']:.1f} of {found['offered_per_second']:.1f}"
            rates += f" | {found['output_tokens_per_second']:,.0f}"
        lines.append(
            f"| {text} | {rates} | {first['p50']:.0f}, {first['p99']:.0f} ms "
            f"| {between['p50']:.1f}, {between['p99']:.1f} ms "
            f"| {100 * found['share_in_time']:.1f} % |"
        )
    return "\n".join(lines)


def rates_table(results: Results) -> str:
    """Return the table of open loads of several rates, with and without drafts."""
    lines = [
        "| requests/s | in time per second | in time | tokens/s | first token p50, p99 |",
        "|---" * 5 + "|",
    ]
    drafted, plain = (results[name]["results"] for name in ("h200_rates", "h200_rates_plain"))
    for pair in zip(drafted, plain, strict=True):
        cells = [f"{pair[0]['rate']:g}"]
        for key, form in (
            ("goodput_per_second", "{:.2f}"),
            ("share_in_time", "{:.1%}"),
            ("output_tokens_per_second", "{:,.0f}"),
        ):
            cells.append(" / ".join(form.format(one[key]) for one in pair))
        firsts = [one["first_token_ms"] for one in pair]
        cells.append(" / ".join(f"{first['p50']:.0f}, {first['p99']:.0f} ms" for first in firsts))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
