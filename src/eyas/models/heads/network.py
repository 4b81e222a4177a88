"""The one draft head: features of the target and tokens in, logits and features for the next level out.

Promises: a row's numbers depend on its token, its position, its feature and what `attend` lets it see,
never on the other rows; the wiring is read from the spec, no kind of head has a path of its own.
Does not know: trees, slots, which file the weights came from.

Legend: T rows of a forward, R rows that want logits, D hidden size of the head, F feature size,
S tapped states side by side, V draft vocabulary, H head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eyas.attention.base import Attend
from eyas.layers.embedding import Embedding
from eyas.layers.linear import Linear, LogitsHead
from eyas.layers.norm import RMSNorm
from eyas.layers.rope import RopeTable
from eyas.layers.row_order import RowOrder
from eyas.models.decoder import DecoderLayer
from eyas.models.heads.spec import HeadSpec
from eyas.ops.add_norm import added
from eyas.ops.join import join


class DraftHead:
    """A head with room for its weights: fill `parameters()`, call `seal()`, then only run it.

    The first layer of an EAGLE-3 head attends with embedding and feature side by side, the first of
    an EAGLE-1 head with the stream as it is; every other layer is a plain pre-norm layer. (For
    further EAGLE-3 layers engines differ: this is the rule of vLLM and of speculators, the one
    trainer that makes such heads.)
    embedding, head: the target's, for a head that brings none. target_ids_V: int64, the target's id
    of each draft id; None where the vocabularies are equal.
    """

    def __init__(
        self,
        spec: HeadSpec,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        max_model_len: int,
        order: RowOrder,
        embedding: Embedding | None = None,
        head: LogitsHead | None = None,
        target_ids_V: torch.Tensor | None = None,
    ) -> None:
        assert (embedding is None) == spec.own_embedding
        assert target_ids_V is None or target_ids_V.shape == (spec.draft_vocab_size,)
        self.spec = spec
        self.dtype = dtype
        self.device = torch.device(device)
        self.order = order
        self.feature_size = spec.feature_size
        self.target_ids_V = None if target_ids_V is None else target_ids_V.to(self.device)
        self._owns_head = head is None
        self._embedding = embedding or Embedding(
            spec.vocab_size, spec.hidden_size, dtype=dtype, device=self.device
        )
        self._head = head or LogitsHead(
            *spec.head_shape, dtype=dtype, device=self.device, order=order
        )
        assert self._head.shape == spec.head_shape
        fc_out, fc_in = spec.fc_shape
        self._fc = Linear(
            fc_in, {"fc": fc_out}, bias=spec.fc_bias, dtype=dtype, device=self.device, order=order
        )
        self._norms = {
            name.removesuffix(".weight"): RMSNorm(
                size, spec.norm_epsilon, dtype=dtype, device=self.device
            )
            for name, (size, *_) in spec.parameter_shapes.items()
            if "norm" in name and not name.startswith("layers.")
        }
        self._layers = [
            DecoderLayer(
                spec,
                index,
                dtype=dtype,
                device=self.device,
                order=order,
                input_size=spec.attention_input_size(index),
                norms_input=index > 0 or spec.first_attention_norm,
            )
            for index in range(spec.num_layers)
        ]
        # A row is turned as the position before it, whose feature it reads.
        self._rope = RopeTable(spec.rope, max_model_len, dtype=dtype, device=self.device, lag=1)

    def parameters(self) -> dict[str, list[torch.Tensor]]:
        """What a loader must fill, by name: consecutive blocks of the parameter's rows.

        Those of `spec.parameter_shapes`, and "head.weight" too where it is made of the target's
        rows.
        """
        found = {f"{name}.weight": [norm.parameter()] for name, norm in self._norms.items()}
        if self.spec.own_embedding:
            found["embedding.weight"] = [self._embedding.weight_VD]
        if self._owns_head:
            found["head.weight"] = self._head.parameters()
        found |= {name: [view] for name, view in self._fc.parameters().items()}
        for index, layer in enumerate(self._layers):
            for name, view in layer.parameters().items():
                found[f"layers.{index}.{name}"] = [view]
        return found

    def seal(self) -> None:
        """Ready the filled weights for running; once, after the last parameter is filled."""
        for layer in self._layers:
            layer.seal()
        self._fc.seal()
        if self._owns_head:
            self._head.seal()

    def combine(self, taps: Sequence[torch.Tensor]) -> torch.Tensor:
        """The feature [T, F] that a slot keeps, from the target's states [T, D] in the order of
        `spec.taps`; T may be any count."""
        assert len(taps) == len(self.spec.taps)
        if not self.spec.fuses_states:
            return taps[0]
        num_rows = taps[0].shape[0]
        if self.spec.fc_norm:
            taps = [self._norms[f"fc_norm.{index}"](tap_TD) for index, tap_TD in enumerate(taps)]
        states_TS = torch.cat(list(taps), -1)
        if self.spec.input_norm:
            states_TS = self._norms["input_norm"](states_TS)
        num_padding = self.order.pad(num_rows) - num_rows
        if num_padding:
            states_TS = torch.nn.functional.pad(states_TS, (0, 0, 0, num_padding))
        return self._fc(states_TS)[:num_rows]

    def forward(
        self,
        tokens_T: torch.Tensor,
        positions_T: torch.Tensor,
        features_TF: torch.Tensor,
        attend: Attend,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The input of `logits` [T, D], and the features [T, F] of the next level's rows.

        positions_T: of the tokens in their sequence. features_TF: of `combine` at the position
        before, or what the level above returned. T is padded by `order.pad`.
        """
        spec, num_rows = self.spec, tokens_T.shape[0]
        assert num_rows == self.order.pad(num_rows), "rows are padded by RowOrder.pad"
        joined_T2D = self._joined(tokens_T, positions_T, features_TF)
        stream_TD = features_TF
        if not spec.fuses_states:
            stream_TD, joined_T2D = self._fc(joined_T2D), None
        elif spec.norm_before_residual:
            first = self.spec.hidden_size if spec.embedding_first else 0
            stream_TD = joined_T2D[:, first : first + self.feature_size].contiguous()
        angles = self._rope.at(positions_T)
        parts = None
        for layer in self._layers:
            _, stream_TD, parts = layer(stream_TD, parts, angles, attend, joined_T2D)
            joined_T2D = None
        if spec.final_norm:
            stream_TD, hidden_TD = self._norms["norm"].add(stream_TD, parts)
        else:
            stream_TD = hidden_TD = added(stream_TD, parts)
        return hidden_TD, hidden_TD if spec.norm_output else stream_TD

    def _joined(
        self, tokens_T: torch.Tensor, positions_T: torch.Tensor, features_TF: torch.Tensor
    ) -> torch.Tensor:
        """Embedding and feature of each row side by side, as the head's weights want them."""
        spec = self.spec
        embedding_weight = feature_weight = None
        if spec.entry_norms:
            embedding_weight = self._norms["embedding_norm"].weight
            feature_weight = self._norms["feature_norm"].weight
        return join(
            tokens_T,
            positions_T,
            self._embedding.weight_VD,
            features_TF,
            embedding_weight,
            feature_weight,
            spec.norm_epsilon,
            spec.zero_first_embedding,
            spec.embedding_first,
        )

    def logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Hidden states [R, D] -> float32 [R, V]; R is padded by `order.pad`."""
        num_rows = hidden_RD.shape[0]
        assert num_rows == self.order.pad(num_rows), "rows are padded by RowOrder.pad"
        return self._head(hidden_RD)
