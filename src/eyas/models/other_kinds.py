"""Name what a path that holds no model holds in its place, with what to do.

Promises: nothing is opened; names alone are looked at.
"""

from __future__ import annotations

from pathlib import Path

GGUF_SUFFIX = ".gguf"
GGUF = (
    "give the directory of the safetensors checkpoint that it was made from, since GGUF is not read"
)


def other_kind(directory: Path) -> str | None:
    """Return a predicate about a directory without a model: what it holds, and the remedy. None where
    its files say nothing."""
    if (directory / "adapter_config.json").is_file():
        return (
            "holds an adapter, and adapters are not applied to models here; merge it into its base "
            "model (peft's merge_and_unload), save that, and give its directory"
        )
    if any(directory.glob(f"*{GGUF_SUFFIX}")):
        return f"holds a GGUF file; {GGUF}"
    snapshots = sorted(directory.glob("snapshots/*/config.json"))
    if snapshots:
        return f"is a folder of the hub's cache; give {snapshots[-1].parent}, which holds the files"
    return None
