"""The training loop: batches in, a trained head out, with a log, evaluations and a state to go on from.

Promises: on a CPU a run that was stopped and goes on ends with the bits of one that was not; the
state file is written whole or not at all; nothing waits for the device between reports.
Does not know: how texts came about, file formats of heads.

training.json: settings, steps and seconds so far, curve and evaluations. A point of these: step,
seconds, divergence and accuracy by level of training-time test, acceptance_length (simulated: a run of
right greedy drafts, and the token a step always yields), and on the curve rate (share of the highest)
and norm (of the gradient, before clipping).
"""

from __future__ import annotations

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

from eyas.train.head.answers import Say
from eyas.train.head.batches import Batch, BatchSchedule, ScheduledBatch, make_batch
from eyas.train.head.config import HeadTraining
from eyas.train.head.features import Features
from eyas.train.head.loss import Judge, Judged
from eyas.train.head.muon import Muon
from eyas.train.head.network import TrainableHead
from eyas.train.head.progress import Progress, Watch, unwatched

STATE_FILE = "state.pt"
LOG_FILE = "training.json"
_EVAL_PLACES = 1 << 18
"""Places of held-out texts that an evaluation covers at most."""


class Loop:
    """One run over training features, judged on held-out ones."""

    def __init__(
        self,
        config: HeadTraining,
        head: TrainableHead,
        judge: Judge,
        training: Features,
        heldout: Features | None,
        say: Say,
        watch: Watch = unwatched,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.config = config
        self.head = head
        self.judge = judge
        self._training = training
        self._heldout = heldout
        self._say = say
        self._watch = watch
        self._device = judge.target_CD.device
        self._plan = BatchSchedule(
            training.lengths, config.step_tokens, training.together, config.seed
        )
        if not self._plan.per_epoch:
            raise ValueError("prompts: no answer is long enough to learn from; give more prompts")
        self._epoch_steps = max(1, round(config.epochs * self._plan.per_epoch))
        self.num_steps: int | None = self._epoch_steps
        """The step that ends the training; None where only seconds do."""
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
        self._run = torch.compile(judge, dynamic=True) if config.compile else judge
        state_file = config.output / STATE_FILE
        if state_file.exists():
            self._restore(torch.load(state_file, map_location=self._device, weights_only=True))
            say(f"training: going on from step {self.step}")

    def train(self, deadline: float) -> bool:
        """Train to the end or the deadline, in seconds of the loop's clock; whether it is done."""
        if self._is_done():
            if not self.evaluations or self.evaluations[-1]["step"] < self.step:
                self.evaluate()
            return True
        config = self.config
        started = saved = reported = self._clock()
        before, places = self.seconds, 0
        sums: Judged | None = None
        self.head.train()
        for planned, batch in self._batches():
            now = self._clock()
            self.seconds = before + now - started
            if now > deadline:
                self._save()
                return False
            rate = self._set_rates()
            states = self._training.states(planned.members, batch)
            judged = self._forward(self._run, batch, states)
            judged.total.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.head.parameters(), config.clip)
            for optimizer in self._optimizers:
                optimizer.step()
                optimizer.zero_grad()
            sums = _added(sums, judged)
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
                self._tell_watch()
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
        """Judge the head on held-out texts."""
        if self._heldout is None:
            return None
        self.head.eval()
        sums: Judged | None = None
        for members, batch in self.heldout_batches():
            states = self._heldout.states(members, batch)
            sums = _added(sums, self._forward(self.judge, batch, states))
        self.head.train()
        assert sums is not None, "held-out texts have rows"
        result: dict[str, Any] = {
            "step": self.step,
            "seconds": round(self.seconds, 1),
            **_numbers(sums),
        }
        self.evaluations.append(result)
        self._say(
            f"held out: divergence {result['divergence'][0]:.4f}  simulated acceptance length "
            f"{result['acceptance_length']:.3f}  accuracy {_shown(result['accuracy'])}"
        )
        self._write_log()
        return result

    def heldout_batches(self) -> Iterator[tuple[tuple[tuple[int, int], ...], Batch]]:
        """Batches of the held-out texts, up to a fixed number of places."""
        assert self._heldout is not None
        most = min(self.config.step_tokens, 32768)
        plan = BatchSchedule(self._heldout.lengths, most, self._heldout.together, 0)
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
        """(batch, the head's hidden states of each level, the target's final states)."""
        assert self._heldout is not None
        for members, batch in self.heldout_batches():
            states = self._heldout.states(members, batch)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
                hidden = list(self.head.levels(batch, states.tapped))
            yield batch, hidden, states.final_PD

    def _forward(self, judge: Any, batch: Batch, states: Any) -> Judged:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            return judge(self.head, batch, states)

    def _batches(self) -> Iterator[tuple[ScheduledBatch, Batch]]:
        """Batches from the current step on; the next is made while this one is trained."""
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
        """Every batch from the current step on; epochs differ a little in how many they have."""
        epoch, planned, left = 0, self._plan.epoch(0), self.step
        while left >= len(planned):
            left -= len(planned)
            epoch += 1
            planned = self._plan.epoch(epoch)
        while True:
            yield from planned[left:]
            epoch, left = epoch + 1, 0
            planned = self._plan.epoch(epoch)

    def _progress(self) -> float:
        """The share of the training that is done."""
        config, share = self.config, 0.0
        if config.train_seconds is not None:
            share = self.seconds / config.train_seconds
        if self.num_steps is not None:
            share = max(share, self.step / self.num_steps)
        return min(1.0, share)

    def _is_done(self) -> bool:
        return self._progress() >= 1

    def _tell_watch(self) -> None:
        parts = [f"step {self.step}"]
        if self.curve:
            last = self.curve[-1]
            parts.append(f"loss {last['divergence'][0]:.3f}")
            parts.append(f"acceptance length {last['acceptance_length']:.2f}")
        self._watch(Progress("training", self._progress(), 1, "  ".join(parts)))

    def _set_rates(self) -> float:
        """The rates of this step; their share of the highest."""
        progress, warmup = self._progress(), self.config.warmup_share
        if progress < warmup:
            share = (progress + 1 / (self.num_steps or self._epoch_steps)) / warmup
        else:
            left = (1 - progress) / max(1e-9, 1 - warmup)
            share = left if self.config.decay == "linear" else (1 - math.cos(math.pi * left)) / 2
        share = min(1.0, share)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = share * group["highest"]
        return share

    def _report(self, sums: Judged, norm: float, share: float, speed: float) -> None:
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
        self._say(
            f"step {self.step}{ends}  {self.seconds:.0f} s  {speed / 1e3:.0f}k places/s  "
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
        path = self.config.output / STATE_FILE
        partial = path.with_suffix(".partial")
        torch.save(
            {
                "step": self.step,
                "seconds": self.seconds,
                "head": self.head.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
                "curve": self.curve,
                "evaluations": self.evaluations,
            },
            partial,
        )
        os.replace(partial, path)
        self._say(f"training: state saved at step {self.step}")

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
    found: list[torch.optim.Optimizer] = [adam]
    if matrices:
        found.append(Muon(matrices, config.matrix_rate, weight_decay=config.weight_decay))
    for optimizer in found:
        for group in optimizer.param_groups:
            group["highest"] = group["lr"]
    return found


def _added(sums: Judged | None, judged: Judged) -> Judged:
    if sums is None:
        return Judged(judged.total.detach(), *_counts(judged))
    pairs = zip(_counts(sums), _counts(judged), strict=True)
    return Judged(judged.total.detach(), *(a + b for a, b in pairs))


def _counts(judged: Judged) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return judged.divergence_K, judged.rows_K, judged.counted_K, judged.hits_K, judged.run


def _numbers(sums: Judged) -> dict[str, Any]:
    """Means by level; the acceptance length counts the token a step always yields."""
    divergence = (sums.divergence_K / sums.rows_K.clamp(min=1)).tolist()
    accuracy = (sums.hits_K / sums.counted_K.clamp(min=1)).tolist()
    length = 1 + float(sums.run) / max(1, int(sums.counted_K[0]))
    return {
        "divergence": [round(value, 5) for value in divergence],
        "accuracy": [round(value, 5) for value in accuracy],
        "acceptance_length": round(length, 4),
    }


def _shown(accuracy: list[float]) -> str:
    return " ".join(f"{100 * value:.1f}" for value in accuracy)


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)
