"""Fast checks of common WQEs, which load all fields together. The states (pipeline.check) load them one after another.

The latency of each load delays the cuda engine. A WQE that passes these checks also passes the states. Any other WQE goes through the
states, which find its error. tests/softhca/test_softhca_usual_wqes.py compares the two.

This is a second implementation of ten states on purpose. Each state stops at the first failed check to name the error, so its loads depend
on the results of earlier ones. Here the loads come first and the checks after them. The states alone take 45% to 61% longer, even on a CPU
whose L1 cache has all records: 20 instead of 12 ns for a WRITE or READ, 32 instead of 20 ns for a fetch_add, 35 instead of 24 ns for a
masked compare-and-swap of 8 bytes (x86-64, median of nine runs, 2026-11-27). One implementation for both would have to be within 5%.

The cpu engine uses only the states. In the simulator, interpreted kernels limit the rates: with these checks before the states, p over
ibgda is as fast to within 1.4% (medians of five alternating runs). On a GPU, these checks were part of the change that cut the latency of a
single WQE by a third (fetch_add over ibgda on an H100 took 29 us before it, commit afc257d). Their share has not been measured alone.
"""

from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5 import wqe as w
from pgas.transports.mlx5.wqe import Opcode, Opmod
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine import states
from pgas.transports.softhca.engine.ops import load, load_be32, load_be64, load_u8, store
from pgas.transports.softhca.engine.requester import LOCAL_WRITE, row_of_key
from pgas.transports.softhca.engine.responder import REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE

#: Result that is not a state: the WQE has another form, or does not pass.
UNUSUAL = -1


