"""Read an EAGLE head's configuration and tensor names into a `HeadSpec`, in any of three file formats.

Promises: heads of SafeAILab, SpecForge (SGLang) and speculators become the same facts; a flag comes
from the configuration or, where it is absent, from the tensors that exist; a head that the network
cannot run, or that does not fit its target, is a ValueError with the reason.
Does not know: weights, devices; MTP layers (`mtp` does).

Fields that formats use with different meanings:
- layer ids: speculators (and `eagle_aux_hidden_state_layer_ids` outside `eagle_config`) count the
  layers applied; ids inside `eagle_config` are the index of the layer whose output is read, which is
  one less.
- `norm_output`: the state passed to the next level is the normalised one. (One trainer of the
  SpecForge format writes it for "there is a norm before the logits", which every EAGLE-3 head has.)
- rope: the head's own base, 10000 where its file has none; never the target's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from eyas.models.checkpoint import Checkpoint
from eyas.models.config_file import ConfigFile
from eyas.models.heads.hyper import parameter_shapes
from eyas.models.heads.names import UNUSED, file_name, stored_names
from eyas.models.heads.spec import HeadKind, HeadSpec, default_taps
from eyas.models.heads.vocabulary import read_draft_ids
from eyas.models.rope_fields import max_position, read_rope
from eyas.models.spec import ModelSpec
from eyas.models.weights import check_tensor, listed

REFUSED_KINDS = {
    "peagle": "P-EAGLE (parallel drafting)",
    "dflash": "DFlash (block diffusion)",
    "dflash2": "DFlash 2 (block diffusion)",
    "dspark": "DSpark",
    "eagle": "the speculators layout of EAGLE-1; EAGLE's own layout is read",
    "mtp": "an MTP layer outside its model's checkpoint",
}
REFUSED_TENSORS = (
    (re.compile(r"^mask_hidden$"), "P-EAGLE (parallel drafting)"),
    (re.compile(r"\.mlp\.(experts|gate\.weight|shared_expert)"), "a mixture-of-experts layer"),
    (re.compile(r"\.kv_a_proj_with_mqa\."), "multi-head latent attention"),
    (
        re.compile(r"weight_scale|\.qweight$|\.weight_packed$"),
        "a quantised layer that config.json's quantization_config does not describe",
    ),
)
LAYER_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    "qwen3": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 32768,
    },
}
"""transformers' defaults of fields that a speculators file omits, by model type of the layers."""


def read_eagle(directory: Path, target: ModelSpec) -> HeadSpec:
    """Read the EAGLE head in `directory`, and check it against its target and its tensors' shapes.

    ValueError: the head is not supported, incomplete, or does not fit; the text says why.
    """
    outer = ConfigFile.of_model(directory)
    config = _flat(outer)
    checkpoint = Checkpoint.open(directory, opens_pickles=True)
    stored = stored_names(checkpoint.tensors, directory)
    _refuse_unsupported(outer, config, stored)
    spec = _spec(config, outer, checkpoint, stored, target)
    shapes = parameter_shapes(spec)
    check_parameters(spec, checkpoint, parameter_files(shapes, stored), shapes)
    unknown = set(stored) - {file_name(name) for name in shapes}
    unknown = {name for name in unknown if not UNUSED.search(name)}
    if spec.kind == "eagle":
        unknown.discard("lm_head.weight")  # the target's, by definition
    if unknown:
        raise ValueError(
            f"{directory} holds {listed([stored[name] for name in unknown])}, which a head of its "
            f"config.json ({spec.kind}, layers: {spec.num_layers}) does not have; it was made for "
            "another architecture, or under a flag that config.json lacks"
        )
    # called for its checks; `load_head` uses the ids
    read_draft_ids(spec, checkpoint, stored.get("d2t"), stored.get("t2d"))
    return spec


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """The facts of an EAGLE head that its files give without its target. Sizes as in `HeadSpec`."""

    kind: HeadKind
    num_parameters: int
    num_layers: int
    hidden_size: int
    target_hidden_size: int
    vocab_size: int
    draft_vocab_size: int


