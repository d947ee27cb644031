"""The seam between IBGDA/IBRC and a NIC: what DevX gives to user space.

Two things implement it: a ConnectX through pyverbs, and the software card (softhca). Whoever uses an Adapter cannot tell which it has.
Commands are the PRM's own bytes (pgas.transports.mlx5.commands); the other calls are those that the kernel driver keeps to itself:
protection domains, user memory, memory regions and UARs
(``mlx5dv_devx_umem_reg``, ``ibv_reg_mr``, ``mlx5dv_devx_alloc_uar``; facts 3.1, 5.1).

The last group is for adapters that are another process: memory has to be shared with that process before it is registered, and its counters
can be read. A device of the machine does nothing there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pgas.base.errors import TransportError
from pgas.transports.memory.protocol import Memory
from pgas.transports.mlx5 import send_queue
from pgas.transports.mlx5.cqe import syndrome_words

__all__ = ["Adapter", "AdapterGone", "FirstError", "Inspection", "Opener", "Path", "Port", "QueueState", "Uar", "path_of"]


class AdapterGone(TransportError):
    """The process that plays the adapter has ended."""


@dataclass(frozen=True)
class Uar:
    """A page of doorbell registers that belongs to this PE alone."""

    page_id: int  #: what qpc.uar_page and cqc.uar_page take
    register_address: int  #: the one doorbell register that the page gives to one QP, in this process's address space


@dataclass(frozen=True)
class Port:
    """A port of the adapter, as INIT2RTR's address path needs it (facts 3.5)."""

    port_num: int  #: from 1
    link_layer: str  #: "InfiniBand" or "Ethernet"
    active_mtu: int  #: qpc.mtu: 1 to 5 for 256 to 4096 bytes
    lid: int
    gid: bytes  #: 16 bytes, the one by which QPs are addressed
    mac: bytes  #: 6 bytes, zero on InfiniBand
    rate_gbps: float


@dataclass(frozen=True)
class Path:
    """How packets of this job go: what PGAS_IB_* ask for, and by default what NVSHMEM sets (facts 3.5)."""

    gid_index: int = 0  #: of the entry of this port's GID table by which QPs are addressed
    sl: int = 0  #: service level; on Ethernet the priority
    traffic_class: int = 0  #: 8 bits of packets with a GRH; on Ethernet the upper six are the DSCP
    timeout: int = 20  #: 4.096 us * 2^timeout until a packet that nobody acknowledged is sent again
    retry_count: int = 7  #: how often it is sent again


@dataclass(frozen=True)
class FirstError:
    """What took a QP to ERR. In a collapsed CQ the flush CQEs of the WQEs behind it overwrite its own (facts 2.5)."""

    wqe_idx: int  #: modulo 2^16
    syndrome: int  #: of its CQE (mlx5.cqe.Syndrome)
    vendor_err_synd: int
    words: str  #: what the vendor's syndrome means, "" if nobody knows
    wqe: bytes  #: as the adapter executed it

    def __str__(self) -> str:
        vendor = f"vendor_err_synd {self.vendor_err_synd:#04x}" + (f", {self.words}" if self.words else "")
        return f"WQE {self.wqe_idx}: {syndrome_words(self.syndrome)}, {vendor}; {send_queue.describe(self.wqe)}"


@dataclass(frozen=True)
class QueueState:
    """How far an adapter is with a QP."""

    state: str  #: RST, INIT, RTR, RTS or ERR
    producer: int  #: the index that it was told last
    consumer: int  #: the index that it executes next


@dataclass(frozen=True)
class Inspection:
    """What an adapter tells of itself while kernels run."""

    summary: str  #: one line
    queues: Mapping[int, QueueState]  #: by QP number


