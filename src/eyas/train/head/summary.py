"""The summary of a finished run as lines of text: accepted lengths, directories, and how to use
them.

Promises: made from the run's report alone, so that a finished run can be shown again.
Does not know: where the lines are shown.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from eyas.train.head.config import HeadTraining
from eyas.train.head.directory import REPORT_FILE
from eyas.train.head.evaluate import PLAIN
from eyas.train.head.layouts import TITLES, commands


def summary(config: HeadTraining) -> list[str]:
    """Return the lines of the summary of the finished run in `config.output`."""
    report = json.loads((config.output / REPORT_FILE).read_text())
    lines = [
        "",
        f"{TITLES[report['format']]} head for {report['model']}: "
        f"{report['num_parameters'] / 1e6:.2f}M parameters, {report['steps']} steps in "
        f"{report['seconds']:.0f} s",
    ]
    lines += _measured(report)
    for name, head in report["heads"].items():
        lines.append("")
        lines.append(
            f"{config.output / name}: {head['num_bytes']:,} bytes, read by {', '.join(head['read_by'])}"
        )
        used = commands(head["read_by"], report["model"], config.output / name)
        lines += [f"  {engine}: {command}" for engine, command in used.items()]
    return [*lines, "", *_next(config)]


def _measured(report: dict[str, Any]) -> list[str]:
    records = report.get("engine")
    if not records:
        heldout = report["heldout"]
        if heldout is None:
            return ["accepted length: not measured, because no text was held out"]
        return [
            f"accepted length: {heldout['acceptance_length']:.2f} tokens per step, simulated on "
            "held-out answers (not measured by decoding)"
        ]
    count = report["num_eval_prompts"]
    prompts = "prompt" if count == 1 else "prompts"
    lines = [f"accepted length on {count} held-out {prompts}, in tokens per step:"]
    for record in records:
        verdict = ", same tokens" if record["same_tokens"] else ", TOKENS DIFFER from no head"
        lines.append(
            f"  {record['shape']:<12} temperature {record['temperature']:g}  "
            f"{record['tokens_per_step']:5.2f}  {record['num_tokens']} tokens in {record['num_steps']} "
            f"steps{'' if record['shape'] == PLAIN else verdict}"
        )
    return lines


def _next(config: HeadTraining) -> list[str]:
    head = shlex.quote(str(config.output / "specforge"))
    model = shlex.quote(config.model)
    lines = [f"next: eyas verify {model} --head {head}"]
    if config.is_builtin:
        lines = [
            f'next: eyas generate "Write the numbers from 0 to 27." --draft-model {head}',
            *[line.replace("next:", "     ") for line in lines],
            "      eyas train head MODEL --prompts FILE --output DIR   (your own model and prompts)",
        ]
    return lines
