"""Which weights of a network stay packed, by the names of their parameters.

Promises: names are those of `parameters()` of the same room, such as "q.weight" in attention.
Does not know: who decides (`eyas.models.packing` does).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from eyas.kernels.packed import Layout

Layouts = Mapping[str, Layout]
"""The layout of each weight that stays packed; others are stored as values."""
UNPACKED: Layouts = {}


def within(layouts: Layouts, room: str) -> Layouts:
    """Return those of a room within this one, by their names there."""
    start = f"{room}."
    return {name[len(start) :]: each for name, each in layouts.items() if name.startswith(start)}


def common(layouts: Layouts, parts: Iterable[str]) -> Layout | None:
    """Return the layout of a weight that has these parts, which is that of all of them."""
    found = {layouts.get(f"{part}.weight") for part in parts}
    assert len(found) == 1, "parts of a weight have one layout"
    return found.pop()
