"""A digest that tells models apart whose files have the same names and sizes.

Promises: changes with config.json, and with the numbers of a tensor if its first, middle or last ones
change, as in a merged adapter or another revision. Reads a few MiB at most.
Does not know: what tensors mean.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from eyas.models.checkpoint import checkpoint_files

SAMPLE_BYTES = 256
"""Of each place in a tensor that is read."""
MOST_SAMPLES = 6144
MOST_HEADER_BYTES = 100 << 20


def model_digest(directory: Path) -> str:
    """Return the digest of config.json and of the files that `Checkpoint` reads.

    OSError: a file cannot be read. ValueError: one is missing.
    """
    digest = hashlib.sha256()
    config = directory / "config.json"
    if config.exists():
        digest.update(config.read_bytes())
    files = sorted(checkpoint_files(directory))
    for file in files:
        size = file.stat().st_size
        digest.update(f"\n{file.name} {size}\n".encode())
        with file.open("rb") as weights:
            for place in _places(file, size, MOST_SAMPLES // len(files) + 1):
                weights.seek(place)
                digest.update(weights.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _places(file: Path, size: int, most: int) -> list[int]:
    """Return places of a file to read: the beginning, the middle and the end of its tensors."""
    with file.open("rb") as weights:
        length = int.from_bytes(weights.read(8), "little")
        try:
            header = json.loads(weights.read(min(length, MOST_HEADER_BYTES)))
            bounds = sorted(each["data_offsets"] for each in header.values() if "dtype" in each)
        except (ValueError, KeyError, TypeError, AttributeError):
            bounds = []  # whoever loads it says what is wrong with it
    begin = 8 + length
    places = [0, 8, max(0, size - SAMPLE_BYTES)]
    for first, last in bounds:
        places += [
            begin + first,
            begin + (first + last) // 2,
            begin + max(first, last - SAMPLE_BYTES),
        ]
    step = -(-len(places) // most)
    return places[::step]
