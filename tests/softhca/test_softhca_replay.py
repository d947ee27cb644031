"""A recorded trace of WQEs, replayed on both engines: memory, CQEs and counters must be as recorded.

The recording, golden/trace-ibgda.txt, is a card's trace of two PEs that ran the kernels below over ibgda, with the objects before (keys,
queue pairs) and the state afterwards (heaps, landing cells, counters). Within a phase no queue pair touches memory that another one writes,
so queue pairs may overtake each other. A replay makes the same objects on another card, which gives them other keys, numbers and addresses,
posts the WQEs with these, and rings in groups.

If kernels post other WQEs, record again: ``mpirun -n 2 python tests/softhca/test_softhca_replay.py``, without GPUs.
"""

import contextlib
import hashlib
import os
import random
import re
from pathlib import Path

os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")

import numpy as np
import pytest
import rig
from jobs import also
from numba import cuda

import pgas
from pgas.job import runtime
from pgas.kernels import layout, window
from pgas.kernels.compiler import cpu
from pgas.transports.mlx5 import cqe, fields, send_queue, wqe
from pgas.transports.nic.adapter_nic import AdapterNIC
from pgas.transports.softhca import tables

TRACE = Path(__file__).parents[1] / "golden" / "trace-ibgda.txt"

#: Bytes of each heap that the program uses, and their initial contents.
USED = 1536
BEFORE = [random.Random(pe).randbytes(USED) for pe in (0, 1)]

#: An invalid rkey.
NO_KEY = 0xFFFFFF00

#: The bytes of a CQE with the number of its queue pair.
CQE_QPN = cqe.CQE_TAIL + 1

COMPARED = [name for name in tables.COUNTERS if name != "doorbells"] + ["state", "first_error", "vendor_error", "consumer", "producer"]

# ----------------------------------------------------------------------------------------------------------------- the program


@pgas.jit
def puts(heap, at, pe):
    """Three scopes, two queue pairs, odd sizes and offsets; each PE writes 256 bytes from `at` on."""
    pgas.put_warp(heap[at : at + 100], heap[1024:1124], pe, None, 1)
    pgas.put_nbi_block(heap[at + 101 : at + 134], heap[1035:1068], pe, None, 2)
    if cuda.threadIdx.x == 0:
        pgas.put_nbi(heap[at + 136 : at + 137], heap[1100:1101], pe)
    pgas.quiet()


