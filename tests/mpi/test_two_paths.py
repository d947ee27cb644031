"""Jobs with two paths: which operations are stores and which go through the NIC; fence and quiet cover both.

Run with PGAS_TRANSPORT=p2p,ibgda or p2p,ibrc. PGAS_PES_PER_NODE says which PEs are near; without it all are.
"""

import functools

import numpy as np
import pytest
from conformance.checks import TRANSPORT, WARP, equal, everywhere, kernel_of, launch_together
from numba import cuda

import pgas
from mpi.checks import own_queue_pairs
from pgas.base import config
from pgas.job import runtime
from pgas.kernels import window

pytestmark = pytest.mark.skipif("," not in TRANSPORT, reason="capability missing: a job with two paths (PGAS_TRANSPORT=p2p,ibgda)")

N_ELEMS = 8


def machine():
    """Return the PEs of this PE's machine, by PGAS_PES_PER_NODE."""
    sizes = config.read("PGAS_PES_PER_NODE") or (pgas.n_pes(),)
    sizes = sizes if len(sizes) > 1 else sizes * (pgas.n_pes() // sizes[0])
    first = 0
    for size in sizes:
        if pgas.my_pe() < first + size:
            return range(first, first + size)
        first += size
    raise AssertionError(sizes)


def posted():
    """Return the number of WQEs that the card has executed for this PE, by target PE."""
    nic = runtime.current().nic
    number = {qp.qpn: i for i, qp in enumerate(nic.qps)}
    counted = [0] * pgas.n_pes()
    for qp in own_queue_pairs():
        counted[number[qp["qpn"]] // (len(nic.qps) // pgas.n_pes())] += qp["wqes"]
    return counted


# Who is near ------------------------------------------------------------------------------------------------------------------------


def test_near_pes_are_those_of_the_machine(heap):
    job, me = runtime.current(), pgas.my_pe()
    assert list(job.near_pes) == list(machine())
    assert me in job.near_pes
    assert pgas.TEAM_SHARED.pes == pgas.TEAM_NODE.pes == tuple(machine())
    assert {pe for pe in range(pgas.n_pes()) if job.paths.between(me, pe) == "p2p"} == set(machine())


@pytest.mark.skipif(not pgas.SIMULATOR, reason="capability missing: /proc/self/maps has no GPU's memory")
def test_memory_of_far_pes_is_not_mapped(heap, me):
    """A store to it would fault; of near PEs only the heap is mapped, not their queues."""
    mapped = set()
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            mapped |= {
                (pe, start - window.slot(pe)) for pe in range(pgas.n_pes()) if window.slot(pe) <= start and end <= window.slot(pe + 1)
            }
    assert {pe for pe, _ in mapped} == set(machine())
    assert not [(pe, offset) for pe, offset in mapped if pe != me and offset >= window.QUEUE_OFFSET]


def test_ptr_gives_what_is_mapped(heap):
    array = heap.full(N_ELEMS, pgas.my_pe(), np.int64)
    pgas.barrier_all()
    for pe in range(pgas.n_pes()):
        there = pgas.ptr(array, pe)
        everywhere(None if (there is not None) == (pe in machine()) else f"ptr() of PE {pe} is {there}")
        if there is not None:
            assert (there.copy_to_host() == pe).all()


@pgas.jit
def store_by_ptr(array, first, end, me):
    for pe in range(first, end):
        pgas.ptr(array, pe)[me] = me + 1


def test_ptr_in_kernels(heap):
    n, near = pgas.n_pes(), machine()
    array = heap.zeros(n, np.int64)
    store_by_ptr[1, 1](array, near.start, near.stop, pgas.my_pe())
    equal(array, np.array([pe + 1 if pe in near else 0 for pe in range(n)]))


# Who moves the data -----------------------------------------------------------------------------------------------------------------


def launched(line, threads=1):
    """Return ``call(a, b, sig, pe)`` that launches a kernel of this line."""
    kernel = kernel_of("a, b, sig, pe", line)
    return lambda *operands: kernel[1, threads](*operands)


def on_host(function, *arguments):
    """Return ``call(a, b, sig, pe)`` of a function on the host. arguments: those before pe; "a", "b" and "sig" stand for the operands."""

    def call(a, b, sig, pe):
        operands = {"a": a, "b": b, "sig": sig}
        function(*(operands[given] if isinstance(given, str) else given for given in arguments), pe)

    return call


STORES = {
    "put": launched("pgas.put(a, b, pe)"),
    "put_nbi_block": launched("pgas.put_nbi_block(a, b, pe); pgas.quiet_pe(pe)", 2 * WARP),
    "get_warp": launched("pgas.get_warp(a, b, pe)", WARP),
    "p": launched("pgas.p(a, 1, 5, pe)"),
    "g": launched("a[2] = pgas.g(b, 1, pe)"),
    "iput": launched("pgas.iput(a, b, 2, 1, pe)"),
    "iget": launched("pgas.iget(a, b, 1, 2, pe)"),
    "put_signal that sets": launched("pgas.put_signal(a, b, sig, 0, 7, pgas.SIGNAL_SET, pe)"),
    "signal that sets": launched("pgas.signal_op(sig, 0, 7, pgas.SIGNAL_SET, pe)"),
    "put on the host": on_host(pgas.put, "a", "b"),
    "p on the host": on_host(pgas.p, "a", 1, 5),
    "put_signal that sets on the host": on_host(pgas.put_signal, "a", "b", "sig", 0, 7, pgas.SIGNAL_SET),
    "put on a stream": on_host(functools.partial(pgas.put, stream=0), "a", "b"),
}

ATOMICS = {
    "put_signal that adds": launched("pgas.put_signal_block(a, b, sig, 0, 7, pgas.SIGNAL_ADD, pe)", WARP),
    "signal that adds": launched("pgas.signal_op(sig, 0, 7, pgas.SIGNAL_ADD, pe)"),
    "atomic_add": launched("pgas.atomic_add(sig, 0, 7, pe)"),
    "atomic_fetch": launched("sig[1] = pgas.atomic_fetch(sig, 0, pe)"),
    "atomic_add of floats": launched("pgas.atomic_add(a.view(np.float64), 0, 1.0, pe)"),
    "put_signal that adds on the host": on_host(pgas.put_signal, "a", "b", "sig", 0, 7, pgas.SIGNAL_ADD),
    "atomic_add on the host": on_host(pgas.atomic_add, "sig", 0, 7),
}


@pytest.mark.parametrize("name", [*STORES, *ATOMICS])
def test_the_nic_moves_what_stores_do_not(heap, name):
    """To far PEs everything; to near PEs and to the PE itself, atomics and operations whose signal adds."""
    perform = {**STORES, **ATOMICS}[name]
    a, b, sig = heap.zeros(N_ELEMS, np.int64), heap.full(N_ELEMS, 3, np.int64), heap.zeros(2, np.uint64)
    by_nic = name in ATOMICS and config.read("PGAS_AMO") == "nic"
    faults = []
    for pe in range(pgas.n_pes()):
        before = posted()
        perform(a, b, sig, pe)
        runtime.current().complete("this test")
        used = [other for other, (was, now) in enumerate(zip(before, posted(), strict=True)) if now > was]
        if used != ([pe] if by_nic or pe not in machine() else []):
            faults.append(f"{name} to PE {pe} made WQEs to PEs {used}")
    everywhere("; ".join(faults))


def test_unregistered_memory_reaches_near_pes_only(heap):
    dest = heap.zeros(N_ELEMS, np.int64)
    source = cuda.to_device(np.full(N_ELEMS, pgas.my_pe() + 1))
    refused = "source is neither on the symmetric heap nor registered"
    for pe in range(pgas.n_pes()):
        if pe in machine():
            pgas.put(dest, source, pe)
        else:
            with pytest.raises(ValueError, match=refused):
                pgas.put(dest, source, pe)
    assert (dest.copy_to_host() != 0).all()
    signal, me = heap.zeros(1, np.uint64), pgas.my_pe()
    pgas.put_signal(dest, source, signal, 0, 1, pgas.SIGNAL_SET, me)
    if config.read("PGAS_AMO") == "peer":
        pgas.put_signal(dest, source, signal, 0, 1, pgas.SIGNAL_ADD, me)
    else:  # the NIC adds to the signal, so it moves the data, too
        with pytest.raises(ValueError, match=refused):
            pgas.put_signal(dest, source, signal, 0, 1, pgas.SIGNAL_ADD, me)


# Order ------------------------------------------------------------------------------------------------------------------------------

ROUNDS = 6


@pgas.jit
def data_then_flags(data, source, flags, wrong, quiets, me, n):
    """Every PE sends data to all PEs, then a flag to all: by SIGNAL_SET in even rounds, by SIGNAL_ADD in odd ones."""
    t, chunk = cuda.threadIdx.x, source.size
    for r in range(ROUNDS):
        source_of_round = source[:]
        for i in range(t, chunk, cuda.blockDim.x):
            source_of_round[i] = 1000 * r + 10 * me + i
        cuda.syncthreads()
        for pe in range(n):
            first = (r * n + me) * chunk
            pgas.put_nbi_block(data[first : first + chunk], source, pe)
        cuda.syncthreads()
        if t == 0:
            if quiets:
                pgas.quiet()
            else:
                pgas.fence()
            for pe in range(n):
                pgas.signal_op(flags, r * n + me, 1, r % 2, pe)
        for pe in range(t, n, cuda.blockDim.x):
            pgas.signal_wait_until(flags, r * n + pe, pgas.EQ, 1)
        cuda.syncthreads()
        for at in range(t, n * chunk, cuda.blockDim.x):
            if data[r * n * chunk + at] != 1000 * r + 10 * (at // chunk) + at % chunk:
                cuda.atomic.add(wrong, 0, 1)
        if t == 0:
            pgas.flush()
        cuda.syncthreads()


@pytest.mark.parametrize("quiets", [False, True])
def test_fence_and_quiet_wait_for_both_paths(heap, quiets):
    me, n, chunk = pgas.my_pe(), pgas.n_pes(), 40
    data, source = heap.zeros(ROUNDS * n * chunk, np.int64), heap.zeros(chunk, np.int64)
    flags, wrong = heap.zeros(ROUNDS * n, np.uint64), heap.zeros(1, np.int64)
    launch_together(data_then_flags, 1, WARP, data, source, flags, wrong, quiets, me, n)
    equal(wrong, np.zeros(1, np.int64))


@pgas.jit
def add_to(word, first, end, rounds):
    for _ in range(rounds):
        for pe in range(first, end):
            pgas.atomic_add(word, 0, 1, pe)
            pgas.signal_op(word, 1, 1, pgas.SIGNAL_ADD, pe)
            pgas.atomic_fetch_inc(word, 2, pe)


@pgas.jit
def _puts_and_barriers(dest, source, pe, n):
    for i in range(n):
        source[0] = i + 1
        pgas.put_nbi(dest[i : i + 1], source[:1], pe)
        pgas.barrier(pgas.TEAM_SHARED)


def test_a_barrier_of_near_pes_completes_far_puts(heap):
    """The source is written again after each barrier; the NIC must have read it."""
    n, npes = 200, pgas.n_pes()
    machines = pgas.allgather_object(tuple(machine()))
    to = [next((pe for pe in range(npes) if pe not in near), -1) for near in machines]  # the first far PE of each
    dest, source, me = heap.zeros((npes, n), np.int64), heap.zeros(1, np.int64), pgas.my_pe()
    if to[me] >= 0:
        _puts_and_barriers[1, 1](dest[me], source, to[me], n)
    expected = np.zeros((npes, n), np.int64)
    expected[[pe for pe in range(npes) if to[pe] == me]] = np.arange(1, n + 1)
    equal(dest, expected)


def test_atomics_from_all_pes_meet(heap):
    """With PGAS_AMO=peer from PEs of one machine: atomics of SMs and of the NIC are not atomic with each other."""
    pes = machine() if config.read("PGAS_AMO") == "peer" else range(pgas.n_pes())
    word, rounds = heap.zeros(3, np.uint64), 5
    add_to[1, WARP](word, pes.start, pes.stop, rounds)
    equal(word, np.full(3, WARP * len(pes) * rounds, np.uint64))
