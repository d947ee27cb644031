"""The client of the store, a small TCP server by which the PEs of a job find each other without MPI.

One process of the job is the server (PE 0, or ``python -m pgas.run``). Every PE holds two connections to it for as long as the job lasts:
one for exchanges, one for news of dead PEs. Both sides prove that they know the job's secret: each answers the other's nonce with an HMAC
(RFC 2104, SHA-256), so the secret itself is never sent. Later messages are neither encrypted nor signed.

A message is a header with kind and length, and a body. The server keeps state per group. A group is the PEs of one job (a process may form
several jobs, one after another), or the launchers of several machines.
"""

import contextlib
import hmac
import json
import os
import secrets
import select
import socket
import struct
import time
import weakref
from collections.abc import Callable
from typing import Any

from pgas.base.agreement import of_another
from pgas.base.errors import BootstrapError
from pgas.job.processes import flush, node_name
from pgas.job.store_messages import HEADER, HELLO_MAX, MAGIC, NONCE, Address, Kind, message, proof

__all__ = ["Store"]

#: Seconds between attempts to reach a server that may not have started.
_RETRY_S = 0.05

#: Milliseconds between calls of poll() while a client waits.
_POLL_MS = 5

#: The clients of this process.
_clients: "weakref.WeakSet[Store]" = weakref.WeakSet()


