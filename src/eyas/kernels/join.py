"""The kernel of `ops.join`: embedding rows, optionally normalised, beside features.

Promises: the numbers of `ops.join`; a row's bits depend on its own token and feature alone.
Does not know: vocabularies (a token must be a row of the embedding), trees.

Legend: T rows, V vocabulary, D width of an embedding, F width of a feature, W = D + F.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eyas.kernels.add_norm import normalized, warps_for
from eyas.kernels.launch import enter, launch_options


@triton.jit
def _put(values, out, columns, is_inside, weight_D, size, epsilon, HAS_WEIGHT: tl.constexpr):
    """A row, normalised where it has a weight, to `out`."""
    if HAS_WEIGHT:
        weight = tl.load(weight_D + columns, mask=is_inside, other=0.0).to(tl.float32)
        normed = normalized(values.to(tl.float32), weight, size, epsilon, True)
        values = normed.to(out.dtype.element_ty)
    tl.store(out + columns, values, mask=is_inside)


@triton.jit
def join_kernel(
    tokens_T,
    positions_T,
    embedding_VD,
    features_TF,
    embedding_weight_D,
    feature_weight_F,
    out_TW,
    embedding_size,
    feature_size,
    feature_stride,
    out_stride,
    epsilon,
    ZERO_FIRST: tl.constexpr,
    EMBEDDING_FIRST: tl.constexpr,
    HAS_EMBEDDING_WEIGHT: tl.constexpr,
    HAS_FEATURE_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Two programs a row, one for each half of the output."""
    enter(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    out = out_TW + row * out_stride
    if tl.program_id(1) == 0:
        is_inside = columns < embedding_size
        is_read = is_inside
        if ZERO_FIRST:
            is_read = is_inside & (tl.load(positions_T + row) > 1)
        source = embedding_VD + tl.load(tokens_T + row).to(tl.int64) * embedding_size
        values = tl.load(source + columns, mask=is_read, other=0.0)
        half = out if EMBEDDING_FIRST else out + feature_size
        _put(
            values, half, columns, is_inside, embedding_weight_D, embedding_size, epsilon,
            HAS_EMBEDDING_WEIGHT,
        )  # fmt: skip
    else:
        is_inside = columns < feature_size
        values = tl.load(features_TF + row * feature_stride + columns, mask=is_inside, other=0.0)
        half = out + embedding_size if EMBEDDING_FIRST else out
        _put(
            values, half, columns, is_inside, feature_weight_F, feature_size, epsilon,
            HAS_FEATURE_WEIGHT,
        )  # fmt: skip


def join(
    tokens_T: torch.Tensor,
    embedding_VD: torch.Tensor,
    features_TF: torch.Tensor,
    embedding_weight_D: torch.Tensor | None,
    feature_weight_F: torch.Tensor | None,
    epsilon: float,
    *,
    out_TW: torch.Tensor,
    positions_T: torch.Tensor | None = None,
    zero_first: bool = False,
    embedding_first: bool = True,
    pdl: bool = False,
) -> torch.Tensor:
    """Embedding and feature of each row side by side in `out_TW`, which is returned.

    A weight normalises its half by RMS; None copies it. zero_first: zeros for the embedding of rows
    whose position is at most 1. Rows of features and output may stand apart. The reference is
    `ops.join.by_torch`.
    """
    num_rows, feature_size = features_TF.shape
    embedding_size = embedding_VD.shape[1]
    assert out_TW.shape[1] == embedding_size + feature_size and embedding_VD.is_contiguous()
    assert positions_T is not None or not zero_first
    if num_rows:
        block = triton.next_power_of_2(max(embedding_size, feature_size))
        join_kernel[(num_rows, 2)](
            tokens_T,
            positions_T,
            embedding_VD,
            features_TF,
            embedding_weight_D,
            feature_weight_F,
            out_TW,
            embedding_size,
            feature_size,
            features_TF.stride(0),
            out_TW.stride(0),
            epsilon,
            ZERO_FIRST=zero_first,
            EMBEDDING_FIRST=embedding_first,
            HAS_EMBEDDING_WEIGHT=embedding_weight_D is not None,
            HAS_FEATURE_WEIGHT=feature_weight_F is not None,
            BLOCK=block,
            num_warps=warps_for(block),
            PDL=pdl,
            **launch_options(pdl),
        )
    return out_TW
