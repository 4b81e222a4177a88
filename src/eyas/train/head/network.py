"""The trainable head: training-time test over padded texts, in plain torch modules.

Promises: at level i a row has the same inputs as in serving after i drafted tokens: the target's
features for committed tokens, the head's own states for drafted tokens (the serve-equals-train test
compares both); the names of `state_dict` are those of `DraftHead.parameters`. The embedding is the
target's and is not trained.
Does not know: losses, data.

At level i a row attends to the level-0 keys at or before its own position, and to its own keys of
levels 1 to i, which are the drafted tokens.

Legend: B texts, L padded length, T trained rows of a text at most, R trained rows in all, T = B * L
rows, I concatenated tapped states, D hidden size, X = 2 * D, N query heads, G key/value heads, J
query heads per key/value head, H head dim, Z levels so far, U draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from eyas.layers.rope import rope_frequencies
from eyas.models.heads.spec import HeadSpec
from eyas.train.head.batches import Batch

_MAX_STORED_SCORES = 1 << 28
"""If a level has more attention weights than this, the backward pass computes them again."""


class _Norm(nn.Module):
    """RMS norm in float32."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self._epsilon)


class _Attention(nn.Module):
    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        wide, kv = spec.num_query_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.q = nn.Linear(2 * spec.hidden_size, wide, bias=False)
        self.k = nn.Linear(2 * spec.hidden_size, kv, bias=False)
        self.v = nn.Linear(2 * spec.hidden_size, kv, bias=False)
        self.o = nn.Linear(wide, spec.hidden_size, bias=False)


