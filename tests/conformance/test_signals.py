"""Signals: whoever sees a signal sees its data; signals add up; waits return the value that satisfied them."""

import functools
import operator

import numpy as np
import pytest
from numba import cuda

from conformance import library as pgas
from conformance.checks import WARP, checklist, equal, everywhere, launch_together, needs_peer

NELEMS = 900 if pgas.SIMULATOR else 1 << 20
EPOCHS = 4 if pgas.SIMULATOR else 200
THREADS = 64 if pgas.SIMULATOR else 512

OPS = {"set": pgas.SIGNAL_SET, "add": pgas.SIGNAL_ADD}


@cuda.jit(device=True)
def element(pe, epoch, i):
    """Return the element i that PE pe sends in an epoch."""
    return pe * 1_000_003 + epoch * 7919 + i


@cuda.jit(device=True)
def wrong_elements(dest, pe, epoch, first, step):
    """Return how many of elements first, first + step, ... differ from what PE pe sent."""
    wrong = 0
    for i in range(first, dest.size, step):
        if dest[i] != element(pe, epoch, i):
            wrong += 1
    return wrong


# One block sends to the right and checks the data from the left. sig[0] announces data, sig[1] that the right neighbor has read it.


@cuda.jit(device=True)
def fill_source(source, epoch):
    me = pgas.my_pe()
    for i in range(cuda.threadIdx.x, source.size, cuda.blockDim.x):
        source[i] = element(me, epoch, i)
    cuda.syncthreads()


@cuda.jit(device=True)
def check_and_acknowledge(dest, sig, epoch, wrong, left):
    if cuda.threadIdx.x == 0:
        pgas.signal_wait_until(sig, 0, pgas.EQ, epoch)
    cuda.syncthreads()
    bad = wrong_elements(dest, left, epoch, cuda.threadIdx.x, cuda.blockDim.x)
    if bad != 0:
        cuda.atomic.add(wrong, 0, bad)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        pgas.signal_op(sig, 1, 1, pgas.SIGNAL_ADD, left)
        pgas.signal_wait_until(sig, 1, pgas.GE, epoch)
    cuda.syncthreads()


#: By name: the number of threads that call it together; 1024: all of a block.
FORMS = {
    "put_signal": 1, "put_signal_warp": WARP, "put_signal_block": 1024,
    "put_signal_nbi": 1, "put_signal_nbi_warp": WARP, "put_signal_nbi_block": 1024,
}  # fmt: skip


@functools.cache
def sending(form):
    """Return a kernel that sends and checks data in every epoch."""
    call, callers, nbi = getattr(pgas, form), FORMS[form], "nbi" in form

    @pgas.jit
    def sends(dest, source, sig, epochs, adds, wrong, right, left):
        for epoch in range(1, epochs + 1):
            fill_source(source, epoch)
            if cuda.threadIdx.x < callers:
                if adds:
                    call(dest, source, sig, 0, 1, pgas.SIGNAL_ADD, right)
                else:
                    call(dest, source, sig, 0, epoch, pgas.SIGNAL_SET, right)
            check_and_acknowledge(dest, sig, epoch, wrong, left)
            if nbi:
                pgas.quiet()
                cuda.syncthreads()

    return sends


@checklist("Signals", "data is there when its signal is seen", "large payloads are whole", "set and add", "epochs with rising values")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", OPS)
def test_data_is_there_when_the_signal_is_seen(heap, right, left, form, op):
    """In many epochs; the data of each is read completely before the next one is sent."""
    alone = form in ("put_signal", "put_signal_nbi")  # one thread, which takes milliseconds for a MiB on a GPU
    nelems = NELEMS // 64 if alone and not pgas.SIMULATOR else NELEMS
    dest, source = heap.zeros(nelems, np.int64), heap.zeros(nelems, np.int64)
    sig, wrong = heap.zeros(2, np.uint64), heap.zeros(1, np.int32)
    launch_together(sending(form), 1, THREADS, dest, source, sig, EPOCHS, op == "add", wrong, right, left)
    equal(wrong, np.zeros(1, np.int32), "elements that came after their signal")
    equal(sig, np.full(2, EPOCHS, np.uint64))
    equal(dest, left * 1_000_003 + EPOCHS * 7919 + np.arange(nelems))


@checklist("Signals", "signal to itself")
@pytest.mark.parametrize("form", FORMS)
def test_signal_to_itself(heap, me, form):
    dest, source = heap.zeros(50, np.int64), heap.zeros(50, np.int64)
    sig, wrong = heap.zeros(2, np.uint64), heap.zeros(1, np.int32)
    launch_together(sending(form), 1, 40, dest, source, sig, 3, False, wrong, me, me)
    equal(wrong, np.zeros(1, np.int32))
    equal(dest, me * 1_000_003 + 3 * 7919 + np.arange(50))


