"""The window: PE p's slot is mapped at ``BASE + p * STRIDE`` in every PE that can reach it, itself included.

The addresses of an object on two PEs differ only in the PE's number in the upper bits, so no table is needed to go from one to the
other. A slot is::

    offset 0                    nothing: a hole, where an underrun faults
    HEAP_OFFSET - team memory   flags and staging of teams (layout.py); its size is computed at init (pgas/job/memory/teams.py)
    HEAP_OFFSET                 the symmetric heap

STRIDE and TRANSPORT are fixed by the first init of a process (``freeze``), because compiled code contains them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pgas.base.errors import PgasError
from pgas.kernels.compiler import constant, device, ptx, u32, u64

__all__ = ["Constants", "constants", "freeze", "learn", "remote", "slot"]

#: The first slot. Reservations of 64 MiB and more get this address; the range above it was free in every process tried.
BASE = 0x6000_0000_0000

#: log2 of the distance between slots: 2^38 for GPUs of up to 256 GiB, else 2^39.
SMALL_STRIDE_SHIFT = STRIDE_SHIFT = 38

#: The heap of a slot. Team memory ends here, so heap and team memory are one segment and one memory region of a NIC.
HEAP_OFFSET = 4 << 30

#: The queues of a slot, behind any heap: send queues, completion queues, doorbell records and landing cells of the NIC transports.
QUEUE_OFFSET = (1 << STRIDE_SHIFT) - (8 << 30)

#: Doorbells that a CPU rings for kernels (transports/ibgda/doorbells.py), in the host's memory behind the queues.
DOORBELL_OFFSET = QUEUE_OFFSET + (8 << 30) - (64 << 20)

#: Private memory of a process, which begins with the state page (layout.py). Bit 31 of its addresses is 0: ptxas makes such a constant in
#: two instructions, others in five.
PRIVATE = STATE = BASE - (4 << 30)
PRIVATE_SIZE = 1 << 30
STATE_SIZE = 2 << 20


class Described(Protocol):
    """The attributes of a transport (transports/registry.py) that this module reads."""

    name: str
    path: str
    maps_peers: bool

    def constants(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of Constants that are this transport's own."""


@dataclass(frozen=True)
class Constants:
    """What compiled code of this process depends on; part of the key of the disk cache."""

    base: int
    stride_shift: int
    transport: str
    path: str  #: module of the transport's device functions
    maps_peers: bool  #: whether kernels reach peers' memory by address
    check: bool
    num_qps: int = 0  #: queue pairs to each PE (NIC transports)
    map_by: str = ""  #: one of SHARERS (NIC transports)
    depth: int = 0  #: WQEBBs in a send queue
    batch: int = 0  #: WQEBBs after which the doorbell is rung although more are reserved
    ring: int = 0  #: requests in the ring of the proxy thread (ibrc)
    far_path: str = ""  #: module of the path through a NIC, in a job that has two paths
    near_in_row: bool = True  #: with two paths: whether each PE is near to PEs with consecutive numbers
    atomics_by_peers: bool = False  #: with two paths: whether SMs perform the atomics of near PEs (PGAS_AMO=peer)
    settles: bool = False  #: whether kernels settle what a NIC writes here (PGAS_NIC_ORDERING, paths/transport.py)
    big_endian: bool | None = None  #: whether the NIC returns old values of 8 bytes big-endian; None before learn()
    ll_bytes: int = 0  #: bytes that a member of a team sends to another through staging, at most (PGAS_LL_BYTES)

    @classmethod
    def of(cls, requested: Mapping[str, Any], transport: Described, largest_gpu: int, *, near_in_row: bool = True) -> "Constants":
        """Return what a job's variables, its transport, its largest GPU (bytes of memory) and its machines ask for."""
        shift = SMALL_STRIDE_SHIFT if largest_gpu <= 1 << SMALL_STRIDE_SHIFT else SMALL_STRIDE_SHIFT + 1
        check = "check" in requested["PGAS_DEBUG"]
        return cls(
            BASE,
            shift,
            transport.name,
            transport.path,
            transport.maps_peers,
            check,
            near_in_row=near_in_row,
            ll_bytes=requested["PGAS_LL_BYTES"],
            **transport.constants(requested),
        )


_frozen: Constants | None = None


def freeze(wanted: Constants) -> None:
    """Fix the constants that code is compiled with.

    Raises:
        PgasError: an earlier init of this process fixed other ones; kernels may already contain them.
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
        LL_BYTES, \
        STAGING_PART, \
        sharer, \
        NEAR_IN_ROW
    if _frozen is not None and wanted.big_endian is None:
        wanted = replace(wanted, big_endian=_frozen.big_endian)  # its own NIC is still to say so
    if _frozen is not None and _frozen != wanted:
        changed = [f"{k} was {v!r}, now {getattr(wanted, k)!r}" for k, v in vars(_frozen).items() if v != getattr(wanted, k)]
        raise PgasError(f"pgas was initialised with another configuration before in this process ({'; '.join(changed)}): start a new one")
    _frozen, STRIDE_SHIFT = wanted, wanted.stride_shift
    SHIFT, OFFSET_MASK = constant(STRIDE_SHIFT), constant((1 << STRIDE_SHIFT) - 1)
    NUM_QPS, DEPTH, RING_SIZE = constant(wanted.num_qps), constant(wanted.depth), constant(wanted.ring)
    SLOT_MASK, BATCH_MASK = constant(max(wanted.depth - 1, 0)), constant((1 << 32) - max(wanted.batch, 1))
    SETTLES, BIG_ENDIAN = wanted.settles, bool(wanted.big_endian)
    LL_BYTES, STAGING_PART = constant(wanted.ll_bytes), constant(2 * wanted.ll_bytes)
    NEAR_IN_ROW = wanted.near_in_row
    sharer = SHARERS.get(wanted.map_by, ptx.block_rank)


def learn(*, big_endian: bool) -> None:
    """Add to the frozen constants what only an open NIC tells, before this process compiles a kernel. Errors are those of freeze."""
    global _frozen
    wanted = replace(constants(), big_endian=big_endian)
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


#: For device code, which is compiled after freeze(): ``window.DEPTH`` in a device function is a constant of its instructions.
_BASE = constant(BASE)
OFFSET_MASK = constant((1 << STRIDE_SHIFT) - 1)
SHIFT = constant(STRIDE_SHIFT)
NUM_QPS = DEPTH = SLOT_MASK = RING_SIZE = constant(0)
SETTLES = BIG_ENDIAN = False
LL_BYTES = STAGING_PART = constant(0)  #: STAGING_PART: bytes of staging for LL_BYTES, as lines (collectives/near.py)
NEAR_IN_ROW = True
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


#: By Constants.map_by: returns the number of the cta, SM or warp whose threads share a queue pair. sharer: the one for this process.
SHARERS = {"cta": ptx.block_rank, "sm": ptx.smid, "warp": warp_number}
sharer = ptx.block_rank
