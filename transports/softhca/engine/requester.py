"""The requester, which takes doorbells and WQEs of a QP and performs all checks that do not need the peer."""

from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5 import wqe as w
from pgas.transports.mlx5.contexts import Access
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.mlx5.doorbell import UAR_BF_BUFFER_SIZE
from pgas.transports.mlx5.wqe import Fm, Opcode, Opmod
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine import ops, states
from pgas.transports.softhca.engine.dma import by_dma, fetch_wqes
from pgas.transports.softhca.engine.ops import RECEIVES, load, load_be32, load_be64, load_published, load_shared, load_u8, store, swap32
from pgas.transports.softhca.engine.states import count, fail
from pgas.transports.softhca.engine.trace import seen
from pgas.transports.softhca.syndromes import Vendor

WAIT_INDEX, WAIT_CQN = w.WQE_WAIT + w.WAIT.byte("max_index"), w.WQE_WAIT + w.WAIT.byte("qpn_or_cqn")
LOCAL_WRITE = int(Access.LOCAL_WRITE)
_WORD = 0xFFFF_FFFF


@device
def rung(qp: int) -> int:
    """Return the register with a pending doorbell, 0 if there is none. A poll of a CTA bypasses L1."""
    register, on_host, last = load_shared(qp + t.QP_REGISTER), load_shared(qp + t.QP_ON_HOST), load_shared(qp + t.QP_RUNG)
    if RECEIVES and load(qp + t.QP_BUFFERS) == t.SHARED:
        ahead = (recorded(qp) - load(qp + t.QP_PRODUCER)) & w.WQE_IDX_MASK
        return register if ahead != 0 and ahead < w.WQE_IDX_MASK - load(qp + t.QP_MASK) else 0
    if RECEIVES and load(qp + t.QP_BUFFERS) != 0:
        for _ in range(load(qp + t.QP_BUFFERS)):
            if doorbell_qpn(load_shared(register)) == load(qp + t.QP_QPN):
                return register
            register += UAR_BF_BUFFER_SIZE
        return 0
    word = load_shared(register)
    if word != 0 and (on_host == 0 or word != last):
        return register
    return 0


@device
def doorbell_qpn(word: int) -> int:
    """Return the QPN of a doorbell."""
    return swap32((word >> 32) & _WORD) >> w.QPN_SHIFT


@device
def recorded(qp: int) -> int:
    """Return the send counter of a QP's doorbell record."""
    return ops.load_be32_acquire(load(qp + t.QP_DBR)) & w.WQE_IDX_MASK


@device
def take_doorbell(hca: int, qp: int) -> int:
    """Take a doorbell and move the producer index; return whether there was one.

    The doorbell record alone has no effect: it is read when there is a doorbell, and the further index of the two is used.
    """
    register = rung(qp)
    if register == 0:
        return 0
    if RECEIVES and load(qp + t.QP_BUFFERS) == t.SHARED:
        count(qp + t.QP_DOORBELLS, 1)
        record = recorded(qp)
        return advance(qp, record, record)
    word = collect(register, load(qp + t.QP_ON_HOST))
    return credit(qp, word, fetch_wqes(hca, qp, ahead_by(qp, word)) if by_dma(hca) != 0 else recorded(qp))


@device
def collect(register: int, on_host: int) -> int:
    """Return the word in a doorbell register, and clear the register unless a CPU rings it."""
    return ops.load_acquire(register) if on_host != 0 else ops.exchange(register, 0)


@device
def credit(qp: int, word: int, record: int) -> int:
    """Move the producer index by a doorbell that was collected, and its record; return whether the doorbell is a new one."""
    if word == 0:
        return 0
    if load(qp + t.QP_ON_HOST) != 0:
        if word == load(qp + t.QP_RUNG):
            return 0
        store(qp + t.QP_RUNG, word)
    count(qp + t.QP_DOORBELLS, 1)
    if doorbell_qpn(word) != load(qp + t.QP_QPN):
        count(qp + t.QP_FOREIGN_DOORBELLS, 1)
        return 1
    return advance(qp, announced(word), record)


