"""The requester: takes doorbells and WQEs of a QP, and performs all checks that do not need the peer."""

from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5.contexts import Access
from pgas.transports.mlx5.doorbell import UAR_BF_BUFFER_SIZE
from pgas.transports.mlx5.wqe import (
    CTRL_FM_CE_SE,
    CTRL_OPMOD_IDX_OPCODE,
    CTRL_QPN_DS,
    DS_MASK,
    DS_PER_WQEBB,
    DS_WAIT,
    DUMP_DATA,
    INLINE_HEADER,
    INLINE_SEG,
    OCTOWORD,
    OPMOD_SHIFT,
    QPN_SHIFT,
    WQE_ATOMIC_DATA,
    WQE_DATA,
    WQE_IDX_MASK,
    WQE_IDX_SHIFT,
    WQE_MASKED_CS_8_DATA,
    WQE_RADDR,
    WQE_SEND_DATA,
    WQE_WAIT,
    WQEBB,
    WQEBB_SHIFT,
    Ce,
    Fm,
    Opcode,
    Opmod,
)
from pgas.transports.mlx5.wqe import WAIT as WAIT_SEGMENT
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine.ops import (
    exchange,
    load,
    load_acquire,
    load_be32,
    load_be32_acquire,
    load_be64,
    load_published,
    load_shared,
    load_u8,
    store,
    swap32,
)
from pgas.transports.softhca.engine.states import (
    ALONE,
    CHECK_CONNECTION,
    CHECK_CONTROL,
    CHECK_FAULT,
    CHECK_LENGTH,
    CHECK_LKEY,
    CHECK_SEGMENTS,
    COMPLETE,
    EXECUTE_DUMP,
    LOCAL_LENGTH,
    LOCAL_PROT,
    LOCAL_QP_OP,
    RECEIVES,
    V_DS,
    V_FENCE,
    V_INDEX,
    V_INJECTED,
    V_INLINE,
    V_LENGTH_ATOMIC,
    V_LENGTH_MESSAGE,
    V_LKEY_ACCESS,
    V_LKEY_BOUNDS,
    V_LKEY_PD,
    V_LKEY_UNKNOWN,
    V_OPCODE,
    V_OPMOD,
    V_OVERRUN,
    V_QPN,
    V_WAIT_CQ,
    count,
    fail,
)
from pgas.transports.softhca.engine.trace import trace

NOP, DUMP, WAIT = int(Opcode.NOP), int(Opcode.DUMP), int(Opcode.WAIT)
WAIT_INDEX, WAIT_CQN = WQE_WAIT + WAIT_SEGMENT.byte("max_index"), WQE_WAIT + WAIT_SEGMENT.byte("qpn_or_cqn")
WRITE, READ = int(Opcode.RDMA_WRITE), int(Opcode.RDMA_READ)
WRITE_IMM, SEND, SEND_IMM = int(Opcode.RDMA_WRITE_IMM), int(Opcode.SEND), int(Opcode.SEND_IMM)
CS, FA = int(Opcode.ATOMIC_CS), int(Opcode.ATOMIC_FA)
MASKED_CS, MASKED_FA = int(Opcode.ATOMIC_MASKED_CS), int(Opcode.ATOMIC_MASKED_FA)
MASKED_4, MASKED_8 = int(Opmod.MASKED_4), int(Opmod.MASKED_8)
FM_LAST = int(Fm.FENCE_AND_INITIATOR_SMALL_FENCE)
FM_MASK, CE_MASK = 7 << 5, int(Ce.ALWAYS_AND_EQE)
LOCAL_WRITE = int(Access.LOCAL_WRITE)
_WORD = 0xFFFF_FFFF


@device
def rung(qp: int) -> int:
    """Return the register with a pending doorbell, 0 if there is none. A poll of a CTA reads past L1."""
    register, on_host, last = load_shared(qp + t.QP_REGISTER), load_shared(qp + t.QP_ON_HOST), load_shared(qp + t.QP_RUNG)
    if RECEIVES and load(qp + t.QP_BUFFERS) == t.SHARED:
        ahead = (recorded(qp) - load(qp + t.QP_PRODUCER)) & WQE_IDX_MASK
        return register if ahead != 0 and ahead < WQE_IDX_MASK - load(qp + t.QP_MASK) else 0
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
    return swap32((word >> 32) & _WORD) >> QPN_SHIFT


@device
def recorded(qp: int) -> int:
    """Return the send counter of a QP's doorbell record."""
    return load_be32_acquire(load(qp + t.QP_DBR)) & WQE_IDX_MASK


