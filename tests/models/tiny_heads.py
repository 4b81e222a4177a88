"""Tiny random draft heads, written with plain torch and JSON, and what they compute by definition.

Nothing here is taken from the code under test: names, conventions and arithmetic are written out again.

Legend: T rows, D hidden size, F feature size, N query heads, G key/value heads, H head dim.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .tiny import SIZES, make_model, save_model

NUM_TARGET_LAYERS = 8
VOCAB = SIZES["vocab_size"]
TARGET_HIDDEN = SIZES["hidden_size"]
DEFAULT_TAPS = (2, 4, 5)
EPSILON = 1e-5
THETA = 10000.0


def save_target(directory: Path, name: str = "llama2", **changes: Any) -> Path:
    """A target with eight layers."""
    return save_model(make_model(name, num_hidden_layers=NUM_TARGET_LAYERS, **changes), directory)


@dataclass
class TinyHead:
    """The facts and tensors of a head; tensors by their names in the speculators format."""

    kind: str = "eagle3"
    hidden: int = TARGET_HIDDEN
    inner: int = 72
    query_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    layers: int = 1
    draft_vocab: int = VOCAB
    taps: tuple[int, ...] = DEFAULT_TAPS
    fc_norm: bool = False
    input_norm: bool = False
    norm_output: bool = False
    norm_before_residual: bool = False
    bias: bool = False
    fc_bias: bool = False
    qk_norm: bool = False
    window: int | None = None
    embedding: bool = True
    embedding_first: bool = True
    rotary_dim: int | None = None
    experts: int = 0
    chosen: int = 3
    expert_inner: int = 48
    scale: float = 1.5
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def ids(self) -> torch.Tensor:
        """The target's id of each draft id."""
        generator = torch.Generator().manual_seed(5)
        return torch.randperm(VOCAB, generator=generator)[: self.draft_vocab].sort().values


def make_head(seed: int = 0, **facts: Any) -> TinyHead:
    """A head with float32 tensors that bfloat16 holds exactly; norms and biases are random too."""
    head = TinyHead(**facts)
    generator = torch.Generator().manual_seed(seed)

    def put(name: str, *shape: int) -> None:
        noise = torch.randn(shape, generator=generator)
        if "norm" in name:
            value = 1 + 0.2 * noise
        elif "embed" in name or name.endswith("bias"):
            value = 0.3 * noise
        else:
            value = noise * shape[-1] ** -0.5
        head.tensors[name] = value.bfloat16().float()

    hidden = head.hidden
    if head.kind == "eagle3":
        width = len(head.taps) * TARGET_HIDDEN
        put("fc.weight", hidden, width)
        for index in range(len(head.taps) if head.fc_norm else 0):
            put(f"fc_norm.{index}.weight", TARGET_HIDDEN)
        if head.input_norm:
            put("input_norm.weight", width)
        put("layers.0.hidden_norm.weight", hidden)
        put("norm.weight", hidden)
        put("lm_head.weight", head.draft_vocab, hidden)
        if head.draft_vocab < VOCAB:
            head.tensors["d2t"] = head.ids - torch.arange(head.draft_vocab)
            head.tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool)
            head.tensors["t2d"][head.ids] = True
    else:
        put("fc.weight", hidden, 2 * hidden)
    if head.fc_bias:
        put("fc.bias", hidden)
    if head.embedding:
        put("embed_tokens.weight", VOCAB, hidden)
    for layer in range(head.layers):
        prefix = f"layers.{layer}."
        if head.kind != "eagle" or layer > 0:
            put(f"{prefix}input_layernorm.weight", hidden)
        put(f"{prefix}post_attention_layernorm.weight", hidden)
        attention_in = 2 * hidden if head.kind == "eagle3" and layer == 0 else hidden
        query, kv = head.query_heads * head.head_dim, head.kv_heads * head.head_dim
        for part, out in (("q", query), ("k", kv), ("v", kv)):
            put(f"{prefix}self_attn.{part}_proj.weight", out, attention_in)
            if head.bias:
                put(f"{prefix}self_attn.{part}_proj.bias", out)
        put(f"{prefix}self_attn.o_proj.weight", hidden, query)
        if head.bias:
            put(f"{prefix}self_attn.o_proj.bias", hidden)
        if head.qk_norm:
            put(f"{prefix}self_attn.q_norm.weight", head.head_dim)
            put(f"{prefix}self_attn.k_norm.weight", head.head_dim)
        blocks = {"mlp": head.inner}
        if head.experts:
            put(f"{prefix}mlp.gate.weight", head.experts, hidden)
            put(f"{prefix}mlp.gate.e_score_correction_bias", head.experts)
            named = ("shared_experts", *(f"experts.{expert}" for expert in range(head.experts)))
            blocks = {f"mlp.{name}": head.expert_inner for name in named}
        for block, inner in blocks.items():
            put(f"{prefix}{block}.gate_proj.weight", inner, hidden)
            put(f"{prefix}{block}.up_proj.weight", inner, hidden)
            put(f"{prefix}{block}.down_proj.weight", hidden, inner)
    return head


