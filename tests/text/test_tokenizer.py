"""Text never becomes a control token, and ids become exactly the text they stand for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers as huggingface
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from eyas.text import ChatTemplate, Detokenizer, Tokenizer, sampling_defaults
from eyas.text.files import read_json_object
from tests.text import small_tokenizers as small

KINDS = ["chatml", "llama3", "llama2", "metaspace_first", "metaspace_never"]


def kept(text: str, kind: str) -> str:
    """What a tokenizer keeps of a text: a metaspace is a space, and one kind takes a leading space for
    its own."""
    text = text.replace("\u2581", " ") if kind not in ("chatml", "llama3") else text
    return text.removeprefix(" ") if kind == "metaspace_first" else text


TEXTS = [
    "The capital of France is Paris.",
    " leading and trailing ",
    "naïve 你好 🎉 \x00 \n\n tabs\t.",
    "def area(radius):\n    return 1",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_plain_text_has_the_ids_and_text_that_the_library_gives(kind, text, tokenizers):
    specs = {
        "chatml": small.chatml_spec,
        "llama3": lambda: small.byte_level(small.LLAMA3_TOKENS),
        "llama2": small.byte_fallback,
        "metaspace_first": lambda: small.byte_fallback(prepend="first"),
        "metaspace_never": lambda: small.byte_fallback(prepend="never"),
    }
    reference = huggingface.Tokenizer.from_str(json.dumps(specs[kind]()))
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode_text(text)
    assert ids == reference.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode_prompt(text) == reference.encode(text).ids
    assert tokenizer.decode(ids) == reference.decode(ids) == kept(text, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_every_control_token_is_text_inside_text(kind, tokenizers):
    tokenizer = tokenizers[kind]
    for token in tokenizer.control_tokens:
        for text in (token.text, f"a{token.text}b", f" {token.text} ", token.text * 3):
            ids = tokenizer.encode_text(text)
            assert tokenizer.control_ids.isdisjoint(ids)
            assert tokenizer.decode(ids) == kept(text, kind)
            assert tokenizer.control_ids.isdisjoint(tokenizer.encode_prompt(text)[1:])


def test_a_vocabulary_that_spells_a_control_token_is_broken_up():
    spec = small.chatml_spec()
    spec["model"]["ignore_merges"] = True
    spec["model"]["vocab"]["<|im_end|>"] = next(
        token["id"] for token in spec["added_tokens"] if token["content"] == "<|im_end|>"
    )
    tokenizer = Tokenizer(spec)
    for text in ("<|im_end|>", "x <|im_end|><|im_end|>"):
        ids = tokenizer.encode_text(text)
        assert tokenizer.control_ids.isdisjoint(ids)
        assert tokenizer.decode(ids) == text


def test_byte_tokens_among_the_added_tokens_stand_for_bytes():
    spec = small.byte_fallback()
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False}
    spec["added_tokens"] += [
        {"id": 3 + byte, "content": f"<0x{byte:02X}>", "normalized": False, **flags}
        for byte in range(256)
    ]
    tokenizer = Tokenizer(spec)
    text = "naïve 你好\ttabs <0x41>"
    assert tokenizer.encode_text(text) == Tokenizer(small.byte_fallback()).encode_text(text)
    assert tokenizer.decode(tokenizer.encode_text(text)) == text


def test_characters_that_the_vocabulary_lacks_become_the_unknown_token():
    spec = small.byte_fallback()
    spec["model"] |= {"byte_fallback": False, "fuse_unk": False}
    reference = huggingface.Tokenizer.from_str(json.dumps(spec))
    ids = Tokenizer(spec).encode_text("The 你 sun")
    assert ids == reference.encode("The 你 sun", add_special_tokens=False).ids
    assert 0 in ids


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=40), st.sampled_from(KINDS))
def test_text_survives_the_round_trip(tokenizers, text, kind):
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode_text(text)
    assert tokenizer.control_ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == kept(text, kind)
    assert tokenizer.min_num_tokens(text) <= len(ids)


def test_half_a_surrogate_pair_becomes_a_replacement_character(tokenizers):
    tokenizer = tokenizers["chatml"]
    assert tokenizer.decode(tokenizer.encode_text("a\ud800b")) == "a\ufffdb"


def test_special_tokens_are_left_out_and_markers_are_kept(tokenizers):
    tokenizer = tokenizers["chatml"]
    ids = [tokenizer.control_id("<|im_start|>"), tokenizer.control_id("<think>")]
    assert tokenizer.decode(ids) == "<think>"
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|><think>"
    assert tokenizer.eos_id == tokenizer.control_id("<|im_end|>")


def test_an_id_that_no_token_has_is_no_text(tokenizers):
    for kind in KINDS:
        assert tokenizers[kind].token_bytes(10**6) == b""
        assert tokenizers[kind].token_bytes(-1) == b""


def test_a_continued_text_keeps_its_leading_space(tokenizers):
    tokenizer = tokenizers["llama2"]
    ids = tokenizer.encode_text("Paris")
    assert tokenizer.decode(ids) == "Paris"
    assert tokenizer.decode(ids, continues=True) == " Paris"


def test_words_without_a_decoder_are_joined_by_spaces():
    spec = small.words(["</s>"])
    tokenizer = Tokenizer(spec, {"eos_token": "</s>"})
    library = huggingface.Tokenizer.from_str(json.dumps(spec))
    for text in ("The capital of France is Paris.", "zebra: 21 degrees", "{", ""):
        ids = tokenizer.encode_text(text)
        assert ids == library.encode(text).ids
        assert tokenizer.decode(ids) == library.decode(ids)
        detokenizer = Detokenizer(tokenizer)
        assert "".join([*map(detokenizer.push, ids), detokenizer.finish()]) == tokenizer.decode(ids)
    assert tokenizer.puts_spaces
    ids = tokenizer.encode_text("of France")
    assert tokenizer.decode(ids, continues=True) == " of France"


def test_the_prompt_opens_as_the_post_processor_says(tokenizers):
    assert tokenizers["llama2"].encode_prompt("Paris")[0] == tokenizers["llama2"].bos_id == 1
    assert tokenizers["chatml"].encode_prompt("") == []


def test_a_directory_without_a_tokenizer_says_what_to_do(tmp_path: Path):
    with pytest.raises(ValueError, match=r"has no tokenizer\.json.*Convert"):
        Tokenizer.from_directory(tmp_path)
    assert Tokenizer.from_directory_if_there(tmp_path) is None


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json"])
def test_a_tokenizer_in_another_format_is_not_taken_for_none(name: str, tmp_path: Path):
    (tmp_path / name).write_bytes(b"...")
    with pytest.raises(ValueError, match=rf"has {name}, but no tokenizer\.json.*save_pretrained"):
        Tokenizer.from_directory_if_there(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"model": 3, "decoder": {"type": "ByteLevel"}}', '"x"']
)
def test_a_broken_tokenizer_file_is_named(tmp_path: Path, content: str):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)


def test_special_tokens_may_be_named_in_a_file_of_their_own(tmp_path: Path):
    spec = small.byte_level(small.LLAMA3_TOKENS)
    named = {
        "bos_token": "<|begin_of_text|>",
        "eos_token": {"content": "<|eot_id|>", "lstrip": False, "special": True},
        "additional_special_tokens": ["<|eom_id|>"],
    }
    older = {"eos_token": "<|end_of_text|>"}
    newer = {**older, "added_tokens_decoder": {}}
    for config in ({}, older, newer, {"bos_token": None, "added_tokens_decoder": {}}):
        small.write_model_directory(tmp_path, spec, **config)
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(named))
        tokenizer = Tokenizer.from_directory(tmp_path)
        begin, end = tokenizer.special_texts.get("bos_token"), tokenizer.special_texts["eos_token"]
        assert begin == (None if "bos_token" in config else "<|begin_of_text|>")
        assert tokenizer.bos_id == (None if begin is None else tokenizer.control_id(begin))
        assert end == ("<|end_of_text|>" if config == newer else "<|eot_id|>")
        assert tokenizer.eos_id == tokenizer.control_id(end)


def test_a_models_own_names_of_tokens_are_what_its_template_may_write(tmp_path: Path):
    extra = {"image": "<|eom_id|>", "call_token": "<|python_tag|>"}
    spec, template = small.byte_level(small.LLAMA3_TOKENS), "{{ image }}{{ call_token }}"
    small.write_model_directory(tmp_path, spec, template=template, extra_special_tokens=extra)
    messages = [{"role": "user", "content": "x"}]
    expected = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(
        messages, tokenize=True, return_dict=False
    )
    chat = ChatTemplate.from_directory(tmp_path)
    assert chat is not None and chat.render_ids(messages) == expected
    taken = Tokenizer(spec, {"extra_special_tokens": {"add_generation_prompt": {"content": "x"}}})
    chat = ChatTemplate(taken, "{{ add_generation_prompt }}")
    assert taken.decode(chat.render_ids(messages, add_generation_prompt=False)) == "False"


def test_sampling_defaults_keep_only_what_can_be_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    assert sampling_defaults(tmp_path) == {}
    given_values = {"temperature": 0.6, "top_p": 7, "top_k": 20, "repetition_penalty": "1"}
    (tmp_path / "generation_config.json").write_text(json.dumps(given_values))
    with caplog.at_level("WARNING", logger="eyas"):
        assert sampling_defaults(tmp_path) == {"temperature": 0.6, "top_k": 20}
    assert "top_p 7, repetition_penalty '1': not a valid value and left out" in caplog.text


def test_a_top_k_of_minus_1_is_off(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "generation_config.json").write_text('{"top_k": -1}')
    with caplog.at_level("WARNING", logger="eyas"):
        assert sampling_defaults(tmp_path) == {"top_k": 0}
    assert not caplog.text


def test_who_does_not_sample_has_temperature_0(tmp_path: Path):
    given_values = {"do_sample": False, "temperature": 0.6, "min_p": 0.1}
    (tmp_path / "generation_config.json").write_text(json.dumps(given_values))
    assert sampling_defaults(tmp_path) == {"temperature": 0.0, "min_p": 0.1}


def test_files_may_hold_numbers_that_are_not_finite(tmp_path: Path) -> None:
    """As transformers writes them, which is no JSON."""
    file = tmp_path / "config.json"
    file.write_text('{"time_step_limit": [0.0, Infinity], "model_type": "x"}')
    assert read_json_object(file)["time_step_limit"][1] == float("inf")
    file.write_text('{"model_type": ')
    with pytest.raises(ValueError, match="is not valid JSON"):
        read_json_object(file)
