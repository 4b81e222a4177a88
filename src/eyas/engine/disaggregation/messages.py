"""The conversation between a decode server and a prefill server about one prompt.

`Claim` asks for a prompt by its key; `Grant` or `Denied` answers; the rows follow, as the transport
moves them; then the decode server says `Done`, and the prompt is held no longer. The prefill server
says it too, so that rows that were read from its memory are known to have been the prompt's.

Promises: a message is msgpack of checked types behind its length, which is bounded; no pickle. A
conversation ends at a deadline, however slowly the other side sends.
Does not know: engines, how rows are moved.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import Literal

import msgspec

from eyas.core import RequestError

CLAIM_BYTES, GRANT_BYTES = 4096, 2**24
"""Longest messages that a prefill server and a decode server read."""
_LENGTH = struct.Struct("<I")


KVTransferCode = Literal["kv_handle_invalid", "kv_unavailable"]


class KVTransferError(RequestError):
    """A prompt that cannot be handed over. code: "kv_handle_invalid" if the handle can never be served
    here, "kv_unavailable" if the whole request can be sent again."""

    def __init__(
        self, reason: str, code: KVTransferCode = "kv_unavailable", *, has_room: bool = False
    ) -> None:
        """has_room: whether the prompt was named by bootstrap_room."""
        param = "bootstrap_room" if has_room else "kv_transfer_params"
        super().__init__(f"{param}: {reason}", param=param, code=code)
        self.reason = reason
        self.kv_transfer_code: KVTransferCode = code


class Claim(msgspec.Struct, frozen=True, tag="claim"):
    """Ask for the positions from `first` on. prompt: digest of all tokens. layout, transport: those of
    the decode server. waits: whether the prompt may not be computed yet."""

    key: str
    prompt: str
    layout: str
    transport: str
    first: int
    waits: bool = False


class Grant(msgspec.Struct, frozen=True, tag="grant"):
    """The rows follow. num_made: leading positions with rows of the drafting network. description: what
    the transport needs to know."""

    num_made: int
    description: bytes = b""


class Denied(msgspec.Struct, frozen=True, tag="denied"):
    """The prompt is not handed over. reason, code: of the `KVTransferError`."""

    reason: str
    code: KVTransferCode


class Done(msgspec.Struct, frozen=True, tag="done"):
    """All rows have arrived; as an answer to that: they were held until now."""


Message = Claim | Grant | Denied | Done
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class Link:
    """One end of a conversation. All calls raise OSError if it breaks or its time is over.

    seconds: until the deadline. most_bytes: longest message that is read.
    """

    def __init__(self, connection: socket.socket, seconds: float, most_bytes: int) -> None:
        self._socket = connection
        self._most_bytes = most_bytes
        self._deadline = time.monotonic() + seconds
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def restart(self, seconds: float) -> None:
        """Move the deadline to `seconds` from now."""
        self._deadline = time.monotonic() + seconds

    def send(self, message: Message) -> None:
        data = _encode(message)
        self.send_bytes(memoryview(_LENGTH.pack(len(data)) + data))

    def receive(self) -> Message:
        """Read a message. OSError if it is none."""
        head = bytearray(_LENGTH.size)
        self.receive_into(memoryview(head))
        (length,) = _LENGTH.unpack(head)
        if length > self._most_bytes:
            raise OSError(f"a message of {length} bytes")
        data = bytearray(length)
        self.receive_into(memoryview(data))
        try:
            return _decode(data)
        except msgspec.MsgspecError as error:
            raise OSError(f"not a message: {error}") from error

    def send_bytes(self, data: memoryview) -> None:
        while data:
            self.check()
            data = data[self._socket.send(data) :]

    def receive_into(self, data: memoryview) -> None:
        while data:
            self.check()
            count = self._socket.recv_into(data)
            if not count:
                raise ConnectionError("the other side has closed the connection")
            data = data[count:]

    def check(self) -> None:
        """Raise TimeoutError if the time is over. Calls on the socket wait no longer than that."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time limit is over")
        self._socket.settimeout(left)

    def check_is_open(self) -> None:
        """Raise OSError if the time is over, or if the other side, which has nothing to send now, has
        closed the connection."""
        self.check()
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            data = self._socket.recv(1, socket.MSG_PEEK)
            if not data:
                raise ConnectionError("the other side has closed the connection")

    def shut(self) -> None:
        """Break the conversation, from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
