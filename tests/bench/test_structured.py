"""Contestants answer the same prompts in changing order, answers are judged, and ratios say of what."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from eyas.cli import main
from eyas.config import (
    CacheConfig,
    DraftConfig,
    EngineConfig,
    GrammarConfig,
    ModelConfig,
    SchedulerConfig,
)
from eyas.llm import LLM
from eyas.schemas import prepare
from eyas.verify.lineup import AUTO, PLAIN, Stage
from eyas_bench import structured
from eyas_bench.forms import FORMS, Schema
from eyas_bench.structured import (
    FORCED,
    FORMS_SHOWN,
    FREE,
    HEAD,
    OWN_FAMILIES,
    contestants,
    form_tasks,
    groups,
    measure,
    own_tasks,
    prepare_tasks,
    report,
    schema_of,
)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """The built-in model with its head, and room for forced spans."""
    config = EngineConfig(
        model=ModelConfig(max_model_len=512),
        cache=CacheConfig(num_slots=1200, prefix_cache=False),
        scheduler=SchedulerConfig(max_num_seqs=1),
        draft=DraftConfig(drafter="head", steps=3, topk=2, nodes=8),
        grammar=GrammarConfig(mask_seconds=10),  # steps are counted, also on a busy machine
    )
    with LLM(config=config) as llm:
        yield Stage(llm, with_forced_spans=True)


def parts(schema: Schema) -> Iterator[Schema]:
    yield schema
    for below in [*schema.get("properties", {}).values(), schema.get("items")]:
        if below is not None:
            yield from parts(below)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_form_is_closed_and_limited_and_can_be_enforced(form: structured.Form) -> None:
    Draft202012Validator.check_schema(form.schema)
    assert json.loads(prepare(form.schema, param="schema"))["type"] == "object"
    assert len(set(form.prompts)) == 3
    for part in parts(form.schema):
        match part.get("type"):
            case "object":
                assert part["additionalProperties"] is False
            case "string":
                assert {"maxLength", "enum", "pattern"} & set(part)
            case "integer":
                assert {"minimum", "maximum"} <= set(part)
            case "array":
                assert part["minItems"] <= part["maxItems"]


def test_a_schema_describes_the_value_that_it_was_made_of() -> None:
    value = {"name": "Ada", "age": 36, "is": True, "tags": ["a"], "x": 1.5, "no": None, "l": []}
    judge = Draft202012Validator(schema_of(value))
    assert judge.is_valid(value)
    assert judge.is_valid({**value, "tags": []})
    for other in (
        {**value, "age": "36"},
        {**value, "is": 1},
        {**value, "more": 1},
        {"name": "Ada"},
    ):
        assert not judge.is_valid(other)


def test_tasks_are_the_same_every_time_and_cover_all_kinds() -> None:
    tasks = own_tasks(9)
    assert tasks == own_tasks(9) and {task.title for task in tasks} == set(OWN_FAMILIES)
    assert all(task.schema["properties"] for task in tasks)
    forms = form_tasks(len(FORMS))
    assert [task.title for task in forms] == [form.name for form in FORMS]
    assert len(form_tasks(1000)) == 3 * len(FORMS)
    shown = groups(2)[FORMS_SHOWN]
    for alone, told in zip(forms, shown, strict=False):
        assert json.dumps(alone.schema) in told.messages[0]["content"]
        assert json.dumps(alone.schema) not in str(alone.messages)


def test_all_answer_alike_under_a_schema_and_forced_spans_save_steps(stage: Stage) -> None:
    lineup = contestants(stage, 2)
    prepared, compile_seconds = prepare_tasks(stage.llm, own_tasks(1))
    said: list[str] = []
    rounds = measure(stage, lineup, prepared, max_tokens=64, repeats=1, show_status=said.append)
    assert said == ["warm-up", "round 1"]
    found = report(lineup, prepared, rounds, compile_seconds)
    names = [PLAIN, HEAD, FORCED, AUTO, HEAD + FREE, AUTO + FREE]
    assert list(found["contestants"]) == names and found["num_schemas"] == 1
    held = {name: one for name, one in found["contestants"].items() if one["has_schema"]}
    assert list(held) == names[:4]
    for one in held.values():
        assert one["same_tokens"] == one["valid"] == one["finished"] == 1 and not one["broken"]
        assert one["num_tokens"] == held[PLAIN]["num_tokens"] and one["mask_ms_per_step"] > 0
    assert found["contestants"][HEAD + FREE]["mask_ms_per_step"] == 0
    assert held[PLAIN]["tokens_per_step"] == 1
    assert held[HEAD]["tokens_per_step"] <= 3 < held[FORCED]["tokens_per_step"]
    gained = held[FORCED]["tokens_per_step"] / held[HEAD]["tokens_per_step"]
    assert found["tokens_per_step_ratio"]["ratio"] == pytest.approx(gained, abs=5e-3)
    by_source = held[FORCED]["nodes_per_step_by_source"]
    assert by_source["forced"]["accepted"] > 0 and set(by_source) == {"head", "forced"}
    assert all(each["rounds"] == 1 for each in found["speed_ratios"].values())


def test_who_is_first_changes_from_prompt_to_prompt_and_from_round_to_round(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(
        structured, "_answer", lambda stage, contestant, *rest: order.append(contestant.name)
    )
    lineup = contestants(stage, 2)
    prepared, _ = prepare_tasks(stage.llm, own_tasks(3))
    measure(stage, lineup, prepared, max_tokens=8, repeats=1, show_status=lambda text: None)
    names = [each.name for each in lineup]
    firsts = order[:: len(names)]
    assert firsts == [names[i] for i in (0, 1, 2, 1, 2, 3)]
    for begin in range(0, len(order), len(names)):
        assert sorted(order[begin : begin + len(names)]) == sorted(names)


def test_an_answer_that_is_cut_off_is_not_valid_but_not_broken(stage: Stage) -> None:
    lineup = contestants(stage, 2)
    prepared, compile_seconds = prepare_tasks(stage.llm, own_tasks(1))
    rounds = measure(
        stage, lineup, prepared, max_tokens=4, repeats=1, show_status=lambda text: None
    )
    plain = report(lineup, prepared, rounds, compile_seconds)["contestants"][PLAIN]
    assert plain["valid"] == plain["finished"] == 0 and not plain["broken"]


@pytest.mark.parametrize("wrong", ['{"a": 1, "b": 2}', '{"a": "1"}', "{", ""])
def test_only_what_fits_the_schema_is_accepted(wrong: str) -> None:
    schema = schema_of({"a": 1})
    assert structured.accepted(schema, '{"a": 1}')
    assert not structured.accepted(schema, wrong)


def test_without_jsonschema_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(ValueError, match="pip install jsonschema"):
        structured.require_validator()


SMALL = ("--draft-steps", "2", "--num-prompts", "2", "--repeats", "1", "--max-tokens", "8")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Own tasks alone."""
    monkeypatch.setattr(structured, "groups", lambda count: {"few": own_tasks(count)})


