"""Fence, quiet, barriers and waits, with litmus tests that fail if these do nothing."""

import functools
import operator

import numpy as np
import pytest
from numba import cuda

from conformance import library as pgas
from conformance.checks import WARP, checklist, equal, launch_together, name_of, needs_peer

ROUNDS = 30 if pgas.SIMULATOR else 2000
BARRIERS = 40 if pgas.SIMULATOR else 200
THREADS = 40 if pgas.SIMULATOR else 256

WAITABLE = [np.dtype(name) for name in ("int16", "uint16", "int32", "uint32", "int64", "uint64")]


# ------------------------------------------------------------------------------------------------- message passing: data, then flag


@pgas.jit
def message_passing(data, flag, rounds, wrong, right):
    """Each thread passes messages to the same thread of the right neighbor, in new words every round."""
    t = cuda.grid(1)
    for r in range(rounds):
        i = t * rounds + r
        pgas.p(data, i, 7 * i + 1, right)
        pgas.fence()
        pgas.p(flag, i, 1, right)
        pgas.wait_until(flag, i, pgas.EQ, 1)
        if data[i] != 7 * i + 1:
            cuda.atomic.add(wrong, 0, 1)


@checklist("Order", "message passing")
@pytest.mark.parametrize("dtype", [np.dtype("int64"), np.dtype("int16")], ids=name_of)
@pytest.mark.parametrize("threads", [1, 8])
def test_message_passing(heap, right, dtype, threads):
    data, flag = heap.zeros(threads * ROUNDS, np.int64), heap.zeros(threads * ROUNDS, dtype)
    wrong = heap.zeros(1, np.int32)
    launch_together(message_passing, 1, threads, data, flag, ROUNDS, wrong, right)
    equal(wrong, np.zeros(1, np.int32), "flags that came before their data")
    equal(flag, np.ones(threads * ROUNDS, dtype))


@pgas.jit
def message_passing_to_all(data, flag, rounds, wrong):
    """One fence orders messages to all PEs: n - 1 messages, the fence, n - 1 flags."""
    me, n = pgas.my_pe(), pgas.n_pes()
    for r in range(rounds):
        for pe in range(n):
            pgas.p(data, (me, r), 1000 * me + r, pe)
        pgas.fence()
        for pe in range(n):
            pgas.p(flag, (me, r), r + 1, pe)
        for pe in range(n):
            pgas.wait_until(flag, (pe, r), pgas.NE, 0)
            if data[pe, r] != 1000 * pe + r:
                cuda.atomic.add(wrong, 0, 1)


@checklist("Order", "message passing")
def test_one_fence_for_all_pes(heap, n):
    data, flag, wrong = heap.full((n, ROUNDS), -1, np.int32), heap.zeros((n, ROUNDS), np.int32), heap.zeros(1, np.int32)
    launch_together(message_passing_to_all, 1, 1, data, flag, ROUNDS, wrong)
    equal(wrong, np.zeros(1, np.int32))


@pgas.jit
def flags_after_fence(dest, source, counter, flag, rounds, wrong, right, left):
    """A put by the block, one by a warp, p and an atomic, all before the fence of one thread."""
    t, third = cuda.threadIdx.x, source.size // 3
    me = pgas.my_pe()
    for r in range(1, rounds + 1):
        for i in range(t, source.size, cuda.blockDim.x):
            source[i] = 100_000 * me + 1000 * r + i
        cuda.syncthreads()
        pgas.put_nbi_block(dest[:third], source[:third], right)
        if t < WARP:
            pgas.put_warp(dest[third : 2 * third], source[third : 2 * third], right)
        for i in range(2 * third + t, source.size, cuda.blockDim.x):
            pgas.p(dest, i, source[i], right)
        cuda.syncthreads()
        if t == 0:
            pgas.atomic_add(counter, 0, 5, right)
            pgas.fence()
            pgas.p(flag, 0, r, right)
            pgas.wait_until(flag, 0, pgas.GE, r)
            if counter[0] < 5 * r:
                cuda.atomic.add(wrong, 0, 1)
        cuda.syncthreads()
        for i in range(t, dest.size, cuda.blockDim.x):
            if dest[i] != 100_000 * left + 1000 * r + i:
                cuda.atomic.add(wrong, 0, 1)
        pgas.quiet()  # the source is written next
        pgas.barrier_all_block()


