"""The server of the store (store.py), a thread: it carries the exchanges among the clients of a group."""

import errno
import hmac
import json
import math
import os
import secrets
import selectors
import socket
import struct
import threading
import time
import weakref
from dataclasses import dataclass, field

from pgas.base.errors import BootstrapError
from pgas.base.remedies import mend
from pgas.base.waits import say
from pgas.job.store_messages import HEADER, HELLO_MAX, MAGIC, NONCE, Address, Kind, message, proof

__all__ = ["StoreServer"]

#: Seconds to wait for a client's HELLO, and for a launcher's FATE of a dead PE.
_HELLO_S, _FATE_S = 10.0, 0.5

#: Seconds to wait for the clients to leave before the server's process ends.
_LEAVE_S = 5.0

#: Most connections that have not yet proven that they know the secret. One more closes the oldest: a client of pgas proves it at once.
_STRANGERS_MAX = 128

#: The servers of this process.
_servers: "weakref.WeakSet[StoreServer]" = weakref.WeakSet()


class _Connection:
    """A connection of a client."""

    def __init__(self, connection: socket.socket, nonce: bytes) -> None:
        self.socket, self.nonce = connection, nonce
        self.received, self.unsent = bytearray(), bytearray()
        self.since = time.monotonic()
        self.group: _Group | None = None  #: None until it has proven that it knows the secret
        self.rank, self.host, self.node, self.pid, self.hears = -1, "", "", 0, False
        self.ending = False  #: to be closed when everything is sent


@dataclass
class _Group:
    """The clients of an exchange."""

    name: str
    size: int
    callers: dict[int, _Connection] = field(default_factory=dict)
    listeners: dict[int, _Connection] = field(default_factory=dict)
    parts: dict[int, dict[int, bytes]] = field(default_factory=dict)  #: of incomplete exchanges, by number and rank
    left: str = ""  #: why a rank left all further exchanges
    gone: dict[int, tuple[float, _Connection]] = field(default_factory=dict)  #: dead ranks to report, with the latest time to do so
    fates: dict[int, str] = field(default_factory=dict)


