"""Models of well-known sizes with random weights, to measure speed without files.

Promises: the sizes are data, and so are the formats of weights that stay packed. Each model has an
EAGLE-3 head as in real checkpoints: one layer of the model's width, its own draft vocabulary and output
layer, the model's embedding; DeepSeek-V3, V4 and GLM-4.5 have their MTP layer. Weights are drawn on the
device where they are used, and are the same for a seed, a type and a device; activations keep the scale
of real ones through all layers.
Does not know: engines, what is measured.

Legend: V ids of a draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from eyas.kernels.packed import Layout, PackedWeight
from eyas.layers.compressed_attention import CompressedSizes
from eyas.layers.delta_net import DeltaSizes
from eyas.layers.expert_spec import ExpertSpec
from eyas.layers.hyper_connections import HyperSizes
from eyas.layers.latent_attention import LatentSizes
from eyas.layers.layouts import UNPACKED, Layouts
from eyas.layers.rope import RopeSpec
from eyas.layers.row_order import RowOrder
from eyas.models.decoder import Decoder
from eyas.models.heads.hyper import head_class
from eyas.models.heads.network import DraftHead
from eyas.models.heads.spec import HeadSpec, default_taps
from eyas.models.hyper_decoder import decoder_class
from eyas.models.load import meta_parameters
from eyas.models.packing import packable
from eyas.models.spec import LayerTraits, ModelSpec
from eyas.ops.route import Routing
from eyas.parallel.cut import Cut, Parameter
from eyas.parallel.shard import WHOLE, Shard

QUANTIZATIONS = {
    "fp8": Layout("fp8", 128, 128),
    "fp8-row": Layout("fp8", 1, 0),
    "mxfp4": Layout("mxfp4", 1, 32),
    "w4a16": Layout("int4", 1, 128, "bfloat16"),
}
"""Formats of the weights of layers: FP8 in blocks or with a scale for each row; FP4, of experts alone;
integers of 4 bits in groups of 128."""
HEAD_SHARPNESS = 12.0
"""The standard deviation of a random draft head's logits; a model's is 1. Real heads are rather
certain of their best token, and only then do the best nodes of a tree reach its depth."""


@dataclass(frozen=True, slots=True)
class NamedShape:
    """The facts of a model and of its draft head."""

    name: str
    model: ModelSpec
    head: HeadSpec


def _eagle3(model: ModelSpec, draft_vocab_size: int) -> HeadSpec:
    head_dim = model.head_dim if model.latent is None else model.latent.plain_dim
    return HeadSpec(
        kind="eagle3",
        hidden_size=model.hidden_size,
        target_hidden_size=model.hidden_size,
        num_target_layers=model.num_layers,
        vocab_size=model.vocab_size,
        draft_vocab_size=draft_vocab_size,
        num_layers=1,
        num_query_heads=model.num_query_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=head_dim,
        intermediate_size=model.intermediate_size,
        norm_epsilon=1e-5,
        rope=RopeSpec("default", 10000.0, head_dim),
        max_position=2048,
        taps=default_taps(model.num_layers),
        windows=(None,),
        own_embedding=False,
        own_head=True,
        entry_norms=True,
        final_norm=True,
    )


def _mtp(model: ModelSpec) -> HeadSpec:
    """An MTP layer of the kind of the model's last layer, with an output layer of its own."""
    return HeadSpec(
        kind="mtp",
        hidden_size=model.hidden_size,
        target_hidden_size=model.hidden_size,
        num_target_layers=model.num_layers,
        vocab_size=model.vocab_size,
        draft_vocab_size=model.vocab_size,
        num_layers=1,
        num_query_heads=model.num_query_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        intermediate_size=model.intermediate_size,
        norm_epsilon=model.norm_epsilon,
        rope=model.rope,
        max_position=model.max_position,
        taps=(model.num_layers + 1,),
        windows=(None,),
        own_embedding=False,
        own_head=True,
        entry_norms=True,
        first_attention_norm=True,
        final_norm=True,
        norm_output=True,
        zero_first_embedding=True,
        latent=model.latent,
        attention_scale=model.attention_scale,
        experts=model.experts,
    )


