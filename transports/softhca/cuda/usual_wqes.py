"""Fast checks of common WQEs: all fields are loaded together. The states (pipeline.check) load them one after another.

The latency of each load delays the cuda engine. A WQE that passes these checks also passes the states. Any other WQE goes through the
states, which find its error. tests/softhca/test_softhca_usual_wqes.py compares the two.
"""

from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5.wqe import (
    CTRL_FM_CE_SE,
    CTRL_OPMOD_IDX_OPCODE,
    CTRL_QPN_DS,
    DS_MASK,
    DS_MASKED_CS_8,
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
)
from pgas.transports.softhca.engine.ops import load, load_be32, load_be64, load_u8, store
from pgas.transports.softhca.engine.requester import (
    CE_MASK,
    CS,
    FA,
    FM_MASK,
    LOCAL_WRITE,
    MASKED_4,
    MASKED_8,
    MASKED_CS,
    MASKED_FA,
    NOP,
    READ,
    WRITE,
    row_of_key,
)
from pgas.transports.softhca.engine.responder import REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE
from pgas.transports.softhca.engine.states import COMPLETE, EXECUTE_ATOMIC, EXECUTE_READ, EXECUTE_WRITE
from pgas.transports.softhca.tables import (
    CTL_FAIL_COUNT,
    CTL_QPS,
    LOCAL_READ,
    MKEY_ACCESS,
    MKEY_ADDRESS,
    MKEY_KEY,
    MKEY_NBYTES,
    MKEY_PD,
    MKEY_START,
    OP_ATOMIC,
    OP_READ,
    OP_WRITE,
    QP_ACCESS,
    QP_BROKEN,
    QP_LOG_MSG_MAX,
    QP_PD,
    QP_QPN,
    QP_RECV_PSN,
    QP_REMOTE_QPN,
    QP_ROW,
    QP_ROWS_MASK,
    QP_SEND_PSN,
    QP_STATE,
    RTR,
    RTS,
    WORK_CE,
    WORK_NBYTES,
    WORK_OPCODE,
    WORK_OPERANDS,
    WORK_PAIRS,
    WORK_REMOTE,
    WORK_SEGMENTS,
    WORK_WIDTH,
)

__all__ = ["UNUSUAL", "check_usual"]

#: No state: the WQE has another form, or does not pass.
UNUSUAL = -1