class StoreServer:
    """Serves the groups of a job, in a thread of this process.

    Args:
        host: the only address to listen on.
        port: 0: any free one.
        secret: the job's secret.
        ports: number of consecutive ports to try.

    Raises:
        BootstrapError: the address is not one of this machine, or the ports are in use.
    """

    def __init__(self, host: str, port: int, secret: bytes, ports: int = 1) -> None:
        self._secret = secret
        self._listener = _listen(host, port, ports)
        self.address = Address(host, self._listener.getsockname()[1], secret)
        self._groups: dict[str, _Group] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wakeup, self._stop = os.pipe()
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._clients: set[_Connection] = set()
        self._strangers: dict[_Connection, None] = {}  #: those that have not proven that they know the secret, in the order of their coming
        self._listens_again, self._told = math.inf, False
        self._first: int | None = None  #: exit status of the first PE of which a launcher told that it failed
        self._thread = threading.Thread(target=self._run, name="pgas store", daemon=True)
        self._thread.start()
        _servers.add(self)

    def _run(self) -> None:
        while True:
            for key, events in self._selector.select(_FATE_S):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj == self._wakeup:
                    return
                elif key.data in self._clients:
                    try:
                        self._serve(key.data, events)
                    except (ValueError, KeyError, TypeError, struct.error):  # a malformed message must not harm the other clients
                        self._drop(key.data)
            now = time.monotonic()
            for client in [c for c in self._strangers if now > c.since + _HELLO_S]:
                self._drop(client)
            if self._listens_again < now:
                self._listens_again = math.inf
                self._selector.register(self._listener, selectors.EVENT_READ)
            for group in self._groups.values():
                for rank in [rank for rank, (due, _) in group.gone.items() if now > due or rank in group.fates]:
                    self._tell(group, rank, group.gone.pop(rank)[1])

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._run_out_of_files(error)
            return  # other errors: the client has gone again
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = _Connection(connection, secrets.token_bytes(NONCE))
        self._clients.add(client)
        self._strangers[client] = None
        if len(self._strangers) > _STRANGERS_MAX:
            self._drop(next(iter(self._strangers)))
        self._selector.register(connection, selectors.EVENT_READ, client)
        self._send(client, MAGIC + client.nonce)

    def _run_out_of_files(self, error: OSError) -> None:
        """Make room for another connection, or do not listen for a moment: the listener would be ready all the time."""
        if self._strangers:
            self._drop(next(iter(self._strangers)))
            return
        self._selector.unregister(self._listener)
        self._listens_again = time.monotonic() + _FATE_S
        if not self._told:
            self._told = True
            say(f"the store at {self.address} can admit no more connections ({error.strerror}): {mend('open files')}")

    def _serve(self, client: _Connection, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._send(client, b"")
        if not events & selectors.EVENT_READ or client not in self._clients:
            return
        try:
            data = client.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        client.received += data
        while client in self._clients and len(client.received) >= HEADER.size:
            kind, nbytes = HEADER.unpack_from(client.received)
            if client.group is None and (kind != Kind.HELLO or nbytes > HELLO_MAX):
                self._drop(client)  # not a client of pgas: send nothing
                return
            if len(client.received) < HEADER.size + nbytes:
                return
            body = bytes(client.received[HEADER.size : HEADER.size + nbytes])
            del client.received[: HEADER.size + nbytes]
            self._answer(client, kind, body)

    def _answer(self, client: _Connection, kind: int, body: bytes) -> None:
        group = client.group
        if group is None:
            self._greet(client, body)
        elif kind == Kind.GATHER:
            self._gather(group, client.rank, int.from_bytes(body[:8], "little"), body[8:])
        elif kind == Kind.MISSING:
            missing = self._missing(group, int.from_bytes(body, "little"))
            self._send(client, message(Kind.ABSENT, json.dumps(missing).encode()))
        elif kind == Kind.LEAVE:
            group.left = group.left or body.decode()
            self._to_all(group, message(Kind.LEFT, group.left.encode()), but=client.rank)
        elif kind == Kind.FATE:
            rank, how, status = json.loads(body)
            if self._first is None:
                self._first = status
            self._send(client, message(Kind.FIRST, json.dumps(self._first).encode()))
            for other in self._groups.values():
                if other is not group:
                    other.fates[rank] = how
        elif kind == Kind.BYE:
            for members in (group.callers, group.listeners):
                members.pop(client.rank, None)
            if not group.callers and not group.left:  # otherwise the group stays, to tell ranks that come later
                self._groups.pop(group.name, None)

    def _greet(self, client: _Connection, body: bytes) -> None:
        """Admit a client or refuse it. A client that does not know the secret gets no reason but this."""
        answer, text = body[:32], body[32:]
        if not hmac.compare_digest(answer, proof(self._secret, b"client", client.nonce, text)):
            self._refuse(client, "the secrets differ: it is the store of another job, or of another PGAS_SECRET")
            return
        hello = json.loads(text)
        if hello["port"] != self.address.port:  # a stranger listens there, and passes the client's messages on
            self._refuse(client, f"it came for a store at port {hello['port']}, and this one is at {self.address.port}")
            return
        name, rank, size = hello["group"], hello["rank"], hello["size"]
        group = self._groups.setdefault(name, _Group(name, size))
        members = group.listeners if hello["hears"] else group.callers
        if size != group.size:
            why = f"rank {rank} says that there are {size} PEs, others that there are {group.size}"
        elif rank in members:
            other = members[rank]
            why = f"there is a rank {rank} already: process {other.pid} on {other.host}"
        else:
            client.group, client.rank, client.hears = group, rank, hello["hears"]
            client.host, client.node, client.pid = hello["host"], hello["node"], hello["pid"]
            members[rank] = client
            self._strangers.pop(client)
            self._send(client, message(Kind.WELCOME, proof(self._secret, b"server", bytes.fromhex(hello["nonce"]))))
            return
        self._refuse(client, why)

    def _refuse(self, client: _Connection, why: str) -> None:
        client.ending = True
        self._send(client, message(Kind.REFUSED, why.encode()))

    def _gather(self, group: _Group, rank: int, number: int, data: bytes) -> None:
        if group.left:
            self._send(group.callers[rank], message(Kind.LEFT, group.left.encode()))
            return
        parts = group.parts.setdefault(number, {})
        parts[rank] = data
        if len(parts) == group.size:
            del group.parts[number]
            lengths = struct.pack(f"<{group.size}Q", *(len(parts[r]) for r in range(group.size)))
            self._to_all(group, message(Kind.GATHERED, lengths + b"".join(parts[r] for r in range(group.size))))

    @staticmethod
    def _missing(group: _Group, number: int) -> list[int]:
        return sorted(set(range(group.size)) - group.parts.get(number, {}).keys())

    def _to_all(self, group: _Group, data: bytes, but: int | None = None) -> None:
        for rank, client in list(group.callers.items()):
            if rank != but:
                self._send(client, data)

    def _tell(self, group: _Group, rank: int, client: _Connection) -> None:
        """Tell a group that a rank is dead."""
        how = group.fates.get(rank, "ended without pgas.finalize()")
        news = json.dumps({"rank": rank, "host": client.host, "node": client.node, "pid": client.pid, "how": how})
        for listener in list(group.listeners.values()):
            self._send(listener, message(Kind.NEWS, news.encode()))
        group.left = group.left or f"PE {rank} (process {client.pid} on {client.host}) {how}: the job cannot go on"
        self._to_all(group, message(Kind.LEFT, group.left.encode()))

    def _send(self, client: _Connection, data: bytes) -> None:
        client.unsent += data
        try:
            while client.unsent:
                del client.unsent[: client.socket.send(client.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            client.unsent.clear()
            client.ending = True
        if client.ending and not client.unsent:
            self._drop(client)
        else:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unsent else 0)
            self._selector.modify(client.socket, events, client)

    def _drop(self, client: _Connection) -> None:
        """Close a connection. If it belonged to a rank that has not sent BYE, the others will be told that it is dead."""
        if client not in self._clients:
            return
        self._clients.discard(client)
        self._strangers.pop(client, None)
        self._selector.unregister(client.socket)
        client.socket.close()
        group = client.group
        if group is None:
            return
        members = group.listeners if client.hears else group.callers
        if members.get(client.rank) is client:
            del members[client.rank]
            if not client.hears:
                group.gone[client.rank] = time.monotonic() + _FATE_S, client

    def drain(self) -> None:
        """Serve until all clients have left, at most _LEAVE_S, before this process ends: their last messages may be under way."""
        deadline = time.monotonic() + _LEAVE_S
        while any(group.callers for group in list(self._groups.values())) and time.monotonic() < deadline:
            time.sleep(0.01)

    def close(self) -> None:
        """Stop the server. Further calls do nothing."""
        if self._stop < 0:
            return
        os.write(self._stop, b"\0")
        self._thread.join()
        self.forget()

    def forget(self) -> None:
        """Close all sockets, without the thread."""
        for client in list(self._clients):
            client.socket.close()
        self._listener.close()
        self._selector.close()
        for fd in (self._stop, self._wakeup):
            os.close(fd)
        self._stop = -1


def _forked() -> None:
    """Close the sockets in a forked child: while it has them, clients do not notice that this server is gone."""
    for server in _servers:
        if server._stop >= 0:
            server.forget()


os.register_at_fork(after_in_child=_forked)


def _listen(host: str, port: int, ports: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise BootstrapError(f"the store cannot listen on {host}:{port}: {error.strerror or error}") from error
    refused: OSError | None = None
    for offset in range(ports):
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address[0], port + offset, *address[2:]))
            listener.listen(1024)
            listener.setblocking(False)
            return listener
        except OSError as error:
            listener.close()
            refused = error
    raise BootstrapError(
        f"the store cannot listen on {Address(host, port, b'', ports)}: {refused.strerror if refused else ''}"
    ) from refused
