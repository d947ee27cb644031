"""DMA: how an engine on a CPU reaches memory of GPUs, by commands that a kernel executes (cuda/dma.py).

A NIC reaches the memory of PEs by DMA. So does the dma engine, for everything that PEs have in GPU memory: WQEs, doorbell records, data,
operands of atomics, and CQEs. Doorbell registers are in the CPU's memory, and GPUs store to them. Its code is that of the cpu engine;
by_dma() says which of the two runs.

The engine writes commands into a ring in page-locked memory and then the number of commands, RING_HEAD; the kernel executes them in order
and writes RING_DONE. The data of each command is visible to every observer before the next command begins, except those that are executed
together: READs, and WRITEs with COMMAND_JOINS. READ puts data into the stage, and an atomic the old value, for which the engine waits. It
does not wait for WRITEs and CQEs one by one: before a packet is sent, and before a pass of the engine ends, settle() waits for all of them.

Several READs can be under way: expect() begins one, and read() copies from the stage what was expected, in the same order. read() itself
reads what was not expected, together with as many of the following bytes as the caller says. forget() ends this, because data may change.
"""

from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5 import wqe as w
from pgas.transports.mlx5.cqe import CQE_SIZE
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine.ops import RECEIVES, YIELDS, copy, idle, load, load_acquire, load_be32, store, store_release

# ------------------------------------------------------------------------------------------------------------------- the ring
#: Offsets of its words. The engine writes HEAD, -1 at the end, and its process BEAT; the kernel writes DONE.
RING_HEAD, RING_BEAT, RING_DONE = 0, 8, 64
#: Words of the engine alone: number of commands; number of expected ranges, and the first of them that was not read; bytes of the stage in
#: use; a word for any use. Then the ranges.
RING_PUSHED, RING_RANGES, RING_FIRST, RING_USED, RING_WORD = range(128, 128 + 8 * 5, 8)
RING_TABLE = 192
RANGE_SOURCE, RANGE_NBYTES, RANGE_PLACE, RANGE_ROW = 0, 8, 16, 24
RANGES = 64
RING_COMMANDS = RING_TABLE + RANGES * RANGE_ROW

#: A command: what to do, and the data of a short WRITE, or a CQE.
(
    COMMAND_KIND,
    COMMAND_DEST,
    COMMAND_SOURCE,
    COMMAND_NBYTES,
    COMMAND_SWAP,  # operands of an atomic, like those of responder.changed()
    COMMAND_COMPARE,
    COMMAND_SWAP_MASK,
    COMMAND_COMPARE_MASK,
) = range(0, 8 * 8, 8)
COMMAND_JOINS = COMMAND_SWAP  # of a WRITE: 1: the next WRITE may be executed at the same time
COMMAND_DATA, INLINE_BYTES = 64, 64
COMMAND_BYTES = COMMAND_DATA + INLINE_BYTES
COMMAND_SLOTS = 64

#: Kinds of commands. INLINE is a WRITE with its data; ADD and SWAP are atomics.
READ, WRITE, INLINE, CQE, ADD, SWAP = range(1, 7)

STAGE = RING_COMMANDS + COMMAND_SLOTS * COMMAND_BYTES
STAGE_BYTES = 1 << 16
RING_BYTES = STAGE + STAGE_BYTES

#: Value of RING_HEAD that ends the kernel.
STOP = -1

#: Shift of the turns of a wait: it spins in its first SPINS << _SPIN_SHIFT turns, which take a few microseconds.
_SPIN_SHIFT = 4

_WQEBB = w.WQEBB


@device
def by_dma(hca: int) -> int:
    """Return the address of the ring, 0 if the engine accesses the PEs' memory itself."""
    return load(hca + t.CTL_DMA) if RECEIVES else 0


@device
def _pause(turns: int) -> int:
    """Wait for the kernel: spin, then yield. Return the number of turns."""
    idle(min(turns >> _SPIN_SHIFT, YIELDS - 1))
    return turns + 1


@device
def begin(ring: int, kind: int, dest: int, source: int, nbytes: int) -> int:
    """Begin a command when there is room for it, and return its address; push() follows."""
    pushed, turns = load(ring + RING_PUSHED), 0
    while pushed - load_acquire(ring + RING_DONE) >= COMMAND_SLOTS:
        turns = _pause(turns)
    command = ring + RING_COMMANDS + (pushed & (COMMAND_SLOTS - 1)) * COMMAND_BYTES
    store(command + COMMAND_KIND, kind)
    store(command + COMMAND_DEST, dest)
    store(command + COMMAND_SOURCE, source)
    store(command + COMMAND_NBYTES, nbytes)
    return command


@device
def push(ring: int) -> int:
    """Let the kernel execute the command that was begun."""
    pushed = load(ring + RING_PUSHED) + 1
    store(ring + RING_PUSHED, pushed)
    return store_release(ring + RING_HEAD, pushed)


@device
def settle(ring: int) -> int:
    """Wait until all commands have been executed. ring: result of by_dma()."""
    turns = 0
    while ring != 0 and load_acquire(ring + RING_DONE) != load(ring + RING_PUSHED):
        turns = _pause(turns)
    return 0


@device
def forget(hca: int) -> int:
    """Read everything anew from now on, because it may have changed."""
    ring = by_dma(hca)
    if ring != 0:
        store(ring + RING_RANGES, 0)
        store(ring + RING_FIRST, 0)
        store(ring + RING_USED, 0)
    return 0