@pgas.jit
def put_signal_of_odd_bytes(dest, source, sig, size, pe, at):
    pgas.put_signal_block(dest[at : at + size], source[1 : 1 + size], sig, (1, 2), size + 1, pgas.SIGNAL_SET, pe)
    if cuda.threadIdx.x == 0:
        pgas.signal_wait_until(sig, (1, 2), pgas.EQ, size + 1)
    cuda.syncthreads()


@checklist("Signals", "data is there when its signal is seen")
@pytest.mark.parametrize("size", [0, 1, 37, 256])
def test_payloads_of_bytes_and_signals_in_two_dimensions(heap, me, right, left, size):
    dest, source = heap.full(300, 255, np.uint8), heap.array((np.arange(300) + me).astype(np.uint8))
    sig = heap.full((2, 4), 99, np.uint64)
    launch_together(put_signal_of_odd_bytes, 1, 45, dest, source, sig, size, right, 3)
    expected = np.full(300, 255, np.uint8)
    expected[3 : 3 + size] = (np.arange(1, 1 + size) + left).astype(np.uint8)
    equal(dest, expected)
    words = np.full((2, 4), 99, np.uint64)
    words[1, 2] = size + 1
    equal(sig, words)


# ------------------------------------------------------------------------------------------------------------------ many signals


@pgas.jit
def signal_from_everywhere(sig, repeats, total, seen):
    """All threads of all PEs signal to all PEs; one thread waits for the sum."""
    n = pgas.n_pes()
    for _ in range(repeats):
        for pe in range(n):
            pgas.signal_op(sig, 1, 3, pgas.SIGNAL_ADD, pe)
    if cuda.grid(1) == 0:
        seen[0] = pgas.signal_wait_until(sig, 1, pgas.GE, total)


@checklist("Signals", "many signals to one word")
def test_many_signals_add_up(heap, n):
    blocks, threads, repeats = (2, 40, 2) if pgas.SIMULATOR else (32, 256, 8)
    total = 3 * n * blocks * threads * repeats
    sig, seen = heap.zeros(3, np.uint64), heap.zeros(1, np.uint64)
    launch_together(signal_from_everywhere, blocks, threads, sig, repeats, total, seen)
    equal(sig, np.array([0, total, 0], np.uint64))
    equal(seen, np.array([total], np.uint64))


@pgas.jit
def put_signal_from_every_thread(dest, source, sig, chunk, total, wrong, right, left):
    """Each thread sends a piece and adds 1; when the sum is complete, all pieces have arrived."""
    i = cuda.grid(1)
    me = pgas.my_pe()
    for j in range(i * chunk, (i + 1) * chunk):
        source[j] = element(me, 1, j)
    pgas.put_signal(dest[i * chunk : (i + 1) * chunk], source[i * chunk : (i + 1) * chunk], sig, 0, 1, pgas.SIGNAL_ADD, right)
    pgas.signal_wait_until(sig, 0, pgas.EQ, total)
    bad = wrong_elements(dest, left, 1, i, cuda.gridsize(1))
    if bad != 0:
        cuda.atomic.add(wrong, 0, bad)


@checklist("Signals", "many signals to one word", "data is there when its signal is seen")
def test_data_of_many_senders(heap, right, left):
    blocks, threads, chunk = (2, 24, 5) if pgas.SIMULATOR else (16, 128, 33)
    size = blocks * threads * chunk
    dest, source, sig, wrong = heap.zeros(size, np.int64), heap.zeros(size, np.int64), heap.zeros(1, np.uint64), heap.zeros(1, np.int32)
    launch_together(put_signal_from_every_thread, blocks, threads, dest, source, sig, chunk, blocks * threads, wrong, right, left)
    equal(wrong, np.zeros(1, np.int32))
    equal(sig, np.array([blocks * threads], np.uint64))


@pgas.jit
def ping_pong(sig, rounds, seen, first, peer):
    """A signal goes back and forth; its value rises by one at each turn."""
    value = 1 if first else 0
    for i in range(rounds):
        if first:
            pgas.signal_op(sig, 0, 2 * i + 1, pgas.SIGNAL_SET, peer)
            value = pgas.signal_wait_until(sig, 0, pgas.EQ, 2 * i + 2)
        else:
            value = pgas.signal_wait_until(sig, 0, pgas.EQ, 2 * i + 1)
            pgas.signal_op(sig, 0, 2 * i + 2, pgas.SIGNAL_SET, peer)
        seen[i] = value


