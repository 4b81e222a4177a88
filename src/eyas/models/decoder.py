"""The one dense decoder: rows of tokens in, hidden states, tapped residual streams and logits out.

Promises: a row's numbers depend on its token, its position and what `attend` lets it see, never on
the other rows; the number of rows must be one that `order.pad` returns.
Does not know: sequences, trees, slots; which family it is running.

Legend: T rows of a forward, R rows that want logits, D hidden size, I input size of attention,
V vocabulary, H head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from eyas.attention.base import Attend
from eyas.layers.attention import SelfAttention
from eyas.layers.embedding import Embedding
from eyas.layers.linear import LogitsHead
from eyas.layers.mlp import GatedMlp
from eyas.layers.norm import RMSNorm
from eyas.layers.rope import Angles, RopeTable
from eyas.layers.row_order import RowOrder
from eyas.models.spec import ModelSpec
from eyas.ops.add_norm import added

if TYPE_CHECKING:
    from eyas.models.heads.spec import HeadSpec


class DecoderLayer:
    """Attention and feed-forward, each added to the residual stream.

    input_size: of what attention reads, where that is not the stream. norms_input: attention reads the
    stream normalised.
    """

    def __init__(
        self,
        spec: ModelSpec | HeadSpec,
        index: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        order: RowOrder,
        input_size: int | None = None,
        norms_input: bool = True,
    ) -> None:
        self._index = index
        self._attention_norm: RMSNorm | None = None
        if norms_input:
            self._attention_norm = RMSNorm(
                spec.hidden_size, spec.norm_epsilon, dtype=dtype, device=device
            )
        self._attention = SelfAttention(
            spec.hidden_size,
            spec.num_query_heads,
            spec.num_kv_heads,
            spec.head_dim,
            qkv_bias=spec.qkv_bias,
            output_bias=spec.output_bias,
            qk_norm_epsilon=spec.norm_epsilon if spec.qk_norm else None,
            dtype=dtype,
            device=device,
            order=order,
            input_size=input_size,
        )
        self._mlp_norm = RMSNorm(spec.hidden_size, spec.norm_epsilon, dtype=dtype, device=device)
        self._mlp = GatedMlp(
            spec.hidden_size,
            spec.intermediate_size,
            bias=spec.mlp_bias,
            dtype=dtype,
            device=device,
            order=order,
        )

    def parameters(self) -> dict[str, torch.Tensor]:
        found = {"mlp_norm.weight": self._mlp_norm.parameter()}
        if self._attention_norm is not None:
            found["attention_norm.weight"] = self._attention_norm.parameter()
        found |= {f"attention.{name}": view for name, view in self._attention.parameters().items()}
        return found | {f"mlp.{name}": view for name, view in self._mlp.parameters().items()}

    def seal(self) -> None:
        self._attention.seal()
        self._mlp.seal()

    def __call__(
        self,
        stream_TD: torch.Tensor,
        parts: torch.Tensor | None,
        angles: Angles,
        attend: Attend,
        input_TI: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """parts: what the layer before made, to be added to the stream first. input_TI: what attention
        reads; None is the stream. Returns the stream as it came in, with the parts; the stream after
        attention; and the parts of the feed-forward block, not added yet."""
        if self._attention_norm is not None:
            stream_TD, normed_TD = self._attention_norm.add(stream_TD, parts)
            input_TI = normed_TD if input_TI is None else input_TI
        else:
            stream_TD = added(stream_TD, parts)
            input_TI = stream_TD if input_TI is None else input_TI
        attended = self._attention(self._index, input_TI, angles, attend)
        after_TD, normed_TD = self._mlp_norm.add(stream_TD, attended)
        return stream_TD, after_TD, self._mlp(normed_TD)


class Decoder:
    """A model with room for its weights: fill `parameters()`, call `seal()`, then only run it."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        max_model_len: int | None = None,
        order: RowOrder | None = None,
    ) -> None:
        """max_model_len: positions to prepare angles for; None is the checkpoint's own limit."""
        self.spec = spec
        self.dtype = dtype
        self.device = torch.device(device)
        self.max_model_len = max_model_len or spec.max_position
        self.order = order or RowOrder()
        self.embedding = Embedding(
            spec.vocab_size, spec.hidden_size, dtype=dtype, device=self.device
        )
        self._layers = [
            DecoderLayer(spec, index, dtype=dtype, device=self.device, order=self.order)
            for index in range(spec.num_layers)
        ]
        self._norm = RMSNorm(spec.hidden_size, spec.norm_epsilon, dtype=dtype, device=self.device)
        self.head = LogitsHead(
            spec.vocab_size, spec.hidden_size, dtype=dtype, device=self.device, order=self.order
        )
        self._rope = RopeTable(spec.rope, self.max_model_len, dtype=dtype, device=self.device)

    def parameters(self) -> dict[str, list[torch.Tensor]]:
        """What a loader must fill, by name: consecutive blocks of the parameter's rows."""
        found = {"embedding.weight": [self.embedding.weight_VD]}
        for index, layer in enumerate(self._layers):
            for name, view in layer.parameters().items():
                found[f"layers.{index}.{name}"] = [view]
        found["norm.weight"] = [self._norm.parameter()]
        if not self.spec.tie_embeddings:
            found["head.weight"] = self.head.parameters()
        return found

    def seal(self) -> None:
        """Ready the filled weights for running; once, after the last parameter is filled."""
        if self.spec.tie_embeddings:
            start = 0
            for block_VD in self.head.parameters():
                stop = start + block_VD.shape[0]
                block_VD.copy_(self.embedding.weight_VD[start:stop])
                start = stop
        for layer in self._layers:
            layer.seal()
        self.head.seal()

    def forward(
        self,
        tokens_T: torch.Tensor,
        positions_T: torch.Tensor,
        attend: Attend,
        taps: Sequence[int] = (),
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Hidden states after the final norm [T, D], and for each k of `taps`, in that order, the
        residual stream [T, D] after k layers (0 is the embedding; one more than there are layers is
        the final norm's output)."""
        num_rows = tokens_T.shape[0]
        assert num_rows == self.order.pad(num_rows), "rows are padded by RowOrder.pad"
        stream_TD, parts = self.embedding(tokens_T), None
        angles = self._rope.at(positions_T)
        streams: dict[int, torch.Tensor] = {}
        for depth, layer in enumerate(self._layers):
            before_TD, stream_TD, parts = layer(stream_TD, parts, angles, attend)
            if depth in taps:
                streams[depth] = before_TD
        stream_TD, normed_TD = self._norm.add(stream_TD, parts)
        streams |= {len(self._layers): stream_TD, len(self._layers) + 1: normed_TD}
        return normed_TD, [streams[tap] for tap in taps]

    def logits(self, hidden_RD: torch.Tensor, out_RV: torch.Tensor | None = None) -> torch.Tensor:
        """Final hidden states [R, D] -> float32 [R, V], on a device in `out_RV` where it is given; R is
        padded by `order.pad` too."""
        num_rows = hidden_RD.shape[0]
        assert num_rows == self.order.pad(num_rows), "rows are padded by RowOrder.pad"
        return self.head(hidden_RD, out_RV)
