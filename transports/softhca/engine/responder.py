"""The responder: the peer QP's checks, in the order of rxe_resp.c (CHK_PSN, CHK_OP_VALID, CHK_RKEY, EXECUTE), and access to its memory.

A request that the peer drops without an answer (no such QP, not connected to the requester, wrong state, wrong PSN) ends at the requester
as "transport retry counter exceeded" immediately, because no packets are lost, so that retries would have the same result.
"""

from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5.contexts import Access
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.mlx5.wqe import Opcode
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine import dma, ops, states
from pgas.transports.softhca.engine.late import deliver_late, fetch_late, place_all_of, place_touched
from pgas.transports.softhca.engine.ops import DELAYS_DATA, RECEIVES, copy, load, load_be32, load_be64, store, store_u32, swap32, swap64
from pgas.transports.softhca.engine.requester import find_key
from pgas.transports.softhca.engine.states import fail, random, refuse, state_of
from pgas.transports.softhca.syndromes import Vendor

REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC = int(Access.REMOTE_WRITE), int(Access.REMOTE_READ), int(Access.REMOTE_ATOMIC)

#: Number of bytes of the pieces in which a fault delivers a long WRITE, the last one first.
PIECE = 4096


@device
def check_connection(hca: int, qp: int, work: int) -> int:
    """Check that remote_qpn is a QP in RTR or RTS, connected to this one, that expects its PSN (rxe_recv.c check_type_state, check_psn)."""
    number = load(qp + t.QP_REMOTE_QPN)
    peer = load(hca + t.CTL_QPS) + (number & t.QP_ROWS_MASK) * t.QP_ROW
    state = state_of(peer)
    if load(peer + t.QP_QPN) != number or number == 0:
        return fail(work, Syndrome.TRANSPORT_RETRY_EXC_ERR, Vendor.NO_RESPONDER)
    if state != t.RTR and state != t.RTS:
        return fail(work, Syndrome.TRANSPORT_RETRY_EXC_ERR, Vendor.RESPONDER_STATE)
    if load(peer + t.QP_REMOTE_QPN) != load(qp + t.QP_QPN):
        return fail(work, Syndrome.TRANSPORT_RETRY_EXC_ERR, Vendor.RESPONDER_PEER)
    if load(peer + t.QP_RECV_PSN) != load(qp + t.QP_SEND_PSN):
        return fail(work, Syndrome.TRANSPORT_RETRY_EXC_ERR, Vendor.RESPONDER_PSN)
    store(work + t.WORK_RESPONDER, peer)
    return states.CHECK_OP_VALID


@device
def check_op_valid(hca: int, qp: int, work: int) -> int:
    """Check that the QP allows the operation: qpc.rwe, rre, rae (rxe_resp.c check_op_valid: NAK invalid request). SEND always is."""
    opcode = load(work + t.WORK_OPCODE)
    needs = t.OP_WRITE if opcode == Opcode.RDMA_WRITE else t.OP_READ if opcode == Opcode.RDMA_READ else t.OP_ATOMIC
    if RECEIVES and Opcode.RDMA_WRITE < opcode < Opcode.RDMA_READ:
        if opcode != Opcode.RDMA_WRITE_IMM:
            return states.CHECK_RECEIVE
        needs = t.OP_WRITE
    if load(load(work + t.WORK_RESPONDER) + t.QP_ACCESS) & needs == 0:
        return refuse(work, Syndrome.REMOTE_INVAL_REQ_ERR, Vendor.OP_DISABLED)
    return states.CHECK_RKEY


