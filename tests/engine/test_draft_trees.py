"""The records of draft trees that a request may ask for, and its limit of their nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from eyas.core import MAX_RECORDED_STEPS, Delta, Request, SamplingParams, TreeRecord
from eyas.engine import commit
from eyas.grammar import OutputSpec, Regex
from eyas.llm import LLM


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(num_slots=2048, max_model_len=512, draft_nodes=8, draft_steps=4) as llm:
        yield llm


def request(llm: LLM, name: str, text: str, **fields: object) -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=24)
    prompt = llm.encode_chat([{"role": "user", "content": text}])
    return Request(id=name, prompt_token_ids=prompt, params=params, **fields)  # type: ignore[arg-type]


def run(llm: LLM, *requests: Request) -> dict[str, list[Delta]]:
    for each in requests:
        llm.engine.add(each)
    deltas: dict[str, list[Delta]] = {each.id: [] for each in requests}
    while llm.engine.has_work():
        for delta in llm.engine.step():
            deltas[delta.request_id].append(delta)
    return deltas


def records(deltas: list[Delta]) -> list[TreeRecord]:
    return [record for delta in deltas for record in delta.draft_trees or ()]


def tokens(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def test_a_record_tells_what_was_proposed_and_what_became_of_it(llm: LLM) -> None:
    asks = request(llm, "asks", "Who wrote Hamlet?", with_draft_trees=True)
    other = request(llm, "other", "What is the capital of France?")
    deltas = run(llm, asks, other)
    assert not records(deltas["other"])
    trees = records(deltas["asks"])
    assert len(trees) == deltas["asks"][-1].usage.num_steps  # type: ignore[union-attr]
    assert [token for tree in trees for token in tree.token_ids] == tokens(deltas["asks"])
    last = asks.prompt_token_ids[-1]
    for tree in trees:
        root, *drafted = tree.nodes
        assert (root.token_id, root.parent, root.source, root.score) == (last, -1, "", None)
        assert all(0 <= node.parent < place for place, node in enumerate(drafted, 1))
        accepted = [node for node in drafted if node.fate == "accepted"]
        assert [node.token_id for node in accepted] == tree.token_ids[: len(accepted)]
        for node in drafted:
            above = tree.nodes[node.parent].score
            assert node.source == "head" and node.score is not None
            assert above is None or node.score <= above
        last = tree.token_ids[-1]
    assert sum(len(tree.token_ids) > 1 for tree in trees) > 1


def test_refused_nodes_are_in_the_record(llm: LLM) -> None:
    spec = OutputSpec(root=Regex("(Paris|Amsterdam)"), param="regex")
    asks = request(llm, "asks", "Who wrote Hamlet?", with_draft_trees=True, output=spec)
    trees = records(run(llm, asks)["asks"])
    fates = {node.fate for tree in trees for node in tree.nodes}
    assert {"root", "refused"} <= fates
    sources = {node.source for tree in trees for node in tree.nodes if node.parent >= 0}
    assert sources <= {"head", "forced"}
    for tree in trees:
        for node in tree.nodes:
            if node.parent >= 0 and tree.nodes[node.parent].fate == "refused":
                assert node.fate == "refused"


def test_the_end_of_an_output_is_chosen_where_it_was_drafted(llm: LLM) -> None:
    spec = OutputSpec(root=Regex("(Paris|Amsterdam)"), param="regex")
    text = "What is the capital of France?"
    trees = records(
        run(llm, request(llm, "asks", text, with_draft_trees=True, output=spec))["asks"]
    )
    *_, last = trees
    assert [node.token_id for node in last.nodes if node.fate == "chosen"] == last.token_ids[-1:]
    assert last.token_ids[-1] in llm.info.eos_token_ids


def test_the_recorded_steps_are_bounded(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_RECORDED_STEPS == 512
    monkeypatch.setattr(commit, "MAX_RECORDED_STEPS", 4)
    asks = request(llm, "asks", "Who wrote Hamlet?", max_draft_nodes=1, with_draft_trees=True)
    deltas = run(llm, asks)["asks"]
    found, said = records(deltas), tokens(deltas)
    assert len(said) > 4
    assert [token for tree in found for token in tree.token_ids] == said[:4]


def test_a_limit_of_nodes_changes_no_token(llm: LLM) -> None:
    text = "Who wrote Hamlet?"
    limits: tuple[int | None, ...] = (None, 1, 3)
    asked = [
        request(llm, str(limit), text, max_draft_nodes=limit, with_draft_trees=True)
        for limit in limits
    ]
    together = run(llm, *asked)
    alone = run(llm, request(llm, "alone", text, max_draft_nodes=1, with_draft_trees=True))
    assert len({tuple(tokens(each)) for each in (*together.values(), *alone.values())}) == 1
    for limit, deltas in ((1, together["1"]), (1, alone["alone"]), (3, together["3"])):
        assert max(len(tree.nodes) for tree in records(deltas)) == limit
    assert max(len(tree.nodes) for tree in records(together["None"])) > 3


def test_the_offline_api_reports_trees_if_it_is_asked_to() -> None:
    sizes = {"num_slots": 2048, "max_model_len": 512, "draft_nodes": 8, "draft_steps": 4}
    params = SamplingParams(temperature=0.0, max_tokens=24)
    with LLM(report_draft_trees=True, **sizes) as llm:  # type: ignore[arg-type]
        (choice,) = llm.generate("The capital of France", params)[0].choices
        streamed = [
            tree
            for delta in llm.stream("The capital of France", params)
            for tree in delta.draft_trees
        ]
    assert [token for tree in choice.draft_trees for token in tree.token_ids] == choice.token_ids
    assert [tree.token_ids for tree in streamed] == [tree.token_ids for tree in choice.draft_trees]
    assert max(len(tree.nodes) for tree in choice.draft_trees) > 1
    with pytest.raises(ValueError, match="report_draft_trees"):
        LLM(report_draft_trees="yes")  # type: ignore[arg-type]