def read_facts(directory: Path) -> HeadFacts:
    """Read the facts of the EAGLE head in `directory`. ValueError: it is unsupported or unreadable."""
    outer = ConfigFile.of_model(directory)
    config = _flat(outer)
    checkpoint = Checkpoint.open(directory, opens_pickles=True)
    stored = stored_names(checkpoint.tensors, directory)
    _refuse_unsupported(outer, config, stored)
    own = [checkpoint.tensors[stored[name]] for name in stored if not UNUSED.search(name)]
    hidden_size, vocab_size = config.count("hidden_size"), config.count("vocab_size")
    return HeadFacts(
        kind="eagle3" if _is_eagle3(stored) else "eagle",
        num_parameters=sum(math.prod(tensor.shape) for tensor in own),
        num_layers=config.count("num_hidden_layers", _num_layers(stored)),
        hidden_size=hidden_size,
        target_hidden_size=config.count("target_hidden_size", hidden_size),
        vocab_size=vocab_size,
        draft_vocab_size=config.count("draft_vocab_size", vocab_size),
    )


def parameter_files(parameters: Iterable[str], stored: Mapping[str, str]) -> dict[str, str]:
    """Return the tensor name of each parameter of an EAGLE head, whether the file has it or not."""
    return {
        parameter: stored.get(file_name(parameter), file_name(parameter))
        for parameter in parameters
    }


