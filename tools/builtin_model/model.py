"""The trainable built-in model: Qwen3's architecture over packed conversations.

Promises: the parameter names and the function of transformers' Qwen3ForCausalLM with tied
embeddings. Conversations are concatenated; attention stays within a conversation. Does not know:
the data.

Legend: T tokens, D width, N query heads, G kv heads, H head dim, V vocabulary.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class BuiltinShape:
    """The sizes of the built-in model; the defaults are those of the shipped checkpoint."""

    vocab_size: int = 4096
    width: int = 320
    num_layers: int = 8
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 64
    ffn_width: int = 704
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    longest: int = 2048

    def config(self) -> dict[str, Any]:
        """Return the config.json of the checkpoint."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": self.vocab_size,
            "hidden_size": self.width,
            "intermediate_size": self.ffn_width,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.longest,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "use_cache": True,
            "use_sliding_window": False,
            "initializer_range": 0.02,
            "torch_dtype": "bfloat16",
        }


Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Maps (q [T, N, H], k [T, G, H], v [T, G, H], bounds [S + 1]) to [T, N, H]; causal within each
conversation."""


def dense_attend(q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, bounds: Tensor) -> Tensor:
    """Compute attention with a full mask: the reference, and the implementation without a GPU."""
    rows = torch.arange(len(q_TNH), device=q_TNH.device)
    segment = torch.bucketize(rows, bounds, right=True)
    mask = (segment[:, None] == segment[None, :]) & (rows[:, None] >= rows[None, :])
    q, k, v = (x.transpose(0, 1)[None] for x in (q_TNH, k_TGH, v_TGH))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out[0].transpose(0, 1)


def varlen_attend(longest: int) -> Attend:
    """Return attention by torch's variable-length kernel (GPU only)."""
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = (
        {"is_causal": True} if "is_causal" in known else {"window_size": (-1, 0)}
    )
    grouped = "enable_gqa" in known
    if grouped:
        causal["enable_gqa"] = True

    def attend(q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, bounds: Tensor) -> Tensor:
        if not grouped:
            group = q_TNH.shape[1] // k_TGH.shape[1]
            k_TGH = k_TGH.repeat_interleave(group, dim=1)
            v_TGH = v_TGH.repeat_interleave(group, dim=1)
        out = varlen_attn(q_TNH, k_TGH, v_TGH, bounds, bounds, longest, longest, **causal)
        return out if isinstance(out, Tensor) else out[0]

    return attend


class _Norm(nn.Module):
    """RMS norm in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class _Attention(nn.Module):
    def __init__(self, shape: BuiltinShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        inner, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.width, inner, bias=False)
        self.k_proj = nn.Linear(shape.width, kv, bias=False)
        self.v_proj = nn.Linear(shape.width, kv, bias=False)
        self.o_proj = nn.Linear(inner, shape.width, bias=False)
        self.q_norm = _Norm(shape.head_dim, shape.norm_eps)
        self.k_norm = _Norm(shape.head_dim, shape.norm_eps)

    def forward(
        self, x_TD: Tensor, rope: tuple[Tensor, Tensor], bounds: Tensor, attend: Attend
    ) -> Tensor:
        q = _rotate(self.q_norm(self.q_proj(x_TD).unflatten(1, (-1, self.head_dim))), rope)
        k = _rotate(self.k_norm(self.k_proj(x_TD).unflatten(1, (-1, self.head_dim))), rope)
        v = self.v_proj(x_TD).unflatten(1, (-1, self.head_dim))
        out = attend(q.to(v.dtype), k.to(v.dtype), v, bounds)
        return self.o_proj(out.flatten(1))


class _FeedForward(nn.Module):
    def __init__(self, shape: BuiltinShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.ffn_width, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.ffn_width, bias=False)
        self.down_proj = nn.Linear(shape.ffn_width, shape.width, bias=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x_TD)) * self.up_proj(x_TD))


class _Layer(nn.Module):
    def __init__(self, shape: BuiltinShape) -> None:
        super().__init__()
        self.input_layernorm = _Norm(shape.width, shape.norm_eps)
        self.self_attn = _Attention(shape)
        self.post_attention_layernorm = _Norm(shape.width, shape.norm_eps)
        self.mlp = _FeedForward(shape)

    def forward(
        self, x_TD: Tensor, rope: tuple[Tensor, Tensor], bounds: Tensor, attend: Attend
    ) -> Tensor:
        x_TD = x_TD + self.self_attn(self.input_layernorm(x_TD), rope, bounds, attend)
        return x_TD + self.mlp(self.post_attention_layernorm(x_TD))


class _Body(nn.Module):
    def __init__(self, shape: BuiltinShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.width)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.num_layers))
        self.norm = _Norm(shape.width, shape.norm_eps)


class BuiltinModel(nn.Module):
    """The trainable model; `state_dict` has the names of Qwen3ForCausalLM without `lm_head`."""

    def __init__(self, shape: BuiltinShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = _Body(shape)
        depth = (2 * shape.num_layers) ** -0.5
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                scale = depth if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                nn.init.normal_(weight, std=0.02 * scale)

    def logits(
        self, tokens_T: Tensor, positions_T: Tensor, bounds: Tensor, attend: Attend
    ) -> Tensor:
        """Return the next-token logits [T, V] of packed conversations."""
        rope = self._rope(positions_T)
        x_TD = self.model.embed_tokens(tokens_T)
        for layer in self.model.layers:
            x_TD = layer(x_TD, rope, bounds, attend)
        return F.linear(self.model.norm(x_TD), self.model.embed_tokens.weight)

    def _rope(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        half = self.shape.head_dim // 2
        exponents = torch.arange(half, device=positions_T.device, dtype=torch.float32) / half
        angles = positions_T[:, None].float() * self.shape.rope_theta ** -exponents[None, :]
        return angles.cos()[:, None], angles.sin()[:, None]


def _rotate(x_TNH: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rope
    first, second = x_TNH.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