@checklist("Order", "fence orders puts, across queues")
@checklist("Atomics", "atomics, fence and puts in order")
def test_a_fence_covers_the_block_before_a_syncthreads(heap, right, left):
    dest, source = heap.zeros(300, np.int64), heap.zeros(300, np.int64)
    counter, flag, wrong = heap.zeros(1, np.int64), heap.zeros(1, np.int64), heap.zeros(1, np.int32)
    launch_together(flags_after_fence, 1, THREADS, dest, source, counter, flag, 8, wrong, right, left)
    equal(wrong, np.zeros(1, np.int32))


@pgas.jit
def forwarded(data, flag, rounds, wrong, right):
    """PE 0 sends data to all PEs; its flag travels from PE to PE and back. Each PE that sees the flag must see the data."""
    me, n = pgas.my_pe(), pgas.n_pes()
    for r in range(1, rounds + 1):
        if me == 0:
            for pe in range(1, n):
                pgas.p(data, r, 11 * r, pe)
            pgas.quiet()  # a fence orders operations to one PE only
            pgas.p(flag, 0, r, right)
        pgas.wait_until(flag, 0, pgas.GE, r)
        if me != 0:
            if data[r] != 11 * r:
                cuda.atomic.add(wrong, 0, 1)
            pgas.fence()
            pgas.p(flag, 0, r, right)


@checklist("Order", "message passing")
def test_messages_that_are_passed_on(heap, right):
    """Causality: after a flag is acquired and passed on, the next PE also sees the data before it."""
    data, flag, wrong = heap.zeros(ROUNDS + 1, np.int64), heap.zeros(1, np.int64), heap.zeros(1, np.int32)
    launch_together(forwarded, 1, 1, data, flag, ROUNDS, wrong, right)
    equal(wrong, np.zeros(1, np.int32))


# --------------------------------------------------------------------------------------------------------------- store buffering


@pgas.jit
def store_buffer(word, found, rounds, right):
    """Each PE stores to its right neighbor, calls quiet, and reads the word that the left one stores."""
    me = pgas.my_pe()
    for r in range(rounds):
        pgas.sync_all()
        pgas.p(word, r, 1, right)
        pgas.quiet()
        found[r] = pgas.g(word, r, me)


@checklist("Order", "store buffering")
@pytest.mark.pgas_unordered("the store and the load of a round race on purpose")
def test_store_buffering(heap, right):
    """With a quiet between store and load, at least one PE must see a store."""
    rounds = 2 * ROUNDS
    word, found = heap.zeros(rounds, np.int32), heap.zeros(rounds, np.int32)
    launch_together(store_buffer, 1, 1, word, found, rounds, right)
    pgas.barrier_all()
    seen = np.sum(pgas.allgather_object(found.copy_to_host()), axis=0)
    assert (seen > 0).all(), f"nobody saw anything in rounds {np.flatnonzero(seen == 0)}"
    equal(word, np.ones(rounds, np.int32))


@pgas.jit
def independent_reads(x, y, go, found, rounds):
    """Block 0 of PE 0 stores x, block 0 of PE 1 stores y, both on PE 0. Block 1 of PE 0 reads x, then y; block 1 of PE 1 y, then x."""
    me = pgas.my_pe()
    for r in range(rounds):
        if cuda.blockIdx.x == 0:
            pgas.sync_all()
            pgas.p(go, 0, r + 1, me)
            if me == 0:
                pgas.p(x, r, 1, 0)
            if me == 1:
                pgas.p(y, r, 1, 0)
            continue
        pgas.wait_until(go, 0, pgas.GE, r + 1)
        if me == 0:
            found[2 * r] = pgas.g(x, r, 0)
            pgas.quiet()
            found[2 * r + 1] = pgas.g(y, r, 0)
        elif me == 1:
            found[2 * r] = pgas.g(y, r, 0)
            pgas.quiet()
            found[2 * r + 1] = pgas.g(x, r, 0)


@checklist("Order", "independent reads of independent writes")
@pytest.mark.pgas_unordered("the stores and the loads of a round race on purpose")
@needs_peer
def test_independent_reads_of_independent_writes(heap):
    """Two readers with a quiet between their loads agree on the order of two stores."""
    x, y, found = heap.zeros(ROUNDS, np.int32), heap.zeros(ROUNDS, np.int32), heap.zeros(2 * ROUNDS, np.int32)
    go = heap.zeros(1, np.int64)
    launch_together(independent_reads, 2, 1, x, y, go, found, ROUNDS)
    pgas.barrier_all()
    a, b, *_ = pgas.allgather_object(found.copy_to_host().reshape(-1, 2).tolist())
    bad = [r for r in range(ROUNDS) if a[r] == [1, 0] and b[r] == [1, 0]]
    assert not bad, f"readers disagree in rounds {bad}"