@device
def take_doorbell(qp: int) -> int:
    """Take a doorbell and move the producer index; return whether there was one.

    The doorbell record alone does nothing: it is read when there is a doorbell, and the further index of the two counts.
    """
    register = rung(qp)
    if register == 0:
        return 0
    if RECEIVES and load(qp + t.QP_BUFFERS) == t.SHARED:
        count(qp + t.QP_DOORBELLS, 1)
        record = recorded(qp)
        return advance(qp, record, record)
    return credit(qp, collect(register, load(qp + t.QP_ON_HOST)), recorded(qp))


@device
def collect(register: int, on_host: int) -> int:
    """Return the word in a doorbell register, and clear the register unless a CPU rings it."""
    return load_acquire(register) if on_host != 0 else exchange(register, 0)


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
def announced(word: int) -> int:
    """Return the producer index of a doorbell: an empty WQEBB with ds 0, or the start of the last WQE with its ds. opmod is ignored."""
    idx_word, qpn_word = swap32(word & _WORD), swap32((word >> 32) & _WORD)
    wqebbs = ((qpn_word & DS_MASK) + DS_PER_WQEBB - 1) // DS_PER_WQEBB
    return ((idx_word >> WQE_IDX_SHIFT) + wqebbs) & WQE_IDX_MASK


@device
def advance(qp: int, index: int, record: int) -> int:
    """Move the producer index to that of a doorbell or its record (doorbell.advance); return 1."""
    producer, depth = load(qp + t.QP_PRODUCER), load(qp + t.QP_MASK) + 1
    by_ring, by_record = (index - producer) & WQE_IDX_MASK, (record - producer) & WQE_IDX_MASK
    distance = 0
    if by_ring <= depth:
        distance = by_ring
        if by_record < by_ring or by_record > depth:
            count(qp + t.QP_STALE_RECORDS, 1)
    elif by_ring <= WQE_IDX_MASK - depth:
        distance = depth + 1  # more than a queue ahead or behind: fetch reports an overrun
    elif not RECEIVES or load(qp + t.QP_BUFFERS) == 0:  # with two buffers the first doorbell may be seen last
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
    first = ring + ((index & mask) << WQEBB_SHIFT)
    wqe = load(work + t.WORK_WQE)
    store(wqe, load(first))
    store(wqe + 8, load(first + 8))
    wqebbs = begin(work, index)
    ds = load(work + t.WORK_DS)
    # Consume one WQEBB of a WQE whose size cannot be right.
    store(work + t.WORK_WQEBBS, max(1, min(wqebbs, rung)))
    state = CHECK_CONTROL
    if rung > mask + 1:
        state = fail(work, LOCAL_QP_OP, V_OVERRUN)
    elif ds == 0 or wqebbs > rung:
        state = fail(work, LOCAL_QP_OP, V_DS)
    else:
        for k in range(wqebbs):
            block = ring + (((index + k) & mask) << WQEBB_SHIFT)
            for offset in range(0, min(WQEBB, ds * OCTOWORD - k * WQEBB), 8):
                store(wqe + k * WQEBB + offset, load(block + offset))
    if load(hca + t.CTL_TRACE_KINDS) & t.TRACE_WQE:
        trace(hca, qp, t.TRACE_WQE, index, wqe, max(1, ds) * OCTOWORD)
    return state


@device
def begin(work: int, index: int) -> int:
    """Decode the control segment of the WQE at WORK_WQE into the work record; return the WQE's number of WQEBBs."""
    wqe = load(work + t.WORK_WQE)
    idx_word = load_be32(wqe + CTRL_OPMOD_IDX_OPCODE)
    ds = load_be32(wqe + CTRL_QPN_DS) & DS_MASK
    store(work + t.WORK_INDEX, index)
    store(work + t.WORK_OPCODE, idx_word & 0xFF)
    store(work + t.WORK_OPMOD, idx_word >> OPMOD_SHIFT)
    store(work + t.WORK_DS, ds)
    store(work + t.WORK_CE, load_u8(wqe + CTRL_FM_CE_SE) & CE_MASK)
    store(work + t.WORK_NBYTES, 0)
    store(work + t.WORK_WIDTH, 0)
    store(work + t.WORK_SEGMENTS, 0)
    return (ds + DS_PER_WQEBB - 1) // DS_PER_WQEBB


