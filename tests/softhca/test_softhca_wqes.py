"""WQEs that succeed: all opcodes except atomics, doorbells, the ring and its wrap, completions."""

import os
import random
import struct
import threading
import time

import numpy as np
import pytest
import rig
import wqes as wqe
from numba import njit
from rig import QP, SIGNAL, connect, pair

from pgas.native.atomics import load_acquire_u64
from pgas.transports.mlx5 import cqe, doorbell
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.mlx5.wqe import Ce, Fm, Opcode
from pgas.transports.softhca.syndromes import Vendor

card, pes, observer = rig.card, rig.pes, rig.observer

GUARD = b"\xc3" * 16


def payload(nbytes, seed=0):
    return random.Random(nbytes * 31 + seed).randbytes(nbytes)


def place(pe, offset, data):
    pe.write(pe.heap + offset - 16, GUARD + data + GUARD)


def placed(pe, offset, nbytes):
    """Return data of a heap; check the guards around it."""
    data = pe.read(pe.heap + offset - 16, nbytes + 32)
    assert (data[:16], data[-16:]) == (GUARD, GUARD)
    return data[16:-16]


def write8(qp, peer_pe, offset=0):
    return wqe.write, peer_pe.heap + offset, peer_pe.key, qp.pe.heap + offset, qp.pe.key, 8


def gather(opcode, raddr, rkey, *parts, fm_ce_se=0):
    """Return a builder of a WQE with any number of data segments: (address, lkey, nbytes) each."""

    def build(index, qpn, fm_ce_se=fm_ce_se):
        ds = 2 + len(parts)
        head = struct.pack(">IIIIQII", (index & 0xFFFF) << 8 | opcode, qpn << 8 | ds, fm_ce_se, 0, raddr, rkey, 0)
        return head + b"".join(struct.pack(">IIQ", nbytes, lkey, address) for address, lkey, nbytes in parts)

    return build


# ------------------------------------------------------------------------------------------------------------------ WRITE and READ


@pytest.mark.parametrize("shift", [0, 1, 4, 7])
@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 7, 8, 9, 63, 64, 65, 511, 512, 513, 4096, 70000])
def test_write_and_read_of_any_size_and_alignment(pes, nbytes, shift):
    qp = pair(pes)[0]
    data, local, remote = payload(nbytes), 4096 + shift, 1 << 20
    place(pes[0], local, data)
    place(pes[1], remote, bytes(nbytes))
    done = qp.run(wqe.write, pes[1].heap + remote, pes[1].key, pes[0].heap + local, pes[0].key, nbytes)
    assert (done.s_wqe_opcode, done.byte_cnt) == (Opcode.RDMA_WRITE, nbytes)
    assert placed(pes[1], remote, nbytes) == data
    place(pes[0], local, bytes(nbytes))
    done = qp.run(wqe.read, pes[1].heap + remote, pes[1].key, pes[0].heap + local, pes[0].key, nbytes)
    assert (done.s_wqe_opcode, done.byte_cnt) == (Opcode.RDMA_READ, nbytes)
    assert placed(pes[0], local, nbytes) == data
    counted = qp.counters()
    assert (counted["writes"], counted["reads"], counted["nbytes"]) == (1, 1, 2 * nbytes)


@njit("void(int64, int64, int64[::1])", nogil=True)  # compiled in advance, as 400 WQEs may take less time
def halves(address, stop, found):
    """Read a word of 8 bytes until stop is set; count the reads, and those with different halves."""
    while load_acquire_u64(stop) == 0:
        word = load_acquire_u64(address)
        found[0] += 1
        found[1] += (word & 0xFFFF_FFFF) != (word >> 32)


def test_inline_words_arrive_whole(pes):
    """p of 8 bytes: the payload is at an odd 4-byte word of the WQE, but a poller sees the whole element or nothing."""
    qp = pair(pes)[0]
    word, stop = pes[1].heap + 64, np.zeros(1, np.uint64)
    found = np.zeros(2, np.int64)
    watcher = threading.Thread(target=halves, args=(word, stop.ctypes.data, found))
    watcher.start()
    try:
        for i in range(400):
            qp.run(wqe.write_inline, word, pes[1].key, (b"\0" if i % 2 else b"\xff") * 8)
    finally:
        stop[0] = 1
        watcher.join()
    assert found[0] > 10_000
    assert found[1] == 0


