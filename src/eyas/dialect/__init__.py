"""Formats of reasoning, answers and tool calls: one file for each family of models."""

from eyas.dialect.base import Dialect, Event, Segmenter, ToolSpec, Vocabulary, Wanted
from eyas.dialect.choose import check_parsers, dialect_reason, find_dialect
from eyas.dialect.offer import CHOICES, tool_specs
from eyas.dialect.segment import merged

__all__ = [
    "CHOICES",
    "Dialect",
    "Event",
    "Segmenter",
    "ToolSpec",
    "Vocabulary",
    "Wanted",
    "check_parsers",
    "dialect_reason",
    "find_dialect",
    "merged",
    "tool_specs",
]