class Store:
    """A job whose PEs meet at a store (bootstrap.Bootstrap).

    Args:
        address: the store's address.
        rank: this PE's number.
        size: number of PEs.
        group: the job's name at the store.
        timeout_s: limit of the attempts to reach the store.
        poll: called meanwhile; may raise to end the attempts.

    Raises:
        BootstrapError: the store is not reached in time, or refuses; names rank, address and port.
    """

    last_call = ""

    def __init__(
        self, address: Address, rank: int, size: int, group: str, timeout_s: float, poll: Callable[[], None] = lambda: None
    ) -> None:
        self.rank, self.size, self._group, self.address = rank, size, group, address
        self.met = False  # always: the store keeps a rank's data for later ranks
        self._number, self._left = 0, ""
        self._received, self._unsent, self._heard = bytearray(), bytearray(), bytearray()
        self._calls, at = self._enter(address, time.monotonic() + timeout_s, timeout_s, poll, hears=False)
        try:
            self._news, _ = self._enter(at, time.monotonic() + timeout_s, timeout_s, poll, hears=True)
        except BaseException:
            self._calls.close()
            raise
        self.place = f"the store at {at}"
        _clients.add(self)

    def _enter(
        self, address: Address, deadline: float, timeout_s: float, poll: Callable[[], None], *, hears: bool
    ) -> tuple[socket.socket, Address]:
        """Return a connection to the store, and its address with its actual port."""
        why, answer = "", "did not reach the store at {}"
        while True:
            for port in range(address.port, address.port + address.ports):
                poll()
                try:
                    connection = self._connect(address.host, port, address.secret, max(0.1, min(2.0, deadline - time.monotonic())), hears)
                    return connection, Address(address.host, port, address.secret)
                except _NotOurs as error:
                    why, answer = str(error), "waited, but no store at {} admitted it"
                    if address.ports == 1:
                        raise BootstrapError(f"rank {self.rank}: the store at {address.host}:{port} refuses: {error}") from None
                except OSError as error:
                    why = why or error.strerror or str(error)
            if time.monotonic() > deadline:
                raise BootstrapError(f"rank {self.rank} of {self.size} {answer.format(address)} in {timeout_s:g} s: {why}")
            time.sleep(_RETRY_S)

    def _connect(self, host: str, port: int, secret: bytes, seconds: float, hears: bool) -> socket.socket:
        connection = socket.create_connection((host, port), seconds)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(max(seconds, _RETRY_S))
            greeting = _exactly(connection, len(MAGIC) + NONCE)
            if not greeting.startswith(MAGIC):
                raise _NotOurs("the server there is not a store of pgas")
            nonce = secrets.token_bytes(NONCE)
            text = json.dumps(
                {"group": self._group, "rank": self.rank, "size": self.size, "hears": hears, "nonce": nonce.hex(),
                 "host": socket.gethostname(), "node": node_name(), "pid": os.getpid(), "port": port}
            ).encode()  # fmt: skip
            connection.sendall(message(Kind.HELLO, proof(secret, b"client", greeting[len(MAGIC) :], text) + text))
            kind, nbytes = HEADER.unpack(_exactly(connection, HEADER.size))
            body = _exactly(connection, min(nbytes, HELLO_MAX))
            if kind == Kind.REFUSED:
                raise _NotOurs(body.decode(errors="replace"))
            if kind != Kind.WELCOME or not hmac.compare_digest(body, proof(secret, b"server", nonce)):
                raise _NotOurs("it does not know the job's secret")
            connection.setblocking(False)
        except BaseException:
            connection.close()
            raise
        return connection

    def allgather(self, data: bytes, poll: Callable[[], None]) -> list[bytes]:
        """Return every rank's data, by rank (bootstrap.Bootstrap)."""
        if self._left:
            raise BootstrapError(self._left)
        self._number += 1
        self._unsent += message(Kind.GATHER, struct.pack("<Q", self._number) + data)
        body = self._await(Kind.GATHERED, poll)
        lengths, at = struct.unpack_from(f"<{self.size}Q", body), 8 * self.size
        gathered = []
        for length in lengths:
            gathered.append(body[at : at + length])
            at += length
        return gathered

    @property
    def missing(self) -> set[int] | None:
        """Ranks that have not arrived at the exchange in which this process waits; None if the store does not answer."""
        missing = self._ask(message(Kind.MISSING, struct.pack("<Q", self._number)), Kind.ABSENT)
        return None if missing is None else set(missing)

    def _ask(self, question: bytes, answer: Kind) -> Any:
        """Return the answer to a question, None if the store does not answer in a second."""
        self._unsent += question
        deadline = time.monotonic() + 1.0

        def in_time() -> None:
            if time.monotonic() > deadline:
                raise TimeoutError

        try:
            return json.loads(self._await(answer, in_time))
        except (BootstrapError, TimeoutError):
            return None

    def _await(self, wanted: Kind, poll: Callable[[], None]) -> bytes:
        """Send pending messages, and return the body of the next message of a kind.

        Other messages before it are kept, unless it is GATHERED: then they are late answers to questions, and are dropped.
        """
        poller = select.poll()
        kept = bytearray()
        try:
            while True:
                while (taken := self._take()) is not None:
                    kind, body = taken
                    if kind == Kind.LEFT:
                        self._left = body.decode()
                        raise of_another(BootstrapError(self._left))
                    if kind == wanted:
                        return body
                    if wanted != Kind.GATHERED:
                        kept += message(Kind(kind), body)
                poller.register(self._calls, select.POLLIN | (select.POLLOUT if self._unsent else 0))
                if poller.poll(_POLL_MS):
                    self._transfer()
                poll()
                if self._left:  # poll() asked who is missing, and heard it
                    raise of_another(BootstrapError(self._left))
        finally:
            self._received[:0] = kept

    def _transfer(self) -> None:
        """Send and receive as much as possible without waiting."""
        try:
            with contextlib.suppress(BlockingIOError):
                while self._unsent:
                    del self._unsent[: self._calls.send(self._unsent)]
            data = self._calls.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError as error:
            data, why = b"", f" ({error.strerror})"
        else:
            why = ""
        if not data:
            self._left = f"the store at {self.address} is gone{why}: the process that served it has ended, and the job cannot go on"
            raise of_another(BootstrapError(self._left))
        self._received += data

    def _take(self) -> tuple[int, bytes] | None:
        """Return the next complete message."""
        return _first_message(self._received)

    def hearing(self) -> tuple[int, Callable[[], tuple[str, int, str] | None]]:
        """Return the descriptor of the connection for news, and the function that reads them (bootstrap.Bootstrap)."""
        return self._news.fileno(), self._hear

    def _hear(self) -> tuple[str, int, str] | None:
        """Return name, pid and fate of a dead PE; None for a PE of this machine, as its process is watched directly."""
        try:
            data = self._news.recv(1 << 16)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            return f"the store at {self.address}", 0, "is gone"
        self._heard += data
        while (taken := _first_message(self._heard)) is not None:
            news = json.loads(taken[1])
            if news["node"] != node_name():
                return f"PE {news['rank']} on {news['host']}", news["pid"], news["how"]
        return None

    def leave(self, why: str) -> None:
        """Leave all further exchanges, and let the store send the reason to the others."""
        if not self._left:
            self._left = why
            self._unsent += message(Kind.LEAVE, why.encode())
            self._flush()

    def say_fate(self, rank: int, how: str, status: int) -> int:
        """Tell the store how a PE that this launcher started has failed; return the exit status of the first PE that failed anywhere.

        Args:
            rank: the PE's rank in its own group.
            how: words.
            status: its exit status; the result if the store does not answer.
        """
        first = self._ask(message(Kind.FATE, json.dumps([rank, how, status]).encode()), Kind.FIRST)
        return status if first is None else int(first)

    def _flush(self) -> None:
        deadline = time.monotonic() + 1.0
        with contextlib.suppress(OSError, BootstrapError):
            while self._unsent and time.monotonic() < deadline:
                select.select([], [self._calls], [], 0.1)
                self._transfer()

    def is_of(self, comm: Any) -> bool:
        """Whether job and comm both consist of this process only; other communicators cannot be compared with a store's job."""
        return self.size == 1 and getattr(comm, "size", None) == 1

    def abort(self, status: int) -> None:
        """End this process. The store tells the others, and the launcher sees the status."""
        flush()
        os._exit(status)

    def close(self) -> None:
        """Leave in good order. Further calls do nothing."""
        if self._calls.fileno() >= 0:
            self._unsent += message(Kind.BYE)
            self._flush()
        self.forget()

    def forget(self) -> None:
        """Close the connections without a message."""
        self._calls.close()
        self._news.close()


def _forked() -> None:
    """Close the connections in a forked child: while it has them, the store does not notice that its parent is dead."""
    for client in _clients:
        client.forget()


os.register_at_fork(after_in_child=_forked)


def _first_message(received: bytearray) -> tuple[int, bytes] | None:
    """Take the first complete message off what was received, None if there is none."""
    if len(received) < HEADER.size:
        return None
    kind, nbytes = HEADER.unpack_from(received)
    if len(received) < HEADER.size + nbytes:
        return None
    body = bytes(received[HEADER.size : HEADER.size + nbytes])
    del received[: HEADER.size + nbytes]
    return kind, body


class _NotOurs(Exception):
    """The server is not the job's store, or refuses this process."""


def _exactly(connection: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        read = connection.recv(nbytes - len(data))
        if not read:
            raise ConnectionResetError(0, "it hung up")
        data += read
    return data
