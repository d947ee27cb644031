"""The client of the store, a small TCP server by which the PEs of a job find each other without MPI.

One process of the job is the server (PE 0, or ``python -m pgas.run``). Every PE holds two connections to it for as long as the job lasts:
one for exchanges, one for news of failed PEs. store_messages.py describes their messages.

The server keeps state per group. A group is the PEs of one job (a process may form several jobs, one after another), or the launchers of
several nodes.
"""

import contextlib
import os
import secrets
import select
import socket
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from pgas.base import liveness
from pgas.base.agreement import of_another
from pgas.base.errors import BootstrapError
from pgas.job.bootstrap import store_messages as wire
from pgas.job.bootstrap.processes import flush, node_name
from pgas.job.bootstrap.store_messages import Address, Channel, Forged, Malformed, MessageKind, Unframed

#: Seconds between attempts to reach a server that may not have started.
_RETRY_S = 0.05

#: Maximum seconds of an attempt to reach a server, and of the first attempts if there are several ports, because other programs may listen
#: at some of them and answer slowly or not at all.
_ATTEMPT_S, _FIRST_ATTEMPT_S = 2.0, 0.1

#: Milliseconds between calls of poll() while a client waits.
_POLL_MS = 5

#: Maximum seconds of silence to count between two looks at a connection: this process may have been stopped meanwhile.
_LOOK_S = 2.0

#: The clients of this process.
_clients: "weakref.WeakSet[Store]" = weakref.WeakSet()


class News(NamedTuple):
    """News for a launcher."""

    why: str  #: what has ended the job; "" if the store has ended in good order, so that no more news comes
    status: int  #: exit status of the job


class _Lost(Exception):
    """The store is gone or unreachable, or the connection to it is not authentic. The text continues a sentence about the store."""


class _Line:
    """A connection to a store that has admitted this process."""

    def __init__(self, connection: socket.socket, channel: Channel, timeout_s: float, server: tuple[str, str, int]) -> None:
        self.socket, self._channel, self._timeout_s, self._server = connection, channel, timeout_s, server
        self._kept: list[tuple[MessageKind, bytes]] = []
        connection.setblocking(False)
        wire.keep_alive(connection, timeout_s)
        self.listen()

    def listen(self) -> None:
        """Start counting the seconds of silence. They do not count while this process does not wait for the store."""
        self._silent_s, self._looked = 0.0, time.monotonic()
        self._asks = self._looked + self._pause_s

    @property
    def _pause_s(self) -> float:
        """Seconds between PINGs. Shorter than SLACK_S, so that waits, whose errors name a PE, end before a silent store does."""
        return min(2.0, (self._timeout_s + wire.SLACK_S) / 4)

    def put(self, kind: MessageKind, *values: Any) -> None:
        """Send a message as soon as the connection accepts it."""
        self._channel.put(wire.message(kind, *values))

    def put_back(self, messages: list[tuple[MessageKind, bytes]]) -> None:
        """Let take() return these messages again, first."""
        self._kept[:0] = messages

    def take(self) -> tuple[MessageKind, bytes] | None:
        """Return the next message that has come, other than PONG, or None if there is none. Raises _Lost."""
        while True:
            try:
                taken = self._kept.pop(0) if self._kept else self._channel.take()
            except Unframed as error:
                raise _Lost(str(error)) from None
            if taken is None or taken[0] != MessageKind.PONG:
                return taken

    def wait(self, milliseconds: int) -> None:
        """Wait until the connection can send or receive, for a limited time, and then transfer(). Raises _Lost."""
        poller = select.poll()
        poller.register(self.socket, select.POLLIN | (select.POLLOUT if self._channel.unsent else 0))
        if poller.poll(milliseconds):
            self.transfer()
        self._look()

    def transfer(self) -> None:
        """Send and receive as much as possible without waiting. Raises _Lost."""
        channel = self._channel
        try:
            with contextlib.suppress(BlockingIOError):
                while channel.unsent:
                    del channel.unsent[: self.socket.send(channel.unsent)]
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError as error:
            raise _Lost(f"is {'unreachable' if wire.unreachable(error) else 'gone'} ({error.strerror})") from None
        if not data:
            raise _Lost("is gone: the process that served it has ended")
        self._silent_s = 0.0
        channel.received += data

    def _look(self) -> None:
        now = time.monotonic()
        self._silent_s += min(now - self._looked, _LOOK_S)
        self._looked = now
        if self._silent_s > self._timeout_s + wire.SLACK_S:
            host, node, pid = self._server
            cause = "is stopped" if node == node_name() and liveness.state(pid) == "stopped" else "is stopped, or the network is cut"
            silence = f"nothing has come from it for {self._timeout_s:g} s (PGAS_TIMEOUT)"
            raise _Lost(f"is unreachable: {silence}; process {pid} on {host}, which serves it, {cause}")
        if now > self._asks:
            self._asks = now + self._pause_s
            self.put(MessageKind.PING)
            self.transfer()

    def flush(self) -> None:
        """Send what is unsent, for at most a second."""
        deadline = time.monotonic() + 1.0
        with contextlib.suppress(OSError, ValueError, _Lost):  # A ValueError means that the socket is closed.
            poller = select.poll()
            poller.register(self.socket, select.POLLOUT)
            while self._channel.unsent and time.monotonic() < deadline:
                poller.poll(100)
                self.transfer()


