"""The grammar law: whatever is asked for, by whichever drafter, what comes out is of the grammar.

Every text that ended by itself passes a validator that knows nothing of automata (jsonschema, `re`);
every streamed prefix is legal; white space in JSON is bounded; no control token stands inside; drafted
answers are plain ones, bit for bit, also when sequences give way to others at every turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eyas.core import Request, SamplingParams
from eyas.grammar import Choice, Concat, Json, Literal, Node, OutputSpec, Regex, Repeat, Source
from eyas.llm import LLM
from eyas.schemas import prepare
from tests.gaps import is_bounded
from tests.laws import structured
from tests.thorough import drawn, only_thorough

PROMPTS = (
    "Extract name and age as JSON: Maria Silva is 34 years old and lives in Porto.",
    "Write a JSON object about a shop with 3 items, in a ```json code block.",
    "What is the capital of France?",
    "Repeat exactly: </think> {{ <|im_end|> ```json",
    "Write the numbers from 0 to 12.",
)
SCHEMAS: tuple[dict[str, Any], ...] = (
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    {"type": "array", "items": {"enum": ["red", "green", 3, None]}, "minItems": 2, "maxItems": 4},
    {
        "type": "object",
        "properties": {
            "kind": {"const": "order"},
            "lines": {
                "type": "array",
                "minItems": 1,
                "maxItems": 2,
                "items": {
                    "type": "object",
                    "properties": {
                        "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2}$"},
                        "price": {"type": "number", "minimum": 0, "maximum": 99},
                    },
                    "required": ["code"],
                    "additionalProperties": False,
                },
            },
            "note": {"anyOf": [{"type": "string", "maxLength": 8}, {"type": "boolean"}]},
        },
        "required": ["kind", "lines"],
        "additionalProperties": False,
    },
    {"type": "string", "minLength": 3, "maxLength": 9},
)
PATTERNS = (
    "(Paris|Amsterdam)",
    r"[a-c]{2,5}-\d{3}",
    r"(yes|no)( indeed)?\.",
    r"\w+@\w+\.(org|com)",
)
MAX_TOKENS = 60


def engine(drafter: str, flights: int = 0) -> LLM:
    """An engine that takes many requests at once: there are hundreds of them here."""
    return structured.engine(drafter, flights=flights, max_num_seqs=24)


@dataclass(frozen=True)
class Law:
    """What an output must be, and how to see that it is."""

    node: Node
    holds: Callable[[str], object]


def of_schema(schema: dict[str, Any]) -> Law:
    def holds(text: str) -> bool:
        jsonschema.validate(json.loads(text), schema)
        return is_bounded(text)

    return Law(Json(prepare(schema, param="schema")), holds)


def of_pattern(pattern: str) -> Law:
    return Law(Regex(pattern), lambda text: re.fullmatch(pattern, text, re.ASCII))


SUMS = Source("lark", 'start: sum\nsum: NUM ("+" NUM)*\nNUM: /[0-9]{1,3}/')
LISTS = Source("ebnf", 'root ::= item ("," item){1,3}\nitem ::= "a" | "b" [0-9]')
LAWS = (
    *map(of_schema, SCHEMAS),
    *map(of_pattern, PATTERNS),
    Law(SUMS, lambda text: re.fullmatch(r"\d{1,3}(\+\d{1,3})*", text)),
    Law(LISTS, lambda text: re.fullmatch(r"(a|b[0-9])(,(a|b[0-9])){1,3}", text)),
    Law(
        Concat((Literal("I say: "), Choice((Literal("yes"), Repeat(Literal("no "), 1, 3))))),
        lambda text: re.fullmatch(r"I say: (yes|(no ){1,3})", text),
    ),
)


NUM_PROMPTS = drawn(1, len(PROMPTS))
"""The prompts of each law and temperature; one by one they all have their turn."""


def requests() -> Iterator[tuple[Request, Law]]:
    """Every law at every temperature, with `NUM_PROMPTS` prompts."""
    llm = engine("root")
    for number, law in enumerate(LAWS):
        for place in range(NUM_PROMPTS):
            for turn, temperature in enumerate((0.0, 0.7, 1.0, 1.5)):
                prompt = PROMPTS[(number + turn + place) % len(PROMPTS)]
                ids = llm.encode_chat([{"role": "user", "content": prompt}])
                params = SamplingParams(
                    temperature=temperature,
                    top_p=0.9 if turn == 1 else 1.0,
                    repetition_penalty=1.2 if turn == 2 else 1.0,
                    min_tokens=5 if turn == 3 else 0,
                    max_tokens=MAX_TOKENS,
                    seed=100 * number + 10 * place + turn,
                    logprobs=0,
                )
                name = f"{number}-{place}-{turn}"
                spec = OutputSpec(root=law.node, param="output")
                yield Request(id=name, prompt_token_ids=ids, params=params, output=spec), law


def run(llm: LLM, asked: list[Request]) -> dict[str, dict[str, Any]]:
    """The answers, and the texts as they were streamed."""
    told: dict[str, dict[str, Any]] = {
        request.id: {"ids": [], "text": "", "logprobs": [], "pieces": []} for request in asked
    }
    for request in asked:
        llm.engine.add(request)
    while llm.engine.has_work():
        for delta in llm.engine.step():
            answer = told[delta.request_id]
            answer["ids"] += delta.token_ids
            answer["text"] += delta.text
            answer["logprobs"] += delta.logprobs or []
            answer["pieces"].append(len(answer["ids"]))
            if delta.finish_reason is not None:
                answer["end"] = (delta.finish_reason, delta.stop_reason, delta.error)
    llm.engine.check()
    return told


def seen(answers: dict[str, dict[str, Any]]) -> dict[str, tuple[object, ...]]:
    """What a drafter must not change."""
    return {k: (a["ids"], a["text"], a["logprobs"], a["end"]) for k, a in answers.items()}


@pytest.fixture(scope="module")
def plain() -> dict[str, dict[str, Any]]:
    return run(engine("root"), [request for request, _ in requests()])


def test_texts_are_of_their_grammar(plain: dict[str, dict[str, Any]]) -> None:
    llm = engine("root")
    control = llm.tokenizer.control_ids
    ended = 0
    for request, law in requests():
        answer = plain[request.id]
        reason, _, error = answer["end"]
        assert error is None
        ids = answer["ids"]
        assert not isinstance(law.node, Json) or is_bounded(answer["text"]), request.id
        if reason == "stop":
            ended += 1
            assert ids[-1] in llm.info.eos_token_ids
            assert law.holds(answer["text"]), (request.id, answer["text"])
            ids = ids[:-1]
        assert not control & set(ids)
        state = llm.engine.compile(request.output).result().start(fresh=True)
        for token in ids:
            state = state.after(token)
            assert state is not None, f"{request.id}: an illegal prefix was streamed"
    assert len(plain) == 4 * NUM_PROMPTS * len(LAWS) and ended >= 0.6 * len(plain)


@pytest.mark.parametrize(
    ("drafter", "flights"),
    [
        *[("blend", 0), ("tree", 1)],
        *only_thorough(*product(("auto", "forced"), (0, 1)), ("blend", 1), ("tree", 0)),
    ],
)
def test_drafted_answers_are_plain_ones(
    plain: dict[str, dict[str, Any]], drafter: str, flights: int
) -> None:
    llm = engine(drafter, flights=flights)
    before = llm.engine.stats()
    # Each drafter has half of the temperatures of a law; `make laws` runs all.
    asked = [request for request, _ in requests()]
    if drawn(True, False):
        num_laws = len(LAWS)
        asked = [
            each
            for number in range(num_laws)
            for each in asked[4 * number : 4 * number + 4][(number + flights) % 2 :: 2]
        ]
    answers = run(llm, asked)
    assert seen(answers) == seen({request.id: plain[request.id] for request in asked})
    after = llm.engine.stats()
    assert after.num_accepted_tokens > before.num_accepted_tokens
    assert any(len(a["pieces"]) < len(a["ids"]) for a in answers.values())


def test_giving_way_changes_nothing(plain: dict[str, dict[str, Any]]) -> None:
    """With room for one and a half sequences the younger ones are thrown out again and again."""
    llm = engine("blend")
    asked = [request for request, _ in requests()][:: 2 + NUM_PROMPTS]
    run_without_check(llm, asked)  # compiles their grammars, so that they come together then
    cache, hidden = llm.engine.cache, []
    lease = cache.admit([1], 8)
    hidden = cache.reserve(lease, max(0, cache.num_available(lease) - 260))
    preempted = llm.engine.stats().num_preemptions
    try:
        answers = run_without_check(llm, asked)
    finally:
        cache.commit(lease, hidden, hidden[:0])
        cache.release(lease, [1])
    assert seen(answers) == seen({request.id: plain[request.id] for request in asked})
    assert llm.engine.stats().num_preemptions > preempted


def run_without_check(llm: LLM, asked: list[Request]) -> dict[str, dict[str, Any]]:
    check, llm.engine.check = llm.engine.check, lambda: None  # type: ignore[method-assign]
    try:
        return run(llm, asked)
    finally:
        llm.engine.check = check  # type: ignore[method-assign]


SCALARS = st.sampled_from(
    [
        {"type": "integer", "minimum": -5, "maximum": 40},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "null"},
        {"type": "string", "maxLength": 6},
        {"type": "string", "pattern": "^[a-z]{2,4}$"},
        {"enum": ["a", "b c", 7, None, True]},
        {"const": {"x": [1, "y"]}},
        {"type": "string", "format": "date"},
        {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
    ]
)


def _deeper(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(["name", "age", "a b", "\u00e9t\u00e9", "items", '"', "$ref2"])
    objects = st.builds(
        lambda fields, cut: {
            "type": "object",
            "properties": fields,
            "required": list(fields)[cut:],
            "additionalProperties": False,
        },
        st.dictionaries(names, inner, max_size=4),
        st.integers(0, 2),
    )
    arrays = st.builds(
        lambda item, most: {"type": "array", "items": item, "maxItems": most},
        inner,
        st.integers(0, 3),
    )
    either = st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3))
    return objects | arrays | either


DRAWN = st.recursive(SCALARS, _deeper, max_leaves=6)


@settings(
    max_examples=drawn(2, 5),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_drawn_schemas(data: st.DataObject) -> None:
    """Eight schemas an example, which run together; each has a temperature and a seed."""
    asked: dict[str, tuple[Law, float, int]] = {}
    for name in "abcdefgh":
        law = of_schema(data.draw(DRAWN))
        asked[name] = law, data.draw(st.sampled_from([0.0, 1.0])), data.draw(st.integers(0, 99))
    answers = []
    for drafter in ("root", "blend"):
        llm = engine(drafter)
        requests = []
        for name, (law, temperature, seed) in asked.items():
            params = SamplingParams(temperature=temperature, seed=seed, max_tokens=MAX_TOKENS)
            ids = llm.encode_chat([{"role": "user", "content": PROMPTS[seed % len(PROMPTS)]}])
            spec = OutputSpec(root=law.node)
            requests.append(Request(id=name, prompt_token_ids=ids, params=params, output=spec))
        answers.append(run(llm, requests))
    assert seen(answers[0]) == seen(answers[1])
    for name, (law, _, _) in asked.items():
        reason, _, error = answers[0][name]["end"]
        assert error is None
        if reason == "stop":
            assert law.holds(answers[0][name]["text"])
