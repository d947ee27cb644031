"""The primitives of the engine: memory accesses of its states, on a CPU (ops_cpu.py) or in a kernel (ops_cuda.py).

Addresses and values are int64 throughout (because Numba makes uint64 + int64 a float64). Values narrower than 8 bytes are non-negative;
8-byte values are the bits. Everything that another process reads or has written is accessed at system scope.

| name | what |
|---|---|
| ``load store`` and ``_u8 _u16 _u32`` | the engine's own records, and data that an acquire has made visible |
| ``load_be32 load_be64 swap32 swap64`` | big-endian words |
| ``load_any`` | at any address, in several accesses |
| ``store_data`` | to memory that others poll, in one access |
| ``load_shared`` | an operand that others change by atomics |
| ``load_published`` | a word that the firmware publishes; later loads observe what it published before |
| ``load_acquire load_be32_acquire store_release fence`` | ordered for every observer |
| ``add compare_swap`` | atomic updates, sequentially consistent or nearly so; they return the old value |
| ``add_relaxed compare_swap_relaxed`` | the same without order, on a GPU |
| ``exchange`` | the same, with an acquire |
| ``clock`` | nanoseconds |
| ``idle`` | wait briefly, and longer after several calls without work |
"""

import functools
from typing import Any

from pgas.transports.hostloop.compiled import KERNELS_ON_GPU, ON_GPU, device

_ops: Any
#: The primitives of kernels, which differ from the engine's if kernels run on a GPU and the engine on a CPU.
kernel_ops: Any
if KERNELS_ON_GPU:
    from pgas.transports.softhca.engine import ops_cuda

    _ops = kernel_ops = ops_cuda
if not ON_GPU:
    from pgas.transports.softhca.engine import ops_cpu

    _ops = ops_cpu
    kernel_ops = kernel_ops if KERNELS_ON_GPU else ops_cpu

load, load_u8, load_any, load_any_u16, load_any_u32 = _ops.load, _ops.load_u8, _ops.load_any, _ops.load_any_u16, _ops.load_any_u32
load_shared, load_shared_u32 = _ops.load_shared, _ops.load_shared_u32
load_published, load_acquire = _ops.load_published, _ops.load_acquire
load_be32, load_be32_acquire, load_be64 = _ops.load_be32, _ops.load_be32_acquire, _ops.load_be64
store, store_u32, store_release, move = _ops.store, _ops.store_u32, _ops.store_release, _ops.move
store_data, store_data_u8 = _ops.store_data, _ops.store_data_u8
store_data_u16, store_data_u32 = _ops.store_data_u16, _ops.store_data_u32
add, exchange, compare_swap, fence = _ops.add, _ops.exchange, _ops.compare_swap, _ops.fence
add_relaxed, compare_swap_relaxed = _ops.add_relaxed, _ops.compare_swap_relaxed
compare_swap_relaxed_u32 = _ops.compare_swap_relaxed_u32
swap32, swap64, clock, idle, YIELDS = _ops.swap32, _ops.swap64, _ops.clock, _ops.idle, _ops.YIELDS

#: Whether this is not the cuda engine. Only then can it serve receive queues and check CQs for overrun, because the cuda engine's workers
#: would race (tables). client.start() selects the engine.
RECEIVES: bool = _ops.RECEIVES

#: Whether data can be late (late.py): only in the simulator, because it would double the kernel's code.
DELAYS_DATA: bool = _ops.DELAYS_DATA

#: Whether the relaxed updates also have an order.
ORDERED_UPDATES: bool = _ops.ORDERED_UPDATES

# The cuda engine: number of threads of a CTA, a power of two, which is two warps in the simulator; options for compiling the kernel; a
# primitive in a form that kernels can call; a copy of 16 bytes to shared memory, and the wait for this thread's copies, which a barrier
# makes visible to the other threads; the compilation of functions, because the first WQE would wait for it.
THREADS: int = _ops.THREADS
COMPILED: dict[str, Any] = _ops.COMPILED
for_kernel, fetch, fetched, compile_now = _ops.for_kernel, _ops.fetch, _ops.fetched, _ops.compile_now


@device
def copy(dest: int, source: int, nbytes: int) -> int:
    """Copy. Up to 512 bytes, every aligned word of 8, 4, or 2 bytes of dest is stored whole, because waits on such elements require it."""
    if nbytes > 512 or source < dest < source + nbytes:
        move(dest, source, nbytes)
        return 0
    done = 0
    if (dest | source) & 7 == 0:  # four loads are in flight together, because one from another GPU takes a microsecond
        while nbytes - done >= 32:
            first, second = load_shared(source + done), load_shared(source + done + 8)
            third, fourth = load_shared(source + done + 16), load_shared(source + done + 24)
            store_data(dest + done, first)
            store_data(dest + done + 8, second)
            store_data(dest + done + 16, third)
            store_data(dest + done + 24, fourth)
            done += 32
    copy_few(dest + done, source + done, nbytes - done)
    return 0


@functools.cache
def copier(ops: Any) -> Any:
    """Return copy_few() of some primitives."""
    load_u8, load_any, load_any_u16, load_any_u32 = ops.load_u8, ops.load_any, ops.load_any_u16, ops.load_any_u32
    store_u8, store_u16, store_u32, store = ops.store_data_u8, ops.store_data_u16, ops.store_data_u32, ops.store_data

    @ops.device  # type: ignore[untyped-decorator]
    def copy_few(dest: int, source: int, nbytes: int) -> int:
        """Copy, one word after another; dest must not begin in the source.

        Every aligned word of 8, 4, or 2 bytes of dest is stored whole.
        """
        done = 0
        while done < nbytes:
            at, start, left = dest + done, source + done, nbytes - done
            if at & 7 == 0 and left >= 8:
                store(at, load_any(start))
                done += 8
            elif at & 3 == 0 and left >= 4:
                store_u32(at, load_any_u32(start))
                done += 4
            elif at & 1 == 0 and left >= 2:
                store_u16(at, load_any_u16(start))
                done += 2
            else:
                store_u8(at, load_u8(start))
                done += 1
        return 0

    return copy_few


copy_few = copier(_ops)


@device
def load_atomic(address: int, nbytes: int) -> int:
    """Load an operand of 4 or 8 bytes."""
    return load_shared(address) if nbytes == 8 else load_shared_u32(address)


@device
def store_atomic(address: int, value: int, nbytes: int) -> int:
    """Store an operand of 4 or 8 bytes."""
    return store_data(address, value) if nbytes == 8 else store_data_u32(address, value)


@device
def compare_swap_atomic(address: int, expected: int, value: int, nbytes: int) -> int:
    """Replace an operand of 4 or 8 bytes atomically if it has the expected value; return the old value. Relaxed on a GPU."""
    if nbytes == 8:
        return compare_swap_relaxed(address, expected, value)
    return compare_swap_relaxed_u32(address, expected, value)
