"""Train the tokenizer of the built-in model: a byte-level BPE on text of the generator.

Promises: every Unicode text round-trips; control tokens are single ids at the end of the
vocabulary; a word has the same tokens at every place, since white space is never part of a word's
token, so that copying a word from prose into JSON copies its tokens. Does not know: the model.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from builtin_model.families import mixture
from builtin_model.families.draw import WORDS, is_heldout
from builtin_model.template import TEMPLATE_FILE, render

VOCABULARY_SIZE = 4096
LISTED_REPEATS = 300
"""The number of repetitions of the words of the tables, so that most of them get one token."""
END_OF_TEXT = "<|endoftext|>"
CONTROL_TOKENS = (
    END_OF_TEXT,
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
HIDDEN_TOKENS = CONTROL_TOKENS[:3]
"""Tokens that are removed from text for people; tags of reasoning and tools stay, as in Qwen3."""
SPLIT_PATTERN = (
    r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+(?: [^\s\p{L}\p{N}]+)*[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Splits text into words, single digits, runs of punctuation (with spaces), line ends and white
space."""


def training_text(seed: str, count: int) -> Iterator[str]:
    """Yield rendered conversations without their control tokens."""
    for example in mixture(f"tokenizer/{seed}", "train", count):
        text = render(example.messages, example.tools)
        for token in CONTROL_TOKENS:
            text = text.replace(token, "\n")
        yield text
    seen = " ".join(word for word in WORDS if not is_heldout(word))
    yield from [seen] * LISTED_REPEATS


def train_tokenizer(texts: Iterator[str]) -> Tokenizer:
    """Train a byte-level BPE of `VOCABULARY_SIZE` entries, with control tokens last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    for token in CONTROL_TOKENS:
        is_special = token in HIDDEN_TOKENS
        added = AddedToken(token, special=is_special, normalized=False)
        tokenizer.add_special_tokens([added]) if is_special else tokenizer.add_tokens([added])
    if tokenizer.get_vocab_size() != VOCABULARY_SIZE:
        raise ValueError(f"too little text: {tokenizer.get_vocab_size()} entries")
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "additional_special_tokens": list(HIDDEN_TOKENS[1:]),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (directory / "chat_template.jinja").write_text(TEMPLATE_FILE.read_text())


def main() -> None:
    """Train the tokenizer and write it into a checkpoint directory."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--conversations", type=int, default=30000)
    arguments = parser.parse_args()
    texts = training_text(arguments.seed, arguments.conversations)
    save_tokenizer(train_tokenizer(texts), arguments.directory)


if __name__ == "__main__":
    main()
