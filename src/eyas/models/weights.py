"""Checkpoint files to parameters: a stream of tensors, one in memory at a time.

Promises: names, shapes and files are checked before the first byte is copied; host memory stays
below the parameters' own size plus the largest tensor plus a few dozen megabytes, since a file is
mapped anew every `MAPPED_BYTES` (pages of a mapped file count as the process's memory).
Does not know: families (it is handed their map of names), layers.

A tensor that no parameter asks for is an error, as it means another architecture than the file
claims, but for those in `HARMLESS`, which old exporters leave behind, and a tied head.
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

Progress = Callable[[str, int, int], None]

MAPPED_BYTES = 64 << 20
HARMLESS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|attn\.masked_bias|attn\.bias)$")
FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file, known by the file's header alone."""

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
    """The tensors of a directory by name."""

    directory: Path
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def open(cls, directory: Path | str) -> Checkpoint:
        """Read the headers of every safetensors file of the checkpoint."""
        directory = Path(directory)
        tensors: dict[str, StoredTensor] = {}
        for file, names in _files(directory).items():
            with _reading(file) as reader:
                held = set(reader.keys())
                for name in sorted(held if names is None else names):
                    if name not in held:
                        raise ValueError(
                            f"{file} lacks tensor {name!r}, which the index says it holds; "
                            "download the checkpoint again"
                        )
                    entry = reader.get_slice(name)
                    shape = tuple(entry.get_shape())
                    tensors[name] = StoredTensor(name, file, shape, str(entry.get_dtype()))
        return cls(directory, tensors)

    def stream(self, names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """These tensors, file by file; each is valid until the next is asked for."""
        by_file: dict[Path, list[StoredTensor]] = defaultdict(list)
        for name in names:
            by_file[self.tensors[name].file].append(self.tensors[name])
        for file, entries in by_file.items():
            for group in _groups(entries):
                with _reading(file) as reader:
                    for entry in group:
                        yield entry.name, _tensor(reader, entry)


def _files(directory: Path) -> dict[Path, set[str] | None]:
    """The checkpoint's files and, where an index says so, the tensors of each."""
    index_path = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
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
    if single.is_file():
        return {single: None}
    if any(directory.glob("pytorch_model*.bin")):
        raise ValueError(
            f"{directory} holds only pytorch_model.bin, a pickle, which is never opened; convert "
            "it (transformers' save_pretrained writes safetensors) or take a safetensors revision"
        )
    raise ValueError(
        f"{directory} has no model.safetensors and no model.safetensors.index.json; "
        "give the directory of a complete Hugging Face checkpoint"
    )


class _Reading:
    """safe_open whose errors name the file."""

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


def _reading(file: Path) -> _Reading:
    return _Reading(file)


def _groups(entries: list[StoredTensor]) -> Iterator[list[StoredTensor]]:
    """Runs of tensors that together are mapped once."""
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


def _tensor(reader: Any, entry: StoredTensor) -> torch.Tensor:
    try:
        return reader.get_tensor(entry.name)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise ValueError(
            f"{entry.file}: tensor {entry.name!r} cannot be read ({error}); download it again"
        ) from error


def checkpoint_name(parameter: str, names: Mapping[str, str]) -> str:
    """A parameter's name in the checkpoint, by a family's map."""
    layer = re.match(r"layers\.(\d+)\.", parameter)
    if layer is None:
        return names[parameter]
    pattern = parameter.replace(layer.group(), "layers.{layer}.", 1)
    return names[pattern].replace("{layer}", layer.group(1))


def fill_parameters(
    parameters: Mapping[str, list[torch.Tensor]],
    checkpoint: Checkpoint,
    names: Mapping[str, str],
    tie_embeddings: bool,
    progress: Progress | None = None,
) -> None:
    """Copy the checkpoint into the parameters, converting types.

    parameters: consecutive row blocks by parameter name. names: a family's CHECKPOINT_NAMES.
    """
    wanted = {checkpoint_name(parameter, names): parameter for parameter in parameters}
    _check_names(wanted, checkpoint, names["head.weight"] if tie_embeddings else None)
    for name, parameter in wanted.items():
        _check_shape(checkpoint.tensors[name], parameters[parameter])
    total = sum(checkpoint.tensors[name].num_bytes for name in wanted)
    done = 0
    for name, tensor in checkpoint.stream(list(wanted)):
        start = 0
        for block in parameters[wanted[name]]:
            block.copy_(tensor[start : start + block.shape[0]])
            start += block.shape[0]
        del tensor
        done += checkpoint.tensors[name].num_bytes
        if progress is not None:
            progress(name, done, total)


def _check_names(wanted: Mapping[str, str], checkpoint: Checkpoint, tied_head: str | None) -> None:
    missing = [name for name in wanted if name not in checkpoint.tensors]
    if missing:
        raise ValueError(
            f"{checkpoint.directory} lacks {_listed(missing)}; the checkpoint is incomplete or its "
            "config.json describes another model: download both again"
        )
    unknown = [
        name
        for name in checkpoint.tensors
        if name not in wanted and name != tied_head and not HARMLESS.search(name)
    ]
    if unknown:
        raise ValueError(
            f"{checkpoint.directory} holds {_listed(unknown)}, which the architecture of its "
            "config.json does not have; use a checkpoint of the plain model (not quantised, "
            "without adapters or further heads)"
        )


def _check_shape(stored: StoredTensor, blocks: list[torch.Tensor]) -> None:
    expected = (sum(block.shape[0] for block in blocks), *blocks[0].shape[1:])
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


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in sorted(names)[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"tensor{'s' if len(names) > 1 else ''} {shown}{more}"
