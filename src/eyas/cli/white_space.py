"""The options for white space in JSON.

Does not know: patterns; `eyas.white_space` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from eyas.cli.options import GRAMMAR, grammar_option
from eyas.white_space import MAX_INDENTATION


@dataclass(frozen=True, kw_only=True)
class WhiteSpaceOptions:
    """The white space of a request that does not set it."""

    whitespace_pattern: Annotated[
        str | None,
        grammar_option(
            help="Pattern of the white space allowed between the parts of JSON, such as '[ ]?'; '' "
            "allows none. Default: at most one blank, then at most one line break with up to "
            f"{MAX_INDENTATION} characters of indentation.",
            metavar="<pattern>",
        ),
    ] = GRAMMAR.white_space
    disable_any_whitespace: Annotated[
        bool,
        grammar_option(
            "--disable-any-whitespace",
            help="Write JSON with ', ' and ': ' and no other white space.",
        ),
    ] = not GRAMMAR.any_white_space
