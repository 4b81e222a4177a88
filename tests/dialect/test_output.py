"""The grammars of dialects: none without requirements, limits, errors, structure."""

from __future__ import annotations

from typing import Any

import pytest

from eyas.core import GrammarError, RequestError
from eyas.dialect.base import ToolSpec, Wanted
from eyas.dialect.choose import family_dialect
from eyas.dialect.compose import ComposedDialect
from eyas.dialect.offer import tool_specs
from eyas.dialect.reasoning import ReasoningFormat
from eyas.grammar import Concat, FreeText, Json, Literal, Marker, Regex, leaves

from .cases import FAMILIES, HARMONY_MARKERS, PERSON, TOOLS, tokenizers
from .recognise import accepts
from .streams import Letters, Outcome

QWEN = Letters("<t>", "<think>", "</think>", "<tool_call>", "</tool_call>")


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_asked_is_no_grammar(family: str) -> None:
    part = FAMILIES[family]
    for tokenizer in tokenizers(part).values():
        for prompt in part.prompts:
            ids = tokenizer.tokens(prompt)
            assert part.dialect(tokenizer).output(Wanted(), ids) is None
            none = Wanted(tools=TOOLS, choice="none")
            assert part.dialect(tokenizer).output(none, ids) is None


def test_markers_of_earlier_turns_do_not_count() -> None:
    prompt = QWEN.tokens("<t>a:<think>x</think>y<t>u:hi<t>a:")
    spec = family_dialect("qwen3", QWEN).output(Wanted(answer=PERSON), prompt)
    assert spec is not None
    assert accepts(spec.root, QWEN.tokens('<think>x</think>\n\n{"name": ""}'))
    assert accepts(spec.root, QWEN.tokens('{"name": ""}'))


def test_markers_that_a_user_spells_do_not_count() -> None:
    prompt = [*QWEN.tokens("<t>u:"), *QWEN.encode_text("<think>")]
    spec = family_dialect("qwen3", QWEN).output(Wanted(answer=PERSON), prompt)
    assert spec is not None
    assert accepts(spec.root, QWEN.tokens('{"name": ""}'))


def test_reasoning_that_the_prompt_began_goes_on_untrimmed() -> None:
    segmenter = family_dialect("qwen3", QWEN).segmenter(Wanted(), QWEN.tokens("<t>a:<think>\nSo"))
    stream = QWEN.stream(QWEN.tokens("\nwell</think>\n\nyes"))
    assert Outcome.of(stream.at_once(segmenter)) == Outcome("\nwell", "yes", ())


@pytest.mark.parametrize("spelled", [False, True])
def test_the_end_of_reasoning_may_straddle_into_the_answer(spelled: bool) -> None:
    prompt = QWEN.tokens("<t>a:<think>\n")
    spec = family_dialect("qwen3", QWEN).output(Wanted(answer=PERSON), prompt)
    assert spec is not None
    encode = QWEN.encode_text if spelled else QWEN.tokens
    ids = [*encode("x</think>"), *QWEN.encode_text('{"name": ""}')]
    assert accepts(spec.root, ids)
    segmenter = family_dialect("qwen3", QWEN).segmenter(Wanted(answer=PERSON), prompt)
    assert Outcome.of(QWEN.stream(ids).at_once(segmenter)) == Outcome("x", '{"name": ""}', ())


def test_a_limit_closes_reasoning() -> None:
    close = QWEN.control_id("</think>")
    opened = family_dialect("qwen3", QWEN).output(
        Wanted(max_reasoning_tokens=5), QWEN.tokens("<t>a:<think>\n")
    )
    assert opened is not None
    assert opened.budget is not None
    assert opened.budget.max_tokens == 5
    assert opened.budget.closing == (close, 10, 10)
    assert [marker.token_id for marker in opened.budget.ends] == [close]
    may_open = family_dialect("qwen3", QWEN).output(
        Wanted(max_reasoning_tokens=5), QWEN.tokens("<t>a:")
    )
    assert may_open is not None
    assert may_open.budget is not None
    assert may_open.budget.max_tokens == 6
    assert not accepts(may_open.root, QWEN.tokens("hi"))
    assert accepts(may_open.root, QWEN.tokens("<think>x</think>\n\nhi"))


def test_a_limit_of_nothing_refuses_reasoning() -> None:
    spec = family_dialect("qwen3", QWEN).output(
        Wanted(max_reasoning_tokens=0), QWEN.tokens("<t>a:")
    )
    assert spec is not None
    assert spec.budget is None
    assert accepts(spec.root, QWEN.tokens("hi"))
    assert not accepts(spec.root, QWEN.tokens("<think>x</think>hi"))


