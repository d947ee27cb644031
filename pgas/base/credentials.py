"""The process at the other end of a Unix socket, as the kernel reports it.

The sockets of pgas have abstract names, which have no file permissions: every user of the node sees them in /proc/net/unix, may connect
and send to them, and may bind a free name. Each end therefore checks the other one before it trusts or sends anything.
"""

import os
import socket
import struct
from typing import NamedTuple

_UCRED = struct.Struct("3i")  # pid, uid, gid


class Peer(NamedTuple):
    """The process at the other end, and whether it has the same user as this process."""

    pid: int
    ours: bool


def of(connection: socket.socket) -> Peer:
    """Return the process that connected or, on the connecting side, the process that listens. For SOCK_STREAM and SOCK_SEQPACKET."""
    pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid, uid == os.geteuid())


def name_senders(inbox: socket.socket) -> None:
    """Let the kernel add the sender's credentials to each datagram. Call it before bind(): earlier datagrams have none."""
    inbox.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def receive(inbox: socket.socket, nbytes: int) -> tuple[bytes, bytes, Peer]:
    """Return the next datagram, and the address and process of its sender. Descriptors in it are dropped. Needs name_senders()."""
    data, ancillary, _, address = inbox.recvmsg(nbytes, socket.CMSG_SPACE(_UCRED.size))
    for level, kind, value in ancillary:
        if (level, kind, len(value)) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, _UCRED.size):
            pid, uid, _ = _UCRED.unpack(value)
            return data, address, Peer(pid, uid == os.getuid())  # a datagram carries the real uid
    return data, address, Peer(0, False)