@pgas.jit
def elements(words, bytes_, wide, at, pe):
    """Neighbouring p, which share a WQE of several WQEBBs and a NOP; scattered p; p of 1 and 16 bytes."""
    i = cuda.threadIdx.x
    pgas.p(words, at // 4 + i, 1000 + i, pe, 1)
    if i < 3:
        pgas.p(words, at // 4 + 34 + 2 * i, 2000 + i, pe, 2)
    if i == 5:
        pgas.p(bytes_, at + 161, 77, pe, 2)
        pgas.p(wide, at // 16 + 11, 1.5 - 2j, pe, 2)
    pgas.quiet()


@pgas.jit
def gets(heap, words, fetched, at, pe):
    """Gets into the heap; g into landing cells: neighbours, which share a WQE, and scattered elements."""
    i = cuda.threadIdx.x
    to = at + 3 + 96 * pe
    pgas.get_warp(heap[to : to + 71], heap[1024:1095], pe, None, 2)
    fetched[i] = pgas.g(words, 256 + i, pe, 1)
    if i < 3:
        fetched[i] = pgas.g(words, 256 + 3 * i, pe, 2)


@pgas.jit
def atomics(longs, words, floats, fetched, pe):
    """Atomics on 4 and 8 bytes, fetching and not, by converged lanes on one word; a float sum by compare-and-swap."""
    i, mine = cuda.threadIdx.x, 160 + 4 * pgas.my_pe()
    if i < 3:
        pgas.atomic_add(longs, mine, 1 << (20 * i), pe)
        fetched[i] = pgas.atomic_fetch_add(words, 2 * mine + 2, 7 + i, pe)
    if i == 0:
        fetched[i] = pgas.atomic_fetch_add(longs, mine + 2, 5, pe)
        pgas.atomic_add(floats, 2 * mine + 6, 0.25, pe)
    pgas.quiet()


@pgas.jit
def signals(heap, longs, at, pe):
    """Data with a signal behind it, added and set."""
    sig = 176 + 4 * pgas.my_pe()
    pgas.put_signal_warp(heap[at + 200 : at + 221], heap[1024:1045], longs, sig, 3, pgas.SIGNAL_ADD, pe)
    if cuda.threadIdx.x == 0:
        pgas.put_signal_nbi(heap[at + 224 : at + 256], heap[1060:1092], longs, sig + 1, 9, pgas.SIGNAL_SET, pe)
        pgas.signal_op(longs, sig + 2, 11, pgas.SIGNAL_SET, pe)
        pgas.quiet()


@pgas.jit
def fail(heap, pe):
    """The first WQE has an invalid key, the second one is flushed."""
    pgas.put_nbi(heap[0:8], heap[1024:1032], pe, None, 1)
    pgas.put_nbi(heap[0:8], heap[1024:1032], pe, None, 1)


def flushed(nic):
    """Return the last WQE to PE 1 from the ring, as the trace has only executed WQEs."""
    qp, place, record = nic.qps[2], nic.queues[2], layout.RECORDS + 2 * layout.RECORD_SIZE
    index = nic._load(record + layout.RESV_HEAD) - 1
    data = send_queue.fetch(nic._memory.read(window.slot(0) + window.QUEUE_OFFSET + place.wq, 128 * wqe.WQEBB), index)
    return f"wqe PE 0 qpn {qp.qpn:#08x} index {index}: {send_queue.decode(data)}\n{fields.hexdump(data)}"


def record():
    """Run the program on two PEs; PE 0 writes the file."""
    os.environ |= {"PGAS_TRANSPORT": "ibgda", "PGAS_QP_DEPTH": "128", "PGAS_SYMMETRIC_SIZE": str(rig.HEAP)}
    AdapterNIC.first_index = 0xFFF8  # indices of WQEs wrap
    pgas.init()
    me, nic = pgas.my_pe(), runtime.current().nic
    card, first = nic.adapter, me == 0
    heap = pgas.zeros(USED, "u1")
    heap.copy_to_device(np.frombuffer(BEFORE[me], np.uint8))
    words, longs, floats, wide = (heap.view(name) for name in ("i4", "u8", "f4", "c16"))
    fetched, at = cuda.to_device(np.zeros(32)), 256 * me
    lines = []

    def phase(name, kernel, *args):
        for pe in (0, 1):
            kernel[1, 32](*args, pe)
        end(name)

    def end(name):
        pgas.allgather_object(name)
        if first:
            lines.extend([f"phase {name}", *card.trace()])
        pgas.allgather_object(name)

    pgas.barrier_all()
    if first:
        found = card.counters()
        for k in found["keys"]:
            slot, behind = window.slot(k["pe"]), k["start"] + k["nbytes"]
            for name, offset in (("heap", window.HEAP_OFFSET), ("cells", window.QUEUE_OFFSET)):
                if k["start"] <= slot + offset < behind:  # the heap's has team memory before it
                    lines.append(f"key PE {k['pe']} {name} {k['key']:#x}: {behind - slot - offset} bytes at {slot + offset:#x}")
        for q in found["qps"]:
            begins = f"index {q['consumer']}, user_index {q['user_index']:#x}, depth {q['depth']}"
            lines.append(f"qp PE {q['pe']} qpn {q['qpn']:#x}: remote {q['remote_qpn']:#x}, {begins}")
        card.trace(["wqe", "cqe"])
    pgas.barrier_all()
    phase("puts", puts, heap, at)
    phase("elements", elements, words, heap, wide, at + 512)
    phase("gets", gets, heap, words, fetched, at)
    phase("atomics", atomics, longs, words, floats, fetched)
    phase("signals", signals, heap, longs, at)
    if first:
        nic._store(layout.KEYS + layout.KEY_SIZE, int.from_bytes(NO_KEY.to_bytes(4, "little"), "big"))
        cpu._read_only.clear()
        with contextlib.suppress(pgas.PgasError):
            fail[1, 1](heap, 1)
            pgas.synchronize()
    end("error")
    if first:
        lines.append(flushed(nic))
    images = pgas.allgather_object((heap.copy_to_host().tobytes(), nic._memory.read(nic._load(layout.CELLS), layout.SINK)))
    if first:
        for pe, (used, cells) in enumerate(images):
            lines += [f"heap PE {pe}", fields.hexdump(used), f"cells PE {pe} sha256 {hashlib.sha256(cells).hexdigest()}"]
        for q in card.counters()["qps"]:
            lines.append(f"counters qpn {q['qpn']:#x}: {' '.join(f'{name}={q[name]}' for name in COMPARED)}")
        TRACE.write_text("\n".join(lines) + "\n")
    pgas.allgather_object("written")
    os._exit(0)  # finalize would fail after the error


# --------------------------------------------------------------------------------------------------------------- the recording


class Recording:
    """The file: keys (name, PE, key, nbytes, start), qps, phases of (qpn, index, WQE), and the final state."""

    def __init__(self, text):
        self.keys, self.qps, self.phases, self.cqes, self.heaps, self.cells, self.counters = [], {}, {}, {}, {}, {}, {}
        for entry in re.split(r"\n(?=\w+ )", text.strip()):
            head, _, dump = entry.partition("\n")
            data = bytes.fromhex("".join(line.partition(":")[2] for line in dump.splitlines()))
            numbers = [int(n, 0) for n in re.findall(r"\b(?:0x[0-9a-f]+|\d+)\b", head.partition("wqe_idx")[0])]
            match head.split()[0]:
                case "key":
                    self.keys.append((head.split()[3], *numbers))
                case "qp":
                    pe, qpn, *rest = numbers
                    self.qps[qpn] = (pe, *rest)
                case "phase":
                    wqes = self.phases[head.split()[1]] = []
                case "wqe":
                    wqes.append((numbers[1], numbers[2], data))
                case "cqe":
                    self.cqes[numbers[1]] = data
                case "heap":
                    self.heaps[numbers[0]] = data
                case "cells":
                    self.cells[numbers[0]] = head.split()[-1]
                case "counters":
                    self.counters[numbers[0]] = dict(pair.split("=") for pair in head.split(": ")[1].split())


@pytest.fixture(scope="module")
def recording():
    return Recording(TRACE.read_text())


# ------------------------------------------------------------------------------------------------------------------ the replay


class Replay:
    """The objects of a recording on another card, and WQEs with their numbers."""

    def __init__(self, recording, pes, observer):
        self.recording, self.pes, self.observer = recording, pes, observer
        self.regions, self.cells, self.rings = [], {}, {}
        for name, number, key, nbytes, start in recording.keys:
            pe = pes[number]
            here, key_here = pe.heap, pe.key
            if name == "cells":
                here = self.cells[number] = pe.slot + pe.queue_memory(nbytes)
                key_here = pe.hca.register_mr(here, nbytes, pe.pdn, rig.ALL)[0]
            else:
                pe.write(here, BEFORE[number])
            self.regions.append((range(start, start + nbytes), key, here, key_here))
        self.qps = {}
        for qpn, (pe, _, _, user_index, depth) in recording.qps.items():
            self.qps[qpn] = rig.QP(pes[pe], depth.bit_length() - 1, user_index=user_index)
        for qpn, (_, remote, index, _, _) in recording.qps.items():
            self.qps[qpn].init().rtr(self.qps[remote]).begin(index).rts()

    def place(self, key, address):
        """Return the key and address here for a recorded key and address."""
        for recorded, known, here, key_here in self.regions:
            if address in recorded and key in (known, NO_KEY):
                return key_here if key == known else NO_KEY, address - recorded.start + here
        raise AssertionError(f"{address:#x} with key {key:#x} is in no region of the recording")

    def relocated(self, data, qpn):
        """Return a WQE with the queue pair's number, the keys and the addresses of this card."""
        said, data = send_queue.decode(data), bytearray(data)
        data[wqe.CTRL_QPN_DS : wqe.CTRL_QPN_DS + 4] = (qpn << 8 | said.ds).to_bytes(4, "big")
        if said.raddr is not None:
            rkey, raddr = self.place(said.rkey, said.raddr)
            data[wqe.WQE_RADDR : wqe.WQE_RADDR + 12] = raddr.to_bytes(8, "big") + rkey.to_bytes(4, "big")
        for part in said.data:  # at most one: the last octoword
            lkey, address = self.place(part.lkey, part.addr)
            data[-12:] = lkey.to_bytes(4, "big") + address.to_bytes(8, "big")
        return bytes(data)

    def run(self, ends_group, waits):
        """Post the WQEs of each phase; ring after a WQE for which ends_group(WQE) holds, and at the end of the phase.

        Waits after every doorbell, or only at the end of a phase.
        """
        for wqes in self.recording.phases.values():
            silent = set()
            for qpn, index, data in wqes:
                assert self.qps[qpn].post(lambda _, here, data=data: self.relocated(data, here)) == index
                silent.add(qpn)
                if ends_group(send_queue.decode(data)):
                    silent.remove(qpn)
                    self.ring(qpn)
                    if waits:
                        self.wait()
            for qpn in sorted(silent):
                self.ring(qpn)
            self.wait()

    def ring(self, qpn):
        qp = self.qps[qpn]
        qp.ring()
        self.rings.setdefault(qpn, []).append(qp.posted)

    def wait(self):
        """Wait until the card has executed all rung WQEs."""
        rung = {self.qps[qpn].qpn: rings[-1] for qpn, rings in self.rings.items()}
        rig.wait_until(lambda: rung.items() <= {(q["qpn"], q["consumer"]) for q in self.counted()}, "not all is executed")

    def counted(self):
        return self.observer.counters()["qps"]

    def result(self):
        """Return the final state with the recording's numbers: heaps, landing cells, CQEs, counters, doorbells."""
        self.observer.pause()
        heaps = {pe.number: pe.read(pe.heap, USED) for pe in self.pes}
        cells = {number: hashlib.sha256(self.pes[number].read(address, layout.SINK)).hexdigest() for number, address in self.cells.items()}
        cqes, counters, doorbells = {}, {}, {}
        for qpn, qp in self.qps.items():
            (counted,) = [row for row in self.counted() if row["qpn"] == qp.qpn]
            counters[qpn] = {name: str(counted[name]) for name in COMPARED}
            doorbells[qpn] = counted["doorbells"]
            if (entry := qp.entry()) != rig.EMPTY:
                assert cqe.decode(entry).qpn == qp.qpn
                cqes[qpn] = entry[:CQE_QPN] + qpn.to_bytes(3, "big") + entry[CQE_QPN + 3 :]
        self.observer.resume()
        return heaps, cells, cqes, counters, doorbells


@pytest.fixture(scope="module", params=["cpu", also("cuda")])
def card(request):
    process = rig.start(request.param)
    yield process
    process.end()


pes, observer = rig.pes, rig.observer


def seeded(seed):
    dice = random.Random(seed)
    return lambda _: dice.random() < 0.4


#: By name: (whether to ring after a WQE, whether to wait then). Kernels ring after the last WQE of a reservation, which is signalled.
GROUPS = {
    "as kernels ring": (lambda said: said.ce == wqe.Ce.ALWAYS, True),
    "each by itself": (lambda said: True, True),
    "each, one after the other": (lambda said: True, False),
    "a phase at once": (lambda said: False, False),
    "at random 1": (seeded(1), True),
    "at random 2": (seeded(2), False),
}


@pytest.mark.parametrize("groups", GROUPS)
def test_a_replay_has_the_recorded_result(recording, pes, observer, groups):
    ends_group, waits = GROUPS[groups]
    replay = Replay(recording, pes, observer)
    replay.run(ends_group, waits)
    heaps, cells, cqes, counters, doorbells = replay.result()
    assert counters == recording.counters
    assert cqes == recording.cqes
    assert heaps == recording.heaps
    assert cells == recording.cells
    rings = {qpn: len(replay.rings.get(qpn, ())) for qpn in replay.qps}
    assert all(doorbells[qpn] <= rings[qpn] for qpn in rings)
    if waits:
        assert doorbells == rings


@pytest.mark.parametrize("phase", ["elements", "gets", "atomics", "error"])
def test_a_missing_wqe_is_seen(recording, pes, observer, phase):
    """A NOP instead of the first WQE of one WQEBB in a phase."""
    changed = Recording(TRACE.read_text())
    wqes = changed.phases[phase]
    said = [send_queue.decode(data) for _, _, data in wqes]
    place = next(i for i, one in enumerate(said) if one.wqebbs == 1 and one.opcode != wqe.Opcode.NOP)
    qpn, index, _ = wqes[place]
    wqes[place] = qpn, index, wqe.nop(index, qpn, fm_ce_se=said[place].fm_ce_se)
    replay = Replay(changed, pes, observer)
    replay.run(*GROUPS["as kernels ring"])
    heaps, cells, _, counters, _ = replay.result()
    assert counters != recording.counters
    assert phase == "error" or (heaps, cells) != (recording.heaps, recording.cells)


@pytest.mark.slow
def test_the_recording_is_complete(recording):
    """It has every opcode of kernels, indices that wrap, an error and a flushed WQE."""
    posted = [(qpn, index, send_queue.decode(data)) for wqes in recording.phases.values() for qpn, index, data in wqes]
    assert {(said.opcode, said.opmod, said.inline is not None) for _, _, said in posted} == {
        (wqe.Opcode.RDMA_WRITE, 0, False),
        (wqe.Opcode.RDMA_WRITE, 0, True),
        (wqe.Opcode.RDMA_READ, 0, False),
        (wqe.Opcode.ATOMIC_FA, 0, False),
        (wqe.Opcode.ATOMIC_MASKED_FA, wqe.Opmod.MASKED_4, False),
        (wqe.Opcode.ATOMIC_MASKED_CS, wqe.Opmod.MASKED_4, False),
        (wqe.Opcode.ATOMIC_MASKED_CS, wqe.Opmod.MASKED_8, False),
        (wqe.Opcode.NOP, 0, False),
    }
    assert {said.wqebbs for _, _, said in posted} == {1, 2, 3}
    assert {index >> 16 for _, index, _ in posted} == {0, 1}
    assert sum(int(counted["flushed"]) for counted in recording.counters.values()) == 1
    assert sorted(counted["state"] for counted in recording.counters.values()) == ["ERR"] * 2 + ["RTS"] * 6
    assert sum(cqe.decode(entry).is_error for entry in recording.cqes.values()) == 1


if __name__ == "__main__":
    record()
