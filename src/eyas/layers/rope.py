"""Rotary position embedding: frequencies, and a table of angles (`ops.rotate_and_store` applies them).

Promises: frequencies equal transformers' for the kinds in `ROPE_KINDS`; a row's angles depend on
its position alone, so kinds that depend on the sequence's length are refused.
Does not know: configuration files.

Legend: T rows, P positions, H head dim, F = H / 2 frequencies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from eyas.layers.compute import Compute
from eyas.ops.rotate_and_store import Angles

ROPE_KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """What the angles are made of. Fields beyond theta and head_dim serve the kinds that scale.

    attention_factor: multiplies cosine and sine (yarn, longrope); 1 elsewhere.
    rotary_dim: the first so many dimensions of a head are rotated; 0 is all. is_interleaved: pairs are
    neighbours (2i, 2i + 1) in the checkpoint, not halves. short_factors, long_factors: divide the
    frequencies (longrope) where at most, or more than, `original_max_position` positions are served.
    logit_factor: what the scaling of positions multiplies the dot products by, in families that do so.
    """

    kind: str
    theta: float
    head_dim: int
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    rotary_dim: int = 0
    is_interleaved: bool = False
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    logit_factor: float = 1.0

    @property
    def num_rotated(self) -> int:
        """Dimensions of a head that are rotated."""
        return self.rotary_dim or self.head_dim

    @property
    def head_layout(self) -> tuple[int, ...] | None:
        """For each dimension of a head here, its place in the checkpoint; None where they agree.

        Here dimension h is paired with h + head_dim / 2. Queries and keys are laid out alike, so their
        products do not change. Dimensions that are not rotated fill the pairs whose angle is 0.
        """
        if self.num_rotated == self.head_dim and not self.is_interleaved:
            return None
        half, num_pairs = self.head_dim // 2, self.num_rotated // 2
        if self.is_interleaved:
            first, second = range(0, self.num_rotated, 2), range(1, self.num_rotated, 2)
        else:
            first, second = range(num_pairs), range(num_pairs, self.num_rotated)
        rest = list(range(self.num_rotated, self.head_dim))
        middle = half - num_pairs
        return (*first, *rest[:middle], *second, *rest[middle:])


def no_rope(head_dim: int) -> RopeSpec:
    """Return what rotates nothing."""
    return RopeSpec("none", 1.0, head_dim)


def rope_frequencies(spec: RopeSpec, max_positions: int = 0) -> torch.Tensor:
    """Radians per position of each rotated pair, float32 [num_rotated / 2].

    max_positions: how many positions are served; longrope depends on it.
    llama3: Llama 3.1's release. yarn: Peng et al., arXiv 2309.00071. linear: positions divided by
    a factor (Chen et al., arXiv 2306.15595). longrope: Ding et al., arXiv 2402.13753.
    """
    exponents_F = torch.arange(0, spec.num_rotated, 2, dtype=torch.float32) / spec.num_rotated
    plain_F = 1.0 / (spec.theta**exponents_F)
    match spec.kind:
        case "none":
            return torch.zeros_like(plain_F)
        case "default":
            return plain_F
        case "linear":
            return plain_F / spec.factor
        case "llama3":
            return _llama3_frequencies(spec, plain_F)
        case "yarn":
            return _yarn_frequencies(spec, exponents_F)
        case "longrope":
            is_long = max_positions > spec.original_max_position
            factors = spec.long_factors if is_long else spec.short_factors
            return plain_F / torch.tensor(factors, dtype=torch.float32)
    raise AssertionError(f"rope kind {spec.kind!r} passed the configuration reader")


def _llama3_frequencies(spec: RopeSpec, plain_F: torch.Tensor) -> torch.Tensor:
    wavelength_F = 2 * math.pi / plain_F
    longest_kept = spec.original_max_position / spec.high_freq_factor
    longest_blended = spec.original_max_position / spec.low_freq_factor
    blend_F = (spec.original_max_position / wavelength_F - spec.low_freq_factor) / (
        spec.high_freq_factor - spec.low_freq_factor
    )
    blended_F = (1 - blend_F) * plain_F / spec.factor + blend_F * plain_F
    scaled_F = torch.where(wavelength_F > longest_blended, plain_F / spec.factor, blended_F)
    return torch.where(wavelength_F < longest_kept, plain_F, scaled_F)


def _yarn_frequencies(spec: RopeSpec, exponents_F: torch.Tensor) -> torch.Tensor:
    def dimension_of(num_rotations: float) -> float:
        length = spec.original_max_position / (num_rotations * 2 * math.pi)
        return spec.num_rotated * math.log(length) / (2 * math.log(spec.theta))

    low, high = dimension_of(spec.beta_fast), dimension_of(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.num_rotated - 1)
    if low == high:
        high += 0.001
    ramp_F = (torch.arange(spec.num_rotated // 2, dtype=torch.float32) - low) / (high - low)
    kept_F = 1 - ramp_F.clamp(0, 1)
    powers_F = spec.theta**exponents_F
    return (1.0 / (spec.factor * powers_F)) * (1 - kept_F) + (1.0 / powers_F) * kept_F


class RopeTable:
    """Cosine and signed sine of every position below max_positions, computed once in float32.

    dtype: what the rotation is computed in: the model's own type, as transformers does. lag: a row is
    turned as if it stood so many positions before its own, or at the first.
    """

    def __init__(
        self,
        spec: RopeSpec,
        max_positions: int,
        compute: Compute,
        *,
        lag: int = 0,
    ) -> None:
        position_P = (torch.arange(max_positions) - lag).clamp(min=0)
        angles_PF = position_P.float()[:, None] * rope_frequencies(spec, max_positions)
        table_P2H = torch.zeros(max_positions, 2, 1, spec.head_dim, dtype=compute.dtype)
        table_P2H[:, 0] = 1  # what is not rotated has the angle 0
        half, num_pairs = spec.head_dim // 2, spec.num_rotated // 2
        cosine_PF = angles_PF.cos() * spec.attention_factor
        table_P2H[:, 0, 0, :num_pairs] = cosine_PF
        table_P2H[:, 0, 0, half : half + num_pairs] = cosine_PF
        sine_PF = angles_PF.sin_() * spec.attention_factor
        table_P2H[:, 1, 0, :num_pairs] = -sine_PF
        table_P2H[:, 1, 0, half : half + num_pairs] = sine_PF
        self._table_P2H = table_P2H.to(compute.device)

    def at(self, positions_T: torch.Tensor) -> Angles:
        """Return the angles of rows at these positions."""
        return Angles(self._table_P2H, positions_T)
