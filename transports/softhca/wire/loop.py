"""The loop of an engine on a CPU with a wire: like engine/loop.py, and packets between the visits to queue pairs."""

from collections.abc import Callable
from typing import Any

from pgas.transports.hostloop.compiled import device, kernel
from pgas.transports.hostloop.memory_ops import SLEEP_MAX_US, SLEEP_MIN_US, SPINS
from pgas.transports.hostloop.sockets import wait_readable
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine import dma, states
from pgas.transports.softhca.engine.completer import release_held, stall
from pgas.transports.softhca.engine.loop import begin_pass, count_down, visit
from pgas.transports.softhca.engine.ops import RECEIVES, YIELDS, clock, idle, load, load_acquire, store
from pgas.transports.softhca.engine.requester import take_doorbell
from pgas.transports.softhca.engine.states import random, state_of
from pgas.transports.softhca.wire import SOURCES
from pgas.transports.softhca.wire import records as r
from pgas.transports.softhca.wire.completer import end_in_error
from pgas.transports.softhca.wire.frames import send_frames
from pgas.transports.softhca.wire.inbound import receive_frames
from pgas.transports.softhca.wire.requester import post_wqes, transmit, watch


@device
def visit_any(hca: int, qp: int, work: int) -> int:
    """Visit a queue pair, whose peer is on this card or on another one. The firmware sets QP_WIRE before the state."""
    state = state_of(qp)
    if state != t.RTS and state != t.ERR:
        return 0
    if load(qp + t.QP_WIRE) != 0:
        return visit_connection(hca, qp, work)
    return visit(hca, qp, work) if state == t.ERR or dma.by_dma(hca) == 0 else 0


@device
def visit_connection(hca: int, qp: int, work: int) -> int:
    """Visit a queue pair with a peer on another card; return whether it had work. In ERR, the engine flushes its WQEs."""
    port, conn, state = load(hca + t.CTL_WIRE), load(qp + t.QP_WIRE), state_of(qp)
    if state == t.ERR:
        store(conn + r.REQ_TAIL, load(conn + r.REQ_HEAD))
        return visit(hca, qp, work)
    if state != t.RTS:
        return 0
    busy = take_doorbell(hca, qp)
    if load(qp + t.QP_STALLED_UNTIL) > load(load(hca + t.CTL_SWEEPS)):
        return 1
    if load(qp + t.QP_HELD) != 0:
        release_held(hca, qp)
    if load(conn + r.REQ_CURSOR) != load(qp + t.QP_PRODUCER):
        if random(hca) < load(hca + t.CTL_CHAOS):
            return stall(hca, qp)
        if post_wqes(hca, qp, work) != 0:
            count_down(hca)
            busy = 1
    if load(conn + r.REQ_UNACKED) == load(conn + r.REQ_NEXT):
        return busy
    if watch(work, qp, port) == states.ERROR:
        end_in_error(hca, qp, work)
        return 1
    return busy | transmit(hca, qp, port)


@device
def wait(port: int, turns: int) -> int:
    """Back off like memory_ops.idle(), but end a sleep if a packet comes.

    Args:
        turns: consecutive passes without work. They begin at SPINS, because each pass is a system call: spinning would take as long as
            yielding, and would not show that another thread needs the core.
    """
    if turns < YIELDS:
        return idle(turns)
    wait_readable(load(port + r.PORT_FD), 1000 * min(SLEEP_MAX_US, SLEEP_MIN_US + (turns - YIELDS) // 4))
    return turns


def _make(stamp: int) -> Callable[[int], int]:
    def loop(hca: int) -> int:
        """Run until CTL_STOP, like engine.loop.run."""
        idle_turns = 0
        while load_acquire(hca + t.CTL_STOP) == 0:
            dma.settle(dma.by_dma(hca))  # a pass ends with its data in memory
            busy = begin_pass(hca)
            port = load(hca + t.CTL_WIRE)
            if load_acquire(hca + t.CTL_PAUSED) == 0:
                qps, work = load(hca + t.CTL_QPS), load(hca + t.CTL_WORK)
                store(port + r.PORT_NOW, clock())
                busy |= receive_frames(hca, port, work)
                for row in range(load_acquire(hca + t.CTL_QP_LIMIT)):
                    busy |= visit_any(hca, qps + row * t.QP_ROW, work)
                send_frames(port)
            idle_turns = wait(port, SPINS - 1 if busy else idle_turns + 1)
        dma.settle(dma.by_dma(hca))
        return stamp

    return loop


#: Function run(address of the control record) of a card with a port.
run: Any = kernel(_make, *SOURCES) if RECEIVES else None
