"""Registered local memory: a table of regions outside the heap that the NIC can access. Kernels read a copy of it (kernels/layout.py)."""

from typing import Any, NamedTuple

from pgas.base.errors import TransportError
from pgas.kernels import layout
from pgas.transports.nic.protocol import NIC


class RegisteredMemory(NamedTuple):
    """Bytes [start, end), kept alive by owner."""

    start: int
    end: int
    owner: Any


class LocalMemory:
    """The registered memory. Without a NIC, all memory can be an operand, and this is only a list."""

    def __init__(self, nic: NIC | None) -> None:
        self._nic = nic
        self._pieces: dict[int, RegisteredMemory] = {}

    def add(self, start: int, end: int, owner: Any) -> None:
        """Register memory. Raises TransportError if the NIC refuses it, or the table is full."""
        number = next((n for n in range(layout.N_REGISTERED) if n not in self._pieces), None)
        if number is None:
            raise TransportError(f"pgas.register: {layout.N_REGISTERED} arrays are already registered, which is the maximum")
        if self._nic is not None:
            self._nic.register(number, start, end - start)
        self._pieces[number] = RegisteredMemory(start, end, owner)

    def remove(self, number: int) -> None:
        """Deregister the memory of an entry. Nothing may use it any more."""
        piece = self._pieces.pop(number)
        if self._nic is not None:
            self._nic.unregister(number, piece.start)

    def clear(self) -> None:
        for number in list(self._pieces):
            self.remove(number)

    def find(self, start: int) -> int | None:
        """Return the entry whose memory begins at an address, None if there is none."""
        return next((number for number, piece in self._pieces.items() if piece.start == start), None)

    def holds(self, start: int, end: int) -> bool:
        """Whether one region contains this memory."""
        return any(piece.start <= start and end <= piece.end for piece in self._pieces.values())