# ------------------------------------------------------------------------------------------------------------------------- quiet


@pgas.jit
def nothing_outstanding(rounds, done):
    for _ in range(rounds):
        pgas.quiet()
        pgas.fence()
        for pe in range(pgas.n_pes()):
            pgas.quiet_pe(pe)
        pgas.flush()
    cuda.atomic.add(done, 0, 1)


@checklist("Order", "quiet with nothing outstanding")
def test_nothing_outstanding(heap):
    done = heap.zeros(1, np.int32)
    nothing_outstanding[2, 40](5, done)
    equal(done, np.full(1, 80, np.int32))


@pgas.jit
def quiet_in_branches(dest, source, flag, wrong, right):
    """Lanes of one warp call quiet in different branches and at different times, some never."""
    t = cuda.threadIdx.x
    if t % 4 == 0:
        pgas.put_nbi(dest[3 * t : 3 * t + 3], source[3 * t : 3 * t + 3], right)
        pgas.quiet()
    elif t % 4 == 1:
        for i in range(3 * t, 3 * t + 3):
            pgas.p(dest, i, source[i], right)
            if i % 2 == 0:
                pgas.quiet()
        pgas.quiet()
    elif t % 4 == 2:
        pgas.quiet()
        pgas.put(dest[3 * t : 3 * t + 3], source[3 * t : 3 * t + 3], right)
        pgas.fence()
    else:
        return
    pgas.p(flag, t, 1, right)
    pgas.wait_until(flag, t, pgas.EQ, 1)
    for i in range(3 * t, 3 * t + 3):
        if dest[i] != 3000 + i:
            cuda.atomic.add(wrong, 0, 1)


@checklist("Order", "quiet in divergent warps")
def test_quiet_in_divergent_warps(heap, right):
    threads = 40
    dest, source = heap.zeros(3 * threads, np.int32), heap.array(3000 + np.arange(3 * threads, dtype=np.int32))
    flag, wrong = heap.zeros(threads, np.int32), heap.zeros(1, np.int32)
    launch_together(quiet_in_branches, 1, threads, dest, source, flag, wrong, right)
    equal(wrong, np.zeros(1, np.int32))
    equal(flag, (np.arange(threads) % 4 != 3).astype(np.int32))


@functools.cache
def quiet_of_one_thread(of_a_pe):
    """Return a kernel: a block puts and synchronizes, then one quiet completes all puts, and a flag without a fence arrives last.

    If of_a_pe, it is quiet_pe of the right neighbor; puts to the left one are not waited for.
    """

    @pgas.jit
    def kernel(dest, source, counter, wrong, right, left):
        t = cuda.threadIdx.x
        pgas.put_nbi(dest[5 * t : 5 * t + 5], source[5 * t : 5 * t + 5], right)
        if of_a_pe:
            pgas.p(dest, source.size + t, 7, left)
        cuda.syncthreads()
        if t == 0:
            if of_a_pe:
                pgas.quiet_pe(right)
            else:
                pgas.quiet()
            pgas.atomic_add(counter, 0, 1, right)
            pgas.wait_until(counter, 0, pgas.EQ, 1)
        cuda.syncthreads()
        for i in range(5 * t, 5 * t + 5):
            if dest[i] != 500 + i:
                cuda.atomic.add(wrong, 0, 1)

    return kernel


@checklist("Order", "quiet completes what happened before it")
@pytest.mark.parametrize("of_a_pe", [False, True], ids=["quiet", "quiet_pe"])
def test_a_quiet_completes_what_happened_before(heap, right, left, of_a_pe):
    dest, source = heap.zeros(6 * THREADS, np.int16), heap.array(500 + np.arange(5 * THREADS, dtype=np.int16))
    counter, wrong = heap.zeros(1, np.int32), heap.zeros(1, np.int32)
    launch_together(quiet_of_one_thread(of_a_pe), 1, THREADS, dest, source, counter, wrong, right, left)
    equal(wrong, np.zeros(1, np.int32))
    equal(dest, np.concatenate([500 + np.arange(5 * THREADS), np.full(THREADS, 7 if of_a_pe else 0)]).astype(np.int16))


