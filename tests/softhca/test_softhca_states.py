"""The states of a WQE; a QP in each of its states, and its destruction. test_queue_pair.py tests the transitions."""

import ast
import inspect
import time

import numpy as np
import pytest
import rig
import wqes as wqe
from rig import QP, SIGNAL, connect, pair

from pgas.base.backend import SIMULATOR
from pgas.base.errors import TransportError
from pgas.sim import memory
from pgas.transports.mlx5 import cqe
from pgas.transports.mlx5.commands import Command, Status
from pgas.transports.mlx5.contexts import QpState
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.softhca import tables
from pgas.transports.softhca.engine import completer, pipeline, states
from pgas.transports.softhca.syndromes import Vendor

card, pes, observer = rig.card, rig.pes, rig.observer

RST, INIT, RTR, RTS, ERR = QpState


def bring_to(state, qp, peer):
    if state == ERR:
        qp.pe.command(Command.TO_ERR_QP, qpn=qp.qpn)
    for reached, step in ((INIT, qp.init), (RTR, lambda: qp.rtr(peer)), (RTS, qp.rts)):
        if reached <= state <= RTS:
            step()
    assert qp.state() == state
    return qp


def write(peer_pe, pe, offset=0):
    return wqe.write, peer_pe.heap + offset, peer_pe.key, pe.heap + offset, pe.key, 8


NAMES = [*(state.act.py_func.__name__.upper() for state in pipeline.STATES), "DONE", "WAITING", "ALONE"]
NUMBERS = {name: getattr(states, name) for name in NAMES}

#: Results of functions that end a WQE.
VERDICTS = {"fail": "ERROR", "refuse": "RESPONDER_ERROR", "reject": "RESPONDER_ERROR"}


def test_the_table_has_every_state_of_a_wqe():
    """Each has its clause, and none leads back, as the pipeline has no loop."""
    assert [state.number for state in pipeline.STATES] == list(range(states.DONE))
    assert sorted(NUMBERS.values()) == list(range(states.ALONE + 1))
    for state in pipeline.STATES:
        assert NUMBERS[state.act.py_func.__name__.upper()] == state.number
        assert state.clause.startswith(("IBTA, ", "PRM, ", "none: ")), state.clause
        assert min(state.next) > state.number, state


@pytest.mark.parametrize("state", pipeline.STATES, ids=lambda state: state.act.py_func.__name__)
def test_a_state_leads_where_the_table_says(state):
    """As in the source of its function."""
    nodes = list(ast.walk(ast.parse(inspect.getsource(state.act.py_func))))
    names = {ast.unparse(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute)}
    led = {name.removeprefix("states.") for name in names if name.startswith("states.")} | {"DONE", "ERROR"} & names
    assert {NUMBERS[name] for name in led | {VERDICTS[name] for name in VERDICTS.keys() & names}} == state.next


@pytest.mark.parametrize("state", list(QpState), ids=lambda state: state.name)
def test_a_qp_is_destroyed_in_every_state(pes, observer, state):
    qp = bring_to(state, QP(pes[0]), QP(pes[1]))
    qp.destroy()
    assert pes[0].refused(Command.QUERY_QP, qpn=qp.qpn) == (Status.BAD_RES, "QP")
    assert qp.qpn not in [entry["qpn"] for entry in observer.counters()["qps"]]


# ---------------------------------------------------------------------------------------------------------- sending and receiving


@pytest.mark.parametrize("state", [RST, INIT, RTR], ids=lambda state: state.name)
def test_before_rts_doorbells_are_lost(pes, state):
    """A QP that may not send executes nothing. Once it may, it needs a new doorbell."""
    peer = bring_to(RTR, QP(pes[1]), 1)
    qp = bring_to(state, QP(pes[0]), peer)
    pes[1].command(Command.TO_RST_QP, qpn=peer.qpn)
    bring_to(RTR, peer, qp)
    pes[0].word(0, 77)
    index = qp.post(*write(pes[1], pes[0]), fm_ce_se=SIGNAL)
    qp.ring()
    time.sleep(5e-3)
    for reached, step in ((INIT, qp.init), (RTR, lambda: qp.rtr(peer)), (RTS, qp.rts)):
        if reached > state:
            step()
    time.sleep(5e-3)
    assert (pes[1].word(0), qp.entry()) == (0, rig.EMPTY)
    qp.ring()
    assert not qp.poll(index).is_error
    assert pes[1].word(0) == 77