def check_parameters(
    spec: HeadSpec,
    checkpoint: Checkpoint,
    files: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Refuse a checkpoint that lacks a parameter of `files`, or holds one of another shape.

    shapes: of the parameters as stored.
    """
    if missing := [name for name in files.values() if name not in checkpoint.tensors]:
        raise ValueError(
            f"{checkpoint.directory} lacks {listed(missing)}; the head is incomplete or its "
            "config.json describes another: download both again"
        )
    for parameter, shape in shapes.items():
        tensor = checkpoint.tensors[files[parameter]]
        if parameter == "fc.weight" and tensor.shape[1:] != shape[1:]:
            states = len(spec.taps) if spec.fuses_states else 2
            raise ValueError(
                f"{tensor.file}: tensor {tensor.name!r} takes {tensor.shape[-1]} numbers of a token, "
                f"this model gives {shape[1]} ({states} states of {spec.target_hidden_size}); the head "
                "was made for another model: take one made for this"
            )
        check_tensor(tensor, shape)


def _flat(outer: ConfigFile) -> ConfigFile:
    """Return the configuration with all fields on one level, as SafeAILab and SpecForge write them."""
    if "speculators_model_type" not in outer.values:
        return outer
    layer = outer.nested("transformer_layer_config").values
    family = layer.get("model_type", "qwen3")
    if family not in LAYER_DEFAULTS:
        raise outer.error(
            "transformer_layer_config",
            f"layers of type {family!r} are not supported ({', '.join(LAYER_DEFAULTS)} are)",
        )
    values = {**outer.values, **LAYER_DEFAULTS[family], "model_type": family, **layer}
    return ConfigFile(outer.path, values)


def _refuse_unsupported(outer: ConfigFile, config: ConfigFile, stored: Mapping[str, str]) -> None:
    kind = outer.values.get("speculators_model_type")
    if kind is not None and kind != "eagle3":
        name = REFUSED_KINDS.get(str(kind), f"{kind!r}")
        raise outer.error("speculators_model_type", f"{name} is not supported (eagle3 is)")
    architecture = str((outer.values.get("architectures") or [""])[0])
    for name in ("DFlash", "DSpark", "PEagle", "Medusa", "Hydra", "Domino"):
        if name.lower() in architecture.lower():
            raise outer.error("architectures", f"{architecture} is not supported (EAGLE heads are)")
    for pattern, name in REFUSED_TENSORS:
        if matches := [stored[key] for key in stored if pattern.search(key)]:
            raise ValueError(
                f"{outer.path.parent} holds {listed(matches)}: {name} is not supported in a "
                "draft head"
            )
    if further := [stored[n] for n in stored if re.match(r"layers\.[1-9]\d*\.hidden_norm\.", n)]:
        raise ValueError(
            f"{outer.path.parent} holds {listed(further)}: further layers that normalise by "
            "hidden_norm (SGLang's rule) are not supported; input_layernorm (vLLM's) is"
        )
    config.require_silu()
    inner = config.nested("eagle_config")
    inner.require("use_aux_hidden_state", True, True, "only heads that read several layers are")
    inner.require("use_mtp_layernorm", False, False, "false is")
    if inner.values.get("layer_ids") is not None:
        raise config.error("eagle_config", "layer_ids is not supported (other names of ids are)")


def _spec(
    config: ConfigFile,
    outer: ConfigFile,
    checkpoint: Checkpoint,
    stored: Mapping[str, str],
    target: ModelSpec,
) -> HeadSpec:
    is_eagle3 = _is_eagle3(stored)
    names_eagle3 = "speculators_model_type" in outer.values or any(
        "eagle3" in str(name).lower() for name in outer.values.get("architectures") or ()
    )
    hidden_size = config.count("hidden_size")
    fc = checkpoint.tensors.get(stored.get("fc.weight", ""))
    reads_several = fc is not None and fc.shape[1:] > (2 * hidden_size,)
    if (names_eagle3 or reads_several) and not is_eagle3:
        raise ValueError(
            f"{config.path.parent} lacks tensor 'hidden_norm.weight' of an EAGLE-3 head; the head is "
            "incomplete: download it again"
        )
    target_hidden_size = config.count("target_hidden_size", hidden_size)
    vocab_size = config.count("vocab_size")
    _check_fit(config, hidden_size, target_hidden_size, vocab_size, stored, target, is_eagle3)
    num_query_heads = config.count("num_attention_heads")
    num_kv_heads = config.count("num_key_value_heads", num_query_heads)
    if num_query_heads % num_kv_heads:
        raise config.error("num_key_value_heads", f"must divide {num_query_heads} attention heads")
    num_layers = config.count("num_hidden_layers", _num_layers(stored))
    head_dim = config.count("head_dim", max(1, hidden_size // num_query_heads))
    rope = read_rope(config, head_dim)
    draft_vocab_size = config.count("draft_vocab_size", vocab_size)
    config = ConfigFile(config.path, {"max_position_embeddings": 2048, **config.values})
    taps = (target.num_layers + 1,)
    if is_eagle3:
        taps = _taps(outer, _num_states(config, checkpoint, stored, target_hidden_size), target)
    norms = _norms(config, stored) if is_eagle3 else _Norms()
    return HeadSpec(
        kind="eagle3" if is_eagle3 else "eagle",
        hidden_size=hidden_size,
        target_hidden_size=target_hidden_size,
        num_target_layers=target.num_layers,
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size,
        num_layers=num_layers,
        num_query_heads=num_query_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.count("intermediate_size"),
        norm_epsilon=config.epsilon(),
        rope=rope,
        max_position=max_position(config, rope),
        taps=taps,
        windows=_windows(config, num_layers),
        own_embedding="embed_tokens.weight" in stored,
        own_head=is_eagle3 and "lm_head.weight" in stored,
        qkv_bias=_qkv_bias(config, stored),
        output_bias="layers.0.self_attn.o_proj.bias" in stored,
        mlp_bias=config.flag("mlp_bias", "layers.0.mlp.down_proj.bias" in stored),
        qk_norm=_qk_norm(config, outer, stored),
        fc_bias=config.flag("bias", "fc.bias" in stored),
        entry_norms=is_eagle3,
        final_norm=is_eagle3,
        calibration=_calibration(outer),
        fc_norm=norms.fc_norm,
        input_norm=norms.input_norm,
        norm_before_residual=norms.norm_before_residual,
        norm_output=norms.norm_output,
    )


def _is_eagle3(stored: Mapping[str, str]) -> bool:
    return "layers.0.hidden_norm.weight" in stored


def _check_fit(
    config: ConfigFile,
    hidden_size: int,
    target_hidden_size: int,
    vocab_size: int,
    stored: Mapping[str, str],
    target: ModelSpec,
    is_eagle3: bool,
) -> None:
    directory = config.path.parent
    if target.hyper is not None:
        raise ValueError(
            f"{directory} cannot draft for {target.architecture}: which of its "
            f"{target.hyper.num_streams} residual streams a head reads is not known; draft by n-grams"
        )
    if target_hidden_size != target.hidden_size:
        raise ValueError(
            f"{directory} reads hidden states of size {target_hidden_size}, the model's have "
            f"{target.hidden_size}; it is a head of another model"
        )
    if vocab_size != target.vocab_size:
        raise ValueError(
            f"{directory} was made for a vocabulary of {vocab_size} tokens, the model has "
            f"{target.vocab_size}; it is a head of another model"
        )
    if not is_eagle3 and hidden_size != target_hidden_size:
        raise config.error("target_hidden_size", "must be hidden_size in an EAGLE-1 head")
    if hidden_size != target_hidden_size:
        needed = ("embed_tokens.weight", "lm_head.weight")
        if missing := [name for name in needed if name not in stored]:
            raise ValueError(
                f"{directory} lacks {listed(missing)}, and the model's has another hidden size "
                f"({target_hidden_size}, the head's is {hidden_size}); the head is incomplete"
            )
    if config.flag("tie_word_embeddings") and is_eagle3 and "lm_head.weight" not in stored:
        raise config.error("tie_word_embeddings", "true is not supported in a head without lm_head")


def _num_layers(stored: Mapping[str, str]) -> int:
    layers = [int(match[1]) for name in stored if (match := re.match(r"layers\.(\d+)\.", name))]
    return max(layers, default=0) + 1


def _num_states(
    config: ConfigFile, checkpoint: Checkpoint, stored: Mapping[str, str], target_hidden_size: int
) -> int:
    fc = checkpoint.tensors.get(stored.get("fc.weight", ""))
    width = fc.shape[1] if fc is not None and len(fc.shape) == 2 else 3 * target_hidden_size
    return config.count("num_aux_hidden_states", max(1, width // target_hidden_size))


def _taps(outer: ConfigFile, num_states: int, target: ModelSpec) -> tuple[int, ...]:
    """Return, for each state that the head reads, the number of layers applied before it."""
    field, offset = "eagle_aux_hidden_state_layer_ids", 0
    ids = outer.values.get(field)
    if "speculators_model_type" not in outer.values:
        inner = outer.nested("eagle_config").values.get(field)
        if inner is not None:
            ids, offset = inner, 1
    if not ids:
        ids, offset = default_taps(target.num_layers), 0
        if num_states != len(ids):
            raise outer.error(field, f"is missing; the head reads {num_states} layers, which ones?")
    if not isinstance(ids, (list, tuple)) or not all(type(layer) is int for layer in ids):
        raise outer.error(field, f"must be a list of layer numbers, not {ids!r}")
    if len(ids) != num_states:
        raise outer.error(field, f"names {len(ids)} layers, but fc takes {num_states} states")
    taps = tuple(layer + offset for layer in ids)
    if not all(0 <= tap <= target.num_layers for tap in taps):
        raise outer.error(
            field,
            f"the head reads the states after {', '.join(map(str, taps))} layers, but the model has "
            f"{target.num_layers}; it is a head of another model",
        )
    return taps


class _Norms(NamedTuple):
    """Fields of `HeadSpec`."""

    fc_norm: bool = False
    input_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False


def _norms(config: ConfigFile, stored: Mapping[str, str]) -> _Norms:
    inner = config.nested("eagle_config")
    has_fc_norm = "fc_norm.0.weight" in stored
    fc_norm = config.flag("fc_norm", config.flag("use_aux_norm", has_fc_norm))
    has_input_norm = "input_norm.weight" in stored
    input_norm = inner.flag("norm_before_fc", config.flag("norm_before_fc", has_input_norm))
    if fc_norm and input_norm:
        raise config.error("fc_norm", "and norm_before_fc exclude each other")
    return _Norms(
        fc_norm, input_norm, config.flag("norm_before_residual"), config.flag("norm_output")
    )


def _qkv_bias(config: ConfigFile, stored: Mapping[str, str]) -> bool:
    has_bias = "layers.0.self_attn.q_proj.bias" in stored
    return config.flag("attention_bias", config.flag("qkv_bias", has_bias))


def _qk_norm(config: ConfigFile, outer: ConfigFile, stored: Mapping[str, str]) -> bool:
    """Whether query and key heads are normalised.

    Only speculators writes the layer's real model_type; other formats write "llama" for every layer.
    """
    is_named = "speculators_model_type" in outer.values
    is_qwen3 = is_named and config.values.get("model_type") == "qwen3"
    return is_qwen3 or "layers.0.self_attn.q_norm.weight" in stored


def _windows(config: ConfigFile, num_layers: int) -> tuple[int | None, ...]:
    window = config.values.get("sliding_window")
    is_opt_in = str(config.values.get("model_type")) in ("qwen2", "qwen3")
    slides = window is not None and config.flag("use_sliding_window", not is_opt_in)
    if config.values.get("layer_types") is not None:
        return config.layer_windows(num_layers, config.count("sliding_window") if window else None)
    return (config.count("sliding_window") if slides else None,) * num_layers


def _calibration(outer: ConfigFile) -> dict[float, float]:
    """Return temperature -> weight of the noise, as `save_head` writes it."""
    noise = outer.nested("eyas").nested("noise_beta")
    calibration: dict[float, float] = {}
    for key in noise.values:
        try:
            calibration[float(key)] = noise.number(key)
        except ValueError as error:
            raise outer.error(
                "eyas.noise_beta", f"{key!r} is no temperature with a number"
            ) from error
    return calibration
