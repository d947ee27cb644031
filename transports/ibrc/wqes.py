"""The posting back end for mlx5 queues: requests become WQEs in send queues in host memory.

The loop (loop.py) calls step, ring, and advance. Every request ends in a signaled WQE of one WQEBB (mlx5.cqe.extend).
"""

from pgas.kernels import codes, layout
from pgas.native.cpu import on_host
from pgas.transports.hostloop.memory_ops import fence, load, load_acquire, store, store_release, store_u32, swap32, swap64
from pgas.transports.ibrc import tables as t
from pgas.transports.mlx5 import cqe, wqe
from pgas.transports.mlx5.wqe import Ce, Opcode, Opmod

# Words of a row (tables.py). Keys and QPN are big-endian, like those of the record.
WQ, DBR, UAR, CQE, QPN, HEAP_KEY = range(0, 48, 8)

_WRITE, _READ, _STORE, _ADD, _COMPARE_SWAP, _SIGNAL_SET, _SIGNAL_ADD, _SWAP, _AND, _OR, _XOR = map(int, codes.Request)
_NOP, _RDMA_WRITE, _RDMA_READ = int(Opcode.NOP), int(Opcode.RDMA_WRITE), int(Opcode.RDMA_READ)
_FA, _CS = int(Opcode.ATOMIC_FA), int(Opcode.ATOMIC_CS)
_MASKED_FA_4 = Opmod.MASKED_4 << wqe.OPMOD_SHIFT | Opcode.ATOMIC_MASKED_FA
_MASKED_CS_4 = Opmod.MASKED_4 << wqe.OPMOD_SHIFT | Opcode.ATOMIC_MASKED_CS
_MASKED_FA_8 = Opmod.MASKED_8 << wqe.OPMOD_SHIFT | Opcode.ATOMIC_MASKED_FA
_MASKED_CS_8 = Opmod.MASKED_8 << wqe.OPMOD_SHIFT | Opcode.ATOMIC_MASKED_CS
_ON_ERROR, _ALWAYS = int(Ce.ON_ERROR), int(Ce.ALWAYS)
_CE_SHIFT = 8 * (wqe.CTRL_FM_CE_SE - 8)
_ds_inline, _wqebbs = on_host(wqe.ds_inline), on_host(wqe.wqebbs)
_REQ, _INVALID = int(cqe.CqeOpcode.REQ), int(cqe.CqeOpcode.INVALID)


@on_host
def wqebb(own: int, row: int, index: int) -> int:
    """Return the address of a WQEBB."""
    return load(row + WQ) + ((index & (load(own + t.DEPTH) - 1)) << wqe.WQEBB_SHIFT)


@on_host
def begin(own: int, row: int, opcode: int, ds: int, ce: int) -> int:
    """Store the control segment of the next WQE and return its address; opcode has opmod in its upper byte."""
    index = load(row + t.PROD_IDX)
    at = wqebb(own, row, index)
    store(at, swap32(opcode | (index & wqe.WQE_IDX_MASK) << wqe.WQE_IDX_SHIFT) | load(row + QPN) << 32 | ds << 56)
    store(at + 8, ce << _CE_SHIFT)
    store(row + t.PROD_IDX, index + _wqebbs(ds))
    return at


@on_host
def store_raddr(at: int, raddr: int, rkey: int) -> int:
    """Store a remote address segment."""
    store(at + wqe.WQE_RADDR, swap64(raddr))
    return store(at + wqe.WQE_RADDR + 8, rkey)


@on_host
def store_data(at: int, addr: int, lkey: int, nbytes: int) -> int:
    """Store a data segment."""
    store(at, swap32(nbytes) | lkey << 32)
    return store(at + 8, swap64(addr))


@on_host
def post_nop(own: int, row: int) -> int:
    """Post the NOP whose CQE completes a WQE of several WQEBBs."""
    return begin(own, row, _NOP, wqe.DS_NOP, _ALWAYS)


@on_host
def post_inline(own: int, request: int, row: int, rkey: int) -> int:
    """Post a WRITE of the 1 to 16 bytes in the request, inline."""
    nbytes = load(request + layout.NBYTES)
    at = begin(own, row, _RDMA_WRITE, _ds_inline(nbytes), _ALWAYS)
    store_raddr(at, load(request + layout.REMOTE), rkey)
    value, second = load(request + layout.VALUE), load(request + layout.SECOND)
    at += wqe.WQE_DATA
    store_u32(at, swap32(wqe.INLINE_SEG | nbytes))
    store_u32(at + 4, value)
    store_u32(at + 8, value >> 32)
    store_u32(at + 12, second)
    if nbytes > 12:
        store_u32(at + 16, second >> 32)
    return 0


@on_host
def post_atomic(own: int, row: int, opcode: int, raddr: int, first: int, second: int, local: int, nbytes: int) -> int:
    """Post an atomic of one WQEBB; first and second are its segment, the old value goes to local."""
    at = begin(own, row, opcode, wqe.DS_ATOMIC, _ALWAYS)
    store_raddr(at, raddr, load(row + HEAP_KEY))
    store(at + wqe.WQE_DATA, first)
    store(at + wqe.WQE_DATA + 8, second)
    return store_data(at + wqe.WQE_ATOMIC_DATA, local, load(own + t.CELL_LKEY), nbytes)


