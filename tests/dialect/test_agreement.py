"""A dialect's segmenter splits everything that its grammar accepts correctly."""

from __future__ import annotations

import json
from random import Random

import pytest

from eyas.core import GrammarError
from eyas.dialect.base import Wanted
from eyas.grammar import Choice, Concat, FreeText, Literal, Regex
from tests.thorough import drawn

from .cases import CASES, FAMILIES, PERSON, TOOLS, Case, tokenizers
from .recognise import accepts, accepts_text, example, validator
from .streams import Outcome

NUM_EXAMPLES = drawn(4, 30)
ANSWERS = {
    "JSON": PERSON,
    "words": Choice((Literal("Paris"), Literal("Amsterdam"))),
    "white words": Choice((Literal("  x"), Literal("\n\ny"), Literal("z"))),
    "pattern": Regex(r"[ \n]{0,3}(<think>|a|</think>){0,2}b?"),
    "text, then a word": Concat((FreeText(until=()), Literal("!"))),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_calls_and_content_are_what_was_asked_for(case: Case) -> None:
    spec = case.dialect.output(case.wanted, case.prompt_token_ids)
    if spec is None:
        assert case.wanted == Wanted() or "final" in case.prompt
        return
    for seed in range(NUM_EXAMPLES):
        ids = example(spec.root, case.tokenizer, case.pieces, Random(seed))
        assert accepts(spec.root, ids)
        check(case, ids)


@pytest.mark.parametrize("choice", ["auto", "none"])
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_content_is_exactly_an_answer(family: str, answer: str, choice: str) -> None:
    part = FAMILIES[family]
    for kind, tokenizer in tokenizers(part).items():
        for prompt in part.prompts:
            wanted = Wanted(answer=ANSWERS[answer], tools=TOOLS, choice=choice)
            case = Case(kind, part, tokenizer, prompt, wanted)
            if not case.is_told_by_tokens:
                continue
            try:
                spec = case.dialect.output(wanted, case.prompt_token_ids)
            except GrammarError:
                is_text = kind == "text" or family == "deepseek_v4"
                is_ambiguous = choice == "auto" and is_text
                assert is_ambiguous, "only calls in plain text can look like an answer"
                continue
            assert spec is not None
            for seed in range(NUM_EXAMPLES):
                check(case, example(spec.root, tokenizer, case.pieces, Random(seed)))


def check(case: Case, ids: list[int]) -> None:
    wanted = case.wanted
    outcome = Outcome.of(case.tokenizer.stream(ids).at_once(case.segmenter()))
    by_name = {tool.name: tool.parameters for tool in wanted.tools}
    for name, arguments in outcome.calls:
        validator(json.dumps(by_name[name])).validate(json.loads(arguments))
    if wanted.choice == "none":
        assert not outcome.calls
    if wanted.choice == "required":
        assert len(outcome.calls) >= 1
        assert case.family is FAMILIES["harmony"] or not outcome.content, "but for its preambles"
    if not wanted.parallel:
        assert len(outcome.calls) <= 1
    if wanted.answer is not None and not outcome.calls:
        assert accepts_text(wanted.answer, outcome.content)
    if wanted.answer is not None and outcome.calls:
        assert not outcome.content
