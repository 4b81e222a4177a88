"""A checkpoint without tokenizer.json is served on token ids, and says what it cannot do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from eyas.core import RequestError, SamplingParams
from eyas.llm import LLM
from tests.models.tiny import make_model, save_model

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Just as transformers saves a model."""
    return save_model(make_model("llama2"), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(directory: Path) -> Iterator[LLM]:
    with LLM(str(directory), dtype="float32", device="cpu", max_num_seqs=4) as llm:
        yield llm


def test_token_ids_are_continued_as_transformers_does(llm: LLM) -> None:
    model, prompts = make_model("llama2"), [[5, 6, 7], [9, 8, 7, 6]]
    for prompt, output in zip(prompts, llm.generate(prompts, GREEDY), strict=True):
        with torch.no_grad():
            expected = model.generate(
                torch.tensor([prompt]), max_new_tokens=6, do_sample=False, eos_token_id=None
            )
        assert [*prompt, *output.token_ids] == expected[0].tolist()
        assert output.text == ""
    assert not llm.has_tokenizer and llm.info.grammar_backend is None


def test_a_draft_model_without_tokenizer_drafts(directory: Path, llm: LLM) -> None:
    options: dict[str, Any] = {"dtype": "float32", "device": "cpu", "max_num_seqs": 2}
    with LLM(str(directory), drafter="model", draft_model=str(directory), **options) as drafted:
        (found,) = drafted.generate([[5, 6, 7]], GREEDY)
    (expected,) = llm.generate([[5, 6, 7]], GREEDY)
    assert found.token_ids == expected.token_ids


def test_the_lack_is_said_at_load(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "eyas"):
        LLM(str(directory), drafter="root", dtype="float32", device="cpu").close()
    assert any("no tokenizer.json" in record.getMessage() for record in caplog.records)


REFUSED: dict[str, Callable[[LLM], Any]] = {
    "prompts": lambda llm: llm.generate("a text"),
    "messages": lambda llm: llm.chat(MESSAGES),
    "stop": lambda llm: llm.generate([5], SamplingParams(stop=("x",))),
    "output": lambda llm: llm.generate([5], output=Literal["a", "b"]),
}


@pytest.mark.parametrize("param", REFUSED)
def test_what_needs_texts_is_refused_with_the_remedy(param: str, llm: LLM) -> None:
    with pytest.raises(RequestError, match=rf"^{param}: .*no tokenizer.*tokenizer\.json") as caught:
        REFUSED[param](llm)
    assert caught.value.param == param
    with pytest.raises(RequestError, match=r"^this model has no tokenizer; give token ids"):
        _ = llm.tokenizer
    (output,) = llm.generate([[5, 6, 7]], GREEDY)
    assert len(output.token_ids) == 6