@device
def ahead_by(qp: int, word: int) -> int:
    """Return the number of WQEBBs that a doorbell announces, 0 if it is not a valid one of this QP."""
    by_ring = (announced(word) - load(qp + t.QP_PRODUCER)) & w.WQE_IDX_MASK
    return by_ring if doorbell_qpn(word) == load(qp + t.QP_QPN) and by_ring <= load(qp + t.QP_MASK) + 1 else 0


@device
def announced(word: int) -> int:
    """Return the producer index of a doorbell: an empty WQEBB with ds 0, or the start of the last WQE with its ds. opmod is ignored."""
    idx_word, qpn_word = swap32(word & _WORD), swap32((word >> 32) & _WORD)
    wqebbs = ((qpn_word & w.DS_MASK) + w.DS_PER_WQEBB - 1) // w.DS_PER_WQEBB
    return ((idx_word >> w.WQE_IDX_SHIFT) + wqebbs) & w.WQE_IDX_MASK


@device
def advance(qp: int, index: int, record: int) -> int:
    """Move the producer index to that of a doorbell or of its record, whichever is farther; return 1.

    An index at most a queue behind belongs to an older doorbell and is ignored.
    """
    producer, depth = load(qp + t.QP_PRODUCER), load(qp + t.QP_MASK) + 1
    by_ring, by_record = (index - producer) & w.WQE_IDX_MASK, (record - producer) & w.WQE_IDX_MASK
    distance = 0
    if by_ring <= depth:
        distance = by_ring
        if by_record < by_ring or by_record > depth:
            count(qp + t.QP_STALE_RECORDS, 1)
    elif by_ring <= w.WQE_IDX_MASK - depth:
        distance = depth + 1  # more than a queue ahead or behind: fetch reports an overrun
    elif not RECEIVES or load(qp + t.QP_BUFFERS) == 0:  # with two buffers, the first doorbell may be observed last
        count(qp + t.QP_STALE_DOORBELLS, 1)
    if distance < by_record <= depth:
        distance = by_record
    store(qp + t.QP_PRODUCER, producer + distance)
    return 1


@device
def fetch(hca: int, qp: int, work: int) -> int:
    """Copy the next WQE out of the ring, so that it cannot change while it is checked; it wraps WQEBB by WQEBB."""
    index = load(qp + t.QP_CONSUMER)
    ring, mask = load(qp + t.QP_SQ), load(qp + t.QP_MASK)
    rung = load(qp + t.QP_PRODUCER) - index
    first = ring + ((index & mask) << w.WQEBB_SHIFT)
    wqe = load(work + t.WORK_WQE)
    store(wqe, load(first))
    store(wqe + 8, load(first + 8))
    wqebbs = begin(work, index)
    ds = load(work + t.WORK_DS)
    # Consume one WQEBB of a WQE whose size is invalid.
    store(work + t.WORK_WQEBBS, max(1, min(wqebbs, rung)))
    state = states.CHECK_CONTROL
    if rung > mask + 1:
        state = fail(work, Syndrome.LOCAL_QP_OP_ERR, Vendor.OVERRUN)
    elif ds == 0 or wqebbs > rung:
        state = fail(work, Syndrome.LOCAL_QP_OP_ERR, Vendor.WQE_DS)
    else:
        for k in range(wqebbs):
            block = ring + (((index + k) & mask) << w.WQEBB_SHIFT)
            for offset in range(0, min(w.WQEBB, ds * w.OCTOWORD - k * w.WQEBB), 8):
                store(wqe + k * w.WQEBB + offset, load(block + offset))
    if load(hca + t.CTL_TRACE_KINDS) != 0:
        seen(hca, qp, t.TRACE_WQE, index, wqe, max(1, ds) * w.OCTOWORD)
    return state