@pytest.mark.parametrize("nbytes", [1, 2, 4, 8, 12, 13, 28, 29, 60, 64, 92, 93, 128, 256, wqe.INLINE_MAX])
def test_write_inline(pes, nbytes):
    """The card reads only the WQE: up to 28 bytes in one WQEBB, up to 16 WQEBBs."""
    qp = pair(pes)[0]
    place(pes[1], 64, bytes(nbytes))
    done = qp.run(wqe.write_inline, pes[1].heap + 64, pes[1].key, payload(nbytes))
    assert placed(pes[1], 64, nbytes) == payload(nbytes)
    assert done.byte_cnt == nbytes
    assert qp.pe.command(rig.Command.QUERY_QP, qpn=qp.qpn)["qpc"]["hw_sq_wqebb_counter"] == wqe.wqebbs(wqe.ds_inline(nbytes))


def test_data_segments_are_gathered_and_scattered(pes):
    qp = pair(pes)[0]
    sizes = [5, 1, 64, 300, 8]
    offsets = [1000 * (i + 1) for i in range(len(sizes))]
    for offset, nbytes in zip(offsets, sizes, strict=True):
        place(pes[0], offset, payload(nbytes, offset))
    parts = [(pes[0].heap + offset, pes[0].key, nbytes) for offset, nbytes in zip(offsets, sizes, strict=True)]
    whole = b"".join(payload(nbytes, offset) for offset, nbytes in zip(offsets, sizes, strict=True))
    place(pes[1], 64, bytes(len(whole)))
    assert qp.run(gather(Opcode.RDMA_WRITE, pes[1].heap + 64, pes[1].key, *parts)).byte_cnt == len(whole)
    assert placed(pes[1], 64, len(whole)) == whole
    for offset, nbytes in zip(offsets, sizes, strict=True):
        place(pes[0], offset, bytes(nbytes))
    qp.run(gather(Opcode.RDMA_READ, pes[1].heap + 64, pes[1].key, *parts))
    for offset, nbytes in zip(offsets, sizes, strict=True):
        assert placed(pes[0], offset, nbytes) == payload(nbytes, offset)


@pytest.mark.parametrize("opcode", [Opcode.RDMA_WRITE, Opcode.RDMA_READ])
def test_no_bytes_need_no_key(pes, opcode):
    qp = pair(pes)[0]
    assert qp.run(gather(opcode, 0, 0)).byte_cnt == 0


def test_a_message_may_be_as_long_as_log_msg_max(pes):
    qp = connect(QP(pes[0]), QP(pes[1]), log_msg_max=4)[0]
    qp.run(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 16)
    assert qp.fail(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 17) == (Syndrome.LOCAL_LENGTH_ERR, Vendor.LENGTH_MESSAGE)


# ------------------------------------------------------------------------------------------------------------------ NOP, DUMP, fences


@pytest.mark.parametrize("stale", [b"", b"\xee" * 16])
def test_nop_of_ds_1_and_of_ds_2_with_a_stale_octoword(pes, stale):
    qp = pair(pes)[0]

    def nop(index, qpn, fm_ce_se=0):
        data = bytearray(wqe.nop(index, qpn, fm_ce_se=fm_ce_se) + stale)
        data[7] = len(data) // 16
        return bytes(data)

    done = qp.run(nop)
    assert (done.s_wqe_opcode, done.byte_cnt, done.wqe_counter) == (Opcode.NOP, 0, 0)


def test_dump_reads_and_changes_nothing(pes):
    qp = pair(pes)[0]
    before = pes[0].read(pes[0].heap, 4096), pes[1].read(pes[1].heap, 4096)
    assert qp.run(wqe.dump, pes[0].heap, pes[0].key, 64).s_wqe_opcode == Opcode.DUMP
    assert (pes[0].read(pes[0].heap, 4096), pes[1].read(pes[1].heap, 4096)) == before


