"""Train the built-in model on generated conversations, and write a Hugging Face checkpoint.

Promises: a run is determined by its configuration, except for the order of floating-point sums; it
can stop after a given time and continue later; the checkpoint is complete. Does not know: how well
the model answers (`eyas_bench.builtin` measures it).
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from builtin_model.data import ANSWER, PROMPT, ShardStream, StreamSpec
from builtin_model.model import BuiltinModel, BuiltinShape, dense_attend, varlen_attend
from eyas import builtin

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_SHORTEST = 24


@dataclass(frozen=True)
class BuiltinTraining:
    """The settings of a training run. Sizes are in tokens, times in seconds.

    tokenizer: directory with the tokenizer's files. output: directory for the checkpoint, the loss
    curve and, when `stop_after` ends the run early, the state to continue from.
    """

    output: Path
    tokenizer: Path = field(default_factory=builtin.path)
    steps: int = 6000
    batch_tokens: int = 131072
    shard_tokens: int = 16384
    seed: str = "1"
    matrix_rate: float = 0.02
    vector_rate: float = 0.004
    weight_decay: float = 0.05
    warmup_steps: int = 100
    decay_share: float = 0.5
    prompt_weight: float = 0.1
    workers: int = 15
    device: str = "cuda"
    compile: bool = True
    stop_after: float = float("inf")
    log_every: int = 50
    shape: BuiltinShape = field(default_factory=BuiltinShape)


@dataclass(frozen=True)
class _Batch:
    tokens_T: Tensor
    roles_T: Tensor
    positions_T: Tensor
    bounds: Tensor


def train_builtin(config: BuiltinTraining) -> Path:
    """Train, or continue an earlier run. Return the directory of the checkpoint.

    The checkpoint is complete only when all steps are done; until then the directory holds
    `state.pt`, and a call with the same configuration continues.
    """
    if config.batch_tokens % config.shard_tokens:
        raise ValueError("batch_tokens must be a multiple of shard_tokens")
    config.output.mkdir(parents=True, exist_ok=True)
    state_file = config.output / "state.pt"
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    state = torch.load(state_file, weights_only=True) if state_file.exists() else None
    first = int(state["step"]) if state else 0
    per_batch = config.batch_tokens // config.shard_tokens
    stream = ShardStream(
        StreamSpec(
            config.tokenizer / "tokenizer.json",
            config.seed,
            config.shard_tokens,
            config.shape.longest,
            first * per_batch,
        ),
        config.workers,
    )
    try:
        run = _Run(config, state)
        done = run.train(first, lambda: _batch(stream, config))
    finally:
        stream.close()
    if done < config.steps:
        torch.save(run.state(done), state_file)
        print(f"stopped at step {done}; run again to continue", flush=True)
        return config.output
    export(run.model, config.tokenizer, config.output)
    state_file.unlink(missing_ok=True)
    return config.output


def _batch(stream: ShardStream, config: BuiltinTraining) -> _Batch:
    """Return the next batch; bounds are padded with empty conversations to a fixed count."""
    parts = [stream.take() for _ in range(config.batch_tokens // config.shard_tokens)]
    tokens = torch.cat([torch.from_numpy(part.tokens.astype("int32")) for part in parts])
    roles = torch.cat([torch.from_numpy(part.roles) for part in parts])
    lengths = torch.cat([torch.from_numpy(part.lengths) for part in parts])
    bounds = torch.full(
        (config.batch_tokens // _SHORTEST + 1,), config.batch_tokens, dtype=torch.int32
    )
    ends = lengths.cumsum(0, dtype=torch.int32)
    bounds[0] = 0
    bounds[1 : len(ends) + 1] = ends
    starts = torch.repeat_interleave(ends - lengths, lengths)
    positions = torch.arange(config.batch_tokens, dtype=torch.int32) - starts
    device = torch.device(config.device)
    if device.type == "cuda":
        moved = (
            x.pin_memory().to(device, non_blocking=True) for x in (tokens, roles, positions, bounds)
        )
        return _Batch(*moved)
    return _Batch(tokens, roles, positions, bounds)


class _Run:
    """The model, its optimizers and the loss curve of a run."""

    def __init__(self, config: BuiltinTraining, state: dict[str, Any] | None) -> None:
        self.config = config
        self.model = BuiltinModel(config.shape).to(config.device)
        inner = [w for n, w in self.model.named_parameters() if w.ndim == 2 and "embed" not in n]
        outer = [w for n, w in self.model.named_parameters() if w.ndim != 2 or "embed" in n]
        self.muon = torch.optim.Muon(inner, config.matrix_rate, weight_decay=config.weight_decay)
        self.adam = torch.optim.AdamW(
            outer, config.vector_rate, betas=(0.9, 0.95), weight_decay=0.0, eps=1e-10
        )
        self.curve: list[dict[str, float]] = []
        self.seconds = 0.0
        if state:
            self.model.load_state_dict(state["model"])
            self.muon.load_state_dict(state["muon"])
            self.adam.load_state_dict(state["adam"])
            self.curve, self.seconds = state["curve"], state["seconds"]
        on_gpu = torch.device(config.device).type == "cuda"
        attend = varlen_attend(config.shape.longest) if on_gpu else dense_attend
        self._device_type = "cuda" if on_gpu else "cpu"

        def loss(batch: _Batch) -> tuple[Tensor, Tensor]:
            return _loss(self.model, batch, attend, config.prompt_weight)

        self.loss: Callable[[_Batch], tuple[Tensor, Tensor]] = (
            torch.compile(loss, dynamic=False) if config.compile else loss
        )

    def rate(self, step: int) -> float:
        """Return the factor of the learning rate: warm-up, constant, linear to zero."""
        config = self.config
        left = (config.steps - step) / max(1.0, config.decay_share * config.steps)
        return min(1.0, (step + 1) / max(1, config.warmup_steps), left)

    def state(self, step: int) -> dict[str, Any]:
        """Return the state to continue from."""
        return {
            "step": step,
            "model": self.model.state_dict(),
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
            "curve": self.curve,
            "seconds": self.seconds,
        }

    def train(self, first: int, next_batch: Callable[[], _Batch]) -> int:
        """Run the steps from `first`. Return the step at which it stopped."""
        config, started, before = self.config, time.monotonic(), self.seconds
        step = first
        while step < config.steps and time.monotonic() - started < config.stop_after:
            batch = next_batch()
            for optimizer, base in (
                (self.muon, config.matrix_rate),
                (self.adam, config.vector_rate),
            ):
                for group in optimizer.param_groups:
                    group["lr"] = base * self.rate(step)
            with torch.autocast(self._device_type, torch.bfloat16):
                total, answer_loss = self.loss(batch)
            total.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.muon.step()
            self.adam.step()
            self.muon.zero_grad()
            self.adam.zero_grad()
            step += 1
            if step % config.log_every == 0 or step == config.steps:
                self.seconds = before + time.monotonic() - started
                self._log(step, total.item(), answer_loss.item())
        self.seconds = before + time.monotonic() - started
        return step

    def _log(self, step: int, total: float, answer_loss: float) -> None:
        tokens = step * self.config.batch_tokens
        point = {
            "step": step,
            "tokens": tokens,
            "seconds": round(self.seconds, 1),
            "loss": round(total, 5),
            "answer_loss": round(answer_loss, 5),
        }
        self.curve.append(point)
        record = {"config": _plain(self.config), "curve": self.curve}
        (self.config.output / "loss.json").write_text(json.dumps(record, indent=1) + "\n")
        print(
            f"step {step}/{self.config.steps}  loss {total:.4f}  answers {answer_loss:.4f}  "
            f"{tokens / 1e6:.0f}M tokens  {self.seconds:.0f} s",
            flush=True,
        )


def _loss(
    model: BuiltinModel, batch: _Batch, attend: Callable[..., Tensor], prompt_weight: float
) -> tuple[Tensor, Tensor]:
    """Return (weighted loss, mean loss of answer tokens), within each conversation."""
    logits = model.logits(batch.tokens_T, batch.positions_T, batch.bounds, attend).float()
    targets = batch.tokens_T[1:].long()
    losses = F.cross_entropy(logits[:-1], targets, reduction="none")
    inside = batch.positions_T[1:] > 0
    answers = ((batch.roles_T[1:] == ANSWER) & inside).float()
    prompts = ((batch.roles_T[1:] == PROMPT) & inside).float()
    weights = answers + prompt_weight * prompts
    total = (losses * weights).sum() / weights.sum()
    return total, (losses * answers).sum().detach() / answers.sum()


def _plain(config: BuiltinTraining) -> dict[str, Any]:
    hidden = ("output", "tokenizer", "stop_after", "device")
    return {key: value for key, value in asdict(config).items() if key not in hidden}


def export(model: BuiltinModel, tokenizer: Path, directory: Path) -> None:
    """Write the Hugging Face checkpoint of a model in bfloat16."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in model.state_dict().items()
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(_with_tokens(model.shape), indent=2) + "\n")
    generation = {**_token_ids(model.shape), "do_sample": True, "temperature": 0.7, "top_p": 0.9}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    for name in TOKENIZER_FILES:
        if (tokenizer / name).resolve() != (directory / name).resolve():
            shutil.copyfile(tokenizer / name, directory / name)


