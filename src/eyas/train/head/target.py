"""Run the target model for training: tapped states, final states, greedy choices and logits.

Promises: states come from the same decoder that the engine runs; padding does not change a real
row; any number of rows is accepted, including none. Does not know: shards, heads.

Legend: B texts, L padded length, N query heads, G key/value heads, H head dim, I concatenated
tapped states, D hidden size, P positions whose target distribution is used, V vocabulary, U draft
vocabulary, T = B * L rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.attention.base import KVDestination, PlannedRows
from eyas.cache.store import LayerStore, Store
from eyas.models import Decoder
from eyas.models.load import read_head_weight
from eyas.ops.compress import Compression
from eyas.ops.delta_rule import DeltaRule, delta_rule
from eyas.ops.state_lines import Lines, state_lines

_CHUNK_NUMBERS = 1 << 28
"""The maximum number of logits computed at a time where only the argmax is used."""


class PaddedAttend:
    """Causal attention within each of B texts that are padded at the end to length L.

    Keys and values are stored for one layer at a time. A layer with a state begins each text without
    one, and keeps none.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        num_texts: int,
        num_places: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._stores = stores
        self._shape = (num_texts, num_places)
        self._masks: dict[int, Tensor] = {}
        self._dtype = dtype
        self._rows_T = torch.arange(num_texts * num_places, device=device)
        self._destination: KVDestination | None = None
        self._lines: dict[int, Lines] = {}

    def destination(self, layer: int) -> KVDestination:
        """Allocate the keys and values of a layer, and return where to write them."""
        store = self._stores[layer]
        assert isinstance(store, LayerStore)
        shape = (len(self._rows_T), *store.slot_shape)
        placed = torch.empty(shape, dtype=self._dtype, device=self._rows_T.device)
        self._destination = KVDestination.of(placed, self._rows_T)
        return self._destination

    def __call__(self, layer: int, q_TNH: Tensor, sinks_N: Tensor | None = None) -> Tensor:
        assert self._destination is not None
        store = self._stores[layer]
        assert isinstance(store, LayerStore)
        placed = self._destination.kv_S2GH
        k_TGH, v_TGH = placed[:, 0], placed[:, -1, :, : store.output_dim]
        q, k, v = (x.unflatten(0, self._shape).transpose(1, 2) for x in (q_TNH, k_TGH, v_TGH))
        mask = self._window_mask(store.window, q_TNH.device)
        if sinks_N is not None:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))  # one more key, whose score is the sink
            mask = self._sink_mask(store.window, sinks_N.to(q.dtype))
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=store.scale, enable_gqa=True
        )
        return out.transpose(1, 2).flatten(0, 1)

    def compress(
        self,
        layer: int,
        inputs_TX: Tensor,
        q_TNH: Tensor,
        sinks_N: Tensor | None,
        compression: Compression,
    ) -> Tensor:
        raise AssertionError("no head is trained for a model with compressed attention")

    def recur(self, layer: int, inputs_TX: Tensor, rule: DeltaRule) -> Tensor:
        """Run each text from its first place on."""
        num_taps, width, num_texts = rule.taps_CJ.shape[1], inputs_TX.shape[1], self._shape[0]
        if num_taps not in self._lines:
            self._lines[num_taps] = _lines_of_texts(*self._shape, num_taps, inputs_TX.device)
        state = (num_texts + 1, rule.num_value_heads, rule.key_dim, rule.value_dim)
        states_ANHD = torch.zeros(state, device=inputs_TX.device)
        inputs_AEX = inputs_TX.new_zeros((num_texts + 1, num_taps - 1, width))
        return delta_rule(inputs_TX, states_ANHD, inputs_AEX, self._lines[num_taps], rule)

    def _window_mask(self, window: int | None, device: torch.device) -> Tensor | None:
        if window is None or window >= self._shape[1]:
            return None
        return self._seen(window, device)

    def _sink_mask(self, window: int | None, sinks_N: Tensor) -> Tensor:
        """Return [N, L, L + 1] what is added to the scores; the last column is the sink's."""
        num_places = self._shape[1]
        seen = self._seen(window or num_places, sinks_N.device)
        mask = sinks_N.view(-1, 1, 1).repeat(1, num_places, num_places + 1)
        mask[:, :, :-1] = torch.where(seen, 0.0, -torch.inf)
        return mask

    def _seen(self, window: int, device: torch.device) -> Tensor:
        """Return [L, L] which places each place sees."""
        if window not in self._masks:
            place = torch.arange(self._shape[1], device=device)
            distance = place[:, None] - place[None, :]
            self._masks[window] = (distance >= 0) & (distance < window)
        return self._masks[window]


