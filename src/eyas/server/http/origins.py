"""Which web pages may use a server without keys, decided by Host, Origin and Content-Type.

Any web page can make its reader's browser send requests to any address. The header Origin says which
page it was. A page whose own host name resolves to this machine (DNS rebinding) sends an Origin
that equals its Host, but that Host is not a name of this machine.

Promises: without keys, a request of a web page is served only if the page's origin is this server's
own or a configured one, and if JSON is declared as such, so that the browser has sent a preflight
request before. A request that is not sent by a web page is served if its Host is a name of this
machine.
Does not know: routes, keys.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

from starlette.datastructures import Headers

from eyas.server.http.codes import Code
from eyas.server.http.errors import ApiError

_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?", re.ASCII)
_AUTHORITY = re.compile(r"(\[[0-9a-f:.%]+\]|[^:@/?#\[\]\s]+)(?::([0-9]{0,5}))?", re.ASCII)
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\S+)", re.ASCII)
_JSON_TYPE = re.compile(r"application/(?:[\w.+-]*\+)?json", re.ASCII)
_SHOWN_CHARS = 200


def checked_host(name: str) -> str:
    """Return a host name for `--allowed-host` in lower case. ValueError if it is none."""
    lower = name.lower().removesuffix(".")
    if lower != "*" and not _NAME.fullmatch(lower):
        raise ValueError(
            f"allowed_hosts: {name[:_SHOWN_CHARS]!r} must be a host's name without a port, such as "
            "models.example.com, or '*' for any (addresses need not be allowed)"
        )
    return lower


def checked_origin(origin: str) -> str:
    """Return an origin in the form that browsers send. ValueError if it is none."""
    lower = origin.lower()
    if lower in ("*", "null"):
        return lower
    match = _ORIGIN.fullmatch(lower)
    authority = match and _AUTHORITY.fullmatch(match[2])
    if not match or not authority:
        raise ValueError(
            f"cors_origins: {origin[:_SHOWN_CHARS]!r} must be an origin such as "
            "https://chat.example.com or http://localhost:3000, or '*' for any"
        )
    is_default = authority[2] is not None and authority[2] == str(_DEFAULT_PORTS.get(match[1], ""))
    return f"{match[1]}://{authority[1]}" if is_default else lower


class Origins:
    """The hosts and origins whose requests one server accepts."""

    def __init__(
        self, bound_to: str | None, allowed_hosts: Sequence[str], cors_origins: Sequence[str]
    ) -> None:
        """bound_to: the address or name that the server listens at; None for a Unix socket. Web pages
        reach a Unix socket only through a proxy, and clients choose its Host freely, so every name
        without a dot, which public DNS does not have, counts as its own. allowed_hosts, cors_origins:
        as returned by `checked_host` and `checked_origin`.
        """
        self._accepts_undotted_names = bound_to is None
        self._names = frozenset(allowed_hosts) | _names_of(bound_to or "localhost")
        self._origins = frozenset(cors_origins)

    def check_host(self, headers: Headers) -> None:
        """Raise ApiError 403 if Host is not a name of this machine."""
        for host in headers.getlist("host"):
            if host and not self._is_own_host(host):
                shown = host[:_SHOWN_CHARS]
                name = shown.partition(":")[0]
                raise ApiError(
                    Code.HOST_NOT_ALLOWED,
                    f"Host: {shown!r} is not a name of this server; use localhost or an address, start "
                    f"it with --allowed-host {name}, or with an API key",
                )

    def check_origin(self, headers: Headers) -> None:
        """Raise ApiError 403 if Origin is neither this server's own nor a configured one."""
        host = headers.get("host", "")
        for origin in headers.getlist("origin"):
            if not (self._is_configured(origin) or _is_same_origin(origin, host)):
                shown = origin[:_SHOWN_CHARS]
                raise ApiError(
                    Code.ORIGIN_NOT_ALLOWED,
                    f"Origin: pages of {shown!r} may not use this server; start it with "
                    f"--cors-origin {shown} to let them",
                )

    def check_content_type(self, method: str, headers: Headers) -> None:
        """Raise ApiError 415 for a page's content type that browsers send without a preflight
        request."""
        if method != "POST" or "origin" not in headers:
            return
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if not _JSON_TYPE.fullmatch(content_type):
            raise ApiError(
                Code.CONTENT_TYPE_NOT_ALLOWED,
                "Content-Type: a web page must send application/json, not "
                f"{content_type[:_SHOWN_CHARS]!r}",
            )

    def _is_configured(self, origin: str) -> bool:
        return "*" in self._origins or origin.lower() in self._origins

    def _is_own_host(self, host: str) -> bool:
        authority = _AUTHORITY.fullmatch(host.lower())
        if authority is None:
            return False
        if is_address(authority[1]):
            return True  # a foreign name cannot resolve to a literal address
        name = authority[1].removesuffix(".")
        if self._accepts_undotted_names and "." not in authority[1]:
            return True
        return "*" in self._names or name in self._names or name.endswith(".localhost")


def is_address(host: str) -> bool:
    """Whether `host` is an IP address, not a name. IPv6 may be in brackets."""
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _names_of(bound_to: str) -> frozenset[str]:
    """Return the names of this machine for a server that listens at `bound_to`."""
    names = {"localhost", bound_to.lower().removesuffix(".")}
    is_loopback = is_address(bound_to) and ipaddress.ip_address(bound_to).is_loopback
    if not is_loopback and bound_to.lower() != "localhost":
        name = socket.gethostname().lower().removesuffix(".")
        first = name.partition(".")[0]
        names |= {name, first, f"{first}.local"}
    return frozenset(names)


def _is_same_origin(origin: str, host: str) -> bool:
    """Whether the origin is that of pages that this server would serve under `host`."""
    match = _ORIGIN.fullmatch(origin.lower())
    if match is None or match[1] not in _DEFAULT_PORTS:
        return False
    default = _DEFAULT_PORTS[match[1]]
    return _host_and_port(match[2], default) == _host_and_port(host.lower(), default) is not None


def _host_and_port(authority: str, default_port: int) -> tuple[str, int] | None:
    match = _AUTHORITY.fullmatch(authority)
    return None if match is None else (match[1], int(match[2] or default_port))
