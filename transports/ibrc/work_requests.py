"""The posting back end for any RDMA device: requests become work requests of libibverbs.

The loop (loop.py) calls step, ring, and advance. A send queue has a ring of slots. A slot holds a ``struct ibv_send_wr``, its ``ibv_sge``,
and a registered staging cell of 16 bytes. It is reused only after its work request has completed, so that neither the send queue nor the CQ
overflows. The work requests built between two rings go to ``post_send`` as one list. post_send and poll_cq are the context's, called by
address.

Verbs have only atomics of 8 bytes, FETCH_AND_ADD and CMP_AND_SWP. Every other atomic, and SIGNAL_SET, becomes a CMP_AND_SWP on the aligned
8 bytes that contain its target, retried with the value found until it matches. It is atomic with respect to every other atomic of the
device, but not with respect to stores and WRITEs to the other half of its word: it may undo one (docs/rdma.md).

Additions to the same word do not wait for each other. Each queue pair records the value that the word will hold if all outstanding
CMP_AND_SWPs succeed, and the next one compares with that value: they form a *chain*. When one fails, later ones of its chain are also
retried, unless they already matched. The retries form a new chain, which begins with the value that the first failure found. No request
joins it until all later ones of the old chain have completed. Retries may change the order of additions, which does not change the result.
Any other request for the word waits until the chain has completed. Therefore, the atomics of a queue pair on a word act as if executed in
the order of their requests.

A signal follows its data on the same queue pair, and the responder executes in order. IBV_SEND_FENCE is not needed, because no work request
depends on an earlier READ of the same request, and a kernel that needs the data of a READ waits for its request.
"""

from pgas.kernels import codes, layout
from pgas.native.cpu import on_host
from pgas.transports.hostloop.memory_ops import call_with_int, call_with_pointer, load, load_acquire, load_u32, store, store_u32, swap32
from pgas.transports.ibrc import tables as t
from pgas.transports.verbs import abi
from pgas.transports.verbs.abi import SendFlags, WrOpcode

#: Sources that the loop's stamp covers in addition to this file.
SOURCES = (abi.__file__,)

# Words of the loop's record, after those of tables.py; keys are in host byte order. HEAP: address of the pieces of this PE's heap.
# CELL_LKEY is that of landing cells and slots; CELL_SHIFT, subtracted from an address of the window, gives the address in work requests.
# POST_SEND, POLL_CQ: addresses of functions. MESSAGE_MAX: bytes of the longest work request. INLINE: IBV_SEND_INLINE if staging cells are
# posted inline, otherwise 0. ATOMICS: whether all devices have atomics. FAULT_*: the error. WCS: the array that poll_cq fills.
(
    HEAP, CELL_SHIFT, POST_SEND, POLL_CQ, MESSAGE_MAX, INLINE, ATOMICS,
    FAULT, FAULT_CODE, FAULT_VENDOR, FAULT_SLOT, BAD_WR, WCS,
) = range(t.END, t.END + 104, 8)  # fmt: skip
N_WCS = 16  #: maximum number of completions per poll_cq
END = WCS + N_WCS * abi.WC_SIZE

# Words of a row. SLOTS, QP, CQ: addresses. FAR_HEAP: address of the pieces of the peer's heap. CHAINS: address of its table of chains.
SLOTS, QP, CQ, FAR_HEAP = range(0, 32, 8)
CHAINS = t.CONS_IDX + 8

# A piece of a heap, in address order: its end (NO_END for the last one); its lkey or rkey; its shift. A heap is one piece unless the device
# refused to register it as a whole after it had grown.
PIECE_END, PIECE_KEY, PIECE_SHIFT, PIECE_SIZE = range(0, 32, 8)
NO_END = (1 << 63) - 1

# A slot: the work request, its SGE, its staging cell. REQUEST: the request in the kernels' ring that a CMP_AND_SWP performs, otherwise 0.
SGE = abi.SEND_WR_SIZE
STAGING = SGE + abi.SGE_SIZE
REQUEST = STAGING + 16
SLOT = 192

