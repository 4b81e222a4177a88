"""Make the token sequences to train on, from the target's answers or from complete conversations.

Promises: answers are appended to one JSON lines file as they finish, so that a stopped run
continues from there; the seed and temperature of a prompt depend on its index alone. Answers that
reached the maximum length are used; failed ones are counted and omitted. Does not know: features,
training.

A line of answers.jsonl has index (of the prompt), finish (the finish reason), prompt and answer
(token ids); or index and error, where there is no answer.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from eyas.config import DeviceConfig, DraftConfig, EngineConfig, ModelConfig, SchedulerConfig
from eyas.core import Request, RequestError, SamplingParams
from eyas.engine.engine import Engine
from eyas.engine.startup.build import build_engine
from eyas.text import ChatTemplate, Tokenizer
from eyas.train.head.config import HeadTraining
from eyas.train.head.progress import Progress, Reporter
from eyas.train.head.prompts import Conversation

ANSWERS_FILE = "answers.jsonl"
_CHUNK = 2048
"""Number of conversations that a process encodes at a time."""


@dataclass(frozen=True, slots=True)
class Text:
    """A training text: token ids, and 1 for each token of an answer, 0 for others."""

    tokens: NDArray[np.int32]
    is_answer: NDArray[np.uint8]


@dataclass(slots=True)
class AnswerCounts:
    """Numbers of answers, of answers cut by length, of failures and of answer tokens."""

    answers: int = 0
    cut: int = 0
    failed: int = 0
    tokens: int = 0


class Encoder:
    """Encodes conversations as token ids with the target's chat template."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer = Tokenizer.from_directory(directory)
        self._template = ChatTemplate.from_directory(directory, self.tokenizer)

    def prompt(self, conversation: Conversation) -> list[int]:
        """Return the token ids before the answer."""
        if conversation.prompt is not None:
            return self.tokenizer.encode_prompt(conversation.prompt)
        return self._render(conversation, conversation.messages, opens=True)

    def complete(self, conversation: Conversation) -> Text | None:
        """Encode a conversation with its answer.

        None: the template renders the prompt differently when there is an answer.
        """
        whole = self._render(conversation, conversation.messages, opens=False)
        prompt = self._render(conversation, conversation.messages[:-1], opens=True)
        if whole[: len(prompt)] != prompt:
            return None
        return answered(prompt, whole[len(prompt) :])

    def _render(
        self, conversation: Conversation, messages: Sequence[dict[str, object]], *, opens: bool
    ) -> list[int]:
        if self._template is None:
            raise RequestError(
                "prompts: this model has no chat template; give lines with 'prompt' instead"
            )
        options: dict[str, bool] = {"add_generation_prompt": opens}
        if conversation.enable_thinking is not None:
            options["enable_thinking"] = conversation.enable_thinking
        tools = list(conversation.tools) or None
        return self._template.render_ids(list(messages), tools=tools, **options)


def complete_texts(directory: Path, conversations: list[Conversation]) -> list[Text | None]:
    """Encode conversations as texts, in several processes if there are many.

    None stands for a conversation that the template refuses or cannot encode as a whole.
    """
    if len(conversations) < 2 * _CHUNK:
        return _complete_chunk(directory, conversations)
    chunks = [conversations[i : i + _CHUNK] for i in range(0, len(conversations), _CHUNK)]
    workers = min(16, len(chunks), psutil.cpu_count(logical=False) or 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        parts = pool.map(_complete_chunk, [directory] * len(chunks), chunks)
        return [text for part in parts for text in part]


def _complete_chunk(directory: Path, conversations: list[Conversation]) -> list[Text | None]:
    encoder = Encoder(directory)
    texts: list[Text | None] = []
    for conversation in conversations:
        try:
            texts.append(encoder.complete(conversation))
        except RequestError:
            texts.append(None)
    return texts


def answered(prompt: list[int], answer: list[int]) -> Text:
    """Return the text of a prompt and its answer."""
    is_answer = np.zeros(len(prompt) + len(answer), dtype=np.uint8)
    is_answer[len(prompt) :] = 1
    return Text(np.array(prompt + answer, dtype=np.int32), is_answer)


def write_answers(
    config: HeadTraining,
    conversations: list[Conversation],
    reporter: Reporter,
    deadline: float,
) -> bool:
    """Generate the target's answers that are missing. Return whether the deadline was met.

    deadline: monotonic time in seconds at which to stop.
    """
    path = config.output / ANSWERS_FILE
    done = {entry["index"] for entry in _entries(path)}
    missing = [index for index in range(len(conversations)) if index not in done]
    if not missing:
        return True
    reporter.log(f"answers: {len(missing)} of {len(conversations)} prompts to answer")
    engine = build_engine(_settings(config))
    ends = min(deadline, time.monotonic() + config.generate_seconds)
    try:
        with path.open("a", encoding="utf-8") as file:
            counts = _Generation(config, engine, file.write, reporter).run(
                conversations, missing, ends
            )
    finally:
        engine.shutdown()
        del engine
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    reporter.log(
        f"answers: {counts.answers} written, {counts.cut} of them cut at the maximum length, "
        f"{counts.failed} failed"
    )
    return time.monotonic() < deadline


def read_answers(directory: Path, longest: int) -> list[Text]:
    """Return the answers written so far, in the order of their prompts, cut to `longest` tokens."""
    entries = sorted(_entries(directory / ANSWERS_FILE), key=lambda entry: entry["index"])
    texts = [answered(e["prompt"], e["answer"]) for e in entries if e.get("answer")]
    return [shortened(text, longest) for text in texts]


def read_failures(directory: Path) -> list[str]:
    """Return the reason of each prompt without an answer, in the order of the file."""
    entries = (entry for entry in _entries(directory / ANSWERS_FILE) if "answer" not in entry)
    return [str(entry.get("error", f"it ended by {entry.get('finish')}")) for entry in entries]


def shortened(text: Text, longest: int) -> Text:
    """Return the first `longest` tokens of a text."""
    return Text(text.tokens[:longest], text.is_answer[:longest])


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of the file; an interruption may have cut the last one."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n") and line.strip():
                yield json.loads(line)


