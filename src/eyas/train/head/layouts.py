"""The file layouts that a head can be written in, the engines that read each, and their commands.

Promises: follows from the head's facts alone, before anything is trained; a layout whose readers
would run the head differently is omitted, and the reason says which settings would allow it.
Does not know: training, files.

Each layout has a directory with its name: specforge (SpecForge, SGLang), speculators (vLLM),
safeailab (the EAGLE authors' code).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from eyas.models.heads import HeadFormat, HeadSpec, default_taps, format_gaps
from eyas.train.head.config import HeadTraining

LAYOUTS: tuple[HeadFormat, ...] = ("specforge", "speculators", "safeailab")
assert set(LAYOUTS) == set(get_args(HeadFormat))
TITLES = {"eagle3": "EAGLE-3", "eagle3.1": "EAGLE-3.1"}
WHAT_IT_IS = {
    "eagle3": "the network of the EAGLE-3 paper, which every engine with EAGLE-3 runs",
    "eagle3.1": "EAGLE-3 with a norm on each state that it reads (fc_norm) and on the states between "
    "levels (norm_output); SGLang and vLLM of mid-2026 or newer run it, older releases ignore the "
    "norms",
}
STEPS, TOPK, NODES = 5, 4, 16
"""The tree size in the commands for other engines."""


def supported_layouts(spec: HeadSpec) -> tuple[HeadFormat, ...]:
    """Return the layouts that can represent the head."""
    return tuple(name for name in LAYOUTS if not format_gaps(spec, name))


def readers(layout: str, spec: HeadSpec) -> tuple[str, ...]:
    """Return the engines that run a head in this layout as it was trained."""
    if layout == "specforge":
        # SGLang and vLLM count listed layers differently.
        is_default = spec.taps == default_taps(spec.num_target_layers)
        return ("eyas", "SGLang", "vLLM") if is_default else ("eyas", "SGLang")
    return ("eyas", "vLLM") if layout == "speculators" else ("eyas", "SafeAILab's EAGLE")


def format_lines(config: HeadTraining, spec: HeadSpec) -> list[str]:
    """Return log lines that say which layouts will be written, and why others will not."""
    written = "; ".join(
        f"{name}/ (read by {', '.join(readers(name, spec))})" for name in supported_layouts(spec)
    )
    lines = [
        f"format: {TITLES[config.format]}, {WHAT_IT_IS[config.format]}",
        f"format: it will be written as {written}",
    ]
    for name in LAYOUTS:
        if gaps := format_gaps(spec, name):
            lines.append(
                f"format: not as {name}/ (read by {', '.join(readers(name, spec))}), which cannot "
                f"hold {', '.join(gaps)}; {_remedy(spec)} can be written as all three"
            )
    return lines


def _remedy(spec: HeadSpec) -> str:
    """Return the options with which every layout can be written."""
    parts = ["--format eagle3"]
    if spec.taps != default_taps(spec.num_target_layers):
        parts.append("without --taps")
    return " ".join(parts)


def commands(engines: Sequence[str], model: str, directory: Path) -> dict[str, str]:
    """Return the command that starts each engine with the head in `directory`.

    Only eyas has the built-in model.
    """
    head, quoted = shlex.quote(str(directory)), shlex.quote(model)
    speculative = {"method": "eagle3", "model": str(directory), "num_speculative_tokens": STEPS}
    by_engine = {
        "eyas": f"eyas serve {quoted} --draft-model {head}",
        "SGLang": f"python -m sglang.launch_server --model-path {quoted} "
        f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {head} "
        f"--speculative-num-steps {STEPS} --speculative-eagle-topk {TOPK} "
        f"--speculative-num-draft-tokens {NODES}",
        "vLLM": f"vllm serve {quoted} --speculative-config " + shlex.quote(json.dumps(speculative)),
        "SafeAILab's EAGLE": f"EaModel.from_pretrained(base_model_path={json.dumps(model)}, "
        f"ea_model_path={json.dumps(str(directory))})",
    }
    return {name: by_engine[name] for name in (("eyas",) if model == "builtin" else engines)}
