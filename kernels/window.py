"""The window: PE p's slot is mapped at ``BASE + p * STRIDE`` in every PE that can access it, including itself.

The addresses of an object on two PEs differ only in the PE number in the upper bits, so that no table is needed to translate them. A slot
is::

    offset 0                    nothing: a hole, where an underrun faults
    HEAP_OFFSET - team memory   flags and staging of teams (layout.py); its size is computed at init (pgas/job/memory/teams.py)
    HEAP_OFFSET                 the symmetric heap

The first init() in a process fixes STRIDE and TRANSPORT (``freeze``), because they are compiled into kernels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pgas.base import events, launcher
from pgas.base.errors import PgasError
from pgas.kernels.compiler import constant, device, ptx, u32, u64

#: Address of the first slot. Reservations of 64 MiB and more get this address; the range above it was free in every process tested.
BASE = 0x6000_0000_0000

#: log2 of the distance between slots, which is 2^38 for GPUs of up to 256 GiB, otherwise 2^39.
SMALL_STRIDE_SHIFT = STRIDE_SHIFT = 38

#: Offset of the heap in a slot. Team memory ends here, so that heap and team memory are one segment and one memory region of a NIC.
HEAP_OFFSET = 4 << 30

#: Offset of the queues in a slot, above the largest possible heap: send queues, completion queues, doorbell records, and landing cells.
QUEUE_OFFSET = (1 << STRIDE_SHIFT) - (8 << 30)

#: Offset of the doorbells that a CPU rings on behalf of kernels (transports/ibgda/doorbells.py), in host memory after the queues.
DOORBELL_OFFSET = QUEUE_OFFSET + (8 << 30) - (64 << 20)

#: Address of a process's private memory, which begins with the state page (layout.py). Bit 31 of its addresses is 0, because ptxas needs
#: two instructions for such a constant and five for others.
PRIVATE = STATE = BASE - (4 << 30)
PRIVATE_SIZE = 1 << 30
STATE_SIZE = 2 << 20


#: Address of the counters of traffic (traffic.py) after the state page, their size, and the number of PEs for which there is room.
TRAFFIC, TRAFFIC_SIZE, TRAFFIC_PES = STATE + STATE_SIZE, 2 << 20, launcher.MAX_PES

#: Address at which the trace file is mapped (pgas/base/events.py), after the private memory.
TRACE = PRIVATE + PRIVATE_SIZE


class Described(Protocol):
    """Attributes of a transport (transports/registry.py) that this module reads."""

    name: str
    path: str
    maps_peers: bool

    def constants(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of Constants that are this transport's own."""


@dataclass(frozen=True)
class Constants:
    """Constants that compiled code of this process depends on; part of the key of the disk cache."""

    base: int
    stride_shift: int
    transport: str
    path: str  #: module with the transport's device functions
    maps_peers: bool  #: whether kernels access peers' memory by address
    check: bool
    num_qps: int = 0  #: queue pairs to each PE (NIC transports)
    map_by: str = ""  #: one of SHARERS (NIC transports)
    depth: int = 0  #: number of WQEBBs in a send queue
    batch: int = 0  #: number of WQEBBs after which the doorbell is rung even if more are reserved
    ring: int = 0  #: number of requests in the proxy thread's ring (ibrc)
    far_path: str = ""  #: module of the path through a NIC, in a job with two transports
    near_in_row: bool = True  #: with two transports: whether the near PEs of each PE have consecutive numbers
    atomics_by_peers: bool = False  #: with two transports: whether SMs perform atomics on near PEs (PGAS_AMO=peer)
    settles: bool = False  #: whether kernels settle NIC writes (PGAS_NIC_ORDERING, paths/transport.py)
    big_endian: bool | None = None  #: whether the NIC returns old values of 8 bytes big-endian; None before learn()
    rung_by_cpu: bool | None = None  #: whether doorbells are in host memory, for a CPU to ring; None before learn()
    trace_events: int = 0  #: number of events of a block that a timeline holds; 0: there is no timeline (PGAS_TRACE)
    counts: bool = False  #: whether kernels count their traffic (PGAS_TRACE)
    ll_bytes: int = 0  #: maximum number of bytes that a member sends to another through staging (PGAS_LL_BYTES)

    @classmethod
    def of(cls, requested: Mapping[str, Any], transport: Described, largest_gpu: int, *, near_in_row: bool = True) -> "Constants":
        """Return the constants for a job's variables, its transport, its largest GPU (bytes of memory), and its nodes."""
        shift = SMALL_STRIDE_SHIFT if largest_gpu <= 1 << SMALL_STRIDE_SHIFT else SMALL_STRIDE_SHIFT + 1
        of_all = {
            "check": "check" in requested["PGAS_DEBUG"],
            "trace_events": requested["PGAS_TRACE_EVENTS"] if requested["PGAS_TRACE"].timeline else 0,
            "counts": bool(requested["PGAS_TRACE"].traffic),
            "ll_bytes": requested["PGAS_LL_BYTES"],
        }
        return cls(
            BASE,
            shift,
            transport.name,
            transport.path,
            transport.maps_peers,
            near_in_row=near_in_row,
            **of_all,
            **transport.constants(requested),
        )