@device
def expect(hca: int, source: int, nbytes: int) -> int:
    """Start reading a range, or its beginning, into the stage; settle() waits for it. Return 0 if there is no room."""
    ring = load(hca + t.CTL_DMA)
    number, used = load(ring + RING_RANGES), load(ring + RING_USED)
    nbytes = min(nbytes, STAGE_BYTES - used)
    if number == RANGES or nbytes <= 0:
        return 0
    row, place = ring + RING_TABLE + number * RANGE_ROW, ring + STAGE + used
    store(row + RANGE_SOURCE, source)
    store(row + RANGE_NBYTES, nbytes)
    store(row + RANGE_PLACE, place)
    store(ring + RING_RANGES, number + 1)
    store(ring + RING_USED, used + ((nbytes + 15) & ~15))
    begin(ring, READ, place, source, nbytes)
    push(ring)
    return 1


@device
def await_expected(hca: int) -> int:
    """Wait until expected ranges are in the stage, if there are any."""
    ring = load(hca + t.CTL_DMA)
    return settle(ring) if load(ring + RING_RANGES) != 0 else 0


@device
def read(hca: int, dest: int, source: int, nbytes: int, ahead: int) -> int:
    """Copy from a PE's memory to that of the engine. ahead: number of bytes, at least nbytes, that will be read next."""
    ring, done = by_dma(hca), 0
    if ring == 0:
        return copy(dest, source, nbytes)
    while done < nbytes:
        at, first = source + done, load(ring + RING_FIRST)
        row = ring + RING_TABLE + first * RANGE_ROW
        within = at - load(row + RANGE_SOURCE)
        if first == load(ring + RING_RANGES) or within < 0 or within >= load(row + RANGE_NBYTES):
            forget(hca)
            expect(hca, at, ahead - done)
            settle(ring)
            row, within = ring + RING_TABLE, 0
        left = load(row + RANGE_NBYTES) - within
        number = min(left, nbytes - done)
        copy(dest + done, load(row + RANGE_PLACE) + within, number)
        done += number
        if number == left:
            store(ring + RING_FIRST, load(ring + RING_FIRST) + 1)
    return 0


@device
def write(hca: int, dest: int, source: int, nbytes: int, joins: int) -> int:
    """Copy to a PE's memory. More than INLINE_BYTES bytes must be in page-locked memory and must not change until settle().

    joins: 1 if the order of this WRITE and the next one does not matter.
    """
    ring = load(hca + t.CTL_DMA)
    forget(hca)
    if nbytes <= INLINE_BYTES:
        copy(begin(ring, INLINE, dest, 0, nbytes) + COMMAND_DATA, source, nbytes)
    else:
        store(begin(ring, WRITE, dest, source, nbytes) + COMMAND_JOINS, joins)
    return push(ring)


@device
def begin_cqe(hca: int) -> int:
    """Return the address at which a CQE is made, for write_cqe()."""
    return begin(load(hca + t.CTL_DMA), CQE, 0, 0, CQE_SIZE) + COMMAND_DATA


@device
def write_cqe(hca: int, dest: int, made: int) -> int:
    """Write a CQE to a CQ. made: result of begin_cqe()."""
    store(made - COMMAND_DATA + COMMAND_DEST, dest)
    return push(load(hca + t.CTL_DMA))


@device
def exchange(hca: int, remote: int, width: int, adds: int, swap: int, compare: int, swap_mask: int, compare_mask: int) -> int:
    """Update an operand atomically, and return its old value. Operands are those of responder.changed()."""
    ring = load(hca + t.CTL_DMA)
    forget(hca)
    command = begin(ring, ADD if adds != 0 else SWAP, remote, ring + STAGE, width)
    store(command + COMMAND_SWAP, swap)
    store(command + COMMAND_COMPARE, compare)
    store(command + COMMAND_SWAP_MASK, swap_mask)
    store(command + COMMAND_COMPARE_MASK, compare_mask)
    push(ring)
    settle(ring)
    return load(ring + STAGE)


@device
def fetch_wqes(hca: int, qp: int, ahead: int) -> int:
    """Copy new WQEs from a send queue to the engine's copy of it, and return the send counter of the doorbell record.

    ahead: number of WQEBBs after QP_PRODUCER that the doorbell announces; those that only the record announces are copied as well.
    """
    ring, producer, depth = load(hca + t.CTL_DMA), load(qp + t.QP_PRODUCER), load(qp + t.QP_MASK) + 1
    begins = producer & (depth - 1)
    forget(hca)
    expect(hca, load(qp + t.QP_DBR), 4)
    if ahead != 0:
        expect(hca, load(qp + t.QP_RING) + begins * _WQEBB, min(ahead, depth - begins) * _WQEBB)
    settle(ring)
    read(hca, ring + RING_WORD, load(qp + t.QP_DBR), 4, 4)
    record = load_be32(ring + RING_WORD) & w.WQE_IDX_MASK
    by_record, done = (record - producer) & w.WQE_IDX_MASK, 0
    number = max(ahead, by_record if by_record <= depth else 0)
    while done < number:
        first = (producer + done) & (depth - 1)
        nbytes = min(number - done, depth - first) * _WQEBB
        read(hca, load(qp + t.QP_SQ) + first * _WQEBB, load(qp + t.QP_RING) + first * _WQEBB, nbytes, nbytes)
        done += nbytes // _WQEBB
    return record
