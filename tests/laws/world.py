"""A tiny world for the laws: a model that predicts a little, its tokenizer, engines around it.

The model is a Qwen3 decoder whose residual stream mostly carries the last token, and whose head
prefers two successors for each token; its layers change that preference with the context. So n-grams
recur, tables of bigrams are often right, and often wrong. The same is made of tiny models of other
families (`LAYERS`).
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eyas.attention.reference import ReferenceAttention
from eyas.cache import KVStore
from eyas.cache.store import KVScales, Store
from eyas.config import CacheConfig, EngineConfig, EngineInfo, SchedulerConfig
from eyas.core import Delta, Request, TokenLogprob, Usage
from eyas.draft import Drafter, ModelNetwork, RootDrafter, TreeDrafter, TreeShape
from eyas.draft.tree import num_scratch
from eyas.engine.engine import Engine
from eyas.engine.startup.build import connect
from eyas.engine.verifier import Verify, verify
from eyas.layers.row_order import RowOrderReport
from eyas.layers.row_probe import find_row_order
from eyas.models import Decoder, cpu_has_bfloat16, load_model
from eyas.runner.runner import ModelRunner
from eyas.text import Tokenizer
from tests.models.tiny import FROM_ZERO, MODELS, make_model, save_model

MERGES = ["a b", "t h", "th e", "e r", "ab c", "1 2", "i n", "in g", "o n", "\u0120 a"]
SPECIAL = ["<|end|>", "<|stop|>", "<|mark|>"]
EOS = 256 + len(MERGES)
STOP_ID = EOS + 1
VOCAB = 256 + len(MERGES) + len(SPECIAL) + 2
"""No multiple of 4 or 32, and two ids that no token has."""
HIDDEN = 48
LAYERS = {
    "experts": ("glm4 moe", 0.1),
    "sinks and windows": ("gpt-oss", 0.006),
    "state": ("qwen3 next", 0.3),
    "latent": ("deepseek v3 experts", 0.1),
    "compressed": ("deepseek v4", 0.1),
}
"""Kinds of layers beside the dense one: the tiny model (`tests.models.tiny`) that has them, and how
strongly its feed-forward blocks change what the bigrams say."""
IN_WINDOWS = "sinks and windows"
"""The layers of which those with a window recycle their slots."""
IN_BYTES = "experts"
"""The layers whose keys and values are stored in FP8, those of their drafting heads too."""
MAX_BATCH = 128
MAX_SEATS = 16


def byte_alphabet() -> list[str]:
    """The characters that byte-level BPE writes for bytes 0 to 255."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    table = {byte: chr(byte) for byte in plain}
    table.update({byte: chr(256 + i) for i, byte in enumerate(others)})
    return [table[byte] for byte in range(256)]


@lru_cache(maxsize=1)
def tokenizer() -> Tokenizer:
    """The tokenizer of this world's models."""
    return Tokenizer(tokenizer_spec())


def tokenizer_spec() -> dict[str, Any]:
    """Byte-level BPE: ids 0 to 255 are the bytes, then a few merges, then control tokens."""
    pieces = byte_alphabet() + [merge.replace(" ", "") for merge in MERGES]
    special = [
        {
            "id": EOS + i,
            "content": text,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for i, text in enumerate(SPECIAL)
    ]
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": MERGES,
        },
    }


@dataclass(frozen=True)
class Bigrams:
    """first, second: the two tokens that the head prefers after each token."""

    first: tuple[int, ...]
    second: tuple[int, ...]


@lru_cache(maxsize=1)
def bigrams() -> Bigrams:
    """Cycles of printable tokens, with a way out to any other token now and then."""
    draw = random.Random(7)
    printable = [i for i in range(VOCAB) if 97 <= i <= 122 or i in (32, 49, 50) or 256 <= i < EOS]
    groups: list[list[int]] = []
    draw.shuffle(printable)
    for start in range(0, len(printable), 5):
        groups.append(printable[start : start + 5])
    others = [i for i in range(VOCAB) if i not in printable]
    draw.shuffle(others)
    # bytes of whole characters, so that UTF-8 is split over tokens: e-acute, euro, a smile
    groups += [[0xC3, 0xA9, 0xE2, 0x82, 0xAC], [0xF0, 0x9F, 0x98, 0x80]]
    first = list(range(VOCAB))
    for group in groups:
        for i, token in enumerate(group):
            first[token] = group[(i + 1) % len(group)]
    second = list(range(VOCAB))
    for token in range(VOCAB):
        if first[token] == token:
            first[token] = draw.choice(printable)
        second[token] = draw.choice(printable if draw.random() < 0.8 else others)
    for token in draw.sample(printable, 8):
        second[token] = EOS
    for token in draw.sample([t for t in printable if second[t] != EOS], 4):
        second[token] = STOP_ID
    return Bigrams(tuple(first), tuple(second))


