"""Run a training phase by phase: answers, vocabulary, features, training, export, evaluation.

Promises: every phase stores its result in the output directory, from which the same command
continues; the directory of another run is refused. Does not know: how a phase works.

The directory holds run.json (settings of data and training; digests of files), answers.jsonl,
vocabulary.json (coverage: the fraction of answer tokens in it; ids), features/ and heldout/
(shards), state.pt (only while the training is unfinished), training.json and training.png, the head
with its model card in specforge/, speculators/ and safeailab/ (the layouts that can represent it),
and report.json, which is written last: model, base_model (on the hub), format, heads (by layout:
num_bytes, read_by), num_parameters, taps, data (counts of texts and tokens), settings, steps and
seconds of the training, noise_beta (by temperature), heldout (the last evaluation of the training)
and engine (the evaluation by decoding `num_eval_prompts` prompts).
"""

from __future__ import annotations

import gc
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from eyas.config import DeviceConfig
from eyas.models import (
    ModelSpec,
    load_model,
    locate_model,
    read_spec,
    resolve_dtype,
)
from eyas.models.heads import HeadSpec
from eyas.runner.device import open_device
from eyas.train.head.answers import Encoder, Text
from eyas.train.head.calibrate import calibrate
from eyas.train.head.card import write_cards
from eyas.train.head.config import HeadTraining
from eyas.train.head.directory import REPORT_FILE, claim_directory
from eyas.train.head.evaluate import evaluate_in_engine
from eyas.train.head.export import export_head, head_spec, hub_name, num_bytes
from eyas.train.head.features import Features, LiveFeatures, StoredFeatures, write_features
from eyas.train.head.layouts import format_lines, readers
from eyas.train.head.loop import STATE_FILE, Loop
from eyas.train.head.loss import HeadLoss
from eyas.train.head.network import TrainableHead
from eyas.train.head.plot import plot_run
from eyas.train.head.progress import Log, OnProgress, Progress, Reporter, ignore_progress
from eyas.train.head.prompts import check_source
from eyas.train.head.target import Target
from eyas.train.head.texts import Texts, gather
from eyas.train.head.vocabulary import choose_vocabulary, coverage

VOCABULARY_FILE = "vocabulary.json"


def train_head(
    config: HeadTraining, log: Log = print, on_progress: OnProgress = ignore_progress
) -> Path | None:
    """Train a draft head, or continue a run. Return the output directory; None if time ran out
    first.

    log: called with each line of text. on_progress: see `progress`.
    ValueError: a setting or a file is invalid; raised before work starts.
    """
    deadline = time.monotonic() + config.stop_after
    reporter = Reporter(log, on_progress)
    config.check()
    sources = {"prompts": config.prompts, "conversations": config.conversations}
    digests = {name: check_source(source, name) for name, source in sources.items() if source}
    device = open_device(DeviceConfig(device=config.device)).device
    directory = locate_model(config.model, None, config.offline)
    target_spec = read_spec(directory)
    if target_spec.hyper is not None:
        raise ValueError(
            f"model: {target_spec.architecture} has {target_spec.hyper.num_streams} residual streams, "
            "and which of them a head reads is not known; train a head for another model"
        )
    spec = head_spec(config, target_spec)
    if claim_directory(config, digests):
        log(f"done: {config.output / REPORT_FILE} exists; delete it to train again")
        return config.output
    for line in format_lines(config, spec):
        log(line)
    texts = gather(config, directory, target_spec, reporter, deadline)
    if texts is None:
        return _stopped(reporter)
    ids_C = _vocabulary(config, directory, target_spec, spec, texts.training, reporter)
    decoder = load_model(directory, dtype=resolve_dtype(config.dtype, device), device=device)
    target = Target(decoder, directory, spec.taps)
    features = _features(config, target, texts, reporter, deadline)
    if features is None:
        return _stopped(reporter)
    loop = _loop(config, spec, target, ids_C, features, reporter)
    if not loop.train(deadline):
        return _stopped(reporter)
    heads, report = _export(config, spec, target, ids_C, loop, texts, reporter)
    prompts = texts.prompts(config.eval_prompts) if config.evaluate else []
    if prompts:
        if time.monotonic() > deadline:
            return _stopped(reporter)
        del loop, features, target, decoder
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        report["num_eval_prompts"] = len(prompts)
        report["engine"] = evaluate_in_engine(config, heads["specforge"], prompts, reporter)
    write_cards(config, heads, report)
    (config.output / REPORT_FILE).write_text(json.dumps(report, indent=1) + "\n")
    (config.output / STATE_FILE).unlink(missing_ok=True)
    return config.output


def _stopped(reporter: Reporter) -> None:
    reporter.log("time is up; run the same command again to continue")


def _vocabulary(
    config: HeadTraining,
    directory: Path,
    target: ModelSpec,
    spec: HeadSpec,
    training: list[Text],
    reporter: Reporter,
) -> Tensor:
    path = config.output / VOCABULARY_FILE
    if path.exists() and (config.output / STATE_FILE).exists():
        return torch.tensor(json.loads(path.read_text())["ids"], dtype=torch.int64)
    tokenizer = Encoder(directory).tokenizer
    ids = choose_vocabulary(
        training, tokenizer, target.vocab_size, spec.draft_vocab_size, target.eos_token_ids
    )
    share = coverage(training, ids, target.vocab_size)
    reporter.log(
        f"vocabulary: {len(ids)} of {target.vocab_size} tokens cover {100 * share:.2f} % of answers"
    )
    path.write_text(json.dumps({"coverage": share, "ids": ids.tolist()}) + "\n")
    return torch.from_numpy(ids)


