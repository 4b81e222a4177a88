"""The values of `format`: enforced by the backend, enforced by a pattern, or refused.

By the standard an unknown format is an annotation, which validators ignore.
Does not know: how schemas are traversed.
"""

from __future__ import annotations

NATIVE = frozenset((*("duration", "email", "hostname", "ipv4", "uuid", "uri"),))
"""Formats that llguidance enforces."""

INEXPRESSIBLE = frozenset(("regex", "idn-email", "idn-hostname"))
"""Formats of the standard that no regular expression of reasonable size describes."""

_UNRESERVED = r"[a-zA-Z0-9\-._\~!$\&'()*+,;=:@]"
_PCT = "%[0-9a-fA-F]{2}"
_IRI_CHAR = (
    r"[a-zA-Z0-9\-._\~!$\&'()*+,;=:@\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\U00010000-\U000efffd]"
)


def _reference(char: str, *, is_relative: bool) -> str:
    """RFC 3986 4.1 (3987 for international characters): an absolute address, or with `is_relative` also
    a relative reference, whose first segment has no colon."""
    segment = f"(?:{char}|{_PCT})"
    scheme = "[a-zA-Z][a-zA-Z0-9+.-]*:"
    no_colon = f"(?:{char.replace(':', '', 1)}|{_PCT})"
    with_host = f"//{_authority(char)}(?:/{segment}*)*"
    tail = rf"(?:\?(?:{segment}|[/?])*)?(?:\#(?:{segment}|[/?])*)?"
    absolute = f"/(?:{segment}+(?:/{segment}*)*)?"
    rootless = f"{segment}+(?:/{segment}*)*"
    plain = f"{no_colon}+(?:/{segment}*)*"
    address = f"{scheme}(?:{with_host}|{absolute}|{rootless})?"
    if is_relative:
        address = f"(?:{address}|{with_host}|{absolute}|{plain})?"
    return f"^{address}{tail}$"


def _authority(char: str) -> str:
    """RFC 3986 3.2: only a host address in brackets has colons."""
    user = f"(?:{char.replace('@', '', 1)}|{_PCT})*@"
    name = f"(?:{char.replace(':@', '', 1)}|{_PCT})*"
    return rf"(?:{user})?(?:\[[0-9a-fA-F:.]+\]|{name})(?::[0-9]*)?"


_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_DATE = f"(?:{_YEAR}-{_DAY}|(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
"""RFC 3339's full-date, years 0001 to 9999, with the number of days of each month."""
_HOUR = "(?:[01][0-9]|2[0-3])"
_TIME = (
    rf"(?:{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-]{_HOUR}:[0-5][0-9])"
    r"|23:59:60(?:\.[0-9]+)?[zZ])"
)
"""RFC 3339's full-time; a leap second only as 23:59:60Z."""
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = "[0-9a-fA-F]{1,4}"


def _ipv6() -> str:
    """RFC 4291 2.2, in the form of RFC 3986 3.2.2: eight groups; the last two may be an IPv4 address,
    and one run of groups may be left out."""
    last = f"(?:{_HEX}:{_HEX}|{_OCTET}(?:\\.{_OCTET}){{3}})"
    forms = [f"(?:{_HEX}:){{6}}{last}", f"::(?:{_HEX}:){{5}}{last}"]
    for before in range(7):
        first = f"(?:(?:{_HEX}:){{0,{before}}}{_HEX})?"
        behind = {5: _HEX, 6: ""}.get(before, f"(?:{_HEX}:){{{max(0, 4 - before)}}}{last}")
        forms.append(f"{first}::{behind}")
    return f"^(?:{'|'.join(forms)})$"


_POINTER = r"(?:/(?:[^/\~]|\~[01])*)*"

PATTERNS = {
    "ipv6": _ipv6(),
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[tT]{_TIME}$",
    "uri-reference": _reference(_UNRESERVED, is_relative=True),
    "iri": _reference(_IRI_CHAR, is_relative=False),
    "iri-reference": _reference(_IRI_CHAR, is_relative=True),
    "uri-template": (
        rf"^(?:[a-zA-Z0-9\-._\~!$\&()*+,;=:@/?\#\[\]]|{_PCT}"
        r"|\{[+\#./;?\&]?[a-zA-Z0-9_]+(?:\.[a-zA-Z0-9_]+)*(?::[1-9][0-9]{0,3}|\*)?"
        r"(?:,[a-zA-Z0-9_]+(?:\.[a-zA-Z0-9_]+)*(?::[1-9][0-9]{0,3}|\*)?)*\})*$"
    ),
    "json-pointer": f"^{_POINTER}$",
    "relative-json-pointer": rf"^(?:0|[1-9][0-9]*)(?:{_POINTER}|\#)$",
}
"""Formats of the standard that are enforced by a pattern."""

_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"

NARROW_PATTERNS = {
    "ipv4": rf"^{_OCTET}(?:\.{_OCTET}){{3}}$",
    "hostname": f"^{_HOST}$",
    "email": rf"^{_ATOM}(?:\.{_ATOM})*@{_HOST}$",
}
"""Native formats for libraries whose own allow more. Of addresses without quotes and brackets."""