def _lines_of_texts(num_texts: int, num_places: int, num_taps: int, device: torch.device) -> Lines:
    """Return the lines of padded texts: each is a prompt chunk in a seat of its own."""
    seats = torch.arange(num_texts, device=device)
    runs = torch.stack([seats * num_places, seats * 0, seats * 0 + num_places], dim=1)
    nothing = torch.empty((num_texts, 0), dtype=torch.int64, device=device)
    no_nodes = torch.empty((0, 1), dtype=torch.int64, device=device)
    return state_lines(
        seats,
        runs,
        no_nodes,
        no_nodes[:, 0],
        None,
        nothing,
        seats * 0 - 1,
        nothing,
        num_taps - 1,
        num_texts * num_places,
    )


class Target:
    """The frozen target model. taps: the states to return, each the number of layers before it."""

    def __init__(self, decoder: Decoder, directory: Path, taps: tuple[int, ...]) -> None:
        self.decoder = decoder
        self.taps = taps
        self._directory = directory
        self.device = decoder.device
        self.dtype = decoder.dtype
        self.embedding_VD = decoder.embedding.weight_VD

    @torch.no_grad()
    def states(self, tokens_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tapped states [B * L, I] and the final states [B * L, D] of padded texts."""
        num_texts, num_places = tokens_BL.shape
        stores = self.decoder.spec.stores
        attend = PaddedAttend(stores, num_texts, num_places, self.dtype, self.device)
        positions = torch.arange(num_places, device=tokens_BL.device).repeat(num_texts)
        rows = PlannedRows(tokens_BL.reshape(-1), positions, attend)
        final, tapped = self.decoder.forward(rows, self.taps)
        return torch.cat(tapped, -1), final

    @torch.no_grad()
    def logits(self, final_PD: Tensor) -> Tensor:
        """Return the float32 logits [P, V] of final states of any type; P may be any number."""
        num_rows = len(final_PD)
        missing = self.decoder.order.pad(num_rows) - num_rows
        padded_PD = F.pad(final_PD.to(self.dtype), (0, 0, 0, missing))
        return self.decoder.logits(padded_PD)[:num_rows]

    @torch.no_grad()
    def choices(self, final_PD: Tensor) -> Tensor:
        """Return the most likely token of each final state, int64 [P]."""
        rows = max(1, _CHUNK_NUMBERS // self.decoder.spec.vocab_size)
        return torch.cat([self.logits(part).argmax(-1) for part in final_PD.split(rows)])

    def head_rows(self, ids_U: Tensor) -> Tensor:
        """Return the rows [U, D] of the target's logits head for these token ids, scaled as its logits
        are."""
        scale = self.decoder.spec.logits_scale
        if self.decoder.spec.tie_embeddings:
            return self.embedding_VD[ids_U.to(self.device)] * scale
        weight_VD = read_head_weight(self._directory, self.decoder.spec.architecture)
        return weight_VD[ids_U.to(weight_VD.device)].to(self.device, self.dtype) * scale


def float_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """Multiply rows by a transposed weight into float32, without rounding to the model's type."""
    if hidden.device.type == "cuda" and hidden.dtype != torch.float32:
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return F.linear(hidden.float(), weight.float())
