"""The protocol of the store (store.py): messages, addresses, proofs of the job's secret."""

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from enum import IntEnum

__all__ = ["HEADER", "HELLO_MAX", "MAGIC", "NONCE", "PORTS", "Address", "Kind", "message", "proof"]

#: First bytes of a connection: the server's, then a nonce.
MAGIC, NONCE = b"pgas store 1\n", 32

#: kind, bytes of the body.
HEADER = struct.Struct("<BxxxI8x")

#: Most bytes of a connection's first messages.
HELLO_MAX = 4096

#: Consecutive ports to try when the first one is derived from the job's name.
PORTS = 32


class Kind(IntEnum):
    """Kinds of messages. Those from WELCOME on are the server's."""

    HELLO = 1
    GATHER = 2  #: this rank's part of an exchange: the exchange's number, data
    MISSING = 3  #: asks for the ranks that have not sent their part
    LEAVE = 4  #: this rank leaves all further exchanges: the reason
    FATE = 5  #: how a rank of the other groups ended, and its exit status, from its launcher
    BYE = 6
    WELCOME = 32
    REFUSED = 33
    GATHERED = 34
    ABSENT = 35
    LEFT = 36
    NEWS = 37  #: a rank is gone
    FIRST = 38  #: answers FATE: the exit status that the first FATE told


@dataclass(frozen=True)
class Address:
    """The address of a store, and its secret."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    ports: int = 1  #: number of consecutive ports to try; the server takes the first free one

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" + (f" to {self.port + self.ports - 1}" if self.ports > 1 else "")


def message(kind: Kind, body: bytes = b"") -> bytes:
    """Return a message."""
    return HEADER.pack(kind, len(body)) + body


def proof(secret: bytes, who: bytes, nonce: bytes, text: bytes = b"") -> bytes:
    """Return one side's proof that it knows the secret, in answer to the other side's nonce. who: b"client" or b"server"."""
    return hmac.new(secret, who + nonce + text, hashlib.sha256).digest()
