"""The wire protocol of the store. store.py is its client, store_server.py its server.

1.  The server sends MAGIC and a nonce of 32 random bytes, the client a nonce of its own. Everything after these is messages::

        kind     1 byte, then 3 bytes of zeros
        nbytes   4 bytes, little-endian
        body     nbytes bytes
        tag      32 bytes: HMAC-SHA256, under the key of the direction, of the message's number (8 bytes, little-endian), of kind and nbytes
                 as they are sent, and of the body's SHA-256, which is computed once if the server sends the body to several clients

    The key of a direction is the HMAC-SHA256, under the job's secret, of MAGIC, the sender ("client" or "server") and both nonces. Both
    ends count the messages of a direction from 0; the numbers are not sent. A message that was changed, repeated, reordered, left out, or
    taken from another connection or direction has a wrong tag (Forged). A wrong tag ends the connection.

2.  The client's first message is HELLO; the server answers WELCOME or REFUSED. The tags prove that each end knows the secret. Until then,
    the server accepts at most HELLO_MAX bytes.

3.  Bodies of GATHER and GATHERED are bytes, at most EXCHANGE_MAX for all ranks together. Any other body is a tuple of FIELDS, encoded by
    pgas.base.plain in at most BODY_MAX bytes. A longer message ends the connection (Unframed). The server answers a body that does not fit
    its fields by REFUSED, and the connection continues.

4.  A client that waits for the server sends PING from time to time, and the server answers PONG. If nothing comes for PGAS_TIMEOUT, the
    server is unreachable. The server detects by TCP whether a client's node is reachable (keep_alive()), so that a PE that is stopped, or
    busy in code that keeps the GIL, does not count as unreachable. A launcher always sends PINGs, and is unreachable without them.

5.  The launchers of pgas.run are the group LAUNCHERS. Each sends FATE for every PE that has ended. If a PE failed, or ended before it
    joined a group of PEs that others have joined, the server sends NEWS to the launchers, and LEFT and NEWS to that group.

Messages are authenticated, not encrypted.
"""

import errno
import hmac
import socket
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from typing import Any, NamedTuple

from pgas.base import plain
from pgas.base.launcher import MAX_PES

#: First bytes of a connection, from the server; the version of this protocol is the number.
MAGIC, NONCE = b"pgas store 3\n", 32

_HEADER, _NUMBER, _LENGTH, _TAG = struct.Struct("<BxxxI"), struct.Struct("<Q"), struct.Struct("<I"), 32

#: Maximum bytes of a body: of HELLO, of any other with fields, of all ranks' parts of an exchange.
HELLO_MAX, BODY_MAX, EXCHANGE_MAX = 4096, 1 << 16, 1 << 28

#: Maximum number of ranks of a group.
SIZE_MAX = MAX_PES

#: The group of the launchers.
LAUNCHERS = "launchers"

#: Maximum characters of a reason.
TEXT_MAX = 1 << 12

#: Consecutive ports to try when the first one is derived from the job's name.
PORTS = 32

#: Seconds beyond PGAS_TIMEOUT until an end that does not answer counts as unreachable.
SLACK_S = 3.0


class MessageKind(IntEnum):
    """Kinds of messages. Those from WELCOME on are the server's."""

    HELLO = 1
    GATHER = 2  #: this rank's part of an exchange
    MISSING = 3  #: a query for the ranks that have not sent their part
    LEAVE = 4  #: this rank leaves all further exchanges
    FATE = 5  #: how a PE ended, from its launcher
    BYE = 6
    PING = 7
    WELCOME = 32
    REFUSED = 33  #: the client, or its last message
    GATHERED = 34  #: the parts of all ranks: the length of each (4 bytes), the parts
    ABSENT = 35
    LEFT = 36  #: a rank has left all further exchanges
    NEWS = 37  #: a PE or a launcher is gone
    FIRST = 38  #: the answer to FATE of a PE that failed: the exit status of the first such PE
    PONG = 39
    CLOSED = 40  #: the server ends in good order


