"""Small tokenizers of every kind, once a session."""

from __future__ import annotations

import pytest

from eyas.text import Tokenizer
from tests.text import small_tokenizers as small


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    return {
        "chatml": Tokenizer(small.chatml_spec(), {"eos_token": "<|im_end|>"}),
        "llama3": Tokenizer(
            small.byte_level(small.LLAMA3_TOKENS), {"bos_token": "<|begin_of_text|>"}
        ),
        "llama2": Tokenizer(small.byte_fallback(), {"bos_token": "<s>", "eos_token": "</s>"}),
        "metaspace_first": Tokenizer(small.byte_fallback(prepend="first"), {"bos_token": "<s>"}),
        "metaspace_never": Tokenizer(small.byte_fallback(prepend="never"), {"bos_token": "<s>"}),
    }