def _token_ids(shape: BuiltinShape) -> dict[str, Any]:
    """Return the token ids of config.json; control tokens are the last nine ids."""
    end_of_text = shape.vocab_size - 9
    return {"eos_token_id": [end_of_text + 2, end_of_text], "pad_token_id": end_of_text}


def _with_tokens(shape: BuiltinShape) -> dict[str, Any]:
    ids = _token_ids(shape)
    return {
        **shape.config(),
        "eos_token_id": ids["eos_token_id"][0],
        "pad_token_id": ids["pad_token_id"],
    }


def main() -> None:
    """Train the built-in model."""
    defaults = BuiltinTraining(Path())
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--tokenizer", type=Path, default=defaults.tokenizer)
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--batch-tokens", type=int, default=defaults.batch_tokens)
    parser.add_argument("--shard-tokens", type=int, default=defaults.shard_tokens)
    parser.add_argument("--seed", default=defaults.seed)
    parser.add_argument("--matrix-rate", type=float, default=defaults.matrix_rate)
    parser.add_argument("--vector-rate", type=float, default=defaults.vector_rate)
    parser.add_argument("--prompt-weight", type=float, default=defaults.prompt_weight)
    parser.add_argument("--decay-share", type=float, default=defaults.decay_share)
    parser.add_argument("--warmup-steps", type=int, default=defaults.warmup_steps)
    parser.add_argument("--workers", type=int, default=defaults.workers)
    parser.add_argument("--device", default=defaults.device)
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--stop-after", type=float, default=defaults.stop_after)
    parser.add_argument("--log-every", type=int, default=defaults.log_every)
    train_builtin(BuiltinTraining(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
