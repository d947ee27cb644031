"""Registration of memory with a device: host memory by address, GPU memory as a dma-buf or by the peer memory driver."""

import errno
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pgas.base.errors import PgasError, TransportError
from pgas.transports.mlx5.contexts import Access
from pgas.transports.verbs.device import OpenDevice, pyverbs, reason


@dataclass(frozen=True)
class VerbsRegion:
    """A memory region."""

    mr: Any  #: pyverbs.mr.MR
    lkey: int
    rkey: int
    shift: int  #: subtracted from an address of the window, it gives the address in work requests


def register(device: OpenDevice, address: int, nbytes: int, access: Access, *, what: str, on_gpu: bool) -> VerbsRegion:
    """Register memory; GPU memory as a dma-buf, or otherwise by address with nvidia-peermem.

    Args:
        device: the device.
        address: address of the first byte, in the window.
        nbytes: length in bytes.
        access: IBV_ACCESS_* flags.
        what: name of the memory, for messages.
        on_gpu: whether it is GPU memory.

    Raises:
        TransportError: the device refuses; the text gives the reasons, and the limit on locked memory if that is one.
    """
    methods: list[tuple[str, Callable[[], VerbsRegion]]] = [("by address", lambda: _by_address(device, address, nbytes, access))]
    if on_gpu:
        methods = [
            ("as a dma-buf", lambda: _as_dma_buf(device, address, nbytes, access)),
            ("by address (GPU memory needs the kernel module nvidia-peermem)", methods[0][1]),
        ]
    refusals = []
    for method, attempt in methods:
        try:
            return attempt()
        except (pyverbs("pyverbs_error").PyverbsError, PgasError, OSError) as error:
            limit = _limit(nbytes) if getattr(error, "error_code", None) == errno.ENOMEM else ""
            refusals.append(f"{method}: {reason(error)}{limit}")
    raise TransportError(f"RDMA device {device} does not register {nbytes} bytes of {what} {'; '.join(refusals)}")


def _limit(nbytes: int) -> str:
    """Return text about the limit on locked memory (RLIMIT_MEMLOCK; CAP_IPC_LOCK lifts it)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return " (no limit on locked memory is set; check that the machine has that much memory)"
    allowed = "any" if hard == resource.RLIM_INFINITY else f"{hard >> 10} KiB"
    return (
        f" (this process may lock {soft >> 10} KiB of memory, this alone takes {nbytes >> 10} KiB: ulimit -l {nbytes * 2 >> 10} or more in "
        f"the shell that starts the job, where {allowed} is allowed; or a smaller PGAS_SYMMETRIC_SIZE)"
    )


def _by_address(device: OpenDevice, address: int, nbytes: int, access: Access) -> VerbsRegion:
    mr = pyverbs("mr").MR(device.pd, nbytes, int(access), address=address)
    return VerbsRegion(mr, mr.lkey, mr.rkey, 0)


def _as_dma_buf(device: OpenDevice, address: int, nbytes: int, access: Access) -> VerbsRegion:
    """Register a dma-buf. Its first byte has address 0 in work requests, because pyverbs also passes the offset as the iova."""
    from pgas.transports.memory.gpudirect import dmabuf

    fd, offset = dmabuf(address, nbytes)
    try:
        mr = pyverbs("mr").DmaBufMR(device.pd, nbytes, int(access), fd, offset)
    finally:
        os.close(fd)
    return VerbsRegion(mr, mr.lkey, mr.rkey, address - offset)
