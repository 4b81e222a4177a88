"""Commands that another package brings: they are there where it is installed.

Promises: the package is looked up and imported when one of its commands is asked for, and not before;
where it is not installed one line says how to get it. Does not know: what the commands do.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperGroup

GROUP = "eyas.commands"
"""Entry points of this group are typer apps, under the names of their commands."""


class InstalledGroup(TyperGroup):
    """The commands that the entry point of this group's name holds."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        found = entry_points(group=GROUP, name=self.name or "")
        if not found:
            raise ValueError(
                f"{self.name}: is not installed here; it comes with the package eyas-{self.name} "
                "(`pip install ./benchmarks` in a checkout of eyas)"
            )
        (entry, *_) = found
        loaded = typer.main.get_group(entry.load())
        self.commands.update(loaded.commands)
        return super().parse_args(ctx, args)
