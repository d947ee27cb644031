"""Memory of this process registered with a device: the host's by its address, a GPU's as a dma-buf or by the peer memory driver."""

import errno
import os
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pgas.base.errors import PgasError, TransportError
from pgas.transports.mlx5.contexts import Access
from pgas.transports.verbs.device import OpenDevice, pyverbs, reason

__all__ = ["Region", "register"]


@dataclass(frozen=True)
class Region:
    """A memory region."""

    mr: Any  #: pyverbs.mr.MR
    lkey: int
    rkey: int
    shift: int  #: subtracted from an address of the window gives the address that work requests use


def register(device: OpenDevice, address: int, nbytes: int, access: Access, *, what: str, on_gpu: bool) -> Region:
    """Register memory; on GPUs in whichever of two ways works.

    Args:
        device: with which device.
        address: of the first byte, in the window.
        nbytes: how many bytes.
        access: IBV_ACCESS_* flags.
        what: the memory, for messages.
        on_gpu: CUDA allocated it: as a dma-buf, else by address, which GPU memory needs nvidia-peermem for.

    Raises:
        TransportError: it is refused; the text names the reasons, and the limit where that is the reason.
    """
    ways: list[tuple[str, Callable[[], Region]]] = [("by address", lambda: _by_address(device, address, nbytes, access))]
    if on_gpu:
        ways = [
            ("as a dma-buf", lambda: _as_dma_buf(device, address, nbytes, access)),
            ("by address (GPU memory needs the kernel module nvidia-peermem)", ways[0][1]),
        ]
    refusals = []
    for way, attempt in ways:
        try:
            return attempt()
        except (pyverbs("pyverbs_error").PyverbsError, PgasError, OSError) as error:
            limit = _limit(nbytes) if getattr(error, "error_code", None) == errno.ENOMEM else ""
            refusals.append(f"{way}: {reason(error)}{limit}")
    raise TransportError(f"RDMA device {device} does not register {nbytes} bytes of {what} {'; '.join(refusals)}")


def _limit(nbytes: int) -> str:
    """Say how much memory this process may pin; CAP_IPC_LOCK lifts the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return " (no limit on locked memory is set: does the machine have that much?)"
    allowed = "any" if hard == resource.RLIM_INFINITY else f"{hard >> 10} KiB"
    return (
        f" (this process may lock {soft >> 10} KiB of memory, this alone takes {nbytes >> 10} KiB: ulimit -l {nbytes * 2 >> 10} or more in "
        f"the shell that starts the job, where {allowed} is allowed; or a smaller PGAS_SYMMETRIC_SIZE)"
    )


def _by_address(device: OpenDevice, address: int, nbytes: int, access: Access) -> Region:
    mr = pyverbs("mr").MR(device.pd, nbytes, int(access), address=address)
    return Region(mr, mr.lkey, mr.rkey, 0)


def _as_dma_buf(device: OpenDevice, address: int, nbytes: int, access: Access) -> Region:
    """Register memory in what CUDA exports, whose first byte has address 0 in work requests: pyverbs passes the offset as the iova, too."""
    from pgas.transports.memory.gpudirect import dmabuf

    fd, offset = dmabuf(address, nbytes)
    try:
        mr = pyverbs("mr").DmaBufMR(device.pd, nbytes, int(access), fd, offset)
    finally:
        os.close(fd)
    return Region(mr, mr.lkey, mr.rkey, address - offset)