_frozen: Constants | None = None


def freeze(wanted: Constants) -> None:
    """Fix the constants with which code is compiled.

    Raises:
        PgasError: an earlier init() of this process fixed different ones, which kernels may already contain.
    """
    global \
        _frozen, \
        STRIDE_SHIFT, \
        SHIFT, \
        OFFSET_MASK, \
        NUM_QPS, \
        DEPTH, \
        SLOT_MASK, \
        BATCH_MASK, \
        RING_SIZE, \
        SETTLES, \
        BIG_ENDIAN, \
        RUNG_BY_CPU, \
        LL_BYTES, \
        TRACES, \
        COUNTS, \
        TRACE_MASK, \
        TRACE_SHIFT, \
        STAGING_PART, \
        sharer, \
        NEAR_IN_ROW
    if _frozen is not None and wanted.big_endian is None:
        # They are unknown until this job's NIC is open.
        wanted = replace(wanted, big_endian=_frozen.big_endian, rung_by_cpu=_frozen.rung_by_cpu)
    if _frozen is not None and _frozen != wanted:
        changed = [f"{k} was {v!r}, now {getattr(wanted, k)!r}" for k, v in vars(_frozen).items() if v != getattr(wanted, k)]
        raise PgasError(
            f"pgas was already initialized in this process with a different configuration ({'; '.join(changed)}); start a new process"
        )
    _frozen, STRIDE_SHIFT = wanted, wanted.stride_shift
    SHIFT, OFFSET_MASK = constant(STRIDE_SHIFT), constant((1 << STRIDE_SHIFT) - 1)
    NUM_QPS, DEPTH, RING_SIZE = constant(wanted.num_qps), constant(wanted.depth), constant(wanted.ring)
    SLOT_MASK, BATCH_MASK = constant(max(wanted.depth - 1, 0)), constant((1 << 32) - max(wanted.batch, 1))
    SETTLES, BIG_ENDIAN, RUNG_BY_CPU = wanted.settles, bool(wanted.big_endian), bool(wanted.rung_by_cpu)
    LL_BYTES, STAGING_PART = constant(wanted.ll_bytes), constant(2 * wanted.ll_bytes)
    NEAR_IN_ROW = wanted.near_in_row
    COUNTS = wanted.counts
    TRACES, TRACE_MASK = wanted.trace_events != 0, constant(max(wanted.trace_events - 1, 0))
    TRACE_SHIFT = constant(max(wanted.trace_events, 1).bit_length() - 1 + events.EVENT_SHIFT)
    sharer = SHARERS.get(wanted.map_by, ptx.block_rank)


def learn(*, big_endian: bool, rung_by_cpu: bool) -> None:
    """Add to the frozen constants what only an open NIC reveals, before this process compiles a kernel. Raises the errors of freeze()."""
    global _frozen
    wanted = replace(constants(), big_endian=big_endian, rung_by_cpu=rung_by_cpu)
    if constants().big_endian is None:
        _frozen = None
    freeze(wanted)


def constants() -> Constants:
    """Return the frozen constants.

    Raises:
        PgasError: pgas.init() has not run in this process.
    """
    if _frozen is None:
        raise PgasError("pgas.init() must run before a kernel that calls pgas functions is compiled or launched")
    return _frozen


#: Constants for device code, which is compiled after freeze(), so that ``window.DEPTH`` in a device function becomes an immediate operand.
_BASE = constant(BASE)
OFFSET_MASK = constant((1 << STRIDE_SHIFT) - 1)
SHIFT = constant(STRIDE_SHIFT)
NUM_QPS = DEPTH = SLOT_MASK = RING_SIZE = constant(0)
SETTLES = BIG_ENDIAN = RUNG_BY_CPU = False
LL_BYTES = STAGING_PART = constant(0)  #: STAGING_PART: bytes of staging for LL_BYTES, as lines (collectives/lines.py)
NEAR_IN_ROW = True
TRACES = False  #: whether kernels write events for a timeline (trace.py)
COUNTS = False  #: whether kernels count their traffic (traffic.py)
TRACE_MASK = TRACE_SHIFT = constant(0)  #: mask of a ticket for its slot in a ring; log2 of the bytes of a ring
BATCH_MASK = constant(0)  #: mask of the bits of a 32-bit index that give its batch number


def slot(pe: int) -> int:
    """Return the address of PE pe's slot."""
    return BASE + (pe << STRIDE_SHIFT)


@device
def remote(addr, pe):
    """Return the address on PE pe of the symmetric object at addr (in any PE's slot)."""
    return _BASE + (u64(pe) << SHIFT) + (addr & OFFSET_MASK)


@device
def warp_number():
    """Return the number of the caller's warp in the grid."""
    return u32(ptx.block_rank() * ((ptx.block_size() + u32(31)) // u32(32)) + ptx.thread_rank() // u32(32))


#: Functions by Constants.map_by that return the number of the CTA, SM, or warp whose threads share a queue pair. sharer: this process's
#: one.
SHARERS = {"cta": ptx.block_rank, "sm": ptx.smid, "warp": warp_number}
sharer = ptx.block_rank
