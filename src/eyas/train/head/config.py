"""The settings of a head's training and their checks.

Promises: `check` refuses invalid settings with the name and the remedy, before anything is loaded;
`data_settings` and `training_settings` must be equal in an interrupted run and the run that
continues it. Does not know: torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

Thinking = Literal["as-given", "on", "off", "both"]
Decay = Literal["cosine", "linear"]
Optimizer = Literal["adamw", "muon"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
HeadVersion = Literal["eagle3.1", "eagle3"]

_CHOICES = {
    "format": get_args(HeadVersion),
    "thinking": get_args(Thinking),
    "decay": get_args(Decay),
    "optimizer": get_args(Optimizer),
    "dtype": get_args(Dtype),
}
_MINIMUMS = {
    "max_tokens": 1,
    "max_length": 8,
    "max_num_seqs": 1,
    "shard_mib": 1,
    "capture_tokens": 16,
    "cache_gib": 0,
    "draft_vocab_size": 1,
    "intermediate_size": 1,
    "num_heads": 1,
    "num_kv_heads": 1,
    "ttt_steps": 1,
    "batch_tokens": 16,
    "max_steps": 1,
    "log_every": 1,
    "eval_every": 1,
    "eval_prompts": 0,
    "weight_decay": 0,
}
_POSITIVE = (
    "generate_seconds",
    "epochs",
    "train_seconds",
    "learning_rate",
    "matrix_rate",
    "clip",
    "save_every",
    "stop_after",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTraining:
    """The settings of a training run. Lengths are in tokens, times in seconds.

    prompts: a JSON lines file, or `builtin:N` for the first N built-in prompts; the target
    generates the answers.
    conversations: the same, with answers to train on as they are. One of both is required.
    format: eagle3.1 has a norm on each state that it reads (`fc_norm`) and passes the normalised
    state to the next level (`norm_output`); eagle3 has neither, and older engines read it as well.
    max_length, draft_vocab_size, intermediate_size, num_heads, num_kv_heads, taps, batch_tokens and
    learning_rate: None is a default by the target.
    online: run the target during training instead of storing its features.
    cache_gib: memory for stored features; None is a fraction of the free memory.
    train_seconds: the learning rate decays to zero over this time, and `epochs` no longer ends the
    training.
    max_steps: the training ends at this step at the latest, with a learning rate of zero.
    stop_after: stop the command after this time; the same command continues.
    optimizer: muon trains matrices by Muon with `matrix_rate`, and norms and the output layer by
    AdamW with `learning_rate`; adamw, as in the EAGLE papers, trains everything by AdamW.
    """

    output: Path
    prompts: str | None = None
    conversations: str | None = None
    model: str = "builtin"
    offline: bool = False
    device: str = "auto"
    dtype: Dtype = "auto"

    thinking: Thinking = "as-given"
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    max_tokens: int = 1024
    max_length: int | None = None
    max_num_seqs: int = 256
    generate_seconds: float = math.inf
    heldout_share: float = 0.05
    seed: int = 0

    online: bool = False
    shard_mib: int = 256
    capture_tokens: int | None = None
    cache_gib: float | None = None

    draft_vocab_size: int | None = None
    intermediate_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    taps: tuple[int, ...] | None = None
    format: HeadVersion = "eagle3.1"

    ttt_steps: int = 7
    loss_decay: float = 0.8
    batch_tokens: int | None = None
    epochs: float = 10.0
    train_seconds: float | None = None
    max_steps: int | None = None
    optimizer: Optimizer = "muon"
    learning_rate: float | None = None
    matrix_rate: float = 0.02
    warmup_share: float = 0.03
    decay: Decay = "cosine"
    clip: float = 0.5
    weight_decay: float = 0.0
    compile: bool = False
    autocast: bool | None = None
    log_every: int = 50
    eval_every: int = 500
    save_every: float = 300.0
    stop_after: float = math.inf
    evaluate: bool = True
    eval_prompts: int = 64

    @property
    def is_builtin(self) -> bool:
        return self.model == "builtin"

    @property
    def rate(self) -> float:
        """The peak learning rate of AdamW."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 2e-3 if self.is_builtin else 1e-4

    @property
    def step_tokens(self) -> int:
        """The number of tokens of a training step, padding included."""
        if self.batch_tokens is not None:
            return self.batch_tokens
        return 65536 if self.is_builtin else 8192

    def check(self) -> None:
        """Check all settings. ValueError: a setting is invalid; the text names it and the remedy."""
        if not self.prompts and not self.conversations:
            raise ValueError(
                "prompts: there are no texts to train on; give --prompts FILE or --prompts builtin:100"
            )
        for name, low in _MINIMUMS.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"{name}: must be at least {low}, not {value}")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}: must be above 0, not {value}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name}: must be one of {', '.join(choices)}, not {getattr(self, name)!r}"
                )
        if self.ttt_steps > 16:
            raise ValueError(f"ttt_steps: at most 16, not {self.ttt_steps}")
        if not self.temperatures or any(not 0 <= t <= 10 for t in self.temperatures):
            raise ValueError("temperatures: give numbers from 0 to 10, separated by commas")
        if not 0 <= self.heldout_share <= 0.5:
            raise ValueError(f"heldout_share: must be between 0 and 0.5, not {self.heldout_share}")
        if not 0 < self.loss_decay <= 1:
            raise ValueError(f"loss_decay: must be above 0 and at most 1, not {self.loss_decay}")
        if not 0 <= self.warmup_share < 1:
            raise ValueError(f"warmup_share: at least 0, and below 1, not {self.warmup_share}")
        if self.output.exists() and not self.output.is_dir():
            raise ValueError(f"output: {self.output} is a file; give a directory")

    def data_settings(self) -> dict[str, Any]:
        """Return the settings that the texts depend on."""
        names = (
            "model",
            "prompts",
            "conversations",
            "thinking",
            "max_tokens",
            "max_length",
            "heldout_share",
            "seed",
        )
        settings = {name: getattr(self, name) for name in names}
        return {**settings, "temperatures": list(self.temperatures)}

    def training_settings(self) -> dict[str, Any]:
        """Return the settings that the head's weights depend on, other than texts and time."""
        names = (
            "draft_vocab_size",
            "intermediate_size",
            "num_heads",
            "num_kv_heads",
            "format",
            "ttt_steps",
            "loss_decay",
            "step_tokens",
            "epochs",
            "train_seconds",
            "max_steps",
            "optimizer",
            "rate",
            "matrix_rate",
            "warmup_share",
            "decay",
            "clip",
            "weight_decay",
            "seed",
            "online",
        )
        settings = {name: getattr(self, name) for name in names}
        return {**settings, "taps": list(self.taps) if self.taps else None}
