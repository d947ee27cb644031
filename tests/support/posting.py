"""Shared by tests of the WQEs that kernels write: a job's state in simulated memory, golden WQEs, builders with planted errors.

The operations run as plain Python (test_kernel_wqes.py) and compiled for a GPU (test_sass_nic.py, executed by ptx_machine.py).
"""

import tomllib
from pathlib import Path

import wqes as wqe
from ptx_machine import Memory

from pgas.kernels import layout, window
from pgas.kernels.compiler import constant, device, u32
from pgas.kernels.paths.nic import post
from pgas.transports.mlx5 import doorbell, send_queue

GOLDEN = tomllib.loads((Path(__file__).parents[1] / "golden" / "kernel_wqes.toml").read_text())

#: Names of the window module that freeze() sets for device code.
FROZEN = (
    "STRIDE_SHIFT",
    "SHIFT",
    "OFFSET_MASK",
    "NUM_QPS",
    "DEPTH",
    "SLOT_MASK",
    "BATCH_MASK",
    "RING_SIZE",
    "SETTLES",
    "BIG_ENDIAN",
    "sharer",
)

IDX, QPN = 0x51234, 0xABCDEF
DEST, SOURCE, WORD = 0x6001_4000_1000, 0x6001_0040_2000, 0x6001_4000_0008
NBYTES = 32
PE, N_PES, DEPTH = 1, 2, 1024
RING, CQ, DBR, UAR, CELLS = 0x6031_0000_0000, 0x6032_0000_0000, 0x6033_0000_0004, 0x6034_0000_0800, 0x6030_0000_0000
HOST_WORDS = 0x6035_0000_0000

#: Contents of the first two landing cells: the element from an earlier READ, and the old value from the atomic behind it.
ELEMENTS = {
    "atomic_add_float32": ("0000c03f", "3fc00000"),  # 4 bytes are returned big-endian, 8 in host order
    "atomic_add_float64": ("000000000000f83f", "000000000000f83f"),
}


def freeze(monkeypatch, constants):
    """Set other constants until the end of a test; in the simulator device code reads them when it runs."""
    for name in (*FROZEN, "_frozen"):
        monkeypatch.setattr(window, name, getattr(window, name))
    window._frozen = None
    window.freeze(constants)


def big(value, nbytes):
    """Return the word whose memory has the big-endian bytes of value."""
    return int.from_bytes(value.to_bytes(nbytes, "big"), "little")


