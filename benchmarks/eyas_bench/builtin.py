"""Measure the accuracy of the built-in model on conversations that it was not trained on.

Promises: examples come from the held-out split, whose made-up words and listed names do not occur
in training; a rate is the fraction of answers that pass the check of their example.
Does not know: how answers are generated; any function from chat requests to texts can be evaluated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from builtin_model.families import FAMILIES, ChatRequest, Example, draw_example

AnswerFn = Callable[[Sequence[ChatRequest]], Sequence[str]]
"""Maps chat requests to answers, in the same order. An answer may start with its reasoning; tool
calls are written as the model writes them, in <tool_call> markers."""


@dataclass(frozen=True)
class Miss:
    """A wrong answer: its family, the last message, the expected answer and the given one."""

    family: str
    asked: str
    expected: str
    answered: str


@dataclass(frozen=True)
class BuiltinReport:
    """Fractions of correct answers: overall, by family, with and without thinking.

    misses: some wrong answers.
    """

    overall: float
    families: dict[str, float]
    thinking: float
    plain: float
    num_examples: int
    misses: tuple[Miss, ...]


def heldout_examples(num_per_family: int, seed: str) -> list[Example]:
    """Return the evaluation set of a seed, with equally many examples of every family."""
    return [
        draw_example(family, f"{seed}/{index}", "heldout")
        for family in FAMILIES
        for index in range(num_per_family)
    ]


def evaluate(answer_fn: AnswerFn, num_per_family: int = 100, seed: str = "0") -> BuiltinReport:
    """Evaluate the answers to held-out requests. ValueError: the number of answers is wrong."""
    examples = heldout_examples(num_per_family, seed)
    answers = answer_fn([example.request for example in examples])
    if len(answers) != len(examples):
        raise ValueError(f"{len(examples)} requests, but {len(answers)} answers")
    right = [e.check.accepts(answer) for e, answer in zip(examples, answers, strict=True)]
    families = {
        family: _rate([ok for e, ok in zip(examples, right, strict=True) if e.family == family])
        for family in FAMILIES
    }
    thinking = [ok for e, ok in zip(examples, right, strict=True) if e.enable_thinking]
    plain = [ok for e, ok in zip(examples, right, strict=True) if not e.enable_thinking]
    misses = tuple(
        Miss(e.family, str(e.messages[-2]["content"]), e.reference(), answer)
        for e, answer, ok in zip(examples, answers, right, strict=True)
        if not ok
    )
    return BuiltinReport(
        _rate(right), families, _rate(thinking), _rate(plain), len(examples), misses
    )


def _rate(outcomes: Sequence[bool]) -> float:
    return sum(outcomes) / max(1, len(outcomes))
