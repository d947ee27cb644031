"""A card in this process: it reaches all of its memory, so programs that use malloc run over it, with both ends in one process."""

import atexit
import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pgas.base.errors import TransportError
from pgas.transports.mlx5.doorbell import UarType
from pgas.transports.softhca.firmware.objects import EQN, RequestRefused
from pgas.transports.softhca.layout import UMEM_PAGE_SIZE
from pgas.transports.softhca.process.card import Card
from uverbs.cards import Fault

__all__ = ["LocalCard"]

#: Addresses of user space.
_USER = 1 << 47

_Result = TypeVar("_Result")


@functools.cache
def _card() -> Card:
    """Return this process's card, with its engine running."""
    card = Card()
    atexit.register(card.stop)
    return card


@functools.cache
def _memory() -> int:
    """Return a descriptor of this process's memory."""
    return os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)


class LocalCard:
    """Implements cards.Card: the card takes a context for a PE."""

    _lock = threading.RLock()
    _contexts = 0

    def __init__(self) -> None:
        with LocalCard._lock:
            LocalCard._contexts += 1
            self._pe = LocalCard._contexts
            self._card = _card()
            self.registers = self._card.bar
            self._card.objects.share(self._pe, 0, _USER)

    def _call(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        with LocalCard._lock:
            try:
                return function(self._pe, *arguments)
            except RequestRefused as refused:
                raise TransportError(str(refused)) from refused

    @staticmethod
    def _mapped(address: int, nbytes: int) -> None:
        """Refuse a range whose ends are not mapped, as the engine would crash the process."""
        try:
            for at in (address, address + max(nbytes, 1) - 1):
                os.pread(_memory(), 1, at)
        except (OSError, OverflowError):
            raise Fault(f"{nbytes} bytes at {address:#x} are no memory of this process") from None

    def command(self, inbox: bytes, outlen: int) -> bytes:
        return self._call(self._card.firmware.execute, inbox, outlen)

    def alloc_pd(self) -> int:
        return self._call(self._card.objects.alloc_pd)

    def dealloc_pd(self, pdn: int) -> None:
        self._call(self._card.objects.dealloc_pd, pdn)

    def register_umem(self, address: int, nbytes: int, page_size: int = UMEM_PAGE_SIZE) -> int:
        self._mapped(address, nbytes)
        return self._call(self._card.objects.register_umem, address, nbytes, page_size)

    def deregister_umem(self, umem_id: int) -> None:
        self._call(self._card.objects.deregister_umem, umem_id)

    def register_mr(self, address: int, nbytes: int, pdn: int, access: int) -> int:
        self._mapped(address, nbytes)
        return self._call(self._card.objects.register_mr, address, nbytes, pdn, access)

    def deregister_mr(self, key: int) -> None:
        self._call(self._card.objects.deregister_mr, key)

    def alloc_uar(self, kind: int) -> int:
        return self._call(self._card.objects.alloc_uar, UarType(kind))

    def dealloc_uar(self, page: int) -> None:
        self._call(self._card.objects.dealloc_uar, page)

    def query_eqn(self) -> int:
        return EQN

    def close(self) -> None:
        self._call(self._card.firmware.leave)