def _streams_mtp(model: ModelSpec) -> HeadSpec:
    """An MTP layer with the model's residual streams, and a window in the place of entries."""
    assert model.window_rope is not None and model.compressed
    return replace(
        _mtp(model),
        rope=model.window_rope,
        taps=(model.num_layers,),
        norm_output=False,
        zero_first_embedding=False,
        traits=model.traits,
        compressed=model.compressed[0].without_entries,
        hyper=model.hyper,
    )


_LLAMA = ModelSpec(
    architecture="LlamaForCausalLM",
    vocab_size=128256,
    hidden_size=4096,
    num_layers=32,
    num_query_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    norm_epsilon=1e-5,
    rope=RopeSpec("llama3", 500000.0, 128, factor=8.0, original_max_position=8192),
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    tie_embeddings=False,
    windows=(None,) * 32,
    max_position=131072,
    eos_token_ids=(),
)
_QWEN = ModelSpec(
    architecture="Qwen3ForCausalLM",
    vocab_size=151936,
    hidden_size=4096,
    num_layers=36,
    num_query_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=12288,
    norm_epsilon=1e-6,
    rope=RopeSpec("default", 1000000.0, 128),
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=True,
    tie_embeddings=False,
    windows=(None,) * 36,
    max_position=40960,
    eos_token_ids=(),
)
_QWEN_MOE = replace(
    _QWEN,
    architecture="Qwen3MoeForCausalLM",
    hidden_size=2048,
    num_layers=48,
    num_kv_heads=4,
    intermediate_size=6144,
    windows=(None,) * 48,
    experts=ExpertSpec(128, 768, Routing(8)),
    expert_layers=frozenset(range(48)),
)
_MIXTRAL = replace(
    _LLAMA,
    architecture="MixtralForCausalLM",
    vocab_size=32000,
    rope=RopeSpec("default", 1000000.0, 128),
    max_position=32768,
    experts=ExpertSpec(8, 14336, Routing(2)),
    expert_layers=frozenset(range(32)),
)
_GPT_OSS_EXPERTS = ExpertSpec(
    32, 2880, Routing(4), router_bias=True, bias=True, is_alternating=True
)
_GPT_OSS = replace(
    _LLAMA,
    architecture="GptOssForCausalLM",
    vocab_size=201088,
    hidden_size=2880,
    num_layers=24,
    num_query_heads=64,
    head_dim=64,
    intermediate_size=2880,
    rope=RopeSpec(
        "yarn", 150000.0, 64, 32.0, 4096, truncate=False, attention_factor=1.3465735902799727
    ),
    qkv_bias=True,
    output_bias=True,
    windows=(128, None) * 12,
    experts=_GPT_OSS_EXPERTS,
    expert_layers=frozenset(range(24)),
    traits=LayerTraits(activation="clamped_swiglu", has_sinks=True),
)
_GPT_OSS_120B = replace(
    _GPT_OSS,
    num_layers=36,
    windows=(128, None) * 18,
    experts=replace(_GPT_OSS_EXPERTS, num_experts=128),
    expert_layers=frozenset(range(36)),
)
_GLM_AIR = replace(
    _LLAMA,
    architecture="Glm4MoeForCausalLM",
    vocab_size=151552,
    num_layers=46,
    num_query_heads=96,
    intermediate_size=10944,
    rope=RopeSpec("default", 1000000.0, 128, rotary_dim=64),
    qkv_bias=True,
    windows=(None,) * 46,
    experts=ExpertSpec(128, 1408, Routing(8, "sigmoid"), has_correction=True, shared_size=1408),
    expert_layers=frozenset(range(1, 46)),
)
_V2_LITE_LATENT = LatentSizes(None, 512, 128, 64, 128)
_V2_LITE = ModelSpec(
    architecture="DeepseekV2ForCausalLM",
    vocab_size=102400,
    hidden_size=2048,
    num_layers=27,
    num_query_heads=16,
    num_kv_heads=1,
    head_dim=_V2_LITE_LATENT.row_dim,
    intermediate_size=10944,
    norm_epsilon=1e-6,
    rope=RopeSpec("yarn", 10000.0, 64, 40.0, 4096, is_interleaved=True, logit_factor=1.5896),
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    tie_embeddings=False,
    windows=(None,) * 27,
    max_position=163840,
    eos_token_ids=(100001,),
    attention_scale=192**-0.5 * 1.5896,
    latent=_V2_LITE_LATENT,
    experts=ExpertSpec(64, 1408, Routing(6, normalizes=False), shared_size=2 * 1408),
    expert_layers=frozenset(range(1, 27)),
)
_V3_ROUTING = Routing(
    8, "sigmoid", scale=2.5, num_groups=8, num_chosen_groups=4, group_size_scored=2
)
_V3_LATENT = LatentSizes(1536, 512, 128, 64, 128)