def run(*arguments: str) -> int:
    try:
        main(["bench", "structured", *SMALL, *arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.usefixtures("few")
def test_the_command_writes_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "structured.json"
    assert run("--output", str(output)) == 0
    result = json.loads(output.read_text())
    assert next(iter(result["groups"]["few"]["contestants"])) == PLAIN
    assert result["settings"]["draft_steps"] == 2 and list(result["groups"]) == ["few"]
    shown = capsys.readouterr().out
    assert "tokens per step, head+forced / head" in shown and "few: 2 prompts" in shown


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (
            lambda choice: choice.token_ids.append(1),
            "tokens differ from plain decoding's with head",
        ),
        (
            lambda choice: (
                setattr(choice, "content", "{}"),
                setattr(choice, "finish_reason", "stop"),
            ),
            "answers violate their schemas",
        ),
    ],
)
def test_the_command_fails_where_something_must_not_be(
    lie: object, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = structured._answer

    def lying(stage: Stage, contestant: structured.Contestant, *rest: object) -> None:
        answer(stage, contestant, *rest)  # type: ignore[arg-type]
        if contestant.name == HEAD:
            lie(rest[-1].choices[-1])  # type: ignore[operator,attr-defined]

    monkeypatch.setattr(structured, "_answer", lying)
    assert run("--max-tokens", "4") == 1
    assert words in capsys.readouterr().err.replace("\n", " ")
