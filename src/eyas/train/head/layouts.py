"""Which file layouts a head is written in, who reads each, and with which commands.

Promises: known from the head's facts alone, before anything is trained; a layout is left out where its
readers would run the head differently, and the reason says what would let it in.
Does not know: training, files.

A layout's directory is called as its trainer or format is: specforge (SpecForge, SGLang), speculators
(vLLM), safeailab (the EAGLE authors' code).
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
    "eagle3.1": "EAGLE-3 with a norm on each state it reads (fc_norm) and normalised states passed on "
    "(norm_output); SGLang and vLLM run it since the middle of 2026, older releases ignore the norms",
}
STEPS, TOPK, NODES = 5, 4, 16
"""The tree that commands for other engines ask for."""


def held_layouts(spec: HeadSpec) -> tuple[HeadFormat, ...]:
    """The layouts that can hold the head."""
    return tuple(name for name in LAYOUTS if not format_gaps(spec, name))


def readers(layout: str, spec: HeadSpec) -> tuple[str, ...]:
    """The engines that run a head in this layout as it was trained."""
    if layout == "specforge":
        # named layers are counted differently by the two
        is_default = spec.taps == default_taps(spec.num_target_layers)
        return ("eyas", "SGLang", "vLLM") if is_default else ("eyas", "SGLang")
    return ("eyas", "vLLM") if layout == "speculators" else ("eyas", "SafeAILab's EAGLE")


def announcement(config: HeadTraining, spec: HeadSpec) -> list[str]:
    """What will be written, in lines."""
    held = held_layouts(spec)
    named = "; ".join(f"{name}/ (read by {', '.join(readers(name, spec))})" for name in held)
    lines = [
        f"format: {TITLES[config.format]}, {WHAT_IT_IS[config.format]}",
        f"format: it will be written as {named}",
    ]
    for name in LAYOUTS:
        if gaps := format_gaps(spec, name):
            lines.append(
                f"format: not as {name}/ (read by {', '.join(readers(name, spec))}), which cannot "
                f"hold {', '.join(gaps)}; {_remedy(config, spec)} can be written as all three"
            )
    return lines


def _remedy(config: HeadTraining, spec: HeadSpec) -> str:
    """The settings that every layout can hold."""
    parts = ["--format eagle3"]
    if spec.taps != default_taps(spec.num_target_layers):
        parts.append("without --taps")
    return " ".join(parts)


def commands(engines: Sequence[str], model: str, place: Path) -> dict[str, str]:
    """How each engine is started with the head in `place`; only eyas has the built-in model."""
    head, quoted = shlex.quote(str(place)), shlex.quote(model)
    speculative = {"method": "eagle3", "model": str(place), "num_speculative_tokens": STEPS}
    every = {
        "eyas": f"eyas serve {quoted} --draft-model {head}",
        "SGLang": f"python -m sglang.launch_server --model-path {quoted} "
        f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {head} "
        f"--speculative-num-steps {STEPS} --speculative-eagle-topk {TOPK} "
        f"--speculative-num-draft-tokens {NODES}",
        "vLLM": f"vllm serve {quoted} --speculative-config " + shlex.quote(json.dumps(speculative)),
        "SafeAILab's EAGLE": f"EaModel.from_pretrained(base_model_path={json.dumps(model)}, "
        f"ea_model_path={json.dumps(str(place))})",
    }
    asked = ("eyas",) if model == "builtin" else engines
    return {name: every[name] for name in asked}
