"""Read the scales of an FP8 cache from a checkpoint.

Promises: a layer has one scale for keys and one for values, both positive; a checkpoint without any
has scales of 1; one that has them for some layers alone is refused by name.
Does not know: how keys and values are stored.

Names, beside a layer's attention `X`: `X.k_scale`, `X.attn.k_scale`, `X.k_proj.k_scale`,
`X.qkv_proj.k_scale`, `X.k_proj.output_scale` (compressed-tensors), likewise for values, or
`X.kv_scale` for both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from eyas.cache.store import KVScales, LayerStore, Store
from eyas.models.checkpoint import Checkpoint
from eyas.models.weights import checkpoint_name

_FIRST_PRODUCTS = ("attention.k.weight", "attention.qkv.weight", "attention.kv_a.weight")
"""Parameters of a layer, of which every family has one."""


def attention_modules(names: Mapping[str, str], stores: Sequence[Store]) -> list[str | None]:
    """Return the name of each layer's attention in a model's files; None for a layer with a state.

    names: from `weights.stored_names`.
    """
    product = first_product(names, "layers.{layer}.")
    return [
        module_of(checkpoint_name(product.replace("{layer}", str(layer)), names))
        if isinstance(store, LayerStore)
        else None
        for layer, store in enumerate(stores)
    ]


def first_product(names: Mapping[str, str], layer: str) -> str:
    """Return the parameter of a layer's attention by whose tensor it is found. layer: with a dot."""
    return next(layer + last for last in _FIRST_PRODUCTS if layer + last in names)


def module_of(weight: str) -> str:
    """Return the name of the attention that a product's weight belongs to."""
    return weight.rsplit(".", 2)[0]


def read_kv_scales(
    checkpoint: Checkpoint, modules: Sequence[str | None], stores: Sequence[Store]
) -> tuple[KVScales, ...]:
    """Return the scales of each layer.

    modules: from `attention_modules`. ValueError: a scale is missing, no positive number, or one of
    many for a layer.
    """
    found = [
        None if module is None else _scales_of(checkpoint, module, store)
        for module, store in zip(modules, stores, strict=True)
    ]
    if any(scales is not None for scales in found):
        for module, scales in zip(modules, found, strict=True):
            if module is not None and scales is None:
                raise _missing(checkpoint, f"{module}.k_scale")
    return tuple(KVScales() if scales is None else scales for scales in found)


def _scales_of(checkpoint: Checkpoint, module: str, store: Store) -> KVScales | None:
    """Return the scales of one layer; None if the checkpoint has none for it."""
    assert isinstance(store, LayerStore)
    shared = _find(checkpoint, (f"{module}.kv_scale", f"{module}.attn.kv_scale"))
    if shared is not None:
        return KVScales(*[_read(checkpoint, shared)] * 2)
    names = {side: _find(checkpoint, _names(module, side)) for side in ("k", "v")}
    if names == {"k": None, "v": None}:
        return None
    if store.value_dim is not None:
        names["v"] = names["k"]
    scales = []
    for side, name in names.items():
        if name is None:
            raise _missing(checkpoint, f"{module}.{side}_scale")
        scales.append(_read(checkpoint, name))
    return KVScales(*scales)


def _names(module: str, side: str) -> tuple[str, ...]:
    places = (module, f"{module}.attn", f"{module}.{side}_proj", f"{module}.qkv_proj")
    own = tuple(f"{place}.{side}_scale" for place in places)
    return (*own, f"{module}.{side}_proj.output_scale")


def _find(checkpoint: Checkpoint, names: Sequence[str]) -> str | None:
    return next((name for name in names if name in checkpoint.stored), None)


def _read(checkpoint: Checkpoint, name: str) -> float:
    """Return a scale as the float32 number that it is."""
    stored = checkpoint.stored[name]
    if math.prod(stored.shape) != 1:
        raise ValueError(
            f"{stored.file}: tensor {name!r} has shape {list(stored.shape)}; an FP8 cache has one "
            "scale for the keys of a layer and one for its values: pass --kv-cache-dtype auto, or use "
            "a checkpoint with such scales"
        )
    scale = checkpoint.read_stored(name).float().item()
    if not 1e-30 < scale < 1e30:  # NaN is in no range
        raise ValueError(
            f"{stored.file}: tensor {name!r} holds {scale}, which cannot be the scale of a cache; "
            "download it again, or pass --kv-cache-dtype auto"
        )
    return scale


def _missing(checkpoint: Checkpoint, name: str) -> ValueError:
    return ValueError(
        f"{checkpoint.directory} lacks tensor {name!r}, but holds other scales of an FP8 cache; "
        "download it again, or pass --kv-cache-dtype auto"
    )
