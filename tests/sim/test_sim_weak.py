"""Weak mode: programs without a fence fail for some seed, with it for none."""

import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")

import ctypes
import mmap

import numpy as np
import pytest
from numba import cuda

from pgas.base.errors import PgasError
from pgas.sim import engine, mem, memory, memory_model, set_memory_model
from pgas.sim.weak import WeakMemory

engine.install()

SEEDS = range(50)
NBYTES = 1 << 16


class Slots:
    """Two slots in one process: this PE's own, and a remote one, read without the model, as by the other PE."""

    def __init__(self) -> None:
        self._maps = mmap.mmap(-1, NBYTES), mmap.mmap(-1, NBYTES)
        self.own, self.remote = (np.frombuffer(m, np.uint64) for m in self._maps)
        self.own_lo, self.remote_lo = self.own.ctypes.data, self.remote.ctypes.data

    def use(self, seed: int) -> None:
        for words in (self.own, self.remote):
            words[:] = 0
        window = min(self.own_lo, self.remote_lo), max(self.own_lo, self.remote_lo) + NBYTES
        set_memory_model(WeakMemory(seed, self.own_lo, self.own_lo + NBYTES, window))


@pytest.fixture
def slots() -> Iterator[Slots]:
    yield Slots()
    set_memory_model(None)


def failures(slots: Slots, kernel: Any, check: Callable[[], bool], grid: int = 1, block: int = 1, **more: Any) -> list[int]:
    """Return the seeds for which the kernel's results are wrong."""
    bad = []
    for seed in SEEDS:
        slots.use(seed)
        kernel[grid, block](*more.values())
        if not check():
            bad.append(seed)
    return bad


DATA, FLAG = 0, 4096  # word numbers


@pytest.mark.parametrize("fence", ["none", "fence", "release", "cas"])
def test_message_passing(slots: Slots, fence: str) -> None:
    """(a) A reader that sees the flag must see the data."""
    remote, seen = slots.remote_lo, []

    @cuda.jit
    def k():
        if cuda.threadIdx.x == 0:
            for i in range(4):
                mem.store(remote + 8 * (DATA + i), 100 + i, 8)
            if fence == "fence":
                mem.fence("sys")
            if fence == "release":
                mem.store_release(remote + 8 * FLAG, 1, 8)
            elif fence == "cas":
                mem.fence("sys")
                mem.atomic_compare_swap(remote + 8 * FLAG, 0, 1, 8)
            else:
                mem.store(remote + 8 * FLAG, 1, 8)
        else:  # the other PE
            while memory.load(remote + 8 * FLAG, 8) == 0:
                engine.yield_("flag")
            seen[:] = slots.remote[:4].tolist()

    bad = failures(slots, k, lambda: seen == [100, 101, 102, 103], block=2)
    assert bool(bad) == (fence == "none"), f"wrong for seeds {bad}"


def test_an_atomic_does_not_order(slots: Slots) -> None:
    remote, seen = slots.remote_lo, []

    @cuda.jit
    def k():
        if cuda.threadIdx.x == 0:
            mem.store(remote, 1, 8)
            assert mem.atomic_add(remote + 8 * FLAG, 1, 8) == 0
            assert slots.remote[FLAG] == 1
        else:
            while memory.load(remote + 8 * FLAG, 8) == 0:
                engine.yield_("flag")
            seen[:] = [int(slots.remote[0])]

    assert failures(slots, k, lambda: seen == [1], block=2)


