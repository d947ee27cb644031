"""Attacks on the store: what strangers, relays, and members of a job that send rubbish can do to the others."""

import contextlib
import hashlib
import hmac
import os
import secrets
import socket
import struct
import threading
import time

import pytest
from test_store import SECRET, enter, nothing, together

from pgas.base import plain
from pgas.base.errors import BootstrapError
from pgas.job.bootstrap import rendezvous, store_messages, store_server
from pgas.job.bootstrap.store import Store
from pgas.job.bootstrap.store_messages import MAGIC, NONCE, Address, Channel, Forged, MessageKind
from pgas.job.bootstrap.store_server import StoreServer

HEADER = struct.Struct("<BxxxI")


@pytest.fixture
def server():
    made = StoreServer("127.0.0.1", 0, SECRET)
    yield made
    made.close()


# ------------------------------------------------------------------------------------------------------------------- a relay between


class Relay:
    """Listens at the store's port of another address, as a relay after ARP or DNS spoofing, and changes what it passes on.

    change(frame, number) returns the frames to send instead of one from "client" or "server", the victim; after a part of one it hangs up.
    """

    def __init__(self, server, victim, change):
        self.address = Address("127.0.0.2", server.address.port, SECRET)
        self._listener = socket.create_server((self.address.host, self.address.port))
        self._server, self._victim, self._change = server, victim, change
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                real = socket.create_connection((self._server.address.host, self._server.address.port))
                for source, dest, side, greeting in ((client, real, "client", NONCE), (real, client, "server", len(MAGIC) + NONCE)):
                    thread = threading.Thread(target=self._pass_on, args=(source, dest, side, greeting), daemon=True)
                    thread.start()

    def _pass_on(self, source, dest, side, greeting):
        with contextlib.suppress(OSError, EOFError), source, dest:
            dest.sendall(exactly(source, greeting))
            number = 0
            while True:
                header = exactly(source, HEADER.size)
                frame = header + exactly(source, HEADER.unpack(header)[1] + 32)
                frames = self._change(frame, number) if side == self._victim else [frame]
                dest.sendall(b"".join(frames))
                if 0 < len(frames[-1]) < len(frame):
                    dest.shutdown(socket.SHUT_RDWR)
                number += 1

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def exactly(connection, nbytes):
    data = b""
    while len(data) < nbytes:
        read = connection.recv(nbytes - len(data))
        if not read:
            raise EOFError
        data += read
    return data


def replaced(frame, number):
    return [frame[:8] + b"\0" * (len(frame) - 40) + frame[-32:]] if number == 3 else [frame]


def repeated(frame, number):
    return [frame, frame] if number == 1 else [frame]


def reordered():
    held = []

    def change(frame, number):
        if number == 1:
            held.append(frame)
            return [b""]
        return [frame, *held] if number == 2 else [frame]

    return change


def left_out(frame, number):
    return [b""] if number == 1 else [frame]


def cut_short(frame, number):
    return [frame[:-1]] if number == 3 else [frame]


FORGED = "sent a message {} that fails authentication: it was changed, repeated, reordered or left out on its way"


@pytest.mark.parametrize("victim", ["client", "server"])
@pytest.mark.parametrize(
    ("change", "how"),
    [
        (replaced, FORGED.format(3)),
        (repeated, FORGED.format(2)),
        (reordered, FORGED.format(1)),
        (left_out, FORGED.format(1)),
        (cut_short, ""),
    ],
)
def test_a_relay_that_changes_messages(server, victim, change, how):
    """The end that gets the changed message names the other; the PEs get no data of the relay's."""
    gone = {"client": "ended without pgas.finalize()", "server": "is gone: the process that served it has ended"}[victim]
    relay = Relay(server, victim, change() if change is reordered else change)
    try:
        first = enter(server, 0, 2)
        second = Store(relay.address, 1, 2, "job 1", 5.0)
        for _ in range(2):
            second._calls.put(MessageKind.PING)
        refused = together(lambda: first.allgather(b"first's", nothing), lambda: second.allgather(b"second's", nothing))
    finally:
        relay.close()
    for error in refused[victim == "server" :]:
        assert isinstance(error, BootstrapError), refused
    if victim == "client":
        assert str(refused[0]).startswith(f"PE 1 (process {os.getpid()} on {os.uname().nodename}) "), refused
        assert how in str(refused[0]) or gone in str(refused[0])
        assert how == "" or f"at 127.0.0.1 {how}" in str(refused[0])
    else:
        assert str(refused[1]) == f"the store at {relay.address} {how or gone}: the job cannot continue"
    for pe in (first, second):
        pe.close()