def test_a_limit_means_nothing_where_reasoning_is_closed() -> None:
    prompt = QWEN.tokens("<t>a:<think>\n\n</think>\n\n")
    assert family_dialect("qwen3", QWEN).output(Wanted(max_reasoning_tokens=5), prompt) is None


def test_a_limit_closes_harmony_analysis() -> None:
    tokenizer = Letters(*HARMONY_MARKERS)
    prompt = tokenizer.tokens("<|start|>assistant<|channel|>analysis<|message|>")
    for choice, begins in (("auto", "final<|message|>"), ("required", "commentary")):
        wanted = Wanted(tools=TOOLS, choice=choice, max_reasoning_tokens=3)
        spec = family_dialect("harmony", tokenizer).output(wanted, prompt)
        assert spec is not None
        assert spec.budget is not None
        closing = tokenizer.tokens("<|end|><|start|>assistant<|channel|>" + begins)
        assert list(spec.budget.closing) == closing
        rest = " to=functions.time<|message|>{}" if choice == "required" else "hi"
        assert accepts(spec.root, [*tokenizer.tokens("abc"), *closing, *tokenizer.tokens(rest)])


def test_calls_in_plain_text_beside_an_open_pattern_are_refused() -> None:
    text = Letters("<t>")
    wanted = Wanted(answer=Regex(".*"), tools=TOOLS, choice="auto")
    with pytest.raises(GrammarError, match="tool_choice") as caught:
        family_dialect("qwen3", text).output(wanted, text.tokens("<t>a:"))
    assert caught.value.fault == "unsupported"
    assert family_dialect("qwen3", QWEN).output(wanted, QWEN.tokens("<t>a:")) is not None


def test_requests_that_cannot_be_met_name_the_field() -> None:
    prompt = QWEN.tokens("<t>a:")
    with pytest.raises(RequestError, match="among the tools"):
        family_dialect("qwen3", QWEN).output(Wanted(tools=TOOLS, choice="other"), prompt)
    with pytest.raises(RequestError, match="give tools"):
        family_dialect("qwen3", QWEN).output(Wanted(choice="required"), prompt)
    silent = ComposedDialect("silent", QWEN, ReasoningFormat.of(QWEN), None)
    with pytest.raises(RequestError, match="--tool-call-parser"):
        silent.output(Wanted(tools=TOOLS, choice="auto"), prompt)


def test_arguments_follow_the_schema_leniently_unless_strict() -> None:
    spec = family_dialect("qwen3", QWEN).output(
        Wanted(tools=TOOLS, choice="required"), QWEN.tokens("<t>a:")
    )
    assert spec is not None
    lenient = [leaf.lenient for leaf in leaves(spec.root) if isinstance(leaf, Json)]
    assert set(lenient) == {False, True}


def glm_ids(tool: ToolSpec, **values: str) -> tuple[list[int], bool]:
    tokenizer = Letters(*FAMILIES["glm"].markers)
    wanted = Wanted(tools=(tool,), choice="required")
    spec = family_dialect("glm", tokenizer).output(wanted, [])
    assert spec is not None
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
        for key, value in values.items()
    )
    ids = tokenizer.tokens(f"\n<tool_call>{tool.name}\n{pairs}</tool_call>")
    return ids, accepts(spec.root, ids)


def test_glm_strings_keep_their_keywords() -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "pattern": "^[a-c]+$"},
            "word": {"$ref": "#/$defs/word"},
            "n": {"$ref": "#/$defs/n"},
        },
        "required": ["id"],
        "$defs": {"word": {"type": "string", "maxLength": 2}, "n": {"type": "integer"}},
    }
    tool = ToolSpec("f", schema, strict=True)
    assert glm_ids(tool, id="abc")[1]
    assert glm_ids(tool, id="abc", word="xy", n="3")[1]
    assert not glm_ids(tool, id="xyz")[1]
    assert not glm_ids(tool, id="abc", word="xyz")[1]
    assert not glm_ids(tool, word="x")[1]
    assert not glm_ids(tool, id="abc", n="x")[1]


def test_glm_strict_keywords_that_cannot_hold_are_refused() -> None:
    for part in ({"type": "string", "format": "date"}, {"type": "string", "pattern": "^a|b$"}):
        tool = ToolSpec("f", {"type": "object", "properties": {"x": part}}, strict=True)
        with pytest.raises(GrammarError, match="strict"):
            glm_ids(tool, x="a")
        assert glm_ids(ToolSpec("f", tool.parameters), x="a")[1]