# A chain: the word; its value if all outstanding CMP_AND_SWPs succeed; the index of the chain's first work request; the number of
# outstanding ones; the number of these that belong to the previous chain and will most likely fail; whether they are additions.
WORD, EXPECTED, SINCE, PENDING, STALE, ADDITIONS = range(0, 48, 8)
CHAIN_SIZE = 64
N_CHAINS = 64

#: Values of FAULT: a completion with an error status (in FAULT_CODE), an error of post_send, one of poll_cq, a request that needs atomics.
COMPLETION_FAILED, POST_FAILED, POLL_FAILED, NO_ATOMICS = 1, 2, 3, 4

_WRITE, _READ, _STORE, _ADD, _COMPARE_SWAP, _SIGNAL_SET, _SIGNAL_ADD, _SWAP, _AND, _OR, _XOR = map(int, codes.Request)
_RDMA_WRITE, _RDMA_READ = int(WrOpcode.RDMA_WRITE), int(WrOpcode.RDMA_READ)
_FETCH_AND_ADD, _CMP_AND_SWP = int(WrOpcode.ATOMIC_FETCH_AND_ADD), int(WrOpcode.ATOMIC_CMP_AND_SWP)
_UNSIGNALED, _SIGNALED = 0, int(SendFlags.SIGNALED)
_32_BITS = 0xFFFF_FFFF
_SIGNAL_MASK = 31


@on_host
def post_send(own: int, qp: int, wr: int) -> int:
    """Call ibv_post_send; return its errno, 0 if all were posted."""
    return call_with_pointer(load(own + POST_SEND), qp, wr, own + BAD_WR)


@on_host
def poll_cq(own: int, cq: int) -> int:
    """Call ibv_poll_cq; return the number of completions, negative on an error."""
    return call_with_int(load(own + POLL_CQ), cq, N_WCS, own + WCS)


@on_host
def fail(own: int, fault: int, code: int, vendor: int, slot: int) -> int:
    """Record an error."""
    store(own + FAULT_CODE, code)
    store(own + FAULT_VENDOR, vendor)
    store(own + FAULT_SLOT, slot)
    return store(own + FAULT, fault)


# Work requests ----------------------------------------------------------------------------------------------------------------


@on_host
def slot_of(own: int, row: int, index: int) -> int:
    """Return the address of a slot."""
    return load(row + SLOTS) + (index & (load(own + t.DEPTH) - 1)) * SLOT


@on_host
def piece_of(heap: int, address: int) -> int:
    """Return the piece of a heap that contains an address. heap: address of its first piece."""
    while address >= load(heap + PIECE_END):
        heap += PIECE_SIZE
    return heap


@on_host
def begin(own: int, row: int, opcode: int, flags: int) -> int:
    """Begin the next work request, with one SGE, and return its slot. Its wr_id is its index + 1."""
    index = load(row + t.PROD_IDX)
    at = slot_of(own, row, index)
    store(at + abi.WR_ID, index + 1)
    store(at + abi.WR_NEXT, slot_of(own, row, index + 1))
    store(at + abi.WR_SG_LIST, at + SGE)
    store_u32(at + abi.WR_NUM_SGE, 1)
    store_u32(at + abi.WR_OPCODE, opcode)
    store_u32(at + abi.WR_SEND_FLAGS, flags)
    store(at + REQUEST, 0)
    store(row + t.PROD_IDX, index + 1)
    return at


@on_host
def store_sge(at: int, addr: int, nbytes: int, lkey: int) -> int:
    """Store the SGE of a slot."""
    store(at + SGE + abi.SGE_ADDR, addr)
    store_u32(at + SGE + abi.SGE_LENGTH, nbytes)
    return store_u32(at + SGE + abi.SGE_LKEY, lkey)