@pytest.mark.parametrize("between", ["nothing", "fence", "gpu", "acquire", "syncthreads", "store"])
def test_loads_behind_an_atomic_are_early(slots: Slots, between: str) -> None:
    """The data of a lock that this PE had before: who takes the lock without a fence may read what was there then."""
    remote, seen = slots.remote_lo, []

    @cuda.jit
    def k():
        if cuda.threadIdx.x == 0:
            mem.load(remote, 8)
            mem.fence("sys")
            while mem.atomic_compare_swap(remote + 8 * FLAG, 1, 2, 8) != 1:
                engine.yield_("the lock")
            if between in ("fence", "gpu"):
                mem.fence("sys" if between == "fence" else "gpu")
            elif between == "acquire":
                mem.load_acquire(slots.own_lo, 8)
            elif between == "store":
                mem.store(remote, 7, 8)
        else:  # the other PE
            memory.store(remote, 7, 8)
            memory.store(remote + 8 * FLAG, 1, 8)
        if between == "syncthreads":
            engine.block_barrier()
        if cuda.threadIdx.x == 0:
            first = mem.load(remote, 8)
            seen[:] = [first, mem.load(remote, 8)]

    bad = failures(slots, k, lambda: seen == [7, 7], block=2)
    assert bool(bad) == (between == "nothing"), f"wrong for seeds {bad}"
    assert seen[1] == 7, "the same load again is not early"


@pytest.mark.parametrize(("deferred", "fenced", "fails"), [(True, False, True), (True, True, False), (False, False, False)])
def test_reuse_of_a_source(slots: Slots, deferred: bool, fenced: bool, fails: bool) -> None:
    """(b) The source of a non-blocking put may be reused only after the fence, that of a blocking one at once."""
    own, remote = slots.own_lo, slots.remote_lo

    @cuda.jit
    def k():
        for i in range(64):
            mem.store(own + 8 * i, i, 8)
        mem.copy_strided(remote, own, 0, 64, 1, 8, deferred)
        engine.yield_()
        if fenced:
            mem.fence("sys")
        for i in range(64):
            mem.store(own + 8 * i, 999, 8)

    bad = failures(slots, k, lambda: slots.remote[:64].tolist() == list(range(64)))
    assert bool(bad) == fails, f"wrong for seeds {bad}"


@pytest.mark.parametrize("who", ["syncthreads", "syncwarp", "grid", "threadfence", "nobody"])
def test_one_thread_fences_for_all(slots: Slots, who: str) -> None:
    """(c) A fence covers other threads' stores before a barrier with them."""
    remote, seen = slots.remote_lo, []
    grid = 4 if who in ("grid", "threadfence") else 1
    arrived = np.zeros(1, np.int64)

    @cuda.jit
    def k():
        i = cuda.grid(1)
        mem.copy_strided(remote, slots.own_lo, i, 256, cuda.gridsize(1), 16)
        mem.store(remote + 8 * (1024 + i), i + 1, 8)
        if who == "syncthreads":
            cuda.syncthreads()
        elif who == "syncwarp":
            cuda.syncwarp()
        elif who == "grid":
            cuda.cg.this_grid().sync()
        elif who == "threadfence":
            cuda.threadfence()
            arrived[0] += 1
            while arrived[0] < 128:
                engine.yield_()
        if i == 0:
            mem.fence("sys")
            seen[:] = slots.remote[: 1024 + 128].tolist()

    def check() -> bool:
        arrived[0] = 0
        return seen[:512] == expected and seen[1024 : 1024 + 32 * grid] == list(range(1, 32 * grid + 1))

    expected = list(range(512))
    bad = []
    for seed in SEEDS:
        slots.use(seed)
        slots.own[:512] = expected
        k[grid, 32]()
        if not check():
            bad.append(seed)
    assert bool(bad) == (who == "nobody"), f"wrong for seeds {bad}"


def test_block_fences_do_not_reach_the_grid(slots: Slots) -> None:
    remote, order = slots.remote_lo, np.zeros(1, np.int64)
    seen: list[int] = []

    @cuda.jit
    def k():
        if cuda.blockIdx.x == 0:
            mem.store(remote, 5, 8)
            cuda.threadfence_block()
            order[0] = 1
        else:
            while order[0] == 0:
                engine.yield_()
            mem.fence("sys")
            seen[:] = [int(slots.remote[0])]

    def run() -> list[int]:
        order[0] = 0
        return seen

    assert failures(slots, k, lambda: run() == [5], grid=2)


