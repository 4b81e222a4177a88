"""Launch the attention of prompt rows over copied keys and values, for a Hopper device.

Promises: the bits of `attention_prefill.attend_prompts`, for the layers that `takes` names.
Does not know: slots, how warpgroups share the work.

Legend: T rows, N query heads, G key/value heads, H head dim, P copied positions, X tiles.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from eyas.kernels.attention_warpgroups import grouped_prompts_kernel
from eyas.kernels.launch import launch_options
from eyas.kernels.softmax import GROUP, SPLIT, UNFUSED, HeadShape

LINES = 64
"""Of a warpgroup: what the matrix instruction has."""
WARPGROUPS = 2
"""Of a program, beside the warp that loads."""
WARPS = 4
"""Of a warpgroup."""
STAGES = 2
"""Splits whose keys and values are in shared memory at a time."""
REGISTERS = 240
"""Of a thread of a warpgroup; the warp that loads leaves its own to them."""
LOADER_REGISTERS = 24
HEAD_DIMS = (64, 128)


def takes(shape: HeadShape, dtype: torch.dtype) -> bool:
    """Return whether the kernel has layers of this kind. dtype: of queries."""
    return (
        dtype in (torch.bfloat16, torch.float16)
        and shape.head_dim in HEAD_DIMS
        and shape.rest == 0
        and shape.per_kv <= LINES
        and shape.window is None
        and shape.first_position == 0
    )


def queries_of_tile(shape: HeadShape) -> int:
    """Return how many queries a tile has."""
    return WARPGROUPS * (LINES // shape.per_kv)


@cache
def shared_layout(head_dim: int, dtype: torch.dtype) -> Any:
    """How the keys or values of a split lie in shared memory."""
    kind = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}[dtype]
    return gl.NVMMASharedLayout.get_default_for([SPLIT, head_dim], kind)


def attend_copied(
    q_TNH: torch.Tensor,
    copied_PX: torch.Tensor,
    out_TNH: torch.Tensor,
    tiles_X4: torch.Tensor,
    shape: HeadShape,
    *,
    sinks_N: torch.Tensor | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    pdl: bool = False,
) -> None:
    """Write the outputs of the rows of `tiles_X4` (`copies.CopiedTiles`) to out_TNH; its other rows are
    not changed.

    copied_PX: from `copies.copy_slots`; what is not finite in a row reaches those of its split. shape:
    one that `takes` accepts. key_scale, value_scale: as in `attend_prompts`.

    Reference: `attention_prefill.attend_prompts`.
    """
    block = [SPLIT, shape.head_dim]
    layout = shared_layout(shape.head_dim, copied_PX.dtype)
    num_tiles = len(tiles_X4) * shape.num_kv_heads
    grouped_prompts_kernel[(min(num_tiles, _num_programs(q_TNH.device)),)](
        q_TNH,
        TensorDescriptor.from_tensor(copied_PX, block, layout),
        out_TNH,
        tiles_X4,
        tiles_X4 if sinks_N is None else sinks_N,
        num_tiles,
        q_TNH.stride(0),
        shape.scale * key_scale,
        value_scale,
        NUM_KV_HEADS=shape.num_kv_heads,
        PER_KV=shape.per_kv,
        LINES=LINES,
        GROUP=GROUP,
        STAGES=STAGES,
        REGISTERS=REGISTERS,
        LOADER_REGISTERS=LOADER_REGISTERS,
        HAS_SINKS=sinks_N is not None,
        PDL=pdl,
        num_warps=WARPS,
        **UNFUSED,
        **launch_options(pdl),
    )


@cache
def _num_programs(device: torch.device) -> int:
    """Return how many programs a device runs at a time: one each multiprocessor, whose memory it
    fills."""
    return torch.cuda.get_device_properties(device).multi_processor_count