@device
def check_usual(hca: int, qp: int, work: int, wqe: int, index: int) -> int:
    """Check a NOP, a WRITE or READ with one segment, or an atomic, without a fence. Return the state that executes it, or UNUSUAL.

    The work record gets what executing the WQE needs.
    """
    idx_word, qpn_word = load_be32(wqe + CTRL_OPMOD_IDX_OPCODE), load_be32(wqe + CTRL_QPN_DS)
    fm_ce_se, raddr, rkey = load_u8(wqe + CTRL_FM_CE_SE), load_be64(wqe + WQE_RADDR), load_be32(wqe + WQE_RADDR + 8)
    opcode, opmod, end = idx_word & 0xFF, idx_word >> OPMOD_SHIFT, (qpn_word & DS_MASK) * OCTOWORD
    plain, masked = opcode in (CS, FA), opcode in (MASKED_CS, MASKED_FA)
    width = 0 if not (plain or masked) else 4 if opmod == MASKED_4 else 8
    at = WQE_DATA if width == 0 else WQE_ATOMIC_DATA
    if opcode == MASKED_CS and opmod == MASKED_8 and end == DS_MASKED_CS_8 * OCTOWORD:
        at = WQE_MASKED_CS_8_DATA
    byte_count, lkey, address = load_be32(wqe + at), load_be32(wqe + at + 4), load_be64(wqe + at + 8)
    here, there = row_of_key(hca, lkey), row_of_key(hca, rkey)
    peer = load(hca + CTL_QPS) + (load(qp + QP_REMOTE_QPN) & QP_ROWS_MASK) * QP_ROW
    # Load from each 32-byte sector of the records in parallel; later loads hit L1.
    key, start, far_key, far_start = load(here + MKEY_KEY), load(here + MKEY_START), load(there + MKEY_KEY), load(there + MKEY_START)
    number, allowed, broken = load(peer + QP_QPN), load(peer + QP_ACCESS), load(peer + QP_BROKEN)

    if (idx_word >> WQE_IDX_SHIFT) & WQE_IDX_MASK != index & WQE_IDX_MASK or qpn_word >> QPN_SHIFT != load(qp + QP_QPN):
        return UNUSUAL
    if fm_ce_se & FM_MASK != 0 or load(hca + CTL_FAIL_COUNT) != 0:
        return UNUSUAL
    store(work + WORK_OPCODE, opcode)
    store(work + WORK_CE, fm_ce_se & CE_MASK)
    if opcode == NOP:
        store(work + WORK_NBYTES, 0)
        store(work + WORK_SEGMENTS, 0)
        return COMPLETE
    if opmod not in (MASKED_4, MASKED_8) if masked else opmod != 0:
        return UNUSUAL
    if opcode == MASKED_CS and opmod == MASKED_8 and at != WQE_MASKED_CS_8_DATA:
        return UNUSUAL
    if opcode == WRITE:
        execute, operation, far_needs, needs = EXECUTE_WRITE, OP_WRITE, REMOTE_WRITE, LOCAL_READ
    elif opcode == READ:
        execute, operation, far_needs, needs = EXECUTE_READ, OP_READ, REMOTE_READ, LOCAL_WRITE
    elif width != 0:
        execute, operation, far_needs, needs = EXECUTE_ATOMIC, OP_ATOMIC, REMOTE_ATOMIC, LOCAL_WRITE
    else:
        return UNUSUAL
    nbytes, source = byte_count & ~INLINE_SEG, wqe + at + INLINE_HEADER
    if byte_count & INLINE_SEG:
        if opcode != WRITE or (at + INLINE_HEADER + nbytes + OCTOWORD - 1) // OCTOWORD * OCTOWORD != end:
            return UNUSUAL
    else:
        pd, access = load(here + MKEY_PD), load(here + MKEY_ACCESS)
        room, place, offset = load(here + MKEY_NBYTES), load(here + MKEY_ADDRESS), address - start
        if at + OCTOWORD != end or key != lkey or key == 0 or pd != load(qp + QP_PD) or access & needs != needs:
            return UNUSUAL
        if offset < 0 or nbytes > room - offset:
            return UNUSUAL
        source = place + offset
    if nbytes == 0 or nbytes > 1 << load(qp + QP_LOG_MSG_MAX) or (width != 0 and (nbytes != width or raddr & (width - 1) != 0)):
        return UNUSUAL
    state, peer_pd, back, psn = load(peer + QP_STATE), load(peer + QP_PD), load(peer + QP_REMOTE_QPN), load(peer + QP_RECV_PSN)
    if number != load(qp + QP_REMOTE_QPN) or number == 0 or (state != RTR and state != RTS) or broken != 0:
        return UNUSUAL
    if back != load(qp + QP_QPN) or psn != load(qp + QP_SEND_PSN) or allowed & operation == 0:
        return UNUSUAL
    far_pd, far_access, far_offset = load(there + MKEY_PD), load(there + MKEY_ACCESS), raddr - far_start
    far_room, far_place = load(there + MKEY_NBYTES), load(there + MKEY_ADDRESS)
    if far_key != rkey or far_key == 0 or far_pd != peer_pd or far_access & far_needs == 0:
        return UNUSUAL
    if far_offset < 0 or nbytes > far_room - far_offset:
        return UNUSUAL
    store(work + WORK_NBYTES, nbytes)
    store(work + WORK_WIDTH, width)
    store(work + WORK_OPERANDS, WQE_DATA)
    store(work + WORK_SEGMENTS, 1)
    store(work + WORK_PAIRS, source)
    store(work + WORK_PAIRS + 8, nbytes)
    store(work + WORK_REMOTE, far_place + far_offset)
    return execute
