"""The built-in model: a small chat model, its tokenizer, and the code that made both.

Promises a complete Hugging Face checkpoint directory inside the package, so that everything can be
tried without a download. Knows nothing of the engine that runs it.
"""

from pathlib import Path


def path() -> Path:
    """Directory of the shipped checkpoint (config, tokenizer, chat template, weights)."""
    return Path(__file__).parent / "checkpoint"


def head_path() -> Path | None:
    """Directory of the shipped draft head, where there is one."""
    directory = Path(__file__).parent / "head"
    return directory if (directory / "config.json").is_file() else None


def without_end(text: str) -> str:
    """An answer up to its end-of-message token."""
    return text.split("<|im_end|>")[0].split("<|endoftext|>")[0]


__all__ = ["head_path", "path", "without_end"]
