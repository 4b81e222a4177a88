"""The network of a head whose residual stream is several streams: DeepSeek-V4's MTP layer.

Promises: as `network`. The feature of a row is all streams of the target after its last layer, before
they are summed. Each stream is normalised and projected alone, and the projected embedding is added to
each; the layer is one of the target's kind, and a sum of its own collapses the streams for the logits.
The streams themselves are what the next level reads.
Does not know: as `network`.

Legend: T rows of a forward pass, M streams, D hidden size, F = M * D.
"""

from __future__ import annotations

import torch

from eyas.attention.base import PlannedRows
from eyas.layers.compute import Compute
from eyas.layers.embedding import Embedding
from eyas.layers.linear import Linear, LogitsHead
from eyas.models.decoder import Filled
from eyas.models.heads.network import DraftHead
from eyas.models.heads.spec import HeadSpec
from eyas.models.hyper_decoder import stream_layers
from eyas.parallel.cut import whole_shape


class HyperHead(DraftHead):
    """A draft head with residual streams; used as a `DraftHead`."""

    def _build(self) -> list[tuple[str, Filled]]:
        spec, compute = self.spec, self.compute
        assert not spec.fc_bias and not spec.zero_first_embedding
        self._embedding_fc, self._feature_fc = (
            Linear(spec.hidden_size, {f"{part}_fc": spec.hidden_size}, compute)
            for part in ("embedding", "feature")
        )
        self._stream_layers, self._collapse = stream_layers(spec, compute)
        return [
            ("", self._embedding_fc),
            ("", self._feature_fc),
            ("collapse.", self._collapse),
            *((f"layers.{index}.", layer) for index, layer in enumerate(self._stream_layers)),
        ]

    @property
    def ends_early(self) -> bool:
        return False

    def forward(
        self, rows: PlannedRows, features_TF: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        num_rows = len(rows.tokens_T)
        assert num_rows == self.order.pad(num_rows), "rows are padded by RowOrder.pad"
        norms, num = self._norms, self.spec.num_streams
        embedded_TD = norms["embedding_norm"].add(self._embedding(rows.tokens_T), None)[1]
        embedded_TD = self._embedding_fc(embedded_TD)
        streams = [
            embedded_TD + self._feature_fc(norms["feature_norm"].add(feature_TD, None)[1])
            for feature_TD in features_TF.chunk(num, 1)
        ]
        streams_TMD = torch.stack(streams, 1)
        angles = self._rope.at(rows.positions_T)
        for layer in self._stream_layers:
            streams_TMD = layer(streams_TMD, angles, rows)
        return self._collapse.sum(streams_TMD, norms["norm"])[0], streams_TMD.flatten(1)


def head_class(spec: HeadSpec) -> type[DraftHead]:
    """Return the class that runs a head."""
    return DraftHead if spec.hyper is None else HyperHead


def parameter_shapes(spec: HeadSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter that a head owns, by its name in `DraftHead.parameters`.

    ValueError: sizes are beyond those of any tensor.
    """
    compute = Compute(torch.bfloat16, torch.device("meta"))
    shared_embedding = shared_head = None
    if not spec.own_embedding:
        shared_embedding = Embedding(spec.vocab_size, spec.hidden_size, compute)
    if not spec.own_head:
        shared_head = LogitsHead(*spec.head_shape, compute)
    try:
        head = head_class(spec)(
            spec,
            dtype=compute.dtype,
            device=compute.device,
            max_model_len=1,
            order=compute.order,
            embedding=shared_embedding,
            head=shared_head,
        )
    except RuntimeError as error:
        raise ValueError(
            f"the sizes in the head's config.json are not those of a head: {error}"
        ) from None
    return {name: whole_shape(blocks) for name, blocks in head.parameters().items()}
