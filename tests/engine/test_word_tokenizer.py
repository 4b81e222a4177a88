"""A model whose tokenizer has whole words and no decoder: texts work, and formats are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tokenizers import Tokenizer as LibraryTokenizer

from eyas import Regex, RequestError, SamplingParams
from eyas.llm import LLM
from tests.models.tiny import make_model, save_model
from tests.text import small_tokenizers as small

TEMPLATE = "{% for message in messages %}{{ message.content }}</s>{% endfor %}"
SPEC = small.words(["</s>"])
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "The capital of France"}]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    directory = tmp_path_factory.mktemp("words")
    size = len(SPEC["model"]["vocab"])
    save_model(make_model("llama2", vocab_size=max(size, 256)), directory)
    small.write_model_directory(directory, SPEC, template=TEMPLATE, eos_token="</s>")
    with LLM(directory, dtype="float32", drafter="ngram", num_slots=512, max_num_seqs=4) as llm:
        yield llm


def test_texts_are_the_librarys(llm: LLM) -> None:
    library = LibraryTokenizer.from_str(json.dumps(SPEC))
    for output in (
        *llm.generate(["The capital of", "What is"], GREEDY),
        *llm.chat(MESSAGES, GREEDY),
    ):
        assert output.text.strip() == library.decode(output.token_ids, skip_special_tokens=True)
        assert output.choices[0].finish_reason == "length"


def test_formats_are_refused_with_the_reason(llm: LLM) -> None:
    assert llm.info.grammar_backend is None
    (reason,) = [each.reason for each in llm.info.choices if each.name == "grammars"]
    assert "tokenizer.json without a decoder" in reason
    with pytest.raises(RequestError, match=r"output: .*puts a space before each token"):
        llm.generate("The capital of", {"temperature": 0}, output=Regex("[a-z]+"))
