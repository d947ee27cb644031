"""The seam between IBGDA/IBRC and a NIC: what DevX gives to user space, and nothing else.

Two things implement it: a ConnectX through pyverbs, and the software card (softhca). Whoever uses an Adapter cannot tell which it has.
Commands are the PRM's own bytes (pgas.transports.mlx5.commands); the other calls are those that the kernel driver keeps to itself:
protection domains, user memory, memory regions and UARs
(``mlx5dv_devx_umem_reg``, ``ibv_reg_mr``, ``mlx5dv_devx_alloc_uar``; facts 3.1, 5.1).
"""

from dataclasses import dataclass
from typing import Protocol

from pgas.transports.mlx5 import send_queue
from pgas.transports.mlx5.cqe import syndrome_words

__all__ = ["Adapter", "FirstError", "Path", "Port", "Uar"]


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


class Adapter(Protocol):
    """One PE's view of a NIC: of its own objects, in its own address space.

    All methods but command raise TransportError if the adapter refuses; the text says what and why. All raise it once the adapter is gone.
    """

    name: str  #: for messages, e.g. "mlx5_0" or "softhca"

    #: Whether kernels cannot store to the registers: a CPU has to do that for them (transports/doorbells.py).
    rung_by_cpu: bool

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

    def close(self) -> None:
        """Destroy what this PE still has on the adapter and let it go. Further calls do nothing."""
