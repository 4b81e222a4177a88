"""Prompts, vocabulary, plans and shards: what a head is trained on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from eyas import builtin
from eyas.text import Tokenizer
from eyas.train.head.answers import Encoder, Text, complete_texts, read_answers
from eyas.train.head.batches import BatchSchedule, cut_into_batches, make_batch
from eyas.train.head.calibrate import fit_beta
from eyas.train.head.features import StoredFeatures, write_features
from eyas.train.head.progress import Reporter
from eyas.train.head.prompts import check_source, read_conversations, read_prompts
from eyas.train.head.vocabulary import choose_vocabulary, coverage, needed_ids
from tests.train.tiny import make_target, make_texts

TOKENIZER = Tokenizer.from_directory(builtin.path())
USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "must be an object"),
        ('{"text": "a"}', "'text' is unknown"),
        ('{"prompt": "a", "messages": []}', "either"),
        ('{"prompt": ""}', "not empty"),
        ('{"prompt": "a", "tools": []}', "need 'messages'"),
        ('{"messages": []}', "is empty"),
        ('{"messages": ["a"]}', "list of objects"),
        ('{"messages": [{"content": "a"}]}', "needs a 'role'"),
        ('{"messages": [{"role": "user"}], "enable_thinking": 1}', "true or false"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"messages": [USER]}) + "\n\n" + line + "\n")
    with pytest.raises(ValueError, match=r"prompts\.jsonl:3: ") as caught:
        read_prompts(str(file), "as-given")
    assert said in str(caught.value)


def test_an_empty_or_missing_source_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "none.jsonl"
    with pytest.raises(ValueError, match=r"prompts: .*is not a file"):
        check_source(str(file), "prompts")
    file.write_text("\n")
    with pytest.raises(ValueError, match="contains no prompts"):
        read_prompts(str(file), "as-given")
    for wrong in ("builtin:many", "builtin:0", "builtin:9:seed"):
        with pytest.raises(ValueError, match=r"prompts: .*write builtin:N"):
            check_source(wrong, "prompts")
    with pytest.raises(ValueError, match=r"builtin:641: there are 640 built-in ones; .* FILE N"):
        check_source("builtin:641", "conversations")


def test_both_asks_every_prompt_with_and_without_thinking(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"messages": [USER, {"role": "assistant", "content": "x"}]}))
    asked = read_prompts(str(file), "both")
    assert [c.enable_thinking for c in asked] == [True, False]
    assert all(c.messages == (USER,) for c in asked)
    assert [c.enable_thinking for c in read_prompts(str(file), "as-given")] == [None]


def test_a_conversation_without_an_answer_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    file.write_text(json.dumps({"messages": [USER]}))
    with pytest.raises(
        ValueError, match=r"talk\.jsonl:1: the conversation does not end in an assistant message"
    ):
        read_conversations(str(file))


def test_complete_conversations_are_learnt_from_their_answers_on() -> None:
    conversations = read_conversations("builtin:40")
    texts = complete_texts(builtin.path(), conversations)
    encoder = Encoder(builtin.path())
    for conversation, text in zip(conversations, texts, strict=True):
        assert text is not None
        answer = TOKENIZER.decode(text.tokens[text.is_answer == 1].tolist(), skip_special=False)
        assert answer.rstrip().endswith("<|im_end|>")
        opening = encoder.prompt(read_prompts("builtin:40", "as-given")[0])
        assert opening
        content = conversation.messages[-1].get("content")
        assert not content or content.strip() in answer


def test_answers_survive_a_line_that_was_cut_off(tmp_path: Path) -> None:
    entry = {"index": 1, "finish": "stop", "prompt": [1, 2], "answer": [3, 4]}
    other = {**entry, "index": 0, "answer": [5]}
    failed = {"index": 2, "error": "refused"}
    lines = [json.dumps(e) for e in (entry, failed, other)]
    (tmp_path / "answers.jsonl").write_text("\n".join(lines) + '\n{"index": 3, "pro')
    texts = read_answers(tmp_path, 3)
    assert [text.tokens.tolist() for text in texts] == [[1, 2, 5], [1, 2, 3]]
    assert [text.is_answer.tolist() for text in texts] == [[0, 0, 1], [0, 0, 1]]


def test_vocabulary_holds_what_structure_needs_and_then_what_answers_say() -> None:
    needed = set(needed_ids(TOKENIZER, 4096))
    assert set(TOKENIZER.control_ids) <= needed
    for text in ("0", "9", "{", "}", '"', ",", ":", " ", "\n"):
        assert set(TOKENIZER.encode_text(text)) <= needed
    rare, common = [i for i in range(4096) if i not in needed][-2:]
    tokens = np.array([rare, common, common, rare - 5], dtype=np.int32)
    text = Text(tokens, np.array([1, 1, 1, 0], dtype=np.uint8))
    ids = choose_vocabulary([text], TOKENIZER, 4096, len(needed) + 1)
    assert set(ids.tolist()) == needed | {common}
    assert (np.diff(ids) > 0).all()
    assert coverage([text], ids, 4096) == pytest.approx(2 / 3)
    assert len(choose_vocabulary([text], TOKENIZER, 4096, 4096)) == 4096
    with pytest.raises(ValueError, match="draft_vocab_size: 10 is below"):
        choose_vocabulary([text], TOKENIZER, 4096, 10)


def test_every_text_is_in_one_batch_of_an_epoch() -> None:
    lengths = [[10, 40, 33], [90, 12], [500], [31, 64]]
    plan = BatchSchedule(lengths, 128, together=2, seed=0)
    for epoch in range(3):
        batches = plan.epoch(epoch)
        seen = sorted(member for batch in batches for member in batch.members)
        assert seen == [(s, i) for s, of_shard in enumerate(lengths) for i in range(len(of_shard))]
        for batch in batches:
            assert {shard for shard, _ in batch.members} <= set(batch.shards)
    assert plan.epoch(1) == plan.epoch(1)
    generator = np.random.default_rng(0)
    for members in cut_into_batches(np.arange(1, 200), 1024, generator):
        assert len(members) * (-(-int(members.max() + 1) // 32) * 32) <= 1024


def test_features_larger_than_the_budget_are_streamed(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target")
    texts = make_texts(30)

    def write(name: str, shard_bytes: int) -> Path:
        done = write_features(
            target,
            texts,
            tmp_path / name,
            shard_bytes=shard_bytes,
            batch_places=128,
            reporter=Reporter(lambda line: None),
            deadline=math.inf,
            stamp="s",
        )
        assert done
        return tmp_path / name

    small, large = write("small", 60_000), write("large", 10_000_000)
    device = torch.device("cpu")
    streamed = StoredFeatures(small, device, budget_bytes=400_000, together=2)
    resident = StoredFeatures(large, device, budget_bytes=10**9)
    num_shards = len(list(small.glob("*.safetensors")))
    assert num_shards > 4 and not streamed.is_resident and resident.is_resident
    owners = [(s, i) for s, of_shard in enumerate(streamed.lengths) for i in range(len(of_shard))]
    for planned in BatchSchedule(streamed.lengths, 256, streamed.together, 0).epoch(0):
        batch = make_batch(streamed.texts(planned.members, planned.shards), 3)
        same = tuple((0, owners.index(member)) for member in planned.members)
        states, whole = streamed.states(planned.members, batch), resident.states(same, batch)
        assert streamed.num_loaded < num_shards
        torch.testing.assert_close(states.tapped, whole.tapped, atol=1e-5, rtol=1e-5)
        assert torch.equal(states.choice_P, whole.choice_P)
        live, _ = target.states(batch.tokens_BL)
        rows = batch.row_R
        torch.testing.assert_close(states.tapped[rows], live[rows], atol=1e-4, rtol=1e-4)


def test_the_weight_of_noise_is_found_again() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(20000, 12, generator=generator) * 2
    chances = (0.7 * scores).softmax(-1)
    choices = torch.multinomial(chances, 1, generator=generator).squeeze(1)
    assert fit_beta(scores, choices) == pytest.approx(0.7, abs=0.03)