class Adapter(Protocol):
    """One PE's view of a NIC: of its own objects, in its own address space.

    All methods but command raise TransportError if the adapter refuses; the text says what and why. All raise it once the adapter is gone.
    """

    name: str  #: for messages, e.g. "mlx5_0" or "softhca"

    #: Whether kernels cannot store to the registers: a CPU has to do that for them (transports/ibgda/doorbells.py).
    rung_by_cpu: bool

    #: What executes its WQEs if that is software: "cpu" or "cuda"; None if it is the card itself.
    engine: str | None

    def command(self, inbox: bytes, outlen: int) -> bytes:
        """Execute a command and return its output of outlen bytes; whether it succeeded is in its status and syndrome."""

    def alloc_pd(self) -> int:
        """Return the number of a new protection domain."""

    def dealloc_pd(self, pdn: int) -> None:
        """Give a protection domain back; refused while a QP or key is in it."""

    def register_umem(self, address: int, nbytes: int) -> int:
        """Return the id of memory that holds queues and doorbell records: any range of this PE's slot."""

    def deregister_umem(self, umem_id: int) -> None:
        """Forget a UMEM; refused while a QP, CQ or key uses it."""

    def register_mr(self, address: int, nbytes: int, pdn: int, access: int) -> tuple[int, int]:
        """Return (lkey, rkey) of memory of this PE; addresses in WQEs are those of this process. access: flags of contexts.Access."""

    def deregister_mr(self, lkey: int) -> None:
        """Invalidate the keys of a memory region; WQEs that use them fail from then on."""

    def alloc_uar(self) -> Uar:
        """Return a new UAR, mapped here. Its register serves one QP: a later doorbell in it overwrites an earlier one (facts 1.10)."""

    def dealloc_uar(self, page_id: int) -> None:
        """Unmap and give back a UAR; refused while a QP or CQ names it."""

    def query_eqn(self) -> int:
        """Return the number of the completion event queue that cqc.c_eqn names."""

    def query_port(self) -> Port:
        """Return the port."""

    def syndrome_words(self, syndrome: int) -> str:
        """Return what the syndrome of a refused command means, "" if the adapter does not know: they are the firmware's own."""

    def diagnose(self, qpn: int) -> FirstError | None:
        """Return the first error of a QP, None if there was none or the adapter does not know it."""

    def share(self, address: int, nbytes: int, fd: int) -> None:
        """Let the adapter map a segment of this PE's slot; it may then be registered. fd: its descriptor."""

    def unshare(self, address: int, nbytes: int) -> None:
        """Undo share(); refused while something is registered there."""

    def lend(self, address: int, nbytes: int, memory: Memory) -> None:
        """Let the adapter map memory outside of the window; it may then be registered as a local operand."""

    def take_back(self, address: int, memory: Memory) -> None:
        """Undo lend(); no region of it is registered any more."""

    def counts(self) -> dict[str, int]:
        """Return what it counted of this PE's QPs: wqes, nbytes, doorbells, cqes, errors; {} if it does not tell."""

    def inspect(self, timeout_s: float) -> Inspection | None:
        """Return what it does at this moment, None if it does not tell. Any thread may ask, whatever another one waits for.

        Raises:
            TransportError: it does not answer in time.
        """

    def set_index(self, qpn: int, index: int) -> None:
        """Let a QP that is not in RTS begin at an index other than 0, for tests of wrap. A real card refuses."""

    def close(self) -> None:
        """Destroy what this PE still has on the adapter and let it go. Further calls do nothing."""


class Opener(Protocol):
    """Opens a PE's adapter."""

    def begin(self, n_pes: int) -> tuple[str, int]:
        """Start the adapter, if it is a process. Called on PE 0 alone. Return the name that open() takes, and the process id; "" and 0."""

    def open(self, name: str, memory: Memory, shared: list[tuple[int, int, int]]) -> Adapter:
        """Return the adapter of this PE. Raises TransportError.

        Args:
            name: what begin() returned on PE 0.
            memory: this PE's.
            shared: (address, nbytes, descriptor) of its segments.
        """

    def end(self, *, orderly: bool) -> None:
        """End what begin() started. Called on PE 0 alone. orderly: whether all PEs have closed their adapters or are about to."""


def path_of(requested: Mapping[str, Any], gid_index: int = 0) -> Path:
    """Return how packets go, as the variables PGAS_IB_* ask for."""
    names = ("PGAS_IB_SL", "PGAS_IB_TRAFFIC_CLASS", "PGAS_IB_TIMEOUT", "PGAS_IB_RETRY_COUNT")
    return Path(gid_index, *(requested[name] for name in names))