@pgas.jit
def quiet_pe_on_every_queue(dest, source, numbers, wrong):
    """Put to every PE on all queue pairs, some of which stay unused, then call quiet_pe for one PE after the other."""
    n, t = pgas.n_pes(), cuda.threadIdx.x
    for pe in range(n):
        if t < numbers:
            pgas.put_nbi(dest[(pgas.my_pe(), t)], source[t], pe, None, t + 1)
    cuda.syncthreads()
    if t == 0:
        for pe in range(n):
            pgas.quiet_pe(pe)
            for i in range(numbers):
                if pgas.g(dest, (pgas.my_pe(), i, 2), pe) != 100 * i + 2:
                    cuda.atomic.add(wrong, 0, 1)


@checklist("Order", "quiet completes what happened before it")
@pytest.mark.parametrize("numbers", [0, 1, 2])
def test_quiet_pe_of_every_queue_pair(heap, n, numbers):
    source = np.arange(3, dtype=np.int32) + 100 * np.arange(2, dtype=np.int32)[:, None]
    dest, wrong = heap.zeros((n, 2, 3), np.int32), heap.zeros(1, np.int32)
    quiet_pe_on_every_queue[1, 40](dest, heap.array(source), numbers, wrong)
    equal(wrong, np.zeros(1, np.int32))
    sent = np.where(np.arange(2)[:, None] < numbers, source, 0).astype(np.int32)
    equal(dest, np.broadcast_to(sent, (n, 2, 3)))


# ---------------------------------------------------------------------------------------------------------------------- barriers
#
# Round r puts r into box r % 2 of the right neighbor, calls the barrier, and reads. A PE that is one barrier ahead writes the other box.


#: By name: the number of threads that call it together.
BARRIER_FORMS = {
    "barrier_all": 1,
    "barrier_all_warp": WARP,
    "barrier_all_block": 45,
    "sync_all": 1,
    "sync_all_warp": WARP,
    "sync_all_block": 45,
}


@functools.cache
def meeting(name):
    """Return a kernel that puts and meets in every round; a sync comes after a quiet."""
    call, callers, quiet = getattr(pgas, name), BARRIER_FORMS[name], name.startswith("sync")

    @pgas.jit
    def meets(box, rounds, wrong, right):
        t = cuda.threadIdx.x
        if t < callers:
            for r in range(1, rounds + 1):
                pgas.p(box, (r % 2, t), r, right)
                if quiet:
                    pgas.quiet()
                call()
                if box[r % 2, t] != r:
                    cuda.atomic.add(wrong, 0, 1)

    return meets


@checklist("Collectives", "a barrier completes puts, a sync does not", "barriers without end")
@pytest.mark.parametrize("name", BARRIER_FORMS)
def test_barriers_in_kernels(heap, right, name):
    """Rounds: barrier_all completes the round's puts; sync_all comes after a quiet, and no PE leaves it early."""
    kernel, threads = meeting(name), BARRIER_FORMS[name]
    rounds = BARRIERS if threads == 1 or not pgas.SIMULATOR else BARRIERS // 2
    box, wrong = heap.zeros((2, 45), np.int64), heap.zeros(1, np.int32)
    launch_together(kernel, 1, 45 if threads != 1 else 3, box, rounds, wrong, right)
    equal(wrong, np.zeros(1, np.int32))
    expected = np.zeros((2, 45), np.int64)
    expected[rounds % 2, :threads], expected[(rounds - 1) % 2, :threads] = rounds, rounds - 1
    equal(box, expected)


@pgas.jit
def mixed_barriers(box, rounds, wrong, right):
    """All forms count as the same barrier: in any mixture and by different threads, one at a time."""
    t = cuda.threadIdx.x
    for r in range(1, rounds + 1):
        if t == r % cuda.blockDim.x:
            pgas.p(box, r % 2, r, right)
        cuda.syncthreads()
        if r % 5 == 0:
            if t == 7:
                pgas.barrier_all()
        elif r % 5 == 1:
            pgas.barrier_all_block()
        elif r % 5 == 2:
            if t // WARP == 1:
                pgas.barrier_all_warp()
        elif r % 5 == 3:
            if t == 0:
                pgas.quiet()
                pgas.sync_all()
        else:
            pgas.quiet()
            pgas.sync_all_block()
        cuda.syncthreads()
        if t == 0 and box[r % 2] != r:
            cuda.atomic.add(wrong, 0, 1)


@checklist("Collectives", "collectives of mixed scopes")
def test_mixed_barriers(heap, right):
    box, wrong = heap.zeros(2, np.int64), heap.zeros(1, np.int32)
    launch_together(mixed_barriers, 1, 2 * WARP, box, 40, wrong, right)
    equal(wrong, np.zeros(1, np.int32))


