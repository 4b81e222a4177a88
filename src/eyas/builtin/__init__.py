"""The built-in model: a small chat model, its tokenizer, its draft head, and example conversations.

Promises: a complete Hugging Face checkpoint directory inside the package, so that everything can be
tried without a download. Does not know: the engine that runs it, nor how it was trained
(`tools/builtin_model` in the repository).
"""

from pathlib import Path


def path() -> Path:
    """Return the directory of the checkpoint (config, tokenizer, chat template, weights)."""
    return Path(__file__).parent / "checkpoint"


def head_path() -> Path | None:
    """Return the directory of the draft head; None where the package has none."""
    directory = Path(__file__).parent / "head"
    return directory if (directory / "config.json").is_file() else None


def prompts_file() -> Path:
    """Return the JSON lines file of prompts, which a model answers."""
    return Path(__file__).parent / "prompts.jsonl"


def conversations_file() -> Path:
    """Return the JSON lines file of conversations with answers to train on as they are."""
    return Path(__file__).parent / "conversations.jsonl"


def without_end(text: str) -> str:
    """Return an answer up to its end-of-message token."""
    return text.split("<|im_end|>")[0].split("<|endoftext|>")[0]


__all__ = ["conversations_file", "head_path", "path", "prompts_file", "without_end"]