@pytest.mark.parametrize("state", list(QpState), ids=lambda state: state.name)
def test_a_qp_answers_in_rtr_and_rts(pes, state):
    """RTR suffices for a responder. In other states requests are dropped, and the requester's retries are exceeded."""
    qp, peer = QP(pes[0]), QP(pes[1])
    qp.init().rtr(peer).rts()
    bring_to(state, peer, qp)
    if state in (RTR, RTS):
        pes[0].word(8, 5)
        qp.run(*write(pes[1], pes[0], 8))
        assert pes[1].word(8) == 5
    else:
        assert qp.fail(*write(pes[1], pes[0], 8)) == (Syndrome.TRANSPORT_RETRY_EXC_ERR, Vendor.RESPONDER_STATE)
        assert pes[1].word(8) == 0


def test_a_qp_in_err_flushes_rung_wqes(pes):
    qp, peer = pair(pes)
    pes[0].command(Command.TO_ERR_QP, qpn=qp.qpn)
    indices = [qp.post(*write(pes[1], pes[0])) for _ in range(3)]
    qp.ring()
    last = qp.poll(indices[-1])
    assert (last.syndrome, last.vendor_err_synd, last.opcode) == (Syndrome.WR_FLUSH_ERR, Vendor.NONE, cqe.CqeOpcode.REQ_ERR)
    counted = qp.counters()
    assert (counted["flushed"], counted["cqes"], counted["wqes"], counted["errors"], counted["first_error"]) == (3, 3, 0, 0, 0)
    assert (qp.state(), peer.state()) == (ERR, RTS)


def test_2err_flushes_rung_wqes_that_were_not_executed(pes, observer):
    qp = pair(pes)[0]
    observer.pause()
    indices = [qp.post(*write(pes[1], pes[0]), fm_ce_se=SIGNAL) for _ in range(4)]
    qp.ring()
    pes[0].command(Command.TO_ERR_QP, qpn=qp.qpn)
    observer.resume()
    assert qp.poll(indices[-1]).syndrome == Syndrome.WR_FLUSH_ERR
    assert (qp.counters()["flushed"], qp.counters()["wqes"]) == (4, 0)


def test_a_flush_ends_at_the_last_wqe_that_was_rung(pes):
    """Whatever size a WQE claims, 0 or more than was rung."""
    qp, other = pair(pes)[0], pair(pes)[0]
    pes[0].command(Command.TO_ERR_QP, qpn=qp.qpn)
    for ds in (0, 63):
        qp.post(lambda index, qpn, ds=ds: wqe.nop(index, qpn)[:7] + bytes([ds]) + bytes(8))
    qp.ring()
    rig.wait_until(lambda: qp.counters()["flushed"] >= 2, "the WQEs are not flushed")
    other.run(wqe.nop)  # the engine has finished its visit
    counted = qp.counters()
    assert (counted["flushed"], counted["consumer"], counted["producer"]) == (2, 2, 2)


@pytest.mark.skipif(not SIMULATOR, reason="calls what is compiled for the CPU")
@pytest.mark.parametrize("state", [RST, INIT, RTR, RTS, ERR, tables.FREE])
def test_an_error_of_a_qp_that_was_reset_meanwhile_is_dropped(state):
    """A command may move a QP while its WQE is being checked. As a test cannot time that, the engine's function is called directly."""
    card, cqe_memory, wqe_memory = tables.Tables(), np.full(64, cqe.EMPTY, np.uint8), np.zeros(64, np.uint8)
    qp, cq = card.qps[1], card.cqs[1]
    cq["address"], cq["collapsed"], cq["log_size"] = cqe_memory.ctypes.data, 1, 0
    qp["cq"], qp["state"], qp["producer"] = card.row_address(card.cqs, 1), state, 7
    work = card.control[0]["work"]
    words = {tables.WORK_INDEX: 3, tables.WORK_WQEBBS: 2, tables.WORK_SYNDROME: Syndrome.LOCAL_PROT_ERR, tables.WORK_VENDOR: Vendor.LKEY_PD}
    for field, value in (words | {tables.WORK_WQE: wqe_memory.ctypes.data, tables.WORK_DS: 3}).items():
        memory.store(int(work + field), value, 8)
    before = card.qps.tobytes(), card.cqs.tobytes(), cqe_memory.tobytes()
    completer.error(card.address, card.row_address(card.qps, 1), work)
    if state in (RTS, ERR):
        assert (qp["broken"], qp["errors"], qp["error_syndrome"], qp["consumer"]) == (1, 1, Syndrome.LOCAL_PROT_ERR, 5)
        done = cqe.decode(cqe_memory.tobytes())
        assert (done.wqe_counter, done.syndrome, done.vendor_err_synd) == (3, Syndrome.LOCAL_PROT_ERR, Vendor.LKEY_PD)
    else:
        assert (card.qps.tobytes(), card.cqs.tobytes(), cqe_memory.tobytes()) == before


