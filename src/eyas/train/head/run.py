"""A whole training, phase by phase: answers, vocabulary, features, training, export, evaluation.

Promises: every phase leaves what it made in the output directory, and the same command goes on from
there; a directory of another run is refused. Does not know: how a phase works.

The directory: run.json (settings: data and training), answers.jsonl, vocabulary.json (coverage: the
share of answer tokens it holds; ids), features/ and heldout/ (shards), state.pt (a training that has no
report yet), training.json and training.png, the head in specforge/, safeailab/ and speculators/ as far
as a format can hold it, and report.json, written last: num_bytes (of the weights, by format),
noise_beta (by temperature), heldout (the last evaluation in training) and engine (those of decoding).
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
from eyas.train.head.answers import (
    Encoder,
    Say,
    Text,
    complete_texts,
    read_answers,
    shortened,
    write_answers,
)
from eyas.train.head.batches import is_usable
from eyas.train.head.calibrate import calibrate
from eyas.train.head.config import HeadTraining
from eyas.train.head.evaluate import evaluate_in_engine
from eyas.train.head.export import export_head, head_spec, num_bytes
from eyas.train.head.features import Features, LiveFeatures, StoredFeatures, write_features
from eyas.train.head.loop import STATE_FILE, Loop
from eyas.train.head.loss import Judge
from eyas.train.head.network import TrainableHead
from eyas.train.head.plot import plot_run
from eyas.train.head.prompts import check_source, read_conversations, read_prompts
from eyas.train.head.target import Target
from eyas.train.head.vocabulary import choose_vocabulary, coverage

RUN_FILE = "run.json"
REPORT_FILE = "report.json"
VOCABULARY_FILE = "vocabulary.json"


def train_head(config: HeadTraining, say: Say = print) -> Path | None:
    """Train a draft head, or go on with a run; the output directory, None when time ran out first.

    Raises ValueError, before work starts, for settings that cannot work.
    """
    deadline = time.monotonic() + config.stop_after
    config.check()
    for source, setting in ((config.prompts, "prompts"), (config.conversations, "conversations")):
        if source:
            check_source(source, setting)
    place = open_device(DeviceConfig(device=config.device))
    directory = locate_model(config.model, None, config.offline)
    target_spec = read_spec(directory)
    spec = head_spec(config, target_spec)
    if _claim(config):
        say(f"done: {config.output / REPORT_FILE} is there; delete it to train once more")
        return config.output
    texts = _texts(config, directory, target_spec, say, deadline)
    if texts is None:
        return _stopped(say)
    training, heldout = texts
    ids_C = _vocabulary(config, directory, target_spec, spec, training, say)
    decoder = load_model(
        directory, dtype=resolve_dtype(config.dtype, place.device), device=place.device
    )
    target = Target(decoder, directory, spec.taps)
    sources = _features(config, target, training, heldout, say, deadline)
    if sources is None:
        return _stopped(say)
    loop = _loop(config, spec, target, ids_C, sources, say)
    if not loop.train(deadline):
        return _stopped(say)
    places, report = _export(config, spec, target, ids_C, loop, bool(heldout), say)
    if config.evaluate and heldout and config.eval_prompts:
        if time.monotonic() > deadline:
            return _stopped(say)
        del loop, sources, target, decoder
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        prompts = [_prompt_of(text) for text in heldout[: config.eval_prompts]]
        report["engine"] = evaluate_in_engine(config, places["specforge"], prompts, say)
    (config.output / REPORT_FILE).write_text(json.dumps(report, indent=1) + "\n")
    (config.output / STATE_FILE).unlink(missing_ok=True)
    return config.output


def _stopped(say: Say) -> None:
    say("time is up; run the same command again to go on")


def _claim(config: HeadTraining) -> bool:
    """Make the directory this run's own, or refuse another run's; whether the run is done."""
    config.output.mkdir(parents=True, exist_ok=True)
    path, report = config.output / RUN_FILE, config.output / REPORT_FILE
    data, training = config.data_settings(), config.training_settings()
    if path.exists():
        found = json.loads(path.read_text())
        _same(found["data"], data, config.output, "answers")
        if (config.output / STATE_FILE).exists():
            _same(found["training"], training, config.output, "state")
        elif report.exists() and found["training"] == training:
            return True
    elif any(config.output.iterdir()):
        raise ValueError(
            f"output: {config.output} holds other files; give an empty or a new directory"
        )
    report.unlink(missing_ok=True)
    path.write_text(json.dumps({"data": data, "training": training}, indent=1) + "\n")
    return False


def _same(found: dict[str, Any], wanted: dict[str, Any], directory: Path, what: str) -> None:
    for name, value in wanted.items():
        if found.get(name) != value:
            raise ValueError(
                f"output: {directory} holds the {what} of a run with {name} {found.get(name)!r}, not "
                f"{value!r}; give the same settings to go on, or another directory"
            )


def _texts(
    config: HeadTraining, directory: Path, target: ModelSpec, say: Say, deadline: float
) -> tuple[list[Text], list[Text]] | None:
    """Training and held-out texts."""
    longest = min(config.max_length or target.max_position, target.max_position)
    found: list[Text] = []
    if config.prompts:
        conversations = read_prompts(config.prompts, config.thinking)
        is_training = (config.output / STATE_FILE).exists()
        if not is_training and not write_answers(config, conversations, say, deadline):
            return None
        found += read_answers(config.output, longest)
    if config.conversations:
        texts = complete_texts(directory, read_conversations(config.conversations))
        found += [shortened(text, longest) for text in texts if text is not None]
        if refused := sum(text is None for text in texts):
            say(f"conversations: {refused} left out (the template does not render them as a whole)")
    usable = [text for text in found if is_usable(text)]
    if not usable:
        raise ValueError("prompts: no answer is long enough to learn from; give more prompts")
    every = round(1 / config.heldout_share) if config.heldout_share else 0
    heldout = usable[::every] if every and len(usable) > 1 else []
    training = [text for i, text in enumerate(usable) if not every or i % every]
    if not training:
        training, heldout = heldout, []
    tokens = sum(len(text.tokens) for text in training)
    answers = sum(int(text.is_answer.sum()) for text in training)
    say(
        f"texts: {len(training)} to train on ({tokens} tokens, {answers} of answers), "
        f"{len(heldout)} held out"
    )
    return training, heldout


def _vocabulary(
    config: HeadTraining,
    directory: Path,
    target: ModelSpec,
    spec: HeadSpec,
    training: list[Text],
    say: Say,
) -> Tensor:
    path = config.output / VOCABULARY_FILE
    if path.exists() and (config.output / STATE_FILE).exists():
        return torch.tensor(json.loads(path.read_text())["ids"], dtype=torch.int64)
    tokenizer = Encoder(directory).tokenizer
    ids = choose_vocabulary(
        training, tokenizer, target.vocab_size, spec.draft_vocab_size, target.eos_token_ids
    )
    share = coverage(training, ids, target.vocab_size)
    say(f"vocabulary: {len(ids)} of {target.vocab_size} tokens hold {100 * share:.2f} % of answers")
    path.write_text(json.dumps({"coverage": share, "ids": ids.tolist()}) + "\n")
    return torch.from_numpy(ids)


def _features(
    config: HeadTraining,
    target: Target,
    training: list[Text],
    heldout: list[Text],
    say: Say,
    deadline: float,
) -> tuple[Features, Features | None] | None:
    if config.online:
        return LiveFeatures(target, training), LiveFeatures(target, heldout) if heldout else None
    found: list[Features] = []
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
            say=say,
            deadline=deadline,
            stamp=digest.hexdigest(),
        ):
            return None
        budget = _cache_budget(config, target.device)
        source = StoredFeatures(directory, target.device, budget)
        if not source.is_resident:
            say(f"{name}: larger than {budget / 2**30:.1f} GiB, streamed from disk")
        found.append(source)
    return found[0], found[1] if len(found) > 1 else None


def _cache_budget(config: HeadTraining, device: torch.device) -> int:
    """Bytes of features to keep in memory."""
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
    sources: tuple[Features, Features | None],
    say: Say,
) -> Loop:
    torch.manual_seed(config.seed)
    torch.set_float32_matmul_precision("high")
    target_CD = target.head_rows(ids_C)
    head = TrainableHead(
        spec, target.embedding_VD.detach().clone(), target_CD.float().cpu(), config.ttt_steps
    )
    head.to(target.device)
    draft_of_V = torch.full((spec.vocab_size,), -1, dtype=torch.int64)
    draft_of_V[ids_C] = torch.arange(len(ids_C))
    draft_of_V = draft_of_V.to(target.device)
    judge = Judge(target_CD, draft_of_V, config.loss_decay, config.ttt_steps)
    count = sum(weight.numel() for weight in head.parameters())
    say(f"head: {count / 1e6:.2f}M parameters, taps after layers {', '.join(map(str, spec.taps))}")
    return Loop(config, head, judge, *sources, say)


def _export(
    config: HeadTraining,
    spec: HeadSpec,
    target: Target,
    ids_C: Tensor,
    loop: Loop,
    has_heldout: bool,
    say: Say,
) -> tuple[dict[str, Path], dict[str, Any]]:
    """Calibrate, write the head, plot; the head's directories, and the report so far."""
    betas: dict[float, float] = {}
    if has_heldout:
        betas = calibrate(lambda: _scored(loop, target), loop.judge.draft_of_V, config.seed)
        say("noise: " + ", ".join(f"beta {b:g} at temperature {t:g}" for t, b in betas.items()))
    places = export_head(config.output, spec, loop.head.state_dict(), ids_C, betas, say)
    for name, place in places.items():
        say(f"head: {place} ({num_bytes(place)} bytes, {name} format)")
    plot_run(config.output, say)
    return places, {
        "num_bytes": {name: num_bytes(place) for name, place in places.items()},
        "noise_beta": {str(t): beta for t, beta in betas.items()},
        "heldout": loop.evaluations[-1] if loop.evaluations else None,
    }


def _prompt_of(text: Text) -> list[int]:
    """The tokens in front of the first answer token."""
    return text.tokens[: int(text.is_answer.argmax())].tolist()


def _scored(loop: Loop, target: Target) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits of the head and of the target for the same held-out rows, all levels alike."""
    for batch, hidden_KRD, final_PD in loop.heldout_hidden():
        for level, hidden_RD in enumerate(hidden_KRD):
            rows_R = torch.nonzero(batch.is_trained_KR[level]).squeeze(1)
            at_R = batch.target_KR[level][rows_R]
            for rows, at in zip(rows_R.split(2048), at_R.split(2048), strict=True):
                own = loop.head.head(hidden_RD[rows].float()).float()
                yield own, target.decoder.logits(final_PD[at].to(target.dtype))
