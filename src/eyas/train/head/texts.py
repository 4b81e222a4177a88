"""Collect the texts of a run: to train on, and held out for evaluation.

Promises: the same files and settings give the same split; if there is no usable text, the error
says why. Does not know: models, features.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.models import ModelSpec
from eyas.train.head.answers import (
    ANSWERS_FILE,
    Text,
    complete_texts,
    read_answers,
    read_failures,
    shortened,
    write_answers,
)
from eyas.train.head.batches import is_usable
from eyas.train.head.config import HeadTraining
from eyas.train.head.loop import STATE_FILE
from eyas.train.head.progress import Reporter
from eyas.train.head.prompts import read_conversations, read_prompts


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a run. about: their counts, for the report."""

    training: list[Text]
    heldout: list[Text]
    about: dict[str, Any]

    def prompts(self, max_count: int) -> list[list[int]]:
        """Return the tokens before the first answer token of held-out texts."""
        return [
            text.tokens[: int(text.is_answer.argmax())].tolist()
            for text in self.heldout[:max_count]
        ]


def gather(
    config: HeadTraining,
    directory: Path,
    target: ModelSpec,
    reporter: Reporter,
    deadline: float,
) -> Texts | None:
    """Return the texts of the run; None if time ran out.

    directory: of the target. deadline: monotonic time in seconds.
    """
    longest = min(config.max_length or target.max_position, target.max_position)
    texts: list[Text] = []
    failures: list[str] = []
    if config.prompts:
        conversations = read_prompts(config.prompts, config.thinking)
        is_training = (config.output / STATE_FILE).exists()
        if not is_training and not write_answers(config, conversations, reporter, deadline):
            return None
        texts += read_answers(config.output, longest)
        failures += read_failures(config.output)
    if config.conversations:
        completed = complete_texts(directory, read_conversations(config.conversations))
        texts += [shortened(text, longest) for text in completed if text is not None]
        if refused := sum(text is None for text in completed):
            reporter.log(
                f"conversations: {refused} skipped (the chat template does not support them)"
            )
    usable = [text for text in texts if is_usable(text)]
    if not usable:
        raise ValueError(_no_text_error(config, texts, failures, longest))
    training, heldout = _split(usable, config.heldout_share)
    about = {
        "texts": len(training),
        "tokens": sum(len(text.tokens) for text in training),
        "answer_tokens": sum(int(text.is_answer.sum()) for text in training),
        "heldout_texts": len(heldout),
        "left_out": len(failures) + len(texts) - len(usable),
    }
    reporter.log(
        f"texts: {about['texts']} to train on ({about['tokens']} tokens, {about['answer_tokens']} in "
        f"answers), {about['heldout_texts']} held out"
    )
    if not heldout and config.heldout_share:
        reporter.log(
            "texts: one text is too few to hold any out, so nothing is evaluated; give more prompts"
        )
    return Texts(training, heldout, about)


def _split(usable: list[Text], share: float) -> tuple[list[Text], list[Text]]:
    """Split texts into training and held-out texts.

    Both have a text if there are at least two, unless `share` is 0.
    """
    if not share or len(usable) < 2:
        return usable, []
    every = round(1 / share)
    heldout = usable[::every]
    return [text for i, text in enumerate(usable) if i % every], heldout


def _no_text_error(
    config: HeadTraining, texts: list[Text], failures: list[str], longest: int
) -> str:
    """Return the error text for a run without usable texts."""
    setting = "prompts" if config.prompts else "conversations"
    if failures:
        many = "all of them were" if len(failures) > 1 else "the only one was"
        return (
            f"{setting}: there is no answer to learn from; {many} refused: {failures[0]} (noted in "
            f"{config.output / ANSWERS_FILE}; give other prompts and another --output)"
        )
    if texts:
        return (
            f"{setting}: no text has an answer token between its third and its {longest}th token, "
            "where a head is trained; give longer answers (--max-tokens), shorter prompts or a larger "
            "--max-length"
        )
    return f"{setting}: there is no answer to learn from; give more, and time to answer them"
