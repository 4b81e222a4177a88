"""Read checkpoint files: the tensors that they hold, one in memory at a time.

Promises: headers are read before any value; damaged and missing files are named; a quantised tensor
is presented and read as its values. Host memory stays below what the caller keeps, plus the largest
tensor, plus some 150 MB: a file is mapped again every `MAPPED_BYTES` (pages of a mapped file count
as the process's memory), and quantised tensors are decoded some rows at a time.
Does not know: families, parameters.

Pickles are opened for draft heads alone, because many heads exist in no other format; torch's
restricted reader opens them, which builds tensors and runs no code.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from eyas.kernels.packed import Layout, Weight, some_columns
from eyas.models.config_file import ConfigFile
from eyas.models.formats import Format, Packing, StoredTensor, format_of, without_cache_scales
from eyas.models.other_kinds import other_kind
from eyas.parallel.cut import Range

MAPPED_BYTES = 64 << 20
PICKLE_SUFFIX = ".bin"
TORCH_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, slots=True)
class Kept:
    """Tensors that are read as they stay packed: the layout of each by name, the type of their values,
    and the device where they are."""

    layouts: Mapping[str, Layout]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A part of a tensor, and what takes it.

    outer: index into the first dimension of a tensor [E, O, I]; None where the rows are those of the
    first dimension. columns: of the last dimension; None is all.
    """

    outer: int | None
    rows: Range
    columns: Range | None
    target: Weight

    @property
    def index(self) -> tuple[int | slice, ...]:
        """The region as an index of the tensor."""
        outer = () if self.outer is None else (self.outer,)
        columns = () if self.columns is None else (slice(*self.columns),)
        return (*outer, slice(*self.rows), *columns)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The headers of the tensors in a checkpoint directory, by name.

    format: of its quantised tensors, which are in `tensors` as if they were not; None where
    config.json describes none. stored: the tensors as they are in the files.
    """

    directory: Path
    tensors: Mapping[str, StoredTensor]
    format: Format | None = None
    stored: Mapping[str, StoredTensor] = field(default_factory=dict)

    @classmethod
    def open(cls, directory: Path | str, *, opens_pickles: bool = False) -> Checkpoint:
        """Read the headers of every file of the checkpoint. An index that lists other tensors than the
        files hold is no error, as for transformers: what a model needs is looked for later.

        opens_pickles: use pytorch_model.bin where there are no safetensors files.
        ValueError: a file is missing or damaged, or quantised tensors are not supported or incomplete.
        """
        directory = Path(directory)
        layout = format_of(directory)
        tensors: dict[str, StoredTensor] = {}
        for file, indexed_names in checkpoint_files(directory, opens_pickles).items():
            with _open_reader(file) as reader:
                for name in sorted(reader.keys()):
                    if name in tensors and name not in (indexed_names or ()):
                        continue  # the index says which file's it is
                    entry = reader.get_slice(name)
                    shape = tuple(entry.get_shape())
                    tensors[name] = StoredTensor(name, file, shape, str(entry.get_dtype()))
        logical = without_cache_scales(tensors) if layout is None else layout.logical(tensors)
        return cls(directory, logical, layout, tensors)

    def read_tensor(self, name: str) -> torch.Tensor:
        """Return the values of one tensor, on the CPU."""
        return dict(self.read_tensors([name]))[name]

    def read_tensors(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and the values of each of these tensors, on the CPU. A file is opened once."""
        with _Readers() as readers:
            for tensor in map(self.tensors.__getitem__, names):
                readers.open(tensor.files)
                if tensor.packing is None:
                    yield tensor.name, readers.read(tensor)
                    continue
                pieces = readers.read_pieces(tensor.packing)
                parts = [tensor.packing.decode(pieces, *rows) for rows in tensor.row_ranges()]
                yield tensor.name, torch.cat(parts)

    def read_stored(self, name: str) -> torch.Tensor:
        """Return one tensor as it is in the files, on the CPU."""
        tensor = self.stored[name]
        with _Readers() as readers:
            readers.open(tensor.files)
            return readers.read(tensor).clone()

    def stream(
        self, regions: Mapping[str, Sequence[Region]], kept: Kept | None = None
    ) -> Iterator[tuple[str, Iterator[tuple[Weight, Weight]]]]:
        """Yield (name, pairs) for these names, file by file; pairs yields (target, values) on the CPU,
        or on the device of those that stay packed.

        Each region comes in one or several parts. Nothing else is read of a tensor whose values are
        stored.
        """
        by_file: dict[Path, list[StoredTensor]] = defaultdict(list)
        for name in regions:
            by_file[self.tensors[name].file].append(self.tensors[name])
        for file, tensors in by_file.items():
            for group in [tensors] if file.suffix == PICKLE_SUFFIX else _groups(tensors):
                with _Readers() as readers:
                    for tensor in group:
                        readers.open(tensor.files)
                        yield tensor.name, _values(tensor, readers, regions[tensor.name], kept)