def write_model(directory: Path, *, seed: int, mixing: float, num_layers: int = 2) -> Path:
    """Save a checkpoint. mixing: how strongly the layers change what the bigrams say."""
    generator = torch.Generator().manual_seed(seed)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": EOS,
        "bos_token_id": None,
    }

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    embedding, head = _of_bigrams(HIDDEN, noise)
    tensors = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": 1.1 * head,
    }
    scale = mixing * HIDDEN**-0.5
    for layer in range(num_layers):
        name = f"model.layers.{layer}"
        tensors |= {
            f"{name}.input_layernorm.weight": 1 + 0.1 * noise(HIDDEN),
            f"{name}.post_attention_layernorm.weight": 1 + 0.1 * noise(HIDDEN),
            f"{name}.self_attn.q_proj.weight": noise(64, HIDDEN) * 0.3,
            f"{name}.self_attn.k_proj.weight": noise(32, HIDDEN) * 0.3,
            f"{name}.self_attn.v_proj.weight": noise(32, HIDDEN) * 0.15,
            f"{name}.self_attn.o_proj.weight": noise(HIDDEN, 64) * scale * 0.5,
            f"{name}.self_attn.q_norm.weight": 1 + 0.1 * noise(16),
            f"{name}.self_attn.k_norm.weight": 1 + 0.1 * noise(16),
            f"{name}.mlp.gate_proj.weight": noise(64, HIDDEN) * 0.15,
            f"{name}.mlp.up_proj.weight": noise(64, HIDDEN) * 0.15,
            f"{name}.mlp.down_proj.weight": noise(HIDDEN, 64) * scale * 0.3,
        }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({k: v.contiguous() for k, v in tensors.items()}, directory / "model.safetensors")
    return directory


