"""Passing file descriptors between the PEs of a node, through sockets (SCM_RIGHTS).

pidfd_getfd(2) would not need sockets, but it requires permission to trace the other process. Under Yama, a process grants that permission
with PR_SET_PTRACER. MPI libraries and crash handlers also use this setting, which cannot be read, so that pgas could not restore it.
Sockets need no such permission.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from pgas.base import credentials
from pgas.base.agreement import everywhere
from pgas.base.errors import BootstrapError
from pgas.base.liveness import described
from pgas.base.remedies import mend

#: Maximum time in seconds that a rank waits for the descriptors of the others.
_PASS_S = 30.0

#: Seconds between attempts to connect to a rank whose queue of connections is full.
_RETRY_S = 1e-3


def exchange_fds(rank: int, fd: int, allgather: Callable[[Any], list[Any]], near: Container[int] | None = None) -> dict[int, int]:
    """Return descriptors of the near ranks' files, by rank; the caller's own is ``fd`` itself. Collective; near ranks are on one node.

    Each pair of ranks has one connection. Both ends check that the process at the other end is that rank; other processes are rejected.

    Args:
        rank: position of this process in the result of allgather.
        fd: descriptor to pass to the others.
        allgather: exchange of small values among the processes.
        near: ranks that exchange descriptors with this one (a symmetric relation). Default: all.

    Raises:
        BootstrapError: raised on every rank, if the kernel does not allow such a connection or some rank has too many open files.
    """
    received: dict[int, int] = {}
    with contextlib.ExitStack() as undo:
        listener: socket.socket

        def listen() -> tuple[int, Any]:
            nonlocal listener
            listener = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(f"\0pgas-{os.getpid()}-{os.urandom(8).hex()}")
            listener.listen()
            return os.getpid(), listener.getsockname()

        def is_near(peer: int) -> bool:
            return near is None or peer in near

        def meet() -> None:
            # The higher rank of a pair connects, so that ranks never wait for each other in a cycle.
            deadline = time.monotonic() + _PASS_S
            with listener:
                for peer in filter(is_near, range(rank)):
                    pid, name = ranks[peer]
                    with _late({pid: peer}), _connect(pid, name, deadline) as connection:
                        received[peer] = _swap(connection, fd, deadline)
                above = {pid: peer for peer, (pid, _) in enumerate(ranks) if peer > rank and is_near(peer)}
                while above:
                    with _late(above):
                        listener.settimeout(_left(deadline))
                        connection, _ = listener.accept()
                    with connection:
                        process = credentials.of(connection)
                        if process.ours and process.pid in above:
                            peer = above.pop(process.pid)
                            with _late({process.pid: peer}):
                                received[peer] = _swap(connection, fd, deadline)

        try:
            ranks = everywhere(allgather, listen, BootstrapError)
            everywhere(allgather, meet, BootstrapError)
        except BootstrapError as error:
            for duplicate in received.values():
                os.close(duplicate)
            raise BootstrapError(f"cannot pass memory between processes (SCM_RIGHTS): {error}; {mend('descriptors')}") from error
    return {**received, rank: fd}


@contextlib.contextmanager
def _late(peers: Mapping[int, int]) -> Iterator[None]:
    """Convert a timeout into one that names the ranks that were awaited. peers: rank by process."""
    try:
        yield
    except TimeoutError:
        late = ", ".join(f"PE {peer} {described(pid)}" for pid, peer in peers.items())
        raise TimeoutError(f"nothing came from {late} in {_PASS_S:g} s") from None


def _connect(pid: int, name: Any, deadline: float) -> socket.socket:
    """Return a connection to a rank: a process and the name at which it listens."""
    with contextlib.ExitStack() as undo:
        connection = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        while True:
            connection.settimeout(_left(deadline))
            try:
                connection.connect(name)
                break
            except BlockingIOError:  # because a socket with a timeout does not wait for room in the queue
                time.sleep(_RETRY_S)
        if credentials.of(connection) != (pid, True):
            raise OSError(f"the socket of process {pid} belongs to another process")
        undo.pop_all()
    return connection


def _swap(connection: socket.socket, fd: int, deadline: float) -> int:
    """Send a descriptor and return the one that comes from the other end."""
    connection.settimeout(_left(deadline))
    try:
        socket.send_fds(connection, [b"\0"], [fd])
        message, fds, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        message = b""
    if not message:
        raise OSError("the other process has given up")
    if not fds:
        raise OSError("a descriptor was lost on its way: too many open files")
    return fds[0]


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
