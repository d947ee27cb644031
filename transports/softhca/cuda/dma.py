"""The kernel that reads and writes the PEs' memory for an engine on a CPU: one CTA, which executes the commands of engine/dma.py in order.

All threads copy; one thread executes an atomic, or writes a CQE. Several READs, and WRITEs of one message, are executed at the same time,
by a warp each. The barrier and the fence after a write make its data visible to every observer before that of the next command. Commands
and data are read past L1, because the CPU writes them while the kernel runs.
"""

from typing import Any

from pgas.kernels.compiler import address_of, cuda, i64, ptx, types
from pgas.kernels.compiler import device as inlined
from pgas.transports.hostloop.compiled import keep
from pgas.transports.mlx5 import cqe
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.cuda.lanes import copy_few, copy_together
from pgas.transports.softhca.engine import SOURCES
from pgas.transports.softhca.engine import dma as d
from pgas.transports.softhca.engine.ops import kernel_ops
from pgas.transports.softhca.engine.responder import changed

__all__ = ["SIGNATURE", "THREADS", "loop"]

THREADS: int = kernel_ops.DMA_THREADS
SIGNATURE = (types.int64,)

WORDS, BATCH_WORDS = d.COMMAND_BYTES // 8, d.COMMAND_SLOTS * d.COMMAND_BYTES // 8

#: Number of polls without a command of which one looks for the beat of the process.
LOOK = 1024

load, load_shared, load_shared_u32, load_acquire = map(
    kernel_ops.for_kernel, (kernel_ops.load, kernel_ops.load_shared, kernel_ops.load_shared_u32, kernel_ops.load_acquire)
)
store, store_data, fence = map(kernel_ops.for_kernel, (kernel_ops.store, kernel_ops.store_data, kernel_ops.fence))
compare_swap, compare_swap_u32 = map(kernel_ops.for_kernel, (kernel_ops.compare_swap_relaxed, kernel_ops.compare_swap_relaxed_u32))
_changed = kernel_ops.of_kernel(changed)


@inlined
def update(command: Any, dest: Any, nbytes: Any) -> Any:
    """Update an operand of 4 or 8 bytes atomically, and return its old value."""
    adds = i64(1) if load(command + d.COMMAND_KIND) == d.ADD else i64(0)
    swap, compare = load(command + d.COMMAND_SWAP), load(command + d.COMMAND_COMPARE)
    swap_mask, compare_mask = load(command + d.COMMAND_SWAP_MASK), load(command + d.COMMAND_COMPARE_MASK)
    while True:
        old = load_shared(dest) if nbytes == 8 else load_shared_u32(dest)
        new = _changed(adds, old, swap, compare, swap_mask, compare_mask)
        found = compare_swap(dest, old, new) if nbytes == 8 else compare_swap_u32(dest, old, new & 0xFFFF_FFFF)
        if found == old:
            return old


@inlined
def joined(command: Any, number: Any) -> Any:
    """Return how many of a number of commands, at least one, can be executed at the same time: READs, or WRITEs of one message."""
    kind, end = load(command + d.COMMAND_KIND), i64(1)
    if kind == d.READ or kind == d.WRITE:
        last = command
        while (
            end < number and load(last + d.COMMAND_BYTES + d.COMMAND_KIND) == kind and (kind == d.READ or load(last + d.COMMAND_JOINS) != 0)
        ):
            last += d.COMMAND_BYTES
            end += 1
    return end


@inlined
def execute(me: Any, command: Any) -> None:
    """Execute a command."""
    kind, dest, nbytes = load(command + d.COMMAND_KIND), load(command + d.COMMAND_DEST), load(command + d.COMMAND_NBYTES)
    source = load(command + d.COMMAND_SOURCE)
    if kind == d.READ or kind == d.WRITE:
        copy_together(me, i64(THREADS), dest, source, nbytes)
    elif me == 0:
        if kind == d.INLINE:
            copy_few(dest, command + d.COMMAND_DATA, nbytes)
        elif kind == d.CQE:
            for offset in range(0, cqe.CQE_TAIL, 8):
                store_data(dest + offset, load(command + d.COMMAND_DATA + offset))
            fence()
            store_data(dest + cqe.CQE_TAIL, load(command + d.COMMAND_DATA + cqe.CQE_TAIL))
        else:
            store(source, update(command, dest, nbytes))


@cuda.jit(**kernel_ops.DMA_COMPILED)
def loop(ring: Any) -> None:
    """Execute commands until the engine ends, or its process. ring: address of the ring."""
    ring = i64(ring)
    head_seen = cuda.shared.array(1, types.int64)
    batch = cuda.shared.array(BATCH_WORDS, types.int64)
    me, at, done, turns = i64(cuda.threadIdx.x), i64(address_of(batch)), i64(0), i64(0)
    beat, since = load_shared(ring + d.RING_BEAT), i64(ptx.globaltimer())
    while True:
        if me == 0:
            head = load_acquire(ring + d.RING_HEAD)
            if turns % LOOK == LOOK - 1:
                now, heard = i64(ptx.globaltimer()), load_shared(ring + d.RING_BEAT)
                if heard != beat:
                    beat, since = heard, now
                elif now - since > t.BEAT_NS:
                    head = i64(d.STOP)
            head_seen[0] = head
        cuda.syncthreads()
        head = head_seen[0]
        if head == d.STOP:
            break
        for k in range(me, (head - done) * WORDS, THREADS):
            slot = (done + k // WORDS) & (d.COMMAND_SLOTS - 1)
            store(at + 8 * k, load_shared(ring + d.RING_COMMANDS + slot * d.COMMAND_BYTES + k % WORDS * 8))
        cuda.syncthreads()
        k = i64(0)
        while k < head - done:
            first = at + k * d.COMMAND_BYTES
            number = joined(first, head - done - k)
            if number == 1:
                execute(me, first)
            else:  # by one warp each
                for i in range(me >> 5, number, THREADS >> 5):
                    command = first + i * d.COMMAND_BYTES
                    dest, source = load(command + d.COMMAND_DEST), load(command + d.COMMAND_SOURCE)
                    copy_together(me & 31, i64(32), dest, source, load(command + d.COMMAND_NBYTES))
            cuda.syncthreads()
            k += number
            if k < head - done and load(first + d.COMMAND_KIND) != d.READ:
                if me == 0:
                    fence()
                cuda.syncthreads()
        turns = turns + 1 if head == done else i64(0)
        if me == 0 and head != done:
            fence()  # before RING_DONE and before the next batch, for which st.release would not be enough
            store_data(ring + d.RING_DONE, head)
        done = head
        if me == 0 and turns != 0:
            cuda.nanosleep(20)  # lets another thread run in the simulator


kernel_ops.compile_now((changed, copy_few))
keep(loop, *SOURCES, __file__.rpartition("/")[0])
