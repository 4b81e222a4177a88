"""The decoder of models whose residual stream is several streams (`layers.hyper_connections`).

Promises: as `decoder`.
Does not know: sequences, trees, slots, checkpoints.

Legend: T rows, M streams, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch

from eyas.attention.base import PlannedRows
from eyas.layers.compressed_attention import CompressedAttention
from eyas.layers.compute import Compute
from eyas.layers.experts import MixtureOfExperts
from eyas.layers.hyper_connections import Streams
from eyas.layers.layouts import UNPACKED, Layouts, within
from eyas.layers.norm import RMSNorm
from eyas.models.decoder import Decoder
from eyas.models.spec import ModelSpec
from eyas.ops.rotate_and_store import Angles
from eyas.parallel.cut import Parameter

if TYPE_CHECKING:
    from eyas.models.heads.spec import HeadSpec


class HyperLayer:
    """Attention and experts, each between a way out of the streams and a way back.

    index: of the layer; `attend` gets it. layouts: of the weights that stay packed.
    """

    def __init__(
        self,
        spec: ModelSpec | HeadSpec,
        index: int,
        compute: Compute,
        *,
        layouts: Layouts,
    ) -> None:
        hidden, epsilon = spec.hidden_size, spec.norm_epsilon
        sizes, experts = spec.compressed_of(index), spec.experts_of(index)
        assert spec.hyper is not None and sizes is not None and experts is not None
        self._index = index
        self._attention_connection, self._mlp_connection = (
            Streams(
                spec.hyper,
                hidden,
                epsilon,
                compute,
                num_weights=spec.hyper.num_weights,
                num_scales=3,
            )
            for _ in range(2)
        )
        self._attention_norm, self._mlp_norm = (RMSNorm(hidden, epsilon, compute) for _ in range(2))
        self._attention = CompressedAttention(hidden, sizes, epsilon, compute)
        self._mlp = MixtureOfExperts(
            hidden,
            experts,
            compute,
            activation=spec.traits.activation,
            layouts=within(layouts, "mlp"),
        )

    def parameters(self) -> dict[str, Parameter]:
        """Return the tensors to fill, by name within the layer."""
        found: dict[str, Parameter] = {
            "attention_norm.weight": self._attention_norm.parameter(),
            "mlp_norm.weight": self._mlp_norm.parameter(),
        }
        for name, part in (
            ("attention_connection", self._attention_connection),
            ("mlp_connection", self._mlp_connection),
            ("attention", self._attention),
            ("mlp", self._mlp),
        ):
            found |= {f"{name}.{key}": view for key, view in part.parameters().items()}
        return found

    def seal(self) -> None:
        """Prepare the filled weights for running."""
        for part in (
            self._attention_connection,
            self._mlp_connection,
            self._attention,
            self._mlp,
        ):
            part.seal()

    def __call__(
        self,
        streams_TMD: torch.Tensor,
        angles: Angles,
        rows: PlannedRows,
    ) -> torch.Tensor:
        """Return the streams [T, M, D] after the layer."""
        input_TD, raw_TW = self._attention_connection.sum(streams_TMD, self._attention_norm)
        parts = self._attention(self._index, input_TD, angles, rows.attend)
        streams_TMD = self._attention_connection.mix(streams_TMD, raw_TW, parts)
        input_TD, raw_TW = self._mlp_connection.sum(streams_TMD, self._mlp_norm)
        parts = self._mlp(input_TD, rows)
        return self._mlp_connection.mix(streams_TMD, raw_TW, parts)


def stream_layers(
    spec: ModelSpec | HeadSpec,
    compute: Compute,
    *,
    layouts: Layouts = UNPACKED,
) -> tuple[list[HyperLayer], Streams]:
    """Return the layers of a network with residual streams, and what sums the streams behind them."""
    assert spec.hyper is not None
    collapse = Streams(
        spec.hyper,
        spec.hidden_size,
        spec.norm_epsilon,
        compute,
        num_weights=spec.hyper.num_streams,
        num_scales=1,
    )
    layers = [
        HyperLayer(spec, index, compute, layouts=within(layouts, f"layers.{index}"))
        for index in range(spec.num_layers)
    ]
    return layers, collapse


class HyperDecoder(Decoder):
    """A model of `HyperLayer`s: every stream starts as the embedding; at the end they are summed."""

    def _new_layers(self, layouts: Layouts) -> Sequence[HyperLayer]:
        layers, self._collapse = stream_layers(self.spec, self.compute, layouts=layouts)
        return layers

    def parameters(self) -> dict[str, list[Parameter]]:
        found = super().parameters()
        for name, view in self._collapse.parameters().items():
            found[f"collapse.{name}"] = [view]
        return found

    def seal(self) -> None:
        super().seal()
        self._collapse.seal()

    def _run(
        self,
        rows: PlannedRows,
        of_layers: Sequence[Angles],
        taps: Sequence[int],
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        assert self.spec.hyper is not None and not rows.rank_rows, (
            "ranks do not divide these models"
        )
        streams_TMD = self.embedding(rows.tokens_T).unsqueeze(1)
        streams_TMD = streams_TMD.repeat(1, self.spec.hyper.num_streams, 1)
        tapped: dict[int, torch.Tensor] = {}
        layers = cast(Sequence[HyperLayer], self._layers)
        for depth, (layer, angles) in enumerate(zip(layers, of_layers, strict=True)):
            if depth in taps:
                tapped[depth] = streams_TMD.flatten(1)
            streams_TMD = layer(streams_TMD, angles, rows)
        tapped[len(layers)] = streams_TMD.flatten(1)
        return self._collapse.sum(streams_TMD, self._norm)[0], tapped


def decoder_class(spec: ModelSpec) -> type[Decoder]:
    """Return the class that runs a model."""
    return Decoder if spec.hyper is None else HyperDecoder
