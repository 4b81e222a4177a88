"""The cases that eyas was born from: what a grammar asks for holds under every draft.

Each case runs with every drafter, greedy and at temperature 1, with both grammar libraries where both
can: the answer is plain decoding's to the bit, and it is what was asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

import jsonschema
import pytest

from eyas.core import GrammarError, SamplingParams
from eyas.dialect import Wanted
from eyas.grammar import (
    Budget,
    Concat,
    FreeText,
    Json,
    Literal,
    Marker,
    Node,
    OutputSpec,
    Regex,
)
from eyas.llm import LLM, EncodedPrompt
from eyas.outputs import Choice, GenerationOutput
from eyas.schemas import prepare
from tests.laws.structured import (
    BACKENDS,
    DRAFTING,
    PLAIN,
    ask,
    asked_for,
    engine,
    told,
    weather_tools,
)
from tests.thorough import drawn, only_thorough

WRONG_FIELDS = {
    "type": "object",
    "properties": {
        "family_name": {"type": "string", "maxLength": 24},
        "years_of_age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["family_name", "years_of_age"],
    "additionalProperties": False,
}
HERO = {
    "$defs": {
        "named": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 20}},
            "required": ["name"],
        },
        "class": {"enum": ["warrior", "mage", "thief"]},
    },
    "allOf": [{"$ref": "#/$defs/named"}],
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "class": {"$ref": "#/$defs/class"},
        "level": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["name", "class", "level"],
    "additionalProperties": False,
}
PLAIN_HERO = {key: value for key, value in HERO.items() if key != "allOf"}
"""xgrammar refuses allOf: it would not hold it."""
MARKER = "<|channel|>final<|message|>"


@dataclass(frozen=True)
class Case:
    """A question and what its answer must be. holds: whether a whole answer is what was asked for."""

    question: str
    wanted: Callable[[], Wanted | Node | OutputSpec]
    holds: Callable[[Choice], bool]
    system: str | None = None
    both: bool = True


def answer_of(schema: dict[str, object]) -> Json:
    return Json(prepare(schema, param="response_format"))


def marker_tokens() -> list[int]:
    """The marker as ordinary tokens, far more of them than a draft has."""
    tokens = engine(PLAIN).tokenizer.encode_text(MARKER, continues=True)
    assert len(tokens) > 8
    return tokens


def valid(schema: dict[str, object]) -> Callable[[Choice], bool]:
    def holds(choice: Choice) -> bool:
        jsonschema.validate(json.loads(choice.content), schema)
        return not choice.content.startswith(("```", "{{"))

    return holds


def calls_a_tool(choice: Choice) -> bool:
    """One call at least, and arguments of its schema."""
    schemas = {tool.name: tool.parameters for tool in weather_tools()}
    for call in choice.tool_calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    return bool(choice.tool_calls)


def after_marker(choice: Choice) -> bool:
    before, marker, rest = choice.text.partition(MARKER)
    jsonschema.validate(json.loads(rest), WRONG_FIELDS)
    return bool(marker) and MARKER not in before


CASES = {
    "a city": Case(
        "What is the capital of the Netherlands? Or of France?",
        lambda: Regex("(Paris|Amsterdam)"),
        lambda choice: choice.text in ("Paris", "Amsterdam"),
    ),
    "tempting wrong fields": Case(
        "Extract name and age as JSON: Maria Silva is 34 years old.",
        lambda: Wanted(answer=answer_of(WRONG_FIELDS)),
        valid(WRONG_FIELDS),
    ),
    "reasoning ends in mid-draft, fences lured": Case(
        "Write a hero as JSON in a ```json code block: Brenda, a mage of level 7.",
        lambda: Wanted(answer=answer_of(HERO)),
        valid(HERO),
        system="Always put JSON into ```json fences.",
        both=False,
    ),
    "the same without allOf": Case(
        "Write a hero as JSON in a ```json code block: Brenda, a mage of level 7.",
        lambda: Wanted(answer=answer_of(PLAIN_HERO)),
        valid(PLAIN_HERO),
        system="Always put JSON into ```json fences.",
    ),
    "a marker of many tokens": Case(
        "Extract name and age as JSON: Maria Silva is 34 years old.",
        lambda: OutputSpec(
            root=Concat((FreeText(until=(Marker(MARKER),)), answer_of(WRONG_FIELDS))),
            budget=Budget(9, (Marker(MARKER),), tuple(marker_tokens())),
        ),
        after_marker,
        both=False,
    ),
    "a call is required, with reasoning": Case(
        "What is the weather in Oslo?",
        lambda: Wanted(tools=weather_tools(), choice="required"),
        calls_a_tool,
    ),
    "the bonus token at the border": Case(
        "What is the capital of France?",
        lambda: Wanted(answer=Concat((Literal("It is "), Regex("[A-Z][a-z]{2,12}"), Literal(".")))),
        lambda choice: re.fullmatch(r"It is [A-Z][a-z]{2,12}\.", choice.content) is not None,
    ),
}


TEMPERATURES = (0.0, 1.0)
ALONE = drawn(("a city", "the bonus token at the border"), tuple(CASES))
"""Cases whose plain answers are computed without neighbours."""
QUICK = ("auto",)
"""Drafters of `make test` with llguidance. The blend, which has all the others in it but the draft
model, runs with xgrammar here and with llguidance in the grammar law."""


def request(llm: LLM, name: str, temperature: float) -> tuple[EncodedPrompt, SamplingParams]:
    case = CASES[name]
    params = SamplingParams(
        temperature=temperature,
        seed=7,
        max_tokens=drawn(96, 200),
        logprobs=1,
        n=2 if temperature else 1,
    )
    return asked_for(llm, case.question, case.wanted(), system=case.system), params


_PLAIN: dict[str, dict[tuple[str, float], GenerationOutput]] = {}


def plain(backend: str) -> dict[tuple[str, float], GenerationOutput]:
    """The answers of plain decoding to all cases of a library. `ALONE` are asked one by one, the others
    at once."""
    if backend not in _PLAIN:
        llm = engine(PLAIN, backend)
        found = {}
        for key in (key for key in keys_of(backend) if key[0] in ALONE):
            asked, params = request(llm, *key)
            found[key] = llm.generate(asked, params)[0]
        if others := [key for key in keys_of(backend) if key[0] not in ALONE]:
            all_asked, all_params = zip(*(request(llm, *key) for key in others), strict=True)
            outputs = llm.generate(list(all_asked), list(all_params))
            found |= zip(others, outputs, strict=True)
        _PLAIN[backend] = found
    return _PLAIN[backend]


def keys_of(backend: str) -> list[tuple[str, float]]:
    """Cases of both libraries run at one temperature with each; `make laws` runs all combinations."""
    found = []
    for number, (name, case) in enumerate(CASES.items()):
        if case.both:
            chosen = TEMPERATURES[(number + BACKENDS.index(backend)) % len(TEMPERATURES)]
            found += [(name, each) for each in drawn((chosen,), TEMPERATURES)]
        elif backend != "xgrammar":
            found += [(name, each) for each in TEMPERATURES]
    return found


@pytest.mark.parametrize(
    ("backend", "drafter"),
    [
        *[("llguidance", drafter) for drafter in QUICK],
        ("xgrammar", "blend"),
        *only_thorough(*[("llguidance", drafter) for drafter in DRAFTING if drafter not in QUICK]),
        *only_thorough(("xgrammar", PLAIN), ("xgrammar", "chain")),
    ],
)
def test_birth_cases(drafter: str, backend: str) -> None:
    """All cases at once."""
    if backend == "xgrammar":
        pytest.importorskip("xgrammar")
    keys, expected = keys_of(backend), plain(backend)
    llm = engine(drafter, backend)
    asked, params = zip(*(request(llm, *key) for key in keys), strict=True)
    num_accepted = 0
    for key, output in zip(keys, llm.generate(list(asked), params), strict=True):
        name, temperature = key
        assert told(output) == told(expected[key]), key
        for choice in output.choices:
            num_accepted += choice.usage.num_accepted_tokens
            if choice.finish_reason == "stop":
                assert CASES[name].holds(choice), (name, choice.text)
            else:  # a sampled text may run into its length, never into an error
                assert temperature and choice.finish_reason == "length", choice.error
    if drafter != PLAIN:
        assert num_accepted > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_malformed_pattern_is_refused_with_its_place(backend: str) -> None:
    if backend == "xgrammar":
        pytest.importorskip("xgrammar")
    with pytest.raises(GrammarError, match=r"position \d+") as error:
        ask(engine("root", backend), "?", Regex("(Paris|Amsterdam}"))
    assert error.value.fault == "invalid"
    output = ask(engine("root", backend), "?", Regex("(Paris|Amsterdam)"))
    assert output.text in ("Paris", "Amsterdam")
