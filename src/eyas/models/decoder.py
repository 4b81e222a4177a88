"""The decoder of every family: token rows in; hidden states, tapped residual streams, logits out.

Promises: the numbers of a row depend on its token, its position and the keys that `attend` lets it
see, never on other rows. Every call takes a number of rows that `order.pad` returns.
Does not know: sequences, trees, slots, which family it runs.

Legend: T rows of a forward pass, R logits rows, D hidden size, I input size of attention,
V vocabulary, H head dim.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from eyas.attention.base import OutputRows, PlannedRows
from eyas.kernels.packed import bytes_of
from eyas.layers.attention import SelfAttention
from eyas.layers.compute import Compute
from eyas.layers.delta_net import DeltaNet
from eyas.layers.embedding import Embedding
from eyas.layers.experts import MixtureOfExperts
from eyas.layers.latent_attention import LatentAttention
from eyas.layers.layouts import UNPACKED, Layouts, within
from eyas.layers.linear import LogitsHead
from eyas.layers.mlp import GatedMlp
from eyas.layers.norm import RMSNorm
from eyas.layers.rope import Angles, RopeTable, rope_frequencies
from eyas.layers.row_order import RowOrder
from eyas.models.spec import ModelSpec
from eyas.native.heap import return_free_memory
from eyas.ops.add_norm import added
from eyas.parallel.cut import Parameter, whole
from eyas.parallel.shard import WHOLE, Shard

if TYPE_CHECKING:
    from eyas.models.heads.spec import HeadSpec

LEAST_RETURNED = 16 << 20
"""Bytes of weights after whose packing free memory is returned to the system."""


class DecoderLayer:
    """Attention, or a delta net, and feed-forward block, each added to the residual stream.

    index: of the layer; `attend` gets it. input_size: width of the input of attention; None is the
    hidden size. norms_input: whether the layer normalises the residual stream before attention, where
    its family does. layouts: of the layer's weights that stay packed. shard: this rank's part of the
    layer.
    """

    def __init__(
        self,
        spec: ModelSpec | HeadSpec,
        index: int,
        compute: Compute,
        *,
        input_size: int | None = None,
        norms_input: bool = True,
        layouts: Layouts = UNPACKED,
        shard: Shard = WHOLE,
    ) -> None:
        traits = spec.traits

        def norm() -> RMSNorm:
            size, epsilon = spec.hidden_size, spec.norm_epsilon
            return RMSNorm(size, epsilon, compute, offset=traits.norm_offset)

        self._index = index
        self._attention_norm = norm() if norms_input and traits.norms_input else None
        self._attention_output_norm = norm() if traits.norms_output else None
        self._mlp_norm = norm() if traits.norms_input else None
        self._mlp_output_norm = norm() if traits.norms_output else None
        self._attention_name = "attention" if spec.state_of(index) is None else "delta"
        self._attention = _new_attention(
            spec,
            index,
            compute,
            input_size=input_size,
            layouts=within(layouts, "attention"),
            shard=shard.dense,
        )
        self._mlp: GatedMlp | MixtureOfExperts
        experts = spec.experts_of(index)
        if experts is None:
            self._mlp = GatedMlp(
                spec.hidden_size,
                spec.intermediate_size,
                compute,
                bias=spec.mlp_bias,
                activation=traits.activation,
                layouts=within(layouts, "mlp"),
                shard=shard.dense,
            )
        else:
            self._mlp = MixtureOfExperts(
                spec.hidden_size,
                experts,
                compute,
                activation=traits.activation,
                layouts=within(layouts, "mlp"),
                shard=shard,
            )

    @property
    def _norms(self) -> dict[str, RMSNorm]:
        norms = {
            "attention_norm": self._attention_norm,
            "attention_output_norm": self._attention_output_norm,
            "mlp_norm": self._mlp_norm,
            "mlp_output_norm": self._mlp_output_norm,
        }
        return {name: norm for name, norm in norms.items() if norm is not None}

    def parameters(self) -> dict[str, Parameter]:
        """Return the tensors to fill, by name within the layer."""
        tensors: dict[str, Parameter] = {
            f"{name}.weight": norm.parameter() for name, norm in self._norms.items()
        }
        tensors |= {
            f"{self._attention_name}.{name}": view
            for name, view in self._attention.parameters().items()
        }
        return tensors | {f"mlp.{name}": view for name, view in self._mlp.parameters().items()}

    def seal(self) -> None:
        """Prepare the filled weights for running."""
        for norm in self._norms.values():
            norm.seal()
        self._attention.seal()
        self._mlp.seal()

    @property
    def ends_early(self) -> bool:
        """Whether the layer can leave out outputs that are not read (`__call__`)."""
        return isinstance(self._attention, SelfAttention)

    def __call__(
        self,
        stream_TD: torch.Tensor,
        parts: torch.Tensor | None,
        angles: Angles,
        rows: PlannedRows,
        input_TI: torch.Tensor | None = None,
        outputs: OutputRows | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Run the layer, leaving the sum of its feed-forward block to the next norm of the stream.

        parts: the output of the layer before, as parts of a sum that are not yet added to `stream_TD`.
        input_TI: the input of attention; None is the (normalised) stream. outputs: the rows that have
        an output; None is all. Of the others keys and values are stored.
        Returns the stream at the layer's input, with `parts` added [T, D]; the stream after attention
        [T, D]; and the parts of the feed-forward output, not yet added. The last two have the rows with
        an output; parts are None if there are none.
        """
        if self._attention_norm is not None:
            stream_TD, normed_TD = self._attention_norm.add(stream_TD, parts)
            input_TI = normed_TD if input_TI is None else input_TI
        else:
            stream_TD = added(stream_TD, parts)
            input_TI = stream_TD if input_TI is None else input_TI
        before_TD, attended = stream_TD, self._attend(input_TI, angles, rows, outputs)
        if outputs is not None:
            stream_TD = stream_TD[: outputs.num_rows]
        if attended is None:
            return before_TD, stream_TD, None
        if self._attention_output_norm is not None:
            attended = self._attention_output_norm.of_parts(attended)
        if self._mlp_norm is not None:
            after_TD, normed_TD = self._mlp_norm.add(stream_TD, attended)
        else:
            after_TD = normed_TD = added(stream_TD, attended)
        parts = self._mlp(normed_TD, rows)
        if self._mlp_output_norm is not None:
            parts = self._mlp_output_norm.of_parts(parts)
        return before_TD, after_TD, parts

    def _attend(
        self,
        input_TI: torch.Tensor,
        angles: Angles,
        rows: PlannedRows,
        outputs: OutputRows | None,
    ) -> torch.Tensor | None:
        """Return the parts of the output of attention; None if no row has one."""
        attention = self._attention
        if outputs is None:
            return attention(self._index, input_TI, angles, rows.attend)
        assert isinstance(attention, SelfAttention), "`ends_early` says so"
        return attention(self._index, input_TI, angles, rows.attend, outputs)


