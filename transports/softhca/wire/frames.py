"""Packets to be sent: taking a frame of the port, and completing it with BTH, padding, and ICRC.

A frame that has been taken is either completed or, if its data cannot be read, taken again. The port sends the completed frames in order,
at the end of a pass or when there is no room.
"""

from pgas.transports.hostloop.compiled import device
from pgas.transports.hostloop.sockets import send_messages, wait_writable
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine import dma
from pgas.transports.softhca.engine.ops import load, load_any_u32, load_be32, store, store_u32
from pgas.transports.softhca.engine.states import count
from pgas.transports.softhca.wire import records as r
from pgas.transports.softhca.wire.icrc import icrc, put_pseudo_header
from pgas.transports.softhca.wire.packets import AETH_END, ICRC_BYTES, Rc, put_aeth, put_bth

#: Milliseconds that the port waits for room in the socket before it drops a packet.
_PATIENCE_MS = 1


@device
def frame(port: int) -> int:
    """Return the address of the BTH of a free frame, 0 if there is none."""
    if load(port + r.PORT_OUT_COUNT) == r.OUT_FRAMES:
        send_frames(port)
        if load(port + r.PORT_OUT_COUNT) == r.OUT_FRAMES:
            return 0
    return load(port + r.PORT_FRAMES) + load(port + r.PORT_OUT_COUNT) * r.FRAME_ROW + r.FRAME_BTH


@device
def complete_frame(port: int, qp: int, bth: int, opcode: int, end: int, nbytes: int, ackreq: int, psn: int) -> int:
    """Complete a frame and let it be sent.

    Args:
        port: the port, which gave the frame.
        qp: queue pair that sends it.
        bth: address of its BTH.
        opcode: its opcode.
        end: bytes of its headers.
        nbytes: bytes of data, which follow the headers.
        ackreq: whether it requests an acknowledgment.
        psn: its PSN.
    """
    conn = load(qp + t.QP_WIRE)
    pad = -nbytes & 3
    if pad != 0:
        store_u32(bth + ((end + nbytes) & ~3), _kept(bth + ((end + nbytes) & ~3), 4 - pad))
    put_bth(bth, opcode, pad, load(qp + t.QP_REMOTE_QPN), ackreq, psn)
    length = end + nbytes + pad
    own, peer, peer_udp = port + r.PORT_GID, conn + r.CONN_GID, load_be32(conn + r.CONN_SOCKADDR) & 0xFFFF
    begin = put_pseudo_header(bth, load(port + r.PORT_V4), own, peer, load(port + r.PORT_UDP), peer_udp, length + ICRC_BYTES)
    store_u32(bth + length, icrc(load(port + r.PORT_CRC), begin, bth, length))
    index = load(port + r.PORT_OUT_COUNT)
    header = load(port + r.PORT_OUT) + index * r.MMSG_BYTES
    store(header + r.MMSG_NAME, conn + r.CONN_SOCKADDR)
    store(load(header + r.MMSG_IOV) + r.IOV_LEN, length + ICRC_BYTES)
    store(port + r.PORT_OUT_COUNT, index + 1)
    count(port + r.PORT_SENT_PACKETS, 1)
    return count(port + r.PORT_SENT_NBYTES, length + ICRC_BYTES)


@device
def _kept(at: int, nbytes: int) -> int:
    """Return a word of which only the first bytes are kept."""
    return load_any_u32(at) & ((1 << (8 * nbytes)) - 1)


@device
def acknowledge(port: int, qp: int, syndrome: int, psn: int) -> int:
    """Send an ACK or NAK; return whether there was a frame."""
    bth = frame(port)
    if bth == 0:
        return 0
    put_aeth(bth, syndrome, load(load(qp + t.QP_WIRE) + r.RESP_MSN))
    complete_frame(port, qp, bth, Rc.ACKNOWLEDGE, AETH_END, 0, 0, psn)
    return 1


@device
def send_frames(port: int) -> int:
    """Send all completed frames, after the data that they acknowledge is in memory.

    A packet that the socket does not take is lost, like one that the network loses.
    """
    number, fd = load(port + r.PORT_OUT_COUNT), load(port + r.PORT_FD)
    if number == 0 or fd < 0:
        return 0
    dma.settle(load(port + r.PORT_DMA))
    done, waited = 0, 0
    while done < number:
        sent = send_messages(fd, load(port + r.PORT_OUT) + done * r.MMSG_BYTES, number - done)
        if sent > 0:
            done += sent
            waited = 0
        elif waited == 0:
            wait_writable(fd, _PATIENCE_MS)
            waited = 1
        else:
            done += 1
            waited = 0
            count(port + r.PORT_UNSENT, 1)
    store(port + r.PORT_OUT_COUNT, 0)
    return 1