@checklist("Signals", "set and add", "waits return what satisfies them")
@needs_peer
def test_ping_pong(heap, me):
    rounds = 100 if pgas.SIMULATOR else 2000
    sig, seen = heap.zeros(1, np.uint64), heap.zeros(rounds, np.uint64)
    launch_together(ping_pong, 1, 1, sig, rounds if me < 2 else 0, seen, me == 0, 1 - me if me < 2 else 0)
    turns = 2 * np.arange(rounds, dtype=np.uint64)
    equal(seen, turns + np.uint64(2 - me) if me < 2 else np.zeros(rounds, np.uint64))


# ------------------------------------------------------------------------------------------------------------------------ waits


@pgas.jit
def wait_for_signal(sig, cmp, awaited, sent, seen, right):
    """Thread 0 sends only after a barrier, so the threads of the other warp have to wait."""
    if cuda.threadIdx.x == 0:
        pgas.sync_all()
        pgas.signal_op(sig, 0, sent[0], pgas.SIGNAL_SET, right)
    seen[cuda.threadIdx.x] = pgas.signal_wait_until(sig, 0, cmp, awaited[0])


BEYOND = (1 << 63) + 5  # comparisons are unsigned
COMPARISONS = [
    ("EQ", 3, 17, 17),
    ("NE", 3, 3, 4),
    ("GT", 3, 16, 17),
    ("GE", 3, 17, 17),
    ("LT", 17, 17, 16),
    ("LE", 18, 17, 17),
    ("GT", 3, BEYOND, BEYOND + 1),
    ("GE", 3, BEYOND, BEYOND),
    ("LT", BEYOND, BEYOND, 1),
    ("LE", BEYOND + 1, 17, 17),
    ("EQ", 3, 2**64 - 1, 2**64 - 1),
]


@checklist("Signals", "waits return what satisfies them")
@pytest.mark.parametrize(("comparison", "start", "awaited", "sent"), COMPARISONS, ids=lambda v: str(v))
def test_waits_return_the_value_that_satisfied_them(heap, right, comparison, start, awaited, sent):
    compare = getattr(operator, comparison.lower())
    assert compare(sent, awaited)
    assert not compare(start, awaited)
    sig, seen = heap.full(1, start, np.uint64), heap.zeros(40, np.uint64)
    words = heap.array(np.array([awaited, sent], np.uint64))
    launch_together(wait_for_signal, 1, 40, sig, int(getattr(pgas, comparison)), words[:1], words[1:], seen, right)
    equal(seen, np.full(40, sent, np.uint64))


@pgas.jit
def wait_when_satisfied(sig, seen):
    seen[0] = pgas.signal_wait_until(sig, 0, pgas.EQ, 7)
    seen[1] = pgas.signal_wait_until(sig, 0, pgas.NE, 8)
    seen[2] = pgas.signal_wait_until(sig, 0, pgas.GT, 6)
    seen[3] = pgas.signal_wait_until(sig, 0, pgas.GE, 7)
    seen[4] = pgas.signal_wait_until(sig, 0, pgas.LT, 8)
    seen[5] = pgas.signal_wait_until(sig, 0, pgas.LE, 7)


@checklist("Signals", "waits return what satisfies them")
def test_waits_that_are_satisfied_return_at_once(heap):
    sig, seen = heap.full(1, 7, np.uint64), heap.zeros(6, np.uint64)
    wait_when_satisfied[1, 1](sig, seen)
    equal(seen, np.full(6, 7, np.uint64))


@pgas.jit
def count_up(sig, seen, rounds, right):
    """Signals with rising values: a wait for >= may return a later value, never an earlier one."""
    if cuda.threadIdx.x == 0:
        for i in range(1, rounds + 1):
            pgas.signal_op(sig, 0, i, pgas.SIGNAL_SET, right)
    else:
        for i in range(1, rounds + 1):
            seen[i - 1] = pgas.signal_wait_until(sig, 0, pgas.GE, i)


@checklist("Signals", "epochs with rising values")
def test_a_wait_may_return_a_later_value_but_never_an_earlier_one(heap, right):
    rounds = 50
    sig, seen = heap.zeros(1, np.uint64), heap.zeros(rounds, np.uint64)
    launch_together(count_up, 1, 2, sig, seen, rounds, right)
    pgas.barrier_all()
    found = seen.copy_to_host()
    good = (found >= np.arange(1, rounds + 1)).all() and (np.diff(found.astype(np.int64)) >= 0).all() and found[-1] == rounds
    everywhere(None if good else str(found))
