"""Addresses of machines: their family, and the local address from which another one is reached.
Imports no torch. Does not know: who listens there, what is sent.
"""

from __future__ import annotations

import socket

Address = tuple[str, int]
"""Host and port."""


def listen(address: Address) -> socket.socket:
    """Return a socket that listens at an IPv4 or IPv6 address of this machine, and at no other.
    OSError: it cannot."""
    return socket.create_server(address, family=family_of(address), backlog=64)


def family_of(address: Address) -> socket.AddressFamily:
    """Return the family of an address. OSError: there is no such host."""
    return socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]


def own_address(other: Address) -> str:
    """Return the address of this machine from which it reaches another one, or itself. Sends nothing.
    OSError: the host does not exist or is not reachable."""
    with socket.socket(family_of(other), socket.SOCK_DGRAM) as route:
        route.connect(other)
        return route.getsockname()[0]