@device
def check_rkey(hca: int, qp: int, work: int) -> int:
    """Check that the rkey exists, belongs to the *responder's* PD, contains the range, and allows the operation.

    rxe_resp.c check_rkey: NAK remote access. Zero bytes need neither key nor address.
    """
    opcode, nbytes = load(work + t.WORK_OPCODE), load(work + t.WORK_NBYTES)
    if nbytes == 0:
        return states.CHECK_RECEIVE if RECEIVES and opcode == Opcode.RDMA_WRITE_IMM else states.COMPLETE
    writes = opcode == Opcode.RDMA_WRITE or (RECEIVES and opcode == Opcode.RDMA_WRITE_IMM)
    needs = REMOTE_WRITE if writes else REMOTE_READ if opcode == Opcode.RDMA_READ else REMOTE_ATOMIC
    row = find_key(hca, load(work + t.WORK_RKEY))
    offset = load(work + t.WORK_RADDR) - load(row + t.MKEY_START)
    if load(row + t.MKEY_KEY) == 0:
        return refuse(work, Syndrome.REMOTE_ACCESS_ERR, Vendor.RKEY_UNKNOWN)
    if load(row + t.MKEY_PD) != load(load(work + t.WORK_RESPONDER) + t.QP_PD):
        return refuse(work, Syndrome.REMOTE_ACCESS_ERR, Vendor.RKEY_PD)
    if offset < 0 or nbytes > load(row + t.MKEY_NBYTES) - offset:
        return refuse(work, Syndrome.REMOTE_ACCESS_ERR, Vendor.RKEY_BOUNDS)
    if load(row + t.MKEY_ACCESS) & needs == 0:
        return refuse(work, Syndrome.REMOTE_ACCESS_ERR, Vendor.RKEY_ACCESS)
    store(work + t.WORK_REMOTE, load(row + t.MKEY_ADDRESS) + offset)
    if opcode == Opcode.RDMA_WRITE:
        return states.EXECUTE_WRITE
    if opcode == Opcode.RDMA_READ:
        return states.EXECUTE_READ
    return states.CHECK_RECEIVE if RECEIVES and opcode == Opcode.RDMA_WRITE_IMM else states.CHECK_ALIGNMENT


@device
def check_alignment(hca: int, qp: int, work: int) -> int:
    """Check that an atomic's address is aligned (rxe_resp.c atomic_reply: RESPST_ERR_MISALIGNED_ATOMIC, NAK invalid request)."""
    if load(work + t.WORK_RADDR) & (load(work + t.WORK_WIDTH) - 1):
        return refuse(work, Syndrome.REMOTE_INVAL_REQ_ERR, Vendor.MISALIGNED)
    return states.EXECUTE_ATOMIC


@device
def execute_write(hca: int, qp: int, work: int) -> int:
    """Write the segments one after another."""
    if not DELAYS_DATA or load(hca + t.CTL_LATE) == 0:
        write_segments(hca, qp, work)
    else:
        remote, peer = load(work + t.WORK_REMOTE), load(work + t.WORK_RESPONDER)
        for i in range(load(work + t.WORK_SEGMENTS)):
            pair = work + t.WORK_PAIRS + i * t.SEGMENT_BYTES
            deliver_late(hca, load(peer + t.QP_PE), 0, remote, load(pair), load(pair + 8))
            remote += load(pair + 8)
    return states.COMPLETE


@device
def write_segments(hca: int, qp: int, work: int) -> int:
    """Write the segments without late data."""
    remote = load(work + t.WORK_REMOTE)
    for i in range(load(work + t.WORK_SEGMENTS)):
        pair = work + t.WORK_PAIRS + i * t.SEGMENT_BYTES
        source, nbytes = load(pair), load(pair + 8)
        if nbytes > PIECE and random(hca) < load(hca + t.CTL_CHAOS):
            copy_backwards(remote, source, nbytes)
        else:
            copy(remote, source, nbytes)
        remote += nbytes
    return 0


@device
def copy_backwards(dest: int, source: int, nbytes: int) -> int:
    """Copy in pieces, the last one first, because RC orders messages, not the bytes of one (put_signal)."""
    end = nbytes
    while end > 0:
        start = max(0, end - PIECE)
        copy(dest + start, source + start, end - start)
        end = start
    return 0


@device
def execute_read(hca: int, qp: int, work: int) -> int:
    """Scatter the data into the segments."""
    if not DELAYS_DATA or load(hca + t.CTL_LATE) == 0:
        read_segments(hca, qp, work)
    else:
        remote = load(work + t.WORK_REMOTE)
        place_all_of(hca, load(load(work + t.WORK_RESPONDER) + t.QP_PE), 0)
        for i in range(load(work + t.WORK_SEGMENTS)):
            pair = work + t.WORK_PAIRS + i * t.SEGMENT_BYTES
            fetch_late(hca, qp, load(pair), remote, load(pair + 8))
            remote += load(pair + 8)
    return states.COMPLETE


@device
def read_segments(hca: int, qp: int, work: int) -> int:
    """Scatter the data without late data."""
    remote = load(work + t.WORK_REMOTE)
    for i in range(load(work + t.WORK_SEGMENTS)):
        pair = work + t.WORK_PAIRS + i * t.SEGMENT_BYTES
        copy(load(pair), remote, load(pair + 8))
        remote += load(pair + 8)
    return 0