class Store:
    """A job whose PEs meet at a store (bootstrap.Bootstrap).

    Args:
        group: the job's name at the store.
        timeout_s: PGAS_TIMEOUT, the limit of the attempts to reach the store, and later of its silence.

    Raises:
        BootstrapError: if the store is not reached in time, or refuses; the message names rank, address, and port.
    """

    last_call = ""

    def __init__(self, address: Address, rank: int, size: int, group: str, timeout_s: float) -> None:
        self.rank, self.size, self._group, self._timeout_s = rank, size, group, timeout_s
        self.met = False  # It stays False, because the store keeps a rank's data for later ranks.
        self._left = ""
        self._calls, at = self._enter(address, hears=False)
        try:
            self._news, _ = self._enter(at, hears=True)
        except BaseException:
            self._calls.socket.close()
            raise
        self.place, self.own_address = f"the store at {at}", str(self._calls.socket.getsockname()[0])
        _clients.add(self)

    def _enter(self, address: Address, *, hears: bool) -> tuple[_Line, Address]:
        """Return a connection to the store, and its address with its actual port."""
        why, answer, deadline = "", "did not reach the store at {}", time.monotonic() + self._timeout_s
        limit_s = _ATTEMPT_S if address.ports == 1 else _FIRST_ATTEMPT_S
        while True:
            for port in range(address.port, address.port + address.ports):
                at = Address(address.host, port, address.secret)
                left_s = deadline - time.monotonic()
                if left_s <= 0 and why:
                    break
                try:
                    return self._connect(at, max(0.1, min(limit_s, left_s)), hears=hears), at
                except _NotOurs as error:
                    why, answer = str(error), "found no store at {} that admitted it"
                    if address.ports == 1:
                        raise BootstrapError(f"rank {self.rank}: the store at {at} refuses: {error}") from None
                except OSError as error:
                    why = why or error.strerror or str(error)
            if time.monotonic() > deadline:
                raise BootstrapError(f"rank {self.rank} of {self.size} {answer.format(address)} in {self._timeout_s:g} s: {why}")
            time.sleep(_RETRY_S)
            limit_s = min(2 * limit_s, _ATTEMPT_S)

    def _connect(self, at: Address, seconds: float, *, hears: bool) -> _Line:
        deadline = time.monotonic() + seconds
        connection = socket.create_connection((at.host, at.port), seconds)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greeting = b""
            while len(greeting) < len(wire.MAGIC) + wire.NONCE:
                greeting += _received(connection, deadline, len(wire.MAGIC) + wire.NONCE - len(greeting))
            if not greeting.startswith(wire.MAGIC):
                raise _NotOurs("the server there is not a store of this version of pgas")
            nonce, channel = secrets.token_bytes(wire.NONCE), Channel()
            channel.begin(at.secret, greeting[len(wire.MAGIC) :] + nonce, serves=False)
            timeout_ms = min(max(1, int(self._timeout_s * 1000)), (1 << 31) - 1)
            here = socket.gethostname(), node_name(), os.getpid()
            channel.put(wire.message(MessageKind.HELLO, self._group, self.rank, self.size, *here, hears, at.port, timeout_ms))
            connection.sendall(nonce + channel.unsent)
            channel.unsent.clear()
            while (taken := channel.take()) is None:
                channel.received += _received(connection, deadline, 1 << 16)
            if taken[0] == MessageKind.REFUSED:
                raise _NotOurs(*wire.unpack(*taken))
            if taken[0] != MessageKind.WELCOME:
                raise _NotOurs(f"it answered {taken[0].name}")
            return _Line(connection, channel, self._timeout_s, wire.unpack(*taken))  # type: ignore[arg-type]
        except Forged:
            connection.close()
            raise _NotOurs("the secrets differ: this store belongs to another job or was started with a different PGAS_SECRET") from None
        except (Unframed, Malformed) as error:
            connection.close()
            raise _NotOurs(str(error)) from None
        except BaseException:
            connection.close()
            raise

    def allgather(self, data: bytes, poll: Callable[[], None]) -> list[bytes]:
        if self._left:
            raise BootstrapError(self._left)
        if len(data) > wire.EXCHANGE_MAX:
            raise BootstrapError(
                f"PE {self.rank} sends {len(data)} bytes to the other PEs, but all PEs together may send at most {wire.EXCHANGE_MAX}"
            )
        self._calls.put(MessageKind.GATHER, data)
        return wire.gathered(self._await(MessageKind.GATHERED, poll), self.size)

    @property
    def missing(self) -> set[int] | None:
        ranks = self._ask(MessageKind.ABSENT, MessageKind.MISSING)
        return None if ranks is None else {rank for rank in range(self.size) if ranks >> rank & 1}

    def _ask(self, answer: MessageKind, question: MessageKind, *values: Any) -> Any:
        """Return the only field of the answer to a question, or None if the store does not answer within a second."""
        self._calls.put(question, *values)
        deadline = time.monotonic() + 1.0

        def in_time() -> None:
            if time.monotonic() > deadline:
                raise TimeoutError

        try:
            return wire.unpack(answer, self._await(answer, in_time))[0]
        except (BootstrapError, TimeoutError):
            return None

    def _await(self, wanted: MessageKind, poll: Callable[[], None]) -> bytes:
        """Send pending messages, and return the body of the next message of a kind.

        Other messages before it are kept, unless it is GATHERED: then they are late answers to questions, and are dropped.
        """
        line, kept = self._calls, list[tuple[MessageKind, bytes]]()
        line.listen()
        try:
            while True:
                while (taken := line.take()) is not None:
                    kind, body = taken
                    if kind == MessageKind.LEFT:
                        (self._left,) = wire.unpack(kind, body)
                        raise of_another(BootstrapError(self._left))
                    if kind == MessageKind.REFUSED:
                        raise BootstrapError(f"{self.place} refuses a message of rank {self.rank}: {wire.unpack(kind, body)[0]}")
                    if kind == wanted:
                        return body
                    if wanted != MessageKind.GATHERED:
                        kept.append(taken)
                line.wait(_POLL_MS)
                poll()
                if self._left:  # poll() asked the store which ranks are missing, and received this message.
                    raise of_another(BootstrapError(self._left))
        except (_Lost, Malformed) as error:
            self._left = f"{self.place} {error}: the job cannot continue"
            raise of_another(BootstrapError(self._left)) from None
        finally:
            line.put_back(kept)

    def hearing(self) -> tuple[int, Callable[[], tuple[str, str] | None]]:
        self._news.listen()
        return self._news.socket.fileno(), self._hear

    def _hear(self) -> tuple[str, str] | None:
        """Return name and fate of a failed PE, or of the store; None for a PE on this node, because its process is watched directly."""
        try:
            self._news.wait(0)
            while (taken := self._news.take()) is not None:
                if taken[0] == MessageKind.REFUSED:
                    return self.place, f"refuses a message of rank {self.rank}: {wire.unpack(*taken)[0]}"
                if taken[0] == MessageKind.NEWS:
                    who, host, node, pid, how, _ = wire.unpack(*taken)
                    if node != node_name():
                        return f"{who} (process {pid} on {host})", how
        except (_Lost, Malformed) as error:
            return self.place, str(error)
        return None

    def leave(self, why: str) -> None:
        if not self._left:
            self._left = why
            self._calls.put(MessageKind.LEAVE, why[: wire.TEXT_MAX])
            self._calls.flush()

    def why_left(self) -> str:
        line, kept = self._calls, list[tuple[MessageKind, bytes]]()
        with contextlib.suppress(_Lost, Malformed):
            line.wait(0)
            while not self._left and (taken := line.take()) is not None:
                if taken[0] == MessageKind.LEFT:
                    (self._left,) = wire.unpack(*taken)
                else:
                    kept.append(taken)
        line.put_back(kept)
        return self._left

    def say_fate(self, rank: int, pid: int, how: str, status: int) -> int:
        """Report to the store how a PE of this launcher has ended. Return the exit status of the first PE that failed on any node, or 0.

        For a PE that ended with 0, this function does not wait for an answer.

        Args:
            rank: the PE's rank in its own group.
            how: text that describes how it ended.
            status: its exit status, which is also the result if the store does not answer.
        """
        if not status:
            self._calls.put(MessageKind.FATE, rank, pid, how, status)
            self._calls.flush()
            return 0
        first = self._ask(MessageKind.FIRST, MessageKind.FATE, rank, pid, how, status)
        return status if first is None else int(first)

    def news(self) -> News | None:
        """Return what has come to this launcher, or None. It must be called every second, because it also shows the store that it lives."""
        try:
            self._news.wait(0)
            while (taken := self._news.take()) is not None:
                if taken[0] == MessageKind.CLOSED:
                    return News("", 0)
                if taken[0] == MessageKind.NEWS:
                    who, host, _, pid, how, status = wire.unpack(*taken)
                    return News(f"{who} (process {pid} on {host}) {how}", status or 1)
        except (_Lost, Malformed) as error:
            return News(f"{self.place} {error}", 1)
        return None

    def is_of(self, comm: Any) -> bool:
        """Whether job and comm both consist of only this process. Other communicators cannot be compared with a store's job."""
        return self.size == 1 and getattr(comm, "size", None) == 1

    def abort(self, status: int) -> NoReturn:
        """End this process. The store notifies the others, and the launcher receives the status."""
        flush()
        os._exit(status)

    def close(self) -> None:
        if self._calls.socket.fileno() >= 0:
            self._calls.put(MessageKind.BYE)
            self._calls.flush()
        self.forget()

    def forget(self) -> None:
        """Close the connections without a message."""
        self._calls.socket.close()
        self._news.socket.close()


def _forked() -> None:
    """Close the connections in a forked child. Otherwise, the store would not notice the end of the parent."""
    for client in _clients:
        client.forget()


os.register_at_fork(after_in_child=_forked)


class _NotOurs(Exception):
    """The server is not the job's store, or refuses this process."""


def _received(connection: socket.socket, deadline: float, most: int) -> bytes:
    """Return some bytes, at least one. Raises OSError."""
    if (left := deadline - time.monotonic()) <= 0:
        raise TimeoutError(0, "it does not answer")
    connection.settimeout(left)
    if not (data := connection.recv(most)):
        raise ConnectionResetError(0, "it hung up")
    return data
