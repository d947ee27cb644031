"""The card below the emulated kernel: a context on the launcher's software card, which all processes of a command share, or on a card in
this process (local.py).

The launcher's card reaches only memory that both processes have mapped. So registered memory must be a memfd of this process, as heaps and
queues of the simulator are, at its address in the window; its descriptor is sent to the card.
"""

import contextlib
import errno
import os
import random
from dataclasses import dataclass
from typing import Protocol

from pgas.base.errors import TransportError
from pgas.transports.mlx5.doorbell import UarType
from pgas.transports.softhca.layout import UMEM_PAGE_SIZE
from pgas.transports.softhca.process import client

__all__ = ["Card", "Fault", "RemoteCard", "connect"]

#: The variable with the name of the launcher's card, and its value if each process has its own card.
CARD, LOCAL = "UVERBS_CARD", "local"

#: Capabilities that the launcher's card lacks. It maps all processes' memory at their addresses, so two jobs would collide, and it maps
#: memfds only.
WITHOUT = ("jobs side by side", "plain memory that a NIC maps")


class Fault(Exception):
    """The card cannot reach some memory: the kernel's EFAULT."""


class Card(Protocol):
    """A context on a card, as the emulated kernel needs it; close() destroys its objects."""

    registers: int  #: descriptor of the UAR pages, page n at offset n * 4096

    def command(self, inbox: bytes, outlen: int) -> bytes: ...
    def alloc_pd(self) -> int: ...
    def dealloc_pd(self, pdn: int) -> None: ...
    def register_umem(self, address: int, nbytes: int, page_size: int = ...) -> int: ...
    def deregister_umem(self, umem_id: int) -> None: ...
    def register_mr(self, address: int, nbytes: int, pdn: int, access: int) -> int: ...
    def deregister_mr(self, key: int) -> None: ...
    def alloc_uar(self, kind: int) -> int: ...
    def dealloc_uar(self, page: int) -> None: ...
    def query_eqn(self) -> int: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class _Mapping:
    """A line of /proc/self/maps."""

    start: int
    end: int
    offset: int
    file: tuple[int, int]  # device, inode


def _mappings() -> list[_Mapping]:
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, mode, offset, device, inode, *_ = line.split()
            if mode[3] == "s":
                start, end = (int(text, 16) for text in span.split("-"))
                major, minor = (int(text, 16) for text in device.split(":"))
                found.append(_Mapping(start, end, int(offset, 16), (os.makedev(major, minor), int(inode))))
    return found


def _descriptor(file: tuple[int, int]) -> int | None:
    """Return a descriptor of this process that names a file."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if (status.st_dev, status.st_ino) == file:
                return int(name)
    return None


def address_of(fd: int) -> int:
    """Return the address of a file that is mapped from its beginning: a memfd that stands in for a dma-buf."""
    status = os.fstat(fd)
    for mapping in _mappings():
        if mapping.file == (status.st_dev, status.st_ino) and mapping.offset == 0:
            return mapping.start
    raise Fault(f"descriptor {fd} is not mapped here")


class RemoteCard:
    """Implements Card on a card in another process."""

    def __init__(self, name: str) -> None:
        self.registers = -1
        self._shared: dict[int, _Mapping] = {}
        for _ in range(8):  # the number may be taken by another context
            try:
                self._hca = client.SoftHCA(name, random.SystemRandom().randrange(1 << 16), (), self._keep)
                break
            except TransportError as error:
                refused = error
        else:
            raise refused

    def _keep(self, fd: int) -> None:
        self.registers = fd

    def _share(self, address: int, nbytes: int) -> None:
        """Make the card map memory: consecutive memfds, each mapped whole."""
        reached = address
        for mapping in _mappings():
            if mapping.start <= reached < min(mapping.end, address + nbytes) and mapping.offset == 0 and self._has(mapping):
                reached = mapping.end
        if reached < address + nbytes:
            raise Fault(f"{nbytes} bytes at {address:#x} are no memfd of this process")

    def _has(self, mapping: _Mapping) -> bool:
        """Share a mapping if it is not shared yet, instead of an older one at its address; return whether it can be shared."""
        before = self._shared.get(mapping.start)
        if before == mapping:
            return True
        fd = _descriptor(mapping.file)
        if fd is None:
            return False
        if before is not None:
            self._hca.unshare(before.start, before.end - before.start)
        self._hca.share(mapping.start, mapping.end - mapping.start, fd)
        self._shared[mapping.start] = mapping
        return True

    def command(self, inbox: bytes, outlen: int) -> bytes:
        return self._hca.command(inbox, outlen)

    def alloc_pd(self) -> int:
        return self._hca.alloc_pd()

    def dealloc_pd(self, pdn: int) -> None:
        self._hca.dealloc_pd(pdn)

    def register_umem(self, address: int, nbytes: int, page_size: int = UMEM_PAGE_SIZE) -> int:
        self._share(address, nbytes)
        return self._hca.register_umem(address, nbytes, page_size)

    def deregister_umem(self, umem_id: int) -> None:
        self._hca.deregister_umem(umem_id)

    def register_mr(self, address: int, nbytes: int, pdn: int, access: int) -> int:
        self._share(address, nbytes)
        return self._hca.register_mr(address, nbytes, pdn, access)[0]

    def deregister_mr(self, key: int) -> None:
        self._hca.deregister_mr(key)

    def alloc_uar(self, kind: int) -> int:
        return self._hca.alloc_uar(UarType(kind)).page_id

    def dealloc_uar(self, page: int) -> None:
        self._hca.dealloc_uar(page)

    def query_eqn(self) -> int:
        return self._hca.query_eqn()

    def close(self) -> None:
        self._hca.close()


def connect() -> Card:
    """Return a new context on the card of this command, or of this process."""
    if os.environ[CARD] == LOCAL:
        from uverbs.local import LocalCard

        return LocalCard()
    return RemoteCard(os.environ[CARD])


def errno_of(error: Exception) -> int:
    if isinstance(error, Fault):
        return errno.EFAULT
    return errno.EINVAL