@device
def execute_atomic(hca: int, qp: int, work: int) -> int:
    """Update the operand and write the old value, after all earlier WQEs."""
    if not ops.ORDERED_UPDATES:
        ops.fence()
    update(hca, qp, work)
    return states.COMPLETE


@device
def update(hca: int, qp: int, work: int) -> int:
    """Update the operand and write the old value."""
    width, operands = load(work + t.WORK_WIDTH), load(work + t.WORK_WQE) + load(work + t.WORK_OPERANDS)
    old = exchange(hca, load(work + t.WORK_REMOTE), load(work + t.WORK_OPCODE), width, operands)
    # Pass the result through the WQE's copy, which has no further use, so that the local address may have any alignment.
    result = load(work + t.WORK_WQE)
    put_original(hca, result, width, old)
    if not DELAYS_DATA or load(hca + t.CTL_LATE) == 0:
        copy(load(work + t.WORK_PAIRS), result, width)
    else:
        fetch_late(hca, qp, load(work + t.WORK_PAIRS), result, width)
    return 0


@device
def exchange(hca: int, remote: int, opcode: int, width: int, operands: int) -> int:
    """Update an operand atomically, and return its old value."""
    if dma.by_dma(hca) != 0:
        adds = 1 if opcode in (Opcode.ATOMIC_FA, Opcode.ATOMIC_MASKED_FA) else 0
        return dma.exchange(hca, remote, width, adds, *operands_of(opcode, width, operands))
    place_touched(hca, remote, width)
    while True:
        if opcode == Opcode.ATOMIC_FA and load(hca + t.CTL_ATOMICS_SPLIT) == 0:
            old = ops.add_relaxed(remote, load_be64(operands))
            break
        old = ops.load_atomic(remote, width)
        new = updated(opcode, width, operands, old)
        if load(hca + t.CTL_ATOMICS_SPLIT) != 0:
            # Like a NIC whose atomics are not atomic with respect to those of the SMs: a gap between read and write, long
            # enough for a PE to run in it.
            ops.idle(ops.YIELDS)
            ops.store_atomic(remote, new, width)
            break
        if ops.compare_swap_atomic(remote, old, new, width) == old:
            break
    return old


@device
def put_original(hca: int, result: int, width: int, old: int) -> int:
    """Store the old value of an atomic: 4 bytes big-endian, 8 bytes in the order that the capabilities report."""
    if width == 4:
        store_u32(result, swap32(old))
    elif load(hca + t.CTL_BIG_ENDIAN) == 0:
        store(result, old)
    else:
        store(result, swap64(old))
    return 0


@device
def updated(opcode: int, width: int, operands: int, old: int) -> int:
    """Return a value after an atomic."""
    swap, compare, swap_mask, compare_mask = operands_of(opcode, width, operands)
    new = changed(1 if opcode in (Opcode.ATOMIC_FA, Opcode.ATOMIC_MASKED_FA) else 0, old, swap, compare, swap_mask, compare_mask)
    return new & 0xFFFF_FFFF if width == 4 else new


@device
def operands_of(opcode: int, width: int, operands: int) -> tuple[int, int, int, int]:
    """Return the operands of an atomic: the value to store, the one to compare with, and their masks; to add, a value and its boundary."""
    if width == 4:
        swap_mask, compare_mask = (0, 0) if opcode == Opcode.ATOMIC_MASKED_FA else (load_be32(operands + 8), load_be32(operands + 12))
        return load_be32(operands), load_be32(operands + 4), swap_mask, compare_mask
    swap = load_be64(operands)
    if opcode == Opcode.ATOMIC_FA:
        return swap, 0, 0, 0
    compare = load_be64(operands + 8)
    if opcode == Opcode.ATOMIC_MASKED_CS:
        return swap, compare, load_be64(operands + 16), load_be64(operands + 24)
    return swap, compare, -1, -1


@device
def changed(adds: int, old: int, swap: int, compare: int, swap_mask: int, compare_mask: int) -> int:
    """Return a value after an addition without carry out of bits that are set in compare, or after a masked compare-and-swap.

    If all bits are set in compare, the addition is an exclusive or. The function calls no other one, because kernels also have it.
    """
    if adds != 0:
        return ((old & ~compare) + (swap & ~compare)) ^ ((old ^ swap) & compare)
    if (old ^ compare) & compare_mask:
        return old
    return (old & ~swap_mask) | (swap & swap_mask)
