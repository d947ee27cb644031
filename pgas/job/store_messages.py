"""What a store and its clients say to each other (store.py): messages, addresses, proofs of the job's secret."""

import hashlib
import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum

__all__ = ["HEADER", "HELLO_MAX", "MAGIC", "NONCE", "PORTS", "Address", "Kind", "message", "proof"]

#: First bytes of a connection: the server's, then a nonce.
MAGIC, NONCE = b"pgas store 1\n", 32

#: kind, bytes of the body.
HEADER = struct.Struct("<BxxxI8x")

#: Bytes of the messages with which a connection begins.
HELLO_MAX = 4096

#: Ports that are tried from the first on, where only the first is agreed on.
PORTS = 32


class Kind(IntEnum):
    """Kinds of messages. Those from GATHERED on are the server's."""

    HELLO = 1
    GATHER = 2  #: this rank's part of an exchange: its number, data
    MISSING = 3  #: who has not brought theirs
    LEAVE = 4  #: this rank takes part in no exchange any more: why
    FATE = 5  #: how a rank of another group ended, by who started it
    BYE = 6
    WELCOME = 32
    REFUSED = 33
    GATHERED = 34
    ABSENT = 35
    LEFT = 36
    NEWS = 37  #: a rank is gone


@dataclass(frozen=True)
class Address:
    """Where a store is, and what opens it."""

    host: str
    port: int
    secret: bytes
    ports: int = 1  #: how many are tried, from port on: the server takes the first that is free

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" + (f" to {self.port + self.ports - 1}" if self.ports > 1 else "")


def message(kind: Kind, body: bytes = b"") -> bytes:
    """Return a message."""
    return HEADER.pack(kind, len(body)) + body


def proof(secret: bytes, who: bytes, nonce: bytes, text: bytes = b"") -> bytes:
    """Return what proves that one side, b"client" or b"server", knows the secret: it answers the other side's nonce."""
    return hmac.new(secret, who + nonce + text, hashlib.sha256).digest()
