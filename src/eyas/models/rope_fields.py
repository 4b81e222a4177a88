"""The fields of config.json about rotary positions.

Promises: reads the fields of transformers 5 (`rope_parameters`) and of older releases (`rope_scaling`,
`rope_theta`); a type that is not supported is refused by name.
Does not know: families.
"""

from __future__ import annotations

import math
from dataclasses import replace

from eyas.layers.rope import ROPE_KINDS, RopeSpec
from eyas.models.config_file import ConfigFile

UNSCALED_ROPE_KINDS = ("default", "dynamic")
"""Rope types without scaling. With "dynamic" the angles change only beyond max_position_embeddings,
and no more positions than that are served."""
ROPE_ALIASES = {"su": "longrope"}
LONGROPE_ALIASES = {"su": "longrope", "yarn": "longrope"}
"""Those of the family with longrope, Phi-3."""
REFUSED_ROPE_KINDS = {"longrope": "its angles depend on how long the text has become"}
"""Rope types of which a family may choose a form that does not depend on the text."""


def read_rope(
    config: ConfigFile,
    head_dim: int,
    *,
    may_be_partial: bool = False,
    is_interleaved: bool = False,
    has_longrope: bool = False,
) -> RopeSpec:
    """Return the rope facts, from `rope_parameters` or from `rope_scaling` and `rope_theta`.

    may_be_partial: whether the family can rotate a part of each head. is_interleaved: whether it
    pairs neighbours. has_longrope: whether its longrope is served.
    ValueError: the type is not supported, a number is invalid, or the file has both forms and they
    differ (libraries differ in which one they read).
    """
    fields = [name for name in ("rope_parameters", "rope_scaling") if config.values.get(name)]
    specs = [
        _rope(config, field, head_dim, may_be_partial, has_longrope)
        for field in fields or ["rope_parameters"]
    ]
    if specs[0] != specs[-1]:
        raise config.error(
            "rope_scaling",
            "and rope_parameters differ; keep one of them (for scaled positions "
            "write the fields of rope_scaling, with rope_theta, into rope_parameters)",
        )
    return replace(specs[0], is_interleaved=is_interleaved)


def _rope(
    config: ConfigFile, field: str, head_dim: int, may_be_partial: bool, has_longrope: bool
) -> RopeSpec:
    rope = config.nested(field)
    by_layer_type = [value for value in rope.values.values() if isinstance(value, dict)]
    if by_layer_type:
        if any(value != by_layer_type[0] for value in by_layer_type):
            raise config.error(field, "differs between layer types, which is not supported")
        rope = ConfigFile(config.path, by_layer_type[0])
    kind = rope.values.get("rope_type") or rope.values.get("type") or "default"
    aliases = LONGROPE_ALIASES if has_longrope else ROPE_ALIASES
    kind = aliases.get(kind, kind) if isinstance(kind, str) else kind
    served = (*ROPE_KINDS, *UNSCALED_ROPE_KINDS, *(["longrope"] if has_longrope else []))
    if not isinstance(kind, str) or kind not in served:
        kind = str(kind)
        reason = REFUSED_ROPE_KINDS.get(kind, "no rule for it is known here")
        raise config.error(
            field,
            f"asks for rope type {kind!r}, which is not supported: {reason}; "
            f"use a checkpoint with {', '.join(ROPE_KINDS)}",
        )
    partial = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if partial != 1.0 and not may_be_partial:
        raise config.error(
            "partial_rotary_factor",
            f"{partial} is not supported: this family rotates whole heads; leave the field out, or "
            "use a checkpoint of another family",
        )
    if head_dim % 2:
        raise config.error("head_dim", f"must be even, not {head_dim}")
    rotary_dim = int(head_dim * partial)
    if not 0 < rotary_dim <= head_dim or rotary_dim % 2:
        raise config.error(
            "partial_rotary_factor",
            f"{partial} must make an even number of rotated dimensions, 2 to {head_dim}",
        )
    spec = _rope_of_kind(config, field, rope, kind, head_dim, rotary_dim, bool(by_layer_type))
    return replace(spec, rotary_dim=0 if rotary_dim == head_dim else rotary_dim)


