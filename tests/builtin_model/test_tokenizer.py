"""The shipped tokenizer: every text round-trips, control tokens are single ids."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from builtin_model.tokenizer import (
    CONTROL_TOKENS,
    HIDDEN_TOKENS,
    VOCABULARY_SIZE,
    train_tokenizer,
    training_text,
)
from eyas import builtin

TOKENIZER = Tokenizer.from_file(str(builtin.path() / "tokenizer.json"))


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_any_unicode_round_trips(text: str) -> None:
    for token in CONTROL_TOKENS:
        text = text.replace(token, "")
    assert TOKENIZER.decode(ids(text), skip_special_tokens=False) == text


def test_every_byte_has_a_token() -> None:
    singles = [token for token in TOKENIZER.get_vocab() if len(token) == 1]
    assert len(singles) == 256


def test_vocabulary_ends_with_the_control_tokens() -> None:
    assert TOKENIZER.get_vocab_size() == VOCABULARY_SIZE
    first = VOCABULARY_SIZE - len(CONTROL_TOKENS)
    for index, token in enumerate(CONTROL_TOKENS):
        assert ids(token) == [first + index]
        assert TOKENIZER.decode([first + index]) == ("" if token in HIDDEN_TOKENS else token)


def test_words_have_the_same_tokens_everywhere() -> None:
    word = ids("Zorbakel")
    for text in (" Zorbakel", '"Zorbakel"', "\nZorbakel", "_Zorbakel", "7Zorbakel."):
        found = ids(text)
        assert any(found[i : i + len(word)] == word for i in range(len(found)))


def test_digits_are_single() -> None:
    assert len(ids("31415")) == 5


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ValueError, match="too little text"):
        train_tokenizer(iter(["a b c"]))


def test_training_text_holds_no_control_token() -> None:
    for text in list(training_text("0", 50))[:50]:
        assert not any(token in text for token in CONTROL_TOKENS)