def _v3(num_layers: int) -> ModelSpec:
    """DeepSeek-V3 with so many of its 61 layers, the first three of which have no experts."""
    return replace(
        _V2_LITE,
        architecture="DeepseekV3ForCausalLM",
        vocab_size=129280,
        hidden_size=7168,
        num_layers=num_layers,
        num_query_heads=128,
        intermediate_size=18432,
        rope=replace(_V2_LITE.rope, logit_factor=1.8739),
        windows=(None,) * num_layers,
        eos_token_ids=(1,),
        attention_scale=192**-0.5 * 1.8739,
        latent=_V3_LATENT,
        experts=ExpertSpec(256, 2048, _V3_ROUTING, has_correction=True, shared_size=2048),
        expert_layers=frozenset(range(3, num_layers)),
    )


_V3_CUT, _V3_LARGE_CUT = _v3(6), _v3(11)
_V4_WINDOW = CompressedSizes(64, 512, 1024, 128, 8, 1024)
_V4_HEAVY = replace(_V4_WINDOW, rate=128)
_V4_SPARSE = replace(
    _V4_WINDOW, rate=4, overlaps=True, num_index_heads=64, index_dim=128, num_chosen=512
)


def _v4(num_layers: int) -> ModelSpec:
    """DeepSeek-V4-Flash with so many of its 43 layers; in the first three a table names the experts."""
    kinds = [_V4_HEAVY, _V4_HEAVY, *[_V4_SPARSE, _V4_HEAVY] * num_layers]
    return replace(
        _V2_LITE,
        architecture="DeepseekV4ForCausalLM",
        vocab_size=129280,
        hidden_size=4096,
        num_layers=num_layers,
        num_query_heads=64,
        head_dim=512,
        intermediate_size=2048,
        rope=RopeSpec("yarn", 160000.0, 64, 16.0, 65536, is_interleaved=True),
        window_rope=RopeSpec("default", 10000.0, 64, is_interleaved=True),
        windows=(None,) * num_layers,
        max_position=1048576,
        eos_token_ids=(1,),
        attention_scale=None,
        latent=None,
        experts=ExpertSpec(
            256,
            2048,
            Routing(6, "sqrtsoftplus", scale=1.5),
            has_correction=True,
            shared_size=2048,
        ),
        expert_layers=frozenset(range(num_layers)),
        table_layers=frozenset(range(3)),
        compressed=tuple(kinds[:num_layers]),
        hyper=HyperSizes(4, 20, 1e-6),
        traits=LayerTraits(activation="clamped_silu", has_sinks=True),
    )


_V4_CUT, _V4_LARGE_CUT = _v4(4), _v4(16)
_DELTA = DeltaSizes(16, 32, 128, 128, num_taps=4, groups_by_key=True)


_QWEN_NEXT = replace(
    _QWEN,
    architecture="Qwen3NextForCausalLM",
    hidden_size=2048,
    num_layers=48,
    num_query_heads=16,
    num_kv_heads=2,
    head_dim=256,
    intermediate_size=5120,
    rope=RopeSpec("default", 10000000.0, 256, rotary_dim=64),
    windows=(None,) * 48,
    max_position=262144,
    traits=LayerTraits(has_output_gate=True),
    experts=ExpertSpec(512, 512, Routing(10), shared_size=512, has_shared_gate=True),
    expert_layers=frozenset(range(48)),
    state=_DELTA,
    state_layers=frozenset(layer for layer in range(48) if (layer + 1) % 4),
)
_TINY = ModelSpec(
    architecture="LlamaForCausalLM",
    vocab_size=512,
    hidden_size=128,
    num_layers=2,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=64,
    intermediate_size=256,
    norm_epsilon=1e-5,
    rope=RopeSpec("llama3", 500000.0, 64, factor=8.0, original_max_position=1024),
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    tie_embeddings=False,
    windows=(None,) * 2,
    max_position=8192,
    eos_token_ids=(),
)
_TINY_MOE = replace(
    _TINY,
    architecture="MixtralForCausalLM",
    experts=ExpertSpec(16, 256, Routing(4)),
    expert_layers=frozenset(range(2)),
)

