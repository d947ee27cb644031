"""A NIC's outstanding work as text for hang reports: queue pairs with indices, WQEs, and last CQE; the NIC's view; the proxy's ring.

A separate thread reads all this while kernels run, so the values may be from different moments.
"""

import contextlib
import struct
from collections.abc import Callable, Mapping

from pgas.base.errors import PgasError
from pgas.kernels import codes, layout
from pgas.transports.mlx5 import cqe, send_queue
from pgas.transports.mlx5.wqe import WQEBB
from pgas.transports.nic.adapter import QueueState
from pgas.transports.nic.protocol import NIC
from pgas.transports.nic.snapshot import Ring

#: Maximum number of WQEs or requests per queue in the report.
_MOST = 4

#: Seconds to wait for an adapter's answer.
_ANSWER_S = 2.0


def describe(nic: NIC, place: Callable[[int], str]) -> list[str]:
    """Return lines about the NIC, about each queue pair with outstanding work, and about the ring if there is one.

    Args:
        nic: the NIC of this PE.
        place: function that describes an address.
    """
    lines: list[str] = []
    known: Mapping[int, QueueState] = {}
    try:
        seen = nic.inspect(_ANSWER_S)
    except PgasError as error:
        lines.append(str(error))
    else:
        if seen is not None:
            lines.append(seen.summary)
            known = seen.queues
    if (ring := nic.requests(_MOST)) is not None:
        lines += _ring(nic, ring, place)
    queues = [_queue(nic, number, known.get(qp.qpn), place) for number, qp in enumerate(nic.qps)]
    if not any(queues):
        lines.append("nothing is outstanding on the NIC")
    return [*lines, *(line for queue_ in queues for line in queue_)]


def _queue(nic: NIC, number: int, known: QueueState | None, place: Callable[[int], str]) -> list[str]:
    """Describe a queue pair if it has outstanding work or has failed."""
    cursors = nic.cursors(number)
    built, done = max(cursors.values()), cursors["cons_idx"]
    memory = nic.queue_memory(number)
    seen = None
    if memory is not None:
        seen = cqe.decode(memory.cqe)
        if seen.opcode == cqe.CqeOpcode.REQ:
            done = cqe.extend(done, seen.wqe_counter, len(memory.ring) // WQEBB)
    if done >= built and not (seen is not None and seen.is_error) and (known is None or known.state == "RTS"):
        return []
    words = ", ".join(f"{name} {value}" for name, value in cursors.items())
    lines = [f"{nic.name_of(layout.RECORDS + number * layout.RECORD_SIZE)}: {built - done} outstanding; {words}"]
    if memory is None or seen is None:
        return lines
    lines[0] += f"; doorbell record {memory.doorbell}"
    if known is not None:
        lines[0] += f"; the NIC: {known.state}, doorbell seen {known.producer}, executed {known.consumer}"
    lines += [f"  {text}" for text in _wqes(memory.ring, done, cursors.get("ready_head", built), place)]
    lines.append("  no CQE yet" if seen.opcode == cqe.CqeOpcode.INVALID else f"  last CQE: {seen}")
    return lines


def _wqes(ring: bytes, index: int, end: int, place: Callable[[int], str]) -> list[str]:
    """Describe the WQEs at [index, end) of a ring, at most the first _MOST."""
    lines: list[str] = []
    while index < end and len(lines) < _MOST:
        try:
            data = send_queue.fetch(ring, index)
            wqe = send_queue.decode(data)
        except ValueError as error:
            return [*lines, f"WQE {index}: cannot be decoded ({error})"]
        target = "" if wqe.raddr is None else f" to {place(wqe.raddr)} (raddr {wqe.raddr:#x})"
        lines.append(f"WQE {index}: {wqe.opcode.name}, {wqe.nbytes} bytes{target}")
        index += wqe.wqebbs
    return [*lines, f"and {end - index} more WQEBBs"] if index < end else lines


def _ring(nic: NIC, ring: Ring, place: Callable[[int], str]) -> list[str]:
    lines = [f"the proxy thread {ring.thread}; its ring: head {ring.head}, completed {ring.completed}"]
    for ticket, words in ring.oldest:
        if words is None:
            lines.append(f"  request {ticket}: reserved, not written yet")
            continue
        what, nbytes, _, remote, value, second, _, _ = struct.unpack("<8Q", words)
        kind, name = what & layout.OPERATION_MASK, ""
        with contextlib.suppress(ValueError):
            name = codes.Request(kind).name
        of_signal = kind in (codes.Request.SIGNAL_SET, codes.Request.SIGNAL_ADD)
        target = place(second if of_signal and not nbytes else remote)
        pair = nic.name_of(layout.RECORDS + ((what >> layout.NUMBER_SHIFT) & layout.NUMBER_MASK) * layout.RECORD_SIZE)
        operand = f", value {value}" if kind not in (codes.Request.WRITE, codes.Request.READ) else ""
        lines.append(f"  request {ticket}: {name or hex(kind)}, {nbytes} bytes to {target}{operand}, on {pair}")
    if ring.head - ring.completed > len(ring.oldest):
        lines.append(f"  and {ring.head - ring.completed - len(ring.oldest)} more requests")
    return lines