@device
def check_usual(hca: int, qp: int, work: int, wqe: int, index: int) -> int:
    """Check a NOP, a WRITE or READ with one segment, or an atomic, without a fence. Return the state that executes it, or UNUSUAL.

    The work record gets what executing the WQE needs.
    """
    idx_word, qpn_word = load_be32(wqe + w.CTRL_OPMOD_IDX_OPCODE), load_be32(wqe + w.CTRL_QPN_DS)
    fm_ce_se, raddr, rkey = load_u8(wqe + w.CTRL_FM_CE_SE), load_be64(wqe + w.WQE_RADDR), load_be32(wqe + w.WQE_RADDR + 8)
    opcode, opmod, end = idx_word & 0xFF, idx_word >> w.OPMOD_SHIFT, (qpn_word & w.DS_MASK) * w.OCTOWORD
    plain, masked = opcode in (Opcode.ATOMIC_CS, Opcode.ATOMIC_FA), opcode in (Opcode.ATOMIC_MASKED_CS, Opcode.ATOMIC_MASKED_FA)
    width = 0 if not (plain or masked) else 4 if opmod == Opmod.MASKED_4 else 8
    at = w.WQE_DATA if width == 0 else w.WQE_ATOMIC_DATA
    if opcode == Opcode.ATOMIC_MASKED_CS and opmod == Opmod.MASKED_8 and end == w.DS_MASKED_CS_8 * w.OCTOWORD:
        at = w.WQE_MASKED_CS_8_DATA
    byte_count, lkey, address = load_be32(wqe + at), load_be32(wqe + at + 4), load_be64(wqe + at + 8)
    here, there = row_of_key(hca, lkey), row_of_key(hca, rkey)
    peer = load(hca + t.CTL_QPS) + (load(qp + t.QP_REMOTE_QPN) & t.QP_ROWS_MASK) * t.QP_ROW
    # Load from each 32-byte sector of the records in parallel; later loads hit L1.
    key, start = load(here + t.MKEY_KEY), load(here + t.MKEY_START)
    far_key, far_start = load(there + t.MKEY_KEY), load(there + t.MKEY_START)
    number, allowed, broken = load(peer + t.QP_QPN), load(peer + t.QP_ACCESS), load(peer + t.QP_BROKEN)

    if (idx_word >> w.WQE_IDX_SHIFT) & w.WQE_IDX_MASK != index & w.WQE_IDX_MASK or qpn_word >> w.QPN_SHIFT != load(qp + t.QP_QPN):
        return UNUSUAL
    if fm_ce_se & w.FM_MASK != 0 or load(hca + t.CTL_FAIL_COUNT) != 0:
        return UNUSUAL
    store(work + t.WORK_OPCODE, opcode)
    store(work + t.WORK_CE, fm_ce_se & w.CE_MASK)
    if opcode == Opcode.NOP:
        store(work + t.WORK_NBYTES, 0)
        store(work + t.WORK_SEGMENTS, 0)
        return states.COMPLETE
    if opmod not in (Opmod.MASKED_4, Opmod.MASKED_8) if masked else opmod != 0:
        return UNUSUAL
    if opcode == Opcode.ATOMIC_MASKED_CS and opmod == Opmod.MASKED_8 and at != w.WQE_MASKED_CS_8_DATA:
        return UNUSUAL
    if opcode == Opcode.RDMA_WRITE:
        execute, operation, far_needs, needs = states.EXECUTE_WRITE, t.OP_WRITE, REMOTE_WRITE, t.LOCAL_READ
    elif opcode == Opcode.RDMA_READ:
        execute, operation, far_needs, needs = states.EXECUTE_READ, t.OP_READ, REMOTE_READ, LOCAL_WRITE
    elif width != 0:
        execute, operation, far_needs, needs = states.EXECUTE_ATOMIC, t.OP_ATOMIC, REMOTE_ATOMIC, LOCAL_WRITE
    else:
        return UNUSUAL
    nbytes, source = byte_count & ~w.INLINE_SEG, wqe + at + w.INLINE_HEADER
    if byte_count & w.INLINE_SEG:
        if opcode != Opcode.RDMA_WRITE or (at + w.INLINE_HEADER + nbytes + w.OCTOWORD - 1) // w.OCTOWORD * w.OCTOWORD != end:
            return UNUSUAL
    else:
        pd, access = load(here + t.MKEY_PD), load(here + t.MKEY_ACCESS)
        room, place, offset = load(here + t.MKEY_NBYTES), load(here + t.MKEY_ADDRESS), address - start
        if at + w.OCTOWORD != end or key != lkey or key == 0 or pd != load(qp + t.QP_PD) or access & needs != needs:
            return UNUSUAL
        if offset < 0 or nbytes > room - offset:
            return UNUSUAL
        source = place + offset
    if nbytes == 0 or nbytes > 1 << load(qp + t.QP_LOG_MSG_MAX) or (width != 0 and (nbytes != width or raddr & (width - 1) != 0)):
        return UNUSUAL
    state, peer_pd, back, psn = load(peer + t.QP_STATE), load(peer + t.QP_PD), load(peer + t.QP_REMOTE_QPN), load(peer + t.QP_RECV_PSN)
    if number != load(qp + t.QP_REMOTE_QPN) or number == 0 or (state != t.RTR and state != t.RTS) or broken != 0:
        return UNUSUAL
    if back != load(qp + t.QP_QPN) or psn != load(qp + t.QP_SEND_PSN) or allowed & operation == 0:
        return UNUSUAL
    far_pd, far_access, far_offset = load(there + t.MKEY_PD), load(there + t.MKEY_ACCESS), raddr - far_start
    far_room, far_place = load(there + t.MKEY_NBYTES), load(there + t.MKEY_ADDRESS)
    if far_key != rkey or far_key == 0 or far_pd != peer_pd or far_access & far_needs == 0:
        return UNUSUAL
    if far_offset < 0 or nbytes > far_room - far_offset:
        return UNUSUAL
    store(work + t.WORK_NBYTES, nbytes)
    store(work + t.WORK_WIDTH, width)
    store(work + t.WORK_OPERANDS, w.WQE_DATA)
    store(work + t.WORK_SEGMENTS, 1)
    store(work + t.WORK_PAIRS, source)
    store(work + t.WORK_PAIRS + 8, nbytes)
    store(work + t.WORK_REMOTE, far_place + far_offset)
    return execute