def test_stores_to_one_address_stay_in_order(slots: Slots) -> None:
    """(d) By one thread, and by threads with a barrier in between."""
    remote = slots.remote_lo
    observed: list[int] = []

    @cuda.jit
    def k():
        t = cuda.threadIdx.x
        for i in range(8):
            if t == i % 4:
                mem.store(remote, 2 * i + 1, 8)
                mem.store(remote, 2 * i + 2, 4)
                assert mem.load(remote, 8) == 2 * i + 2
            cuda.syncthreads()
            engine.yield_()
            observed.append(int(slots.remote[0]))

    def check() -> bool:
        ok = observed == sorted(observed) and slots.remote[0] == 16
        observed.clear()
        return ok

    assert not failures(slots, k, check, block=4)


def test_repeated_cooperative_copies_stay_in_order(slots: Slots) -> None:
    own, remote = slots.own_lo, slots.remote_lo

    @cuda.jit
    def k():
        i = cuda.threadIdx.x
        for turn in range(1, 4):
            mem.copy_strided(remote, own + 1024 * turn, i, 64, 4, 8)
            engine.yield_()

    bad = []
    for seed in SEEDS:
        slots.use(seed)
        for turn in range(1, 4):
            slots.own[128 * turn : 128 * turn + 64] = turn
        k[1, 4]()
        if (slots.remote[:64] != 3).any():
            bad.append(seed)
    assert not bad


def test_a_thread_sees_its_own_stores(slots: Slots) -> None:
    own, remote = slots.own_lo, slots.remote_lo

    @cuda.jit
    def k():
        mem.store(remote, 0x1122334455667788, 8)
        assert mem.load(remote + 4, 4) == 0x11223344
        mem.copy_strided(remote + 64, remote, 0, 8, 1, 1)
        mem.store(remote + 66, 0, 1)
        mem.copy_strided(own, remote + 64, 0, 1, 1, 8)
        assert mem.load(own, 8) == 0x1122334455007788
        assert mem.atomic_add(remote + 64, 1, 8) == 0x1122334455007788
        mem.store(remote + 128, np.float64(1.5).view(np.uint64), 8)
        assert mem.atomic_add_f64(remote + 128, 1.0) == 1.5

    assert not failures(slots, k, lambda: slots.remote[16] == np.float64(2.5).view(np.uint64))


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("deferred", [False, True])
def test_everything_arrives_by_the_end_of_the_kernel(slots: Slots, width: int, deferred: bool) -> None:
    """Cooperative copies of all widths, with and without stride; the neighbors are untouched."""
    own, remote, count = slots.own_lo, slots.remote_lo, 4096 // width

    def copies(first: int, step: int) -> None:
        mem.copy_strided(remote + 64, own, first, count, step, width, deferred)
        if first == 0:
            mem.copy_strided(remote + 8192, own, 3, count, 1, width, deferred)
            mem.copy_elements(remote + 16384, 2 * width, own + (count - 1) * width, -width, count, width)

    @cuda.jit
    def k():
        copies(cuda.grid(1), cuda.gridsize(1))

    payload = np.random.default_rng(width).integers(1, 256, 4096).astype(np.uint8)
    for seed in range(8):
        slots.use(seed)
        slots.own.view(np.uint8)[:4096] = payload
        k[2, 8]()
        expected = np.zeros(NBYTES, np.uint8)
        expected[64 : 64 + 4096] = payload
        expected[8192 + 3 * width : 8192 + 4096] = payload[3 * width :]
        expected[16384 : 16384 + 8192].reshape(count, 2 * width)[:, :width] = payload.reshape(count, width)[::-1]
        assert np.array_equal(slots.remote.view(np.uint8), expected), f"seed {seed}"


