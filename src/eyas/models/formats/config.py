"""Fields of `quantization_config` that several formats have.

Promises: a value that is no size is refused by name.
"""

from __future__ import annotations

import re

from eyas.models.config_file import ConfigFile


def group_size(config: ConfigFile) -> int:
    """Return `group_size`: the number of columns that share a scale; -1 for all of a row."""
    value = config.values.get("group_size", 128)
    return -1 if value == -1 else config.count("group_size", 128)


def block_size(config: ConfigFile, field: str) -> tuple[int, int] | None:
    """Return the rows and columns of a block, also spelled "128x128"; None where the field is absent
    or null."""
    value = config.values.get(field)
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}x\d{1,9}", value, re.ASCII):
        value = [int(size) for size in value.split("x")]
    is_size = isinstance(value, list) and len(value) == 2
    if not is_size or not all(type(size) is int and size > 0 for size in value):
        raise config.error(field, f"must be the rows and columns of a block, not {value!r}")
    return value[0], value[1]
