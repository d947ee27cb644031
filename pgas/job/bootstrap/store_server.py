"""The server of the store (store.py), a thread: it carries the exchanges among the clients of a group."""

import errno
import math
import os
import secrets
import selectors
import socket
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pgas.base.errors import BootstrapError
from pgas.base.remedies import mend
from pgas.base.waits import say
from pgas.job.bootstrap import store_messages as wire
from pgas.job.bootstrap.processes import node_name
from pgas.job.bootstrap.store_messages import LAUNCHERS, Address, Channel, Forged, Malformed, Message, MessageKind, Unframed

#: Seconds to wait for a client's HELLO, and for a launcher's FATE of a failed PE.
_HELLO_S, _FATE_S = 10.0, 0.5

#: Seconds to wait for the clients to leave before the server's process ends.
_LEAVE_S = 5.0

#: Maximum number of bytes that a client has not received before the server stops reading from it, so that a client can make the server
#: keep only a limited amount.
_UNSENT_MAX = 1 << 20

#: Maximum number of connections that have not yet proven that they know the secret. One more closes the oldest, because a client of pgas
#: proves it immediately.
_STRANGERS_MAX = 128

#: The servers of this process.
_servers: "weakref.WeakSet[StoreServer]" = weakref.WeakSet()


class _Connection:
    def __init__(self, connection: socket.socket, address: str) -> None:
        self.socket, self.address, self.nonce, self.channel = connection, address, secrets.token_bytes(wire.NONCE), Channel()
        self.channel.unsent += wire.MAGIC + self.nonce
        self.since = time.monotonic()
        self.group: _Group | None = None  #: None until it has proven that it knows the secret
        self.rank, self.host, self.node, self.pid, self.hears = -1, "", "", 0, False
        self.how = ""  #: its fate, if it ends without BYE and not like other clients
        self.ending = False  #: to be closed when everything is sent
        self.heard = self.since  #: the last time when something came from it
        self.patience_s = math.inf  #: seconds of silence until it counts as unreachable


class _Fate(NamedTuple):
    """How a PE ended, according to its launcher, or how a launcher ended."""

    who: str
    host: str
    node: str
    pid: int
    how: str
    status: int

    def __str__(self) -> str:
        return f"{self.who} (process {self.pid} on {self.host}) {self.how}"


@dataclass
class _Group:
    """The clients of an exchange."""

    name: str
    size: int
    callers: dict[int, _Connection] = field(default_factory=dict)
    listeners: dict[int, _Connection] = field(default_factory=dict)
    parts: dict[int, bytes] = field(default_factory=dict)  #: parts of the exchange that is not complete, by rank
    left: str = ""  #: why a rank left all further exchanges
    gone: dict[int, tuple[float, _Connection]] = field(default_factory=dict)  #: failed ranks to report, with the latest time to do so
    done: set[int] = field(default_factory=set)  #: ranks that have left in good order
    told: set[int] = field(default_factory=set)  #: failed ranks that have been reported

    @property
    def of_launchers(self) -> bool:
        return self.name == LAUNCHERS