@device
def begin(work: int, index: int) -> int:
    """Decode the control segment of the WQE at WORK_WQE into the work record; return the WQE's number of WQEBBs."""
    wqe = load(work + t.WORK_WQE)
    idx_word = load_be32(wqe + w.CTRL_OPMOD_IDX_OPCODE)
    ds = load_be32(wqe + w.CTRL_QPN_DS) & w.DS_MASK
    store(work + t.WORK_INDEX, index)
    store(work + t.WORK_OPCODE, idx_word & 0xFF)
    store(work + t.WORK_OPMOD, idx_word >> w.OPMOD_SHIFT)
    store(work + t.WORK_DS, ds)
    store(work + t.WORK_CE, load_u8(wqe + w.CTRL_FM_CE_SE) & w.CE_MASK)
    store(work + t.WORK_NBYTES, 0)
    store(work + t.WORK_WIDTH, 0)
    store(work + t.WORK_SEGMENTS, 0)
    return (ds + w.DS_PER_WQEBB - 1) // w.DS_PER_WQEBB


@device
def check_control(hca: int, qp: int, work: int) -> int:
    """Check that the control segment has this QP and this index, which is cheap and detects most mistakes of a driver."""
    wqe = load(work + t.WORK_WQE)
    idx_word = load_be32(wqe + w.CTRL_OPMOD_IDX_OPCODE)
    if (idx_word >> w.WQE_IDX_SHIFT) & w.WQE_IDX_MASK != load(work + t.WORK_INDEX) & w.WQE_IDX_MASK:
        return fail(work, Syndrome.LOCAL_QP_OP_ERR, Vendor.WQE_INDEX)
    if load_be32(wqe + w.CTRL_QPN_DS) >> w.QPN_SHIFT != load(qp + t.QP_QPN):
        return fail(work, Syndrome.LOCAL_QP_OP_ERR, Vendor.WQE_QPN)
    # Valid fence modes need no action: a WQE is executed after the earlier ones, whose data is in memory.
    if load_u8(wqe + w.CTRL_FM_CE_SE) & w.FM_MASK > Fm.FENCE_AND_INITIATOR_SMALL_FENCE:
        return fail(work, Syndrome.LOCAL_QP_OP_ERR, Vendor.WQE_FENCE)
    if load(hca + t.CTL_FAIL_COUNT) != 0:
        return states.CHECK_FAULT
    return states.CHECK_SEGMENTS


@device
def check_fault(hca: int, qp: int, work: int) -> int:
    """Fail the WQE that is selected by a fault."""
    only = load(hca + t.CTL_FAIL_QPN)
    if only == 0 or only == load(qp + t.QP_QPN):
        left = load(hca + t.CTL_FAIL_COUNT) - 1
        store(hca + t.CTL_FAIL_COUNT, left)
        if left == 0:
            return fail(work, load(hca + t.CTL_FAIL_SYNDROME), Vendor.INJECTED)
    return states.CHECK_SEGMENTS


