"""The IBRC transport over an RDMA device: the proxy thread posts the kernels' requests through libibverbs.

pyverbs makes and connects the RC queue pairs. Heap and team memory, landing cells, and the slots of work requests are registered memory
regions. Unlike the software NIC, this needs no process, and PEs may be on different nodes.

The data of a READ must be in GPU memory before ``completed`` covers its request. Data for GPU memory and the CQE in host memory take
different routes. Kernels post another READ, which pushes the data ahead, only if GPUs may observe NIC writes out of order
(PGAS_NIC_ORDERING). This has not been tested on such a machine.
"""

import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from pgas.base.errors import CompletionError, TransportError
from pgas.kernels import codes, layout, refusals, window
from pgas.transports.devices import Gid
from pgas.transports.ibrc import tables, work_requests
from pgas.transports.ibrc.thread import RingNIC
from pgas.transports.memory.protocol import Segment
from pgas.transports.mlx5.contexts import Access
from pgas.transports.nic.adapter import AddressPath
from pgas.transports.nic.protocol import CELL_BYTES, Part
from pgas.transports.verbs import abi
from pgas.transports.verbs.abi import WcStatus, WrOpcode
from pgas.transports.verbs.device import OpenDevice
from pgas.transports.verbs.memory import VerbsRegion, register
from pgas.transports.verbs.queue_pair import End, VerbsQueuePair, end_of, permitted


@dataclass(frozen=True)
class _Introduction:
    """Data that a PE sends to the others before they connect."""

    name: str  #: device and port
    end: End
    qpns: tuple[int, ...]  #: by queue number: those to PE 0, then to PE 1, ...
    psns: tuple[int, ...]
    heap: tuple[tuple[int, int, int], ...]  #: of each piece: address where it ends, rkey, shift
    max_msg_sz: int
    atomics: bool


