"""The attention block around a backend: project, normalise and rotate heads, attend, project back.

Promises: queries, keys and values come from one product; one operation normalises and rotates them and
stores keys and values.
Does not know: caches, masks, trees (its `Attend` does), checkpoints.

Legend: T rows, I input features (the hidden size, except in the first layer of a draft head).
"""

from __future__ import annotations

import torch

from eyas.attention.base import Attend, OutputRows
from eyas.kernels.packed import by_row
from eyas.layers.compute import Compute
from eyas.layers.layouts import Layouts, common
from eyas.layers.linear import Linear
from eyas.layers.projection_norms import ProjectionNorms
from eyas.layers.row_parallel import summing_linear
from eyas.ops.gate_heads import gate_heads
from eyas.ops.rotate_and_store import Angles, HeadNorm, rotate_and_store
from eyas.parallel.cut import Cut, Parameter, Rows, held
from eyas.parallel.shard import Shard


class SelfAttention:
    """Grouped-query attention with rotary positions and, optionally, RMS-normalised q and k.

    input_size: features of the input; None is hidden_size, which is always the size of the output.
    norms_projections: queries and keys are normalised over all heads together, not head by head.
    qk_norm_offset: added to the weights of these norms. head_layout: as `RopeSpec.head_layout`.
    has_sinks: each query head has a logit that takes part in the softmax and has no value.
    has_output_gate: the output of each head is multiplied by the sigmoid of a gate, whose rows of the
    checkpoint's weight follow those of the head's query. shard: this rank's part of the heads.
    """

    def __init__(
        self,
        hidden_size: int,
        num_query_heads: int,
        num_kv_heads: int,
        head_dim: int,
        compute: Compute,
        *,
        qkv_bias: bool,
        output_bias: bool,
        qk_norm_epsilon: float | None,
        input_size: int | None,
        norms_projections: bool,
        qk_norm_offset: float,
        head_layout: tuple[int, ...] | None,
        has_sinks: bool,
        has_output_gate: bool,
        layouts: Layouts,
        shard: Shard,
    ) -> None:
        queries, keys = shard.part(num_query_heads), shard.kv_heads(num_kv_heads)
        num_query_heads, num_kv_heads = queries.count, keys.count
        self._query_heads = queries
        self._head_dim = head_dim
        self._head_layout = head_layout
        self._qk_norm_offset = qk_norm_offset
        self._num_heads = (num_query_heads, num_kv_heads)
        self._output_width = num_query_heads * head_dim
        self._has_output_gate = has_output_gate
        parts = {
            "q": num_query_heads * head_dim,
            "k": num_kv_heads * head_dim,
            "v": num_kv_heads * head_dim,
        }
        projected: dict[str, int | Rows] = {
            "q": queries.times(head_dim * (1 + has_output_gate)),
            "k": keys.times(head_dim),
            "v": keys.times(head_dim),
        }
        self._qkv = Linear(
            input_size or hidden_size,
            projected,
            compute,
            bias=qkv_bias,
            layout=common(layouts, parts),
        )
        # Norms of projections read whole rows, other kernels also parts of their sums.
        self._project = self._qkv if norms_projections else self._qkv.heads
        self._o = summing_linear(
            queries.times(head_dim),
            "o",
            hidden_size,
            compute,
            bias=output_bias,
            shard=shard,
            layout=common(layouts, ("o",)),
        )
        self._sinks_N: torch.Tensor | None = None
        if has_sinks:
            self._sinks_N = torch.empty(num_query_heads, dtype=torch.float32, device=compute.device)
        self._epsilon = qk_norm_epsilon
        self._q_weight_H: torch.Tensor | None = None
        self._k_weight_H: torch.Tensor | None = None
        self._norm: HeadNorm | None = None
        self._projection_norms: ProjectionNorms | None = None
        if qk_norm_epsilon is not None and norms_projections:
            self._projection_norms = ProjectionNorms(
                queries.times(head_dim), keys.times(head_dim), qk_norm_epsilon, compute, shard=shard
            )
        elif qk_norm_epsilon is not None:
            self._q_weight_H = compute.empty(head_dim)
            self._k_weight_H = compute.empty(head_dim)

    def parameters(self) -> dict[str, Parameter]:
        found = self._qkv.parameters() | self._o.parameters()
        if self._sinks_N is not None:
            found["sinks"] = held(self._sinks_N, self._query_heads)
        if self._q_weight_H is not None and self._k_weight_H is not None:
            found["q_norm.weight"] = self._q_weight_H
            found["k_norm.weight"] = self._k_weight_H
        if self._projection_norms is not None:
            found |= self._projection_norms.parameters()
        return found

    def _lay_out_heads(self, layout: tuple[int, ...]) -> None:
        """Reorder the dimensions of query and key heads."""
        for name, tensor in (self.parameters() | self._qkv.views()).items():
            if name.startswith(("q.", "k.", "q_norm.", "k_norm.")):
                assert not isinstance(tensor, Cut)
                for rows in by_row(tensor):
                    heads = rows.view(-1, self._head_dim, *rows.shape[1:])
                    if self._has_output_gate and name.startswith("q."):
                        heads = heads[::2]
                    heads.copy_(heads[:, layout])

    def _put_gates_last(self) -> None:
        """Reorder what is projected: the gates of all query heads behind queries, keys and values."""
        width, dim = self._output_width, self._head_dim
        pairs = torch.arange(2 * width).view(-1, 2, dim)
        others = torch.arange(2 * width, self._qkv.shape[0])
        rows = torch.cat([pairs[:, 0].flatten(), others, pairs[:, 1].flatten()])
        self._qkv.reorder(rows.tolist())

    def seal(self) -> None:
        if self._head_layout is not None:
            self._lay_out_heads(self._head_layout)
        if self._has_output_gate:
            self._put_gates_last()
        self._qkv.seal()
        self._o.seal()
        if self._q_weight_H is not None and self._k_weight_H is not None:
            self._q_weight_H += self._qk_norm_offset
            self._k_weight_H += self._qk_norm_offset
            assert self._epsilon is not None
            self._norm = HeadNorm.of(
                self._epsilon, self._q_weight_H, self._k_weight_H, *self._num_heads
            )

    def __call__(
        self,
        layer: int,
        x_TI: torch.Tensor,
        angles: Angles,
        attend: Attend,
        outputs: OutputRows | None = None,
    ) -> torch.Tensor | None:
        """Return the parts of the block's output (`Linear.parts`) for an input [T, I].

        outputs: the rows that have an output; None is all. Returns None where no row has one.
        """
        heads, gate = self._project(x_TI), None
        if self._has_output_gate:
            heads, gate = heads.tensor_split([-self._output_width], -1)
        if self._projection_norms is not None:
            heads = self._projection_norms(heads)
        q_TNH = rotate_and_store(
            heads, angles, attend.destination(layer), *self._num_heads, self._norm
        )
        if outputs is not None:
            if not outputs.num_rows:
                return None
            attend, q_TNH = outputs.attend, q_TNH[: outputs.num_rows]
            gate = None if gate is None else gate[..., : outputs.num_rows, :]
        out_TX = attend(layer, q_TNH, self._sinks_N).reshape(-1, self._output_width)
        if gate is not None:
            out_TX = gate_heads(out_TX, gate)
        return self._o.parts(out_TX)
