"""The checkpoint with random weights that HTTP is measured with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.serve_http import LLAMA_8B, NUM_SPECIAL, TINY, write_checkpoint, write_tokenizer
from eyas import LLM, SamplingParams


@pytest.mark.parametrize("vocab_size", [TINY["vocab_size"], LLAMA_8B["vocab_size"]])
def test_the_tokenizer_has_as_many_ids_as_the_model(tmp_path: Path, vocab_size: int) -> None:
    write_tokenizer(tmp_path, vocab_size)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == vocab_size
    for text in ("!!", "a b", "näh\n"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    last = vocab_size - NUM_SPECIAL - 1
    assert len(tokenizer.decode([last])) in (2, 3)


def test_the_checkpoint_is_served_like_any_other(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) == TINY["num_hidden_layers"] + 1
    with LLM(tmp_path, drafter="root") as llm:
        params = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
        (output,) = llm.generate([[300, 301, 302]], params)
        assert len(output.token_ids) == 5
        assert llm.info.vocab_size == TINY["vocab_size"]