def _settings(config: HeadTraining) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(
            path=config.model,
            dtype=config.dtype,
            max_model_len=config.max_length,
            offline=config.offline,
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_batch_tokens=max(2048, 4 * config.max_num_seqs),
        ),
        draft=DraftConfig(drafter="root"),
        device=DeviceConfig(device=config.device),
    )


class _Generation:
    """Answers prompts with an engine, many at a time.

    write: gets a line for each answer that has ended, and for each prompt that was refused.
    """

    def __init__(
        self,
        config: HeadTraining,
        engine: Engine,
        write: Callable[[str], object],
        reporter: Reporter,
    ) -> None:
        self._config = config
        self._engine = engine
        self._write = write
        self._reporter = reporter
        self._encoder = Encoder(Path(engine.info.directory))
        self._prompts: dict[str, list[int]] = {}
        self._answers: dict[str, list[int]] = {}
        self._counts = AnswerCounts()

    def run(
        self, conversations: list[Conversation], missing: list[int], ends: float
    ) -> AnswerCounts:
        """Answer the conversations with these indices until the time `ends`."""
        waiting, counts = iter(missing), self._counts
        most = 2 * self._config.max_num_seqs
        started = reported = time.monotonic()
        while time.monotonic() < ends:
            while len(self._prompts) < most and (index := next(waiting, None)) is not None:
                self._submit(index, conversations[index])
            if not self._prompts:
                break
            for delta in self._engine.step():
                self._answers[delta.request_id] += delta.token_ids
                if delta.finish_reason is not None:
                    self._end(delta.request_id, delta.finish_reason)
            ended = counts.answers + counts.failed
            speed = counts.tokens / max(1e-9, time.monotonic() - started)
            note = f"{speed:.0f} tokens/s"
            self._reporter.progress(Progress("answers", ended, len(missing), note))
            if time.monotonic() - reported > 10:
                reported = time.monotonic()
                self._reporter.log(f"answers: {ended}/{len(missing)}  {note}")
        return counts

    def _submit(self, index: int, conversation: Conversation) -> None:
        try:
            prompt = self._encoder.prompt(conversation)
            params = _params(self._config, index)
            self._engine.add(Request(id=str(index), prompt_token_ids=prompt, params=params))
        except RequestError as error:
            if not self._counts.failed:
                self._reporter.log(
                    f"answers: prompt {index + 1} is refused (later ones are not shown): {error}"
                )
            self._counts.failed += 1
            self._write(json.dumps({"index": index, "error": str(error)}) + "\n")
        else:
            self._prompts[str(index)], self._answers[str(index)] = prompt, []

    def _end(self, key: str, reason: str) -> None:
        prompt, answer = self._prompts.pop(key), self._answers.pop(key)
        entry: dict[str, object] = {"index": int(key), "finish": reason}
        if reason in ("stop", "length"):
            entry |= {"prompt": prompt, "answer": answer}
            self._counts.answers += 1
            self._counts.tokens += len(answer)
            self._counts.cut += reason == "length"
        else:
            self._counts.failed += 1
        self._write(json.dumps(entry, separators=(",", ":")) + "\n")


def _params(config: HeadTraining, index: int) -> SamplingParams:
    return SamplingParams(
        temperature=config.temperatures[index % len(config.temperatures)],
        max_tokens=config.max_tokens,
        seed=config.seed * 1_000_003 + index,
    )