def layer_config(head: TinyHead) -> dict[str, Any]:
    values: dict[str, Any] = {
        "model_type": "qwen3" if head.qk_norm else "llama",
        "vocab_size": VOCAB,
        "hidden_size": head.hidden,
        "intermediate_size": head.inner,
        "num_hidden_layers": head.layers,
        "num_attention_heads": head.query_heads,
        "num_key_value_heads": head.kv_heads,
        "rms_norm_eps": EPSILON,
        "head_dim": head.head_dim,
    }
    if head.bias:
        values["attention_bias"] = True
    if head.window:
        values["sliding_window"] = head.window
        values["layer_types"] = ["sliding_attention"] * head.layers
    return values


def write_safeailab(directory: Path, head: TinyHead, *, is_pickle: bool = False) -> Path:
    """EAGLE's own format: a flat Llama configuration that says little, `midlayer.` tensors."""
    config = {**layer_config(head), "architectures": ["LlamaForCausalLM"]}
    if head.kind == "eagle":
        config["bias"] = head.fc_bias
    if head.draft_vocab < VOCAB:
        config["draft_vocab_size"] = head.draft_vocab
    return _write(directory, config, _midlayer(head), is_pickle)


def write_specforge(directory: Path, head: TinyHead, *, uses_old_names: bool = False) -> Path:
    """The format of SpecForge and SGLang: layer ids number the layer whose output is read."""
    config = {
        **layer_config(head),
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": head.draft_vocab,
        "target_hidden_size": TARGET_HIDDEN,
        "norm_output": head.norm_output,
        "norm_before_fc": head.input_norm,
        "num_aux_hidden_states": len(head.taps),
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in head.taps],
        },
    }
    config["use_aux_norm" if uses_old_names else "fc_norm"] = head.fc_norm
    tensors = _midlayer(head)
    if uses_old_names:
        for index, place in enumerate(("low", "mid", "high")):
            tensors[f"aux_norm_{place}.weight"] = tensors.pop(f"fc_norm.{index}.weight")
    return _write(directory, config, tensors, False)


def write_speculators(directory: Path, head: TinyHead) -> Path:
    """The format of speculators: `transformer_layer_config` leaves out what transformers assumes."""
    assumed = {"num_key_value_heads": 32} if head.qk_norm else {}
    layer = {
        name: value for name, value in layer_config(head).items() if assumed.get(name) != value
    }
    if not head.qk_norm and head.kv_heads == head.query_heads:
        del layer["num_key_value_heads"]
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
        "draft_vocab_size": head.draft_vocab,
        "norm_before_residual": head.norm_before_residual,
        "norm_before_fc": head.input_norm,
        "fc_norm": head.fc_norm,
        "norm_output": head.norm_output,
        "target_hidden_size": None if head.hidden == TARGET_HIDDEN else TARGET_HIDDEN,
        "eagle_aux_hidden_state_layer_ids": list(head.taps),
    }
    return _write(directory, config, dict(head.tensors), False)


def write_mtp(directory: Path, head: TinyHead) -> None:
    """Add an MTP layer to a target's checkpoint: MiMo's where the embedding comes second, else
    DeepSeek's."""
    from safetensors.torch import load_file

    if head.embedding_first:
        prefix = f"model.layers.{NUM_TARGET_LAYERS}."
        names = {"fc": "eh_proj", "token": "enorm", "state": "hnorm", "norm": "shared_head.norm"}
    else:
        prefix = "model.mtp_layers.0."
        names = {
            "fc": "input_proj",
            "token": "token_layernorm",
            "state": "hidden_layernorm",
            "norm": "final_layernorm",
        }
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in head.tensors.items():
        stem, _, rest = name.partition(".")
        stored = f"{names[stem]}.{rest}" if stem in names else name.removeprefix("layers.0.")
        tensors[prefix + stored] = tensor
    save_file(tensors, path)


def make_mtp(seed: int = 0, **facts: Any) -> TinyHead:
    """An MTP layer, its norms named "token", "state" and "norm"."""
    size = {"inner": SIZES["intermediate_size"], "embedding": False, **facts}
    head = make_head(seed, kind="mtp", **size)
    generator = torch.Generator().manual_seed(seed + 100)
    for name in ("token", "state", "norm"):
        noise = torch.randn(TARGET_HIDDEN, generator=generator)
        head.tensors[f"{name}.weight"] = (1 + 0.2 * noise).bfloat16().float()
    return head


def _midlayer(head: TinyHead) -> dict[str, torch.Tensor]:
    if head.kind == "eagle":
        return dict(head.tensors)
    return {name.replace("layers.0.", "midlayer."): value for name, value in head.tensors.items()}


def _write(
    directory: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], is_pickle: bool
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    if is_pickle:
        torch.save(tensors, directory / "pytorch_model.bin")
    else:
        save_file(tensors, directory / "model.safetensors")
    return directory