def test_dump_behind_a_write_does_not_use_its_address(pes):
    """A DUMP has data but no remote address, and must not use that of the WRITE before it."""
    qp = pair(pes)[0]
    pes[0].word(0, 7)
    assert not qp.run(*write8(qp, pes[1], 64)).is_error
    pes[1].word(64, 1)
    assert qp.run(wqe.dump, pes[0].heap, pes[0].key, 64).s_wqe_opcode == Opcode.DUMP
    assert pes[1].word(64) == 1


@pytest.mark.parametrize("fm", [fm for fm in Fm if fm >= Fm.FENCE or not rig.PACKETS])
def test_every_fence_mode_orders_a_write_behind_a_read(pes, fm):
    """READ fetches a value, the fenced WRITE sends it on: it must be the new one."""
    qp = pair(pes, 10)[0]
    for round_ in range(1, 201):
        pes[1].word(0, round_)
        qp.post(wqe.read, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8)
        last = qp.post(wqe.write, pes[1].heap + 8, pes[1].key, pes[0].heap, pes[0].key, 8, fm_ce_se=fm | SIGNAL)
        qp.ring()
        assert not qp.poll(last).is_error
        assert pes[1].word(8) == round_


# ------------------------------------------------------------------------------------------------------------------------ doorbells


def test_a_doorbell_record_alone_does_nothing(pes):
    qp = pair(pes)[0]
    pes[0].word(0, 5)
    index = qp.post(*write8(qp, pes[1]), fm_ce_se=SIGNAL)
    qp.record()
    time.sleep(20e-3)
    assert (pes[1].word(0), qp.entry(), qp.counters()["wqes"]) == (0, rig.EMPTY, 0)
    qp.ring()
    qp.poll(index)
    assert pes[1].word(0) == 5


def test_wqes_are_not_read_before_the_doorbell(pes):
    qp = pair(pes)[0]
    first = qp.post(*write8(qp, pes[1]), fm_ce_se=SIGNAL)
    qp.ring()
    qp.poll(first)
    second = qp.post(*write8(qp, pes[1], 8), fm_ce_se=SIGNAL)
    time.sleep(5e-3)
    assert qp.counters()["wqes"] == 1
    qp.ring()
    qp.poll(second)


@pytest.mark.parametrize("by_wqe", [False, True])
@pytest.mark.parametrize("nbytes", [8, 28, 29, 200])
def test_both_doorbell_conventions(pes, by_wqe, nbytes):
    """The UAR word has the next empty WQEBB (NVSHMEM), or the last WQE's first 8 bytes (rdma-core)."""
    qp = pair(pes)[0]
    for count in (1, 3):
        for i in range(count):
            last = qp.post(wqe.write_inline, pes[1].heap + 256 * i, pes[1].key, payload(nbytes, i), fm_ce_se=SIGNAL)
        qp.uar_word(doorbell.wqe_start(qp.log[-1][1]) if by_wqe else doorbell.next_empty(qp.posted, qp.qpn))  # and no record
        assert not qp.poll(last).is_error
    assert [pes[1].read(pes[1].heap + 256 * i, nbytes) for i in range(3)] == [payload(nbytes, i) for i in range(3)]
    assert (qp.counters()["wqes"], qp.counters()["doorbells"], qp.counters()["stale_records"]) == (4, 2, 2)


def test_opmod_in_a_doorbell_is_ignored(pes):
    """NVSHMEM's CPU path puts bits 23:16 of the index there."""
    qp = pair(pes)[0]
    index = qp.post(wqe.nop, fm_ce_se=SIGNAL)
    word = bytearray(doorbell.next_empty(qp.posted, qp.qpn))
    word[0] = 0x7F
    qp.record()
    qp.uar_word(bytes(word))
    assert not qp.poll(index).is_error


def test_the_farther_of_doorbell_and_record_counts(pes):
    qp = pair(pes)[0]
    first, second = (qp.post(wqe.nop, fm_ce_se=SIGNAL) for _ in range(2))
    qp.record()
    qp.uar_word(doorbell.next_empty(first + 1, qp.qpn))
    assert not qp.poll(second).is_error
    assert qp.counters()["stale_records"] == 0


