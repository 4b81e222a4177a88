"""The training loop, with a log, evaluations and a saved state to resume from.

Promises: on a CPU, a stopped and resumed run ends with the same bits as an uninterrupted one; the
state file is replaced atomically; the host does not wait for the device between log lines.
Does not know: where texts come from, file formats of heads.

training.json has settings, steps and seconds so far, curve and evaluations. A point of both has
step, seconds, divergence and accuracy by level of training-time test, and acceptance_length
(simulated: consecutive correct greedy drafts, and the token that every step yields); a point of the
curve also has rate (fraction of the peak learning rate) and norm (of the gradient, before
clipping).
"""

from __future__ import annotations

import io
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.train.head.batches import Batch, BatchSchedule, ScheduledBatch, make_batch
from eyas.train.head.config import HeadTraining
from eyas.train.head.features import Features
from eyas.train.head.loss import HeadLoss, LossSums
from eyas.train.head.network import TrainableHead
from eyas.train.head.progress import Progress, Reporter

STATE_FILE = "state.pt"
LOG_FILE = "training.json"
_EVAL_PLACES = 1 << 18
"""The maximum number of tokens of an evaluation, padding included."""


class Loop:
    """A training run. training, heldout: sources of batches. clock: monotonic time in seconds."""

    def __init__(
        self,
        config: HeadTraining,
        head: TrainableHead,
        loss: HeadLoss,
        training: Features,
        heldout: Features | None,
        reporter: Reporter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.config = config
        self.head = head
        self.loss = loss
        self._training = training
        self._heldout = heldout
        self._reporter = reporter
        self._device = loss.target_UD.device
        self._plan = BatchSchedule(
            training.lengths, config.step_tokens, training.together, config.seed
        )
        if not self._plan.per_epoch:
            raise ValueError("prompts: no answer is long enough to learn from; give more prompts")
        self._epoch_steps = max(1, round(config.epochs * self._plan.per_epoch))
        self.num_steps: int | None = self._epoch_steps
        """The last step of the training; None where only time ends it."""
        if config.train_seconds is not None:
            self.num_steps = config.max_steps
        elif config.max_steps is not None:
            self.num_steps = min(self._epoch_steps, config.max_steps)
        self.step = 0
        self.seconds = 0.0
        self.curve: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self._optimizers = _optimizers(config, head)
        self._autocast = (
            config.autocast if config.autocast is not None else self._device.type == "cuda"
        )
        self._compiled_loss = torch.compile(loss, dynamic=True) if config.compile else loss
        state_file = config.output / STATE_FILE
        if state_file.exists():
            self._restore(torch.load(state_file, map_location=self._device, weights_only=True))
            reporter.log(f"training: continuing from step {self.step}")

    def train(self, deadline: float) -> bool:
        """Train to the end or to the deadline. Return whether the training is done.

        deadline: in seconds of the loop's clock.
        ValueError: the training diverged.
        """
        if self._is_done():
            if not self.evaluations or self.evaluations[-1]["step"] < self.step:
                self.evaluate()
            return True
        config = self.config
        started = saved = reported = self._clock()
        before, places = self.seconds, 0
        sums: LossSums | None = None
        self.head.train()
        for planned, batch in self._batches():
            now = self._clock()
            self.seconds = before + now - started
            if now > deadline:
                self._save()
                return False
            rate = self._set_rates()
            states = self._training.states(planned.members, batch)
            batch_sums = self._forward(self._compiled_loss, batch, states)
            batch_sums.total.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.head.parameters(), config.clip)
            for optimizer in self._optimizers:
                optimizer.step()
                optimizer.zero_grad()
            sums = _add(sums, batch_sums)
            self.step += 1
            places += batch.tokens_BL.numel()
            is_last = self._is_done()
            if self.step % config.log_every == 0 or is_last:
                now = self._clock()
                self._report(sums, float(norm), rate, places / (now - reported))
                reported, places, sums = now, 0, None
            if self.step % config.eval_every == 0 or is_last:
                self.evaluate()
            self.seconds = before + self._clock() - started
            try:
                self._report_progress()
            except BaseException:
                self._save()
                raise
            if self._clock() - saved > config.save_every and not is_last:
                saved = self._clock()
                self._save()
            if is_last:
                break
        self.seconds = before + self._clock() - started
        self._write_log()
        self._save()
        return True

    @torch.no_grad()
    def evaluate(self) -> dict[str, Any] | None:
        """Evaluate the head on held-out texts, and return the point; None without such texts."""
        if self._heldout is None:
            return None
        self.head.eval()
        sums: LossSums | None = None
        for members, batch in self.heldout_batches():
            states = self._heldout.states(members, batch)
            sums = _add(sums, self._forward(self.loss, batch, states))
        self.head.train()
        assert sums is not None, "held-out texts have rows"
        result: dict[str, Any] = {
            "step": self.step,
            "seconds": round(self.seconds, 1),
            **_numbers(sums),
        }
        self.evaluations.append(result)
        self._reporter.log(
            f"held out: divergence {result['divergence'][0]:.4f}  simulated acceptance length "
            f"{result['acceptance_length']:.3f}  accuracy {_shown(result['accuracy'])}"
        )
        self._write_log()
        return result

    def heldout_batches(self) -> Iterator[tuple[tuple[tuple[int, int], ...], Batch]]:
        """Yield (members, batch) of held-out texts, up to a fixed number of tokens."""
        assert self._heldout is not None
        batch_tokens = min(self.config.step_tokens, 32768)
        plan = BatchSchedule(self._heldout.lengths, batch_tokens, self._heldout.together, 0)
        used = 0
        for planned in plan.epoch(0):
            if used > _EVAL_PLACES:
                return
            texts = self._heldout.texts(planned.members, planned.shards)
            batch = make_batch(texts, self.config.ttt_steps).to(self._device)
            used += batch.tokens_BL.numel()
            yield planned.members, batch

    @torch.no_grad()
    def heldout_hidden(self) -> Iterator[tuple[Batch, list[Tensor], Tensor]]:
        """Yield (batch, the head's hidden states of each level, the target's final states)."""
        assert self._heldout is not None
        for members, batch in self.heldout_batches():
            states = self._heldout.states(members, batch)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
                hidden = list(self.head.levels(batch, states.tapped))
            yield batch, hidden, states.final_PD

    def _forward(self, loss: Any, batch: Batch, states: Any) -> LossSums:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            return loss(self.head, batch, states)

    def _batches(self) -> Iterator[tuple[ScheduledBatch, Batch]]:
        """Yield batches from the current step on; the next one is prepared in a thread."""
        with ThreadPoolExecutor(1) as pool:
            waiting: Future[Batch] | None = None
            previous: ScheduledBatch | None = None
            for planned in self._planned():
                texts = self._training.texts(planned.members, planned.shards)
                following = pool.submit(make_batch, texts, self.config.ttt_steps)
                if waiting is not None and previous is not None:
                    yield previous, waiting.result().to(self._device)
                waiting, previous = following, planned

    def _planned(self) -> Iterator[ScheduledBatch]:
        """Yield the schedule from the current step on; epochs have slightly different lengths."""
        epoch, planned, skipped = 0, self._plan.epoch(0), self.step
        while skipped >= len(planned):
            skipped -= len(planned)
            epoch += 1
            planned = self._plan.epoch(epoch)
        while True:
            yield from planned[skipped:]
            epoch, skipped = epoch + 1, 0
            planned = self._plan.epoch(epoch)

    def _progress(self) -> float:
        """Return the fraction of the training that is done."""
        config, share = self.config, 0.0
        if config.train_seconds is not None:
            share = self.seconds / config.train_seconds
        if self.num_steps is not None:
            share = max(share, self.step / self.num_steps)
        return min(1.0, share)

    def _is_done(self) -> bool:
        return self._progress() >= 1

    def _report_progress(self) -> None:
        parts = [f"step {self.step}"]
        if self.curve:
            last = self.curve[-1]
            parts.append(f"loss {last['divergence'][0]:.3f}")
            parts.append(f"acceptance length {last['acceptance_length']:.2f}")
        self._reporter.progress(Progress("training", self._progress(), 1, "  ".join(parts)))

    def _set_rates(self) -> float:
        """Set the learning rates of this step, and return them as a fraction of their peak."""
        progress, warmup = self._progress(), self.config.warmup_share
        if progress < warmup:
            share = (progress + 1 / (self.num_steps or self._epoch_steps)) / warmup
        else:
            rest = (1 - progress) / max(1e-9, 1 - warmup)
            share = rest if self.config.decay == "linear" else (1 - math.cos(math.pi * rest)) / 2
        share = min(1.0, share)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = share * group["highest"]
        return share

    def _report(self, sums: LossSums, norm: float, share: float, speed: float) -> None:
        if not math.isfinite(norm):
            raise ValueError(
                f"learning_rate: the training diverged before step {self.step}; give a lower rate "
                "(--learning-rate, and --matrix-rate with muon) and another directory"
            )
        point: dict[str, Any] = {
            "step": self.step,
            "seconds": round(self.seconds, 1),
            "rate": share,
            "norm": round(norm, 4),
            **_numbers(sums),
        }
        self.curve.append(point)
        ends = "" if self.num_steps is None else f"/{self.num_steps}"
        self._reporter.log(
            f"step {self.step}{ends}  {self.seconds:.0f} s  {speed / 1e3:.0f}k padded tokens/s  "
            f"divergence {point['divergence'][0]:.4f} .. {point['divergence'][-1]:.4f}  "
            f"accuracy {_shown(point['accuracy'])}"
        )
        self._write_log()

    def _write_log(self) -> None:
        record = {
            "settings": self.config.training_settings(),
            "steps": self.step,
            "seconds": round(self.seconds, 1),
            "curve": self.curve,
            "evaluations": self.evaluations,
        }
        _replace(self.config.output / LOG_FILE, json.dumps(record, indent=1).encode() + b"\n")

    def _save(self) -> None:
        buffer = io.BytesIO()  # torch writes files itself, and calls a full disk a RuntimeError
        torch.save(
            {
                "step": self.step,
                "seconds": self.seconds,
                "head": self.head.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
                "curve": self.curve,
                "evaluations": self.evaluations,
            },
            buffer,
        )
        _replace(self.config.output / STATE_FILE, buffer.getbuffer())
        self._reporter.log(f"training: state saved at step {self.step}")

    def _restore(self, state: dict[str, Any]) -> None:
        self.step, self.seconds = state["step"], state["seconds"]
        self.curve, self.evaluations = state["curve"], state["evaluations"]
        self.head.load_state_dict(state["head"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def _optimizers(config: HeadTraining, head: TrainableHead) -> list[torch.optim.Optimizer]:
    named = dict(head.named_parameters())
    matrices = [
        weight
        for name, weight in named.items()
        if config.optimizer == "muon" and weight.ndim == 2 and name != "head.weight"
    ]
    chosen = {id(weight) for weight in matrices}
    others = [weight for weight in named.values() if id(weight) not in chosen]
    adam = torch.optim.AdamW(
        others,
        config.rate,
        betas=(0.9, 0.95),
        weight_decay=config.weight_decay,
        fused=others[0].device.type == "cuda",
    )
    optimizers: list[torch.optim.Optimizer] = [adam]
    if matrices:
        optimizers.append(
            torch.optim.Muon(matrices, config.matrix_rate, weight_decay=config.weight_decay)
        )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["highest"] = group["lr"]
    return optimizers


def _add(sums: LossSums | None, batch_sums: LossSums) -> LossSums:
    if sums is None:
        return LossSums(batch_sums.total.detach(), *_counts(batch_sums))
    pairs = zip(_counts(sums), _counts(batch_sums), strict=True)
    return LossSums(batch_sums.total.detach(), *(a + b for a, b in pairs))


def _counts(sums: LossSums) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return sums.divergence_Z, sums.rows_Z, sums.counted_Z, sums.hits_Z, sums.run


def _numbers(sums: LossSums) -> dict[str, Any]:
    """Return means by level, and the acceptance length, which includes the token of every step."""
    divergence = (sums.divergence_Z / sums.rows_Z.clamp(min=1)).tolist()
    accuracy = (sums.hits_Z / sums.counted_Z.clamp(min=1)).tolist()
    length = 1 + float(sums.run) / max(1, int(sums.counted_Z[0]))
    return {
        "divergence": [round(value, 5) for value in divergence],
        "accuracy": [round(value, 5) for value in accuracy],
        "acceptance_length": round(length, 4),
    }


def _shown(accuracy: list[float]) -> str:
    return " ".join(f"{100 * value:.1f}" for value in accuracy)


def _replace(path: Path, content: bytes | memoryview) -> None:
    """Replace a file at once. OSError names the file."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
