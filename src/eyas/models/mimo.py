"""MiMo: the layers of Qwen2. Its MTP layer is a draft head, which `heads.mtp` reads."""

from __future__ import annotations

from dataclasses import replace

from eyas.models import qwen2
from eyas.models.config_file import ConfigFile
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = qwen2.CHECKPOINT_NAMES
FIELDS = qwen2.FIELDS


def read(config: ConfigFile) -> ModelSpec:
    """Return the model's facts, as `registry.Family.read`."""
    return replace(qwen2.read(config), family="mimo")
