"""How many bytes the other end of a socket on this machine has not read yet, as the kernel says it."""

from __future__ import annotations

import fcntl
import socket
import struct

import trio

DEADLINE = 5.0
"""Seconds that a peer is given to read what was sent to it, before a fault goes on without that."""
_OUTGOING = 0x5411
"""SIOCOUTQ: bytes that were sent and not yet acknowledged (TCP), or not yet read (unix sockets)."""
_SOCK_DIAG, _BY_FAMILY = 4, 20
"""NETLINK_SOCK_DIAG and SOCK_DIAG_BY_FAMILY."""


async def read_by_peer(bare: socket.socket) -> bool:
    """Wait until the peer has read all that was sent; False when it has not after `DEADLINE` seconds.

    The kernel has no event for this, so it is asked again and again. Of a peer on another machine it can only be
    told that its kernel has the bytes.
    """
    with trio.move_on_after(DEADLINE) as scope:
        pause = 0.0
        while unread(bare):
            await trio.sleep(pause)
            pause = min(0.005, pause + 0.0001)
    return not scope.cancelled_caught


def unread(bare: socket.socket) -> int:
    """Return how many bytes that were sent through `bare` its peer has not read."""
    left = int.from_bytes(fcntl.ioctl(bare, _OUTGOING, bytes(4)), "little", signed=True)
    return left if bare.family == socket.AF_UNIX else left + _received(bare)


def _received(bare: socket.socket) -> int:
    """Return the length of the peer's receive queue, 0 when the peer is not on this machine, or gone."""
    try:
        there, here = bare.getpeername(), bare.getsockname()
    except OSError:
        return 0
    peer, own = socket.inet_pton(bare.family, there[0]), socket.inet_pton(bare.family, here[0])
    if peer[:1] != b"\x7f" and bare.family == socket.AF_INET and peer != own:
        return 0
    identity = struct.pack("!HH16s16sIQ", there[1], here[1], peer.ljust(16, b"\0"), own.ljust(16, b"\0"), 0, 2**64 - 1)
    body = struct.pack("=BBBBI", bare.family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + identity
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.settimeout(DEADLINE)
            kernel.sendall(struct.pack("=IHHII", 16 + len(body), _BY_FAMILY, 1, 1, 0) + body)
            answer = kernel.recv(4096)
    except OSError:
        return 0  # The kernel cannot be asked: then what was acknowledged is all that is known.
    kind = struct.unpack_from("=H", answer, 4)[0]
    if kind != _BY_FAMILY:
        return 0
    queue: int = struct.unpack_from("=I", answer, 16 + 4 + 48 + 4)[0]
    return queue
