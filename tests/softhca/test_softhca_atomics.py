"""Atomics: FA, CS and their masked forms on 4 and 8 bytes, their results, and their atomicity with other accesses."""

import random

import pytest
import rig
import wqes as wqe
from rig import QP, SIGNAL, connect, pair

from pgas.base.backend import SIMULATOR
from pgas.native import atomics as mem
from pgas.transports.mlx5 import cqe
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.mlx5.wqe import Opcode
from pgas.transports.softhca.syndromes import Vendor

card, pes, observer = rig.card, rig.pes, rig.observer

ONES = {4: (1 << 32) - 1, 8: (1 << 64) - 1}
TARGET, RESULT = 256, 512


def masked_add(old, add, boundary, nbytes):
    """Add field by field, as a full adder; every bit of boundary is the last one of its field."""
    total = carry = 0
    for bit in range(8 * nbytes):
        digits = (old >> bit & 1) + (add >> bit & 1) + carry
        total |= (digits & 1) << bit
        carry = 0 if boundary >> bit & 1 else digits >> 1
    return total


def masked_swap(old, compare, swap, compare_mask, swap_mask):
    return old & ~swap_mask | swap & swap_mask if old & compare_mask == compare & compare_mask else old


def execute(qp, pes, old, nbytes, build, *args):
    """Run an atomic on a word between guards; return (new value, returned old value, CQE)."""
    guards = 0xA5A5A5A5A5A5A5A5
    for offset in (TARGET - 8, TARGET + nbytes, RESULT - 8, RESULT + nbytes):
        pes[1 if offset < RESULT - 8 else 0].word(offset, guards)
    pes[1].word(TARGET, old, nbytes)
    done = qp.run(build, pes[1].heap + TARGET, pes[1].key, pes[0].heap + RESULT, pes[0].key, *args)
    assert (pes[1].word(TARGET - 8), pes[1].word(TARGET + nbytes)) == (guards, guards)
    assert (pes[0].word(RESULT - 8), pes[0].word(RESULT + nbytes)) == (guards, guards)
    assert done.byte_cnt == nbytes
    returned = int.from_bytes(pes[0].read(pes[0].heap + RESULT, nbytes), "big" if nbytes == 4 else "little")
    return pes[1].word(TARGET, nbytes=nbytes), returned, done


VALUES = [0, 1, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF, 0x0123456789ABCDEF]


@pytest.mark.parametrize("old", VALUES)
def test_fetch_add(pes, old):
    qp = pair(pes)[0]
    for add in VALUES:
        new, returned, done = execute(qp, pes, old, 8, wqe.fetch_add, add)
        assert (new, returned, done.s_wqe_opcode) == ((old + add) & ONES[8], old, Opcode.ATOMIC_FA)
    assert qp.counters()["atomics"] == len(VALUES)


@pytest.mark.parametrize("old", VALUES)
def test_compare_swap(pes, old):
    qp = pair(pes)[0]
    for compare in VALUES:
        new, returned, done = execute(qp, pes, old, 8, wqe.compare_swap, compare, 0x1122334455667788)
        assert (new, returned) == (0x1122334455667788 if compare == old else old, old)
        assert done.s_wqe_opcode == Opcode.ATOMIC_CS


@pytest.mark.parametrize("nbytes", [4, 8])
def test_masked_fetch_add_is_a_sum_of_fields(pes, nbytes):
    qp = pair(pes)[0]
    choose = random.Random(nbytes)
    boundaries = [0, ONES[nbytes], 0x80, 0x8080808080808080 & ONES[nbytes], 1 << 8 * nbytes - 1, 1]
    for boundary in [*boundaries, *(choose.getrandbits(8 * nbytes) for _ in range(10))]:
        for old, add in [
            (0, 0),
            (ONES[nbytes], 1),
            (ONES[nbytes], ONES[nbytes]),
            *((choose.getrandbits(8 * nbytes),) * 2 for _ in range(3)),
        ]:
            new, returned, done = execute(qp, pes, old, nbytes, wqe.masked_fetch_add, nbytes, add, boundary)
            assert (new, returned) == (masked_add(old, add, boundary, nbytes), old)
            assert done.s_wqe_opcode == Opcode.ATOMIC_MASKED_FA


@pytest.mark.parametrize("nbytes", [4, 8])
def test_masked_compare_swap(pes, nbytes):
    """With 8 bytes the data segment is in the second WQEBB."""
    qp = pair(pes)[0]
    choose = random.Random(nbytes)
    masks = [0, ONES[nbytes], 0xFF, 0xF0F0F0F0F0F0F0F0 & ONES[nbytes]]
    for compare_mask in masks:
        for swap_mask in masks:
            old, swap = choose.getrandbits(8 * nbytes), choose.getrandbits(8 * nbytes)
            for compare in (old, old ^ 1, ~old & ONES[nbytes]):
                new, returned, done = execute(qp, pes, old, nbytes, wqe.masked_compare_swap, nbytes, compare, swap, compare_mask, swap_mask)
                assert (new, returned) == (masked_swap(old, compare, swap, compare_mask, swap_mask), old)
                assert done.s_wqe_opcode == Opcode.ATOMIC_MASKED_CS
    assert qp.posted == (2 if nbytes == 8 else 1) * 48


