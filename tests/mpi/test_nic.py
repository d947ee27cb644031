"""NIC transports (ibgda, ibrc): the WQEs of each operation, byte by byte, their number, and their completion."""

import threading
import time

import numpy as np
import pytest
import wqes as wqe
from conformance.checks import TRANSPORT, equal, launch_together
from numba import cuda

import pgas
from mpi.checks import CARD, needs_card, observer, own_queue_pairs
from pgas.job import runtime
from pgas.kernels import layout, window
from pgas.transports.mlx5 import send_queue

pytestmark = pytest.mark.skipif(
    TRANSPORT not in ("ibgda", "ibrc"), reason="capability missing: a NIC as the only path (PGAS_TRANSPORT=ibgda or ibrc)"
)

ibgda = pytest.mark.skipif(TRANSPORT != "ibgda", reason="the proxy builds and counts other WQEs (tests/nic/test_ibrc.py)")


def nic():
    return runtime.current().nic


def counts():
    """Return the card's counters, summed over this PE's queue pairs. It may miss doorbells, as a register holds only the last one."""
    own = own_queue_pairs()
    return {name: sum(qp[name] for qp in own) for name in ("wqes", "nbytes", "doorbells", "cqes", "errors")}


@pytest.fixture
def issued(heap):
    """Yield issued(): it waits for completion and returns what this PE has issued since the last call."""
    pgas.barrier_all()
    before = counts()

    def since():
        nonlocal before
        pgas.barrier_all()
        now = counts()
        change = {name: now[name] - before[name] for name in now}
        before = now
        return change

    return since


