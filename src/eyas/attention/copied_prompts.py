"""Prompt rows over copies of their sequences' keys and values, on devices with warpgroups.

Promises: the bits of `kernels.attention_prefill`, which is tried once for each kind of layer; where it
does not hold, or a device has no such kernel, no layer is taken. Copies are bounded, and made only
where enough rows read them.
Does not know: nodes.

Legend: T rows, N query heads, G key/value heads, H head dim, S slots.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from eyas.attention.base import AttentionLayout, ContextRun
from eyas.kernels import has_warpgroups
from eyas.kernels.ahead import is_collecting
from eyas.kernels.softmax import SPLIT, HeadShape
from eyas.transfer import send

log = logging.getLogger(__name__)

MOST_BYTES = 256 << 20
"""Of the copies of a layer, one layer at a time."""
LEAST_LINES = 512
"""Lines (queries times query heads of a group) that read a copied position, on average: with fewer,
copying takes longer than the kernel saves."""
TRIAL = (ContextRun(0, 0, 1000, 150), ContextRun(1, 150, 0, 140))
"""The chunks on which both kernels are compared."""


@dataclass(frozen=True, slots=True)
class CopiedPrompts:
    """The prompt rows of one forward pass, for layers of one kind. Tensors as in
    `kernels.copies.CopiedTiles`."""

    tiles_X4: torch.Tensor
    splits_Y3: torch.Tensor
    layout: AttentionLayout

    @classmethod
    def of(cls, layout: AttentionLayout, shape: HeadShape) -> CopiedPrompts:
        from eyas.kernels.attention_copied import queries_of_tile
        from eyas.kernels.copies import cut_copied

        device = layout.seats_B.device
        cut = cut_copied(_runs(layout.contexts), queries_of_tile(shape))
        return cls(send(cut.tiles_X4, device), send(cut.splits_Y3, device), layout)

    def attend(
        self,
        q_TNH: torch.Tensor,
        kv_S2GH: torch.Tensor,
        out_TNH: torch.Tensor,
        shape: HeadShape,
        *,
        sinks_N: torch.Tensor | None,
        key_scale: float,
        value_scale: float,
        pdl: bool,
    ) -> None:
        """As `attend_prompts`."""
        from eyas.kernels.attention_copied import attend_copied
        from eyas.kernels.copies import copy_slots

        layout = self.layout
        copied_PX = copy_slots(
            kv_S2GH,
            self.splits_Y3,
            layout.seats_B,
            layout.slots_AC,
            q_TNH.dtype,
            pdl=pdl,
        )
        attend_copied(
            q_TNH,
            copied_PX,
            out_TNH,
            self.tiles_X4,
            shape,
            sinks_N=sinks_N,
            key_scale=key_scale,
            value_scale=value_scale,
            pdl=pdl,
        )


def _runs(contexts: Sequence[ContextRun]) -> list[tuple[int, int, int, int]]:
    return [(each.sequence, each.row, each.start, each.count) for each in contexts]


def is_worth_copying(contexts: Sequence[ContextRun], shape: HeadShape, itemsize: int) -> bool:
    """Return whether the sequences of these chunks are copied. itemsize: of a copied number."""
    copied = sum(-(-(each.start + each.count) // SPLIT) * SPLIT for each in contexts)
    read = sum((each.start + each.count) * each.count for each in contexts)
    bytes_of_position = 2 * shape.num_kv_heads * shape.head_dim * itemsize
    return copied * bytes_of_position <= MOST_BYTES and read * shape.per_kv >= LEAST_LINES * copied


def takes(shape: HeadShape, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether prompts of layers of this kind may be run over copies. dtype: of queries."""
    if not has_warpgroups(device):
        return False
    try:
        from eyas.kernels import attention_copied
    except ImportError as error:  # a Triton whose lower language has other names
        log.info("prompts are not run by warpgroups: %s", error)
        return False
    return attention_copied.takes(shape, dtype) and (
        is_collecting() or _agrees(shape, dtype, device)
    )


@cache
def _agrees(shape: HeadShape, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether both kernels give the same bits."""
    from eyas.kernels.attention_prefill import PromptTiles, attend_prompts, cut

    generator = torch.Generator(device).manual_seed(20261129)
    lengths = [each.start + each.count for each in TRIAL]
    num_rows = TRIAL[-1].row + TRIAL[-1].count
    heads, kv_heads = shape.num_kv_heads * shape.per_kv, shape.num_kv_heads

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator, device=device).to(dtype)

    q_TNH = random(num_rows, heads, shape.head_dim)
    kv_S2GH = random(sum(lengths), 2, kv_heads, shape.head_dim)
    slots_AC = torch.randperm(sum(lengths), generator=generator, device=device)
    slots_AC = torch.stack([slots_AC[: max(lengths)], slots_AC[-max(lengths) :]])
    layout = AttentionLayout(
        slots_AC, torch.arange(2, device=device), max_position=max(lengths), contexts=TRIAL
    )
    ours_TNH, other_TNH = torch.zeros_like(q_TNH), torch.zeros_like(q_TNH)
    tiles = PromptTiles(max(128, 1 << (shape.per_kv - 1).bit_length()), num_warps=8, stages=2)
    try:
        tiles_X4 = send(cut(_runs(TRIAL), tiles.height // shape.per_kv), device)
        attend_prompts(
            q_TNH, kv_S2GH, other_TNH, tiles_X4, layout.seats_B, slots_AC, shape, tiles, pdl=True
        )
        prompts = CopiedPrompts.of(layout, shape)
        prompts.attend(
            q_TNH,
            kv_S2GH,
            ours_TNH,
            shape,
            sinks_N=None,
            key_scale=1.0,
            value_scale=1.0,
            pdl=True,
        )
        agrees = torch.equal(ours_TNH.view(torch.int16), other_TNH.view(torch.int16))
    except Exception as error:  # the compiler's or the driver's
        log.info("%s: prompts are not run by warpgroups: %s", shape, error)
        return False
    if not agrees:
        log.info("%s: prompts are not run by warpgroups: their bits differ on this device", shape)
    return agrees