def test_messages_of_another_direction_or_connection():
    """Keys differ by sender and by both nonces."""
    ends = [Channel() for _ in range(4)]
    for end, nonces, serves in zip(ends, (b"s" * 32 + b"c" * 32,) * 3 + (b"s" * 32 + b"d" * 32,), (False, True, False, True), strict=True):
        end.begin(SECRET, nonces, serves=serves)
    client, *others = ends
    client.put(store_messages.message(MessageKind.BYE))
    results = []
    for other in others:
        other.received += client.unsent
        try:
            results.append(other.take()[0])
        except Forged:
            results.append(None)
    assert results == [MessageKind.BYE, None, None]


# ------------------------------------------------------------------------------------------------------------------------- secrets


def test_a_listener_that_is_first(monkeypatch):
    """It gets a HELLO, against which it can try guesses. A guess of PGAS_SECRET costs what scrypt costs, for each job anew."""
    monkeypatch.setenv("PGAS_SECRET", "correct horse battery staple")
    began = time.process_time()
    secret = rendezvous.job_secret("job")
    assert time.process_time() - began > 0.01
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen():
            connection, _ = listener.accept()
            with connection:
                connection.sendall(MAGIC + b"s" * NONCE)
                nonce, header = exactly(connection, NONCE), exactly(connection, HEADER.size)
                heard.extend((nonce, header + exactly(connection, HEADER.unpack(header)[1] + 32)))

        thread = threading.Thread(target=listen)
        thread.start()
        with pytest.raises(BootstrapError, match="it hung up"):
            Store(Address("127.0.0.1", listener.getsockname()[1], secret), 0, 1, "job 1", 0.0)
        thread.join()

    def fits(guess):
        channel = Channel()
        channel.begin(guess, b"s" * NONCE + heard[0], serves=True)
        channel.received += heard[1]
        try:
            return channel.take() is not None
        except Forged:
            return False

    assert fits(secret)
    words = b"correct horse battery staple"
    assert not fits(hmac.new(words, b"job", hashlib.sha256).digest())  # the derivation of old
    assert not fits(rendezvous.job_secret("another job"))


# ----------------------------------------------------------------------------------------------------------------- rubbish of members


