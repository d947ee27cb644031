"""Adapter: the interface between IBGDA or IBRC and a NIC. Its calls are those of DevX.

There are two implementations: a ConnectX through pyverbs, and the software NIC (softhca). Users of an Adapter cannot distinguish them.
Commands are bytes as the PRM defines them (pgas.transports.mlx5.commands). The other calls are those of the kernel driver: protection
domains, user memory, memory regions, and UARs (``mlx5dv_devx_umem_reg``, ``ibv_reg_mr``, ``mlx5dv_devx_alloc_uar``).

The last group is for an adapter that is another process: memory is shared with that process before it is registered, and its counters can
be read. For a physical NIC, these calls do nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pgas.base.errors import TransportError
from pgas.transports.memory.protocol import Memory
from pgas.transports.mlx5 import commands, send_queue
from pgas.transports.mlx5.commands import Command
from pgas.transports.mlx5.cqe import syndrome_words

#: Hop limit of packets with a GRH.
HOP_LIMIT = 255


class AdapterGone(TransportError):
    """The process that emulates the adapter has ended."""


@dataclass(frozen=True)
class Uar:
    """A page of doorbell registers that belongs only to this PE."""

    page_id: int  #: for qpc.uar_page and cqc.uar_page
    register_address: int  #: the doorbell register of one QP, in this process's address space


@dataclass(frozen=True)
class PortAddress:
    """A port of the adapter, as INIT2RTR's address path needs it."""

    port_num: int  #: from 1
    link_layer: str  #: "InfiniBand" or "Ethernet"
    active_mtu: int  #: qpc.mtu: 1 to 5 for 256 to 4096 bytes
    lid: int
    gid: bytes  #: 16 bytes; the GID that addresses QPs
    rate_gbps: float


@dataclass(frozen=True)
class AddressPath:
    """GID, service level, and retries of this job's packets: PGAS_IB_*, with NVSHMEM's values as defaults."""

    gid_index: int = 0  #: index in this port's GID table of the GID that addresses QPs
    sl: int = 0  #: service level; on Ethernet, the priority
    traffic_class: int = 0  #: 8 bits for packets with a GRH; on Ethernet, the upper six are the DSCP
    timeout: int = 20  #: a packet is sent again after 4.096 µs * 2^timeout without an acknowledgment
    retry_count: int = 7  #: maximum number of retransmissions


@dataclass(frozen=True)
class FirstError:
    """The error that moved a QP to ERR. In a collapsed CQ, the flush CQEs of later WQEs overwrite its CQE."""

    wqe_idx: int  #: modulo 2^16
    syndrome: int  #: syndrome of its CQE (mlx5.cqe.Syndrome)
    vendor_err_synd: int
    words: str  #: the meaning of the vendor's syndrome, "" if unknown
    wqe: bytes  #: as the adapter executed it

    def __str__(self) -> str:
        vendor = f"vendor_err_synd {self.vendor_err_synd:#04x}" + (f", {self.words}" if self.words else "")
        return f"WQE {self.wqe_idx}: {syndrome_words(self.syndrome)}, {vendor}; {send_queue.describe(self.wqe)}"


@dataclass(frozen=True)
class QueueState:
    """The state and indices of a QP on its adapter."""

    state: str  #: RST, INIT, RTR, RTS, or ERR
    producer: int  #: the index of the last doorbell
    consumer: int  #: the index of the next WQEBB to execute


@dataclass(frozen=True)
class Inspection:
    """An adapter's report on itself while kernels run."""

    summary: str  #: one line
    queues: Mapping[int, QueueState]  #: by QP number