def _of_bigrams(
    hidden_size: int, noise: Callable[..., torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """An embedding, and an output layer that prefers each token's two successors."""
    shared = torch.Generator().manual_seed(0)  # every model speaks of the same bigrams
    embedding = torch.randn(VOCAB, hidden_size, generator=shared)
    embedding /= embedding.norm(dim=1, keepdim=True)
    head = 0.02 * noise(VOCAB, hidden_size)
    pairs = bigrams()
    for token in range(VOCAB):
        head[pairs.first[token]] += embedding[token]
        head[pairs.second[token]] += 0.8 * embedding[token]
    head[EOS] += 0.05 * noise(hidden_size)
    return embedding, head


def write_layers(directory: Path, name: str) -> Path:
    """Save the tiny model of `LAYERS` with the bigrams of this world."""
    tiny_name, mixing = LAYERS[name]
    sizes = {"vocab_size": VOCAB, "intermediate_size": 96, "max_position_embeddings": 512}
    if name in ("latent", "compressed"):
        sizes["q_lora_rank"] = 32  # a device's exact products take multiples of 16 features
    model = make_model(tiny_name, eos_token_id=EOS, bos_token_id=None, **sizes)
    generator = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    with torch.no_grad():
        hidden_size = model.config.hidden_size
        embedding, head = _of_bigrams(hidden_size, noise)
        model.get_input_embeddings().weight.copy_(embedding)
        model.get_output_embeddings().weight.copy_(1.1 * head)
        model.model.norm.weight.fill_(0.0 if MODELS[tiny_name][0] in FROM_ZERO else 1.0)
        for key, parameter in model.named_parameters():
            if any(
                name in key for name in ("o_proj", "out_proj", "o_b_proj")
            ):  # what is added to the stream
                parameter.mul_(0.15)
            elif "down_proj" in key:
                parameter.mul_(mixing)
    return save_model(model, directory)


@dataclass(frozen=True)
class Weights:
    """Two loaded models of one type, and the row rule that makes their rows exact."""

    target: Decoder
    other: Decoder
    order: RowOrderReport
    dtype: torch.dtype


@lru_cache(maxsize=4)
def weights(dtype: torch.dtype, layers: str = "dense") -> Weights:
    """The target, and another model for drafting. layers: of the target, "dense" or one of `LAYERS`."""
    # Tests that write to the weights share them with tests that ask for them in inference mode.
    with torch.inference_mode(False), tempfile.TemporaryDirectory() as scratch:
        if layers == "dense":
            target = write_model(Path(scratch) / "target", seed=1, mixing=0.3)
        else:
            target = write_layers(Path(scratch) / "target", layers)
        other = write_model(Path(scratch) / "other", seed=2, mixing=0.1, num_layers=1)
        cpu = torch.device("cpu")
        from eyas.models import read_spec

        spec = read_spec(target)
        shapes = list(spec.linear_shapes)
        order = find_row_order(shapes, dtype, MAX_BATCH, heads=spec.head_shapes)
        models = [
            load_model(d, dtype=dtype, device=cpu, order=order.order) for d in (target, other)
        ]
    return Weights(models[0], models[1], order, dtype)


def dtypes() -> list[torch.dtype]:
    return [torch.float32, torch.bfloat16] if cpu_has_bfloat16() else [torch.float32]


def new_store(
    stores: Sequence[Store],
    num_slots: int,
    dtype: torch.dtype,
    layers: str,
    num_window_slots: int | None = None,
) -> KVStore:
    """A store for a network of these layers."""
    cpu = torch.device("cpu")
    if layers != IN_BYTES:
        return KVStore(
            stores, num_slots, dtype=dtype, device=cpu, num_window_slots=num_window_slots
        )
    scales = [KVScales(0.03, 0.6)] * len(stores)
    fp8 = torch.float8_e4m3fn
    return KVStore(stores, num_slots, dtype=dtype, device=cpu, stored_dtype=fp8, scales=scales)


def new_runner(
    dtype: torch.dtype,
    num_slots: int,
    layers: str = "dense",
    num_window_slots: int | None = None,
) -> ModelRunner:
    model = weights(dtype, layers).target
    kv = new_store(model.spec.stores, num_slots, dtype, layers, num_window_slots)
    return ModelRunner(model, ReferenceAttention(kv))


def model_drafter(
    dtype: torch.dtype, num_slots: int, num_tokens: int, which: str, *, topk: int = 1
) -> TreeDrafter:
    """A draft model that grows chains, or trees where topk is above 1."""
    loaded = weights(dtype)
    model = loaded.target if which == "target" else loaded.other
    shape = (
        TreeShape(num_tokens, topk, num_tokens + 1)
        if topk == 1
        else TreeShape(4, topk, num_tokens + 1)
    )
    shape = shape.within(shape.nodes)
    scratch = MAX_SEATS * num_scratch(shape)
    kv = KVStore(model.spec.stores, num_slots + scratch, dtype=dtype, device=torch.device("cpu"))
    network = ModelNetwork(model, ReferenceAttention(kv))
    return TreeDrafter(
        network, shape, first_scratch=num_slots + 1, max_rows=MAX_BATCH, trust=network.beta
    )


@dataclass(frozen=True)
class Setting:
    """How an engine is run; none of it may show in its output."""

    dtype: torch.dtype = torch.float32
    num_slots: int = 2048
    max_model_len: int = 256
    max_num_seqs: int = 16
    max_batch_tokens: int = MAX_BATCH
    flights: int = 0
    prefix_cache: bool = True
    layers: str = "dense"
    recycles: bool = True


def _num_window_slots(setting: Setting) -> int | None:
    """As few slots of layers with a window as a long sequence needs beside two steps of rows."""
    if setting.layers != IN_WINDOWS or not setting.recycles:
        return None
    spec = weights(setting.dtype, setting.layers).target.spec
    window = max(window or 0 for window in spec.windows)
    return min(setting.num_slots, window - 1 + 2 * setting.max_batch_tokens)


def new_engine(
    setting: Setting,
    drafter: Drafter | None = None,
    *,
    grammars: object | None = None,
    with_text: bool = True,
    verify: Verify = verify,
) -> Engine:
    """An engine of its own, ready to step, with toy grammars."""
    from tests.laws.automata import InstantPool

    drafter = drafter if drafter is not None else RootDrafter()
    assert setting.max_model_len <= setting.num_slots - 2 * drafter.width, (
        "no room for one sequence"
    )
    runner = new_runner(
        setting.dtype, setting.num_slots, setting.layers, _num_window_slots(setting)
    )
    config = EngineConfig(
        cache=CacheConfig(num_slots=setting.num_slots, prefix_cache=setting.prefix_cache),
        scheduler=SchedulerConfig(
            max_num_seqs=setting.max_num_seqs,
            max_batch_tokens=setting.max_batch_tokens,
            flights=setting.flights,
        ),
    )
    info = EngineInfo(
        model="tiny",
        architecture="Qwen3ForCausalLM",
        num_parameters=1,
        device="cpu",
        dtype=str(setting.dtype),
        max_model_len=setting.max_model_len,
        num_slots=setting.num_slots,
        vocab_size=VOCAB,
        drafter="test",
        eos_token_ids=(EOS,),
        exact=True,
        exact_reason="",
        num_flights=setting.flights,
    )
    text = tokenizer() if with_text else None
    grammars = grammars or InstantPool()
    limits = config.scheduler.limits(on_gpu=False)
    return connect(config, limits, runner, drafter, info, text, grammars, verify)  # type: ignore[arg-type]


@dataclass
class Answer:
    """Everything one choice showed. `==` compares all that a user can see, floats bit for bit."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    seed: int | None = None
    usage: Usage | None = field(default=None, compare=False)
    num_deltas: int = field(default=0, compare=False)

    def absorb(self, delta: Delta) -> None:
        assert self.finish_reason is None, "a delta came after the last one"
        self.num_deltas += 1
        self.token_ids += delta.token_ids
        self.text += delta.text
        self.logprobs += delta.logprobs or []
        if delta.prompt_logprobs is not None:
            assert self.prompt_logprobs is None, "prompt log-probabilities came twice"
            self.prompt_logprobs = delta.prompt_logprobs
        self.finish_reason = delta.finish_reason
        if delta.finish_reason is not None:
            self.stop_reason, self.error = delta.stop_reason, delta.error
            self.seed, self.usage = delta.seed, delta.usage


Answers = dict[tuple[str, int], Answer]


class Stuck(AssertionError):
    """The engine has work and does nothing."""


def run(
    engine: Engine,
    requests: Sequence[Request],
    *,
    arrivals: Mapping[int, Iterable[Request]] | None = None,
    on_step: Callable[[int], None] | None = None,
    check: bool = True,
    max_steps: int = 4000,
) -> Answers:
    """Add `requests`, step until nothing is left; the answers by (request id, choice).

    arrivals: more requests by the step before which they come. on_step: called before each step.
    """
    answers: Answers = {}

    def add(request: Request) -> None:
        engine.add(request)
        for index in range(request.params.n):
            answers[request.id, index] = Answer()

    for request in requests:
        add(request)
    late = {step: list(more) for step, more in (arrivals or {}).items()}
    step, idle, num_steps = 0, 0, engine.metrics.num_steps
    while engine.has_work() or late:
        for request in late.pop(step, ()):
            add(request)
        if on_step is not None:
            on_step(step)
        deltas = engine.step()
        for delta in deltas:
            answers[delta.request_id, delta.index].absorb(delta)
        moved = deltas or engine.metrics.num_steps != num_steps or not engine.has_work()
        num_steps, step = engine.metrics.num_steps, step + 1
        idle = 0 if moved else idle + 1
        if idle > 5:
            raise Stuck(f"nothing moves: {engine.stats()}")
        assert step < max_steps, "the engine does not come to an end"
        if check:
            engine.check()
    for key, answer in answers.items():
        assert answer.finish_reason is not None, f"{key} was never told how it ended"
    assert_clean(engine)
    return answers


def assert_clean(engine: Engine) -> None:
    """Nothing is held once everything has ended: free + cached = all."""
    engine.check()
    stats = engine.cache.stats()
    assert stats.num_held == 0, stats
    assert stats.num_free + stats.num_cached == stats.num_slots
    assert engine.table.num_free_seats == engine.table.num_seats
    assert not engine.scheduler.running and not engine.scheduler.waiting
