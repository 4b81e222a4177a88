"""Read checkpoint files and copy their tensors into parameters, one tensor in memory at a time.

Promises: files, names and shapes are checked before the first byte is copied; every copied number is
finite; host memory stays below the size of the parameters plus the largest tensor plus a few dozen
megabytes, since a file is mapped again every `MAPPED_BYTES` (pages of a mapped file count as the
process's memory).
Does not know: families (callers pass their map of names), layers.

A tensor that fills no parameter is an error, because it belongs to another architecture than the one
that config.json names. Exceptions: the buffers in `HARMLESS`, which old exporters write; a tied logits
head; and MTP layers, which `heads.mtp` reads.
Pickles are opened for draft heads alone, because many heads exist in no other format; torch's
restricted reader opens them, which builds tensors and runs no code.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from eyas.models.config_file import ConfigFile
from eyas.models.spec import ModelSpec

Progress = Callable[[str, int, int], None]
"""Called with (tensor name, bytes copied, bytes in all) after each tensor."""

MAPPED_BYTES = 64 << 20
PICKLE_SUFFIX = ".bin"
HARMLESS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|attn\.masked_bias|attn\.bias)$")
MTP_NAMES = re.compile(r"^(model\.mtp_layers|mtp)\.")
MTP_MARKER = "eh_proj.weight"
"""DeepSeek numbers its MTP layers after the model's own layers; only MTP layers have this tensor."""
FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
TORCH_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's entry in the header of a file. dtype: safetensors' name, such as "BF16"."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        count = FLOAT_BYTES.get(self.dtype, 1)
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The headers of the tensors in a checkpoint directory, by name."""

    directory: Path
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def open(cls, directory: Path | str, *, opens_pickles: bool = False) -> Checkpoint:
        """Read the headers of every file of the checkpoint.

        opens_pickles: use pytorch_model.bin where there are no safetensors files.
        ValueError: a file is missing or damaged, or lacks a tensor that the index lists.
        """
        directory = Path(directory)
        tensors: dict[str, StoredTensor] = {}
        for file, indexed_names in _files(directory, opens_pickles).items():
            with _open_reader(file) as reader:
                names_in_file = set(reader.keys())
                for name in sorted(names_in_file if indexed_names is None else indexed_names):
                    if name not in names_in_file:
                        raise ValueError(
                            f"{file} lacks tensor {name!r}, which the index says it holds; "
                            "download the checkpoint again"
                        )
                    entry = reader.get_slice(name)
                    shape = tuple(entry.get_shape())
                    tensors[name] = StoredTensor(name, file, shape, str(entry.get_dtype()))
        return cls(directory, tensors)

    def read_tensor(self, name: str) -> torch.Tensor:
        """Return one tensor, on the CPU."""
        with _open_reader(self.tensors[name].file) as reader:
            return _read_tensor(reader, self.tensors[name])

    def stream(self, names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor) for these names, file by file, on the CPU.

        A tensor is valid until the next one is requested.
        """
        by_file: dict[Path, list[StoredTensor]] = defaultdict(list)
        for name in names:
            by_file[self.tensors[name].file].append(self.tensors[name])
        for file, entries in by_file.items():
            for group in [entries] if file.suffix == PICKLE_SUFFIX else _groups(entries):
                with _open_reader(file) as reader:
                    for entry in group:
                        yield entry.name, _read_tensor(reader, entry)


def _files(directory: Path, opens_pickles: bool) -> dict[Path, set[str] | None]:
    """Return the checkpoint's files and the tensor names that the index lists for each, if any."""
    index_path = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
    if opens_pickles and not index_path.is_file() and not single.is_file():
        index_path = directory / "pytorch_model.bin.index.json"
        single = directory / "pytorch_model.bin"
    if single.is_file():  # as transformers does, even where old shards are in the directory too
        return {single: None}
    if index_path.is_file():
        weight_map = ConfigFile.read(index_path).nested("weight_map").values
        by_file: dict[Path, set[str] | None] = {}
        for name, file_name in weight_map.items():
            if not isinstance(file_name, str) or Path(file_name).name != file_name:
                raise ValueError(f"{index_path}: {file_name!r} is not a file of this directory")
            names = by_file.setdefault(directory / file_name, set())
            assert names is not None
            names.add(name)
        if not by_file:
            raise ValueError(f"{index_path}: weight_map is empty; download the checkpoint again")
        missing = sorted(file.name for file in by_file if not file.is_file())
        if missing:
            raise ValueError(
                f"{directory} lacks {', '.join(missing)}, named by {index_path.name}; "
                "download the missing files"
            )
        return by_file
    if any(directory.glob("pytorch_model*.bin")):
        raise ValueError(
            f"{directory} holds only pytorch_model.bin, a pickle, which is never opened; convert "
            "it (transformers' save_pretrained writes safetensors) or take a safetensors revision"
        )
    raise ValueError(
        f"{directory} has no model.safetensors and no model.safetensors.index.json; "
        "give the directory of a complete Hugging Face checkpoint"
    )