@on_host
def store_remote(at: int, addr: int, piece: int) -> int:
    """Store the remote address and rkey of a WRITE or READ in a piece of the peer's heap."""
    store(at + abi.WR_REMOTE_ADDR, addr - load(piece + PIECE_SHIFT))
    return store_u32(at + abi.WR_RDMA_RKEY, load(piece + PIECE_KEY))


@on_host
def post_atomic(own: int, row: int, opcode: int, addr: int, compare_add: int, swap: int) -> int:
    """Begin an atomic on 8 bytes of the heap and return its slot; the old value is written to the slot's staging cell."""
    at, piece = begin(own, row, opcode, _SIGNALED), piece_of(load(row + FAR_HEAP), addr)
    store(at + abi.WR_REMOTE_ADDR, addr - load(piece + PIECE_SHIFT))
    store(at + abi.WR_COMPARE_ADD, compare_add)
    store(at + abi.WR_SWAP, swap)
    store_u32(at + abi.WR_ATOMIC_RKEY, load(piece + PIECE_KEY))
    store_sge(at, at + STAGING - load(own + CELL_SHIFT), 8, load(own + t.CELL_LKEY))
    return at


@on_host
def target_of(request: int) -> int:
    """Return the target address of an atomic or a signal."""
    operation = load(request + layout.WHAT) & layout.OPERATION_MASK
    return load(request + (layout.SECOND if operation in (_SIGNAL_SET, _SIGNAL_ADD) else layout.REMOTE))


@on_host
def part_of(request: int, word: int) -> int:
    """Return the half of an aligned word that a request targets."""
    return (word >> 8 * (load(request + layout.REMOTE) & 4)) & _32_BITS


@on_host
def updated(operation: int, old: int, value: int, compare: int) -> int:
    """Return the operand after an atomic."""
    if operation == _ADD:
        return old + value
    if operation == _AND:
        return old & value
    if operation == _OR:
        return old | value
    if operation == _XOR:
        return old ^ value
    return value if operation == _SWAP or old == compare else old


@on_host
def changed(request: int, word: int) -> int:
    """Return the aligned word that contains a request's target, after the request."""
    operation, value = load(request + layout.WHAT) & layout.OPERATION_MASK, load(request + layout.VALUE)
    if operation == _SIGNAL_SET:
        return value
    if operation == _SIGNAL_ADD:
        return word + value
    compare = load(request + layout.SECOND)
    if load(request + layout.NBYTES) == 8:
        return updated(operation, word, value, compare)
    old = part_of(request, word)
    new = updated(operation, old, value & _32_BITS, compare & _32_BITS) & _32_BITS
    return word ^ (old ^ new) << 8 * (load(request + layout.REMOTE) & 4)


@on_host
def chain_of(row: int, word: int) -> int:
    """Return the address of a word's chain. Words share chains by a hash; WORD identifies the current word."""
    return load(row + CHAINS) + ((word >> 3) & (N_CHAINS - 1)) * CHAIN_SIZE


@on_host
def has_chain(row: int, word: int) -> int:
    """Return whether a word has a chain with outstanding work requests."""
    chain = chain_of(row, word)
    return load(chain + WORD) == word and load(chain + PENDING) != 0


@on_host
def link(own: int, row: int, chain: int, request: int) -> int:
    """Begin a request's CMP_AND_SWP at the end of a chain."""
    expected = load(chain + EXPECTED)
    new = changed(request, expected)
    store(chain + EXPECTED, new)
    store(chain + PENDING, load(chain + PENDING) + 1)
    at = post_atomic(own, row, _CMP_AND_SWP, load(chain + WORD), expected, new)
    return store(at + REQUEST, request)


# Posting and completions ------------------------------------------------------------------------------------------------------


