"""White space between the parts of JSON, said once more and for Python, to check what grammars say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from eyas.white_space import MAX_INDENTATION

GAP = re.compile(rf"[ \t]?(\r?\n[ \t]{{0,{MAX_INDENTATION}}})?")
GAPS = ["", " ", "\t", "\n", "\r\n", " \n", "\n\t\t", "\n" + " " * MAX_INDENTATION]
TOO_MUCH = ["  ", "\t ", "\n\n", "\r", " \n \n", "\n" + " " * (MAX_INDENTATION + 1), "\u00a0"]
_STRING = r'"(?:\\.|[^"\\])*(?:"|$)'
_PART = re.compile(rf'{_STRING}|[{{}}\[\],:]|[^\s{{}}\[\],:"]+', re.DOTALL)


def parts(value: Any, **options: Any) -> list[str]:
    """Of the JSON of a value."""
    return _PART.findall(json.dumps(value, **options))


def spaced(gap: Callable[[], str], value: Any, **options: Any) -> str:
    """JSON with a gap between any two parts."""
    first, *rest = parts(value, **options)
    return first + "".join(gap() + part for part in rest)


def is_bounded(text: str) -> bool:
    """Of JSON, or of its beginning: is there no more white space than may be?"""
    outside = re.sub(_STRING, '""', text, flags=re.DOTALL)
    return all(GAP.fullmatch(gap) for gap in re.findall(r"\s+", outside))
