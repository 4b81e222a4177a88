"""Decide which weights of a checkpoint stay packed on a device.

Promises: this is the one place where that is decided, from the configuration and the files' headers.
A weight stays packed as a whole: where a layer makes one weight of several tensors (q, k and v; gate
and up; the same of all experts), either all of them stay packed, in one layout, or none does.
Does not know: kernels beyond the layouts that they take; whether the device runs them.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from eyas.kernels.packed import Layout
from eyas.layers.gemm.variants import is_supported
from eyas.models.formats import StoredTensor
from eyas.models.spec import ModelSpec
from eyas.models.weights import fused_name, stores_transposed
from eyas.parallel.cut import Cut, Parameter, whole_shape

_TAKEN = re.compile(
    r"layers\.\d+\.(attention\.[qkvo]|mlp\.(experts\.\d+\.|shared\.)?(gate|up|gate_up|down))\.weight"
)
"""Parameters of the layers that can hold packed weights."""


@dataclass(frozen=True, slots=True)
class Storage:
    """How weights are held on a device.

    layouts: of those that stay packed, by parameter name. tensors: the same by tensor name, as
    `Checkpoint.stream` takes them. unpacked: why quantised weights do not stay packed, and how many.
    """

    layouts: Mapping[str, Layout] = field(default_factory=dict)
    tensors: Mapping[str, Layout] = field(default_factory=dict)
    unpacked: Mapping[str, int] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """For the log."""
        kinds = Counter(layout.kind for layout in self.layouts.values())
        parts = [f"{count} weights stay packed ({kind})" for kind, count in kinds.items()]
        parts += [f"{count} are dequantised ({why})" for why, count in self.unpacked.items()]
        return ", ".join(parts) or "none is quantised"


def decide(
    spec: ModelSpec,
    parameters: Mapping[str, list[Parameter]],
    tensors: Mapping[str, StoredTensor],
    wanted: Mapping[str, str],
    names: Mapping[str, str],
) -> Storage:
    """Return how the weights of a checkpoint are held on a device that runs kernels.

    parameters: of a decoder, or of a rank's part of one. tensors: of the checkpoint. wanted, names:
    from `weights.wanted_tensors` and `weights.stored_names`.
    """
    tensor_of = {parameter: tensors[name] for name, parameter in wanted.items()}
    is_transposed = stores_transposed(parameters)
    stored, layouts, of_tensors = {}, {}, {}
    unpacked: Counter[str] = Counter()
    for parameter in parameters:
        tensor = tensor_of.get(fused_name(parameter, names))
        if tensor is not None and tensor.packing is not None:
            stored[parameter] = tensor
    for group in _weights(parameters):
        found = [stored[parameter] for parameter in group if parameter in stored]
        if not found:
            continue
        choice: Layout | str = "parts of a weight are stored in different ways"
        if len(found) == len(group):
            choice = _layout_of(spec, group, parameters, found, is_transposed)
        if isinstance(choice, str):
            unpacked[choice] += len(found)
            continue
        layouts |= dict.fromkeys(group, choice)
        of_tensors |= {tensor.name: choice for tensor in found}
    return Storage(layouts, of_tensors, unpacked)


def packable(
    spec: ModelSpec,
    parameters: Mapping[str, list[Parameter]],
    choose: Callable[[str], Layout | None],
) -> dict[str, Layout]:
    """Return the layouts of weights that are drawn and not read. choose: the layout that is wanted for
    a parameter; None is for values."""
    layouts: dict[str, Layout] = {}
    for group in _weights(parameters):
        wanted = choose(group[0])
        if wanted is None or _refusal(spec, group[0], parameters) is not None:
            continue
        if _keeps_blocks_of_columns(wanted, group, parameters):
            layouts |= dict.fromkeys(group, _divided(spec, wanted, group, parameters))
    return layouts


def num_bytes(
    parameters: Mapping[str, list[Parameter]], dtype: torch.dtype, layouts: Mapping[str, Layout]
) -> int:
    """Return the bytes of all parameters on a device."""
    total = 0
    for parameter, blocks in parameters.items():
        layout = layouts.get(parameter)
        for block in blocks:
            shape = held_shape(block)
            if layout is None or not shape[0]:
                total += math.prod(shape) * dtype.itemsize
            else:
                total += layout.bytes_of(*shape)
    return total


def held_shape(block: Parameter) -> tuple[int, ...]:
    """Return the shape of what a rank holds of a parameter."""
    return tuple(block.target.shape if isinstance(block, Cut) else block.shape)


def _weights(parameters: Mapping[str, list[Parameter]]) -> Iterator[list[str]]:
    """Yield the parameters of each weight that a layer runs as one."""
    groups: dict[str, list[str]] = defaultdict(list)
    for parameter in parameters:
        weight = re.sub(r"\.attention\.[qkv]\.", ".attention.qkv.", parameter)
        weight = re.sub(r"\.experts\.\d+\.", ".experts.", weight)
        groups[re.sub(r"\.(gate|up)\.", ".gate_up.", weight)].append(parameter)
    yield from groups.values()


def _layout_of(
    spec: ModelSpec,
    group: list[str],
    parameters: Mapping[str, list[Parameter]],
    tensors: list[StoredTensor],
    is_transposed: bool,
) -> Layout | str:
    """Return the layout of a weight whose parts are all quantised, or why it does not stay packed."""
    if (refusal := _refusal(spec, group[0], parameters)) is not None:
        return refusal
    distinct = list({tensor.name: tensor for tensor in tensors}.values())
    layouts = [tensor.packing.layout for tensor in distinct if tensor.packing is not None]
    first = layouts[0]
    if first is None or None in layouts:
        return "kernels do not take their format"
    known = [layout for layout in layouts if layout is not None]
    if len({replace(layout, rows=1) for layout in known}) > 1:
        return "parts of a weight are stored in different ways"
    num_columns = whole_shape(parameters[group[0]])[1]
    for tensor in distinct:
        assert tensor.packing is not None
        holds_columns = is_transposed and len(tensor.shape) == 3
        # A format that is used as it is stored has the rows of experts; the shapes of others show it.
        is_turned = not tensor.packing.is_transposed and tensor.shape[-1] != num_columns
        if tensor.packing.is_transposed != holds_columns or is_turned:
            return "rows are stored as columns"
    if not _keeps_blocks_of_columns(first, group, parameters):
        return "ranks divide columns that are packed together"
    rows = math.gcd(*(layout.rows for layout in known))
    return _divided(spec, replace(first, rows=rows), group, parameters)


def _keeps_blocks_of_columns(
    layout: Layout, group: list[str], parameters: Mapping[str, list[Parameter]]
) -> bool:
    """Whether a rank's columns of a weight begin and end where the layout can be divided."""
    for parameter in group:
        for block in parameters[parameter]:
            if isinstance(block, Cut) and block.columns is not None:
                start, stop = block.columns
                if start % layout.divisible or (stop % layout.divisible and stop != block.shape[1]):
                    return False
    return True