def test_2rst_forgets_the_queue_and_the_qp_starts_again(pes):
    qp, peer = pair(pes)
    qp.run(*write(pes[1], pes[0]))
    assert qp.fail(wqe.write, pes[1].heap, 0xBAD00, pes[0].heap, pes[0].key, 8) == (Syndrome.REMOTE_ACCESS_ERR, Vendor.RKEY_UNKNOWN)
    qp.post(*write(pes[1], pes[0]))
    qp.ring()
    for end in (qp, peer):
        end.pe.command(Command.TO_RST_QP, qpn=end.qpn)
    context = pes[0].command(Command.QUERY_QP, qpn=qp.qpn)["qpc"]
    assert (context["state"], context["hw_sq_wqebb_counter"], context["sw_sq_wqebb_counter"]) == (RST, 0, 0)
    assert (pes[0].hca.diagnose(qp.qpn), qp.counters()["wqes"]) == (None, 0)
    qp.posted = 0
    connect(qp, peer)
    pes[0].word(0, 99)
    assert qp.run(*write(pes[1], pes[0])).wqe_counter == 0
    assert pes[1].word(0) == 99


def test_counters_of_destroyed_qps_stay_in_the_totals(pes, observer):
    before = observer.counters()["hca"]
    qp = pair(pes)[0]
    for _ in range(2):
        qp.run(*write(pes[1], pes[0]))
    pes[0].command(Command.TO_RST_QP, qpn=qp.qpn)
    qp.destroy()
    after = observer.counters()["hca"]
    assert {name: after[name] - before[name] for name in ("wqes", "nbytes", "cqes", "doorbells", "writes", "errors")} == {
        "wqes": 2, "nbytes": 16, "cqes": 2, "doorbells": 2, "writes": 2, "errors": 0,
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------------- destroying what is used


def test_destroying_a_qp_with_wqes_in_flight(pes):
    """After DESTROY_QP the card uses neither its queue nor its buffers; executed WQEs are complete, the others are dropped."""
    megabyte = 1 << 20
    for _ in range(20):
        qp, peer = pair(pes)
        pes[0].write(pes[0].heap, b"\xaa" * megabyte)
        for _ in range(64):
            qp.post(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, megabyte, fm_ce_se=SIGNAL)
        qp.ring()
        qp.destroy()
        pes[0].command(Command.DESTROY_CQ, cqn=qp.cqn)
        pes[1].write(pes[1].heap, bytes(megabyte))
        pes[0].write(pes[0].slot + qp.cq, rig.EMPTY)
        time.sleep(1e-3)
        assert not any(pes[1].read(pes[1].heap, megabyte))
        assert qp.entry() == rig.EMPTY
        peer.destroy()
        pes[0].free = pes[1].free = 0  # the next one gets the same memory
    assert pes[0].hca.diagnose(qp.qpn) is None


def test_destroying_a_key_that_is_in_use(pes):
    """After DEREGISTER_MR nothing arrives through the key; the next WQE fails, and the QP with it.

    That is one of the waiting WQEs; on a GPU all may have been executed by then.
    """
    key = pes[1].hca.register_mr(pes[1].heap, 1 << 20, pes[1].pdn, rig.ALL)[0]
    qp = pair(pes, 10)[0]
    pes[0].write(pes[0].heap, b"\x55" * (1 << 20))
    for _ in range(1000):
        qp.post(wqe.write, pes[1].heap, key, pes[0].heap, pes[0].key, 1 << 20)
    last = qp.post(wqe.nop, fm_ce_se=SIGNAL)
    qp.ring()
    pes[1].hca.deregister_mr(key)
    pes[1].write(pes[1].heap, bytes(1 << 20))
    done = qp.poll(last)
    assert not any(pes[1].read(pes[1].heap, 1 << 20))
    if not SIMULATOR and not done.is_error:
        qp.fail(wqe.write, pes[1].heap, key, pes[0].heap, pes[0].key, 1 << 20)
    else:
        assert done.syndrome == Syndrome.WR_FLUSH_ERR
    assert (qp.counters()["first_error"], qp.counters()["vendor_error"]) == (Syndrome.REMOTE_ACCESS_ERR, Vendor.RKEY_UNKNOWN)


def test_a_wqe_to_a_qp_that_was_destroyed(pes):
    qp, peer = pair(pes)
    peer.destroy()
    assert qp.fail(*write(pes[1], pes[0])) == (Syndrome.TRANSPORT_RETRY_EXC_ERR, Vendor.NO_RESPONDER)


def test_the_index_of_a_sending_qp_cannot_be_set(pes):
    qp = pair(pes)[0]
    with pytest.raises(TransportError, match="BAD_QP_STATE"):
        qp.begin(7)