class BodyField(NamedTuple):
    """A field of a body."""

    name: str
    type: type
    low: int = 0  #: minimum value of an int, or minimum number of characters of a text
    high: int = 0

    def check(self, value: Any) -> None:
        """Raise Malformed if a value is not of this field's type, or out of its range."""
        size = len(value) if isinstance(value, str) else value
        if type(value) is self.type and (self.type is bool or self.low <= size <= self.high):
            return
        bounds = f"{self.low} to {self.high}"
        wanted = {int: f"a number from {bounds}", str: f"a text of {bounds} characters", bool: "true or false"}[self.type]
        if isinstance(value, str):
            found = f"a text of {size}"
        else:
            found = repr(value) if isinstance(value, int) and abs(value) < 1 << 64 else type(value).__name__
        raise Malformed(f"{self.name} must be {wanted}, not {found}")


_RANK, _WHY, _PID = BodyField("rank", int, 0, SIZE_MAX - 1), BodyField("why", str, 0, TEXT_MAX), BodyField("pid", int, 0, (1 << 31) - 1)
_HOST, _NODE, _HOW = BodyField("host", str, 0, 256), BodyField("node", str, 0, 1024), BodyField("how", str, 0, 1024)
_STATUS = BodyField("status", int, 0, 255)

#: The fields of each body with fields, in their order.
FIELDS: dict[MessageKind, tuple[BodyField, ...]] = {
    MessageKind.HELLO: (
        BodyField("group", str, 1, 256), _RANK, BodyField("size", int, 1, SIZE_MAX), _HOST, _NODE, _PID,
        BodyField("hears", bool),  #: whether this is the rank's connection for NEWS; it has another one for exchanges
        BodyField("port", int, 1, (1 << 16) - 1),  #: the port to which the client connected
        BodyField("timeout_ms", int, 1, (1 << 31) - 1),  #: PGAS_TIMEOUT
    ),
    MessageKind.MISSING: (), MessageKind.BYE: (), MessageKind.PING: (), MessageKind.PONG: (), MessageKind.CLOSED: (),
    MessageKind.WELCOME: (_HOST, _NODE, _PID),  #: the server's process
    MessageKind.LEAVE: (_WHY,), MessageKind.REFUSED: (_WHY,), MessageKind.LEFT: (_WHY,),
    MessageKind.FATE: (_RANK, _PID, _HOW, _STATUS),
    MessageKind.FIRST: (_STATUS,),
    MessageKind.ABSENT: (BodyField("ranks", int, 0, (1 << SIZE_MAX) - 1),),  #: a bit for each rank
    MessageKind.NEWS: (BodyField("who", str, 0, 64), _HOST, _NODE, _PID, _HOW, _STATUS),
}  # fmt: skip


class Malformed(ValueError):
    """A body does not fit its fields; the connection continues."""


class Unframed(Exception):
    """A message is longer than its kind allows, or of an unknown kind; the connection cannot continue."""


class Forged(Unframed):
    """A message's tag is wrong."""


