"""The way of a schema through this room: limits, malformed parts, rewriting, endless parts, names.

Does not know: what the rewrites are.
"""

from __future__ import annotations

import json
from typing import Any

from eyas.core import GrammarError
from eyas.schemas.checking import check_document
from eyas.schemas.context import Context
from eyas.schemas.finite import without_endless
from eyas.schemas.joined import check_joined
from eyas.schemas.keywords import draft_of
from eyas.schemas.limits import MAX_OUTPUT_DEPTH, check_size, depth_of, fail, read, shortened
from eyas.schemas.names import spelled
from eyas.schemas.rewrite import Rewriter


def prepare(schema: dict[str, Any] | bool | str, *, param: str, lenient: bool = False) -> str:
    """A user's JSON schema (or its JSON text) as the JSON text that `grammar.Json` takes.

    param: the request's field, for errors. lenient: keywords that cannot be enforced are left out;
    what is malformed is an error all the same. GrammarError says what is wrong (invalid), what would
    be ignored (unsupported) or what is too large (too_complex), where, and what to do.
    """
    if isinstance(schema, str):
        schema = read(schema, param)
    check_size(schema, param)
    if not isinstance(schema, (dict, bool)):
        message = f"a schema is an object or a boolean, not {shortened(schema)}"
        raise fail(param, "#", message, "invalid")
    try:
        context = Context(schema, param, draft_of(schema), lenient)
        check_document(context)
        result = spelled(without_endless(Rewriter(context).document(context.root)), context)
        check_joined(result, context)
    except RecursionError:
        message = (
            f"{param}: the schema is nested too deeply; move parts into $defs, flatten choices"
        )
        raise GrammarError(message, "too_complex", param=param) from None
    if result is False:
        message = "no value satisfies the schema; look for parts that contradict or need themselves"
        raise fail(param, "#", message, "invalid")
    if depth_of(result) > MAX_OUTPUT_DEPTH:
        message = f"{param}: the schema is nested too deeply; move parts into $defs"
        raise GrammarError(message, "too_complex", param=param)
    return json.dumps({} if result is True else result, ensure_ascii=False, separators=(",", ":"))