class Adapter(Protocol):
    """One PE's view of a NIC: its own objects, in its own address space.

    All methods except command raise TransportError if the adapter refuses; the text says what and why. All raise it once the adapter is
    gone.
    """

    name: str  #: for messages, such as "mlx5_0" or "softhca"

    #: Whether kernels cannot store to the registers, so that a CPU rings doorbells for them (transports/ibgda/doorbells.py).
    rung_by_cpu: bool

    #: The software that executes WQEs, such as "cpu", or "cuda" or "dma" with a hash of its kernel; None for a physical NIC.
    engine: str | None

    def command(self, inbox: bytes, outlen: int) -> bytes:
        """Execute a command and return its output of outlen bytes, whose status and syndrome tell whether the command succeeded."""

    def alloc_pd(self) -> int:
        """Return the number of a new protection domain."""

    def dealloc_pd(self, pdn: int) -> None:
        """Release a protection domain; refused while a QP or key uses it."""

    def register_umem(self, address: int, nbytes: int) -> int:
        """Register a range of this PE's slot as a UMEM, for queues and doorbell records; return its id."""

    def deregister_umem(self, umem_id: int) -> None:
        """Deregister a UMEM; refused while a QP, CQ, or key uses it."""

    def register_mr(self, address: int, nbytes: int, pdn: int, access: int) -> tuple[int, int]:
        """Register memory of this PE; return (lkey, rkey). WQEs use this process's addresses. access: flags of contexts.Access."""

    def deregister_mr(self, lkey: int) -> None:
        """Invalidate the keys of a memory region; later WQEs with these keys fail."""

    def alloc_uar(self) -> Uar:
        """Return a new UAR, mapped here. Its register serves only one QP, because a later doorbell overwrites an earlier one."""

    def dealloc_uar(self, page_id: int) -> None:
        """Unmap and release a UAR; refused while a QP or CQ uses it."""

    def query_eqn(self) -> int:
        """Return the number of the completion event queue, for cqc.c_eqn."""

    def query_port(self) -> PortAddress:
        """Return the port."""

    def destination_mac(self, pdn: int, remote: PortAddress, path: AddressPath) -> bytes:
        """Return the destination MAC of packets to a remote Ethernet port: the port's, or that of a router. pdn: any domain."""

    def path_mtus(self, gids: Iterable[bytes]) -> dict[bytes, int]:
        """Return the largest qpc.mtu whose packets reach each of these GIDs of other ports. Without an entry, the ports' MTUs apply."""

    def syndrome_words(self, syndrome: int) -> str:
        """Return the meaning of a refused command's syndrome, "" if unknown. Syndromes are the firmware's own."""

    def diagnose(self, qpn: int) -> FirstError | None:
        """Return the first error of a QP, None if there is none or it is unknown."""

    def share(self, address: int, nbytes: int, fd: int) -> None:
        """Map a segment of this PE's slot into the adapter, so that it may be registered. fd: its descriptor."""

    def unshare(self, address: int, nbytes: int) -> None:
        """Undo share(); refused while memory in the segment is registered."""

    def lend(self, address: int, nbytes: int, memory: Memory) -> None:
        """Map memory outside the window into the adapter, so that it may be registered as a local operand."""

    def take_back(self, address: int, memory: Memory) -> None:
        """Undo lend(). The memory must not be registered anymore."""

    def counts(self) -> dict[str, int]:
        """Return the counters of this PE's QPs: wqes, nbytes, doorbells, cqes, errors; {} if there are none."""

    def inspect(self, timeout_s: float) -> Inspection | None:
        """Return the adapter's current state, None if it does not report. Any thread may call this, even while others wait.

        Raises:
            TransportError: it does not answer in time.
        """

    def set_index(self, qpn: int, index: int) -> None:
        """Let a QP that is not in RTS begin at an index other than 0, for tests of wrap-around. A physical NIC refuses."""

    def close(self) -> None:
        """Destroy this PE's objects on the adapter and release it. Further calls do nothing."""


class Opener(Protocol):
    """Opens a PE's adapter."""

    @property
    def sharing(self) -> Sequence[int]:
        """PEs that share the adapter's process if it is one, in order."""

    def begin(self) -> tuple[str, int]:
        """Start the adapter if it is a process; called only on the first PE of sharing.

        Return its name for open() and its process id, otherwise "" and 0.
        """

    def open(self, name: str, memory: Memory, shared: list[tuple[int, int, int]]) -> Adapter:
        """Return the adapter of this PE. Raises TransportError.

        Args:
            name: from begin() on the first PE of sharing.
            memory: memory of this PE.
            shared: (address, nbytes, descriptor) of this PE's segments.
        """

    def end(self) -> None:
        """End the process of begin(), on the PE that began it, even if PEs have not closed their adapters. Further calls do nothing."""


def execute(adapter: Adapter, command: Command, op_mod: int = 0, *, klms: bytes = b"", **values: Any) -> dict[str, Any]:
    """Execute a command and return the fields of its output.

    Args:
        adapter: the NIC.
        command: the command.
        op_mod: its modifier.
        klms: the list of pieces behind the input of CREATE_MKEY.
        values: the other fields of the input.

    Raises:
        CommandError: the adapter refuses.
    """
    inbox = commands.build(command, op_mod=op_mod, **values) + klms
    outbox = adapter.command(inbox, commands.output_size(command))
    commands.check(command, outbox, adapter.syndrome_words)
    return commands.parse_output(command, outbox, op_mod=op_mod)


def path_of(requested: Mapping[str, Any], gid_index: int = 0) -> AddressPath:
    """Return the AddressPath that the variables PGAS_IB_* request."""
    names = ("PGAS_IB_SL", "PGAS_IB_TRAFFIC_CLASS", "PGAS_IB_TIMEOUT", "PGAS_IB_RETRY_COUNT")
    return AddressPath(gid_index, *(requested[name] for name in names))
