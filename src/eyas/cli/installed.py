"""Commands of another package, available where that package is installed.

Promises: the package is imported only when one of its commands is run; where it is not installed, the
error says how to install it. Does not know: what the commands do.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperGroup

GROUP = "eyas.commands"
"""The group of entry points; each is a typer app, named as its command."""


class InstalledGroup(TyperGroup):
    """A group whose commands are those of the entry point with the group's name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        entries = entry_points(group=GROUP, name=self.name or "")
        if not entries:
            raise ValueError(
                f"{self.name}: is not installed here; it is part of the package eyas-{self.name} "
                "(`pip install ./benchmarks` in a checkout of eyas)"
            )
        (entry, *_) = entries
        loaded = typer.main.get_group(entry.load())
        self.commands.update(loaded.commands)
        return super().parse_args(ctx, args)
