"""The built-in model: a small chat model, its tokenizer and draft head, and conversations of its kinds.

Promises a complete Hugging Face checkpoint directory inside the package, so that everything can be
tried without a download. Knows nothing of the engine that runs it, nor how the model was made
(`tools/builtin_model` in the repository).
"""

from pathlib import Path


def path() -> Path:
    """Directory of the shipped checkpoint (config, tokenizer, chat template, weights)."""
    return Path(__file__).parent / "checkpoint"


def head_path() -> Path | None:
    """Directory of the shipped draft head, where there is one."""
    directory = Path(__file__).parent / "head"
    return directory if (directory / "config.json").is_file() else None


def prompts_file() -> Path:
    """JSON lines of conversations whose answers a model may write anew."""
    return Path(__file__).parent / "prompts.jsonl"


def conversations_file() -> Path:
    """JSON lines of conversations whose answers are to be learnt as they stand."""
    return Path(__file__).parent / "conversations.jsonl"


def without_end(text: str) -> str:
    """An answer up to its end-of-message token."""
    return text.split("<|im_end|>")[0].split("<|endoftext|>")[0]


__all__ = ["conversations_file", "head_path", "path", "prompts_file", "without_end"]
