"""What `LLM.chat` and `generate` give back for `output=` and tools, with the built-in model."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import json
import re
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pydantic
import pytest
import torch

from eyas import (
    Grammar,
    GrammarError,
    JsonSchema,
    OutputIncomplete,
    Regex,
    RequestError,
    SamplingParams,
)
from eyas.llm import LLM
from eyas.typed import typed
from tests.thorough import only_thorough

QUESTION = [{"role": "user", "content": "Extract as JSON: Maria is 34 and lives in Porto."}]
GREEDY = SamplingParams(temperature=0, max_tokens=120)
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
        },
    },
}


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)


@dataclasses.dataclass
class Place:
    city: Literal["Porto", "Oslo"]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(max_num_seqs=4, num_slots=3000)


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        (Person, Person),
        (Place, Place),
        (Colour, Colour),
        (Literal["yes", "no"], str),
        (Regex("[0-9]{3}"), str),
        (re.compile("[0-9]{3}"), str),
        (Grammar('root ::= "a" | "b"'), str),
        ('start: "a" | "b"', str),
        (JsonSchema({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}), list),
    ],
)
def test_values_come_back(llm: LLM, output: Any, kind: type) -> None:
    thinks = output in (Person, Colour)
    found = llm.chat(QUESTION, GREEDY, output=output, enable_thinking=thinks)
    assert isinstance(found, kind)
    both = llm.generate(["As JSON: ", "Or: "], GREEDY, output=output)
    assert [isinstance(value, kind) for value in both] == [True, True]


def test_what_is_not_whole_says_so(llm: LLM) -> None:
    short = SamplingParams(temperature=0, max_tokens=8)
    with pytest.raises(OutputIncomplete, match="max_tokens") as cut:
        llm.chat(QUESTION, short, output=Person)
    assert cut.value.reason == "length"
    stopped = SamplingParams(temperature=0, max_tokens=120, stop=('"age"',))
    with pytest.raises(OutputIncomplete):
        llm.chat(QUESTION, stopped, output=Person, enable_thinking=False)
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    with pytest.raises(OutputIncomplete, match="get_weather") as called:
        llm.chat(asked, GREEDY, tools=[TOOL], tool_choice="required", output=Person)
    assert called.value.choice.tool_calls[0].arguments.startswith("{")


def test_a_function_may_be_named_as_openai_names_it(llm: LLM) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    asked = [{"role": "user", "content": "Hello!"}]
    answer = llm.chat(asked, GREEDY, tools=[TOOL], tool_choice=choice)[0].choices[0]
    assert [call.name for call in answer.tool_calls] == ["get_weather"]
    with pytest.raises(RequestError, match="tool_choice"):
        llm.chat(asked, GREEDY, tools=[TOOL], tool_choice={"name": 3})


@pytest.mark.parametrize("messages", ["x", ["x"], {"role": "user", "content": "x"}, [[1]]])
def test_what_is_no_message_is_named(llm: LLM, messages: Any) -> None:
    with pytest.raises(RequestError, match=r"^messages\[0\]: must be a message such as"):
        llm.chat(messages, GREEDY)
    with pytest.raises(RequestError, match=r"^messages: give at least one message"):
        llm.chat(None, GREEDY)  # type: ignore[arg-type]


@pytest.mark.parametrize("messages", [[[]], [QUESTION, []], [5], [None], [QUESTION, 5]])
def test_what_is_no_conversation_is_named(llm: LLM, messages: Any) -> None:
    number = f"[{len(messages) - 1}]" if len(messages) > 1 else ""
    with pytest.raises(
        RequestError, match=rf"^messages{re.escape(number)}: give at least one message"
    ):
        llm.chat(messages, GREEDY)


def test_a_message_of_several_conversations_is_named(llm: LLM) -> None:
    alien = [*QUESTION, {"role": "alien", "content": "x"}]
    with pytest.raises(RequestError, match=r"^messages\[1\]\[1\]\.role: ") as caught:
        llm.chat([QUESTION, alien], GREEDY)
    assert caught.value.param == "messages[1][1].role"
    with pytest.raises(RequestError, match=r"^messages\[1\]\.role: "):
        llm.chat(alien, GREEDY)


@pytest.mark.parametrize(
    ("param", "call"),
    [
        ("sampling_params", lambda llm: llm.generate("a", 5)),
        ("sampling_params", lambda llm: llm.generate("a", "x")),
        ("sampling_params", lambda llm: llm.generate(["a", "b"], 5)),
        ("sampling_params", lambda llm: llm.generate(["a", "b"], [GREEDY])),
        ("sampling_params[1]", lambda llm: llm.generate(["a", "b"], [GREEDY, 5])),
        ("sampling_params[1].stop", lambda llm: llm.generate(["a", "b"], [GREEDY, {"stop": 5}])),
        (
            "sampling_params[1].max_new_tokens",
            lambda llm: llm.generate(["a", "b"], [GREEDY, {"max_new_tokens": -1}]),
        ),
        (
            "sampling_params[0].regex",
            lambda llm: llm.generate(["a", "b"], [{"regex": "("}, GREEDY]),
        ),
        ("prompts[1]", lambda llm: llm.generate(["a", [10**6]], [GREEDY, GREEDY])),
        ("sampling_params", lambda llm: llm.stream("a", [GREEDY])),
        ("json_schema", lambda llm: llm.generate("a", {"json_schema": 5})),
        ("stop", lambda llm: llm.generate("a", {"stop": 5})),
        ("logit_bias", lambda llm: llm.generate("a", {"logit_bias": 5})),
        ("stop_token_ids", lambda llm: llm.generate("a", {"stop_token_ids": 5})),
        ("ignore_eos", lambda llm: llm.generate("a", {"ignore_eos": "false"})),
        ("skip_special_tokens", lambda llm: SamplingParams(skip_special_tokens=2)),
        ("parallel_tool_calls", lambda llm: llm.chat(QUESTION, parallel_tool_calls="no")),
        ("tools", lambda llm: llm.chat(QUESTION, GREEDY, tools=5)),
        ("tools", lambda llm: llm.chat(QUESTION, GREEDY, tools=[5])),
        ("tools", lambda llm: llm.encode_chat(QUESTION, tools=5)),
        ("tool_choice", lambda llm: llm.chat(QUESTION, tool_choice={"function": 5})),
        ("max_reasoning_tokens", lambda llm: llm.chat(QUESTION, max_reasoning_tokens="x")),
        ("max_reasoning_tokens", lambda llm: llm.chat(QUESTION, max_reasoning_tokens=-1)),
        ("messages", lambda llm: llm.encode_chat([])),
        (
            "continue_final_message",
            lambda llm: llm.encode_chat(
                QUESTION, add_generation_prompt=True, continue_final_message=True
            ),
        ),
        ("messages", lambda llm: llm.stream_chat(None)),
        ("prompts", lambda llm: llm.generate("")),
        ("prompts[1]", lambda llm: llm.generate(["a", ""], GREEDY)),
        ("prompts[1]", lambda llm: llm.generate(["a", [10**6]], GREEDY)),
        ("prompts[1]", lambda llm: llm.generate(["a", 5], GREEDY)),
        ("prompts[0]", lambda llm: llm.generate([{"text": "x"}], GREEDY)),
        ("prompt", lambda llm: llm.stream("", GREEDY)),
        ("prompt", lambda llm: llm.stream(None, GREEDY)),
    ],
)
def test_an_argument_that_cannot_be_is_named(llm: LLM, param: str, call: Any) -> None:
    with pytest.raises(RequestError, match=f"^{re.escape(param)}: ") as caught:
        call(llm)
    assert caught.value.param == param


def test_conversations_with_tools_of_their_own_are_answered_together(llm: LLM) -> None:
    """Beside raw prompts, as each is alone."""
    asked: list[Any] = [{"role": "user", "content": "Where is Ann?"}]
    required = {"tools": [TOOL], "tool_choice": "required"}
    prompts = [llm.prepare_chat(asked), "ping", llm.prepare_chat(asked, **required)]
    together = llm.generate(prompts, GREEDY)
    alone = [
        llm.chat(asked, GREEDY),
        llm.generate("ping", GREEDY),
        llm.chat(asked, GREEDY, **required),
    ]
    for found, (expected,) in zip(together, alone, strict=True):
        ours, theirs = found.choices[0], expected.choices[0]
        assert ours.text == theirs.text and ours.tool_calls == theirs.tool_calls
        assert ours.reasoning == theirs.reasoning
        assert found.prompt_token_ids == expected.prompt_token_ids
    free, _, called = together
    assert (
        called.choices[0].tool_calls
        and not free.choices[0].tool_calls
        and free.choices[0].reasoning
    )
    text = "".join(delta.text for delta in llm.stream(prompts[2], GREEDY))
    assert text == called.choices[0].text
    with pytest.raises(RequestError, match=r"^output: is for prompts"):
        llm.generate(prompts[0], GREEDY, output=int)
    with pytest.raises(RequestError, match=r"^prompts: "):
        llm.generate(dataclasses.replace(prompts[0], prompt=[]), GREEDY)


def test_prompts_and_messages_may_come_from_an_iterator(llm: LLM) -> None:
    shortly = SamplingParams(temperature=0, max_tokens=2)
    given = ["The eagle", "A bird"]
    several = llm.generate(iter(given), shortly)  # type: ignore[arg-type]
    assert [output.text for output in several] == [llm.generate(p, shortly)[0].text for p in given]
    assert len(llm.chat(iter(QUESTION), shortly)) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("prompts", [None, 5, 0.5, b"x", {1, 2}])
def test_what_is_no_prompt_is_named(llm: LLM, prompts: Any) -> None:
    with pytest.raises(RequestError, match=r"^prompts: must be a text, token ids, or a list"):
        llm.generate(prompts, GREEDY)


def test_a_stream_is_held_to_the_same(llm: LLM) -> None:
    deltas = llm.stream_chat(QUESTION, GREEDY, output=Regex("yes|no"), enable_thinking=False)
    assert "".join(delta.text for delta in deltas) in ("yes", "no")


def test_models_inside_of_other_types_come_back(llm: LLM) -> None:
    few = Annotated[list[Person], pydantic.Field(min_length=1, max_length=2)]
    people = llm.chat(QUESTION, GREEDY, output=few, enable_thinking=False)
    assert people
    assert all(isinstance(person, Person) for person in people)
    both = llm.chat([QUESTION, QUESTION], GREEDY, output=dict[Literal["who"], Person])
    assert [list(found) for found in both] == [["who"], ["who"]]


def test_what_a_dataclass_asks_of_pydantic_is_kept(llm: LLM) -> None:
    @dataclasses.dataclass
    class Age:
        years: Annotated[int, pydantic.Field(ge=500, le=503)]

    age = llm.chat(QUESTION, GREEDY, output=Age, enable_thinking=False)
    assert 500 <= age.years <= 503


@pytest.mark.parametrize("seed", [0, *only_thorough(1, 2)])
def test_times_and_decimals_come_back(llm: LLM, seed: int) -> None:
    @dataclasses.dataclass
    class Sale:
        when: datetime.datetime
        price: Decimal
        closes: datetime.time | None = None

    hot = SamplingParams(temperature=1.5, seed=seed, max_tokens=300)
    few = Annotated[list[Sale], pydantic.Field(min_length=1, max_length=1)]
    for output in (Sale, few, Decimal, tuple[datetime.time, Decimal]):
        with contextlib.suppress(OutputIncomplete):  # ValidationError if a text is of no such value
            assert llm.chat(QUESTION, hot, output=output, enable_thinking=False) is not None


@pytest.mark.parametrize(
    "output",
    [
        pydantic.NaiveDatetime,
        pydantic.UUID4,
        Annotated[dict[Literal["a", "b"], Literal[1, 2]], pydantic.Field(min_length=1)],
        dict[Colour, bool],
        tuple[bytes, bool],
    ],
)
@pytest.mark.parametrize("seed", [0, *only_thorough(*range(1, 20))])
def test_types_that_json_schema_has_no_format_for_come_back(
    llm: LLM, output: Any, seed: int
) -> None:
    hot = SamplingParams(temperature=1.3, seed=seed, max_tokens=200)
    with contextlib.suppress(OutputIncomplete):
        assert llm.generate("As JSON: ", hot, output=output) is not None


class Tags(pydantic.BaseModel):
    names: set[str]
    numbers: frozenset[int] = pydantic.Field(min_length=1)


def test_sets_are_lists_whose_values_may_repeat() -> None:
    """Their values are told apart by who reads them, so the grammar need not."""
    tags = typed(Tags).parse('{"names": ["a", "b", "a"], "numbers": [1, 1]}')
    assert tags == Tags(names={"a", "b"}, numbers=frozenset([1]))
    assert typed(set[str]).parse('["a", "a"]') == {"a"}
    for several in (
        Annotated[set[str], pydantic.Field(min_length=2)],
        Annotated[set[str], msgspec.Meta(min_length=2)],
    ):
        with pytest.raises(GrammarError, match="uniqueItems"):
            typed(several)


def test_numbers_as_keys_can_be_read() -> None:
    assert typed(dict[Literal[1, 2], bool]).parse('{"1": true}') == {1: True}


def test_a_literal_of_enum_members_is_refused(llm: LLM) -> None:
    for output in (Literal[Colour.RED], list[Literal[Colour.RED]]):  # type: ignore[valid-type]
        with pytest.raises(RequestError, match="use Colour itself"):
            llm.generate("a", GREEDY, output=output)


def test_what_the_type_refuses_has_a_note_with_the_text() -> None:
    number = typed(Annotated[str, pydantic.AfterValidator(int)])
    with pytest.raises(ValueError, match="invalid literal") as caught:
        number.parse('"abc"')
    assert caught.value.__notes__ == ['the answer was: "abc"']


def test_an_end_of_sequence_token_among_the_stop_tokens_ends_a_value(llm: LLM) -> None:
    ends = tuple(llm.engine.info.eos_token_ids)
    params = SamplingParams(temperature=0, max_tokens=20, stop_token_ids=ends)
    assert llm.generate("x", params, output=Regex("[ab]")) in ("a", "b")


@pytest.mark.parametrize("seed", range(3))
def test_a_compiled_pattern_matches_what_comes_back(llm: LLM, seed: int) -> None:
    hot = SamplingParams(temperature=1.5, seed=seed, max_tokens=120)
    pattern = re.compile(r"^(?:a\S{1,4}|\d+[^\]x]-.)$", re.IGNORECASE)
    text = llm.generate("A name: ", hot, output=pattern)
    assert pattern.fullmatch(text)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (re.compile("a(?=b)"), "position 1: look-around"),
        (re.compile(r"(?i)x[\W]"), r"\\W in a class at position 6"),
        (re.compile("x # y", re.VERBOSE), "VERBOSE"),
        (re.compile(r"(?P<x>a)(?P=x)", re.IGNORECASE), "position 8"),
        (re.compile(b"x"), "bytes"),
    ],
)
def test_a_compiled_pattern_that_cannot_be_kept_is_refused(
    llm: LLM, pattern: re.Pattern[Any], message: str
) -> None:
    with pytest.raises(GrammarError, match=f"output: .*{message}"):
        llm.generate("A name: ", GREEDY, output=pattern)


def test_a_stream_tells_what_it_says_so_far(llm: LLM) -> None:
    whole = llm.chat(QUESTION, GREEDY, output=Person)
    partials = list(llm.stream_chat(QUESTION, GREEDY, output=Person))
    assert partials[-1].value == whole
    assert [partial.value for partial in partials[:-1]] == [None] * (len(partials) - 1)
    assert "".join(partial.text for partial in partials).endswith(partials[-1].content)
    final = json.loads(partials[-1].content)
    said = [partial.partial for partial in partials if partial.partial is not None]
    assert said[-1] == final
    assert len({json.dumps(value) for value in said}) > 2
    for value in said:
        assert value.keys() <= final.keys()
        assert final["name"].startswith(value.get("name", ""))


def test_every_beginning_of_an_answer_can_be_read(llm: LLM) -> None:
    text = '{"a": [true, null, -1.5e3], "b\\ud83d\\ude00": "\\u00e9\\n", "c": {"d": "x\\\\"}}'
    type_ = typed(JsonSchema(True))
    for end in range(len(text)):
        type_.partial(text[:end])
    assert type_.partial(text[:12]) == {"a": [True]}
    assert type_.partial(text) == json.loads(text)


def test_a_stream_of_texts_gives_the_text(llm: LLM) -> None:
    partials = list(llm.stream("One digit: ", GREEDY, output=re.compile("[0-9]{3}")))
    assert [partial.partial for partial in partials] == [partial.content for partial in partials]
    assert re.fullmatch("[0-9]{3}", partials[-1].value)


def test_a_stream_that_is_cut_off_says_so(llm: LLM) -> None:
    short = SamplingParams(temperature=0, max_tokens=3)
    partials = llm.stream("As JSON: ", short, output=Person)
    with pytest.raises(OutputIncomplete, match="max_tokens"):
        list(partials)


@pytest.mark.parametrize("output", [3, "a text", object(), list["Unknown"]])  # noqa: F821
def test_what_is_no_type_is_refused(llm: LLM, output: object) -> None:
    with pytest.raises(RequestError, match="output"):
        llm.chat(QUESTION, GREEDY, output=output)


@pytest.mark.parametrize(
    "prompts",
    [
        np.array([5, 6, 7]),
        np.array([5, 6, 7], dtype=np.uint16),
        torch.tensor([5, 6, 7]),
        torch.tensor([5, 6, 7], dtype=torch.int32),
        [np.int64(5), np.int32(6), torch.tensor(7)],
        (5, 6, 7),
        [np.array([5, 6, 7]), [5, 6, 7]],
        [torch.tensor([5, 6, 7]), (5, 6, 7)],
    ],
    ids=str,
)
def test_token_ids_come_from_arrays_and_tensors_too(llm: LLM, prompts: Any) -> None:
    short = SamplingParams(temperature=0, max_tokens=5)
    expected = llm.generate([5, 6, 7], short)[0].token_ids
    found = llm.generate(prompts, short)
    is_several = len(prompts) == 2
    assert [output.token_ids for output in found] == [expected] * (2 if is_several else 1)
    if not is_several:
        streamed = [token for delta in llm.stream(prompts, short) for token in delta.token_ids]
        assert streamed == expected


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        (np.array([[5, 6], [7, 8]]), r"shape \(2, 2\)"),
        (np.array([5.0]), "float64"),
        (torch.tensor([0.5]), "torch.float32"),
        (np.array([True]), "bool"),
        ([5.0, 6.0], "whole numbers"),
        ([True, False], "whole numbers"),
    ],
    ids=str,
)
def test_other_arrays_are_refused_by_name(llm: LLM, prompts: Any, words: str) -> None:
    with pytest.raises(RequestError, match=f"prompts: .*{words}"):
        llm.generate(prompts, GREEDY)


def test_parameters_take_numbers_of_libraries() -> None:
    params = SamplingParams(
        top_k=np.int64(5),  # pyrefly: ignore
        seed=np.uint64(2**63),  # pyrefly: ignore
        max_tokens=torch.tensor(8),  # pyrefly: ignore
        stop_token_ids=np.array([3, 4]),  # pyrefly: ignore
        logit_bias={np.int64(3): 1.0},  # pyrefly: ignore
    )
    assert params == SamplingParams(
        top_k=5, seed=2**63, max_tokens=8, stop_token_ids=(3, 4), logit_bias={3: 1.0}
    )
    with pytest.raises(RequestError, match="stop_token_ids"):
        SamplingParams(stop_token_ids=np.array([0.5]))  # pyrefly: ignore


def test_an_option_that_no_template_reads_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="enable_thinkin"):
        llm.chat(QUESTION, GREEDY, enable_thinkin=True)


def test_sampling_parameters_keep_what_they_were_given() -> None:
    bias, stop = {3: 5.0}, ["a"]
    params = SamplingParams(logit_bias=bias, stop=stop)  # type: ignore[arg-type]
    bias[4], stop[0] = 1000.0, ""
    assert (params.logit_bias, params.stop) == ({3: 5.0}, ("a",))
