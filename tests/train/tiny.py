"""A target of two thousand weights and texts that repeat, so that a head learns them in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from eyas.layers.rope import RopeSpec
from eyas.models import load_model
from eyas.models.heads import HeadSpec
from eyas.train.head.answers import Text
from eyas.train.head.target import Target
from tests.models.tiny import make_model, save_model

VOCABULARY = 256
TAPS = (1, 2, 3)


def make_target(directory: Path) -> Target:
    """A random Llama with three layers, in float32."""
    save_model(make_model("llama3.1"), directory)
    decoder = load_model(directory, dtype=torch.float32)
    return Target(decoder, directory, TAPS)


def make_spec(draft_vocab_size: int = VOCABULARY, **changes: object) -> HeadSpec:
    values: dict[str, object] = {
        "kind": "eagle3",
        "hidden_size": 64,
        "target_hidden_size": 64,
        "num_target_layers": 3,
        "vocab_size": VOCABULARY,
        "draft_vocab_size": draft_vocab_size,
        "num_layers": 1,
        "num_query_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "norm_epsilon": 1e-6,
        "rope": RopeSpec("default", 10000.0, 16),
        "max_position": 512,
        "taps": TAPS,
        "windows": (None,),
        "own_embedding": False,
        "own_head": True,
        "fc_norm": True,
        "entry_norms": True,
        "final_norm": True,
        "norm_output": True,
    }
    return HeadSpec(**{**values, **changes})  # type: ignore[arg-type]


def make_texts(count: int, seed: int = 0, longest: int = 40) -> list[Text]:
    """Random texts whose second half (but for one interruption) is the answer."""
    generator = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        length = int(generator.integers(12, longest))
        is_answer = np.zeros(length, dtype=np.uint8)
        is_answer[length // 2 :] = 1
        is_answer[3 * length // 4] = 0
        tokens = generator.integers(1, VOCABULARY, length).astype(np.int32)
        texts.append(Text(tokens, is_answer))
    return texts