def _new_attention(
    spec: ModelSpec | HeadSpec,
    index: int,
    compute: Compute,
    *,
    input_size: int | None,
    layouts: Layouts,
    shard: Shard,
) -> SelfAttention | LatentAttention | DeltaNet:
    """Return the attention block of a layer, or its delta net, as the spec describes it."""
    if (state := spec.state_of(index)) is not None:
        return DeltaNet(spec.hidden_size, state, spec.norm_epsilon, compute, shard=shard)
    if spec.latent is not None:
        return LatentAttention(
            spec.hidden_size,
            spec.num_query_heads,
            spec.latent,
            compute,
            input_size=input_size,
            head_layout=spec.rope.head_layout,
            shard=shard,
        )
    return SelfAttention(
        spec.hidden_size,
        spec.num_query_heads,
        spec.num_kv_heads,
        spec.head_dim,
        compute,
        qkv_bias=spec.qkv_bias,
        output_bias=spec.output_bias,
        qk_norm_epsilon=spec.norm_epsilon if spec.qk_norm else None,
        input_size=input_size,
        norms_projections=spec.traits.norms_projections,
        qk_norm_offset=spec.traits.norm_offset,
        head_layout=spec.rope.head_layout,
        has_sinks=spec.traits.has_sinks,
        has_output_gate=spec.traits.has_output_gate,
        layouts=layouts,
        shard=shard,
    )


class Filled(Protocol):
    """A part of a network with weights."""

    def parameters(self) -> Mapping[str, Parameter]:
        """Return the tensors to fill, by name within the part."""
        ...

    def seal(self) -> None:
        """Prepare the filled weights for running."""
        ...


