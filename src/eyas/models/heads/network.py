"""The network of draft heads: features and tokens in; logits and the next level's features out.

Promises: the numbers of a row depend on its token, its position, its feature and the keys that `attend`
lets it see, never on other rows; the spec alone selects the wiring.
Does not know: trees, slots, which file the weights came from.

Legend: T rows of a forward pass, R logits rows, D hidden size of the head, F feature size,
I concatenated tapped states, V draft vocabulary, H head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eyas.attention.base import PlannedRows
from eyas.layers.compute import Compute
from eyas.layers.embedding import Embedding
from eyas.layers.linear import Linear, LogitsHead
from eyas.layers.norm import RMSNorm
from eyas.layers.rope import RopeTable
from eyas.layers.row_order import RowOrder
from eyas.models.decoder import DecoderLayer, Filled
from eyas.models.heads.spec import HeadSpec
from eyas.ops.add_norm import added
from eyas.ops.join import join
from eyas.parallel.cut import Parameter


class DraftHead:
    """A draft head: allocates its weights; fill `parameters()`, call `seal()` once, then only run it.

    Attention of the first layer reads the concatenated embedding and feature in an EAGLE-3 head, and
    the unnormalised stream in an EAGLE-1 head; every other layer is a plain pre-norm layer. (Engines
    differ in further EAGLE-3 layers; this is the rule of vLLM and of speculators, which trains them.)
    embedding, head: the target's, for a head that has none. target_ids_V: int64 [V], the target's token
    id of each draft id; None where the vocabularies are equal.
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
        compute = self.compute = Compute(dtype, self.device, order)
        self.feature_size = spec.feature_size
        self.target_ids_V = None if target_ids_V is None else target_ids_V.to(self.device)
        self._owns_head = head is None
        self._embedding = embedding or Embedding(spec.vocab_size, spec.hidden_size, compute)
        self._head = head or LogitsHead(*spec.head_shape, compute)
        assert self._head.shape == spec.head_shape
        self._norms = {
            name: RMSNorm(size, spec.norm_epsilon, compute, offset=spec.traits.norm_offset)
            for name, size in _norm_sizes(spec).items()
        }
        self._parts = self._build()
        # A row has the rope angles of the position before it, whose feature it reads.
        self._rope = RopeTable(spec.rope, max_model_len, compute, lag=1)

    def _build(self) -> list[tuple[str, Filled]]:
        """Allocate what stands between features and logits; return it with the prefixes of names."""
        spec, compute = self.spec, self.compute
        fc_out, fc_in = spec.fc_shape
        self._fc = Linear(fc_in, {"fc": fc_out}, compute, bias=spec.fc_bias)
        self._layers = [
            DecoderLayer(
                spec,
                index,
                compute,
                input_size=spec.attention_input_size(index),
                norms_input=index > 0 or spec.first_attention_norm,
            )
            for index in range(spec.num_layers)
        ]
        layers = ((f"layers.{index}.", layer) for index, layer in enumerate(self._layers))
        return [("", self._fc), *layers]

    def parameters(self) -> dict[str, list[Parameter]]:
        """Return the tensors that a loader fills, by name: consecutive blocks of the parameter's rows.

        "head.weight" is also there where the output layer is a selection of the target's rows.
        """
        tensors: dict[str, list[Parameter]] = {}
        if self.spec.own_embedding:
            tensors["embedding.weight"] = [self._embedding.weight_VD]
        for name, norm in self._norms.items():
            tensors[f"{name}.weight"] = [norm.parameter()]
        if self._owns_head:
            tensors["head.weight"] = list(self._head.parameters())
        for prefix, part in self._parts:
            for name, view in part.parameters().items():
                tensors[f"{prefix}{name}"] = [view]
        return tensors

    def seal(self) -> None:
        """Prepare the filled weights for running; call once, after the last parameter is filled."""
        for _, part in self._parts:
            part.seal()
        for norm in self._norms.values():
            norm.seal()
        if self._owns_head:
            self._head.seal()

    def combine(self, taps: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the features [T, F] that slots store, from the target's states [T, D].

        taps: one tensor for each of `spec.taps`, in that order; T may be any number.
        """
        assert len(taps) == len(self.spec.taps)
        if not self.spec.fuses_states:
            return taps[0]
        num_rows = taps[0].shape[0]
        if self.spec.fc_norm:
            taps = [self._norms[f"fc_norm.{index}"](tap_TD) for index, tap_TD in enumerate(taps)]
        states_TI = torch.cat(list(taps), -1)
        if self.spec.input_norm:
            states_TI = self._norms["input_norm"](states_TI)
        num_padding = self.order.pad(num_rows) - num_rows
        if num_padding:
            states_TI = torch.nn.functional.pad(states_TI, (0, 0, 0, num_padding))
        return self._fc(states_TI)[:num_rows]

    @property
    def ends_early(self) -> bool:
        """Whether `forward` leaves out outputs that are not read (`PlannedRows.outputs`)."""
        return self._layers[-1].ends_early

    def forward(
        self, rows: PlannedRows, features_TF: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the input of `logits` [T, D], and the features [T, F] of the next level's rows; of the
        rows of `rows.outputs` alone, where that is given.

        features_TF: from `combine` for the position before each row's token, or returned by this
        method for the token's parent.
        """
        spec, num_rows = self.spec, len(rows.tokens_T)
        assert num_rows == self.order.pad(num_rows), "rows are padded by RowOrder.pad"
        joined_T2D = self._joined(rows, features_TF)
        stream_TD = features_TF
        if not spec.fuses_states:
            stream_TD, joined_T2D = self._fc(joined_T2D), None
        elif spec.norm_before_residual:
            first = self.spec.hidden_size if spec.embedding_first else 0
            stream_TD = joined_T2D[:, first : first + self.feature_size].contiguous()
        angles = self._rope.at(rows.positions_T)
        parts = None
        for index, layer in enumerate(self._layers):
            outputs = rows.outputs if index + 1 == spec.num_layers else None
            _, stream_TD, parts = layer(stream_TD, parts, angles, rows, joined_T2D, outputs)
            joined_T2D = None
        if not len(stream_TD):
            return stream_TD, stream_TD
        if spec.final_norm:
            stream_TD, hidden_TD = self._norms["norm"].add(stream_TD, parts)
        else:
            stream_TD = hidden_TD = added(stream_TD, parts)
        return hidden_TD, hidden_TD if spec.norm_output else stream_TD

    def _joined(self, rows: PlannedRows, features_TF: torch.Tensor) -> torch.Tensor:
        """Concatenate the embedding and the feature of each row, normalised where the spec says so."""
        spec = self.spec
        embedding_weight = feature_weight = None
        if spec.entry_norms:
            embedding_weight = self._norms["embedding_norm"].weight
            feature_weight = self._norms["feature_norm"].weight
        return join(
            rows.tokens_T,
            rows.positions_T,
            self._embedding.weight_VD,
            features_TF,
            embedding_weight,
            feature_weight,
            spec.norm_epsilon,
            spec.zero_first_embedding,
            spec.embedding_first,
        )

    def logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [R, V] of hidden states [R, D]; `order.pad` must return R."""
        num_rows = hidden_RD.shape[0]
        assert num_rows == self.order.pad(num_rows), "rows are padded by RowOrder.pad"
        return self._head(hidden_RD)


def _norm_sizes(spec: HeadSpec) -> dict[str, int]:
    """Return the sizes of the norms outside of the layers, by name."""
    sizes: dict[str, int] = {}
    if spec.fc_norm:
        sizes |= {f"fc_norm.{index}": spec.target_hidden_size for index in range(len(spec.taps))}
    if spec.input_norm:
        sizes["input_norm"] = spec.fc_shape[1]
    if spec.entry_norms:
        sizes["embedding_norm"] = spec.hidden_size
        sizes["feature_norm"] = spec.feature_size // spec.num_streams
    if spec.final_norm:
        sizes["norm"] = spec.hidden_size
    return sizes