class Tail:
    """The WQEs that were posted to queue pair 1 of a PE since this object was made."""

    def __init__(self, pe):
        job = nic()
        self.number = pe * job._num
        self.qpn = job.qps[self.number].qpn
        self.start = self._cursor()

    def _cursor(self):
        return nic()._load(layout.RECORDS + self.number * layout.RECORD_SIZE + layout.RESV_HEAD)

    def wqes(self):
        pgas.synchronize()  # the host reads while kernels run
        job = nic()
        place = window.slot(pgas.my_pe()) + window.QUEUE_OFFSET + job.queues[self.number].wq
        ring = bytearray(job._memory.read(place, job._depth * 64))
        found, index = [], self.start
        while index < self._cursor():
            data = send_queue.fetch(ring, index)
            found.append(data)
            index += wqe.wqebbs(len(data) // 16)
        return found


def keys(pe):
    return key_at(layout.KEYS + layout.KEY_SIZE * pe)


def key_at(address):
    return int.from_bytes((nic()._load(address) & 0xFFFF_FFFF).to_bytes(4, "little"), "big")


def address(array):
    return int(array.__cuda_array_interface__["data"][0])


def on(pe, array):
    return address(array) + ((pe - pgas.my_pe()) << window.STRIDE_SHIFT)


# ------------------------------------------------------------------------------------------------------------------- the bytes


@pgas.jit
def put_one(dest, source, pe):
    pgas.put_block(dest, source, pe, None, 1)


@pgas.jit
def get_one(dest, source, pe):
    pgas.get_block(dest, source, pe, None, 1)


@pgas.jit
def p_lanes(dest, step, offset, pe):
    i = cuda.threadIdx.x
    pgas.p(dest, offset + i * step, i + 1, pe, 1)
    pgas.quiet()


@pgas.jit
def g_lanes(source, out, step, pe):
    i = cuda.threadIdx.x
    out[i] = pgas.g(source, i * step, pe, 1)


ALWAYS = wqe.Ce.ALWAYS


@ibgda
def test_put_and_get_are_the_data_sheets_bytes(heap, right):
    dest, source = heap.zeros(100, np.uint8), heap.array(np.arange(100, dtype=np.uint8))
    lkey = key_at(layout.LKEY)
    tail = Tail(right)
    put_one[1, 32](dest, source, right)
    expected = wqe.write(tail.start, tail.qpn, on(right, dest), keys(right), address(source), lkey, 100, fm_ce_se=ALWAYS)
    assert tail.wqes() == [expected]
    tail = Tail(right)
    get_one[1, 32](dest, source, right)
    expected = wqe.read(tail.start, tail.qpn, on(right, source), keys(right), address(dest), lkey, 100, fm_ce_se=ALWAYS)
    assert tail.wqes() == [expected]
    pgas.barrier_all()


@ibgda
@pytest.mark.parametrize("dtype", ["i1", "i2", "f4", "f8", "c16"])
def test_neighboring_p_are_one_wqe(heap, right, dtype):
    dtype = np.dtype(dtype)
    dest = heap.zeros(32, dtype)
    tail = Tail(right)
    p_lanes[1, 32](dest, 1, 0, right)
    payload = np.arange(1, 33).astype(dtype).tobytes()
    blocks = wqe.wqebbs(wqe.ds_inline(len(payload)))
    one = blocks == 1
    write = wqe.write_inline(tail.start, tail.qpn, on(right, dest), keys(right), payload, fm_ce_se=ALWAYS if one else 0)
    found = tail.wqes()
    used = wqe.WQE_DATA + wqe.INLINE_HEADER + len(payload)
    assert found[0][:used] == write[:used]  # the rest of the last octoword is never read
    assert len(found[0]) == len(write)
    assert found[1:] == ([] if one else [wqe.nop(tail.start + blocks, tail.qpn, fm_ce_se=ALWAYS)])
    pgas.barrier_all()
    equal(dest, np.arange(1, 33).astype(dtype))


@ibgda
@pytest.mark.parametrize("dtype", ["i1", "i2", "f4", "f8", "c16"])
def test_scattered_p_are_a_wqe_each(heap, right, dtype):
    dtype = np.dtype(dtype)
    dest = heap.zeros(64, dtype)
    tail = Tail(right)
    p_lanes[1, 32](dest, 2, 0, right)
    expected = []
    for i in range(32):
        value = np.asarray(i + 1).astype(dtype).tobytes()
        to = on(right, dest) + 2 * i * dtype.itemsize
        expected.append(wqe.write_inline(tail.start + i, tail.qpn, to, keys(right), value, fm_ce_se=ALWAYS if i == 31 else 0))
    assert tail.wqes() == expected
    pgas.barrier_all()
    assert (dest.copy_to_host()[::2] == np.arange(1, 33).astype(dtype)).all()


@ibgda
def test_neighboring_g_are_one_wqe(heap, right):
    source, out = heap.array(np.arange(64, dtype=np.int32)), heap.zeros(32, np.int32)
    for step, wqes in ((1, 1), (2, 32)):
        tail = Tail(right)
        g_lanes[1, 32](source, out, step, right)
        found = [send_queue.decode(data) for data in tail.wqes()]
        assert [w.opcode for w in found] == [wqe.Opcode.RDMA_READ] * wqes
        assert [w.ce for w in found] == [wqe.Ce.ON_ERROR] * (wqes - 1) + [ALWAYS]
        assert {w.data[0].lkey for w in found} == {key_at(layout.CELL_LKEY)}
        equal(out, np.arange(32, dtype=np.int32) * step)
    pgas.barrier_all()


@pgas.jit
def send_signal(sig, op, pe):
    pgas.signal_op(sig, 1, 5, op, pe)
    pgas.quiet()


@pgas.jit
def add_lanes(acc, pe):
    pgas.atomic_add(acc, cuda.threadIdx.x, 7, pe)
    pgas.quiet()


@ibgda
def test_atomics_are_the_data_sheets_bytes(heap, right, monkeypatch):
    sink, lkey = nic()._load(layout.CELLS) + layout.SINK, key_at(layout.CELL_LKEY)
    sig = heap.zeros(4, np.uint64)
    rkey, at = keys(right), on(right, sig) + 8
    first = Tail(right)
    for op in (pgas.SIGNAL_SET, pgas.SIGNAL_ADD):
        tail = Tail(right)
        send_signal[1, 1](sig, op, right)
        i, qpn = tail.start, tail.qpn
        if op == pgas.SIGNAL_SET:
            ones = (1 << 64) - 1
            expected = [wqe.masked_compare_swap(i, qpn, at, rkey, sink, lkey, 8, 0, 5, 0, ones), wqe.nop(i + 2, qpn, fm_ce_se=ALWAYS)]
        else:
            expected = [wqe.fetch_add(i, qpn, at, rkey, sink, lkey, 5, fm_ce_se=ALWAYS)]
        assert tail.wqes() == expected
    assert len(first.wqes()) == 3
    pgas.barrier_all()
    equal(sig, np.array([0, 10, 0, 0], np.uint64))
    qpn = first.qpn
    for dtype, build in (
        (np.int64, lambda i, to, ce: wqe.fetch_add(i, qpn, to, rkey, sink, lkey, 7, fm_ce_se=ce)),
        (np.int32, lambda i, to, ce: wqe.masked_fetch_add(i, qpn, to, rkey, sink, lkey, 4, 7, fm_ce_se=ce)),
    ):
        acc = heap.zeros(3, dtype)
        tail = Tail(right)
        add_lanes[1, 3](acc, right)
        step = acc.dtype.itemsize
        assert tail.wqes() == [build(tail.start + k, on(right, acc) + k * step, ALWAYS if k == 2 else 0) for k in range(3)]
        pgas.barrier_all()
        equal(acc, np.full(3, 7, dtype))


# ------------------------------------------------------------------------------------------------------------------ the numbers


@pgas.jit
def many_puts(dest, source, rounds, pe):
    for i in range(rounds):
        pgas.put_nbi_block(dest[8 * i : 8 * i + 8], source, pe)
    pgas.quiet()


@ibgda
def test_the_card_counts_what_was_issued(heap, right, issued):
    dest, source = heap.zeros(800, np.int32), heap.array(np.arange(8, dtype=np.int32))
    issued()
    many_puts[1, 32](dest, source, 100, right)
    rung = issued()
    assert 1 <= rung.pop("doorbells") <= 100
    assert rung == {"wqes": 100, "nbytes": 3200, "cqes": 100, "errors": 0}
    p_lanes[1, 32](dest, 1, 0, right)
    assert issued() == {"wqes": 2, "nbytes": 128, "doorbells": 1, "cqes": 1, "errors": 0}  # a WRITE and the NOP that completes it
    p_lanes[1, 32](dest, 2, 0, right)
    assert issued() == {"wqes": 32, "nbytes": 128, "doorbells": 1, "cqes": 1, "errors": 0}


# ------------------------------------------------------------------------------------------------------------ which lanes, which PE


@pgas.jit
def p_of_some(dest, every, first, pe):
    i = cuda.threadIdx.x
    if i >= first and (i - first) % every == 0:
        pgas.p(dest, i, i + 1, pe)
    pgas.quiet()


@pytest.mark.parametrize(("every", "first"), [(1, 0), (1, 31), (2, 1), (3, 7), (1, 5), (40, 39)])
def test_any_subset_of_lanes(heap, right, every, first):
    dest = heap.zeros(40, np.int32)
    launch_together(p_of_some, 1, 40, dest, every, first, right)
    pgas.barrier_all()
    i = np.arange(40)
    equal(dest, np.where((i >= first) & ((i - first) % every == 0), i + 1, 0).astype(np.int32))


@pgas.jit
def p_to_all(dest, seen):
    """Lanes send to different PEs, some of them to neighboring elements."""
    i = cuda.threadIdx.x
    pe = (i // 3) % pgas.n_pes()
    pgas.p(dest, 40 * pgas.my_pe() + i, i + 1, pe)
    pgas.quiet()
    seen[i] = pgas.g(dest, 40 * pgas.my_pe() + i, pe)


def test_lanes_that_name_different_pes(heap, me, n):
    dest, seen = heap.zeros(40 * n, np.int32), heap.zeros(40, np.int32)
    launch_together(p_to_all, 1, 40, dest, seen)
    pgas.barrier_all()
    i = np.arange(40)
    equal(seen, (i + 1).astype(np.int32))
    equal(dest, np.tile(np.where((i // 3) % n == me, i + 1, 0), n).astype(np.int32))


@pgas.jit
def p_and_g_apart(dest, seen, fetched, rounds, first):
    """Each lane waits for a queue pair of its own, so lanes diverge and reach the next operation at different times."""
    i = cuda.threadIdx.x
    pe = (i // 3) % pgas.n_pes()
    at = 40 * pgas.my_pe() + i
    for r in range(first, first + rounds):
        pgas.p(dest, at, r + i, pe)
        pgas.quiet()
        seen[i] += pgas.g(dest, at, pe) - r
        fetched[i] += pgas.atomic_fetch_add(dest, at, 1, pe) - r


def test_lanes_that_diverge_repeatedly(heap, n):
    """A lane left behind at a barrier of its warp would hang, even if that happens only once in a thousand times."""
    dest, seen, fetched = heap.zeros(40 * n, np.int32), heap.zeros(40, np.int32), heap.zeros(40, np.int32)
    launches, rounds = (2, 2) if pgas.SIMULATOR else (200, 20)
    for launch in range(launches):
        launch_together(p_and_g_apart, 1, 40, dest, seen, fetched, rounds, rounds * launch)
    i = np.arange(40)
    for found in (seen, fetched):
        equal(found, (launches * rounds * i).astype(np.int32))


@pgas.jit
def to_all_in_turns(words, dest, source, rounds):
    """Each lane sends to its own PE; the queues are full of other threads' reservations."""
    i = cuda.grid(1)
    pe = i % pgas.n_pes()
    for r in range(rounds):
        pgas.atomic_set(words, i, r + 1, pe)
        pgas.iput(dest[64 * i : 64 * i + 64], source[i : i + 64], 2, 1, pe, 32)
        pgas.atomic_add(words, words.size - 1, 1, pe)
    pgas.quiet()


def test_lanes_that_name_different_pes_and_full_queues(heap, me, n):
    """No lane may wait for room while others wait for its reservation."""
    blocks, threads, rounds = (2, 32, 2) if pgas.SIMULATOR else (16, 256, 50)
    count = blocks * threads
    words, dest = heap.zeros(count + 1, np.int64), heap.zeros(64 * count, np.int32)
    source = heap.array(np.arange(count + 64, dtype=np.int32))
    launch_together(to_all_in_turns, blocks, threads, words, dest, source, rounds)
    pgas.barrier_all()
    i = np.arange(count)
    mine = i % n == me
    equal(words, np.append(np.where(mine, rounds, 0), n * rounds * mine.sum()))
    row = np.zeros((count, 64), np.int32)
    row[:, ::2] = np.where(mine[:, None], i[:, None] + np.arange(32), 0)
    equal(dest, row.ravel())


# ------------------------------------------------------------------------------------------------- which lanes share a WQE


@pgas.jit
def p_where(dest, where, pe):
    i = cuda.threadIdx.x
    at = where[i]
    cuda.syncwarp()  # in the simulator a lane may fall behind when it reads
    if at >= 0:
        pgas.p(dest, at, i + 1, pe, 1)
    pgas.quiet()


@pgas.jit
def g_where(source, where, out, pe):
    i = cuda.threadIdx.x
    at = where[i]
    cuda.syncwarp()
    if at >= 0:
        out[i] = pgas.g(source, at, pe, 1)


LANE = np.arange(32)
ODD = LANE % 2 == 1

#: The element of each lane (-1: none), and the number of WQEs: one if the active lanes access neighboring elements in their order, else
#: one each.
SHARING = {
    "every lane": (LANE, 1),
    "one lane": (np.where(LANE == 17, LANE, -1), 1),
    "the first lanes": (np.where(LANE < 5, LANE, -1), 1),
    "the last lanes": (np.where(LANE >= 29, LANE, -1), 1),
    "odd lanes, neighboring elements": (np.where(ODD, LANE // 2, -1), 1),
    "odd lanes, every other element": (np.where(ODD, LANE, -1), 16),
    "a lane is missing, its element is not": (np.where(LANE == 5, -1, LANE - (LANE > 5)), 1),
    "a lane and its element are missing": (np.where(LANE == 5, -1, LANE), 31),
    "an element is missing": (LANE + (LANE > 5), 32),
    "descending": (31 - LANE, 32),
    "two lanes the other way round": (np.where(LANE >= 30, 61 - LANE, LANE), 32),
    "two arrays, interleaved": (LANE // 2 + 32 * ODD, 32),
}


@ibgda
@pytest.mark.parametrize("name", SHARING)
def test_lanes_that_share_a_wqe(heap, right, name):
    elements, wqes = SHARING[name]
    there = elements >= 0
    where, dest = heap.array(elements.astype(np.int64)), heap.zeros(64, np.int32)
    tail = Tail(right)
    p_where[1, 32](dest, where, right)
    found = [w for w in map(send_queue.decode, tail.wqes()) if w.opcode != wqe.Opcode.NOP]
    assert [w.opcode for w in found] == [wqe.Opcode.RDMA_WRITE] * wqes
    assert sum(w.nbytes for w in found) == 4 * there.sum()
    expected = np.zeros(64, np.int32)
    expected[elements[there]] = LANE[there] + 1
    equal(dest, expected)
    out = heap.zeros(32, np.int32)
    tail = Tail(right)
    g_where[1, 32](dest, where, out, right)
    found = [send_queue.decode(data) for data in tail.wqes()]
    assert [w.opcode for w in found] == [wqe.Opcode.RDMA_READ] * wqes
    assert sum(w.nbytes for w in found) == 4 * there.sum()
    equal(out, np.where(there, LANE + 1, 0).astype(np.int32))


@pgas.jit
def p_of_two_halves(dest, pe):
    """Odd and even lanes make different calls, or one call with different queue pairs."""
    i = cuda.threadIdx.x
    if i % 2:
        pgas.p(dest, i // 2, i, pe, 1)
    else:
        pgas.p(dest, 16 + i // 2, i, pe, 1)
    pgas.p(dest, 32 + 16 * (i % 2) + i // 2, i, pe, 1 + i % 2)
    pgas.quiet()


@ibgda
def test_diverged_lanes_take_a_wqe_for_each_half(heap, right, issued):
    dest = heap.zeros(64, np.int32)
    issued()
    p_of_two_halves[1, 32](dest, right)
    change = issued()
    assert change["nbytes"] == 256
    assert change["wqes"] == 8 or (
        not pgas.SIMULATOR and change["wqes"] > 8
    )  # WRITEs of 16 lanes with a NOP each; on a GPU more lanes may diverge
    even = np.arange(0, 32, 2)
    equal(dest, np.concatenate([even + 1, even, even, even + 1]).astype(np.int32))


# ------------------------------------------------------------------------------ suspected defects of NVSHMEM, which pgas must not have


@pgas.jit
def signal_lanes(dest, source, sig, every, op, pe):
    """Each lane sends four elements and its own signal."""
    i = cuda.threadIdx.x
    if i % every == 0:
        pgas.put_signal_nbi(dest[4 * i : 4 * i + 4], source[4 * i : 4 * i + 4], sig, i, i + 1, op, pe)
    pgas.quiet()


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("op", [pgas.SIGNAL_ADD, pgas.SIGNAL_SET], ids=["add", "set"])
def test_defect_a_put_signal_by_the_lanes_of_a_warp(heap, right, left, op, every):
    """In NVSHMEM, only the first lane knows the reserved WQEBBs, and lanes submit before all have written.

    Here every lane's data and signal are in the ring, once, with nothing between them.
    """
    dest, source = heap.zeros(128, np.int64), heap.array(np.arange(128) + 1000 * pgas.my_pe())
    sig = heap.zeros(32, np.uint64)
    tail = Tail(right)
    signal_lanes[1, 32](dest, source, sig, every, op, right)
    lanes = LANE[LANE % every == 0]
    if TRANSPORT == "ibgda":
        sink, lkey, ones = nic()._load(layout.CELLS) + layout.SINK, key_at(layout.CELL_LKEY), (1 << 64) - 1

        def wanted(lane, at):
            data = on(right, dest) + 32 * lane, keys(right), address(source) + 32 * lane, key_at(layout.LKEY), 32
            word = on(right, sig) + 8 * lane, keys(right), sink, lkey
            yield wqe.write(at, tail.qpn, *data)
            if op == pgas.SIGNAL_ADD:
                yield wqe.fetch_add(at + 1, tail.qpn, *word, lane + 1, fm_ce_se=ALWAYS)
            else:
                yield wqe.masked_compare_swap(at + 1, tail.qpn, *word, 8, 0, lane + 1, 0, ones)
                yield wqe.nop(at + 3, tail.qpn, fm_ce_se=ALWAYS)

        found, at, seen = tail.wqes(), tail.start, []
        while found:
            lane = (send_queue.decode(found[0]).raddr - on(right, dest)) // 32
            expected = list(wanted(lane, at))
            assert found[: len(expected)] == expected
            del found[: len(expected)]
            at += 2 if op == pgas.SIGNAL_ADD else 4
            seen.append(lane)
        assert sorted(seen) == list(lanes)
    pgas.barrier_all()
    sent = np.isin(np.arange(128) // 4, lanes)
    equal(dest, np.where(sent, np.arange(128) + 1000 * left, 0))
    equal(sig, np.where(np.isin(LANE, lanes), LANE + 1, 0).astype(np.uint64))


@pgas.jit
def put_by(dest, source, pe, qp):
    pgas.put_nbi(dest, source, pe, None, qp)


@pgas.jit
def put_by_and_quiet(dest, source, pe, qp):
    pgas.put_nbi(dest, source, pe, None, qp)
    pgas.quiet()


@pgas.jit
def put_by_all(dest, source, num):
    for pe in range(pgas.n_pes()):
        for qp in range(1, num + 1):
            pgas.put_nbi(dest, source, pe, None, qp)


@pgas.jit
def put_by_all_and_fence(dest, source, num):
    for pe in range(pgas.n_pes()):
        for qp in range(1, num + 1):
            pgas.put_nbi(dest, source, pe, None, qp)
    pgas.fence()


def unwaited():
    """Return the queue pairs, by number, with WQEs for which no kernel has waited; only waiting moves cons_idx."""
    pgas.synchronize()  # the host reads while kernels run
    records = [layout.RECORDS + number * layout.RECORD_SIZE for number in range(len(nic().qps))]
    return [i for i, at in enumerate(records) if nic()._load(at + layout.CONS_IDX) != nic()._load(at + layout.RESV_HEAD)]


@ibgda
def test_defect_b_fence_covers_every_queue_pair(heap, n):
    """NVSHMEM's fence confuses its own queue pairs, which it skips, with those of other PEs; with one queue pair it does nothing."""
    dest, source = heap.zeros(4, np.int32), heap.array(np.arange(4, dtype=np.int32))
    pgas.barrier_all()
    every = list(range(n * nic()._num))
    put_by_all[1, 1](dest, source, nic()._num)
    assert unwaited() == every
    pgas.barrier_all()
    put_by_all_and_fence[1, 1](dest, source, nic()._num)
    assert unwaited() == []
    equal(dest, np.arange(4, dtype=np.int32))


@ibgda
def test_defect_c_quiet_finds_the_queue_pair_that_was_used(heap, me, n):
    """NVSHMEM's quiet of a queue pair divides its number by the wrong count, and waits for another one."""
    num = nic()._num
    dest, source = heap.zeros(n * num, np.int64), heap.array(np.arange(1, n * num + 1))
    pgas.barrier_all()
    for number in range(n * num):
        pe, qp = number // num, number % num + 1
        at = me * num + qp - 1
        put_by[1, 1](dest[at : at + 1], source[number : number + 1], pe, qp)
        assert unwaited() == [number]
        only_quiet[1, 1]()
        assert unwaited() == []
        put_by_and_quiet[1, 1](dest[at : at + 1], source[number : number + 1], pe, qp)
        assert unwaited() == []
    equal(dest, np.array([me * num + qp for _ in range(n) for qp in range(1, num + 1)]))


@needs_card
def test_defect_d_every_object_is_made_once(heap, me, n):
    """NVSHMEM allocates the endpoint of a queue pair twice, and leaks the first."""
    count = n * nic()._num
    card = observer().counters()
    (number,) = {qp["pe"] for qp in own_queue_pairs()}
    own = {qp["qpn"]: qp for qp in card["qps"] if qp["pe"] == number}
    assert list(own) == [qp.qpn for qp in nic().qps]
    assert {qp["state"] for qp in own.values()} == {"RTS"}
    uars = count + (CARD is not None)  # one that libmlx5 opens a context with
    assert [sum(row["pe"] == number for row in card[kind]) for kind in ("qps", "cqs", "uars", "keys")] == [count, count, uars, 2]
    peers = pgas.allgather_object([qp.qpn for qp in nic().qps])
    wanted = [peers[pe][me * nic()._num + i] for pe in range(n) for i in range(nic()._num)]
    assert [qp["remote_qpn"] for qp in own.values()] == wanted


# ---------------------------------------------------------------------------------------------------------------------- full queues


@pgas.jit
def flood(dest, rounds, pe):
    """Every thread writes its own word repeatedly; neighboring threads do not write neighboring words."""
    i = cuda.grid(1)
    for r in range(rounds):
        pgas.p(dest, 2 * i, r + i, pe)
    pgas.quiet()


def test_more_than_the_queues_hold(heap, right):
    """From many blocks. With PGAS_QP_DEPTH=128, which keeps the queues full, 100,000 operations."""
    blocks, threads = 8, 32
    operations = 100_000 if nic()._depth == 128 else 20_000
    rounds = operations // (blocks * threads * pgas.n_pes()) + 1
    dest = heap.zeros(2 * blocks * threads, np.int32)
    launch_together(flood, blocks, threads, dest, rounds, right)
    pgas.barrier_all()
    i = np.arange(blocks * threads)
    expected = np.zeros(2 * blocks * threads, np.int32)
    expected[::2] = rounds - 1 + i
    equal(dest, expected)


# ------------------------------------------------------------------------------------------------------------------- completion


@pgas.jit
def put_and_leave(dest, source, pe):
    pgas.put_nbi_block(dest, source, pe)


@pgas.jit
def only_quiet():
    pgas.quiet()


@needs_card
def test_a_paused_card_completes_nothing(heap, me, right, left):
    """put_nbi returns while the card is paused, quiet does not; after the card resumes, the data arrives."""
    dest, source = heap.zeros(1000, np.int32), heap.full(1000, me + 1, np.int32)
    pgas.barrier_all()
    if me == 0:
        observer().pause()
    pgas.allgather_object(None)
    put_and_leave[1, 32](dest, source, right)
    pgas.allgather_object(None)
    assert not dest.copy_to_host().any()
    resumed = []

    def resume():
        resumed.append(time.monotonic())
        observer().resume()

    if me == 0:
        threading.Timer(0.3, resume).start()
    only_quiet[1, 1]()
    pgas.synchronize()
    returned = time.monotonic()
    pgas.barrier_all()
    if me == 0:
        assert returned > resumed[0]
    equal(dest, np.full(1000, left + 1, np.int32))


@pgas.jit
def send(dest, source, sig, round_, pe):
    pgas.put_signal_nbi_block(dest, source, sig, 0, round_, pgas.SIGNAL_SET, pe)


@pgas.jit
def receive(dest, sig, round_, wrong):
    """Read the last byte first: a card usually writes it last."""
    i = cuda.threadIdx.x
    if i == 0:
        pgas.signal_wait_until(sig, 0, pgas.GE, round_)
    cuda.syncthreads()
    at = dest.size - 1 - i
    while at >= 0:
        if dest[at] != round_:
            cuda.atomic.add(wrong, 0, 1)
        at -= 997 * cuda.blockDim.x


@needs_card
def test_a_signal_never_overtakes_its_data(heap, right):
    """1 MiB, with a card that delays completions and writes the last piece first."""
    dest, source = heap.zeros(1 << 20, np.uint8), heap.zeros(1 << 20, np.uint8)
    sig, wrong = heap.zeros(1, np.uint64), heap.zeros(1, np.int32)
    pgas.barrier_all()
    if pgas.my_pe() == 0:
        observer().set_faults("seed=3,delay=0.3")
    pgas.barrier_all()
    try:
        for round_ in range(1, 6):
            source.copy_to_device(np.full(1 << 20, round_, np.uint8))
            send[1, 32](dest, source, sig, round_, right)
            receive[1, 32](dest, sig, round_, wrong)
            pgas.barrier_all()
    finally:
        if pgas.my_pe() == 0:
            observer().set_faults("")
    equal(wrong, np.zeros(1, np.int32))


@cuda.jit(device=True)
def fenced(data, flag, rounds, pe):
    """Send the data on one queue pair, the flag on another."""
    for r in range(1, rounds + 1):
        pgas.p(data, r, r, pe, 1)
        pgas.fence()
        pgas.p(flag, 0, r, pe, 2)


@cuda.jit(device=True)
def watch(data, flag, rounds, wrong):
    for r in range(1, rounds + 1):
        pgas.wait_until(flag, 0, pgas.GE, r)
        if data[r] != r:
            wrong[0] += 1


@pgas.jit
def both(data, flag, rounds, wrong, pe):
    if cuda.blockIdx.x == 0:
        fenced(data, flag, rounds, pe)
    else:
        watch(data, flag, rounds, wrong)


@needs_card
def test_fence_orders_queue_pairs(heap, right):
    data, flag, wrong = heap.zeros(65, np.int64), heap.zeros(1, np.int64), heap.zeros(1, np.int32)
    pgas.barrier_all()
    if pgas.my_pe() == 0:
        observer().set_faults("seed=5,delay=0.3")
    pgas.barrier_all()
    try:
        launch_together(both, 2, 1, data, flag, 64, wrong, right)
        pgas.barrier_all()
    finally:
        if pgas.my_pe() == 0:
            observer().set_faults("")
    equal(wrong, np.zeros(1, np.int32))
    equal(data, np.arange(65, dtype=np.int64))