class _SafetensorsReader:
    """A context manager around `safe_open` whose errors name the file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> Any:
        try:
            self._reader = safe_open(self._file, framework="pt", device="cpu")
            return self._reader.__enter__()
        except (SafetensorError, OSError, ValueError) as error:
            raise ValueError(
                f"{self._file} is truncated or damaged ({error}); download it again"
            ) from error

    def __exit__(self, *details: object) -> None:
        self._reader.__exit__(*details)


class _PickleReader:
    """A pickle of tensors by name, with the methods of `safe_open` that this module uses."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> _PickleReader:
        self._tensors = read_tensor_pickle(self._file)
        if not isinstance(self._tensors, dict) or not all(
            isinstance(name, str) and isinstance(tensor, torch.Tensor)
            for name, tensor in self._tensors.items()
        ):
            raise ValueError(f"{self._file} must hold tensors by name, and nothing else")
        return self

    def __exit__(self, *details: object) -> None:
        self._tensors = {}

    def keys(self) -> Iterator[str]:
        return iter(self._tensors)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def get_slice(self, name: str) -> _PickledTensor:
        return _PickledTensor(self._tensors[name])


class _PickledTensor:
    """The shape and type of a tensor, with the methods of safetensors' slices."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        return TORCH_DTYPES.get(self._tensor.dtype, str(self._tensor.dtype).removeprefix("torch."))


def read_tensor_pickle(file: Path) -> Any:
    """Read a .bin or .pt file of tensors, numbers and containers of them, without running code.

    ValueError: the file is damaged, or holds anything else.
    """
    try:
        try:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # written before torch 1.6: cannot be mapped
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(
            f"{file} is damaged, or holds more than tensors, which is never run; take a safetensors "
            "version of it"
        ) from error


def _open_reader(file: Path) -> _SafetensorsReader | _PickleReader:
    return _PickleReader(file) if file.suffix == PICKLE_SUFFIX else _SafetensorsReader(file)


def _groups(entries: list[StoredTensor]) -> Iterator[list[StoredTensor]]:
    """Yield groups of consecutive tensors, each of at most `MAPPED_BYTES` or of one tensor."""
    group: list[StoredTensor] = []
    size = 0
    for entry in entries:
        if group and size + entry.num_bytes > MAPPED_BYTES:
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.num_bytes
    if group:
        yield group


def _read_tensor(reader: Any, entry: StoredTensor) -> torch.Tensor:
    try:
        return reader.get_tensor(entry.name)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise ValueError(
            f"{entry.file}: tensor {entry.name!r} cannot be read ({error}); download it again"
        ) from error


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
    r"(layers\.(?:\d+|\{layer\})\.)(attention\.[qkv]|mlp\.(?:gate|up))\.(weight|bias)"
)


def fused(
    parameters: Mapping[str, list[torch.Tensor]], names: Mapping[str, str]
) -> dict[str, list[torch.Tensor]]:
    """Return parameters grouped as a checkpoint stores them.

    A family that names "attention.qkv" or "mlp.gate_up" in its CHECKPOINT_NAMES stores the rows of q, k
    and v, or of gate and up, one after the other in one tensor. Where the names lack those of single
    experts, all experts of a layer are one tensor: its rows are those of gate and up of the first
    expert, then of the second.
    """
    grouped: dict[str, list[torch.Tensor]] = {}
    for parameter, blocks in parameters.items():
        pattern, numbers = parameter_pattern(parameter)
        match = _FUSED.fullmatch(parameter)
        if "{expert}" in numbers and pattern not in names:
            parameter = parameter.replace(f".experts.{numbers['{expert}']}.", ".experts.")
            parameter = re.sub(r"\.(gate|up)\.", ".gate_up.", parameter)
        elif match is not None and pattern not in names:
            whole = "attention.qkv" if match[2].startswith("attention") else "mlp.gate_up"
            parameter = f"{match[1]}{whole}.{match[3]}"
        grouped.setdefault(parameter, []).extend(blocks)
    return grouped


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


def check_sizes(spec: ModelSpec, checkpoint: Checkpoint, names: Mapping[str, str]) -> None:
    """Compare the sizes in config.json with the shapes in the files, before a decoder is built.

    names: from `stored_names`. Missing tensors are left to `wanted_tensors`.
    ValueError: a size differs; the text names the field and both numbers.
    """
    query_name = "layers.{layer}.attention.q.weight"
    has_fused_rows = query_name not in names
    query = names["layers.{layer}.attention.qkv.weight" if has_fused_rows else query_name]
    if spec.state is not None:  # not every layer has attention
        query = names["layers.{layer}.attention_norm.weight"]
    query_pattern = re.compile(re.escape(query).replace(r"\{layer\}", r"(\d+)"))
    layers = [
        int(match[1])
        for name in checkpoint.tensors
        if (match := query_pattern.fullmatch(name))
        and f"{name[: match.end(1)]}.{MTP_MARKER}" not in checkpoint.tensors
    ]
    last = max(layers, default=None)
    if last is not None and last + 1 != spec.num_layers:
        raise ValueError(
            f"{checkpoint.directory}/config.json: num_hidden_layers is {spec.num_layers}, but the "
            f"files hold {last + 1} layers (the last one has "
            f"{query.format(layer=last)!r}); correct it, or download the checkpoint again"
        )
    gated = "2 x " if spec.has_output_gate else ""
    sizes = {
        "hidden": (f"hidden_size ({spec.hidden_size})", spec.hidden_size),
        "vocab": (f"vocab_size ({spec.vocab_size})", spec.vocab_size),
        "inner": (f"intermediate_size ({spec.intermediate_size})", spec.intermediate_size),
        "query": (
            f"{gated}num_attention_heads x head_dim "
            f"({gated}{spec.num_query_heads} x {spec.head_dim})",
            spec.num_query_heads * spec.head_dim * (1 + spec.has_output_gate),
        ),
        "kv": (
            f"num_key_value_heads x head_dim ({spec.num_kv_heads} x {spec.head_dim})",
            spec.num_kv_heads * spec.head_dim,
        ),
        "fused": (
            "(num_attention_heads + 2 x num_key_value_heads) x head_dim "
            f"(({spec.num_query_heads} + 2 x {spec.num_kv_heads}) x {spec.head_dim})",
            (spec.num_query_heads + 2 * spec.num_kv_heads) * spec.head_dim,
        ),
        "fused inner": (
            f"2 x intermediate_size (2 x {spec.intermediate_size})",
            2 * spec.intermediate_size,
        ),
    }
    if spec.experts is not None:
        experts = spec.experts
        sizes["experts"] = (f"number of experts ({experts.num_experts})", experts.num_experts)
        sizes["expert inner"] = (
            f"feed-forward size of an expert ({experts.intermediate_size})",
            experts.intermediate_size,
        )
    sizes |= _state_sizes(spec)
    first_expert_layer = min(spec.expert_layers, default=0)
    first_state_layer = min(spec.state_layers, default=0)
    with_attention = (i for i in range(spec.num_layers) if i not in spec.state_layers)
    first_attention_layer = next(with_attention, 0)
    for parameter, rows, layer in (
        ("embedding.weight", "vocab", 0),
        ("layers.{layer}.attention.q.weight", "query", first_attention_layer),
        ("layers.{layer}.attention.k.weight", "kv", first_attention_layer),
        ("layers.{layer}.attention.qkv.weight", "fused", first_attention_layer),
        ("layers.{layer}.delta.qkvz.weight", "qkvz", first_state_layer),
        ("layers.{layer}.delta.ba.weight", "ba", first_state_layer),
        ("layers.{layer}.delta.qkv.weight", "qkv", first_state_layer),
        ("layers.{layer}.delta.z.weight", "z", first_state_layer),
        ("layers.{layer}.delta.b.weight", "value heads", first_state_layer),
        ("layers.{layer}.mlp.gate.weight", "inner", 0),
        ("layers.{layer}.mlp.gate_up.weight", "fused inner", 0),
        ("layers.{layer}.mlp.router.weight", "experts", first_expert_layer),
        ("layers.{layer}.mlp.experts.{expert}.gate.weight", "expert inner", first_expert_layer),
    ):
        if parameter not in names:
            continue
        tensor = checkpoint.tensors.get(names[parameter].format(layer=layer, expert=0))
        if tensor is None:
            continue
        described = (sizes[rows], sizes["hidden"])
        expected = tuple(size for _, size in described)
        if tensor.shape != expected:
            pairs = zip(described, (*tensor.shape, 0, 0), strict=False)
            wrong = [field for (field, size), stored in pairs if size != stored]
            raise ValueError(
                f"{tensor.file}: tensor {tensor.name!r} has shape {list(tensor.shape)}, expected "
                f"{list(expected)} by {' and '.join(wrong)} in config.json; config.json and weights "
                "are of different models"
            )


def _state_sizes(spec: ModelSpec) -> dict[str, tuple[str, int]]:
    """Return the descriptions and sizes of delta nets that `check_sizes` compares."""
    state = spec.state
    if state is None:
        return {}
    keys = f"linear_num_key_heads x linear_key_head_dim ({state.num_key_heads} x {state.key_dim})"
    values = (
        "linear_num_value_heads x linear_value_head_dim "
        f"({state.num_value_heads} x {state.value_dim})"
    )
    heads = f"linear_num_value_heads ({state.num_value_heads})"
    return {
        "qkvz": (f"2 x {keys} + 2 x {values}", state.convolved + state.output_width),
        "qkv": (f"2 x {keys} + {values}", state.convolved),
        "z": (values, state.output_width),
        "ba": (f"2 x {heads}", 2 * state.num_value_heads),
        "value heads": (heads, state.num_value_heads),
    }


def wanted_tensors(
    parameters: Mapping[str, list[torch.Tensor]],
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
        shape = (sum(block.shape[0] for block in blocks), *blocks[0].shape[1:])
        if ".experts.gate_up." in parameter or ".experts.down." in parameter:
            num_experts = len(blocks) // (2 if ".gate_up." in parameter else 1)
            shape = (num_experts, shape[0] // num_experts, *shape[1:])
        check_tensor(checkpoint.tensors[name], shape)
    return wanted


def fill(
    parameters: Mapping[str, list[torch.Tensor]],
    checkpoint: Checkpoint,
    wanted: Mapping[str, str],
    progress: Progress | None = None,
) -> None:
    """Copy tensors into parameters, converting their type. wanted: from `wanted_tensors`.

    ValueError: a number is not finite, or does not fit the type of the parameter.
    """
    total = sum(checkpoint.tensors[name].num_bytes for name in wanted)
    done = 0
    for name, tensor in checkpoint.stream(list(wanted)):
        start = 0
        blocks = parameters[wanted[name]]
        rows = tensor.flatten(0, tensor.dim() - blocks[0].dim())  # of all experts of a layer
        for block in blocks:
            block.copy_(rows[start : start + block.shape[0]])
            start += block.shape[0]
            if not _is_finite(block):
                raise ValueError(
                    f"{checkpoint.tensors[name].file}: tensor {name!r} holds numbers that are not "
                    f"finite{_as_type(block, tensor)}; download the checkpoint again or choose another "
                    "dtype"
                )
        del tensor, rows
        done += checkpoint.tensors[name].num_bytes
        if progress is not None:
            progress(name, done, total)


def _is_finite(block: torch.Tensor) -> bool:
    """Whether all numbers are finite. A finite sum proves it; an infinite sum may be an overflow."""
    return bool(block.sum().isfinite()) or bool(block.isfinite().all())


def _as_type(block: torch.Tensor, stored: torch.Tensor) -> str:
    is_converted = block.dtype != stored.dtype
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
            f"config.json describes another model: download both again{_hint(missing)}"
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
        and not (ignored is not None and ignored.search(name))
    ]
    if unknown:
        raise ValueError(
            f"{checkpoint.directory} holds {listed(unknown)}, which the architecture of its "
            "config.json does not have; use a checkpoint of the plain model (not quantised, "
            f"without adapters or further heads){_hint(unknown)}"
        )


def _hint(names: list[str]) -> str:
    """Return the remedy that fits missing or unknown tensors of these names; "" where none is known."""
    if all(name.endswith(".bias") for name in names):
        return ", or correct attention_bias and mlp_bias in config.json"
    if "fc.weight" in names:
        return ". It looks like a draft head: give it as --draft-model, and its model as --model"
    return ", or correct tie_word_embeddings in config.json" if names == ["lm_head.weight"] else ""


def check_tensor(stored: StoredTensor, expected: tuple[int, ...]) -> None:
    """Refuse a tensor of another shape, or one that is not stored as floating-point numbers."""
    if stored.shape != expected:
        raise ValueError(
            f"{stored.file}: tensor {stored.name!r} has shape {list(stored.shape)}, expected "
            f"{list(expected)}; config.json and weights are of different models"
        )
    if stored.dtype not in FLOAT_BYTES:
        raise ValueError(
            f"{stored.file}: tensor {stored.name!r} is stored as {stored.dtype}, which is not "
            f"supported ({', '.join(FLOAT_BYTES)} are); use the unquantised checkpoint"
        )


def listed(names: list[str]) -> str:
    """Return the first five tensor names as text for a message."""
    shown = ", ".join(repr(name) for name in sorted(names)[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"tensor{'s' if len(names) > 1 else ''} {shown}{more}"
