"""The pipeline of a WQE: the table of its states, each with the clause that it implements, and their dispatch.

The order of checks and the classes of errors are those of Linux's software HCA (drivers/infiniband/sw/rxe: rxe_req.c, rxe_resp.c,
rxe_comp.c). The receiver's states exist only if the engine serves receive queues (ops.RECEIVES).

IBTA: InfiniBand Architecture Specification, volume 1. PRM: Mellanox Adapters Programmer's Reference Manual.
"""

from typing import Any, NamedTuple

from pgas.transports.hostloop.compiled import device
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine import completer, late, receiver, requester, responder
from pgas.transports.softhca.engine import states as s
from pgas.transports.softhca.engine.limits import admit
from pgas.transports.softhca.engine.ops import RECEIVES, load


class State(NamedTuple):
    """A state of a WQE."""

    act: Any  #: its function, which has the name of the state
    next: set[int]  #: states that it may return
    clause: str

    @property
    def number(self) -> int:
        return int(getattr(s, self.act.py_func.__name__.upper()))


#: States in order. No state leads back.
STATES = (
    State(requester.fetch, {s.CHECK_CONTROL, s.ERROR}, "PRM, Send Queue: ds octowords in WQEBBs, around the end of the ring"),
    State(requester.check_control, {s.CHECK_FAULT, s.CHECK_SEGMENTS, s.ERROR}, "PRM, Control Segment: wqe_index, qpn, fm"),
    State(requester.check_fault, {s.CHECK_SEGMENTS, s.ERROR}, "none: an injected fault (PGAS_SOFTHCA_FAULTS)"),
    State(requester.check_segments, {s.CHECK_LKEY, s.COMPLETE, s.ERROR}, "PRM, Send WQE: segments and opmod of each opcode"),
    State(requester.check_lkey, {s.CHECK_LENGTH, s.ERROR, s.ALONE}, "IBTA, Local Protection Error; rxe_mr.c mr_check_range"),
    State(requester.check_length, {s.CHECK_CONNECTION, s.EXECUTE_DUMP, s.ERROR}, "IBTA, Local Length Error; PRM, qpc.log_msg_max"),
    State(responder.check_connection, {s.CHECK_OP_VALID, s.ERROR}, "IBTA, Inbound Packet Validation; rxe_resp.c CHK_PSN"),
    State(
        responder.check_op_valid,
        {s.CHECK_RKEY, s.CHECK_RECEIVE, s.RESPONDER_ERROR},
        "IBTA, Remote Invalid Request Error; rxe_resp.c CHK_OP_VALID",
    ),
    State(
        responder.check_rkey,
        {s.CHECK_ALIGNMENT, s.CHECK_RECEIVE, s.EXECUTE_WRITE, s.EXECUTE_READ, s.COMPLETE, s.RESPONDER_ERROR},
        "IBTA, Remote Access Error; rxe_resp.c CHK_RKEY",
    ),
    State(
        responder.check_alignment,
        {s.EXECUTE_ATOMIC, s.RESPONDER_ERROR},
        "IBTA, ATOMIC: the operand is naturally aligned; rxe_resp.c ERR_MISALIGNED_ATOMIC",
    ),
    State(receiver.check_receive, {s.EXECUTE_RECEIVE, s.NOT_READY, s.RESPONDER_ERROR}, "IBTA, RNR NAK; rxe_resp.c CHK_RESOURCE"),
    State(responder.execute_write, {s.COMPLETE}, "IBTA, RDMA WRITE; rxe_resp.c write_data_in"),
    State(responder.execute_read, {s.COMPLETE}, "IBTA, RDMA READ; rxe_resp.c read_reply"),
    State(responder.execute_atomic, {s.COMPLETE}, "IBTA, ATOMIC; PRM, masked atomics; rxe_resp.c atomic_reply"),
    State(
        receiver.execute_receive, {s.COMPLETE, s.RESPONDER_ERROR}, "IBTA, SEND and RDMA WRITE with immediate data; rxe_resp.c send_data_in"
    ),
    State(late.execute_dump, {s.COMPLETE}, "PRM, DUMP: the data is read and discarded"),
    State(completer.complete, {s.DONE}, "PRM, Control Segment: ce; Completion Queue Entry"),
    State(receiver.not_ready, {s.ERROR, s.WAITING}, "IBTA, RNR Retry Counter Exceeded Error; rxe_comp.c RNR_RETRY"),
    State(completer.responder_error, {s.ERROR}, "IBTA, responder errors of class C; rxe_resp.c do_class_ac_error"),
    State(completer.error, {s.DONE}, "IBTA, QP state Error; PRM, error CQE"),
    State(completer.flush, {s.DONE}, "IBTA, Work Request Flushed Error; rxe_comp.c flush_send_wqe"),
)

#: States of this engine.
_OWN = [state for state in STATES if RECEIVES or state.number not in (s.CHECK_RECEIVE, s.EXECUTE_RECEIVE, s.NOT_READY)]


@device
def pace(hca: int, qp: int, work: int, state: int) -> int:
    """Delay a WQE that has passed its checks, if the software NIC has rate limits."""
    if s.EXECUTE_WRITE <= state <= s.COMPLETE and load(hca + t.CTL_WQE_COST) | load(hca + t.CTL_BYTE_COST) != 0:
        admit(hca, 1, load(work + t.WORK_NBYTES))
    return state


def _way(name: str, *steps: Any) -> Any:
    """Return a function (hca, qp, work, state), which takes a WQE through these steps and returns its state after the last one.

    Because no state leads back, it has no loop. Its source is generated, because Numba cannot compile a table of functions.

    Args:
        name: name of the function.
        steps: states, and functions (hca, qp, work, state), which are called in every state and return the next one.
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


_FETCH, *_CHECKS = (state for state in _OWN if state.number <= s.CHECK_RECEIVE)
_ACTS = [state for state in _OWN if state.number > s.CHECK_RECEIVE]

#: Function that takes a WQE through the checks and returns the state that executes or ends it.
check = _way("check", *_CHECKS)

#: Function that takes a WQE from a state to its end and returns DONE or WAITING.
process = _way("process", _FETCH, *_CHECKS, pace, *_ACTS)

#: Function that takes a WQE through the checks that do not need the peer; it returns CHECK_CONNECTION for a WQE that goes to the peer.
prepare = _way("prepare", _FETCH, *(state for state in _CHECKS if state.number < s.CHECK_CONNECTION))

#: Function that ends a WQE from any other state that prepare() returns.
finish = _way("finish", *(state for state in _ACTS if state.number in (s.EXECUTE_DUMP, s.COMPLETE, s.ERROR)))