@dataclass(frozen=True)
class Address:
    """The address of a store, and its secret."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    ports: int = 1  #: number of consecutive ports to try; the server takes the first free one

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host  # An IPv6 address is in brackets.
        return f"{host}:{self.port}" + (f" to {self.port + self.ports - 1}" if self.ports > 1 else "")


class Channel:
    """One end of a connection: received and unsent bytes and, after the nonces, messages."""

    def __init__(self) -> None:
        self.received, self.unsent = bytearray(), bytearray()
        self.begun = False  #: whether both nonces are known
        self.admitted = False  #: whether the other end has proven that it knows the secret
        self._in = self._out = b""
        self._taken = self._put = 0

    def begin(self, secret: bytes, nonces: bytes, *, serves: bool) -> None:
        """Make the keys. nonces: the server's and the client's. serves: whether this is the server's end."""
        keys = [hmac.digest(secret, MAGIC + sender + nonces, "sha256") for sender in (b"client", b"server")]
        self._in, self._out = keys if serves else reversed(keys)
        self.begun = True

    def put(self, sent: "Message") -> None:
        self.unsent += sent.header
        self.unsent += sent.body
        self.unsent += _tag(self._out, self._put, sent.header, sent.digest)
        self._put += 1

    def take(self) -> tuple[MessageKind, bytes] | None:
        """Take the next complete message off the received bytes.

        Raises:
            Unframed: if what was received is not the other end's next message.
        """
        if len(self.received) < _HEADER.size:
            return None
        number, nbytes = _HEADER.unpack_from(self.received)
        most = HELLO_MAX if not self.admitted else EXCHANGE_MAX + _LENGTH.size * SIZE_MAX if number in _OF_BYTES else BODY_MAX
        if nbytes > most:
            raise Unframed(f"announced a message of {nbytes} bytes, and may send at most {most}")
        end = _HEADER.size + nbytes
        if len(self.received) < end + _TAG:
            return None
        header, body = bytes(self.received[: _HEADER.size]), bytes(memoryview(self.received)[_HEADER.size : end])
        if not hmac.compare_digest(self.received[end : end + _TAG], _tag(self._in, self._taken, header, sha256(body).digest())):
            how = "it was changed, repeated, reordered or left out on its way"
            raise Forged(f"sent a message {self._taken} that fails authentication: {how}")
        del self.received[: end + _TAG]
        self._taken += 1
        self.admitted = True
        if number not in MessageKind.__members__.values():
            raise Unframed(f"sent a message of the unknown kind {number}")
        return MessageKind(number), body


#: Kinds whose bodies are bytes.
_OF_BYTES = (MessageKind.GATHER, MessageKind.GATHERED)


def _tag(key: bytes, number: int, header: bytes, digest: bytes) -> bytes:
    return hmac.digest(key, _NUMBER.pack(number) + header + digest, "sha256")


class Message(NamedTuple):
    """A message, before it has a number."""

    header: bytes
    body: bytes
    digest: bytes  #: of the body


def message(kind: MessageKind, *values: Any) -> Message:
    """Return a message. values: its fields; of GATHER and GATHERED the body."""
    body = plain.dumps(values) if kind in FIELDS else values[0]
    return Message(_HEADER.pack(kind, len(body)), body, sha256(body).digest())


def unpack(kind: MessageKind, body: bytes) -> tuple[Any, ...]:
    """Return the fields of a body. Raises Malformed."""
    try:
        values = plain.loads(body)
    except ValueError as error:
        raise Malformed(f"{kind.name}: {error}") from None
    if not isinstance(values, tuple) or len(values) != len(FIELDS[kind]):
        raise Malformed(f"{kind.name} must have {len(FIELDS[kind])} fields")
    try:
        for each, value in zip(FIELDS[kind], values, strict=True):
            each.check(value)
    except Malformed as error:
        raise Malformed(f"{kind.name}: {error}") from None
    return values


def joined(parts: list[bytes]) -> bytes:
    """Return the body of GATHERED for the parts of all ranks, by rank."""
    return b"".join([*(_LENGTH.pack(len(part)) for part in parts), *parts])


def gathered(body: bytes, size: int) -> list[bytes]:
    """Return the parts in the body of GATHERED, by rank. Raises Malformed."""
    at = _LENGTH.size * size
    lengths = [length for (length,) in _LENGTH.iter_unpack(body[:at])]
    if len(lengths) != size or at + sum(lengths) != len(body):
        raise Malformed(f"GATHERED: its {len(body)} bytes are not the parts of {size} ranks")
    parts = []
    for length in lengths:
        parts.append(body[at : at + length])
        at += length
    return parts


# --------------------------------------------------------------------------------------------------------------------- reachability


def keep_alive(connection: socket.socket, timeout_s: float) -> None:
    """Let TCP end a connection whose other node acknowledges nothing for timeout_s and SLACK_S, even if there is nothing to send."""
    limit_s = timeout_s + SLACK_S
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(min(10, limit_s / 4))))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(int(limit_s * 1000), (1 << 31) - 1))


def unreachable(error: OSError) -> bool:
    """Whether an error of a connection means that the other node does not answer; otherwise its process has closed the connection."""
    return error.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