@dataclass
class Definition:
    """What a head computes, all rows at once, in plain float32 torch.

    embedding, output: the target's, for heads that have none. theta: base of the rotary positions.
    """

    head: TinyHead
    embedding: torch.Tensor
    output: torch.Tensor
    theta: float = THETA
    epsilon: float = EPSILON

    def combine(self, taps: list[torch.Tensor]) -> torch.Tensor:
        head, tensors = self.head, self.head.tensors
        if head.kind != "eagle3":
            return taps[0]
        if head.fc_norm:
            taps = [self._norm(tap, f"fc_norm.{index}") for index, tap in enumerate(taps)]
        states = torch.cat(taps, -1)
        if head.input_norm:
            states = self._norm(states, "input_norm")
        return states @ tensors["fc.weight"].T + tensors.get("fc.bias", 0)

    def rows(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        features: torch.Tensor,
        seen: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and the features of the next level; seen[t, s]: row t attends to row s."""
        head, tensors = self.head, self.head.tensors
        embedded = tensors.get("embed_tokens.weight", self.embedding)[tokens]
        joined = None
        if head.kind == "eagle3":
            normed = self._norm(features, "layers.0.hidden_norm")
            joined = torch.cat([self._norm(embedded, "layers.0.input_layernorm"), normed], -1)
            stream = normed if head.norm_before_residual else features
        elif head.kind == "eagle":
            stream = self._fc(torch.cat([embedded, features], -1))
            joined = stream
        else:
            embedded = torch.where(positions[:, None] == 1, 0.0, embedded)
            embedded, features = self._norm(embedded, "token"), self._norm(features, "state")
            pair = [embedded, features] if head.embedding_first else [features, embedded]
            stream = self._fc(torch.cat(pair, -1))
        for layer in range(head.layers):
            prefix = f"layers.{layer}."
            if joined is None:
                joined = self._norm(stream, f"{prefix}input_layernorm")
            stream = stream + self._attention(prefix, joined, positions - 1, seen)
            normed = self._norm(stream, f"{prefix}post_attention_layernorm")
            stream = stream + self._feed_forward(f"{prefix}mlp.", normed)
            joined = None
        last = stream if head.kind == "eagle" else self._norm(stream, "norm")
        logits = last @ tensors.get("lm_head.weight", self.output).T
        recycles_normed = head.kind == "mtp" or head.norm_output
        return logits, last if recycles_normed else stream

    def _feed_forward(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        head, tensors = self.head, self.head.tensors
        if not head.experts:
            return self._block(prefix, x)
        scores = torch.sigmoid(x @ tensors[f"{prefix}gate.weight"].T)
        choice = scores + tensors[f"{prefix}gate.e_score_correction_bias"]
        out = self._block(f"{prefix}shared_experts.", x)
        for row, chosen in enumerate(choice.topk(head.chosen).indices.tolist()):
            weights = scores[row, chosen] / scores[row, chosen].sum() * head.scale
            for expert, weight in zip(chosen, weights, strict=True):
                out[row] += weight * self._block(f"{prefix}experts.{expert}.", x[row])
        return out

    def _block(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        gate = x @ self.head.tensors[f"{prefix}gate_proj.weight"].T
        up = x @ self.head.tensors[f"{prefix}up_proj.weight"].T
        return (gate * torch.sigmoid(gate) * up) @ self.head.tensors[f"{prefix}down_proj.weight"].T

    def _fc(self, pair: torch.Tensor) -> torch.Tensor:
        return pair @ self.head.tensors["fc.weight"].T + self.head.tensors.get("fc.bias", 0)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return x * scale * self.head.tensors[f"{name}.weight"]

    def _attention(
        self, prefix: str, x: torch.Tensor, positions: torch.Tensor, seen: torch.Tensor
    ) -> torch.Tensor:
        head, tensors = self.head, self.head.tensors
        q, k, v = (self._project(f"{prefix}self_attn.{part}_proj", x) for part in "qkv")
        q, k, v = (states.view(len(x), -1, head.head_dim) for states in (q, k, v))
        if head.qk_norm:
            q = self._norm(q, f"{prefix}self_attn.q_norm")
            k = self._norm(k, f"{prefix}self_attn.k_norm")
        q, k = self._rotate(q, positions), self._rotate(k, positions)
        per_kv = head.query_heads // head.kv_heads
        k, v = k.repeat_interleave(per_kv, 1), v.repeat_interleave(per_kv, 1)
        scores = torch.einsum("tnh,snh->nts", q, k) / head.head_dim**0.5
        if head.window:
            seen = seen & (positions[:, None] - positions[None, :] < head.window)
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out = torch.einsum("nts,snh->tnh", weights, v).reshape(len(x), -1)
        bias = tensors.get(f"{prefix}self_attn.o_proj.bias", 0)
        return out @ tensors[f"{prefix}self_attn.o_proj.weight"].T + bias

    def _project(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.head.tensors[f"{name}.weight"].T + self.head.tensors.get(f"{name}.bias", 0)

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        half = (self.head.rotary_dim or x.shape[-1]) // 2
        frequencies = self.theta ** -(torch.arange(half) / half)
        angles = (positions[:, None] * frequencies)[:, None, :]
        first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], -1)
        cosine, sine = angles.cos(), angles.sin()
        rotated = [first * cosine - second * sine, second * cosine + first * sine]
        return torch.cat([*rotated, rest], -1)
