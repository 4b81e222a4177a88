"""Structured steps: what a forced verdict is, real masks, rounds in turn, and the command."""

from __future__ import annotations

import json
import random
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch

from eyas.cli.options import engine_config
from eyas.constraint.automaton import DraftMaskLimit
from eyas.engine.engine import Engine
from eyas.engine.masks import Masking, TreeMasks
from eyas.engine.verifier import Verify, verify
from eyas.grammar import Json, OutputSpec
from eyas.schemas import prepare
from eyas.text import Tokenizer
from eyas_bench import schema_steps, schema_texts
from eyas_bench.schema_steps import Round, plan_round, run_round, summarise, take_turns
from eyas_bench.schema_texts import Teacher, Text, allowed, other_tokens, read_texts, request_for
from eyas_bench.shape import dummy_engine
from tests.thorough import only_thorough

from .test_shape import write_tokenizer
from .test_together import run_command

END = 256


@pytest.fixture(autouse=True)
def no_time_limit_of_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine masks of drafts are slow, and later drafts get fewer."""
    monkeypatch.setattr(DraftMaskLimit, "held_up", lambda limit, size: None)


def write_schemas(folder: Path) -> Path:
    """Three schemas with two valid instances each, a file nobody can enforce, and a wrong instance."""
    folder.mkdir()
    for i in range(3):
        names = {"name": {"type": "string"}, f"n{i}": {"type": "integer"}}
        schema: Any = {"type": "object", "properties": names, "required": list(names)}
        schema["additionalProperties"] = False
        values = [{"name": "Anna " * (3 + i), f"n{i}": 17 + i}, {"name": "Bert " * 4, f"n{i}": -9}]
        tests = [{"valid": True, "data": value} for value in values]
        tests.append({"valid": False, "data": {"name": "wrong and long enough to be measured"}})
        (folder / f"{i}.json").write_text(json.dumps({"schema": schema, "tests": tests}))
    long = "never an allowed text, though it is called one"
    for name, schema in (("w", {"const": long[::-1]}), ("x", {"type": "no such type"})):
        tests = [{"valid": True, "data": long}]
        (folder / f"{name}.json").write_text(json.dumps({"schema": schema, "tests": tests}))
    return folder


def make_engine(
    tmp_path: Path,
    drafter: str = "head",
    seqs: int = 4,
    topk: int = 1,
    verify: Verify = verify,
    **more: Any,
) -> Engine:
    config = engine_config(
        model="tiny",
        drafter=drafter,
        draft_steps=4,
        draft_topk=topk,
        draft_nodes=5 if topk == 1 else 16,
        device="cpu",
        threads=1,
        dtype="float32",
        max_model_len=200,
        max_num_seqs=seqs,
        prefix_cache=False,
        **more,
    )
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    files = write_tokenizer(directory, 20)
    engine = dummy_engine("tiny", config, tokenizer_directory=files, verify=verify)
    masking = engine.launcher.masking  # nothing is late or slow, however busy the machine is
    masking.time_limit, masking.step_seconds = 10.0, deque(maxlen=0)
    return engine


def make_texts(
    engine: Engine, tmp_path: Path, longest: int = 100, topk: int = 1
) -> schema_texts.Texts:
    tokenizer = Tokenizer.from_directory(tmp_path / "tokenizer")
    return read_texts(engine, tokenizer, write_schemas(tmp_path / "schemas"), longest, topk=topk)


def written(engine: Engine, texts: list[Text], *, held: bool) -> list[list[int]]:
    """Return what the engine writes for each text."""
    tokens: dict[str, list[int]] = {f"a-{number}-{held}": [] for number in range(len(texts))}
    for number, (name, text) in enumerate(zip(tokens, texts, strict=True)):
        request = request_for(texts, number, 1, name, has_schema=held)
        engine.add(request, text.grammar if held else None)
    while engine.has_work():
        for delta in engine.step():
            tokens[delta.request_id] += delta.token_ids
            assert delta.error is None
    return list(tokens.values())


def test_instances_are_read_with_what_else_could_stand_there(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    found = make_texts(engine, tmp_path)
    assert len(found.texts) == 6 and len({text.name for text in found.texts[:3]}) == 3
    assert found.left_out == {"schema refused": 1, "instance refused": 1}
    assert found.refused == ["w"]
    tokenizer = Tokenizer.from_directory(tmp_path / "tokenizer")
    for text in found.texts:
        spelled = b"".join(map(tokenizer.token_bytes, text.tokens)).decode()
        assert json.dumps(json.loads(spelled)) == spelled
        assert len(text.others) == len(text.tokens) + 1
        tokens, num_legal = [*text.tokens, END], 0
        state = text.grammar.start()
        for token, (other,) in zip(tokens, text.others, strict=True):
            assert other != token
            num_legal += state.after(other) is not None
            state = state.after(token)
            assert state is not None
        assert num_legal > len(tokens) // 2, "strings are free, names are not"
    with pytest.raises(ValueError, match=r"--schemas: .* has no instance of 32 to 33 tokens"):
        read_texts(engine, tokenizer, tmp_path / "schemas", 33)
    plain = make_engine_without_end()
    with pytest.raises(ValueError, match="cannot be held to schemas"):
        read_texts(plain, tokenizer, tmp_path / "schemas", 100)
    plain.shutdown()
    engine.shutdown()


def make_engine_without_end() -> Engine:
    config = engine_config(model="tiny", drafter="root", device="cpu", threads=1, max_model_len=64)
    return dummy_engine("tiny", config)


def test_a_text_that_its_grammar_refuses_is_none(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, "root")
    spec = OutputSpec(root=Json(prepare({"enum": ["yes", "no"]}, param="schema")))
    grammar = engine.compile(spec).result()
    encode = Tokenizer.from_directory(tmp_path / "tokenizer").encode_text
    draw = random.Random(0)
    assert other_tokens(grammar, [*encode('"yes"'), END], 512, draw) is not None
    assert other_tokens(grammar, [*encode('"yet"'), END], 512, draw) is None
    assert other_tokens(grammar, [*encode('"yes'), END], 512, draw) is None
    engine.shutdown()


@pytest.mark.parametrize(
    ("drafter", "topk", "flights"),
    [
        *(("root", 1, "1"), ("head", 1, "0"), ("head", 3, "1")),
        *only_thorough(("root", 1, "0"), ("head", 1, "1"), ("head", 3, "0")),
    ],
)
def test_instances_are_written_token_by_token(
    tmp_path: Path, drafter: str, topk: int, flights: str
) -> None:
    teacher = Teacher(1, None if drafter == "root" else 3.0, 4, topk)
    engine = make_engine(tmp_path, drafter, flights=flights, topk=topk, verify=teacher.verify)
    texts = make_texts(engine, tmp_path, topk=topk).texts
    teacher.teach(engine, texts)
    for held in (True, False):
        for text, found in zip(texts, written(engine, texts, held=held), strict=True):
            assert found in ([*text.tokens], [*text.tokens, END])
    assert teacher.num_2.tolist() == [0, 0]
    engine.check()
    engine.shutdown()


@pytest.mark.parametrize("topk", [1, 3])
def test_masks_of_whole_trees_are_read_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topk: int
) -> None:
    """As on a device, where nothing is left out of a tree before the forward."""
    monkeypatch.setattr(Masking, "prunes", property(lambda masking: False))
    teacher = Teacher(1, 3.0, 4, topk)
    engine = make_engine(tmp_path, flights="1", topk=topk, verify=teacher.verify)
    texts = make_texts(engine, tmp_path, topk=topk).texts
    teacher.teach(engine, texts)
    run = run_round(engine, texts, range(6), 1, 1, "a", has_schema=True)
    assert not run.errors and run.draft_lengths
    assert sum(run.draft_lengths) / len(run.draft_lengths) == pytest.approx(3.0, rel=0.1)
    assert run.num_masks / len(run.seconds) > (2 if topk == 1 else 6)
    assert teacher.num_2.tolist() == [0, 0]
    assert engine.metrics.grammar.num_pruned < run.num_steps * 2 * topk**2, "most are legal"
    engine.shutdown()


def test_longer_prompts_leave_the_text_where_it_is(tmp_path: Path) -> None:
    teacher = Teacher(7, 2.0, 4)
    engine = make_engine(tmp_path, verify=teacher.verify)
    texts = make_texts(engine, tmp_path).texts
    teacher.teach(engine, texts)
    run = run_round(engine, texts, [2, 5, 1], 2, 7, "a", has_schema=True)
    assert not run.errors and teacher.num_2.tolist() == [0, 0]
    lengths = sum(len(texts[i].tokens) for i in (2, 5, 1))
    assert lengths <= run.num_tokens <= lengths + 3
    assert run.num_uncounted > 0, "steps that store prompts do not count"
    engine.shutdown()


def test_a_refused_token_ends_its_request_and_is_counted(tmp_path: Path) -> None:
    teacher = Teacher(1, 3.0, 4)
    engine = make_engine(tmp_path, seqs=6, verify=teacher.verify)
    texts = make_texts(engine, tmp_path).texts
    wrong = Text(
        texts[0].name,
        texts[0].output,
        texts[0].grammar,
        [*texts[0].tokens[:9], 3, *texts[0].tokens[10:]],
        texts[0].others,
    )
    broken = [wrong, *texts[1:]]
    teacher.teach(engine, broken)
    run = run_round(engine, broken, [0, 1, 2], 3, 1, "a", has_schema=True)
    assert len(run.errors) == 1 and "nothing was legal" in run.errors[0]
    assert teacher.num_2.tolist()[0] == 1
    free = run_round(engine, broken, [0, 1, 2], 3, 1, "b", has_schema=False)
    assert not free.errors and teacher.num_2.tolist()[0] == 1
    engine.check()
    engine.shutdown()


def test_bits_of_masks_are_found_in_grids_and_in_ragged_rows() -> None:
    draw = torch.Generator().manual_seed(0)
    bits_RV = torch.randint(0, 2, (6, 96), generator=draw)
    weights = torch.tensor([1 << i for i in range(31)] + [-(1 << 31)])
    mask_RK = (bits_RV.view(6, 3, 32) * weights).sum(2).to(torch.int32)
    tokens_BW = torch.randint(0, 96, (2, 3), generator=draw)
    tokens_BW[0, 0] = 31
    rows: Any = type("Rows", (), {})()
    rows.sampling = type("Sampling", (), {})()
    rows.sampling.sequence_R = torch.tensor([0, 0, 0, 1, 1, 1])
    rows.node_R = torch.tensor([0, 1, 2, 0, 1, 2])
    expected = bits_RV.gather(1, tokens_BW.view(-1, 1)).view(2, 3) == 1
    assert torch.equal(allowed(mask_RK, tokens_BW, rows), expected)
    rows.sampling.sequence_R, rows.node_R = torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1])
    found = allowed(mask_RK[[0, 3, 4]], tokens_BW, rows)
    assert found.tolist() == [
        [bool(expected[0, 0]), False, False],
        [bool(expected[1, 0]), bool(expected[1, 1]), False],
    ]


def test_a_round_has_enough_instances_for_its_steps() -> None:
    texts: list[Any] = [type("Text", (), {"tokens": [0] * n})() for n in (40, 90)]
    numbers = plan_round(texts, 8, 3.0)
    assert numbers[:4] == [0, 1, 0, 1]
    tokens = sum(len(texts[i].tokens) for i in numbers)
    assert tokens / 3.0 / 8 >= schema_steps.STEPS
    assert tokens / 3.0 / 8 <= schema_steps.STEPS * 1.2 + 100


def test_rounds_take_turns_over_the_same_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_steps, "STEPS", 12)
    monkeypatch.setattr(schema_steps, "WARM_UPS", 1)
    teacher = Teacher(1, 2.5, 4)
    engine = make_engine(tmp_path, seqs=4, verify=teacher.verify)
    texts = make_texts(engine, tmp_path).texts
    teacher.teach(engine, texts)
    told: list[int] = []
    held, free = take_turns(engine, texts, 2, 1, 2.5, 2, told.append)
    assert told == [0, 1, 2] and len(held) == len(free) == 2
    found = summarise(held, free)
    assert found["with_schemas"]["failed"] == found["without"]["failed"] == 0
    assert found["with_schemas"]["tokens"] == found["without"]["tokens"] > 0
    assert found["with_schemas"]["steps"] > 20 and found["without"]["steps"] > 20
    assert found["with_schemas"]["masks_per_step"] > 1 and not found["without"]["masks_per_step"]
    assert found["with_schemas"]["spent_ms"]["walks"] > 0
    assert set(found["ratio"]) == {"mean", "p50", "p99"} and len(found["pairs"]) == 2
    assert (
        "launch" not in vars(engine) and TreeMasks.find_legal.__qualname__ == "TreeMasks.find_legal"
    )
    engine.check()
    engine.shutdown()


def test_nothing_counted_is_no_fault() -> None:
    found = summarise([Round(errors=["bad"])], [Round()])
    assert found["with_schemas"]["failed"] == 1 and found["with_schemas"]["errors"] == ["bad"]
    assert found["ratio"] == {} and found["pairs"] == []


TINY = ("bench", "decode", "--shape", "tiny", "--dummy-weights", "--threads", "1", "--batch", "2")
SHORT = ("--repeats", "1", "--device", "cpu", "--dtype", "float32")


def test_the_command_tells_ratios(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_steps, "STEPS", 4)
    monkeypatch.setattr(schema_steps, "SETTLING", 2)
    monkeypatch.setattr(schema_steps, "WARM_UPS", 1)
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    write_tokenizer(directory)
    folder = write_schemas(tmp_path / "schemas")
    asked = (*TINY, *SHORT, "--tokenizer", str(directory), "--schemas", str(folder))
    drafting = ("--drafter", "eagle3", "--draft-topk", "1", "--synthetic-acceptance", "2.5")
    file = tmp_path / "result.json"
    status, out, _ = run_command(capsys, *asked, *drafting, "-o", str(file))
    assert status == 0 and "with schemas / without" in out
    result = json.loads(file.read_text())
    assert [entry["batch"] for entry in result["results"]] == [2]
    for entry in result["results"]:
        assert entry["refused"] == 0 and entry["ratio"]["mean"] > 0
        assert 1.5 < entry["with_schemas"]["tokens_per_draft"] < 3.5
    assert result["settings"]["instances"] == 6 and result["settings"]["prompt_tokens"] == 1
    assert result["settings"]["refused_instances"] == ["w"]
    assert result["settings"]["acceptance"] == schema_texts.NAME
    trees = ("--drafter", "eagle3", "--draft-topk", "3", "--synthetic-acceptance", "2.5")
    status, out, _ = run_command(capsys, *asked, *trees, "--json", "-o", str(file))
    assert status == 0
    result = json.loads(file.read_text())
    assert json.loads(out.splitlines()[-1]) == result
    assert result["settings"]["acceptance"] == schema_texts.OF_TREES
    held = result["results"][0]["with_schemas"]
    assert held["masks_per_step"] > 8 and 1.5 < held["tokens_per_draft"] < 3.5


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--schemas", "."), "--schemas: needs --tokenizer"),
        (("--tokenizer", "."), "--schemas: needs --tokenizer"),
        (("--schemas", ".", "--tokenizer", ".", "--profile"), "cannot be combined with"),
        (("--schemas", ".", "--tokenizer", ".", "--prefill", "9"), "cannot be combined with"),
        (
            ("--schemas", ".", "--tokenizer", ".", "-t", "1"),
            "--temperature: is not supported with --schemas",
        ),
        (
            ("--schemas", ".", "--tokenizer", ".", "--drafter", "eagle3"),
            "--drafter eagle3 --synthetic-acceptance",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run_command(capsys, *TINY, *arguments)
    assert status == 2
    assert text in err
