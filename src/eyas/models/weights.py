"""Copy a checkpoint's tensors into parameters, one tensor in memory at a time.

Promises: names and shapes are checked before the first byte is copied; every copied number is
finite.
Does not know: how files store values (`checkpoint` does), families (callers pass their map of names),
layers.

A tensor that fills no parameter is an error, because it belongs to another architecture than the
one that config.json names. Exceptions: the buffers in `HARMLESS`, which old exporters write; tensors
without numbers, which transformers writes for a shared expert that is not there; a tied logits head;
biases of zeros beside quantised weights, which exporters write for layers without a bias; and MTP
layers, which `heads.mtp` reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch

from eyas.kernels.packed import MOST_EXPONENT, PackedWeight, Weight, bytes_of
from eyas.models.checkpoint import Checkpoint, Kept, Region
from eyas.models.formats import StoredTensor
from eyas.ops.dequantise import dequantised, exponents
from eyas.parallel.cut import Cut, Parameter, whole, whole_shape

Progress = Callable[[str, int, int], None]
"""Called with (tensor name, bytes copied, bytes in all) after each tensor."""

HARMLESS = re.compile(
    r"(^|\.)(rotary_emb\.((original_)?inv_freq|(cos|sin)_cached)|(self_)?attn\.(masked_bias|bias))$"
)
"""Buffers that older releases of transformers saved."""
MTP_NAMES = re.compile(r"^(model\.mtp_\w+|mtp)\.")
MTP_MARKER = "eh_proj.weight"
"""DeepSeek numbers its MTP layers after the model's own layers; only MTP layers have this tensor."""
FLOAT_TYPES = ("F64", "F32", "F16", "BF16")
QUANTISED_NAMES = re.compile(r"(\.qweight|\.weight_packed|\.weight_scale(_inv)?|_blocks)$")


def checkpoint_name(parameter: str, names: Mapping[str, str]) -> str:
    """Return the tensor name of a parameter. names: a family's CHECKPOINT_NAMES."""
    pattern, numbers = parameter_pattern(parameter)
    name = names[pattern]
    for placeholder, number in numbers.items():
        name = name.replace(placeholder, number)
    return name


def parameter_pattern(parameter: str) -> tuple[str, dict[str, str]]:
    """Return the parameter's name with placeholders for numbers, and each placeholder's number."""
    numbers: dict[str, str] = {}
    for room, placeholder in (("layers", "{layer}"), ("experts", "{expert}")):
        if match := re.search(rf"\b{room}\.(\d+)\.", parameter):
            numbers[placeholder] = match[1]
            parameter = parameter.replace(match[0], f"{room}.{placeholder}.", 1)
    return parameter, numbers


_PREFIXES = (
    ("model.", ""),
    ("", ""),
    ("model.language_model.", ""),
    ("language_model.model.", "language_model."),
)
"""Prefixes of the decoder and of its logits head: as usual; saved without the head; the text models
inside models of images, as transformers 5 and older releases save them."""


def stored_names(checkpoint: Checkpoint, names: Mapping[str, str]) -> Mapping[str, str]:
    """Return the family's CHECKPOINT_NAMES as this checkpoint spells them."""
    for decoder, head in _PREFIXES:
        spelled = {
            parameter: decoder + name.removeprefix("model.")
            if name.startswith("model.")
            else head + name
            for parameter, name in names.items()
        }
        if spelled["embedding.weight"] in checkpoint.tensors:
            return _without_single_experts(spelled, checkpoint)
    return names


def _without_single_experts(names: Mapping[str, str], checkpoint: Checkpoint) -> Mapping[str, str]:
    """Return the names without those of single experts' tensors, where the files have one tensor for
    all experts of a layer and the family names it."""
    packed = names.get("layers.{layer}.mlp.experts.gate_up.weight")
    if packed is None:
        return names
    pattern = re.compile(re.escape(packed).replace(r"\{layer\}", r"\d+"))
    if not any(map(pattern.fullmatch, checkpoint.tensors)):
        return names
    return {parameter: name for parameter, name in names.items() if "{expert}" not in parameter}


_FUSED = re.compile(
    r"(layers\.(?:\d+|\{layer\})\.)(attention\.[qkv]|mlp\.(?:shared\.)?(?:gate|up))\.(weight|bias)"
)


_PACKED = re.compile(r"\.experts\.(gate_up|down)\.weight$")


