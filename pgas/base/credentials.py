"""Who is at the other end of a Unix socket, as the kernel knows it.

The sockets of pgas have abstract names, which no file permissions protect: every user of the machine sees them in /proc/net/unix, may
connect and send to them, and may take a name that is free. Each end therefore asks who the other one is before it believes or sends
anything.
"""

import os
import socket
import struct
from typing import NamedTuple

__all__ = ["Peer", "name_senders", "of", "receive"]

_UCRED = struct.Struct("3i")  # pid, uid, gid


class Peer(NamedTuple):
    """The process at the other end, and whether it is of this process's user."""

    pid: int
    ours: bool


def of(connection: socket.socket) -> Peer:
    """Return who connected to this process or, on the side that connected, who listens. For SOCK_STREAM and SOCK_SEQPACKET."""
    pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid, uid == os.geteuid())


def name_senders(inbox: socket.socket) -> None:
    """Let the kernel name the sender of each datagram. To be called before bind(), as datagrams that came earlier have no name."""
    inbox.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def receive(inbox: socket.socket, nbytes: int) -> tuple[bytes, bytes, Peer]:
    """Return the next datagram, the address of its sender, and who that is. Descriptors that come with it are dropped.

    The sender is asked for by name_senders().
    """
    data, ancillary, _, address = inbox.recvmsg(nbytes, socket.CMSG_SPACE(_UCRED.size))
    for level, kind, value in ancillary:
        if (level, kind, len(value)) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, _UCRED.size):
            pid, uid, _ = _UCRED.unpack(value)
            return data, address, Peer(pid, uid == os.getuid())  # the real one: what the kernel puts into a datagram
    return data, address, Peer(0, False)