class Job:
    """PE 0 of two, with a queue pair to PE 1 (settle: to itself) whose ring is filled with 0xa5; every wait ends at once."""

    def __init__(self, name, idx=IDX):
        self.idx, self.memory = idx, Memory()
        memory = self.memory
        memory.region(window.STATE, window.STATE_SIZE)
        memory.region(window.BASE + layout.ALL_ROWS, N_PES * layout.ROW_SIZE)
        self.ring = memory.region(RING, DEPTH * wqe.WQEBB, 0xA5)
        self.cq = memory.region(CQ, 64, 0xFF)
        memory.region(HOST_WORDS, layout.HOST_WORDS_SIZE)
        self.cells = memory.region(CELLS, layout.SINK + 64)
        for address, nbytes in ((DBR, 4), (UAR, 8), (DEST, 64), (SOURCE, 64)):
            memory.region(address, nbytes)
        for i, element in enumerate(ELEMENTS.get(name, ())):
            self.cells[i * layout.CELL_SIZE : i * layout.CELL_SIZE + len(element) // 2] = bytes.fromhex(element)
        words = {
            layout.N_PES: N_PES, layout.HOST_WORDS: HOST_WORDS, layout.TIMEOUT_NS: 1 << 40, layout.LKEY: big(0x0A0B0C0D, 4),
            layout.CELL_LKEY: big(0x0E0F1011, 4), layout.CELLS: CELLS, layout.USED_END: layout.USED + 8,
            layout.KEYS + layout.KEY_SIZE * PE: big(0x01020304, 4),
            window.BASE + layout.ALL_ROWS + layout.ROW_SIZE * PE + layout.ARRIVED: 1,
        }  # fmt: skip
        if name == "settle":  # somebody has to, and waits for a 1 at DEST are over
            words |= {layout.LANDS: 1, DEST: 1}
        self.record = layout.RECORDS + 2 * (0 if name == "settle" else PE) * layout.RECORD_SIZE
        fields = {
            layout.WQ: RING, layout.DBR: DBR, layout.UAR: UAR, layout.CQE: CQ + 56, layout.QPN: big(QPN << 8, 4), layout.FIRST_IDX: 0,
            layout.RESV_HEAD: idx, layout.READY_HEAD: idx, layout.RUNG_IDX: idx,
            layout.CONS_IDX: idx + 64,  # everything is complete, before it is posted
        }  # fmt: skip
        for address, value in (words | {self.record + offset: value for offset, value in fields.items()}).items():
            memory.store(address, value, 8)

    def check(self, wqes):
        """Check that the ring has these WQEs and no others, and that they were submitted."""
        expected, end = bytearray(b"\xa5" * len(self.ring)), self.idx
        for data in wqes:
            send_queue.store(expected, end, data)
            for offset in range(len(data) - padding(data), len(data)):  # unchanged if lanes write one WQE together
                place = (end * wqe.WQEBB + offset) % len(expected)
                if self.ring[place] == 0xA5:
                    expected[place] = 0xA5
            end += wqe.wqebbs(len(data) // wqe.OCTOWORD)
        assert octowords(self.ring) == octowords(expected)
        for offset in (layout.RESV_HEAD, layout.READY_HEAD, layout.RUNG_IDX):
            assert self.memory.load(self.record + offset, 8) == end
        assert self.memory.load(DBR, 4).to_bytes(4, "little") == doorbell.dbr(end)
        assert self.memory.load(UAR, 8).to_bytes(8, "little") == doorbell.next_empty(end, QPN)


def padding(data):
    """Return the number of padding bytes behind the inline data of a WQE."""
    inline = send_queue.decode(data).inline
    return len(data) - (wqe.WQE_DATA + wqe.INLINE_HEADER + len(inline)) if inline else 0


def octowords(ring):
    return {i // 16: ring[i : i + 16].hex(" ", 4) for i in range(0, len(ring), 16) if ring[i : i + 16] != b"\xa5" * 16}


def golden(name):
    """Return the WQEs of an operation from the golden file."""
    return [bytes.fromhex(case["bytes"]) for case in GOLDEN[name]]


def built(name, idx=IDX):
    """Build the WQEs of an operation with the driver's builders."""
    wqes = []
    for case in GOLDEN[name]:
        arguments = dict(case["arguments"])
        if "payload" in arguments:
            arguments["payload"] = bytes.fromhex(arguments["payload"])
        for name in ("swap_mask", "field_boundary"):
            if isinstance(arguments.get(name), str):  # as text, since TOML integers have 63 bits
                arguments[name] = int(arguments[name], 16)
        wqes.append(getattr(wqe, case["builder"])(idx, QPN, **arguments))
        idx += wqe.wqebbs(len(wqes[-1]) // wqe.OCTOWORD)
    return wqes


# Builders of kernels/paths/nic/post.py with one wrong bit each: field -> (name, replacement) ----------------------------------------------

_1, _4, _BIT_40, _BIT_16 = (constant(value) for value in (1, 4, 1 << 40, 1 << 16))


def _wrong():
    store_ctrl, store_raddr, store_data = post.store_ctrl, post.store_raddr, post.store_data

    @device
    def opcode_wrong(at, record, index, opcode, ds, ce):
        store_ctrl(at, record, index, opcode ^ _1, ds, ce)

    @device
    def index_wrong(at, record, index, opcode, ds, ce):
        store_ctrl(at, record, index ^ _1, opcode, ds, ce)

    @device
    def ds_wrong(at, record, index, opcode, ds, ce):
        store_ctrl(at, record, index, opcode, ds ^ _4, ce)

    @device
    def ce_wrong(at, record, index, opcode, ds, ce):
        store_ctrl(at, record, index, opcode, ds, ce ^ _4)

    @device
    def raddr_wrong(at, raddr, rkey):
        store_raddr(at, raddr ^ _BIT_40, rkey)

    @device
    def rkey_wrong(at, raddr, rkey):
        store_raddr(at, raddr, u32(rkey ^ _BIT_16))

    @device
    def addr_wrong(at, addr, lkey, nbytes):
        store_data(at, addr ^ _BIT_16, lkey, nbytes)

    @device
    def lkey_wrong(at, addr, lkey, nbytes):
        store_data(at, addr, lkey ^ _BIT_16, nbytes)

    @device
    def byte_count_wrong(at, addr, lkey, nbytes):
        store_data(at, addr, lkey, nbytes ^ _4)

    return {
        "opcode": ("store_ctrl", opcode_wrong), "wqe_idx": ("store_ctrl", index_wrong), "ds": ("store_ctrl", ds_wrong),
        "ce": ("store_ctrl", ce_wrong), "raddr": ("store_raddr", raddr_wrong), "rkey": ("store_raddr", rkey_wrong),
        "addr": ("store_data", addr_wrong), "lkey": ("store_data", lkey_wrong), "byte_count": ("store_data", byte_count_wrong),
    }  # fmt: skip


WRONG = _wrong()

#: Those that are also compiled, which takes half a second each.
WRONG_IN_SHORT = ("opcode", "ds", "ce", "raddr", "rkey", "byte_count")