def checkpoint_files(directory: Path, opens_pickles: bool = False) -> dict[Path, set[str] | None]:
    """Return the checkpoint's files and the tensor names that the index lists for each, if any.

    ValueError: a file is missing, or the directory holds no checkpoint.
    """
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
    found = other_kind(directory) or (
        "has no model.safetensors and no model.safetensors.index.json; "
        "give the directory of a complete Hugging Face checkpoint"
    )
    raise ValueError(f"{directory} {found}")


_LFS_POINTER = b"version https://git-lfs"
"""How a file begins that Git has left as a reference to a large one."""


class _SafetensorsReader:
    """A context manager around `safe_open` whose errors name the file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> Any:
        try:
            # safe_open would report a file without read permission as missing.
            self._file.open("rb").close()
        except OSError as error:
            raise ValueError(f"{self._file} cannot be read ({error.strerror})") from error
        try:
            self._reader = safe_open(self._file, framework="pt", device="cpu")
            return self._reader.__enter__()
        except (SafetensorError, OSError, ValueError) as error:
            with self._file.open("rb") as file:
                if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                    message = "holds no weights, but Git LFS's reference to them; run git lfs pull"
                    raise ValueError(f"{self._file} {message}") from error
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


class _Readers:
    """A context manager of the files that are open, by path."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._open: dict[Path, Any] = {}

    def __enter__(self) -> _Readers:
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    def open(self, files: Iterable[Path]) -> None:
        for file in sorted(files):
            if file not in self._open:
                self._open[file] = self._stack.enter_context(_open_reader(file))

    def read(self, entry: StoredTensor) -> torch.Tensor:
        """Return a tensor as it is stored."""
        return self._take(entry, lambda reader: reader.get_tensor(entry.name))

    def read_region(self, entry: StoredTensor, region: Region) -> torch.Tensor:
        """Return a part of a tensor as it is stored."""
        return self._take(entry, lambda reader: reader.get_slice(entry.name)[region.index])

    def read_pieces(self, packing: Packing) -> dict[str, torch.Tensor]:
        """Return the tensors that a packed one consists of, by role."""
        return {role: self.read(piece) for role, piece in packing.pieces.items()}

    def _take(self, entry: StoredTensor, take: Callable[[Any], torch.Tensor]) -> torch.Tensor:
        try:
            return take(self._open[entry.file])
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ValueError(
                f"{entry.file}: tensor {entry.name!r} cannot be read ({error}); download it again"
            ) from error


def _values(
    tensor: StoredTensor, readers: _Readers, regions: Sequence[Region], kept: Kept | None
) -> Iterator[tuple[Weight, Weight]]:
    """Yield (target, values) of regions of a tensor, or of the tensor as it stays packed."""
    if tensor.packing is None:
        num_wanted = sum(math.prod(region.target.shape) for region in regions)
        is_whole = num_wanted == math.prod(tensor.shape)
        whole = readers.read(tensor) if is_whole else None  # which no copy is made of
        for region in regions:
            values = readers.read_region(tensor, region) if whole is None else whole[region.index]
            yield region.target, values
        return
    layout = None if kept is None else kept.layouts.get(tensor.name)
    pieces = readers.read_pieces(tensor.packing)
    for start, stop in tensor.row_ranges(layout):
        wanted = [(region, *_within(region, start, stop)) for region in regions]
        wanted = [each for each in wanted if each[1] < each[2]]
        if not wanted:
            continue
        rows: Weight
        if kept is None or layout is None:
            rows = tensor.packing.decode(pieces, start, stop)
        else:
            rows = tensor.packing.pack(pieces, start, stop, layout, kept.dtype, kept.device)
        for region, first, last in wanted:
            values, target = rows[first - start : last - start], region.target
            if region.outer is None:
                low = first - region.rows[0]
                target = target[low : low + last - first]
            else:
                values = values[0][slice(*region.rows)]
            if region.columns is not None:
                values = some_columns(values, *region.columns)
            yield target, values


def _within(region: Region, start: int, stop: int) -> Range:
    """Return the indices of the first dimension that a region has between two others."""
    first, last = region.rows if region.outer is None else (region.outer, region.outer + 1)
    return max(first, start), min(last, stop)
