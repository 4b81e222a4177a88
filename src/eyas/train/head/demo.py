"""The settings of `eyas train head --demo`: the built-in model, its own prompts, a small head.

Promises: no file and no network is needed; every other setting may be changed.
Does not know: training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEMO_SETTINGS: dict[str, Any] = {
    "prompts": "builtin:128",
    "conversations": "builtin:640",
    "online": True,
    "max_tokens": 96,
    "generate_seconds": 40.0,
    "num_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 352,
    "ttt_steps": 4,
    "batch_tokens": 1024,
    "epochs": 20.0,
    "max_steps": 300,
    "train_seconds": 180.0,
    "log_every": 25,
    "eval_every": 150,
    "eval_prompts": 12,
}
"""Sized for two CPU cores and limited in time, so that it ends within five minutes on slower cores
too. Features are not stored, since they would take hundreds of megabytes."""


def demo_settings(model: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the demo with `changes` applied.

    ValueError: the model is not the built-in one, or `changes` sets the texts.
    """
    if model != "builtin":
        raise ValueError(
            f"demo: is for the built-in model, not {model}; leave out --demo, or the model"
        )
    for name in ("prompts", "conversations"):
        if name in changes:
            raise ValueError(f"{name}: --demo has its own {name}; leave out one of the two")
    return {**DEMO_SETTINGS, **changes}