class StoreServer:
    """Serves the groups of a job, in a thread of this process.

    Args:
        host: the only address to listen on.
        port: port to listen on; 0: any free one.
        ports: number of consecutive ports to try.

    Raises:
        BootstrapError: if the address is not one of this node, or the ports are in use.
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
        self._strangers: dict[_Connection, None] = {}  #: those that have not yet proven that they know the secret, in order of arrival
        self._listens_again, self._told = math.inf, False
        self._first = 0  #: exit status of the first PE that a launcher reported as failed
        self._fates: dict[int, _Fate] = {}  #: PEs that have ended, by rank, according to their launchers
        self.in_order = False  #: whether to tell the launchers, at the end, that it is in good order
        self._process = socket.gethostname(), node_name(), os.getpid()
        self._thread = threading.Thread(target=self._run, name="pgas store", daemon=True)
        self._thread.start()
        _servers.add(self)

    def _run(self) -> None:
        looked = time.monotonic()
        while True:
            for key, events in self._selector.select(_FATE_S):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj == self._wakeup:
                    if self.in_order:
                        self._say_closed()
                    return
                elif key.data in self._clients:
                    try:
                        self._serve(key.data, events)
                    except Exception as error:  # Nothing that a client sends may end the server.
                        self._give_up(key.data, error)
            now = time.monotonic()
            for client in [c for c in self._strangers if now > c.since + _HELLO_S]:
                self._drop(client)
            if self._listens_again < now:
                self._listens_again = math.inf
                self._selector.register(self._listener, selectors.EVENT_READ)
            self._look_for_silence(now, now - looked)
            looked = now
            for group in list(self._groups.values()):
                known = () if group.of_launchers else self._fates
                for rank in [rank for rank, (due, _) in group.gone.items() if now > due or rank in known]:
                    self._bury(group, rank, group.gone.pop(rank)[1])

    def _look_for_silence(self, now: float, paused_s: float) -> None:
        """Drop launchers that have been silent for too long. paused_s: seconds since the last look; this process may have been stopped."""
        launchers = self._groups.get(LAUNCHERS)
        for client in [] if launchers is None else list(launchers.listeners.values()):
            client.heard += max(0.0, paused_s - 2 * _FATE_S)
            if now > client.heard + client.patience_s:
                silence = f"nothing has come from it for {client.patience_s - wire.SLACK_S:g} s (PGAS_TIMEOUT)"
                how = f"is unreachable at {client.address}: {silence}"
                for each in (client, launchers.callers.get(client.rank) if launchers else None):
                    if each is not None:
                        each.how = how
                        self._drop(each)

    def _give_up(self, client: _Connection, error: Exception) -> None:
        """End a connection after an unexpected error in serving it."""
        client.how = client.how or f"sent a message that the store cannot serve ({type(error).__name__}: {error})"
        self._drop(client)

    def _say_closed(self) -> None:
        if (launchers := self._groups.get(LAUNCHERS)) is not None:
            for client in list(launchers.listeners.values()):
                self._send(client, wire.message(MessageKind.CLOSED))

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._run_out_of_files(error)
            return  # Other errors mean that the client has gone again.
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # The client has gone again.
            connection.close()
            return
        client = _Connection(connection, str(address[0]))
        self._clients.add(client)
        self._strangers[client] = None
        if len(self._strangers) > _STRANGERS_MAX:
            self._drop(next(iter(self._strangers)))
        self._selector.register(connection, selectors.EVENT_READ, client)
        self._send(client)

    def _run_out_of_files(self, error: OSError) -> None:
        """Make room for another connection, or stop listening for a moment, because the listener would be ready all the time."""
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
            self._send(client)
        if not events & selectors.EVENT_READ or client not in self._clients:
            return
        try:
            data = client.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError as error:
            data = b""
            if wire.unreachable(error):
                client.how = f"is unreachable at {client.address} ({error.strerror})"
        if not data:
            self._drop(client)
            return
        if client.ending:
            return
        client.heard = time.monotonic()
        channel = client.channel
        channel.received += data
        if not channel.begun and len(channel.received) >= wire.NONCE:
            channel.begin(self._secret, client.nonce + bytes(channel.received[: wire.NONCE]), serves=True)
            del channel.received[: wire.NONCE]
        try:
            while channel.begun and not client.ending and client in self._clients and (taken := channel.take()) is not None:
                self._answer(client, *taken)
        except Unframed as error:
            self._part_with(client, error)

    def _part_with(self, client: _Connection, error: Unframed) -> None:
        """End a connection that cannot continue. A stranger receives no other reason than that the secrets may differ."""
        if client.group is not None:
            client.how = f"at {client.address} {error}"
            self._leave_group(client)
            self._refuse(client, str(error))
        elif isinstance(error, Forged):
            self._refuse(client, "the secrets differ")  # The client recognizes this by the tag.
        else:
            self._drop(client)

    def _answer(self, client: _Connection, kind: MessageKind, body: bytes) -> None:
        try:
            if client.group is None:
                self._greet(client, kind, body)
            else:
                self._do(client, client.group, kind, body)
        except Malformed as error:
            client.ending = client.group is None
            self._send(client, wire.message(MessageKind.REFUSED, str(error)))

    def _do(self, client: _Connection, group: _Group, kind: MessageKind, body: bytes) -> None:
        """Serve a message. Raises Malformed."""
        if kind == MessageKind.GATHER and not client.hears:
            self._gather(client, group, body)
            return
        if kind >= MessageKind.WELCOME or kind == MessageKind.HELLO or (client.hears and kind != MessageKind.PING):
            raise Malformed(f"{kind.name} is not a message for the server now")
        values = wire.unpack(kind, body)
        if kind == MessageKind.PING:
            self._send(client, wire.message(MessageKind.PONG))
        elif kind == MessageKind.MISSING:
            self._send(client, wire.message(MessageKind.ABSENT, sum(1 << rank for rank in range(group.size) if rank not in group.parts)))
        elif kind == MessageKind.LEAVE:
            group.left = group.left or values[0]
            self._to_all(group, MessageKind.LEFT, group.left, but=client.rank)
        elif kind == MessageKind.FATE:
            if not group.of_launchers:
                raise Malformed("FATE is a message of launchers only")
            self._hear_fate(client, *values)
        else:  # This is BYE.
            group.done.add(client.rank)
            for members in (group.callers, group.listeners):
                members.pop(client.rank, None)
            if not group.callers and not group.left:  # Otherwise, the group stays, for ranks that come later.
                self._groups.pop(group.name, None)

    def _greet(self, client: _Connection, kind: MessageKind, body: bytes) -> None:
        """Admit a client that knows the secret, or refuse it. Raises Malformed."""
        if kind != MessageKind.HELLO:
            raise Malformed(f"the first message must be HELLO, not {kind.name}")
        name, rank, size, host, node, pid, hears, port, timeout_ms = wire.unpack(kind, body)
        if rank >= size:
            raise Malformed(f"HELLO: rank must be less than size, {size}, not {rank}")
        if port != self.address.port:  # A stranger listens there, and passes on the client's messages.
            self._refuse(client, f"it came for a store at port {port}, and this one is at {self.address.port}")
            return
        group = self._groups.setdefault(name, _Group(name, size))
        members = group.listeners if hears else group.callers
        if size != group.size:
            self._refuse(client, f"according to rank {rank}, there are {size} PEs, and according to others, {group.size}")
        elif rank in members:
            other = members[rank]
            self._refuse(client, f"rank {rank} has already joined: process {other.pid} on {other.host}")
        else:
            client.group, client.rank, client.host, client.node, client.pid, client.hears = group, rank, host, node, pid, hears
            members[rank] = client
            if not hears and rank in group.gone and (group.gone[rank][1].host, group.gone[rank][1].pid) == (host, pid):
                del group.gone[rank]  # That was its earlier connection, on which it had waited too long for WELCOME.
            self._strangers.pop(client)
            wire.keep_alive(client.socket, timeout_ms / 1000)
            if hears and group.of_launchers:
                client.patience_s = timeout_ms / 1000 + wire.SLACK_S
            self._send(client, wire.message(MessageKind.WELCOME, *self._process))
            self._look_for_absent(group)

    def _refuse(self, client: _Connection, why: str) -> None:
        client.ending = True
        self._send(client, wire.message(MessageKind.REFUSED, why))

    def _gather(self, client: _Connection, group: _Group, data: bytes) -> None:
        parts = group.parts
        if group.left:
            self._send(client, wire.message(MessageKind.LEFT, group.left))
            return
        if client.rank in parts:
            raise Malformed(f"GATHER: rank {client.rank} has sent its part of this exchange before")
        if (nbytes := sum(map(len, parts.values())) + len(data)) > wire.EXCHANGE_MAX:
            raise Malformed(f"GATHER: the parts of all ranks have {nbytes} bytes, and may have {wire.EXCHANGE_MAX}")
        parts[client.rank] = data
        if len(parts) == group.size:
            body = wire.joined([parts[rank] for rank in range(group.size)])
            parts.clear()
            self._to_all(group, MessageKind.GATHERED, body)

    def _to_all(self, group: _Group, kind: MessageKind, value: Any, but: int | None = None) -> None:
        sent = wire.message(kind, value)
        for rank, client in list(group.callers.items()):
            if rank != but:
                self._send(client, sent)

    def _hear_fate(self, client: _Connection, rank: int, pid: int, how: str, status: int) -> None:
        """Note how a PE of a launcher has ended, and tell it to everybody who waits, or will wait, for this PE."""
        if status:
            self._first = self._first or status
            self._send(client, wire.message(MessageKind.FIRST, self._first))
        fate = self._fates[rank] = _Fate(f"PE {rank}", client.host, client.node, pid, how, status)
        if status:
            self._tell_launchers(fate)
        for group in list(self._groups.values()):
            self._look_for_absent(group)

    def _look_for_absent(self, group: _Group) -> None:
        """Report PEs that ended before they joined a group that others have joined."""
        if group.of_launchers or not group.callers:
            return
        for rank, fate in self._fates.items():
            if rank < group.size and not (rank in group.callers or rank in group.gone or rank in group.done or rank in group.told):
                self._tell(group, rank, fate._replace(how=f"{fate.how} without calling pgas.init()"))

    def _bury(self, group: _Group, rank: int, client: _Connection) -> None:
        """Report a rank that has gone without BYE."""
        if group.of_launchers:
            self._tell(group, rank, _Fate(f"the launcher of node {rank}", client.host, client.node, client.pid, client.how or "ended", 1))
            return
        fate = self._fates.get(rank)
        how = client.how or "ended without pgas.finalize()"
        if fate is not None:
            how = fate.how if fate.status else f"{fate.how} without pgas.finalize()"
        self._tell(group, rank, _Fate(f"PE {rank}", client.host, client.node, client.pid, how, fate.status if fate else 0))

    def _tell(self, group: _Group, rank: int, fate: _Fate) -> None:
        group.told.add(rank)
        for listener in list(group.listeners.values()):
            self._send(listener, wire.message(MessageKind.NEWS, *fate))
        group.left = group.left or f"{fate}: the job cannot continue"
        self._to_all(group, MessageKind.LEFT, group.left)
        if not group.of_launchers:
            self._tell_launchers(fate)

    def _tell_launchers(self, fate: _Fate) -> None:
        if (launchers := self._groups.get(LAUNCHERS)) is not None:
            for listener in list(launchers.listeners.values()):
                self._send(listener, wire.message(MessageKind.NEWS, *fate))

    def _send(self, client: _Connection, sent: Message | None = None) -> None:
        """Send a message, and what is unsent, as much as the connection accepts."""
        if client not in self._clients:
            return
        unsent = client.channel.unsent
        if sent is not None:
            client.channel.put(sent)
        try:
            while unsent:
                del unsent[: client.socket.send(unsent)]
        except BlockingIOError:
            pass
        except OSError as error:
            if wire.unreachable(error):
                client.how = f"is unreachable at {client.address} ({error.strerror})"
            unsent.clear()
            client.ending = True
        if client.ending and not unsent:
            self._drop(client)
        else:
            events = selectors.EVENT_READ if len(unsent) < _UNSENT_MAX else 0
            self._selector.modify(client.socket, events | (selectors.EVENT_WRITE if unsent else 0), client)

    def _drop(self, client: _Connection) -> None:
        """Close a connection. If it belonged to a rank that has not sent BYE, the others will be notified that the rank has failed."""
        if client not in self._clients:
            return
        self._clients.discard(client)
        self._strangers.pop(client, None)
        self._selector.unregister(client.socket)
        client.socket.close()
        self._leave_group(client)

    def _leave_group(self, client: _Connection) -> None:
        if (group := client.group) is None:
            return
        members = group.listeners if client.hears else group.callers
        if members.get(client.rank) is client:
            del members[client.rank]
            if not client.hears:
                group.gone[client.rank] = time.monotonic() + _FATE_S, client

    def drain(self) -> None:
        """Serve until all clients have left, at most _LEAVE_S, because before this process ends, their last messages may be under way."""
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
    """Close the sockets in a forked child. Otherwise, clients would not notice the end of this server."""
    for server in _servers:
        if server._stop >= 0:
            server.forget()


os.register_at_fork(after_in_child=_forked)


def _listen(host: str, port: int, ports: int) -> socket.socket:
    at = Address(host, port, b"", ports)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise BootstrapError(f"the store cannot listen on {at}: {error.strerror or error}") from error
    refused: OSError | None = None
    for offset in range(ports):
        for family, kind, protocol, _, address in found:  # A name may have an IPv6 address that this node lacks.
            try:
                return _listener(socket.socket(family, kind, protocol), (address[0], port + offset, *address[2:]))
            except OSError as error:
                refused = error
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    break
    raise BootstrapError(f"the store cannot listen on {at}: {refused.strerror if refused else ''}") from refused


def _listener(made: socket.socket, address: tuple[Any, ...]) -> socket.socket:
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(1024)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made
