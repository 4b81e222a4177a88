"""The built-in model: a small chat model, its tokenizer, and the code that made both.

Promises a complete Hugging Face checkpoint directory inside the package, so that everything can be
tried without a download. Knows nothing of the engine that runs it.
"""

from pathlib import Path


def path() -> Path:
    """Directory of the shipped checkpoint (config, tokenizer, chat template, weights)."""
    return Path(__file__).parent / "checkpoint"


__all__ = ["path"]