@device
def check_control(hca: int, qp: int, work: int) -> int:
    """Check that the control segment has this QP and this index: cheap, and catches most mistakes of a driver."""
    wqe = load(work + t.WORK_WQE)
    idx_word = load_be32(wqe + CTRL_OPMOD_IDX_OPCODE)
    if (idx_word >> WQE_IDX_SHIFT) & WQE_IDX_MASK != load(work + t.WORK_INDEX) & WQE_IDX_MASK:
        return fail(work, LOCAL_QP_OP, V_INDEX)
    if load_be32(wqe + CTRL_QPN_DS) >> QPN_SHIFT != load(qp + t.QP_QPN):
        return fail(work, LOCAL_QP_OP, V_QPN)
    # Valid fence modes need no action: a WQE is executed after the earlier ones, whose data is in memory.
    if load_u8(wqe + CTRL_FM_CE_SE) & FM_MASK > FM_LAST:
        return fail(work, LOCAL_QP_OP, V_FENCE)
    if load(hca + t.CTL_FAIL_COUNT) != 0:
        return CHECK_FAULT
    return CHECK_SEGMENTS


@device
def check_fault(hca: int, qp: int, work: int) -> int:
    """Fail the WQE that is selected by a fault."""
    only = load(hca + t.CTL_FAIL_QPN)
    if only == 0 or only == load(qp + t.QP_QPN):
        left = load(hca + t.CTL_FAIL_COUNT) - 1
        store(hca + t.CTL_FAIL_COUNT, left)
        if left == 0:
            return fail(work, load(hca + t.CTL_FAIL_SYNDROME), V_INJECTED)
    return CHECK_SEGMENTS


@device
def check_segments(hca: int, qp: int, work: int) -> int:
    """Find the segments of the opcode. opmod is the width of a masked atomic, else 0."""
    opcode, opmod = load(work + t.WORK_OPCODE), load(work + t.WORK_OPMOD)
    if RECEIVES and opcode == WAIT and load(hca + t.CTL_CQS) != 0:
        if load(work + t.WORK_DS) != DS_WAIT:
            return fail(work, LOCAL_QP_OP, V_DS)
        return COMPLETE if awaited(hca, qp, load(work + t.WORK_WQE)) != 0 else fail(work, LOCAL_QP_OP, V_WAIT_CQ)
    data = WQE_DATA
    width = 0
    if opcode == NOP:
        return COMPLETE  # with ds 1 or 2; the second octoword is ignored
    if opcode == DUMP:
        data = DUMP_DATA
    elif opcode in (CS, FA):
        data, width = WQE_ATOMIC_DATA, 8
    elif opcode in (MASKED_CS, MASKED_FA):
        if opmod == MASKED_4:
            data, width = WQE_ATOMIC_DATA, 4
        elif opmod == MASKED_8:
            width = 8
            data = WQE_MASKED_CS_8_DATA if opcode == MASKED_CS else WQE_ATOMIC_DATA
        else:
            return fail(work, LOCAL_QP_OP, V_OPMOD)
        opmod = 0
    elif opcode != WRITE and opcode != READ:
        if not RECEIVES or opcode not in (SEND, SEND_IMM, WRITE_IMM):
            return fail(work, LOCAL_QP_OP, V_OPCODE)
        if opcode != WRITE_IMM:
            data = WQE_SEND_DATA
    if opmod != 0:
        return fail(work, LOCAL_QP_OP, V_OPMOD)
    end = load(work + t.WORK_DS) * OCTOWORD
    if data > end or ((width != 0 or opcode == DUMP) and data + OCTOWORD != end):
        return fail(work, LOCAL_QP_OP, V_DS)  # an atomic and a DUMP have one data segment, others any number, also 0
    if opcode != DUMP:
        store(work + t.WORK_RADDR, load_be64(load(work + t.WORK_WQE) + WQE_RADDR))
        store(work + t.WORK_RKEY, load_be32(load(work + t.WORK_WQE) + WQE_RADDR + 8))
    store(work + t.WORK_OPERANDS, WQE_DATA)
    store(work + t.WORK_DATA, data)
    store(work + t.WORK_WIDTH, width)
    return CHECK_LKEY


@device
def awaited(hca: int, qp: int, wqe: int) -> int:
    """Return the address of the record of a WAIT's CQ, 0 if the QP's PE has no such CQ."""
    cqn = load_be32(wqe + WAIT_CQN)
    cq = load(hca + t.CTL_CQS) + (cqn & t.CQ_ROWS_MASK) * t.CQ_ROW
    return cq if load_published(cq + t.CQ_CQN) == cqn and load(cq + t.CQ_PE) == load(qp + t.QP_PE) else 0