class VerbsNIC(RingNIC):
    """This PE's queue pairs on an RDMA device. Collective; an error on one PE is raised on all.

    Args:
        part: this PE's part in the job.
        device: name of the RDMA device, as rdma link lists it.
        port: number of its port.
        gid: the GID that addresses the port; None on an InfiniBand port without one.
        path: service level, traffic class, and retries of packets.

    Raises:
        TransportError: the device refuses; the text names the PE and the reason.
    """

    posting: ClassVar[ModuleType] = work_requests
    record_bytes: ClassVar[int] = work_requests.END

    def __init__(self, part: Part, *, device: str, port: int, gid: Gid | None, path: AddressPath) -> None:
        self._device_name, self._port, self._gid, self._path = device, port, gid, path
        self._local: dict[int, VerbsRegion] = {}
        #: Tables of pieces of heaps, also those from before a growth, which the proxy thread may still read.
        self._tables: list[np.ndarray] = []
        self.name = f"{device}:{port}"
        super().__init__(part)

    @classmethod
    def queue_bytes(cls, n_pes: int, constants: window.Constants) -> int:
        """Return the bytes of landing cells and work-request slots."""
        return CELL_BYTES + n_pes * constants.num_qps * constants.depth * work_requests.SLOT

    def _create(self) -> None:
        self._device = OpenDevice(self._device_name, self._port)
        self._made.callback(self._device.close)
        self._made.callback(self._forget_all)
        caps = self._device.capabilities
        count = self._n_pes * self._num
        if not caps.active:
            raise TransportError(f"RDMA device {self._device}: the port is not active (ip link, rdma link)")
        for limit, name, wanted, variable in (
            (caps.max_qp, "queue pairs", count, "PGAS_IBGDA_NUM_RC_PER_PE"),
            (caps.max_qp_wr, "work requests in a queue", self._depth, "PGAS_QP_DEPTH"),
            (caps.max_cqe, "completions in a CQ", self._depth, "PGAS_QP_DEPTH"),
        ):
            if wanted > limit:
                raise TransportError(
                    f"RDMA device {self._device} supports {limit} {name}, but {wanted} are needed; choose a smaller {variable}"
                )
        access_of_peers = self._access_of_peers = Access.LOCAL_WRITE | permitted(self._device)
        heap, queues = ((self._slot + s.offset, s.size) for s in self._segments)
        whole, self._cells = (
            self._register(*place, access, what, self._made)
            for place, access, what in (
                (heap, access_of_peers, "the symmetric heap (PGAS_SYMMETRIC_SIZE)"),
                (queues, Access.LOCAL_WRITE, "landing cells and work requests"),
            )
        )
        #: The regions of the heap, by address, and where each ends.
        self._heap = self._grown = [(sum(heap), whole)]
        self._first_slot = queues[0] + CELL_BYTES
        self._chains = np.zeros((count, work_requests.N_CHAINS * work_requests.CHAIN_SIZE // 8), np.int64)
        self.qps = []
        for _ in range(count):
            qp = VerbsQueuePair(self._device, self._depth)
            self._made.callback(qp.destroy)
            self.qps.append(qp)
        self._store(layout.CELLS, queues[0])

    def _introduction(self) -> Any:
        caps = self._device.capabilities
        qpns, psns = tuple(qp.qpn for qp in self.qps), tuple(qp.psn for qp in self.qps)
        end = end_of(self._device, self._gid)
        return astuple(_Introduction(str(self._device), end, qpns, psns, _far(self._heap), caps.max_msg_sz, caps.atomics))

    def _clear(self) -> None:
        self._chains[:] = 0
        self._memory.fill(layout.CELL_TAKEN, 8 * layout.N_CELLS, 0)

    def _register(self, address: int, nbytes: int, access: Access, what: str, undo: contextlib.ExitStack) -> VerbsRegion:
        region = register(self._device, address, nbytes, access, what=what, on_gpu=self._memory.on_gpu)
        undo.callback(region.mr.close)
        return region

    def _reach(self, chunk: Segment, fd: int, undo: contextlib.ExitStack) -> Any:
        """Register the grown heap as one region, or, if the device refuses, only the chunk; the proxy thread then splits requests."""
        heap, start = self._slot + self._segments[0].offset, self._slot + chunk.offset
        end = start + chunk.size
        try:
            self._grown = [(end, self._register(heap, end - heap, self._access_of_peers, "the grown symmetric heap", undo))]
        except TransportError as refused:
            try:
                added = self._register(start, chunk.size, self._access_of_peers, "memory added to the symmetric heap", undo)
                self._grown = [*self._heap, (end, added)]
            except TransportError as error:
                raise TransportError(f"the grown heap is refused as a whole ({refused}) and in pieces ({error})") from error
        return _far(self._grown)

    def _take_keys(self, keys: list[Any]) -> None:
        """Pass each heap's pieces to the running proxy thread by one store."""
        self._heap = self._grown
        self._made.callback(self._heap[-1][1].mr.close)
        far = [self._table(pieces) for pieces in keys]
        self._set({self._row(n) + work_requests.FAR_HEAP: far[n // self._num] for n in range(len(self.qps))})
        self._set({work_requests.HEAP: self._near()})

    def _near(self) -> int:
        """Return the address of the pieces of this PE's heap, as local operands."""
        return self._table([(end, region.lkey, region.shift) for end, region in self._heap])

    def _table(self, pieces: Sequence[tuple[int, int, int]]) -> int:
        """Return the address of the pieces of a heap, for the proxy thread."""
        *ends, _ = (end for end, _, _ in pieces)
        rows = [(end, key, shift) for end, (_, key, shift) in zip([*ends, work_requests.NO_END], pieces, strict=True)]
        self._tables.append(np.array(rows, np.int64))
        return int(self._tables[-1].ctypes.data)

    def _key(self, entry: int, address: int, nbytes: int) -> int:
        """Register local memory. Return 0, because the proxy thread posts, so that kernels need no lkey."""
        self._local[entry] = register(
            self._device, address, nbytes, Access.LOCAL_WRITE, what="an array (pgas.register)", on_gpu=self._memory.on_gpu
        )
        return 0

    def _forget(self, entry: int, address: int) -> None:
        self._local.pop(entry).mr.close()

    def _forget_all(self) -> None:
        """Deregister all arrays; otherwise the protection domain cannot be closed after an error."""
        for entry in list(self._local):
            self._forget(entry, 0)

    def _region_words(self, entry: int) -> tuple[int, int]:
        return self._local[entry].lkey, self._local[entry].shift

    def _connect(self, met: list[Any]) -> None:
        """Connect queue pair i to PE b with PE b's queue pair i to this PE; on this PE itself, connect each with itself."""
        met = self._met = [_Introduction(name, End(*end), *rest) for name, end, *rest in met]
        for number, qp in enumerate(self.qps):
            pe, i = divmod(number, self._num)
            other = self._me * self._num + i
            if met[pe].end.ethernet != met[self._me].end.ethernet:
                raise TransportError(f"{met[self._me].name} and PE {pe}'s {met[pe].name} have different link layers")
            qp.connect(met[pe].qpns[other], met[pe].psns[other], met[self._me].end, met[pe].end, self._path)
        self._far_heaps = [self._table(peer.heap) for peer in met]

    def _record_words(self) -> Mapping[int, int]:
        first = self.qps[0]
        return {
            work_requests.HEAP: self._near(),
            tables.CELL_LKEY: self._cells.lkey,
            work_requests.CELL_SHIFT: self._cells.shift,
            work_requests.POST_SEND: first.post_send,
            work_requests.POLL_CQ: first.poll_cq,
            work_requests.MESSAGE_MAX: min(peer.max_msg_sz for peer in self._met),
            work_requests.INLINE: int(abi.SendFlags.INLINE) if all(qp.inline for qp in self.qps) else 0,
            work_requests.ATOMICS: int(all(peer.atomics for peer in self._met)),
        }

    def _row_words(self, number: int) -> Mapping[int, int]:
        qp = self.qps[number]
        return {
            work_requests.SLOTS: self._first_slot + number * self._depth * work_requests.SLOT,
            work_requests.QP: qp.address,
            work_requests.CQ: qp.cq_address,
            work_requests.FAR_HEAP: self._far_heaps[number // self._num],
            work_requests.CHAINS: self._chains[number].ctypes.data,
        }

    # --------------------------------------------------------------------------------------------------------------------- errors

    def failure(self, record: int, who: str) -> TransportError:
        """Return the error of a record's queue pair."""
        fault, code, vendor, slot = (int(self._own[word // 8]) for word in _FAULT_WORDS)
        where = f"{who}: {self.name_of(record)} on {self.name}"
        if fault == work_requests.NO_ATOMICS:
            return TransportError(f"{where}: {self._no_atomics(codes.Request(code))}")
        if fault == work_requests.POLL_FAILED:
            return TransportError(f"{where}: ibv_poll_cq failed ({code})")
        described = self._describe(slot) if slot else "a work request"
        if fault == work_requests.POST_FAILED:
            return TransportError(f"{where}: ibv_post_send refused {described}: {errno.errorcode.get(code, '')} {os.strerror(code)}")
        number = self._number(record)
        status = WcStatus(code)
        words = f"{where} failed at {described}: IBV_WC_{status.name} ({code}), vendor_err {vendor:#x}{self._after(number, status)}"
        index = self._word(slot + abi.WR_ID) - 1
        return CompletionError(words, number // self._num, self.qps[number].qpn, index & 0xFFFF, abi.SYNDROMES.get(status, 0), vendor)

    def _no_atomics(self, request: codes.Request) -> str:
        without = next((f"PE {pe}'s {peer.name}" for pe, peer in enumerate(self._met) if not peer.atomics), self.name)
        return refusals.message("no atomics", request=request.name, device=without)

    def _after(self, number: int, status: WcStatus) -> str:
        """Return text that explains an error: the state of the queue pair and of the port, and an unanswered retry."""
        down = self.trouble()
        if status == WcStatus.RETRY_EXC_ERR and not down:
            down = f"; PE {number // self._num} does not answer (PGAS_IB_TIMEOUT, PGAS_IB_RETRY_COUNT)"
        state = self.qps[number].state()
        return f"; the queue pair is in {state}{down}" if state else down

    def trouble(self) -> str:
        """Return text if the port is down, otherwise "". A device whose port is down may retry forever, like Soft-RoCE."""
        try:
            return "" if self._device.query().active else f"; port {self.name} is down"
        except TransportError as error:
            return f"; {error}"

    def _describe(self, slot: int) -> str:
        opcode = WrOpcode(self._word(slot + abi.WR_OPCODE, 4))
        atomic = opcode in (WrOpcode.ATOMIC_CMP_AND_SWP, WrOpcode.ATOMIC_FETCH_AND_ADD)
        rkey = self._word(slot + (abi.WR_ATOMIC_RKEY if atomic else abi.WR_RDMA_RKEY), 4)
        at, nbytes, lkey = (
            self._word(slot + work_requests.SGE + offset, size)
            for offset, size in ((abi.SGE_ADDR, 8), (abi.SGE_LENGTH, 4), (abi.SGE_LKEY, 4))
        )
        return (
            f"work request {self._word(slot + abi.WR_ID) - 1}: {opcode.name} {nbytes} bytes, remote address "
            f"{self._word(slot + abi.WR_REMOTE_ADDR):#x} rkey {rkey:#x}, local {at:#x} lkey {lkey:#x}"
        )

    def _word(self, address: int, nbytes: int = 8) -> int:
        return int.from_bytes(self._memory.read(address, nbytes), "little")


def _far(heap: Sequence[tuple[int, VerbsRegion]]) -> tuple[tuple[int, int, int], ...]:
    """Return the pieces of a heap for peers."""
    return tuple((end, region.rkey, region.shift) for end, region in heap)


_FAULT_WORDS = (work_requests.FAULT, work_requests.FAULT_CODE, work_requests.FAULT_VENDOR, work_requests.FAULT_SLOT)