def _features(
    config: HeadTraining,
    target: Target,
    given: Texts,
    reporter: Reporter,
    deadline: float,
) -> tuple[Features, Features | None] | None:
    training, heldout = given.training, given.heldout
    if config.online:
        return LiveFeatures(target, training), LiveFeatures(target, heldout) if heldout else None
    sources: list[Features] = []
    for texts, name in ((training, "features"), (heldout, "heldout")):
        if not texts:
            continue
        directory = config.output / name
        digest = hashlib.sha256(str((config.model, target.taps, target.dtype)).encode())
        for text in texts:
            digest.update(text.tokens.tobytes())
            digest.update(text.is_answer.tobytes())
        if not write_features(
            target,
            texts,
            directory,
            shard_bytes=config.shard_mib << 20,
            batch_places=config.capture_tokens or (32768 if target.device.type == "cuda" else 2048),
            reporter=reporter,
            deadline=deadline,
            stamp=digest.hexdigest(),
        ):
            return None
        budget = _cache_budget(config, target.device)
        source = StoredFeatures(directory, target.device, budget)
        if not source.is_resident:
            reporter.log(f"{name}: larger than {budget / 2**30:.1f} GiB, streamed from disk")
        sources.append(source)
    return sources[0], sources[1] if len(sources) > 1 else None


def _cache_budget(config: HeadTraining, device: torch.device) -> int:
    """Return the number of bytes of features to cache in memory."""
    if config.cache_gib is not None:
        return int(config.cache_gib * 2**30)
    if device.type == "cuda":
        return int(0.45 * torch.cuda.mem_get_info(device)[0])
    return int(0.25 * psutil.virtual_memory().available)


def _loop(
    config: HeadTraining,
    spec: HeadSpec,
    target: Target,
    ids_C: Tensor,
    features: tuple[Features, Features | None],
    reporter: Reporter,
) -> Loop:
    torch.manual_seed(config.seed)
    torch.set_float32_matmul_precision("high")
    target_UD = target.head_rows(ids_C)
    head = TrainableHead(
        spec, target.embedding_VD.detach().clone(), target_UD.float().cpu(), config.ttt_steps
    )
    head.to(target.device)
    draft_of_V = torch.full((spec.vocab_size,), -1, dtype=torch.int64)
    draft_of_V[ids_C] = torch.arange(len(ids_C))
    draft_of_V = draft_of_V.to(target.device)
    loss = HeadLoss(target_UD, draft_of_V, config.loss_decay, config.ttt_steps)
    count = sum(weight.numel() for weight in head.parameters())
    reporter.log(
        f"head: {count / 1e6:.2f}M parameters, taps after layers {', '.join(map(str, spec.taps))}"
    )
    return Loop(config, head, loss, *features, reporter)


def _export(
    config: HeadTraining,
    spec: HeadSpec,
    target: Target,
    ids_C: Tensor,
    loop: Loop,
    texts: Texts,
    reporter: Reporter,
) -> tuple[dict[str, Path], dict[str, Any]]:
    """Calibrate and write the head, and plot the run. Return the head's directories and the report."""
    reporter.progress(Progress("export", 0, 3, "fitting the weight of noise"))
    betas: dict[float, float] = {}
    if texts.heldout:
        betas = calibrate(lambda: _scored(loop, target), loop.loss.draft_of_V, config.seed)
        reporter.log(
            "noise: " + ", ".join(f"beta {b:g} at temperature {t:g}" for t, b in betas.items())
        )
    reporter.progress(Progress("export", 1, 3, "writing the head"))
    base_model = hub_name(config.model)
    weights = loop.head.state_dict()
    heads = export_head(config.output, spec, weights, ids_C, betas, base_model)
    reporter.progress(Progress("export", 2, 3, "drawing the curve"))
    plot_run(config.output, reporter.log)
    reporter.progress(Progress("export", 3, 3))
    return heads, {
        "model": config.model,
        "base_model": base_model,
        "format": config.format,
        "heads": {
            name: {"num_bytes": num_bytes(head), "read_by": list(readers(name, spec))}
            for name, head in heads.items()
        },
        "num_parameters": sum(weight.numel() for weight in weights.values()),
        "taps": list(spec.taps),
        "num_target_layers": spec.num_target_layers,
        "draft_vocab_size": spec.draft_vocab_size,
        "vocab_size": spec.vocab_size,
        "coverage": json.loads((config.output / VOCABULARY_FILE).read_text())["coverage"],
        "data": texts.about,
        "settings": config.training_settings(),
        "steps": loop.step,
        "seconds": round(loop.seconds, 1),
        "noise_beta": {str(t): beta for t, beta in betas.items()},
        "heldout": loop.evaluations[-1] if loop.evaluations else None,
    }


def _scored(loop: Loop, target: Target) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits of the head [R, C] and of the target [R, V] for held-out rows of all levels."""
    for batch, hidden_KRD, final_PD in loop.heldout_hidden():
        for level, hidden_RD in enumerate(hidden_KRD):
            rows_R = torch.nonzero(batch.is_trained_ZR[level]).squeeze(1)
            at_R = batch.target_ZR[level][rows_R]
            for rows, at in zip(rows_R.split(2048), at_R.split(2048), strict=True):
                own = loop.head.head(hidden_RD[rows].float()).float()
                yield own, target.logits(final_PD[at])
