"""The descriptions of what a layer stores: keys and values per token, or a state per sequence. Models
declare them, the cache allocates them.

Promises: plain data.
Does not know: tensors, slots, seats.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerStore:
    """What one attention layer stores per token, and which keys its queries attend to.

    head_dim: width of keys and of queries. value_dim: the values are the first so many numbers of the
    keys, and are not stored a second time (latent attention); None is values of their own, as wide as
    keys.
    window: a query at position p attends to keys at positions > p - window; None is all of them.
    scale: factor of the dot products; None is head_dim ** -0.5.
    first_position: first position that has keys; earlier positions are never attended to.
    """

    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    scale: float | None = None
    first_position: int = 0
    value_dim: int | None = None

    @property
    def slot_shape(self) -> tuple[int, int, int]:
        """(1 or 2, G, H): keys, and values if they are not part of them; heads; width."""
        return (2 if self.value_dim is None else 1, self.num_kv_heads, self.head_dim)

    @property
    def output_dim(self) -> int:
        """The width of values, and of a query head's output."""
        return self.head_dim if self.value_dim is None else self.value_dim


@dataclass(frozen=True, slots=True)
class CompressedStore(LayerStore):
    """What a layer of compressed attention (`ops.compress`) stores per token.

    A query attends to the keys, which are also the values, of the latest `local_window` positions, and
    to one entry for each group of `rate` positions that is complete: for all of them, or for the
    `num_chosen` that its indexer prefers. A slot holds the token's key, the inputs from which entries
    are made, and, if the token is the last of its group, the entry. An entry is a function of the
    tokens on its path, so it is shared, drafted and dropped like the key beside it.

    overlaps: an entry is made of the group before, too. index_dim: width of the indexer's keys; 0
    where there is none. `window` is None: a slot is needed as long as its sequence.
    """

    local_window: int = 1
    rate: int = 1
    overlaps: bool = False
    index_dim: int = 0
    num_chosen: int = 0

    @property
    def span(self) -> int:
        """Positions that an entry is made of."""
        return self.rate * (1 + self.overlaps)

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of a row in order: key, inputs and gates of entries; the same of the indexer; the
        entry; the indexer's entry."""
        series = 1 + self.overlaps
        of_keys, of_index = series * self.head_dim, series * self.index_dim
        inputs = (self.head_dim, of_keys, of_keys, of_index, of_index)
        return (*inputs, self.head_dim, self.index_dim)

    @property
    def slot_shape(self) -> tuple[int, int, int]:
        return (1, 1, sum(self.widths))


@dataclass(frozen=True, slots=True)
class StateStore:
    """What one recurrent layer stores per sequence: a state, which each token updates.

    The state is float32 [num_heads, key_dim, value_dim]. An update is computed from the inputs of its
    own position and of the `reach` positions before it. input_width: numbers of a position's inputs,
    which have the model's type.
    """

    num_heads: int
    key_dim: int
    value_dim: int
    input_width: int
    reach: int

    def num_bytes(self, num_nodes: int, itemsize: int) -> int:
        """Return the bytes of one sequence whose trees have at most `num_nodes` nodes."""
        state = 4 * self.num_heads * self.key_dim * self.value_dim
        return state + (self.reach + num_nodes) * self.input_width * itemsize


@dataclass(frozen=True, slots=True)
class KVScales:
    """The scales of a layer whose keys and values are stored in a narrower number format than the
    model's: what is stored, times the scale, is the key or value. Values that are part of the keys
    have the scale of keys."""

    key: float = 1.0
    value: float = 1.0


Store = LayerStore | StateStore
