"""Packets that come: only those for a queue pair in RTR or RTS, from its peer, with a valid ICRC count; others are dropped and counted.

IBTA 9.6 (header validation). The window of PSNs is checked by the responder and the completer.
"""

from pgas.transports.hostloop.compiled import device
from pgas.transports.hostloop.sockets import receive_messages
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine.ops import load, load_any_u32, load_be32, load_published, store
from pgas.transports.softhca.engine.states import count, state_of
from pgas.transports.softhca.wire import records as r
from pgas.transports.softhca.wire.completer import answered
from pgas.transports.softhca.wire.icrc import ID_END, PSEUDO_V4, icrc, identification, put_pseudo_header
from pgas.transports.softhca.wire.packets import ICRC_BYTES, Rc, dest_qp, headers_end, opcode_of, pad_of, valid_bth
from pgas.transports.softhca.wire.responder import acknowledge_due, requested


@device
def receive_frames(hca: int, port: int, work: int) -> int:
    """Take all packets that have come, up to a limit; return whether there were any."""
    number = receive_messages(load(port + r.PORT_FD), load(port + r.PORT_IN), r.IN_FRAMES)
    if number <= 0:
        return 0
    for i in range(number):
        header = load(port + r.PORT_IN) + i * r.MMSG_BYTES
        bth = load(port + r.PORT_INBOUND) + i * r.FRAME_ROW + r.FRAME_BTH
        admit(hca, port, work, bth, load_any_u32(header + r.MMSG_LEN), load(header + r.MMSG_NAME))
    acknowledge_due(port)
    return 1


@device
def admit(hca: int, port: int, work: int, bth: int, length: int, source: int) -> int:
    """Validate a packet, and give it to the responder or the completer.

    Args:
        hca, port, work: as elsewhere.
        bth: address of its BTH, in a frame.
        length: bytes of the UDP payload.
        source: address of the sender's socket address.
    """
    count(port + r.PORT_RECEIVED_PACKETS, 1)
    count(port + r.PORT_RECEIVED_NBYTES, length)
    end = headers_end(opcode_of(bth)) if length >= ICRC_BYTES else 0
    nbytes = length - ICRC_BYTES - end - pad_of(bth)
    if end == 0 or nbytes < 0 or nbytes > r.MTU_MAX or valid_bth(bth) == 0:
        return count(port + r.PORT_BAD_FORMAT, 1)
    number = dest_qp(bth)
    qp = load(hca + t.CTL_QPS) + (number & t.QP_ROWS_MASK) * t.QP_ROW
    state = load_published(qp + t.QP_STATE)
    if (state != t.RTR and state != t.RTS) or load(qp + t.QP_QPN) != number or load(qp + t.QP_WIRE) == 0:
        return count(port + r.PORT_BAD_QP, 1)
    if from_peer(port, load(qp + t.QP_WIRE), source) == 0:
        return count(port + r.PORT_BAD_SOURCE, 1)
    if whole(port, load(qp + t.QP_WIRE), bth, length, source) == 0:
        return count(port + r.PORT_BAD_ICRC, 1)
    broken = state_of(qp) == t.ERR
    if Rc.RDMA_READ_RESPONSE_FIRST <= opcode_of(bth) <= Rc.ATOMIC_ACKNOWLEDGE:
        return answered(hca, qp, port, work, bth, bth + end, nbytes) if state == t.RTS and not broken else 0
    if broken and load(load(qp + t.QP_WIRE) + r.RESP_FATAL) == 0:
        return 0
    return requested(hca, qp, port, work, bth, bth + end, nbytes)


@device
def from_peer(port: int, conn: int, source: int) -> int:
    """Whether a socket address has the peer's IP address, and its UDP port if all of its packets come from that port."""
    udp = load(conn + r.CONN_UDP)
    if udp != 0 and load_be32(source) & 0xFFFF != udp:
        return 0
    if load(port + r.PORT_V4) != 0:
        return 1 if load_any_u32(source + r.SOCKADDR_V4) == load_any_u32(conn + r.CONN_GID) else 0
    for offset in range(0, 16, 4):
        if load_any_u32(source + r.SOCKADDR_V6 + offset) != load_any_u32(conn + r.CONN_GID + offset):
            return 0
    return 1


@device
def whole(port: int, conn: int, bth: int, length: int, source: int) -> int:
    """Whether the ICRC of a packet is right.

    Over IPv4, packets of a software NIC have the identifications 0 to SEGMENTS_MAX - 1 (frames.py), which leaves 26 bits of the ICRC to
    detect errors. Another peer whose first packets have identification 0 must keep to it. From others, any identification is accepted,
    which leaves 16 bits.
    """
    last = load(conn + r.CONN_NUMBER)
    if 0 < last < r.SEGMENTS_MAX - 1 and difference_of(port, conn, bth, length, source, last + 1) == 0:
        store(conn + r.CONN_NUMBER, last + 1)
        return 1
    difference = difference_of(port, conn, bth, length, source, 0)
    if load(conn + r.CONN_UDP) != 0:
        number = 0
        if difference != 0:
            if load(port + r.PORT_V4) == 0:
                return 0
            number = 1 if difference_of(port, conn, bth, length, source, 1) == 0 else number_of(port, length, difference)
            if number < 0 or number >= r.SEGMENTS_MAX:
                return 0
        store(conn + r.CONN_NUMBER, number)
        return 1
    unnumbered = load(conn + r.CONN_UNNUMBERED)
    if difference == 0:
        store(conn + r.CONN_UNNUMBERED, min(r.UNNUMBERED_ENOUGH, unnumbered + 1))
        return 1
    if load(port + r.PORT_V4) == 0 or unnumbered == r.UNNUMBERED_ENOUGH:
        return 0
    if number_of(port, length, difference) < 0:
        return 0
    store(conn + r.CONN_UNNUMBERED, 0)
    return 1


@device
def difference_of(port: int, conn: int, bth: int, length: int, source: int, number: int) -> int:
    """Return the ICRC that a packet has, exclusive or the one that an identification gives it."""
    peer_udp, own_udp = load_be32(source) & 0xFFFF, load(port + r.PORT_UDP)
    begin = put_pseudo_header(bth, load(port + r.PORT_V4), number, conn + r.CONN_GID, port + r.PORT_GID, peer_udp, own_udp, length)
    return icrc(load(port + r.PORT_CRC), begin, bth, length - ICRC_BYTES) ^ load_any_u32(bth + length - ICRC_BYTES)


@device
def number_of(port: int, length: int, difference: int) -> int:
    """Return the identification of a packet over IPv4 from its difference with identification 0; -1 if no identification explains it."""
    return identification(load(port + r.PORT_CRC), difference, PSEUDO_V4 + length - ICRC_BYTES - ID_END)
