"""Everything a run learns from and is judged on: its texts, and what they are in numbers.

Promises: the same files and settings give the same split; where nothing can be learnt from the error
says what became of the prompts. Does not know: models, features.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.models import ModelSpec
from eyas.train.head.answers import (
    ANSWERS_FILE,
    Say,
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
from eyas.train.head.progress import Watch
from eyas.train.head.prompts import read_conversations, read_prompts


@dataclass(frozen=True, slots=True)
class Texts:
    """training, heldout: texts. about: counts of them, for the report."""

    training: list[Text]
    heldout: list[Text]
    about: dict[str, Any]

    def prompts(self, most: int) -> list[list[int]]:
        """The tokens in front of the first answer token of held-out texts."""
        return [
            text.tokens[: int(text.is_answer.argmax())].tolist() for text in self.heldout[:most]
        ]


def gather(
    config: HeadTraining,
    directory: Path,
    target: ModelSpec,
    say: Say,
    deadline: float,
    watch: Watch,
) -> Texts | None:
    """Texts to train on and held-out ones; None when time ran out. directory: the target's."""
    longest = min(config.max_length or target.max_position, target.max_position)
    found: list[Text] = []
    failures: list[str] = []
    if config.prompts:
        conversations = read_prompts(config.prompts, config.thinking)
        is_training = (config.output / STATE_FILE).exists()
        if not is_training and not write_answers(config, conversations, say, deadline, watch):
            return None
        found += read_answers(config.output, longest)
        failures += read_failures(config.output)
    if config.conversations:
        texts = complete_texts(directory, read_conversations(config.conversations))
        found += [shortened(text, longest) for text in texts if text is not None]
        if refused := sum(text is None for text in texts):
            say(f"conversations: {refused} left out (the template does not render them as a whole)")
    usable = [text for text in found if is_usable(text)]
    if not usable:
        raise ValueError(_nothing(config, found, failures, longest))
    training, heldout = _split(usable, config.heldout_share)
    about = {
        "texts": len(training),
        "tokens": sum(len(text.tokens) for text in training),
        "answer_tokens": sum(int(text.is_answer.sum()) for text in training),
        "heldout_texts": len(heldout),
        "left_out": len(failures) + len(found) - len(usable),
    }
    say(
        f"texts: {about['texts']} to train on ({about['tokens']} tokens, {about['answer_tokens']} of "
        f"answers), {about['heldout_texts']} held out"
    )
    if not heldout and config.heldout_share:
        say(
            "texts: one text is too few to hold any out, so nothing is evaluated; give more prompts"
        )
    return Texts(training, heldout, about)


def _split(usable: list[Text], share: float) -> tuple[list[Text], list[Text]]:
    """(training, held out): both have a text where there are two, unless nothing is to be held out."""
    if not share or len(usable) < 2:
        return usable, []
    every = round(1 / share)
    heldout = usable[::every]
    return [text for i, text in enumerate(usable) if i % every], heldout


def _nothing(config: HeadTraining, found: list[Text], failures: list[str], longest: int) -> str:
    """Why there is no text to learn from."""
    setting = "prompts" if config.prompts else "conversations"
    if failures:
        many = "all of them were" if len(failures) > 1 else "the only one was"
        return (
            f"{setting}: there is no answer to learn from; {many} refused: {failures[0]} (noted in "
            f"{config.output / ANSWERS_FILE}; give other prompts and another --output)"
        )
    if found:
        return (
            f"{setting}: no text has a token of an answer between its third and its {longest}th, "
            "where a head learns; give longer answers (--max-tokens), shorter prompts or a larger "
            "--max-length"
        )
    return f"{setting}: there is no answer to learn from; give more, and time to answer them"