def test_a_doorbell_that_goes_backwards_is_counted_and_ignored(pes):
    qp = pair(pes)[0]
    for _ in range(3):
        last = qp.post(wqe.nop, fm_ce_se=SIGNAL)
    qp.ring()
    qp.poll(last)
    qp.uar_word(doorbell.next_empty(1, qp.qpn))
    rig.wait_until(lambda: qp.counters()["stale_doorbells"] == 1, "the doorbell is not counted")
    assert (qp.counters()["wqes"], qp.counters()["producer"], qp.counters()["consumer"]) == (3, 3, 3)


def test_a_doorbell_of_another_qp_is_counted_and_ignored(pes):
    qp, other = pair(pes)[0], QP(pes[0])
    index = qp.post(wqe.nop, fm_ce_se=SIGNAL)
    qp.record()
    qp.uar_word(doorbell.next_empty(1, other.qpn))
    rig.wait_until(lambda: qp.counters()["foreign_doorbells"] == 1, "the doorbell is not counted")
    assert qp.counters()["wqes"] == 0
    qp.ring()
    qp.poll(index)


# ------------------------------------------------------------------------------------------------------------------- ring and wrap


@pytest.mark.parametrize("by_wqe", [False, True])
@pytest.mark.parametrize("start", [(1 << 16) - 3, (1 << 32) - 3, 125])
def test_indices_and_ring_wrap(pes, start, by_wqe):
    """WQEs of 1 to 4 WQEBBs across 2^16, 2^32 and the end of the ring, where one continues at slot 0."""
    qp = QP(pes[0]).begin(start)
    connect(qp, QP(pes[1]))
    for i, nbytes in enumerate([8, 100, 8, 200, 60, 28] * 12):
        data = payload(nbytes, i)
        index = qp.post(wqe.write_inline, pes[1].heap, pes[1].key, data, fm_ce_se=SIGNAL)
        qp.ring(by_wqe=by_wqe)
        done = qp.poll(index)
        assert not done.is_error, f"{done}: {pes[0].hca.diagnose(qp.qpn)}"
        assert done.wqe_counter == index & 0xFFFF
        assert pes[1].read(pes[1].heap, nbytes) == data
    assert qp.posted > start + qp.depth
    context = pes[0].command(rig.Command.QUERY_QP, qpn=qp.qpn)["qpc"]
    assert context["hw_sq_wqebb_counter"] == context["sw_sq_wqebb_counter"] == qp.posted & 0xFFFF


