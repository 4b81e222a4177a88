"""A stream of tokens gives the text that all of them give together, and never half a character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.text import Detokenizer, Tokenizer
from tests.thorough import drawn

KINDS = ["chatml", "llama3", "llama2", "metaspace_first", "metaspace_never"]
SPACE_MARK = "\u2581"


def stream(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **options)
    return [*map(detokenizer.push, ids), detokenizer.finish()]


@settings(max_examples=drawn(150, 300), deadline=None)
@given(st.data(), st.sampled_from(KINDS), st.booleans(), st.booleans())
def test_any_tokens_stream_to_the_text_of_the_whole(tokenizers, data, kind, skip, continues):
    tokenizer = tokenizers[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=30))
    pieces = stream(tokenizer, ids, skip_special=skip, continues=continues)
    assert "".join(pieces) == tokenizer.decode(ids, skip, continues=continues)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.sampled_from(KINDS))
def test_valid_text_never_shows_a_replacement_character(tokenizers, text, kind):
    tokenizer = tokenizers[kind]
    text = text.replace("\ufffd", "?").replace(SPACE_MARK, "_").lstrip(" ")
    pieces = stream(tokenizer, tokenizer.encode_text(text))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert pieces[-1] == "" or not text.strip(" ")


@pytest.mark.parametrize("kind", KINDS)
def test_the_mark_of_spaces_is_a_space_where_it_is_one(kind, tokenizers):
    """As in SentencePiece, whose vocabularies have no other way to write it."""
    tokenizer = tokenizers[kind]
    is_mark = kind in ("llama2", "metaspace_first", "metaspace_never")
    text = f"one{SPACE_MARK}two"
    found = "".join(stream(tokenizer, tokenizer.encode_text(text)))
    assert found == ("one two" if is_mark else text)


@pytest.mark.parametrize("kind", ["chatml", "llama2"])
def test_a_character_in_four_tokens_comes_once_it_is_whole(kind, tokenizers):
    tokenizer = tokenizers[kind]
    byte_of = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    ids = [byte_of[bytes([byte])] for byte in "🎈".encode()]
    assert stream(tokenizer, ids) == ["", "", "", "🎈", ""]
    assert stream(tokenizer, ids[:3]) == ["", "", "", "\ufffd"]


@pytest.mark.timeout(120)  # decoding all again for each token would take hours
def test_a_hundred_thousand_tokens_stream_piece_by_piece(tokenizers):
    tokenizer = tokenizers["chatml"]
    ids = (tokenizer.encode_text("The capital of France 你好🎉 ") * 100_000)[:100_000]
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