def test_the_last_byte_can_arrive_first(slots: Slots) -> None:
    remote, lasts = slots.remote_lo, []

    @cuda.jit
    def k():
        mem.copy_strided(remote, slots.own_lo, 0, 256, 1, 1)
        for _ in range(200):
            engine.yield_()
            now = slots.remote.view(np.uint8)[:256]
            if now[255] and not now[:255].all():
                lasts.append(1)
                return

    for seed in SEEDS:
        slots.use(seed)
        slots.own.view(np.uint8)[:256] = 7
        k[1, 1]()
    assert lasts


def test_everything_is_performed_while_the_kernel_spins(slots: Slots) -> None:
    remote = slots.remote_lo

    @cuda.jit
    def k():
        for i in range(100):
            mem.store(remote + 8 * i, 1, 8)
        while not slots.remote[:100].all():
            engine.yield_("the other PE")

    assert not failures(slots, k, lambda: True)


def test_local_private_and_host_stores_are_immediate(slots: Slots) -> None:
    private = np.zeros(1, np.uint64)

    @cuda.jit
    def k():
        mem.store(slots.own_lo, 3, 8)
        mem.store(private.ctypes.data, 4, 8)
        mem.copy_strided(slots.own_lo + 8, private.ctypes.data, 0, 1, 1, 8, True)
        assert slots.own[:2].tolist() == [3, 4]
        assert private[0] == 4

    assert not failures(slots, k, lambda: True)
    mem.store(slots.remote_lo, 9, 8)
    mem.fence("sys")
    assert slots.remote[0] == 9


def test_many_pending_stores_are_bounded(slots: Slots) -> None:
    remote = slots.remote_lo

    @cuda.jit
    def k():
        for i in range(4000):
            mem.store(remote + 8 * i, i, 8)
        model = memory_model()
        assert len(model._pending) <= 512

    slots.use(1)
    k[1, 1]()
    assert slots.remote[:4000].tolist() == list(range(4000))


@pytest.mark.parametrize("what", ["target", "source"])
def test_freed_memory_is_an_error_with_a_name(slots: Slots, what: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
    freed = libc.mmap(None, 1 << 16, 3, 0x22, -1, 0)

    def unmap() -> None:
        libc.munmap(freed, 1 << 16)

    @cuda.jit
    def k():
        if what == "target":
            mem.store(freed + 4096, 1, 8)
        else:
            mem.copy_strided(slots.remote_lo, freed, 0, 512, 1, 8, True)
        unmap()
        mem.fence("sys")

    set_memory_model(WeakMemory(3, slots.own_lo, slots.own_lo + NBYTES, (0, 1 << 63)))
    with pytest.raises(PgasError, match=rf"the {what} of a pending store is not mapped any more: 0x.*block \[0, 0, 0\] thread \[0, 0, 0\]"):
        k[1, 1]()
    slots.use(0)

    @cuda.jit
    def fine():
        mem.store(slots.remote_lo, 1, 8)

    fine[1, 1]()
    assert slots.remote[0] == 1


def test_the_same_seed_repeats_itself(slots: Slots) -> None:
    def trace(seed: int) -> list[int]:
        slots.use(seed)
        k[1, 4]()
        history, steps[:] = list(steps), []
        return history

    steps: list[int] = []

    @cuda.jit
    def k():
        mem.copy_strided(slots.remote_lo, slots.own_lo, cuda.threadIdx.x, 64, 4, 8, True)
        for _ in range(40):
            engine.yield_()
            steps.append(int(slots.remote[:64].sum()) + len(memory_model()._pending))

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)


def test_the_model_is_not_changed_under_a_kernel(slots: Slots) -> None:
    @cuda.jit
    def k():
        set_memory_model(None)

    slots.use(0)
    with pytest.raises(PgasError, match="cannot be changed while a kernel runs"):
        k[1, 1]()
    set_memory_model(None)
    assert memory_model() is memory
