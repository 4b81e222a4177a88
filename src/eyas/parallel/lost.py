"""The error of ranks that cannot continue."""

from __future__ import annotations


class GroupLost(RuntimeError):
    """A rank has ended or does not answer, so the others cannot continue."""