@device
def check_segments(hca: int, qp: int, work: int) -> int:
    """Find the segments of the opcode. opmod is the width of a masked atomic, otherwise 0."""
    opcode, opmod = load(work + t.WORK_OPCODE), load(work + t.WORK_OPMOD)
    if RECEIVES and opcode == Opcode.WAIT and load(hca + t.CTL_CQS) != 0:
        if load(work + t.WORK_DS) != w.DS_WAIT:
            return fail(work, Syndrome.LOCAL_QP_OP_ERR, Vendor.WQE_DS)
        return states.COMPLETE if awaited(hca, qp, load(work + t.WORK_WQE)) != 0 else fail(work, Syndrome.LOCAL_QP_OP_ERR, Vendor.WAIT_CQ)
    data = w.WQE_DATA
    width = 0
    if opcode == Opcode.NOP:
        return states.COMPLETE  # ds may be 1 or 2; the second octoword is ignored
    if opcode == Opcode.DUMP:
        data = w.DUMP_DATA
    elif opcode in (Opcode.ATOMIC_CS, Opcode.ATOMIC_FA):
        data, width = w.WQE_ATOMIC_DATA, 8
    elif opcode in (Opcode.ATOMIC_MASKED_CS, Opcode.ATOMIC_MASKED_FA):
        if opmod == Opmod.MASKED_4:
            data, width = w.WQE_ATOMIC_DATA, 4
        elif opmod == Opmod.MASKED_8:
            width = 8
            data = w.WQE_MASKED_CS_8_DATA if opcode == Opcode.ATOMIC_MASKED_CS else w.WQE_ATOMIC_DATA
        else:
            return fail(work, Syndrome.LOCAL_QP_OP_ERR, Vendor.WQE_OPMOD)
        opmod = 0
    elif opcode != Opcode.RDMA_WRITE and opcode != Opcode.RDMA_READ:
        if not RECEIVES or opcode not in (Opcode.SEND, Opcode.SEND_IMM, Opcode.RDMA_WRITE_IMM):
            return fail(work, Syndrome.LOCAL_QP_OP_ERR, Vendor.WQE_OPCODE)
        if opcode != Opcode.RDMA_WRITE_IMM:
            data = w.WQE_SEND_DATA
    if opmod != 0:
        return fail(work, Syndrome.LOCAL_QP_OP_ERR, Vendor.WQE_OPMOD)
    end = load(work + t.WORK_DS) * w.OCTOWORD
    if data > end or ((width != 0 or opcode == Opcode.DUMP) and data + w.OCTOWORD != end):
        return fail(
            work, Syndrome.LOCAL_QP_OP_ERR, Vendor.WQE_DS
        )  # atomics and DUMPs have one data segment, others any number, including 0
    if opcode != Opcode.DUMP:
        store(work + t.WORK_RADDR, load_be64(load(work + t.WORK_WQE) + w.WQE_RADDR))
        store(work + t.WORK_RKEY, load_be32(load(work + t.WORK_WQE) + w.WQE_RADDR + 8))
    store(work + t.WORK_OPERANDS, w.WQE_DATA)
    store(work + t.WORK_DATA, data)
    store(work + t.WORK_WIDTH, width)
    return states.CHECK_LKEY


@device
def awaited(hca: int, qp: int, wqe: int) -> int:
    """Return the address of the record of a WAIT's CQ, 0 if the QP's PE has no such CQ."""
    cqn = load_be32(wqe + WAIT_CQN)
    cq = load(hca + t.CTL_CQS) + (cqn & t.CQ_ROWS_MASK) * t.CQ_ROW
    return cq if load_published(cq + t.CQ_CQN) == cqn and load(cq + t.CQ_PE) == load(qp + t.QP_PE) else 0


@device
def blocked(hca: int, qp: int) -> int:
    """Whether the next WQE is a WAIT whose CQE has not been written: number max_index of its CQ, counted from 0, like in DOCA."""
    wqe = load(qp + t.QP_SQ) + ((load(qp + t.QP_CONSUMER) & load(qp + t.QP_MASK)) << w.WQEBB_SHIFT)
    if load_be32(wqe + w.CTRL_OPMOD_IDX_OPCODE) & 0xFF != Opcode.WAIT or load(hca + t.CTL_CQS) == 0:
        return 0
    cq = awaited(hca, qp, wqe)
    if cq == 0:
        return 0
    return ((load(cq + t.CQ_PRODUCER) - 1 - load_be32(wqe + WAIT_INDEX)) & _WORD) >> 31