class Decoder:
    """A model: allocates its weights; fill `parameters()`, call `seal()` once, then only run it."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        max_model_len: int | None = None,
        order: RowOrder | None = None,
        layouts: Layouts = UNPACKED,
        shard: Shard = WHOLE,
    ) -> None:
        """Allocate the weights on `device`.

        max_model_len: number of positions to prepare rope angles for; None is `spec.max_position`.
        order: the row counts to run; None runs every count as it is, and makes no promise about bits.
        layouts: of the weights that stay packed, by parameter name (`packing.decide`). shard: the part
        of the layers and of the logits head that this rank has.
        """
        self.spec = spec
        self.shard = shard
        self.dtype = dtype
        self.device = torch.device(device)
        self.max_model_len = max_model_len or spec.max_position
        self.order = order or RowOrder()
        compute = self.compute = Compute(dtype, self.device, self.order)
        self.embedding = Embedding(
            spec.vocab_size, spec.hidden_size, compute, scale=spec.embedding_scale
        )
        self._layers: Sequence[Filled] = self._new_layers(layouts)
        self._norm = RMSNorm(
            spec.hidden_size, spec.norm_epsilon, compute, offset=spec.traits.norm_offset
        )
        self.head = LogitsHead(spec.vocab_size, spec.hidden_size, compute, shard=shard)
        self._rope_of_layer = [spec.rope_of(layer) for layer in range(spec.num_layers)]
        self._ropes = {
            rope: RopeTable(rope, self.max_model_len, compute)
            for rope in dict.fromkeys(self._rope_of_layer)
        }

    @property
    def angle_digests(self) -> list[str]:
        """What tells apart the angles of positions; those of longrope depend on `max_model_len`."""
        return [
            hashlib.sha256(rope_frequencies(rope, self.max_model_len).numpy().tobytes()).hexdigest()
            for rope in self._ropes
        ]

    def _new_layers(self, layouts: Layouts) -> Sequence[Filled]:
        spec = self.spec
        return [
            DecoderLayer(
                spec,
                index,
                self.compute,
                layouts=within(layouts, f"layers.{index}"),
                shard=self.shard,
            )
            for index in range(spec.num_layers)
        ]

    def parameters(self) -> dict[str, list[Parameter]]:
        """Return the tensors that a loader fills, by parameter name.

        Each parameter is a list of tensors, consecutive blocks of its rows. A tied logits head is not
        among them; `seal` copies it from the embedding.
        """
        tensors: dict[str, list[Parameter]] = {"embedding.weight": [self.embedding.weight_VD]}
        for index, layer in enumerate(self._layers):
            for name, view in layer.parameters().items():
                tensors[f"layers.{index}.{name}"] = [view]
        tensors["norm.weight"] = [self._norm.parameter()]
        if not self.spec.tie_embeddings:
            tensors["head.weight"] = list(self.head.parameters())
        return tensors

    def seal(self) -> None:
        """Prepare the filled weights for running; call once, after the last parameter is filled."""
        if self.spec.tie_embeddings:
            self.head.fill_from(self.embedding.weight_VD)
        if self.spec.logits_scale != 1:
            self.head.multiply(self.spec.logits_scale)
        freed = 0  # at most: bytes of weights whose packed copies have taken their place
        for layer in self._layers:
            if self.device.type == "cpu":
                freed += sum(bytes_of(whole(each).target) for each in layer.parameters().values())
            layer.seal()
            if freed >= LEAST_RETURNED:
                return_free_memory()
                freed = 0
        self._norm.seal()
        self.head.seal()

    def ends_early(self, taps: Sequence[int] = ()) -> bool:
        """Return whether `forward` leaves out outputs that are not read (`PlannedRows.outputs`)."""
        last = self._layers[-1]
        is_able = isinstance(last, DecoderLayer) and last.ends_early
        return is_able and all(tap < len(self._layers) for tap in taps)

    def forward(
        self,
        rows: PlannedRows,
        taps: Sequence[int] = (),
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Run all layers.

        taps: numbers of layers after which to return the residual stream; 0 is the embedding, the
        number of layers plus 1 is the output of the final norm.
        Returns the output of the final norm [T, D], and a tensor for each of `taps`, in order: [T, D],
        or [T, M * D] of a model with M residual streams, its final norm excepted. What is returned of
        the last layer has the rows of `rows.outputs` alone, where that is given.
        """
        num_rows = len(rows.tokens_T)
        assert num_rows == self.order.pad(num_rows), "rows are padded by RowOrder.pad"
        angles = {rope: table.at(rows.positions_T) for rope, table in self._ropes.items()}
        of_layers = [angles[rope] for rope in self._rope_of_layer]
        normed_TD, streams = self._run(rows, of_layers, taps)
        if (scale := self.spec.stream_scale) != 1:
            streams = {tap: stream * scale for tap, stream in streams.items()}
        streams[len(self._layers) + 1] = normed_TD
        return normed_TD, [streams[tap] for tap in taps]

    def _run(
        self,
        rows: PlannedRows,
        of_layers: Sequence[Angles],
        taps: Sequence[int],
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Return the output of the final norm, and the residual stream after the layers in `taps`.

        of_layers: the angles of each layer.
        """
        stream_TD, parts = self.embedding(rows.tokens_T), None
        streams: dict[int, torch.Tensor] = {}
        for depth, (layer, angles) in enumerate(zip(self._layers, of_layers, strict=True)):
            assert isinstance(layer, DecoderLayer)
            outputs = rows.outputs if depth + 1 == len(self._layers) else None
            before_TD, stream_TD, parts = layer(stream_TD, parts, angles, rows, outputs=outputs)
            if depth in taps:
                streams[depth] = before_TD
        normed_TD = stream_TD
        if len(stream_TD):
            stream_TD, normed_TD = self._norm.add(stream_TD, parts)
        return normed_TD, streams | {len(self._layers): stream_TD}

    def logits(self, hidden_RD: torch.Tensor, out_RV: torch.Tensor | None = None) -> torch.Tensor:
        """Return the float32 logits [R, V] of final hidden states [R, D]; on other ranks than the
        first, none [0, V].

        R is a count that `order.pad` returns. out_RV: where to write them; used on a CUDA device alone.
        """
        num_rows = hidden_RD.shape[0]
        assert num_rows == self.order.pad(num_rows), "rows are padded by RowOrder.pad"
        return self.head(hidden_RD, out_RV)
