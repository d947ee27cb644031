"""The pipeline of a WQE: the table of its states, each with the clause that it implements, and their dispatch.

The order of checks and the classes of errors are those of Linux's software HCA (drivers/infiniband/sw/rxe: rxe_req.c, rxe_resp.c,
rxe_comp.c). The receiver's states exist only if the engine serves receive queues (states.RECEIVES).

IBTA: InfiniBand Architecture Specification, volume 1. PRM: Mellanox Adapters Programmer's Reference Manual.
"""

from typing import Any, NamedTuple

from pgas.transports.hostloop.compiled import device
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine import completer, late, receiver, requester, responder
from pgas.transports.softhca.engine.limits import admit
from pgas.transports.softhca.engine.ops import RECEIVES, load
from pgas.transports.softhca.engine.states import (
    ALONE,
    CHECK_ALIGNMENT,
    CHECK_CONNECTION,
    CHECK_CONTROL,
    CHECK_FAULT,
    CHECK_LENGTH,
    CHECK_LKEY,
    CHECK_OP_VALID,
    CHECK_RECEIVE,
    CHECK_RKEY,
    CHECK_SEGMENTS,
    COMPLETE,
    DONE,
    ERROR,
    EXECUTE_ATOMIC,
    EXECUTE_DUMP,
    EXECUTE_READ,
    EXECUTE_RECEIVE,
    EXECUTE_WRITE,
    FETCH,
    FLUSH,
    NOT_READY,
    RESPONDER_ERROR,
    WAITING,
)

__all__ = ["STATES", "State", "check", "process"]


class State(NamedTuple):
    """A state of a WQE."""

    number: int
    act: Any  #: its function
    next: set[int]  #: states that it may return
    clause: str


#: States in order. None leads back.
STATES = (
    State(FETCH, requester.fetch, {CHECK_CONTROL, ERROR}, "PRM, Send Queue: ds octowords in WQEBBs, around the end of the ring"),
    State(CHECK_CONTROL, requester.check_control, {CHECK_FAULT, CHECK_SEGMENTS, ERROR}, "PRM, Control Segment: wqe_index, qpn, fm"),
    State(CHECK_FAULT, requester.check_fault, {CHECK_SEGMENTS, ERROR}, "none: an injected fault (PGAS_SOFTHCA_FAULTS)"),
    State(CHECK_SEGMENTS, requester.check_segments, {CHECK_LKEY, COMPLETE, ERROR}, "PRM, Send WQE: segments and opmod of each opcode"),
    State(CHECK_LKEY, requester.check_lkey, {CHECK_LENGTH, ERROR, ALONE}, "IBTA, Local Protection Error; rxe_mr.c mr_check_range"),
    State(CHECK_LENGTH, requester.check_length, {CHECK_CONNECTION, EXECUTE_DUMP, ERROR}, "IBTA, Local Length Error; PRM, qpc.log_msg_max"),
    State(CHECK_CONNECTION, responder.check_connection, {CHECK_OP_VALID, ERROR}, "IBTA, Inbound Packet Validation; rxe_resp.c CHK_PSN"),
    State(
        CHECK_OP_VALID,
        responder.check_op_valid,
        {CHECK_RKEY, CHECK_RECEIVE, RESPONDER_ERROR},
        "IBTA, Remote Invalid Request Error; rxe_resp.c CHK_OP_VALID",
    ),
    State(
        CHECK_RKEY,
        responder.check_rkey,
        {CHECK_ALIGNMENT, CHECK_RECEIVE, EXECUTE_WRITE, EXECUTE_READ, COMPLETE, RESPONDER_ERROR},
        "IBTA, Remote Access Error; rxe_resp.c CHK_RKEY",
    ),
    State(
        CHECK_ALIGNMENT,
        responder.check_alignment,
        {EXECUTE_ATOMIC, RESPONDER_ERROR},
        "IBTA, ATOMIC: the operand is naturally aligned; rxe_resp.c ERR_MISALIGNED_ATOMIC",
    ),
    State(CHECK_RECEIVE, receiver.check_receive, {EXECUTE_RECEIVE, NOT_READY, RESPONDER_ERROR}, "IBTA, RNR NAK; rxe_resp.c CHK_RESOURCE"),
    State(EXECUTE_WRITE, responder.execute_write, {COMPLETE}, "IBTA, RDMA WRITE; rxe_resp.c write_data_in"),
    State(EXECUTE_READ, responder.execute_read, {COMPLETE}, "IBTA, RDMA READ; rxe_resp.c read_reply"),
    State(EXECUTE_ATOMIC, responder.execute_atomic, {COMPLETE}, "IBTA, ATOMIC; PRM, masked atomics; rxe_resp.c atomic_reply"),
    State(
        EXECUTE_RECEIVE,
        receiver.execute_receive,
        {COMPLETE, RESPONDER_ERROR},
        "IBTA, SEND and RDMA WRITE with immediate data; rxe_resp.c send_data_in",
    ),
    State(EXECUTE_DUMP, late.execute_dump, {COMPLETE}, "PRM, DUMP: the data is read and discarded"),
    State(COMPLETE, completer.complete, {DONE}, "PRM, Control Segment: ce; Completion Queue Entry"),
    State(NOT_READY, receiver.not_ready, {ERROR, WAITING}, "IBTA, RNR Retry Counter Exceeded Error; rxe_comp.c RNR_RETRY"),
    State(RESPONDER_ERROR, completer.responder_error, {ERROR}, "IBTA, responder errors of class C; rxe_resp.c do_class_ac_error"),
    State(ERROR, completer.error, {DONE}, "IBTA, QP state Error; PRM, error CQE"),
    State(FLUSH, completer.flush, {DONE}, "IBTA, Work Request Flushed Error; rxe_comp.c flush_send_wqe"),
)

#: States of this engine.
_OWN = [state for state in STATES if RECEIVES or state.number not in (CHECK_RECEIVE, EXECUTE_RECEIVE, NOT_READY)]


@device
def pace(hca: int, qp: int, work: int, state: int) -> int:
    """Delay a WQE that has passed its checks, if the software NIC has rate limits."""
    if EXECUTE_WRITE <= state <= COMPLETE and load(hca + t.CTL_WQE_COST) | load(hca + t.CTL_BYTE_COST) != 0:
        admit(hca, 1, load(work + t.WORK_NBYTES))
    return state


def _way(name: str, *steps: Any) -> Any:
    """Return a function (hca, qp, work, state), which takes a WQE through these steps and returns its state after the last one.

    Because no state leads back, it has no loop. Its source is generated, because Numba cannot compile a table of functions.

    Args:
        name: name of the function.
        steps: states, and functions (hca, qp, work, state), which are called in any state and return the next one.
    """
    lines, names = [f"def {name}(hca, qp, work, state):"], {}
    for place, step in enumerate(steps):
        if isinstance(step, State):
            names[f"step_{place}"] = step.act
            lines += [f"    if state == {step.number}:", f"        state = step_{place}(hca, qp, work)"]
        else:
            names[f"step_{place}"] = step
            lines.append(f"    state = step_{place}(hca, qp, work, state)")
    exec("\n".join([*lines, "    return state"]), names)
    return device(names[name])


_FETCH, *_CHECKS = (state for state in _OWN if state.number <= CHECK_RECEIVE)
_ACTS = [state for state in _OWN if state.number > CHECK_RECEIVE]

#: Function that takes a WQE through the checks and returns the state that executes or ends it.
check = _way("check", *_CHECKS)

#: Function that takes a WQE from a state to its end and returns DONE or WAITING.
process = _way("process", _FETCH, *_CHECKS, pace, *_ACTS)
