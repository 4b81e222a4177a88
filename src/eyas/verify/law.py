"""The drafter law on a user's model and prompts: with every drafter the answers are plain decoding's.

Promises: each prompt is answered alone and in a batch with all others, at temperature 0 and above.
Tokens, finish reasons and log-probabilities are compared with those of plain decoding of single
prompts, which itself has no drafts. On a CPU all must agree bit for bit. On a device tokens must
agree, and the largest difference of log-probabilities is reported.
Does not know: how results are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.core import SamplingParams, TokenLogprob
from eyas.outputs import Choice
from eyas.verify.contestants import acceptance
from eyas.verify.lineup import PLAIN, Lineup, Stage

TEMPERATURES = (0.0, 0.7, 1.0)
NUM_TOP = 3
"""Number of the most likely tokens whose log-probabilities are compared too."""

Say = Callable[[str], None]
"""Receives a line of text about what is being done."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one lineup at one temperature, by prompt.

    alone: of prompts one at a time. together: of all prompts in a batch. num_failed: attempts at steps
    that failed and ran again without a draft.
    """

    alone: list[Choice]
    together: list[Choice]
    num_failed: int

    @property
    def all(self) -> list[Choice]:
        """All answers, those of single prompts first."""
        return [*self.alone, *self.together]


AllAnswers = dict[tuple[str, float], Answers]
"""Answers by lineup and temperature."""


def answer(
    stage: Stage, lineups: Sequence[Lineup], prompts: list[list[int]], max_tokens: int, say: Say
) -> AllAnswers:
    """Answer all prompts with all lineups at all temperatures."""
    all_answers: AllAnswers = {}
    metrics = stage.llm.engine.metrics
    for temperature in TEMPERATURES:
        params = [
            SamplingParams(temperature=temperature, seed=i, max_tokens=max_tokens, logprobs=NUM_TOP)
            for i in range(len(prompts))
        ]
        for lineup in lineups:
            say(f"law: {lineup.name} at temperature {temperature:g}")
            stage.use(lineup)
            before = metrics.num_failed_steps
            alone = [
                stage.llm.generate(prompt, own)[0].choices[0]
                for prompt, own in zip(prompts, params, strict=True)
            ]
            together = []
            if len(prompts) > 1:
                together = [one.choices[0] for one in stage.llm.generate(prompts, params)]
            all_answers[lineup.name, temperature] = Answers(
                alone, together, metrics.num_failed_steps - before
            )
    return all_answers


def judge(all_answers: AllAnswers, *, to_the_bit: bool) -> dict[str, Any]:
    """Return the law's part of a report: one case for each lineup and temperature, compared with plain
    decoding of single prompts. to_the_bit: whether log-probabilities must be equal."""
    cases = [
        _case(name, temperature, answers, all_answers[PLAIN, temperature].alone, to_the_bit)
        for (name, temperature), answers in all_answers.items()
    ]
    wrong = [case for case in cases if not case["holds"]]
    num_tokens = sum(case["num_tokens"] for case in cases)
    num_accepted = sum(case["num_accepted"] for case in cases)
    largest = max(case["largest_logprob_difference"] for case in cases)
    how = "bit for bit" if all(case["same_bits"] for case in cases) else f"to {largest:.1e}"
    if wrong:
        text = wrong[0]["first_difference"]
        if len(wrong) > 1:
            text += f" (and {len(wrong) - 1} other cases)"
    else:
        text = (
            f"{num_tokens} tokens in {len(cases)} cases are plain decoding's, log-probabilities "
            f"{how}; {num_accepted} of them were accepted from drafts"
        )
    return {"status": "fail" if wrong else "pass", "text": text, "cases": cases}


def count_acceptance(all_answers: AllAnswers) -> dict[str, Any]:
    """Return the acceptance part of a report, at temperatures 0 and 1."""
    rows = []
    for (name, temperature), answers in all_answers.items():
        if name == PLAIN or temperature not in (0.0, 1.0):
            continue
        used = [choice.usage for choice in answers.all]
        num_steps = max(1, sum(usage.num_steps for usage in used))
        num_accepted = sum(usage.num_accepted_tokens for usage in used)
        rows.append(
            {
                "lineup": name,
                "temperature": temperature,
                "accepted_per_step": round(num_accepted / num_steps, 3),
                **acceptance([usage.drafts for usage in used]),
            }
        )
    best = {
        temperature: max(
            (row["accepted_per_step"] for row in rows if row["temperature"] == temperature),
            default=0.0,
        )
        for temperature in (0.0, 1.0)
    }
    text = ", ".join(f"{most:.2f} a step at temperature {t:g}" for t, most in best.items())
    has_drafts = any(row["num_drafts"] for row in rows)
    return {
        "status": "pass" if has_drafts else "skipped",
        "text": f"at most {text}" if has_drafts else "no drafter proposed a token",
        "rows": rows,
    }


def _case(
    name: str, temperature: float, answers: Answers, expected: list[Choice], to_the_bit: bool
) -> dict[str, Any]:
    first, largest, same_bits = None, 0.0, True
    for where, choices in (("alone", answers.alone), ("in a batch", answers.together)):
        for i, choice in enumerate(choices):
            plain = expected[i]
            label = f"{name} at temperature {temperature:g}, prompt {i + 1} {where}"
            difference = _first_difference(plain, choice)
            if difference is not None:
                first = first or f"{label}: {difference}"
            largest = max(largest, _largest(plain.logprobs, choice.logprobs))
            if plain.logprobs != choice.logprobs:
                same_bits = False
                if to_the_bit:
                    first = first or f"{label}: log-probabilities differ by up to {largest:.1e}"
    num_drafted = sum(choice.usage.num_draft_tokens for choice in answers.all)
    if name == PLAIN and num_drafted:
        first = f"{name}: {num_drafted} tokens were drafted, so that nothing was compared"
    if answers.num_failed:
        first = f"{name}: {answers.num_failed} steps failed and ran without a draft; see the log"
    return {
        "lineup": name,
        "temperature": temperature,
        "holds": first is None,
        "num_answers": len(answers.all),
        "num_tokens": sum(len(choice.token_ids) for choice in answers.all),
        "num_drafted": num_drafted,
        "num_accepted": sum(choice.usage.num_accepted_tokens for choice in answers.all),
        "same_bits": same_bits,
        "largest_logprob_difference": largest,
        "first_difference": first,
    }


def _first_difference(plain: Choice, other: Choice) -> str | None:
    """Describe the first difference of two answers. Returns None if they are equal."""
    if other.error is not None:
        return f"ended with an error: {other.error}"
    pairs = zip(plain.token_ids, other.token_ids, strict=False)
    for number, (expected, token) in enumerate(pairs, start=1):
        if token != expected:
            return f"token {number} is {token}, not {expected}"
    if len(plain.token_ids) != len(other.token_ids):
        return f"{len(other.token_ids)} tokens, not {len(plain.token_ids)}"
    if plain.finish_reason != other.finish_reason:
        return f"ended by {other.finish_reason}, not {plain.finish_reason}"
    return None


def _largest(one: list[TokenLogprob] | None, other: list[TokenLogprob] | None) -> float:
    """Return the largest difference of log-probabilities of chosen tokens, up to the first other
    token."""
    largest = 0.0
    for a, b in zip(one or (), other or (), strict=False):
        if a.token_id != b.token_id:
            break
        largest = max(largest, abs(a.logprob - b.logprob))
    return largest
