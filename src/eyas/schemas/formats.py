"""The values of `format`: what the backend enforces, what patterns enforce, what nobody can.

By the standard an unknown format is an annotation: validators ignore it, so it asserts nothing.
Does not know: how schemas are walked.
"""

from __future__ import annotations

NATIVE = frozenset(
    (
        *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
        "uri",
    )
)
"""llguidance has a grammar for these."""

INEXPRESSIBLE = frozenset(("regex", "idn-email", "idn-hostname"))
"""Formats of the standard that no regular expression of reasonable size describes."""

_UNRESERVED = r"[a-zA-Z0-9\-._\~!$\&'()*+,;=:@]"
_PCT = "%[0-9a-fA-F]{2}"
_IRI_CHAR = (
    r"[a-zA-Z0-9\-._\~!$\&'()*+,;=:@\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\U00010000-\U000efffd]"
)


def _reference(char: str) -> str:
    """RFC 3986 4.1 (3987 for international characters): absolute, or a relative reference whose first
    segment has no colon."""
    segment = f"(?:{char}|{_PCT})"
    scheme = "[a-zA-Z][a-zA-Z0-9+.-]*:"
    no_colon = f"(?:{char.replace(':', '', 1)}|{_PCT})"
    host = rf"(?:{no_colon}|:)*|(?:{no_colon}|:)*\[[0-9a-fA-F:.]+\](?::[0-9]*)?"
    with_host = f"//(?:{host})(?:/{segment}*)*"
    tail = rf"(?:\?(?:{segment}|[/?])*)?(?:\#(?:{segment}|[/?])*)?"
    absolute = f"/(?:{segment}+(?:/{segment}*)*)?"
    rootless = f"{segment}+(?:/{segment}*)*"
    plain = f"{no_colon}+(?:/{segment}*)*"
    return f"^(?:{scheme}(?:{with_host}|{absolute}|{rootless})?|{with_host}|{absolute}|{plain})?{tail}$"


def _absolute(char: str) -> str:
    segment = f"(?:{char}|{_PCT})"
    tail = rf"(?:\?(?:{segment}|[/?])*)?(?:\#(?:{segment}|[/?])*)?"
    rest = f"(?://{segment}*(?:/{segment}*)*|/(?:{segment}+(?:/{segment}*)*)?|{segment}+(?:/{segment}*)*)"
    return f"^[a-zA-Z][a-zA-Z0-9+.-]*:{rest}?{tail}$"


_POINTER = r"(?:/(?:[^/\~]|\~[01])*)*"

PATTERNS = {
    "uri-reference": _reference(_UNRESERVED),
    "iri": _absolute(_IRI_CHAR),
    "iri-reference": _reference(_IRI_CHAR),
    "uri-template": (
        rf"^(?:[a-zA-Z0-9\-._\~!$\&()*+,;=:@/?\#\[\]]|{_PCT}"
        r"|\{[+\#./;?\&]?[a-zA-Z0-9_]+(?:\.[a-zA-Z0-9_]+)*(?::[1-9][0-9]{0,3}|\*)?"
        r"(?:,[a-zA-Z0-9_]+(?:\.[a-zA-Z0-9_]+)*(?::[1-9][0-9]{0,3}|\*)?)*\})*$"
    ),
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": rf"^(?:0|[1-9][0-9]*)(?:{_POINTER}|\#)$",
}
"""Formats of the standard as patterns."""
