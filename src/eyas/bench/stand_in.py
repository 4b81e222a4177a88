"""A tokenizer for a checkpoint that has none, so that it runs on token ids.

Promises: the checkpoint's own files are left alone; its weights are not copied. Texts of the stand-in
mean nothing.
Does not know: why the tokenizer is missing.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_SPEC = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": _BYTE_LEVEL,
    "decoder": _BYTE_LEVEL,
    "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
}


def has_tokenizer(directory: Path) -> bool:
    """Is there a tokenizer that eyas reads?"""
    return (directory / "tokenizer.json").is_file()


@contextmanager
def with_tokenizer(directory: Path) -> Iterator[Path]:
    """The directory itself, or while the context lasts one like it that has a tokenizer."""
    if has_tokenizer(directory):
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="eyas-") as folder:
        stand_in = Path(folder) / directory.resolve().name
        stand_in.mkdir()
        for file in directory.iterdir():
            if file.name != "tokenizer_config.json":
                (stand_in / file.name).symlink_to(file.resolve())
        (stand_in / "tokenizer.json").write_text(json.dumps(_SPEC), encoding="utf-8")
        yield stand_in
