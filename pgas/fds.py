"""Passing file descriptors between the PEs of a node: by pidfd_getfd(2), or through sockets (SCM_RIGHTS) where that is forbidden."""

import contextlib
import ctypes
import os
import socket
from collections.abc import Callable
from typing import Any

from pgas.bootstrap import everywhere
from pgas.errors import BootstrapError
from pgas.remedies import mend

__all__ = ["exchange_fds"]

_SYS_PIDFD_GETFD = 438  # the same on every architecture (Linux 5.6)
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, ctypes.c_ulong(-1)

#: Seconds until a rank gives up another one's descriptor.
_PASS_S = 30.0

_libc = ctypes.CDLL(None, use_errno=True)


def exchange_fds(rank: int, fd: int, allgather: Callable[[Any], list[Any]]) -> list[int]:
    """Return descriptors of every rank's file, by rank; its own is ``fd`` itself. Collective; all ranks are on one node.

    Args:
        rank: position of this process in what allgather returns.
        fd: descriptor to hand to the others.
        allgather: exchange of small values among the processes.

    Raises:
        BootstrapError: the kernel allows neither way, or some rank has too many open files; on every rank.
    """
    # Yama (ptrace_scope 1) lets only ancestors read a process's descriptors, unless the process allows it.
    _libc.prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)
    peers = allgather((os.getpid(), fd))
    fds = [fd if peer == rank else _pidfd_getfd(*who) for peer, who in enumerate(peers)]
    everyone_has_all = all(allgather(min(fds) >= 0))
    _libc.prctl(_PR_SET_PTRACER, 0, 0, 0, 0)
    if everyone_has_all:
        return fds
    for peer, duplicate in enumerate(fds):
        if peer != rank and duplicate >= 0:
            os.close(duplicate)
    return _through_sockets(rank, fd, allgather)


def _pidfd_getfd(pid: int, fd: int) -> int:
    """Return a duplicate of another process's descriptor, -1 if the kernel refuses."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return -1
    try:
        return int(_libc.syscall(_SYS_PIDFD_GETFD, pidfd, fd, 0))
    finally:
        os.close(pidfd)


def _through_sockets(rank: int, fd: int, allgather: Callable[[Any], list[Any]]) -> list[int]:
    """Every rank sends its descriptor to an abstract socket (no file is left behind) of every other. What fails on one fails on all."""
    received: dict[int, int] = {}
    inbox: socket.socket
    with contextlib.ExitStack() as inboxes:

        def listen() -> Any:
            nonlocal inbox
            inbox = inboxes.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            inbox.bind(f"\0pgas-{os.getpid()}-{os.urandom(8).hex()}")
            inbox.settimeout(_PASS_S)
            return inbox.getsockname()

        def send_and_receive() -> None:
            for distance in range(1, len(names)):  # in turns: an inbox may hold no more than 10 messages
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outbox:
                    outbox.settimeout(_PASS_S)
                    outbox.connect(names[(rank + distance) % len(names)])
                    socket.send_fds(outbox, [rank.to_bytes(4, "little")], [fd])
                message, passed, _, _ = socket.recv_fds(inbox, 4, 1)
                if not passed:
                    raise OSError("a descriptor was lost on its way: too many open files")
                received[int.from_bytes(message, "little")] = passed[0]

        try:
            names = everywhere(allgather, listen, BootstrapError)
            everywhere(allgather, send_and_receive, BootstrapError)
        except BootstrapError as error:
            for duplicate in received.values():
                os.close(duplicate)
            raise BootstrapError(
                f"cannot pass memory between processes: pidfd_getfd and SCM_RIGHTS both fail ({error}); {mend('descriptors')}"
            ) from error
    return [fd if peer == rank else received[peer] for peer in range(len(names))]
