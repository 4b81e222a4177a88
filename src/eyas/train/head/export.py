"""Write a trained head in the file layouts that engines load.

Promises: the same bfloat16 weights in every file layout that can represent the head; the facts of
the head follow from its target and the settings alone. Does not know: training.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from eyas.layers.rope import RopeSpec
from eyas.models import ModelSpec
from eyas.models.heads import HeadSpec, save_head
from eyas.models.heads.spec import default_taps
from eyas.models.locate import HUB_NAME
from eyas.train.head.config import HeadTraining
from eyas.train.head.layouts import LAYOUTS, supported_layouts
from eyas.train.head.vocabulary import BUILTIN_SIZE, DEFAULT_SIZE


def head_spec(config: HeadTraining, target: ModelSpec) -> HeadSpec:
    """Return the facts of the head to train. ValueError: a size does not fit the target."""
    num_heads = config.num_heads or target.num_query_heads
    num_kv_heads = config.num_kv_heads or min(target.num_kv_heads, num_heads)
    if num_heads % num_kv_heads:
        raise ValueError(
            f"num_heads: {num_heads} query heads cannot share {num_kv_heads} key/value heads; "
            "give a multiple"
        )
    size = BUILTIN_SIZE if config.is_builtin else min(DEFAULT_SIZE, target.vocab_size)
    draft_vocab_size = config.draft_vocab_size or size
    if draft_vocab_size > target.vocab_size:
        raise ValueError(
            f"draft_vocab_size: {draft_vocab_size} is above the target's {target.vocab_size}"
        )
    taps = config.taps or default_taps(target.num_layers)
    if any(not 0 <= tap <= target.num_layers for tap in taps) or len(set(taps)) < len(taps):
        raise ValueError(
            f"taps: {', '.join(map(str, taps))} do not fit the target's {target.num_layers} layers; "
            f"give distinct numbers from 0 to {target.num_layers}"
        )
    head_dim = target.head_dim
    if target.latent is not None:  # the head's own attention is plain
        head_dim = target.latent.plain_dim
    return HeadSpec(
        kind="eagle3",
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        num_target_layers=target.num_layers,
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size,
        num_layers=1,
        num_query_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.intermediate_size or target.intermediate_size,
        norm_epsilon=target.norm_epsilon,
        rope=_plain_rope(target.rope, head_dim),
        max_position=target.max_position,
        taps=tuple(taps),
        windows=(None,),
        own_embedding=False,
        own_head=True,
        fc_norm=config.format == "eagle3.1",
        entry_norms=True,
        final_norm=True,
        norm_output=config.format == "eagle3.1",
    )


def _plain_rope(rope: RopeSpec, head_dim: int) -> RopeSpec:
    """Return the rope of a target as file layouts of heads can write it: it rotates whole heads, in
    halves, and has no factors for single frequencies (longrope)."""
    if rope.kind == "longrope":
        return RopeSpec("default", rope.theta, head_dim)
    return replace(rope, head_dim=head_dim, rotary_dim=0, is_interleaved=False, logit_factor=1.0)


def hub_name(model: str) -> str | None:
    """Return the model's name on the hub; None for a directory and for the built-in model."""
    is_name = HUB_NAME.fullmatch(model) and not Path(model).expanduser().is_dir()
    return model if is_name else None


def export_head(
    directory: Path,
    spec: HeadSpec,
    tensors: Mapping[str, Tensor],
    ids_C: Tensor,
    calibration: Mapping[float, float],
    target: str | None = None,
) -> dict[str, Path]:
    """Write the head in every layout that can represent it. Return the directory of each layout.

    Other layouts that an earlier training wrote are deleted. target: the target model's name on the
    hub.
    """
    spec = replace(spec, calibration=dict(calibration))
    written = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in tensors.items()
    }
    if spec.draft_vocab_size != spec.vocab_size:
        ids = ids_C.to("cpu", torch.int64)
        written["d2t"] = ids - torch.arange(len(ids))
    heads: dict[str, Path] = {}
    supported = supported_layouts(spec)
    for name in LAYOUTS:
        if name not in supported and (directory / name).is_dir():
            shutil.rmtree(directory / name)
    for name in supported:
        heads[name] = directory / name
        save_head(heads[name], spec, written, format=name, target=target)
    return heads


def num_bytes(directory: Path) -> int:
    """Return the size of the weights files in bytes."""
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))