def test_glm_takes_any_pairs_where_nothing_is_said_of_them() -> None:
    assert glm_ids(ToolSpec("f", {"type": "object"}), a="1", b='"x"')[1]
    assert not glm_ids(ToolSpec("f", {}), a="1")[1]


def prepared(parameters: dict[str, Any], **more: Any) -> ToolSpec:
    """A strict function as a request gives it."""
    function = {"name": "f", "parameters": parameters, "strict": True, **more}
    return tool_specs([{"type": "function", "function": function}])[0]


TREE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["v", "kids"],
    "additionalProperties": False,
}
BY_NAME = {
    "$defs": {"kids": {"type": "array", "items": {"$ref": "#"}}},
    **TREE,
    "properties": {"v": {"type": "integer"}, "kids": {"$ref": "#/$defs/kids"}},
}


@pytest.mark.parametrize("schema", [TREE, BY_NAME])
def test_a_reference_to_the_root_means_all_arguments(schema: dict[str, Any]) -> None:
    tool = prepared(schema)
    for kids in ("[]", '[{"v": 2, "kids": []}]', '[{"v": 2, "kids": [{"v": 3, "kids": []}]}]'):
        assert glm_ids(tool, v="1", kids=kids)[1], kids
    for kids in ("[[]]", '[{"v": 2}]', '[{"v": "2", "kids": []}]'):
        assert not glm_ids(tool, v="1", kids=kids)[1], kids


def test_glm_arguments_that_contradict_themselves_are_refused() -> None:
    closed = {"type": "object", "properties": {}, "required": ["b"], "additionalProperties": False}
    tool = ToolSpec("f", closed, strict=True)
    with pytest.raises(GrammarError, match="must have 'b', which they may not have"):
        glm_ids(tool, b="1")
    assert glm_ids(ToolSpec("f", closed), b="1")[1]


def test_glm_other_arguments_are_allowed_where_nothing_bars_them() -> None:
    """A schema that is prepared says so by patterns, which a user has not written."""
    tool = prepared({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert glm_ids(tool, a="1")[1]
    assert not glm_ids(tool, a="x")[1]


def test_texts_that_a_call_cannot_carry_are_refused() -> None:
    tokenizer = Letters()  # markers are texts
    wanted = {"type": "string", "enum": ["u\n</parameter>v", "w"]}
    for name, properties, words in (
        ("qwen3_coder", {"a": wanted}, "a value with"),
        ("qwen3_coder", {"a>\nb": {}}, "cannot be written"),
        ("glm", {"a</arg_key>": {}}, "cannot be written"),
    ):
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        wish = Wanted(tools=(ToolSpec("f", schema, strict=True),), choice="required")
        with pytest.raises(GrammarError, match=words) as caught:
            family_dialect(name, tokenizer).output(wish, [])
        assert caught.value.param == "tools"
    lenient = ToolSpec("f", {"type": "object", "properties": {"a": wanted}})
    spec = family_dialect("qwen3_coder", tokenizer).output(
        Wanted(tools=(lenient,), choice="required"), []
    )
    assert spec is not None
    texts = [leaf.text for leaf in leaves(spec.root) if isinstance(leaf, Literal)]
    assert "w" in texts and "u\n</parameter>v" not in texts


@pytest.mark.parametrize("name", ["get-time", "ns.get_2", "server:tool", "a/b", "天气"])
def test_names_that_models_can_write(name: str) -> None:
    assert prepared({"type": "object"}, name=name).name == name


@pytest.mark.parametrize("name", ["", "a b", " f", "f\ng", "a<b", "x[ARGS]", 'a"', "a\x7f", "auto"])
def test_names_that_end_early_in_a_call_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="cannot be a function's name") as caught:
        prepared({"type": "object"}, name=name)
    assert caught.value.param == "tools[0].function.name"


def test_control_tokens_stand_in_markers_only() -> None:
    spec = family_dialect("qwen3", QWEN).output(
        Wanted(tools=TOOLS, choice="auto"), QWEN.tokens("<t>a:")
    )
    assert spec is not None
    texts = [leaf.text for leaf in leaves(spec.root) if isinstance(leaf, Literal)]
    assert not any(marker in text for text in texts for marker in ("<tool_call>", "<think>"))
    markers = [leaf for leaf in leaves(spec.root) if isinstance(leaf, Marker)]
    assert all(marker.token_id is not None for marker in markers)
    free = [leaf for leaf in leaves(spec.root) if isinstance(leaf, FreeText)]
    assert free
    assert isinstance(spec.root, Concat)