@pytest.mark.parametrize("log_depth", [0, 1, 7, 14])
def test_a_full_queue_with_one_doorbell(pes, log_depth):
    if log_depth > 10 and os.environ.get("PGAS_ENGINE", "cpu") != "cpu":
        pytest.skip("kernels take minutes in the simulator")
    qp = QP(pes[0], log_depth).begin((1 << 16) - (1 << log_depth) // 2)
    connect(qp, QP(pes[1]))
    for _ in range(2):
        for _ in range(qp.depth):
            last = qp.post(*write8(qp, pes[1]), fm_ce_se=0)
        data = bytearray(qp.log[-1][1])
        data[11] |= SIGNAL
        rig.send_queue.store(qp.ring_memory(), last, bytes(data))
        qp.ring()
        assert not qp.poll(last).is_error
    assert qp.counters()["wqes"] == 2 * qp.depth


@rig.no_packets
@pytest.mark.parametrize(("rings", "most"), [(60, 12), (5, 140), (8, 1400)])
def test_a_long_random_stream_against_a_model(pes, rings, most):
    """WRITE, WRITE inline and READ of random sizes and places, in groups of random length; the heaps must match a model.

    Long groups are several batches of the cuda engine, which fetches one while it executes the one before: 32 WQEBBs in the simulator, 256
    on a GPU.
    """
    if most > 1000 and os.environ.get("PGAS_ENGINE") == "cuda":
        pytest.skip("the cuda engine takes minutes in the simulator")
    choose = random.Random(7)
    qp = QP(pes[0], 12).begin((1 << 16) - 100)
    connect(qp, QP(pes[1]))
    area = 2048
    model = [bytearray(payload(area, number)) for number in (0, 1)]
    for pe, data in zip(pes, model, strict=True):
        pe.write(pe.heap, data)
    kinds = ["write", "inline", "read"] if most < 100 else ["write", "inline"] * 50 + ["read"]
    for _ in range(rings):
        for _ in range(choose.randint(most // 2, most)):
            nbytes = choose.choice([1, 2, 4, 8, 16, 33, 100, 250])
            here, there = choose.randrange(area - nbytes), choose.randrange(area - nbytes)
            kind = choose.choice(kinds)
            if kind == "inline":
                data = choose.randbytes(nbytes)
                qp.post(wqe.write_inline, pes[1].heap + there, pes[1].key, data)
                model[1][there : there + nbytes] = data
            elif kind == "write":
                qp.post(wqe.write, pes[1].heap + there, pes[1].key, pes[0].heap + here, pes[0].key, nbytes)
                model[1][there : there + nbytes] = model[0][here : here + nbytes]
            else:
                qp.post(wqe.read, pes[1].heap + there, pes[1].key, pes[0].heap + here, pes[0].key, nbytes)
                model[0][here : here + nbytes] = model[1][there : there + nbytes]
        last = qp.post(wqe.nop, fm_ce_se=SIGNAL)
        qp.ring(by_wqe=choose.random() < 0.5)
        assert not qp.poll(last).is_error
    assert [pe.read(pe.heap, area) for pe in pes] == [bytes(data) for data in model]


# --------------------------------------------------------------------------------------------------------------------- completions


def test_only_signalled_wqes_get_a_cqe(pes):
    qp = pair(pes)[0]
    for ce, asks in ((Ce.ON_ERROR, False), (Ce.ON_FIRST_ERROR, False), (Ce.ALWAYS, True), (Ce.ALWAYS_AND_EQE, True)):
        before = qp.counters()
        index = qp.post(wqe.nop, fm_ce_se=ce)
        qp.ring()
        if asks:  # the counts are written before the CQE
            assert qp.poll(index).wqe_counter == index
        rig.wait_until(lambda before=before: qp.counters()["wqes"] == before["wqes"] + 1, "the WQE is not executed")
        assert qp.counters()["cqes"] - before["cqes"] == asks


def test_a_cqe_arrives_after_the_data_of_all_earlier_wqes(pes):
    qp = pair(pes)[0]
    for round_ in range(1, 300):
        pes[0].word(0, round_)
        for offset in (0, 8, 4096, 1 << 20):
            qp.post(wqe.write, pes[1].heap + offset, pes[1].key, pes[0].heap, pes[0].key, 8)
        last = qp.post(wqe.nop, fm_ce_se=SIGNAL)
        qp.ring()
        qp.poll(last)
        assert [pes[1].word(offset) for offset in (0, 8, 4096, 1 << 20)] == [round_] * 4


def test_an_ordinary_cq_fills_entry_by_entry_with_an_owner_bit(pes):
    qp = pair(pes, collapsed=0, log_cq=2, user_index=0x77)[0]
    for consumer in range(11):
        assert not cqe.valid(qp.entry(consumer % 4)[63], consumer, 4)
        index = qp.post(wqe.nop, fm_ce_se=SIGNAL)
        qp.ring()
        rig.wait_until(lambda consumer=consumer: cqe.valid(qp.entry(consumer % 4)[63], consumer, 4), "no CQE")
        done = cqe.decode(qp.entry(consumer % 4))
        assert (done.wqe_counter, done.user_index, done.owner, done.opcode) == (index, 0x77, consumer // 4 % 2, cqe.CqeOpcode.REQ)


def test_a_cqe_has_the_bytes_of_the_data_sheet(pes):
    qp = pair(pes, user_index=0x123456)[0]
    index = qp.post(*write8(qp, pes[1]), fm_ce_se=SIGNAL)
    qp.ring()
    qp.poll(index)
    assert qp.entry() == cqe.completed(qp.qpn, Opcode.RDMA_WRITE, index, 8, user_index=0x123456)
    index = qp.post(wqe.write, 0, 0xBAD00, pes[0].heap, pes[0].key, 8)
    qp.ring()
    assert qp.poll(index).is_error
    assert qp.entry() == cqe.error(
        qp.qpn, Opcode.RDMA_WRITE, index, Syndrome.REMOTE_ACCESS_ERR, rig.told(Vendor.RKEY_UNKNOWN), user_index=0x123456
    )