@pgas.jit
def late(box, sum_of_boxes, right, spin):
    """PEs arrive at the barrier at different times; after it, every PE has the puts of all."""
    x = 1
    for _ in range(spin):
        x = (x * 1103515245 + 12345) % 2147483648
    n, me = pgas.n_pes(), pgas.my_pe()
    for pe in range(n):
        pgas.p(box, me, me + 1 + x // 2147483648, pe)
    pgas.barrier_all()
    for pe in range(n):
        sum_of_boxes[0] += box[pe]


@checklist("Collectives", "a barrier completes puts, a sync does not")
def test_barrier_waits_for_the_last(heap, me, n, right):
    for last in range(n):
        box, total = heap.zeros(n, np.int64), heap.zeros(1, np.int64)
        launch_together(late, 1, 1, box, total, right, 20_000 if me == last else 0)
        equal(total, np.full(1, n * (n + 1) // 2))


@pgas.jit
def p_each(dest, value, pe):
    pgas.p(dest, cuda.grid(1), value, pe)


@checklist("Collectives", "a barrier completes puts, a sync does not")
def test_host_barrier_completes_kernels(heap, me, n):
    """barrier_all on the host waits for each PE's kernels, so all their puts have arrived after it."""
    dest = heap.zeros((20, 64), np.int32)
    for i in range(20):
        p_each[2, 32](dest[i], 100 * i + me, (me + i) % n)
    equal(dest, np.array([[100 * i + (me - i) % n] * 64 for i in range(20)], np.int32))


@checklist("Collectives", "a barrier completes puts, a sync does not", "barriers without end")
def test_host_barriers(heap):
    for _ in range(30):
        pgas.barrier_all()
    pgas.synchronize()


# -------------------------------------------------------------------------------------------------------------------------- waits


@pgas.jit
def wait_for_change(ivar, cmp, awaited, sent, seen, right):
    """The threads of the second warp wait while thread 0 is still in a barrier with the other PEs."""
    if cuda.threadIdx.x == 0:
        pgas.sync_all()
        pgas.p(ivar, (1, 2), sent, right)
    pgas.wait_until(ivar, (1, 2), cmp, awaited)
    seen[cuda.threadIdx.x] = ivar[1, 2]


@checklist("Wait and test", "six comparisons of every type")
@pytest.mark.parametrize("dtype", WAITABLE, ids=name_of)
def test_every_comparison(heap, right, dtype):
    """Signed numbers around zero, unsigned ones around the middle of their range."""
    middle = 0 if dtype.kind == "i" else int(np.iinfo(dtype).max) // 2 + 1
    cases = {"EQ": (5, -1, -1), "NE": (-1, -1, 1), "GT": (-1, 0, 1), "GE": (-2, 0, 0), "LT": (1, 0, -1), "LE": (2, -1, -1)}
    ivar, seen = heap.zeros((len(cases), 2, 4), dtype), heap.zeros((len(cases), 40), dtype)
    expected = np.zeros((len(cases), 2, 4), dtype)
    for i, (start, _, _) in enumerate(cases.values()):
        expected[i] = middle + start
    ivar.copy_to_device(expected)
    pgas.barrier_all()
    for i, (name, values) in enumerate(cases.items()):
        start, awaited, sent = (middle + v for v in values)
        compare = getattr(operator, name.lower())
        assert compare(sent, awaited)
        assert not compare(start, awaited)
        launch_together(wait_for_change, 1, 40, ivar[i], int(getattr(pgas, name)), dtype.type(awaited), dtype.type(sent), seen[i], right)
        expected[i, 1, 2] = sent
    equal(ivar, expected)
    equal(seen, np.repeat(expected[:, 1, 2:3], 40, axis=1))


@pgas.jit
def wait_for_sum(ivar, total, pe):
    pgas.atomic_add(ivar, 1, 1, pe)
    pgas.wait_until(ivar, 1, pgas.GE, total)


@checklist("Order", "waits acquire what a NIC wrote")
def test_waits_see_atomics_of_all_pes(heap, right):
    """All threads of all PEs add to a word of their right neighbor, then wait for the sum in their own."""
    ivar = heap.zeros(3, np.int32)
    launch_together(wait_for_sum, 2, 40, ivar, 80, right)
    equal(ivar, np.array([0, 80, 0], np.int32))