@on_host
def submit(own: int, row: int) -> int:
    """Post the work requests that a queue pair has built, if any, as one list; return whether that failed."""
    first, end = load(row + t.RUNG_IDX), load(row + t.PROD_IDX)
    if first == end:
        return 0
    store(slot_of(own, row, end - 1) + abi.WR_NEXT, 0)
    store(own + BAD_WR, 0)
    error = post_send(own, load(row + QP), slot_of(own, row, first))
    if error != 0:
        fail(own, POST_FAILED, error, 0, load(own + BAD_WR))
    store(row + t.RUNG_IDX, end)
    return error != 0


@on_host
def ring(own: int, count: int) -> int:
    """Submit on all queue pairs in UNRUNG; return the row of the first that failed, 0 if none did."""
    for i in range(count):
        row = load(load(own + t.UNRUNG) + 8 * i)
        if submit(own, row) != 0:
            return row
    return 0


@on_host
def settle(own: int, row: int, at: int, request: int) -> int:
    """Handle a completed CMP_AND_SWP of a request: deliver the old value, or retry; return whether posting failed."""
    found, word = load(at + STAGING), target_of(request) & -8
    chain, operation = chain_of(row, word), load(request + layout.WHAT) & layout.OPERATION_MASK
    stale = load(at + abi.WR_ID) <= load(chain + SINCE)
    store(chain + PENDING, load(chain + PENDING) - 1)
    if stale:
        store(chain + STALE, load(chain + STALE) - 1)
    kept = not stale and changed(request, found) == found  # for example, a compare_swap that does not match: there is nothing to write
    if found != load(at + abi.WR_COMPARE_ADD) and not kept:
        if not stale:  # everything outstanding follows it, and so belongs to the old chain
            store(chain + EXPECTED, found)
            store(chain + SINCE, load(row + t.PROD_IDX))
            store(chain + STALE, load(chain + PENDING))
        rung = load(row + t.PROD_IDX) == load(row + t.RUNG_IDX)  # otherwise the loop will ring
        link(own, row, chain, request)
        slot = (request - load(own + t.CONTROL) - layout.RING) >> layout.REQUEST_SHIFT
        store(load(own + t.UNDONE) + slot * t.UNDONE_SIZE + 8, load(row + t.PROD_IDX))
        return submit(own, row) if rung else 0
    local = load(request + layout.LOCAL)
    if local != 0 and operation not in (_SIGNAL_SET, _SIGNAL_ADD):
        if load(request + layout.NBYTES) == 4:
            store_u32(local, swap32(part_of(request, found)))
        else:
            store(local, found)
    return 0


@on_host
def advance(own: int, row: int) -> int:
    """Poll a CQ and move CONS_IDX forward; return whether a work request has failed."""
    count = poll_cq(own, load(row + CQ))
    if count < 0:
        fail(own, POLL_FAILED, -count, 0, 0)
        return 1
    for i in range(count):
        wc = own + WCS + i * abi.WC_SIZE
        end = load(wc + abi.WC_WR_ID)
        at = slot_of(own, row, end - 1)
        status = load_u32(wc + abi.WC_STATUS)
        if status != 0:
            fail(own, COMPLETION_FAILED, status, load_u32(wc + abi.WC_VENDOR_ERR), at)
            return 1
        store(row + t.CONS_IDX, end)
        request = load(at + REQUEST)
        if request != 0 and settle(own, row, at, request) != 0:
            return 1
    return 0


# Requests ---------------------------------------------------------------------------------------------------------------------


@on_host
def exchange(own: int, row: int, request: int) -> int:
    """Perform a request by CMP_AND_SWP, once its word's chain accepts it; return whether a work request failed meanwhile."""
    word = target_of(request) & -8
    chain, operation = chain_of(row, word), load(request + layout.WHAT) & layout.OPERATION_MASK
    adds = 1 if operation in (_ADD, _SIGNAL_ADD) else 0
    while load(chain + PENDING) != 0 and (
        load(chain + WORD) != word or load(chain + STALE) != 0 or adds == 0 or load(chain + ADDITIONS) == 0
    ):
        if load_acquire(own + t.STOP) != 0:
            return 0
        if submit(own, row) != 0 or advance(own, row) != 0:
            return 1
    if load(chain + WORD) != word:
        store(chain + WORD, word)
        store(chain + EXPECTED, 0)
    store(chain + ADDITIONS, adds)
    return link(own, row, chain, request)