class Member:
    """A client that knows the secret, and sends what it likes."""

    def __init__(self, server, group="job 2", **changes):
        self.connection = socket.create_connection((server.address.host, server.address.port))
        self.connection.settimeout(10)
        greeting, nonce = exactly(self.connection, len(MAGIC) + NONCE), secrets.token_bytes(NONCE)
        self.channel = Channel()
        self.channel.begin(SECRET, greeting[len(MAGIC) :] + nonce, serves=False)
        self.connection.sendall(nonce)
        hello = {"group": group, "rank": 0, "size": 1, "host": "h", "node": "n", "pid": 1, "hears": False, "port": server.address.port,
                 "timeout_ms": 5000, **changes}  # fmt: skip
        self.send(MessageKind.HELLO, *hello.values())

    def send(self, kind, *values):
        self.channel.put(store_messages.message(kind, *values))
        self._flush()

    def send_body(self, kind, body):
        """Send a message with any body, well authenticated."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store_messages.plain, "dumps", lambda values: body)
            self.channel.put(store_messages.message(kind, body))
        self._flush()

    def _flush(self):
        self.connection.sendall(self.channel.unsent)
        self.channel.unsent.clear()

    def take(self):
        """Return kind and fields of the next message; None if the store has hung up."""
        while (taken := self.channel.take()) is None:
            if not (data := self.connection.recv(1 << 20)):
                return None
            self.channel.received += data
        fields = store_messages.unpack(*taken)
        return taken[0].name, *(() if taken[0] == MessageKind.WELCOME else fields)


@pytest.fixture
def member(server):
    """Return a function that makes a Member, which the fixture closes."""
    with contextlib.ExitStack() as open_:

        def make(**changes):
            made = Member(server, **changes)
            open_.enter_context(made.connection)
            return made

        yield make


@pytest.fixture
def pes(server):
    made = [enter(server, rank, 2) for rank in range(2)]
    yield made
    assert together(*(lambda pe=pe: pe.allgather(b"on", nothing) for pe in made)) == [[b"on"] * 2] * 2
    for pe in made:
        pe.close()


NEST = b"L\1\0\0\0"


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        (MessageKind.LEAVE, b"[" * 60_000, "LEAVE: plain value: unknown tag b'['"),
        (MessageKind.LEAVE, NEST * 10_000 + b"N", "LEAVE: plain value: nested deeper than 16"),
        (MessageKind.LEAVE, b"U\xff\xff\xff\xff", "LEAVE: plain value: unknown tag b''"),
        (MessageKind.LEAVE, plain.dumps(("x" * 5000,)), "LEAVE: why must be a text of 0 to 4096 characters, not a text of 5000"),
        (MessageKind.LEAVE, plain.dumps(("why", 1)), "LEAVE must have 1 fields"),
        (MessageKind.FATE, plain.dumps((1 << 40, 7, "how", 1)), "FATE: rank must be a number from 0 to 4095, not 1099511627776"),
        (MessageKind.FATE, plain.dumps((1, 7, b"how", 1)), "FATE: how must be a text of 0 to 1024 characters, not bytes"),
        (MessageKind.FATE, plain.dumps((1, 7, "how", True)), "FATE: status must be a number from 0 to 255, not True"),
        (MessageKind.FATE, plain.dumps((1, 7, "how", 1)) + b"N", "FATE: plain value: 1 bytes follow it"),
        (MessageKind.HELLO, plain.dumps(()), "HELLO is not a message for the server now"),
        (MessageKind.LEFT, plain.dumps(("why",)), "LEFT is not a message for the server now"),
    ],
)
def test_a_malformed_message(member, pes, kind, body, why):
    """Its sender gets an error and may go on, and so may the others."""
    member = member()
    assert member.take() == ("WELCOME",)
    member.send_body(kind, body)
    assert member.take() == ("REFUSED", why)
    member.send(MessageKind.PING)
    assert member.take() == ("PONG",)
    member.send(MessageKind.BYE)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (HEADER.pack(MessageKind.GATHER, (1 << 32) - 1), "announced a message of 4294967295 bytes, and may send at most 268451840"),
        (HEADER.pack(MessageKind.LEAVE, 200_000) + b"[" * 200_000, "announced a message of 200000 bytes, and may send at most 65536"),
        (HEADER.pack(MessageKind.PING, 0) + b"\0" * 32, FORGED.format(1)),
    ],
)
def test_a_message_that_is_none(member, server, pes, sent, why):
    """Its sender gets an error, and the store hangs up. The others of its group are told, and other groups go on."""
    member, other = member(size=2), enter(server, 1, 2, "job 2")
    assert member.take() == ("WELCOME",)
    member.connection.sendall(sent)
    assert member.take() == ("REFUSED", why)
    (error,) = together(lambda: other.allgather(b"", nothing))
    assert str(error) == f"PE 0 (process 1 on h) at 127.0.0.1 {why}: the job cannot continue"
    other.close()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rank": -1}, "rank must be a number from 0 to 4095, not -1"),
        ({"rank": 3, "size": 3}, "rank must be less than size, 3, not 3"),
        ({"size": 0}, "size must be a number from 1 to 4096, not 0"),
        ({"size": 1 << 70}, "size must be a number from 1 to 4096, not int"),
        ({"rank": "0"}, "rank must be a number from 0 to 4095, not a text of 1"),
        ({"group": "g" * 257}, "group must be a text of 1 to 256 characters, not a text of 257"),
        ({"hears": 1}, "hears must be true or false, not 1"),
        ({"timeout_ms": 0}, "timeout_ms must be a number from 1 to 2147483647, not 0"),
    ],
)
def test_a_hello_out_of_range(member, pes, changes, why):
    member = member(**changes)
    assert member.take() == ("REFUSED", f"HELLO: {why}")
    assert member.take() is None


@pytest.mark.parametrize(("pid", "dead"), [(1, []), (2, [0])])
def test_a_hello_that_is_repeated(member, server, monkeypatch, pid, dead):
    """A PE that waited for WELCOME too long comes again, and is not reported dead, unlike one that another process replaces."""
    monkeypatch.setattr(store_server, "_FATE_S", 30)  # so that a dead PE is not reported before this test has looked
    first, other = member(size=2), enter(server, 1, 2, "job 2")
    assert first.take() == ("WELCOME",)
    first.connection.close()
    while not (group := server._groups["job 2"]).gone:
        time.sleep(0.001)
    again = member(size=2, pid=pid)
    assert again.take() == ("WELCOME",)
    assert list(group.gone) == dead
    again.send(MessageKind.GATHER, b"part")
    assert other.allgather(b"", nothing) == [b"part", b""]
    again.send(MessageKind.BYE)
    other.close()


def test_a_message_that_the_store_cannot_serve(member, server, pes, monkeypatch):
    """Whatever error it causes in the store, its sender alone is gone."""

    def serve(self, *arguments, serve=StoreServer._do):
        if arguments[1].name == "job 2" and arguments[0].rank == 0:
            raise KeyError("rank")
        serve(self, *arguments)

    monkeypatch.setattr(StoreServer, "_do", serve)
    first, other = member(size=2), enter(server, 1, 2, "job 2")
    assert first.take() == ("WELCOME",)
    first.send(MessageKind.PING)
    assert first.take() is None
    (error,) = together(lambda: other.allgather(b"", nothing))
    how = "sent a message that the store cannot serve (KeyError: 'rank')"
    assert str(error) == f"PE 0 (process 1 on h) {how}: the job cannot continue"
    other.close()


def test_an_exchange_that_is_too_large(server, pes, monkeypatch):
    """The PE whose part is too much gets an error."""
    members = [enter(server, rank, 2, "job 2") for rank in range(2)]
    members[0]._calls.put(MessageKind.GATHER, b"x" * 600)
    members[0]._calls.flush()
    with monkeypatch.context() as patch:
        patch.setattr(store_messages, "EXCHANGE_MAX", 1000)
        while members[1].missing != {1}:
            time.sleep(0.01)
        with pytest.raises(BootstrapError, match=r"rank 1: GATHER: the parts of all ranks have 1200 bytes, and may have 1000$"):
            members[1].allgather(b"x" * 600, nothing)
        with pytest.raises(BootstrapError, match="PE 1 sends 1001 bytes to the other PEs, but all PEs together may send at most 1000"):
            members[1].allgather(b"x" * 1001, nothing)
    for member in members:
        member.close()


def test_a_part_that_is_sent_twice(member, pes):
    member = member(size=2)
    assert member.take() == ("WELCOME",)
    for _ in range(2):
        member.send(MessageKind.GATHER, b"part")
    assert member.take() == ("REFUSED", "GATHER: rank 0 has sent its part of this exchange before")


def test_a_relay_on_the_connection_for_news(server):
    """The PE behind it ends, and says why."""
    relay = Relay(server, "client", repeated)
    try:
        pe = Store(relay.address, 0, 1, "job 1", 5.0)
        _, read = pe.hearing()
        pe._news.put(MessageKind.PING)
        told, deadline = None, time.monotonic() + 10
        while told is None and time.monotonic() < deadline:
            time.sleep(0.02)
            told = read()
    finally:
        relay.close()
    assert told == (pe.place, f"refuses a message of rank 0: {FORGED.format(2)}")
    pe.forget()


@pytest.mark.slow
def test_a_member_that_does_not_read(member, server, pes):
    """The store keeps little for it, and takes no more from it."""
    member = member(timeout_ms=600_000)
    assert member.take() == ("WELCOME",)
    member.connection.settimeout(1)
    with contextlib.suppress(TimeoutError):
        for _ in range(200):
            for _ in range(2000):
                member.channel.put(store_messages.message(MessageKind.PING))
            member._flush()
    assert max(len(client.channel.unsent) for client in server._clients) < 4 << 20