def fused(
    parameters: Mapping[str, list[Parameter]], names: Mapping[str, str]
) -> dict[str, list[Parameter]]:
    """Return parameters grouped as a checkpoint stores them, under the names of `fused_name`.

    Where all experts of a layer are one tensor whose gate and up are one parameter, each of them is
    transposed; packed ones are not, which formats pack as they are used.
    """
    grouped: dict[str, list[Parameter]] = {}
    is_transposed = stores_transposed(parameters)
    for parameter, blocks in parameters.items():
        name = fused_name(parameter, names)
        if is_transposed and ".experts." in parameter and _expert_number(name) is None:
            blocks = [_transposed(block) for block in blocks]
        grouped.setdefault(name, []).extend(blocks)
    return grouped


def _transposed(block: Parameter) -> Parameter:
    """Return the weight of an expert as a checkpoint of transposed experts has it."""
    if isinstance(block, Cut):
        return block.t()
    return (block if isinstance(block, PackedWeight) else block.t()).unsqueeze(0)


def stores_transposed(parameters: Iterable[str]) -> bool:
    """Whether a checkpoint with one tensor for all experts of a layer stores each one transposed."""
    return any(".gate_up." in parameter for parameter in parameters)


def fused_name(parameter: str, names: Mapping[str, str]) -> str:
    """Return the name of what a checkpoint stores a parameter in, perhaps with others.

    A family that names "attention.qkv" or "mlp.gate_up" in its CHECKPOINT_NAMES stores the rows of q, k
    and v, or of gate and up, one after the other in one tensor. Where the names lack those of single
    experts, all experts of a layer are one tensor: where gate and up are two parameters, the rows of
    gate and up of the first expert, then of the second.
    """
    pattern, numbers = parameter_pattern(parameter)
    match = _FUSED.fullmatch(parameter)
    if "{expert}" in numbers and pattern not in names:
        parameter = parameter.replace(f".experts.{numbers['{expert}']}.", ".experts.")
        return re.sub(r"\.(gate|up)\.", ".gate_up.", parameter)
    if match is not None and pattern not in names:
        whole = re.sub(r"\.[qkv]$", ".qkv", re.sub(r"\.(gate|up)$", ".gate_up", match[2]))
        return f"{match[1]}{whole}.{match[3]}"
    return parameter


def _expert_number(parameter: str) -> str | None:
    return parameter_pattern(parameter)[1].get("{expert}")


def has_own_head(checkpoint: Checkpoint, names: Mapping[str, str]) -> bool:
    """Whether the checkpoint stores a logits head that differs from its embedding.

    Such a head is used even where config.json sets tie_word_embeddings, as transformers does.
    names: from `stored_names`.
    """
    pair = [names["embedding.weight"], names["head.weight"]]
    if not all(name in checkpoint.tensors for name in pair):
        return False
    embedding, head = (checkpoint.tensors[name] for name in pair)
    if embedding.shape != head.shape or embedding.dtype != head.dtype:
        return True
    return not torch.equal(*map(checkpoint.read_tensor, pair))


def wanted_tensors(
    parameters: Mapping[str, list[Parameter]],
    checkpoint: Checkpoint,
    names: Mapping[str, str],
    tie_embeddings: bool,
    ignored: re.Pattern[str] | None = None,
) -> dict[str, str]:
    """Return tensor name -> parameter name for every tensor that is to be read.

    parameters: consecutive row blocks by parameter name, from `fused`. names: from `stored_names`.
    ignored: tensors of other parts of the model.
    ValueError: a tensor is missing, unknown, or of another shape or type.
    """
    tied_head = names["head.weight"] if tie_embeddings else None
    wanted = {checkpoint_name(parameter, names): parameter for parameter in parameters}
    embedding = names["embedding.weight"]
    if tied_head in checkpoint.tensors and embedding not in checkpoint.tensors:
        wanted[tied_head] = wanted.pop(embedding)  # the shared weights are stored as the head's
    _check_names(wanted, checkpoint, tied_head, ignored)
    for name, parameter in wanted.items():
        blocks = parameters[parameter]
        experts, stored = _shape_of_experts(parameter, blocks), checkpoint.tensors[name].shape
        shape = experts or whole_shape(blocks)
        if _is_transposed(experts, stored) or (len(shape) == 1 and stored == (1, *shape)):
            shape = stored
        is_integer = isinstance(blocks[0], torch.Tensor) and not blocks[0].is_floating_point()
        types = ("I64", "I32") if is_integer else FLOAT_TYPES
        check_tensor(checkpoint.tensors[name], shape, types)
    return wanted