def _refusal(
    spec: ModelSpec, parameter: str, parameters: Mapping[str, list[Parameter]]
) -> str | None:
    """Return why no layout of a parameter stays packed; None where one may."""
    if not _TAKEN.fullmatch(parameter) or (spec.latent is not None and ".attention." in parameter):
        return "their layers use values"
    if not is_supported(_num_columns(parameters[parameter][0])):
        return "input features are no multiple of 16"
    return None


def _divided(
    spec: ModelSpec, layout: Layout, group: list[str], parameters: Mapping[str, list[Parameter]]
) -> Layout:
    """Return the layout with so few rows of a block that every part, of a weight and of a rank, begins
    with a block; with one row where the layer reorders rows."""
    has_heads = re.search(r"\.attention\.[qkv]\.", group[0]) is not None
    reorders_heads = spec.rope.head_layout is not None or spec.has_output_gate
    if ".gate_up." in group[0] or (has_heads and reorders_heads):
        return replace(layout, rows=1)
    borders: set[int] = set()
    for parameter in group:
        for block in parameters[parameter]:
            borders.add(block.shape[0])
            if isinstance(block, Cut):
                borders |= {border for rows in block.rows for border in rows}
    return replace(layout, rows=math.gcd(layout.rows, *borders))


def _num_columns(block: Parameter) -> int:
    """Return the columns of what a rank holds of a weight, or would hold."""
    if isinstance(block, Cut) and block.columns is not None:
        return block.columns[1] - block.columns[0]
    return block.shape[1]