class _Mlp(nn.Module):
    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        self.gate = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.up = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.down = nn.Linear(spec.intermediate_size, spec.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class _Layer(nn.Module):
    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        self.attention = _Attention(spec)
        self.mlp_norm = _Norm(spec.hidden_size, spec.norm_epsilon)
        self.mlp = _Mlp(spec)


class TrainableHead(nn.Module):
    """An EAGLE-3 head of one layer.

    embedding_VD: the target's, frozen. head_UD: rows of the target's logits head for the draft
    vocabulary, with which the head's output layer is initialised. num_levels: of training-time
    test.
    """

    def __init__(
        self, spec: HeadSpec, embedding_VD: Tensor, head_UD: Tensor | None, num_levels: int
    ) -> None:
        super().__init__()
        assert spec.kind == "eagle3" and spec.num_layers == 1 and spec.entry_norms
        self.spec = spec
        self.num_levels = num_levels
        width = len(spec.taps) * spec.target_hidden_size
        if spec.fc_norm:
            self.fc_norm = nn.ModuleList(
                _Norm(spec.target_hidden_size, spec.norm_epsilon) for _ in spec.taps
            )
        self.fc = nn.Linear(width, spec.hidden_size, bias=False)
        self.embedding_norm = _Norm(spec.hidden_size, spec.norm_epsilon)
        self.feature_norm = _Norm(spec.hidden_size, spec.norm_epsilon)
        self.layers = nn.ModuleList([_Layer(spec)])
        self.norm = _Norm(spec.hidden_size, spec.norm_epsilon)
        self.head = nn.Linear(spec.hidden_size, spec.draft_vocab_size, bias=False)
        self.register_buffer("_embedding_VD", embedding_VD, persistent=False)
        frequencies = rope_frequencies(spec.rope)
        self.register_buffer("_frequencies", frequencies, persistent=False)
        self._initialise(head_UD)

    @torch.no_grad()
    def _initialise(self, head_UD: Tensor | None) -> None:
        """Initialise matrices with small random numbers.

        The outputs of the layer start near zero, so that the head starts as a linear map of the
        last tapped state.
        """
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                scale = 0.1 if name.endswith(("o.weight", "down.weight")) else 1.0
                nn.init.normal_(weight, std=scale * weight.shape[1] ** -0.5)
        size = self.spec.hidden_size
        if self.spec.target_hidden_size == size:
            nn.init.normal_(self.fc.weight, std=0.1 * self.fc.weight.shape[1] ** -0.5)
            self.fc.weight[:, -size:] += torch.eye(size)
        if head_UD is not None and head_UD.shape == self.head.weight.shape:
            self.head.weight.copy_(head_UD)

    def combine(self, tapped_TI: Tensor) -> Tensor:
        """Return the features [T, D] of level 0."""
        if self.spec.fc_norm:
            parts = tapped_TI.split(self.spec.target_hidden_size, -1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            tapped_TI = torch.cat(normed, -1)
        return self.fc(tapped_TI.to(self.fc.weight.dtype))

    def levels(self, batch: Batch, tapped_TI: Tensor) -> Iterator[Tensor]:
        """Yield the input of `head` [R, D] of each level, for the trained rows."""
        layer = cast(_Layer, self.layers[0])
        attention = layer.attention
        num_texts, num_places = batch.tokens_BL.shape
        place_L = torch.arange(num_places, device=tapped_TI.device)
        features_TD = self.combine(tapped_TI)
        next_BL = F.pad(batch.tokens_BL[:, 1:], (0, 1))
        joined_TX = self._joined(next_BL.reshape(-1), features_TD)
        rope = self._rope(place_L.repeat(num_texts))
        shape = (num_texts, num_places)
        stem_k = _rotated(self._heads(attention.k(joined_TX)), rope).unflatten(0, shape)
        stem_v = self._heads(attention.v(joined_TX)).unflatten(0, shape)
        state_RD = features_TD[batch.row_R]
        joined_RX = joined_TX[batch.row_R]
        own_k: list[Tensor] = []
        own_v: list[Tensor] = []
        for level in range(self.num_levels):
            rope = self._rope(batch.time_R + level)
            if level:
                joined_RX = self._joined(batch.tokens_ZR[level], state_RD)
                own_k.append(_rotated(self._heads(attention.k(joined_RX)), rope))
                own_v.append(self._heads(attention.v(joined_RX)))
            q_RNH = _rotated(self._heads(attention.q(joined_RX)), rope)
            seen_RNH = self._attend(batch, q_RNH, stem_k, stem_v, own_k, own_v)
            hidden_RD = state_RD + attention.o(seen_RNH.flatten(1))
            hidden_RD = hidden_RD + layer.mlp(layer.mlp_norm(hidden_RD))
            normed_RD = self.norm(hidden_RD)
            state_RD = normed_RD if self.spec.norm_output else hidden_RD
            yield normed_RD

    def _joined(self, tokens_T: Tensor, features_TD: Tensor) -> Tensor:
        embedded_TD = self.embedding_norm(self._embedding_VD[tokens_T])
        return torch.cat((embedded_TD, self.feature_norm(features_TD)), -1)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.spec.head_dim))

    def _rope(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions_T[:, None].float() * self._frequencies
        factor = self.spec.rope.attention_factor
        return (angles.cos() * factor)[:, None], (angles.sin() * factor)[:, None]

    def _attend(
        self,
        batch: Batch,
        q_RNH: Tensor,
        stem_k: Tensor,
        stem_v: Tensor,
        own_k: Sequence[Tensor],
        own_v: Sequence[Tensor],
    ) -> Tensor:
        arguments = (batch.cell_R, batch.cell_time_BT, q_RNH, stem_k, stem_v, *own_k, *own_v)
        scores = batch.cell_time_BT.numel() * stem_k.shape[1] * self.spec.num_query_heads
        if scores * self.num_levels > _MAX_STORED_SCORES and torch.is_grad_enabled():
            return checkpoint(_attend, *arguments, use_reentrant=False)
        return _attend(*arguments)


def _attend(
    cell_R: Tensor,
    cell_time_BT: Tensor,
    q_RNH: Tensor,
    stem_k_BLGH: Tensor,
    stem_v_BLGH: Tensor,
    *own: Tensor,
) -> Tensor:
    """Return attention [R, N, H] over the text's level-0 keys and the row's keys of later levels."""
    own_k, own_v = own[: len(own) // 2], own[len(own) // 2 :]
    num_texts, width = cell_time_BT.shape
    num_places, num_kv, head_dim = stem_k_BLGH.shape[1:]
    num_rows, num_heads = q_RNH.shape[:2]
    per_kv = num_heads // num_kv
    q_RNH = q_RNH * head_dim**-0.5
    grid = q_RNH.new_zeros(num_texts * width, num_heads, head_dim).index_copy(0, cell_R, q_RNH)
    grid = grid.view(num_texts, width, num_kv, per_kv, head_dim).permute(0, 2, 3, 1, 4)
    q_BGJH = grid.reshape(num_texts, num_kv, per_kv * width, head_dim)
    scores = q_BGJH @ stem_k_BLGH.permute(0, 2, 3, 1)
    scores = scores.view(num_texts, num_heads, width, num_places).float()
    place_L = torch.arange(num_places, device=q_RNH.device)
    hidden_B1TL = (place_L > cell_time_BT[:, :, None])[:, None]
    scores = scores.masked_fill(hidden_B1TL, float("-inf"))
    if own_k:
        own_k_RGZH = torch.stack(own_k, 2)
        q_RGJH = q_RNH.view(num_rows, num_kv, per_kv, head_dim)
        own_RNZ = (q_RGJH @ own_k_RGZH.mT).flatten(1, 2).float()
        own_grid = own_RNZ.new_zeros(num_texts * width, *own_RNZ.shape[1:])
        own_grid = own_grid.index_copy(0, cell_R, own_RNZ)
        own_grid = own_grid.unflatten(0, (num_texts, width)).transpose(1, 2)
        scores = torch.cat((scores, own_grid), -1)
    weights = scores.softmax(-1).to(stem_v_BLGH.dtype)
    stem = weights[..., :num_places].reshape(num_texts, num_kv, per_kv * width, num_places)
    seen = stem @ stem_v_BLGH.transpose(1, 2)
    seen = seen.view(num_texts, num_heads, width, head_dim).transpose(1, 2).flatten(0, 1)[cell_R]
    if own_k:
        own_v_RGZH = torch.stack(own_v, 2)
        own_weights = weights[..., num_places:].transpose(1, 2).flatten(0, 1)[cell_R]
        own_weights = own_weights.view(num_rows, num_kv, per_kv, len(own_v))
        seen = seen + (own_weights @ own_v_RGZH).flatten(1, 2)
    return seen


def _rotated(x_TNH: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary embedding in float32, and return the result in the type of the input."""
    cosine, sine = rope
    first, second = x_TNH.float().chunk(2, dim=-1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return turned.to(x_TNH.dtype)
