"""A test of an RDMA device without a GPU: a queue pair connected to itself, in host memory, used like ibgda does (docs/rdma.md)."""

import contextlib
import time

from pgas.base.errors import PgasError, TransportError
from pgas.kernels import window
from pgas.native import atomics
from pgas.transports.memory.memfd import HostMemory
from pgas.transports.memory.protocol import Segment
from pgas.transports.mlx5 import cqe, doorbell, wqe
from pgas.transports.mlx5.contexts import Access
from pgas.transports.nic.adapter import Adapter, AddressPath, Uar
from pgas.transports.nic.queue_pair import QueuePair, Queues, returns_big_endian

#: Bytes of registered memory, and the offset at which its memory region begins; the UMEM of the queues lies before it.
_NBYTES, _DATA = 2 << 20, 1 << 20
_DEPTH = 128
_TIMEOUT_S = 5
_ACCESS = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC
_WORD = 0x0123_4567_89AB_CDEF


def try_queue_pair(adapter: Adapter, path: AddressPath) -> str:
    """Return which step failed and why, "" if none did. All objects are destroyed.

    Args:
        path: route of packets, which here come back to their port.
    """
    base, step = window.slot(0), "memory is not registered"
    try:
        with contextlib.ExitStack() as undo:
            host = HostMemory()
            undo.callback(host.close)
            fd = host.create(base, Segment(0, _NBYTES, host=True))
            adapter.share(base, _NBYTES, fd)
            undo.callback(adapter.unshare, base, _NBYTES)
            pdn = adapter.alloc_pd()
            undo.callback(adapter.dealloc_pd, pdn)
            umem = adapter.register_umem(base, _DATA)
            undo.callback(adapter.deregister_umem, umem)
            lkey, rkey = adapter.register_mr(base + _DATA, _NBYTES - _DATA, pdn, _ACCESS)
            undo.callback(adapter.deregister_mr, lkey)
            step = "a queue pair is not made"
            (queues,) = Queues.layout(_DEPTH, 1)
            qp = QueuePair(adapter, umem, pdn, queues, _DEPTH, path=path)
            undo.callback(qp.destroy)
            host.fill(base + queues.cq, cqe.CQE_SIZE, cqe.EMPTY)
            step = "it is not connected to itself"
            port = adapter.query_port()
            qp.connect(qp.qpn, port, port)
            step = "a write fails"
            here, there, word, old = (base + _DATA + 4096 * i for i in range(4))
            atomics.store_u64(here, _WORD)
            _run(qp, base, 0, wqe.write(0, qp.qpn, there, rkey, here, lkey, 8, fm_ce_se=wqe.Ce.ALWAYS))
            _expect(there, _WORD)
            step = "a fetching atomic fails"
            atomics.store_u64(word, 40)
            _run(qp, base, 1, wqe.fetch_add(1, qp.qpn, word, rkey, old, lkey, 2, fm_ce_se=wqe.Ce.ALWAYS))
            _expect(word, 42)
            _expect(old, int.from_bytes((40).to_bytes(8, "big"), "little") if returns_big_endian(adapter) else 40)
            step = "an object is not destroyed"
    except (PgasError, OSError) as error:
        return f"{step}: {error}"
    return ""


def _run(qp: QueuePair, base: int, index: int, data: bytes) -> None:
    """Post a WQE of one WQEBB, ring, and wait for its CQE."""
    uar: Uar = qp.uar
    for offset in range(0, len(data), 8):
        at = base + qp.queues.wq + index * wqe.WQEBB + offset
        atomics.store_u64(at, int.from_bytes(data[offset : offset + 8], "little"))
    record = base + qp.queues.dbr + doorbell.DBR_SND_OFFSET
    atomics.store_release_u32(record, int.from_bytes(doorbell.dbr(index + 1), "little"))
    atomics.store_release_u64(uar.register_address, int.from_bytes(doorbell.next_empty(index + 1, qp.qpn), "little"))
    entry, deadline = base + qp.queues.cq, time.monotonic() + _TIMEOUT_S
    while True:
        tail = atomics.load_acquire_u64(entry + cqe.CQE_TAIL).to_bytes(8, "little")
        seen = cqe.decode(b"".join(atomics.load_u64(entry + i).to_bytes(8, "little") for i in range(0, cqe.CQE_TAIL, 8)) + tail)
        if seen.opcode != cqe.CqeOpcode.INVALID and seen.wqe_counter == index:
            break
        if time.monotonic() > deadline:
            state = qp.query().name
            raise TransportError(f"no completion in {_TIMEOUT_S} s; QUERY_QP says the queue pair is in {state}")
        time.sleep(0)
    if seen.is_error:
        raise TransportError(f"{cqe.syndrome_words(seen.syndrome)}, vendor_err_synd {seen.vendor_err_synd:#04x}")


def _expect(address: int, value: int) -> None:
    found = atomics.load_u64(address)
    if found != value:
        raise TransportError(f"it completed, but memory holds {found:#x} instead of {value:#x}")