@device
def check_lkey(hca: int, qp: int, work: int) -> int:
    """Resolve the data segments: each lkey must exist, belong to the QP's PD, contain the range, and allow writing if data returns.

    Local Protection Error; rxe_mr.c lookup_mr and mr_check_range. All segments are checked before any byte is copied.
    """
    wqe = load(work + t.WORK_WQE)
    opcode, at = load(work + t.WORK_OPCODE), load(work + t.WORK_DATA)
    end = load(work + t.WORK_DS) * w.OCTOWORD
    needs = LOCAL_WRITE
    if opcode in (Opcode.RDMA_WRITE, Opcode.DUMP) or (RECEIVES and opcode < Opcode.RDMA_READ):  # below READ: WRITE and SEND
        needs = t.LOCAL_READ
    total, segments = 0, 0
    while at < end:
        if segments == load(work + t.WORK_CAPACITY):
            return states.ALONE
        byte_count = load_be32(wqe + at)
        pair = work + t.WORK_PAIRS + segments * t.SEGMENT_BYTES
        if byte_count & w.INLINE_SEG:
            nbytes = byte_count & ~w.INLINE_SEG
            if (opcode >= Opcode.RDMA_READ if RECEIVES else opcode != Opcode.RDMA_WRITE) or at + w.INLINE_HEADER + nbytes > end:
                return fail(work, Syndrome.LOCAL_QP_OP_ERR, Vendor.WQE_INLINE)
            store(pair, wqe + at + w.INLINE_HEADER)
            at += (w.INLINE_HEADER + nbytes + w.OCTOWORD - 1) // w.OCTOWORD * w.OCTOWORD
        else:
            nbytes = byte_count if byte_count else 1 << 31  # 0 is 2 GiB; rdma-core omits empty segments (providers/mlx5/qp.c)
            row = find_key(hca, load_be32(wqe + at + 4))
            offset = load_be64(wqe + at + 8) - load(row + t.MKEY_START)
            if load(row + t.MKEY_KEY) == 0:
                return fail(work, Syndrome.LOCAL_PROT_ERR, Vendor.LKEY_UNKNOWN)
            if load(row + t.MKEY_PD) != load(qp + t.QP_PD):
                return fail(work, Syndrome.LOCAL_PROT_ERR, Vendor.LKEY_PD)
            if offset < 0 or nbytes > load(row + t.MKEY_NBYTES) - offset:
                return fail(work, Syndrome.LOCAL_PROT_ERR, Vendor.LKEY_BOUNDS)
            if load(row + t.MKEY_ACCESS) & needs != needs:
                return fail(work, Syndrome.LOCAL_PROT_ERR, Vendor.LKEY_ACCESS)
            store(pair, load(row + t.MKEY_ADDRESS) + offset)
            at += w.OCTOWORD
        store(pair + 8, nbytes)
        total += nbytes
        segments += 1
    store(work + t.WORK_SEGMENTS, segments)
    store(work + t.WORK_NBYTES, total)
    return states.CHECK_LENGTH


@device
def check_length(hca: int, qp: int, work: int) -> int:
    """Check the message's length against qpc.log_msg_max, and an atomic's data segment against the operand's size (Local Length Error)."""
    width, nbytes = load(work + t.WORK_WIDTH), load(work + t.WORK_NBYTES)
    if width != 0 and nbytes != width:
        return fail(work, Syndrome.LOCAL_LENGTH_ERR, Vendor.LENGTH_ATOMIC)
    if nbytes > 1 << load(qp + t.QP_LOG_MSG_MAX):
        return fail(work, Syndrome.LOCAL_LENGTH_ERR, Vendor.LENGTH_MESSAGE)
    if load(work + t.WORK_OPCODE) == Opcode.DUMP:
        return states.EXECUTE_DUMP
    return states.CHECK_CONNECTION


@device
def row_of_key(hca: int, key: int) -> int:
    """Return the address of the record that has a key, if it exists."""
    return load(hca + t.CTL_MKEYS) + ((key >> 8) & t.MKEY_ROWS_MASK) * t.MKEY_ROW


@device
def find_key(hca: int, key: int) -> int:
    """Return the address of a key's record, or that of row 0, which has no key, if there is no such key."""
    row = row_of_key(hca, key)
    return row if load_published(row + t.MKEY_KEY) == key else load(hca + t.CTL_MKEYS)


@device
def local_address(hca: int, qp: int, lkey: int, va: int, nbytes: int, needs: int) -> int:
    """Return the address of a local range, 0 if its key does not exist, is of another PD, or does not permit the access."""
    row = find_key(hca, lkey)
    offset = va - load(row + t.MKEY_START)
    if load(row + t.MKEY_KEY) == 0 or load(row + t.MKEY_PD) != load(qp + t.QP_PD) or load(row + t.MKEY_ACCESS) & needs != needs:
        return 0
    return 0 if offset < 0 or nbytes > load(row + t.MKEY_NBYTES) - offset else load(row + t.MKEY_ADDRESS) + offset
