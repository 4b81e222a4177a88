"""The conversation generator: seeds decide, splits stay apart, checks judge."""

import re

import pytest

from builtin_model.families import FAMILIES, WEIGHTS, draw_example, mixture
from builtin_model.families.arithmetic import (
    added,
    divided,
    multiplied,
    multiplied_long,
    subtracted,
)
from builtin_model.families.draw import Draw, is_heldout
from builtin_model.families.example import Check, conforms, final_text
from builtin_model.tokenizer import CONTROL_TOKENS

EXAMPLES = 60


def corrupted(answer: str) -> str:
    """The answer with every letter and digit moved on by one."""
    moved = "".join(chr(ord(c) + 1) if c.isascii() and c.isalnum() else c for c in answer)
    return moved + "~"


@pytest.mark.parametrize("family", FAMILIES)
def test_reference_is_accepted_and_corruption_refused(family: str) -> None:
    for index in range(EXAMPLES):
        example = draw_example(family, str(index), "train")
        assert example.check.accepts(example.reference()), example
        assert example.check.accepts(f"<think>\nLet me see.\n</think>\n\n{example.reference()}")
        assert not example.check.accepts(corrupted(example.reference())), example
        assert not example.check.accepts(""), example


@pytest.mark.parametrize("family", FAMILIES)
def test_seed_decides_the_example(family: str) -> None:
    first = [draw_example(family, str(index), "train") for index in range(10)]
    again = [draw_example(family, str(index), "train") for index in range(10)]
    assert first == again
    assert first != [draw_example(family, f"other {index}", "train") for index in range(10)]


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_end_the_conversation_and_reason_only_when_asked(family: str) -> None:
    for index in range(EXAMPLES):
        example = draw_example(family, str(index), "train")
        last = example.messages[-1]
        assert last["role"] == "assistant"
        assert example.request.messages == example.messages[:-1]
        assert bool(last.get("reasoning_content")) == example.enable_thinking


def test_no_text_holds_a_control_token() -> None:
    for example in mixture("control", "train", 500):
        for message in example.messages:
            for token in CONTROL_TOKENS:
                assert token not in str(message["content"])
                assert token not in message.get("reasoning_content", "")


def test_made_up_words_and_names_of_the_splits_are_disjoint() -> None:
    for index in range(300):
        train, heldout = Draw(str(index), "train"), Draw(str(index), "heldout")
        for draw, wanted in ((train, False), (heldout, True)):
            drawn = (draw.word(), draw.title(), draw.first_name(), draw.place())
            assert [is_heldout(text) for text in drawn] == [wanted] * 4


def test_heldout_examples_never_equal_training_examples() -> None:
    train = {str(example.messages) for example in mixture("1", "train", 3000)}
    heldout = [e for e in mixture("1", "heldout", 400) if e.family in ("json_words", "extract")]
    assert not train & {str(example.messages) for example in heldout}


def test_weights_name_every_family() -> None:
    assert set(WEIGHTS) == set(FAMILIES)
    assert {example.family for example in mixture("all", "train", 2000)} == set(FAMILIES)


def test_worked_sums_state_the_right_result() -> None:
    for index in range(400):
        draw = Draw(f"sum {index}", "train")
        first, second, digit = draw.whole(10, 999), draw.whole(10, 99), draw.whole(2, 9)
        assert added(first, second).endswith(f"={first + second}.")
        assert subtracted(first + second, second).endswith(f"={first}.")
        assert multiplied(first, digit).endswith(f"={first * digit}.")
        assert multiplied_long(first, second).endswith(f"={first * second}.")
        assert divided(first * digit, digit).endswith(f"={first}.")
        for left, sign, right, result in re.findall(
            r"(?<![\d+*/-])(\d+)([+*-])(\d+)=(\d+)(?=[.,])", multiplied_long(first, second)
        ):
            expected = {"+": int(left) + int(right), "*": int(left) * int(right)}
            assert expected[sign] == int(result)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (Check("exact", "a b"), " a b\n", "a  b"),
        (Check("one_of", ("Paris",)), "paris.", "Paris is it"),
        (Check("distinct", (("a", "b", "c"), 2, ", ")), "c, a", "a, a"),
        (Check("range", (1, 5)), "5", "6"),
        (Check("number", 12), "It is 12.", "It is 12 of 13."),
        (Check("contains", ("x", "y")), "y and x", "y"),
        (Check("json", {"a": 1}), '{"a": 1}', '{"a": true}'),
        (Check("json", {"a": 1}), '{"a":1}', '```json\n{"a": 1}\n```'),
        (Check("json", {"a": 1}, True), '```json\n{"a": 1}\n```', '{"a": 1}'),
        (
            Check("tool_calls", [{"name": "f", "arguments": {}}]),
            '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
            '{"name": "f", "arguments": {}}',
        ),
    ],
)
def test_each_kind_of_check(check: Check, right: str, wrong: str) -> None:
    assert check.accepts(right)
    assert not check.accepts(wrong)


def test_conforms_reads_the_schema_subset() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "l": {"type": "array", "items": {"enum": ["x"]}}},
        "required": ["n"],
    }
    assert conforms({"n": 1, "l": ["x"]}, schema)
    assert not conforms({"n": True}, schema)
    assert not conforms({"n": 1, "l": ["y"]}, schema)
    assert not conforms({"n": 1, "other": 2}, schema)
    assert not conforms({}, schema)


def test_final_text_drops_reasoning_and_the_end_marker() -> None:
    assert final_text("<think>\n1\n</think>\n\n2<|im_end|>") == "2"
