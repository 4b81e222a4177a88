"""Which web pages may use a server that has no key: what Host, Origin and Content-Type tell.

Any page makes its reader's browser send requests to wherever it likes. Which page it was stands in
Origin. A page whose own name was made to mean this machine (DNS rebinding) has no other Origin than its
Host, which is that name and none of this machine's.

Promises: without keys a request of a page is served only if it is this server's own or a configured
one, and JSON that a page sends says that it is JSON, so that its browser has asked before; what is no
page's is served whatever it is, if it calls this machine by a name of its own.
Does not know: routes, keys.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

from starlette.datastructures import Headers

from eyas.server.codes import Code
from eyas.server.errors import ApiError

_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?", re.ASCII)
_AUTHORITY = re.compile(r"(\[[0-9a-f:.%]+\]|[^:@/?#\[\]\s]+)(?::([0-9]{0,5}))?", re.ASCII)
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\S+)", re.ASCII)
_JSON_TYPE = re.compile(r"application/(?:[\w.+-]*\+)?json", re.ASCII)
_SHOWN_CHARS = 200


def checked_host(name: str) -> str:
    """A name as `--allowed-host` takes it, in lower case. ValueError for anything else."""
    lower = name.lower().removesuffix(".")
    if lower != "*" and not _NAME.fullmatch(lower):
        raise ValueError(
            f"allowed_hosts: {name[:_SHOWN_CHARS]!r} must be a host's name without a port, such as "
            "models.example.com, or '*' for any (addresses need not be allowed)"
        )
    return lower


def checked_origin(origin: str) -> str:
    """An origin as browsers write it. ValueError for anything else."""
    lower = origin.lower()
    if lower in ("*", "null"):
        return lower
    found = _ORIGIN.fullmatch(lower)
    place = found and _AUTHORITY.fullmatch(found[2])
    if not found or not place:
        raise ValueError(
            f"cors_origins: {origin[:_SHOWN_CHARS]!r} must be an origin such as "
            "https://chat.example.com or http://localhost:3000, or '*' for any"
        )
    is_default = place[2] is not None and place[2] == str(_DEFAULT_PORTS.get(found[1], ""))
    return f"{found[1]}://{place[1]}" if is_default else lower


class Origins:
    """Who may ask one server."""

    def __init__(
        self, bound_to: str | None, allowed_hosts: Sequence[str], cors_origins: Sequence[str]
    ) -> None:
        """bound_to: the address or name that the server listens at; None is a Unix socket, which no
        page can reach but through a proxy, and which clients call as they like: any name without a dot,
        which the public directory of names does not have, is its own then. allowed_hosts, cors_origins:
        as `checked_host` and `checked_origin` return them."""
        self._takes_labels = bound_to is None
        self._names = frozenset(allowed_hosts) | _names_of(bound_to or "localhost")
        self._origins = frozenset(cors_origins)

    def check_host(self, headers: Headers) -> None:
        """ApiError 403 for a name that is not this machine's."""
        for host in headers.getlist("host"):
            if host and not self._is_ours(host):
                shown = host[:_SHOWN_CHARS]
                name = shown.partition(":")[0]
                raise ApiError(
                    Code.HOST_NOT_ALLOWED,
                    f"Host: {shown!r} is no name of this server; use localhost or an address, start it "
                    f"with --allowed-host {name}, or with an API key",
                )

    def check_origin(self, headers: Headers) -> None:
        """ApiError 403 for a page of another site, unless it is a configured one."""
        host = headers.get("host", "")
        for origin in headers.getlist("origin"):
            if not (self._is_configured(origin) or _is_same(origin, host)):
                shown = origin[:_SHOWN_CHARS]
                raise ApiError(
                    Code.ORIGIN_NOT_ALLOWED,
                    f"Origin: pages of {shown!r} may not use this server; start it with "
                    f"--cors-origin {shown} to let them",
                )

    def check_content_type(self, method: str, headers: Headers) -> None:
        """ApiError 415 for what a browser lets any page send without asking here before."""
        if method != "POST" or "origin" not in headers:
            return
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if not _JSON_TYPE.fullmatch(kind):
            raise ApiError(
                Code.CONTENT_TYPE_NOT_ALLOWED,
                f"Content-Type: a web page must send application/json, not {kind[:_SHOWN_CHARS]!r}",
            )

    def _is_configured(self, origin: str) -> bool:
        return "*" in self._origins or origin.lower() in self._origins

    def _is_ours(self, host: str) -> bool:
        place = _AUTHORITY.fullmatch(host.lower())
        if place is None:
            return False
        if is_address(place[1]):
            return True  # nobody else's name can lead here by it
        name = place[1].removesuffix(".")
        if self._takes_labels and "." not in place[1]:
            return True
        return "*" in self._names or name in self._names or name.endswith(".localhost")


def is_address(host: str) -> bool:
    """Is it an address and no name? One of IPv6 may be in brackets."""
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _names_of(bound_to: str) -> frozenset[str]:
    """What this machine is called where the server listens there."""
    own = {"localhost", bound_to.lower().removesuffix(".")}
    is_loopback = is_address(bound_to) and ipaddress.ip_address(bound_to).is_loopback
    if not is_loopback and bound_to.lower() != "localhost":
        name = socket.gethostname().lower().removesuffix(".")
        first = name.partition(".")[0]
        own |= {name, first, f"{first}.local"}
    return frozenset(own)


def _is_same(origin: str, host: str) -> bool:
    """Is it the origin of pages that this server itself would serve as `host`?"""
    found = _ORIGIN.fullmatch(origin.lower())
    if found is None or found[1] not in _DEFAULT_PORTS:
        return False
    default = _DEFAULT_PORTS[found[1]]
    return _place_of(found[2], default) == _place_of(host.lower(), default) is not None


def _place_of(authority: str, default_port: int) -> tuple[str, int] | None:
    found = _AUTHORITY.fullmatch(authority)
    return None if found is None else (found[1], int(found[2] or default_port))