@on_host
def step(own: int, request: int, row: int, done: int) -> int:
    """Build the next work requests of a request; `done` of its bytes are posted. Return the new count, or POSTED or REFUSED."""
    what, nbytes = load(request + layout.WHAT), load(request + layout.NBYTES)
    operation = what & layout.OPERATION_MASK
    local, to = load(request + layout.LOCAL), load(request + layout.REMOTE)
    if operation >= _ADD and load(own + ATOMICS) == 0:
        fail(own, NO_ATOMICS, operation, 0, 0)
        return t.REFUSED
    if operation == _STORE:
        inline, far = load(own + INLINE), piece_of(load(row + FAR_HEAP), to + done)
        count = min(nbytes - done, load(far + PIECE_END) - (to + done))
        at = begin(own, row, _RDMA_WRITE, _SIGNALED | inline)
        store(at + STAGING, load(request + layout.VALUE))
        store(at + STAGING + 8, load(request + layout.SECOND))
        store_sge(at, at + STAGING + done - (0 if inline else load(own + CELL_SHIFT)), count, load(own + t.CELL_LKEY))
        store_remote(at, to + done, far)
        return t.POSTED if done + count == nbytes else done + count
    if operation in (_ADD, _COMPARE_SWAP) or operation >= _SWAP:
        if nbytes == 4 or operation >= _SWAP or has_chain(row, to):
            return t.REFUSED if exchange(own, row, request) != 0 else t.POSTED
        if operation == _ADD:
            at = post_atomic(own, row, _FETCH_AND_ADD, to, load(request + layout.VALUE), 0)
        else:
            at = post_atomic(own, row, _CMP_AND_SWP, to, load(request + layout.SECOND), load(request + layout.VALUE))
        if local != 0:
            store_sge(at, local - load(own + CELL_SHIFT), 8, load(own + t.CELL_LKEY))
        return t.POSTED
    signals = operation in (_SIGNAL_SET, _SIGNAL_ADD)
    if done < nbytes:
        far, near = piece_of(load(row + FAR_HEAP), to + done), 0
        count = min(nbytes - done, load(own + MESSAGE_MAX), load(far + PIECE_END) - (to + done))
        if what & layout.LANDING == 0 and what >> layout.LOCAL_SHIFT == 0:
            near = piece_of(load(own + HEAP), local + done)
            count = min(count, load(near + PIECE_END) - (local + done))
        last = done + count == nbytes
        opcode = _RDMA_READ if operation == _READ else _RDMA_WRITE
        # One in 32 is also signaled, because without completions the slots of a long request would never become free.
        signalled = (last and not signals) or load(row + t.PROD_IDX) & _SIGNAL_MASK == _SIGNAL_MASK
        at = begin(own, row, opcode, _SIGNALED if signalled else _UNSIGNALED)
        store_remote(at, to + done, far)
        if near != 0:
            store_sge(at, local + done - load(near + PIECE_SHIFT), count, load(near + PIECE_KEY))
        elif what & layout.LANDING:
            store_sge(at, local + done - load(own + CELL_SHIFT), count, load(own + t.CELL_LKEY))
        else:
            region = load(own + t.REGISTERED) + ((what >> layout.LOCAL_SHIFT) - 1) * t.REGION_SIZE
            store_sge(at, local + done - load(region + t.REGION_SHIFT), count, load(region + t.REGION_LKEY))
        if not last:
            return done + count
    if signals:
        word = load(request + layout.SECOND)
        if operation == _SIGNAL_SET or has_chain(row, word):
            return t.REFUSED if exchange(own, row, request) != 0 else t.POSTED
        post_atomic(own, row, _FETCH_AND_ADD, word, load(request + layout.VALUE), 0)
    return t.POSTED