def _rope_of_kind(
    config: ConfigFile,
    field: str,
    rope: ConfigFile,
    kind: str,
    head_dim: int,
    rotary_dim: int,
    is_nested: bool,
) -> RopeSpec:
    theta = rope.number("rope_theta", config.number("rope_theta", 10000.0))
    if theta <= 1:
        raise config.error("rope_theta", f"must be above 1, not {theta}")
    if kind in UNSCALED_ROPE_KINDS:
        return RopeSpec("default", theta, head_dim)
    if kind == "linear":
        return RopeSpec("linear", theta, head_dim, _rope_factor(config, field, rope))
    original = _original_max_position(config, rope, is_nested=is_nested)
    if kind == "longrope":
        return _longrope(config, field, rope, theta, head_dim, rotary_dim, original)
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if not 0 < low < high:
            raise config.error(
                field,
                f"low_freq_factor {low} must be above 0 and below high_freq_factor {high}",
            )
        return RopeSpec(
            "llama3",
            theta,
            head_dim,
            _rope_factor(config, field, rope),
            original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    stretch = config.count("max_position_embeddings", original) / original
    factor = _rope_factor(config, field, rope, default=stretch)
    return RopeSpec(
        "yarn",
        theta,
        head_dim,
        factor,
        original,
        beta_fast=rope.number("beta_fast", 32.0) or 32.0,
        beta_slow=rope.number("beta_slow", 1.0) or 1.0,
        truncate="truncate" not in rope.values or rope.flag("truncate"),
        attention_factor=_yarn_attention_factor(rope, factor),
        logit_factor=_yarn_magnitude(factor, rope.number("mscale_all_dim", 0.0)) ** 2,
    )


def _longrope(
    config: ConfigFile,
    field: str,
    rope: ConfigFile,
    theta: float,
    head_dim: int,
    rotary_dim: int,
    original: int,
) -> RopeSpec:
    factors: dict[str, tuple[float, ...]] = {}
    for name in ("short_factor", "long_factor"):
        values = rope.values.get(name)
        if not isinstance(values, list) or len(values) != rotary_dim // 2:
            raise config.error(field, f"{name} must list {rotary_dim // 2} numbers")
        if not all(isinstance(x, (int, float)) and 0 < x < math.inf for x in values):
            raise config.error(field, f"{name} must hold numbers above 0")
        factors[name] = tuple(map(float, values))
    stretch = config.count("max_position_embeddings", original) / original
    factor = rope.number("factor", stretch)
    usual = math.sqrt(1 + math.log(factor) / math.log(max(2, original))) if factor > 1 else 1.0
    return RopeSpec(
        "longrope",
        theta,
        head_dim,
        factor,
        original,
        attention_factor=rope.number("attention_factor", usual),
        short_factors=factors["short_factor"],
        long_factors=factors["long_factor"],
    )


def _rope_factor(
    config: ConfigFile, field: str, rope: ConfigFile, default: float | None = None
) -> float:
    factor = rope.number("factor", default)
    if factor < 1:
        raise config.error(field, f"factor must be at least 1, not {factor}")
    return factor


def _original_max_position(config: ConfigFile, rope: ConfigFile, *, is_nested: bool) -> int:
    """Return the number of positions before scaling.

    As in transformers, the field of the file wins over the field of the rope object, unless that
    object is nested by layer type.
    """
    field = "original_max_position_embeddings"
    for place in (rope,) if is_nested else (config, rope):
        if place.values.get(field) is not None:
            return place.count(field)
    return config.count("max_position_embeddings")


def max_position(config: ConfigFile, rope: RopeSpec) -> int:
    """Return the context length of the checkpoint in tokens, rope scaling included."""
    written = config.count("max_position_embeddings")
    if rope.kind == "yarn":
        return max(written, int(rope.original_max_position * rope.factor))
    if rope.kind == "linear":
        return int(written * rope.factor)
    return written


def _yarn_magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _yarn_attention_factor(rope: ConfigFile, factor: float) -> float:
    given = rope.optional_number("attention_factor")
    if given is not None:
        return given
    scale, all_scale = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if scale and all_scale:
        return _yarn_magnitude(factor, scale) / _yarn_magnitude(factor, all_scale)
    return _yarn_magnitude(factor, 1.0)