_TINY_LATENT_SIZES = LatentSizes(64, 64, 32, 16, 32)
_TINY_LATENT = replace(
    _TINY_MOE,
    architecture="DeepseekV3ForCausalLM",
    num_kv_heads=1,
    head_dim=_TINY_LATENT_SIZES.row_dim,
    rope=RopeSpec("default", 10000.0, 16, is_interleaved=True),
    attention_scale=48**-0.5,
    latent=_TINY_LATENT_SIZES,
)
_TINY_WINDOW = CompressedSizes(4, 64, 64, 32, 2, 64)
_TINY_SPARSE = replace(
    _TINY_WINDOW, rate=4, overlaps=True, num_index_heads=16, index_dim=32, num_chosen=16
)
_TINY_COMPRESSED = replace(
    _v4(4),
    vocab_size=512,
    hidden_size=256,
    num_query_heads=4,
    head_dim=64,
    intermediate_size=256,
    rope=RopeSpec("default", 160000.0, 16, is_interleaved=True),
    window_rope=RopeSpec("default", 10000.0, 16, is_interleaved=True),
    max_position=8192,
    experts=ExpertSpec(
        16, 256, Routing(4, "sqrtsoftplus", scale=1.5), has_correction=True, shared_size=256
    ),
    windows=(32, None, None, None),
    compressed=(_TINY_WINDOW, _TINY_SPARSE, replace(_TINY_WINDOW, rate=16), _TINY_SPARSE),
    hyper=HyperSizes(2, 4, 1e-6),
)

SHAPES = {
    shape.name: shape
    for shape in (
        NamedShape("llama-3.1-8b", _LLAMA, _eagle3(_LLAMA, 32000)),
        NamedShape("qwen3-8b", _QWEN, _eagle3(_QWEN, 32000)),
        NamedShape("qwen3-30b-a3b", _QWEN_MOE, _eagle3(_QWEN_MOE, 32000)),
        NamedShape("mixtral-8x7b", _MIXTRAL, _eagle3(_MIXTRAL, 32000)),
        NamedShape(
            "gpt-oss-20b", _GPT_OSS, replace(_eagle3(_GPT_OSS, 32000), intermediate_size=17280)
        ),
        NamedShape(
            "gpt-oss-120b",
            _GPT_OSS_120B,
            replace(_eagle3(_GPT_OSS_120B, 32000), intermediate_size=17280),
        ),
        NamedShape("glm-4.5-air", _GLM_AIR, _mtp(_GLM_AIR)),
        NamedShape("deepseek-v2-lite", _V2_LITE, _eagle3(_V2_LITE, 32000)),
        NamedShape("deepseek-v3-6-layers", _V3_CUT, _mtp(_V3_CUT)),
        NamedShape("deepseek-v3-11-layers", _V3_LARGE_CUT, _mtp(_V3_LARGE_CUT)),
        NamedShape("deepseek-v4-4-layers", _V4_CUT, _streams_mtp(_V4_CUT)),
        NamedShape("deepseek-v4-16-layers", _V4_LARGE_CUT, _streams_mtp(_V4_LARGE_CUT)),
        NamedShape("qwen3-next-80b-a3b", _QWEN_NEXT, _eagle3(_QWEN_NEXT, 32000)),
        NamedShape("tiny", _TINY, replace(_eagle3(_TINY, 128), taps=(0, 1, 2))),
        NamedShape("tiny-moe", _TINY_MOE, replace(_eagle3(_TINY_MOE, 128), taps=(0, 1, 2))),
        NamedShape("tiny-latent", _TINY_LATENT, _mtp(_TINY_LATENT)),
        NamedShape("tiny-compressed", _TINY_COMPRESSED, _streams_mtp(_TINY_COMPRESSED)),
    )
}