@pytest.mark.parametrize("nbytes", [4, 8])
def test_operations_of_openshmem(pes, nbytes):
    """xor, set, and, or, as NVSHMEM maps them."""
    qp, old, value = pair(pes)[0], 0xC3A5F00F & ONES[nbytes], 0x0FF0AA55
    cs, fa, ones = wqe.masked_compare_swap, wqe.masked_fetch_add, ONES[nbytes]
    assert execute(qp, pes, old, nbytes, fa, nbytes, value, ones)[0] == old ^ value
    assert execute(qp, pes, old, nbytes, cs, nbytes, 0, value, 0, ones)[0] == value
    assert execute(qp, pes, old, nbytes, cs, nbytes, 0, value, 0, ~value & ones)[0] == old & value
    assert execute(qp, pes, old, nbytes, cs, nbytes, 0, value, 0, value)[0] == old | value
    assert execute(qp, pes, old, nbytes, fa, nbytes, 0, 0)[0] == old


def test_old_values_big_endian(pes, observer):
    """atomics=big_endian: as a card without atomic_req_8B_endianness_mode 1. Operands and memory are as before."""
    observer.set_faults("atomics=big_endian")
    qp, old, swapped = pair(pes)[0], 0x0123456789ABCDEF, 0xEFCDAB8967452301
    assert execute(qp, pes, old, 8, wqe.fetch_add, 1)[:2] == (old + 1, swapped)
    assert execute(qp, pes, old, 8, wqe.compare_swap, old, 7)[:2] == (7, swapped)
    assert execute(qp, pes, old, 8, wqe.masked_fetch_add, 8, 1, 0)[:2] == (old + 1, swapped)
    assert execute(qp, pes, old, 8, wqe.masked_compare_swap, 8, 0, 7, 0, ONES[8])[:2] == (7, swapped)
    assert execute(qp, pes, 0x01234567, 4, wqe.masked_fetch_add, 4, 1, 0)[:2] == (0x01234568, 0x01234567)
    observer.set_faults("")
    assert execute(qp, pes, old, 8, wqe.fetch_add, 1)[:2] == (old + 1, old)


@pytest.mark.parametrize("nbytes", [4, 8])
def test_alignment_of_the_address(pes, nbytes):
    for offset in range(16):
        qp = pair(pes)[0]
        pes[1].write(pes[1].heap, bytes(32))
        add = (wqe.masked_fetch_add, pes[1].heap + offset, pes[1].key, pes[0].heap, pes[0].key, nbytes, 1, 0)
        if offset % nbytes == 0:
            qp.run(*add)
        else:
            assert qp.fail(*add) == (Syndrome.REMOTE_INVAL_REQ_ERR, rig.told(Vendor.MISALIGNED))
        assert pes[1].read(pes[1].heap, 32) == (offset % nbytes == 0).to_bytes(1 + offset, "big").ljust(32, b"\0")


def test_the_result_may_lie_at_any_address(pes):
    qp = pair(pes)[0]
    for shift in range(8):
        pes[1].word(0, 0x1112131415161718)
        qp.run(wqe.fetch_add, pes[1].heap, pes[1].key, pes[0].heap + 64 + shift, pes[0].key, 1)
        assert pes[0].word(64 + shift) == 0x1112131415161718


@pytest.mark.skipif(not SIMULATOR, reason="on GPUs a PE's atomics are its kernels', not the CPU's (tests/mpi/test_nic.py)")
@rig.no_packets
def test_atomics_of_all_qps_and_pes_see_each_other(pes):
    """A peer's QP, a QP of the same PE and the CPU add to one word at the same time; no addition is lost."""
    count = 1500
    own = QP(pes[1], 11)
    qps = [pair(pes, 11)[0], connect(own, own)[0]]
    for _ in range(count):
        for qp in qps:
            qp.post(wqe.fetch_add, pes[1].heap, pes[1].key, qp.pe.heap + 64, qp.pe.key, 1)
    last = [qp.post(wqe.nop, fm_ce_se=SIGNAL) for qp in qps]
    for qp in qps:
        qp.ring()
    for _ in range(count):
        mem.atomic_add_u64(pes[1].heap, 1)
    for qp, index in zip(qps, last, strict=True):
        assert not qp.poll(index).is_error
    assert pes[1].word(0) == 3 * count


@pytest.mark.skipif(not SIMULATOR, reason="as above")
@rig.no_packets
def test_split_atomics_lose_additions_of_the_cpu(pes, observer):
    """atomics=split: as with a card whose atomics are not atomic with those of CPU and SMs."""
    observer.set_faults("atomics=split")
    qp, fetched, added = pair(pes, 9)[0], 0, 0
    while fetched < 10_000 and pes[1].word(0) == fetched + added:
        for _ in range(500):
            qp.post(wqe.fetch_add, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 1)
        last = qp.post(wqe.nop, fm_ce_se=SIGNAL)
        qp.ring()
        fetched += 500
        while cqe.decode(qp.entry()).wqe_counter != last:
            mem.atomic_add_u64(pes[1].heap, 1)
            added += 1
    assert added > 0
    assert pes[1].word(0) < fetched + added
    observer.set_faults("")
    pes[1].word(0, 0)
    qp.run(wqe.fetch_add, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 1)
    assert pes[1].word(0) == 1
