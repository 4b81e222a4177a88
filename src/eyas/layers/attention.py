"""The attention block around a backend: project, normalise and rotate heads, attend, project back.

Promises: queries, keys and values come from one product; q and k are normalised and rotated, keys and
values put in their room, in one go.
Does not know: caches, masks, trees (the `Attend` it is handed does), checkpoints.

Legend: T rows, D hidden size, I input features (D but in the first layer of a draft head), N query
heads, G key/value heads, H head dim.
"""

from __future__ import annotations

import torch

from eyas.attention.base import Attend, KVDestination, finite
from eyas.kernels import usable
from eyas.layers.linear import Linear
from eyas.layers.norm import RMSNorm
from eyas.layers.rope import Angles, rotate
from eyas.layers.row_order import RowOrder


class SelfAttention:
    """Grouped-query attention with rotary positions and, optionally, RMS-normalised q and k.

    input_size: features that q, k and v are made of; None is hidden_size, which is always the
    output's. norms_projections: q and k are normalised over all heads together, not head by head.
    qk_norm_offset: added to the weights of these norms. head_layout: as `RopeSpec.head_layout`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_query_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        qkv_bias: bool,
        output_bias: bool,
        qk_norm_epsilon: float | None,
        dtype: torch.dtype,
        device: torch.device,
        order: RowOrder,
        input_size: int | None = None,
        norms_projections: bool = False,
        qk_norm_offset: float = 0.0,
        head_layout: tuple[int, ...] | None = None,
    ) -> None:
        self._head_layout = head_layout
        self._qk_norm_offset = qk_norm_offset
        self._qk_heads = num_query_heads + num_kv_heads
        self._all_heads = num_query_heads + 2 * num_kv_heads
        self._qk_sizes = (num_query_heads, num_kv_heads)
        self._num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        self._output_width = num_query_heads * head_dim
        parts = {
            "q": num_query_heads * head_dim,
            "k": num_kv_heads * head_dim,
            "v": num_kv_heads * head_dim,
        }
        self._qkv = Linear(
            input_size or hidden_size,
            parts,
            bias=qkv_bias,
            dtype=dtype,
            device=device,
            order=order,
        )
        self._o = Linear(
            self._output_width,
            {"o": hidden_size},
            bias=output_bias,
            dtype=dtype,
            device=device,
            order=order,
        )
        self._rotate_and_store = None
        if usable(device):
            from eyas.kernels.rope import rotate_and_store

            self._rotate_and_store = rotate_and_store
        self._epsilon = qk_norm_epsilon or 0.0
        self._qk_norm: RMSNorm | None = None
        self._q_weight_H: torch.Tensor | None = None
        self._k_weight_H: torch.Tensor | None = None
        self._projection_norms: tuple[RMSNorm, RMSNorm] | None = None
        if qk_norm_epsilon is not None and norms_projections:
            self._projection_norms = (
                RMSNorm(parts["q"], qk_norm_epsilon, dtype=dtype, device=device),
                RMSNorm(parts["k"], qk_norm_epsilon, dtype=dtype, device=device),
            )
        elif qk_norm_epsilon is not None:
            self._qk_norm = RMSNorm(
                head_dim, qk_norm_epsilon, dtype=dtype, device=device, has_weight=False
            )
            self._q_weight_H = torch.empty(head_dim, dtype=dtype, device=device)
            self._k_weight_H = torch.empty(head_dim, dtype=dtype, device=device)

    def parameters(self) -> dict[str, torch.Tensor]:
        found = self._qkv.parameters() | self._o.parameters()
        if self._q_weight_H is not None and self._k_weight_H is not None:
            found["q_norm.weight"] = self._q_weight_H
            found["k_norm.weight"] = self._k_weight_H
        if self._projection_norms is not None:
            found["q_norm.weight"], found["k_norm.weight"] = (
                norm.parameter() for norm in self._projection_norms
            )
        return found

    def _lay_out_heads(self, layout: tuple[int, ...]) -> None:
        """Reorder the dimensions of query and key heads."""
        for name, tensor in self.parameters().items():
            if name.startswith(("q.", "k.", "q_norm.", "k_norm.")):
                heads = tensor.view(-1, self._head_dim, *tensor.shape[1:])
                heads.copy_(heads[:, layout])

    def seal(self) -> None:
        if self._head_layout is not None:
            self._lay_out_heads(self._head_layout)
        self._qkv.seal()
        self._o.seal()
        if self._qk_norm_offset and self._q_weight_H is not None and self._k_weight_H is not None:
            self._q_weight_H += self._qk_norm_offset
            self._k_weight_H += self._qk_norm_offset
        if self._q_weight_H is not None and self._k_weight_H is not None:
            num_query_heads, num_kv_heads = self._qk_sizes
            rows = [self._q_weight_H] * num_query_heads + [self._k_weight_H] * num_kv_heads
            self._qk_weight_NH = torch.stack(rows)

    def __call__(
        self, layer: int, x_TI: torch.Tensor, angles: Angles, attend: Attend
    ) -> torch.Tensor:
        """[T, I] -> the parts of the block's output (`Linear.parts`)."""
        q_TNH = self._place(self._qkv(x_TI), angles, attend.destination(layer))
        out_TNH = attend(layer, q_TNH)
        return self._o.parts(out_TNH.reshape(-1, self._output_width))

    def _place(
        self, heads_TX: torch.Tensor, angles: Angles, destination: KVDestination
    ) -> torch.Tensor:
        """Normalise and rotate queries and keys; keys and values go to their slots. Returns q."""
        if self._projection_norms is not None:
            widths = [heads * self._head_dim for heads in (*self._qk_sizes, self._num_kv_heads)]
            q_TX, k_TX, v_TX = heads_TX.split(widths, dim=1)
            q_norm, k_norm = self._projection_norms
            heads_TX = torch.cat([q_norm(q_TX), k_norm(k_TX), v_TX], dim=1)
        if self._rotate_and_store is not None:
            return self._rotate_and_store(
                heads_TX,
                angles.positions_T,
                angles.table_P2H,
                destination.slots_T,
                destination.kv_S2GH,
                *self._qk_sizes,
                self._head_dim,
                q_weight_H=self._q_weight_H,
                k_weight_H=self._k_weight_H,
                epsilon=self._epsilon,
                pdl=True,
            )
        assert angles.rows is not None
        heads_TNH = heads_TX.view(-1, self._all_heads, self._head_dim)
        qk_TNH = heads_TNH.narrow(1, 0, self._qk_heads)
        if self._qk_norm is not None:
            qk_TNH = self._qk_norm(qk_TNH) * self._qk_weight_NH
        qk_TNH = rotate(qk_TNH, *angles.rows)
        q_TNH, k_TGH = torch.split_with_sizes(qk_TNH, self._qk_sizes, 1)
        v_TGH = heads_TNH.narrow(1, self._qk_heads, self._num_kv_heads)
        destination.keys_SGH.index_copy_(0, destination.slots_T, finite(k_TGH))
        destination.values_SGH.index_copy_(0, destination.slots_T, finite(v_TGH))
        return q_TNH
