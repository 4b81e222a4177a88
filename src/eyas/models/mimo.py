"""MiMo: the Qwen2 layer; its MTP layer is a draft head of its own (`heads.mtp`).

Promises: a configuration becomes a `ModelSpec`, a parameter name a checkpoint name.
Does not know: how either is used.
"""

from __future__ import annotations

from dataclasses import replace

from eyas.models import qwen2
from eyas.models.config_file import ConfigFile
from eyas.models.spec import ModelSpec

CHECKPOINT_NAMES = qwen2.CHECKPOINT_NAMES
FIELDS = qwen2.FIELDS


def read(config: ConfigFile) -> ModelSpec:
    return replace(qwen2.read(config), family="mimo")