def find_shape(name: str) -> NamedShape:
    """Return the shape with this name. ValueError: it is unknown; the text lists all names."""
    if name not in SHAPES:
        raise ValueError(f"shape: {name!r} is unknown; there are {', '.join(SHAPES)}")
    return SHAPES[name]


def draft_ids(spec: HeadSpec) -> torch.Tensor:
    """Return the target's id of each draft id, int64 [V], spread evenly over the vocabulary."""
    ids_V = torch.arange(spec.draft_vocab_size, dtype=torch.int64)
    return ids_V * spec.vocab_size // spec.draft_vocab_size


def dummy_layouts(
    spec: ModelSpec, quantization: str | None, shard: Shard = WHOLE
) -> dict[str, Layout]:
    """Return the layouts of the weights that are packed, by parameter name.

    quantization: one of QUANTIZATIONS; None packs none. shard: a rank's part of the weights.
    ValueError: it is unknown, or fits no weight.
    """
    if quantization is None:
        return {}
    if quantization not in QUANTIZATIONS:
        known = ", ".join(QUANTIZATIONS)
        raise ValueError(f"quantization: {quantization!r} is unknown; there are {known}")
    wanted, experts_alone = QUANTIZATIONS[quantization], quantization == "mxfp4"

    def choose(parameter: str) -> Layout | None:
        return None if experts_alone and ".experts." not in parameter else wanted

    found = packable(spec, meta_parameters(spec, shard), choose)
    if not found:
        raise ValueError(f"quantization: {quantization} fits no weight of {spec.architecture}")
    return found


def dummy_decoder(
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    max_model_len: int,
    order: RowOrder | None = None,
    layouts: Layouts = UNPACKED,
    shard: Shard = WHOLE,
    seed: int = 0,
) -> Decoder:
    """Return a model of this shape with random weights, or a rank's part of one, ready to run.

    layouts: from `dummy_layouts`.
    """
    with torch.no_grad():
        decoder = decoder_class(spec)(
            spec,
            dtype=dtype,
            device=device,
            max_model_len=max_model_len,
            order=order,
            layouts=layouts,
            shard=shard,
        )
        _fill(decoder.parameters(), decoder.device, seed, spec.experts)
        decoder.seal()
    return decoder


def dummy_head(
    spec: HeadSpec, target: Decoder, *, order: RowOrder | None = None, seed: int = 0
) -> DraftHead:
    """Return a head of this shape with random weights, which shares the embedding of `target`."""
    assert not spec.own_embedding and spec.own_head
    has_map = spec.draft_vocab_size != spec.vocab_size
    with torch.no_grad():
        head = head_class(spec)(
            spec,
            dtype=target.dtype,
            device=target.device,
            max_model_len=target.max_model_len,
            order=order or target.order,
            embedding=target.embedding,
            target_ids_V=draft_ids(spec) if has_map else None,
        )
        parameters = head.parameters()
        _fill(parameters, head.device, seed + 1, spec.experts)
        for block in parameters["head.weight"]:
            assert isinstance(block, torch.Tensor)
            block.mul_(HEAD_SHARPNESS)
        head.seal()
    return head


def _fill(
    parameters: dict[str, list[Parameter]],
    device: torch.device,
    seed: int,
    experts: ExpertSpec | None,
) -> None:
    """Fill norms with 1, biases with 0, and matrices so that a product keeps its input's scale; tables
    of experts with any of them."""
    generator = torch.Generator(device).manual_seed(seed)
    for name, blocks in parameters.items():
        for block in blocks:
            held = block.target if isinstance(block, Cut) else block
            if experts is not None and name.endswith("router.table"):
                assert isinstance(held, torch.Tensor)
                held.random_(0, experts.num_experts, generator=generator)
            elif isinstance(held, PackedWeight) or len(block.shape) == 2:
                held.normal_(0.0, block.shape[1] ** -0.5, generator=generator)
            else:
                held.fill_(0.0 if name.endswith("bias") else 1.0)
