"""Put embeddings, optionally normalised, beside features: the input of a draft head.

Promises: a row's bits depend on its own token, position and feature.
Does not know: vocabularies (a token must be a row of the embedding), trees.

Legend: T rows, V vocabulary, D width of an embedding, F width of a feature.
"""

from __future__ import annotations

import torch

from eyas.native.rows import compiled_rows
from eyas.ops.add_norm import normalized
from eyas.ops.dispatch import Operation


@Operation
def join(
    tokens_T: torch.Tensor,
    positions_T: torch.Tensor,
    embedding_VD: torch.Tensor,
    features_TF: torch.Tensor,
    embedding_weight: torch.Tensor | None,
    feature_weight: torch.Tensor | None,
    epsilon: float,
    zero_first: bool,
    embedding_first: bool,
) -> torch.Tensor:
    """Return [T, D + F]: embedding and feature of each row side by side.

    A weight (from `add_norm.new_weight`) normalises its half by RMS; None copies it. zero_first:
    the embedding of rows whose position is at most 1 is zero. embedding_first: which half comes
    first.
    """
    embedded_TD = embedding_VD.index_select(0, tokens_T)
    if zero_first:
        embedded_TD = embedded_TD.masked_fill((positions_T <= 1).unsqueeze(-1), 0)
    if embedding_weight is not None:
        embedded_TD = normalized(embedded_TD, embedding_weight, epsilon)
    if feature_weight is not None:
        features_TF = normalized(features_TF, feature_weight, epsilon)
    pair = (embedded_TD, features_TF) if embedding_first else (features_TF, embedded_TD)
    return torch.cat(pair, -1)


@join.native
def _by_native(
    tokens_T: torch.Tensor,
    positions_T: torch.Tensor,
    embedding_VD: torch.Tensor,
    features_TF: torch.Tensor,
    embedding_weight: torch.Tensor | None,
    feature_weight: torch.Tensor | None,
    epsilon: float,
    zero_first: bool,
    embedding_first: bool,
) -> torch.Tensor:
    rows = compiled_rows(features_TF, embedding_VD, embedding_weight, feature_weight)
    if rows is None or not embedding_VD.is_contiguous():
        return NotImplemented
    return rows.join(
        tokens_T,
        positions_T,
        embedding_VD,
        features_TF.contiguous(),
        embedding_weight,
        feature_weight,
        epsilon,
        zero_first=zero_first,
        embedding_first=embedding_first,
    )


@join.kernel
def _by_kernel(
    tokens_T: torch.Tensor,
    positions_T: torch.Tensor,
    embedding_VD: torch.Tensor,
    features_TF: torch.Tensor,
    embedding_weight: torch.Tensor | None,
    feature_weight: torch.Tensor | None,
    epsilon: float,
    zero_first: bool,
    embedding_first: bool,
) -> torch.Tensor:
    from eyas.kernels.join import join as launch

    width = embedding_VD.shape[1] + features_TF.shape[1]
    return launch(
        tokens_T,
        embedding_VD,
        features_TF,
        embedding_weight,
        feature_weight,
        epsilon,
        out_TW=features_TF.new_empty((len(tokens_T), width)),
        positions_T=positions_T,
        zero_first=zero_first,
        embedding_first=embedding_first,
        pdl=tokens_T.is_cuda,
    )