@device
def blocked(hca: int, qp: int) -> int:
    """Whether the next WQE is a WAIT whose CQE has not been written: number max_index of its CQ, from 0, as DOCA uses it."""
    wqe = load(qp + t.QP_SQ) + ((load(qp + t.QP_CONSUMER) & load(qp + t.QP_MASK)) << WQEBB_SHIFT)
    if load_be32(wqe + CTRL_OPMOD_IDX_OPCODE) & 0xFF != WAIT or load(hca + t.CTL_CQS) == 0:
        return 0
    cq = awaited(hca, qp, wqe)
    if cq == 0:
        return 0
    return ((load(cq + t.CQ_PRODUCER) - 1 - load_be32(wqe + WAIT_INDEX)) & _WORD) >> 31


@device
def check_lkey(hca: int, qp: int, work: int) -> int:
    """Resolve the data segments to addresses: each lkey exists, is of the QP's PD, contains the range, and allows writing if data returns.

    Local Protection Error; rxe_mr.c lookup_mr and mr_check_range. All segments are checked before any byte is copied.
    """
    wqe = load(work + t.WORK_WQE)
    opcode, at = load(work + t.WORK_OPCODE), load(work + t.WORK_DATA)
    end = load(work + t.WORK_DS) * OCTOWORD
    needs = t.LOCAL_READ if opcode in (WRITE, DUMP) or (RECEIVES and opcode < READ) else LOCAL_WRITE  # below READ: WRITE and SEND
    total, segments = 0, 0
    while at < end:
        if segments == load(work + t.WORK_CAPACITY):
            return ALONE
        byte_count = load_be32(wqe + at)
        pair = work + t.WORK_PAIRS + segments * t.SEGMENT_BYTES
        if byte_count & INLINE_SEG:
            nbytes = byte_count & ~INLINE_SEG
            if (opcode >= READ if RECEIVES else opcode != WRITE) or at + INLINE_HEADER + nbytes > end:
                return fail(work, LOCAL_QP_OP, V_INLINE)
            store(pair, wqe + at + INLINE_HEADER)
            at += (INLINE_HEADER + nbytes + OCTOWORD - 1) // OCTOWORD * OCTOWORD
        else:
            nbytes = byte_count if byte_count else 1 << 31  # 0 is 2 GiB; rdma-core leaves empty segments out (providers/mlx5/qp.c)
            row = find_key(hca, load_be32(wqe + at + 4))
            offset = load_be64(wqe + at + 8) - load(row + t.MKEY_START)
            if load(row + t.MKEY_KEY) == 0:
                return fail(work, LOCAL_PROT, V_LKEY_UNKNOWN)
            if load(row + t.MKEY_PD) != load(qp + t.QP_PD):
                return fail(work, LOCAL_PROT, V_LKEY_PD)
            if offset < 0 or nbytes > load(row + t.MKEY_NBYTES) - offset:
                return fail(work, LOCAL_PROT, V_LKEY_BOUNDS)
            if load(row + t.MKEY_ACCESS) & needs != needs:
                return fail(work, LOCAL_PROT, V_LKEY_ACCESS)
            store(pair, load(row + t.MKEY_ADDRESS) + offset)
            at += OCTOWORD
        store(pair + 8, nbytes)
        total += nbytes
        segments += 1
    store(work + t.WORK_SEGMENTS, segments)
    store(work + t.WORK_NBYTES, total)
    return CHECK_LENGTH


@device
def check_length(hca: int, qp: int, work: int) -> int:
    """Check the message's length against qpc.log_msg_max, and an atomic's data segment against the operand's size (Local Length Error)."""
    width, nbytes = load(work + t.WORK_WIDTH), load(work + t.WORK_NBYTES)
    if width != 0 and nbytes != width:
        return fail(work, LOCAL_LENGTH, V_LENGTH_ATOMIC)
    if nbytes > 1 << load(qp + t.QP_LOG_MSG_MAX):
        return fail(work, LOCAL_LENGTH, V_LENGTH_MESSAGE)
    if load(work + t.WORK_OPCODE) == DUMP:
        return EXECUTE_DUMP
    return CHECK_CONNECTION


@device
def row_of_key(hca: int, key: int) -> int:
    """Return the address of the record in which a key is, if it exists."""
    return load(hca + t.CTL_MKEYS) + ((key >> 8) & t.MKEY_ROWS_MASK) * t.MKEY_ROW


@device
def find_key(hca: int, key: int) -> int:
    """Return the address of a key's record, or that of row 0, which has no key, if there is no such key."""
    row = row_of_key(hca, key)
    return row if load_published(row + t.MKEY_KEY) == key else load(hca + t.CTL_MKEYS)