@on_host
def post_masked_swap(own: int, row: int, raddr: int, swap: int, mask: int, local: int) -> int:
    """Post a MASKED_CS that replaces the bits in mask unconditionally, and its NOP."""
    index = load(row + t.PROD_IDX)
    at = begin(own, row, _MASKED_CS_8, wqe.DS_MASKED_CS_8, _ON_ERROR)
    store_raddr(at, raddr, load(row + HEAP_KEY))
    store(at + wqe.WQE_DATA, swap)
    store(at + wqe.WQE_DATA + 8, 0)
    store(at + wqe.WQE_DATA + 16, mask)
    store(at + wqe.WQE_DATA + 24, 0)
    store_data(wqebb(own, row, index + 1), local, load(own + t.CELL_LKEY), 8)
    return post_nop(own, row)


@on_host
def post_update(own: int, row: int, operation: int, to: int, value: int, compare: int, local: int, nbytes: int) -> int:
    """Post an atomic as in kernels/paths/nic/atomic_wqe.py; the old value goes to local."""
    if nbytes == 4:
        swap, ones = swap32(value), 0xFFFF_FFFF
    else:
        swap, ones = swap64(value), -1
    mask = ones if operation == _SWAP else swap ^ ones if operation == _AND else swap
    boundary = ones if operation == _XOR else 0
    if operation in (_ADD, _XOR):
        if nbytes == 4:
            return post_atomic(own, row, _MASKED_FA_4, to, swap | boundary << 32, 0, local, 4)
        return post_atomic(own, row, _FA if operation == _ADD else _MASKED_FA_8, to, swap, boundary, local, 8)
    if operation == _COMPARE_SWAP:
        if nbytes == 4:
            return post_atomic(own, row, _MASKED_CS_4, to, swap | swap32(compare) << 32, -1, local, 4)
        return post_atomic(own, row, _CS, to, swap, swap64(compare), local, 8)
    if nbytes == 4:
        return post_atomic(own, row, _MASKED_CS_4, to, swap, mask, local, 4)
    return post_masked_swap(own, row, to, swap, mask, local)


@on_host
def step(own: int, request: int, row: int, done: int) -> int:
    """Post the next WQEs of a request; `done` of its bytes are posted. Return the new count, or POSTED."""
    what, nbytes = load(request + layout.WHAT), load(request + layout.NBYTES)
    operation = what & layout.OPERATION_MASK
    local, to = load(request + layout.LOCAL), load(request + layout.REMOTE)
    value, second = load(request + layout.VALUE), load(request + layout.SECOND)
    if operation == _STORE:
        post_inline(own, request, row, load(row + HEAP_KEY))
    elif operation in (_ADD, _COMPARE_SWAP) or operation >= _SWAP:
        post_update(own, row, operation, to, value, second, load(own + t.SINK) if local == 0 else local, nbytes)
    else:
        signals = operation in (_SIGNAL_SET, _SIGNAL_ADD)
        if done < nbytes:
            count = min(nbytes - done, wqe.MESSAGE_MAX)
            last = done + count == nbytes
            opcode = _RDMA_READ if operation == _READ else _RDMA_WRITE
            at = begin(own, row, opcode, wqe.DS_WRITE, _ALWAYS if last and not signals else _ON_ERROR)
            store_raddr(at, to + done, load(row + HEAP_KEY))
            lkey = load(own + (t.CELL_LKEY if what & layout.LANDING else t.LKEY))
            if what >> layout.LOCAL_SHIFT:
                lkey = load(load(own + t.REGISTERED) + ((what >> layout.LOCAL_SHIFT) - 1) * t.REGION_SIZE + t.REGION_LKEY)
            store_data(at + wqe.WQE_DATA, local + done, lkey, count)
            if not last:
                return done + count
        if operation == _SIGNAL_ADD:
            post_atomic(own, row, _FA, second, swap64(value), 0, load(own + t.SINK), 8)
        elif operation == _SIGNAL_SET:
            post_masked_swap(own, row, second, swap64(value), -1, load(own + t.SINK))
    return t.POSTED


# Doorbells and completions ----------------------------------------------------------------------------------------------------


@on_host
def ring(own: int, count: int) -> int:
    """Ring the doorbells of the queue pairs in UNRUNG: WQEs, then the DBR, then the UAR."""
    fence()
    for i in range(count):
        row = load(load(own + t.UNRUNG) + 8 * i)
        index = load(row + t.PROD_IDX)
        store_u32(load(row + DBR), swap32(index & wqe.WQE_IDX_MASK))
        store_release(load(row + UAR), swap32((index & wqe.WQE_IDX_MASK) << wqe.WQE_IDX_SHIFT) | load(row + QPN) << 32)
        store(row + t.RUNG_IDX, index)
    return 0


@on_host
def advance(own: int, row: int) -> int:
    """Read a CQE and move CONS_IDX forward (mlx5.cqe.extend); return whether it is an error CQE."""
    tail = swap64(load_acquire(load(row + CQE)))
    opcode = (tail >> cqe.OP_OWN_OPCODE_SHIFT) & 0xF
    if opcode == _REQ:
        cons = load(row + t.CONS_IDX)
        distance = ((tail >> cqe.TAIL_WQE_COUNTER_SHIFT) + 1 - cons) & wqe.WQE_IDX_MASK
        if distance <= load(own + t.DEPTH):
            store(row + t.CONS_IDX, cons + distance)
    return opcode != _REQ and opcode != _INVALID
