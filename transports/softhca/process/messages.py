"""The messages between PEs and the server over a Unix socket: a header, a body, and in some cases file descriptors.

Each request is answered by one message: OK or REFUSED (the body is the reason). The body of COMMAND is outlen (4 bytes, little-endian) and
the PRM's bytes; that of its answer is the PRM's bytes; all other bodies are JSON. Requests of one connection are answered in order.
"""

import contextlib
import json
import os
import socket
import struct
from enum import IntEnum
from typing import Any

from pgas.base.errors import TransportError

#: What PE 0 sends through the control socket before it closes it; without it, PE 0 is dying.
END = b"end"


class RequestKind(IntEnum):
    """Kinds of messages."""

    OK = 0
    REFUSED = 1
    HELLO = 2  # a PE: its number and pid; or an observer. Answer: the BAR's descriptor
    SHARE = 3  # (address, nbytes) of memory, with its descriptor
    COMMAND = 4
    ALLOC_PD = 5
    DEALLOC_PD = 6
    REGISTER_UMEM = 7
    DEREGISTER_UMEM = 8
    REGISTER_MR = 9
    DEREGISTER_MR = 10
    ALLOC_UAR = 11
    DEALLOC_UAR = 12
    DIAGNOSE = 13
    COUNTERS = 14
    FAULTS = 15
    PAUSE = 16
    RESUME = 17
    TRACE = 18  # kinds to trace; answer: the lines since the last request
    SET_INDEX = 19
    LEND = 20  # memory.Loan of a PE; the message carries its descriptors
    TAKE_BACK = 21  # the number of a loan
    UNSHARE = 22  # (address, nbytes) of shared memory without registered regions


_HEADER = struct.Struct("<IHH")  # nbytes of the body, kind, number of descriptors

#: Maximum number of bytes of a message. PRM commands have a few KiB, counters of all QPs some 100 KiB.
BODY_MAX = 4 << 20


def pack(kind: RequestKind, body: Any = None, nfds: int = 0) -> bytes:
    """Return the bytes of a message; a body that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return _HEADER.pack(len(data), kind, nfds) + data


def send(connection: socket.socket, kind: RequestKind, body: Any = None, fds: tuple[int, ...] = ()) -> None:
    """Send a message."""
    data = pack(kind, body, len(fds))
    if fds:
        sent = socket.send_fds(connection, [data], list(fds))
        data = data[sent:]
    if data:
        connection.sendall(data)


def receive(connection: socket.socket) -> tuple[RequestKind, bytes, list[int]] | None:
    """Return the next message and its descriptors, None at the end of the connection. Blocks.

    Raises:
        OSError: the connection broke, or its data is not a message.
        TransportError: this process has too many open files for the descriptors; the connection goes on.
    """
    with contextlib.ExitStack() as undo:
        head, fds = b"", list[int]()
        while len(head) < _HEADER.size:
            data, received, _, _ = socket.recv_fds(connection, _HEADER.size - len(head), 8, socket.MSG_CMSG_CLOEXEC)
            for fd in received:
                undo.callback(os.close, fd)
            fds += received
            if not data:
                return None
            head += data
        nbytes, kind, nfds = _HEADER.unpack(head)
        if nbytes > BODY_MAX or kind not in RequestKind.__members__.values():
            raise OSError(f"not a message of the software NIC: kind {kind}, {nbytes} bytes")
        body = bytearray()
        while len(body) < nbytes:
            data = connection.recv(nbytes - len(body))
            if not data:
                return None
            body += data
        if len(fds) != nfds:  # Linux drops descriptors beyond the limit
            raise TransportError(f"softhca: {len(fds)} of {nfds} descriptors came with a message: too many open files")
        undo.pop_all()
        return RequestKind(kind), bytes(body), fds