def _shape_of_experts(parameter: str, blocks: Sequence[Parameter]) -> tuple[int, int, int] | None:
    """Return the shape [E, O, I] of the tensor of all experts that a parameter from `fused` is; None if
    it is of something else."""
    match = _PACKED.search(parameter)
    if match is None or blocks[0].dim() != 2:
        return None
    num_experts = len(blocks) // (2 if match[1] == "gate_up" else 1)
    num_rows, num_columns = whole_shape(blocks)
    return num_experts, num_rows // num_experts, num_columns


def _is_transposed(experts: tuple[int, int, int] | None, stored: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape has [E, I, O] of all experts, as Qwen3-VL's files do. As in
    transformers, one that could be read either way is not transposed. experts: [E, O, I]."""
    if experts is None or stored == experts:
        return False
    number, num_rows, num_columns = experts
    return stored == (number, num_columns, num_rows)


def fill(
    parameters: Mapping[str, list[Parameter]],
    checkpoint: Checkpoint,
    wanted: Mapping[str, str],
    progress: Progress | None = None,
    kept: Kept | None = None,
) -> None:
    """Copy tensors into parameters, converting their type. wanted: from `wanted_tensors`. kept: the
    tensors whose parameters are packed.

    ValueError: a number is not finite, or does not fit the type of the parameter.
    """
    regions: dict[str, list[Region]] = {}
    for name, parameter in wanted.items():
        tensor, blocks = checkpoint.tensors[name], parameters[parameter]
        experts = _shape_of_experts(parameter, blocks)
        is_kept = kept is not None and name in kept.layouts
        if is_kept and tensor.packing is not None and tensor.packing.is_transposed:
            *outer, num_in, num_out = tensor.shape  # packed ones are as they are used
            found = list(_regions(blocks, (*outer, num_out, num_in)))
        elif experts is not None and _is_transposed(experts, tensor.shape):
            found = [_turned(each) for each in _regions(blocks, experts)]
        else:
            found = list(_regions(blocks, tensor.shape))
        if found:
            regions[name] = found
    total = sum(bytes_of(each.target) for found in regions.values() for each in found)
    done = 0
    for name, pairs in checkpoint.stream(regions, kept):
        for target, values in pairs:
            target.copy_(values)  # type: ignore[arg-type]
            _check_finite(checkpoint.tensors[name], target, values)
        done += sum(bytes_of(each.target) for each in regions[name])
        if progress is not None:
            progress(name, done, total)


def _regions(blocks: list[Parameter], shape: tuple[int, ...]) -> Iterator[Region]:
    """Yield the parts of a tensor of this shape that consecutive blocks of rows hold."""
    first = 0
    for cut in map(whole, blocks):
        if cut.dim() == len(shape) and cut.shape[0] == 1 != shape[0]:
            cut = Cut(cut.target[0], cut.shape[1:], ((0, cut.shape[1]),))  # one of several experts
        outer, base = None, first
        if cut.dim() < len(shape):  # an expert's rows, in a tensor of all experts
            outer, base = divmod(first, shape[1])
        for (start, stop), columns, target in cut.regions():
            yield Region(outer, (base + start, base + stop), columns, target)
        first += cut.shape[0]


def _turned(region: Region) -> Region:
    """Return the region of the transposed matrix of an expert."""
    target = region.target
    assert isinstance(target, torch.Tensor)
    columns = region.columns or (0, target.shape[1])
    return Region(region.outer, columns, region.rows, target.t())


def _check_finite(stored: StoredTensor, target: Weight, values: Weight) -> None:
    """Refuse numbers that are not finite. values: of the file; target: after they were copied."""
    if not _is_finite(dequantised(target)):
        raise ValueError(
            f"{stored.file}: tensor {stored.name!r} holds numbers that are not "
            f"finite{_as_type(target, values)}; download the checkpoint again or choose another dtype"
        )
    if isinstance(target, PackedWeight) and target.layout.kind == "mxfp4":
        if int(exponents(target).max()) > MOST_EXPONENT:
            raise ValueError(
                f"{stored.file}: tensor {stored.name!r} holds scales above 2^{MOST_EXPONENT - 127}, "
                "which no model needs; the checkpoint is damaged: download it again"
            )


def _is_finite(block: torch.Tensor) -> bool:
    """Whether all numbers are finite. A finite sum proves it; an infinite sum may be an overflow."""
    return bool(block.sum().isfinite()) or bool(block.isfinite().all())


def _as_type(block: Weight, stored: Weight) -> str:
    is_converted = isinstance(block, PackedWeight) or block.dtype != stored.dtype
    return f" as {str(block.dtype).removeprefix('torch.')}" if is_converted else ""


def _check_names(
    wanted: Mapping[str, str],
    checkpoint: Checkpoint,
    tied_head: str | None,
    ignored: re.Pattern[str] | None,
) -> None:
    missing = [name for name in wanted if name not in checkpoint.tensors]
    if missing:
        raise ValueError(
            f"{checkpoint.directory} lacks {listed(missing)}; the checkpoint is incomplete or its "
            f"config.json describes another model: download both again{_hint(missing, checkpoint)}"
        )
    markers = [name for name in checkpoint.tensors if name.endswith(f".{MTP_MARKER}")]
    mtp_layers = tuple(name.removesuffix(MTP_MARKER) for name in markers)
    unknown = [
        name
        for name in checkpoint.tensors
        if name not in wanted
        and name != tied_head
        and not HARMLESS.search(name)
        and not MTP_NAMES.search(name)
        and not name.startswith(mtp_layers)
        and 0 not in checkpoint.tensors[name].shape
        and not (ignored is not None and ignored.search(name))
    ]
    empty = _empty_biases(checkpoint, unknown)
    if unknown := [name for name in unknown if name not in empty]:
        raise ValueError(
            f"{checkpoint.directory} holds {listed(unknown)}, which the architecture of its "
            "config.json does not have; use a checkpoint of the plain model (without adapters or "
            f"further heads){_hint(unknown, checkpoint)}"
        )


def _empty_biases(checkpoint: Checkpoint, names: list[str]) -> set[str]:
    """Return those of these tensors that are biases of zeros beside quantised weights."""
    biases = []
    for name in names:
        weight = checkpoint.tensors.get(f"{name.removesuffix('bias')}weight")
        if name.endswith(".bias") and weight is not None and weight.packing is not None:
            biases.append(name)
    return {name for name, values in checkpoint.read_tensors(biases) if not bool(values.any())}


def _hint(names: list[str], checkpoint: Checkpoint) -> str:
    """Return the remedy that fits missing or unknown tensors of these names; "" where none is known."""
    if quantised := [name for name in checkpoint.tensors if QUANTISED_NAMES.search(name)]:
        return (
            f". {quantised[0]!r} is of a quantised weight that its quantization_config in config.json "
            "does not describe: take both from the same checkpoint"
        )
    if any(name.endswith(".experts.gate_up_proj") for name in checkpoint.tensors):
        return (
            ". The experts are stored as transformers 5 holds them in memory: save the model again "
            "with save_pretrained(..., save_original_format=True)"
        )
    if all(name.endswith(".bias") for name in names):
        return ", or correct attention_bias and mlp_bias in config.json"
    if "fc.weight" in names:
        return ". It looks like a draft head: give it as --draft-model, and its model as --model"
    return ", or correct tie_word_embeddings in config.json" if names == ["lm_head.weight"] else ""


def check_tensor(
    stored: StoredTensor, expected: tuple[int, ...], types: Sequence[str] = FLOAT_TYPES
) -> None:
    """Refuse a tensor of another shape, or one that is not stored as one of `types`."""
    if stored.shape != expected:
        raise ValueError(
            f"{stored.file}: tensor {stored.name!r} has shape {list(stored.shape)}, expected "
            f"{list(expected)}; config.json and weights are of different models"
        )
    if stored.dtype not in types:
        raise ValueError(
            f"{stored.file}: tensor {stored.name!r} is stored as {stored.dtype}, and config.json has "
            "no quantization_config that says how to read it; take both files from a checkpoint of a "
            f"supported format, or from an unquantised one ({', '.join(types)})"
        )


def listed(names: list[str]) -> str:
    """Return the first five tensor names as text for a message."""
    shown = ", ".join(repr(name) for name in sorted(names)[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"tensor{'s' if len(names) > 1 else ''} {shown}{more}"
