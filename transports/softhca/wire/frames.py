"""Packets to be sent: taking a frame of the port, and completing it with BTH, padding, and ICRC.

A frame that has been taken is either completed or, if its data cannot be read, taken again. The port sends the completed frames in order,
at the end of a pass or when there is no room.

Consecutive frames of one connection to a software NIC that have the same length are one message, which may end with a shorter one: at most
SEGMENTS_MAX frames, and MESSAGE_NBYTES. The kernel, or the network interface, makes datagrams of it (UDP generic segmentation offload,
UDP_SEGMENT in udp(7)), so that most of the kernel's work is done once per message. Over IPv4, the datagrams of a message have the
identifications 0, 1, 2, and so on.
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
    number = join_message(port, conn, length + ICRC_BYTES)
    own, peer, peer_udp = port + r.PORT_GID, conn + r.CONN_GID, load_be32(conn + r.CONN_SOCKADDR) & 0xFFFF
    begin = put_pseudo_header(bth, load(port + r.PORT_V4), number, own, peer, load(port + r.PORT_UDP), peer_udp, length + ICRC_BYTES)
    store_u32(bth + length, icrc(load(port + r.PORT_CRC), begin, bth, length))
    count(port + r.PORT_SENT_PACKETS, 1)
    return count(port + r.PORT_SENT_NBYTES, length + ICRC_BYTES)


@device
def join_message(port: int, conn: int, nbytes: int) -> int:
    """Append a frame of nbytes to the last message or to a new one; return the number of frames before it in the message."""
    index, messages = load(port + r.PORT_OUT_COUNT), load(port + r.PORT_MESSAGES)
    iov = load(port + r.PORT_OUT_IOV) + index * r.IOV_BYTES
    store(iov + r.IOV_LEN, nbytes)
    store(port + r.PORT_OUT_COUNT, index + 1)
    last = load(port + r.PORT_OUT) + (messages - 1) * r.MMSG_BYTES
    if messages != 0 and joins(port, conn, last, iov - r.IOV_BYTES, nbytes) != 0:
        number = load(last + r.MMSG_IOVLEN)
        store(last + r.MMSG_IOVLEN, number + 1)
        store(last + r.MMSG_CONTROLLEN, r.CONTROL_BYTES)
        store(load(last + r.MMSG_CONTROL) + r.CONTROL_SEGMENT, segment_nbytes(last))
        return number
    new = last + r.MMSG_BYTES
    store(new + r.MMSG_NAME, conn + r.CONN_SOCKADDR)
    store(new + r.MMSG_IOV, iov)
    store(new + r.MMSG_IOVLEN, 1)
    store(new + r.MMSG_CONTROLLEN, 0)
    store(port + r.PORT_MESSAGES, messages + 1)
    return 0


@device
def segment_nbytes(message: int) -> int:
    """Return the bytes of a message's first frame, which all but the last one have."""
    return load(load(message + r.MMSG_IOV) + r.IOV_LEN)


@device
def joins(port: int, conn: int, message: int, iov: int, nbytes: int) -> int:
    """Whether a frame of nbytes joins a message, whose last frame has the iovec."""
    if load(conn + r.CONN_UDP) == 0 or load(message + r.MMSG_NAME) != conn + r.CONN_SOCKADDR:
        return 0
    number, each = load(message + r.MMSG_IOVLEN), segment_nbytes(message)
    if nbytes > each or load(iov + r.IOV_LEN) != each:
        return 0
    return 1 if number < load(port + r.PORT_SEGMENTS) and (number + 1) * each <= r.MESSAGE_NBYTES else 0


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
    number, fd = load(port + r.PORT_MESSAGES), load(port + r.PORT_FD)
    if number == 0 or fd < 0:
        return 0
    dma.settle(load(port + r.PORT_DMA))
    done, waited, room = 0, 0, 0
    while done < number:
        message = load(port + r.PORT_OUT) + done * r.MMSG_BYTES
        sent = send_messages(fd, message, number - done)
        if sent > 0:
            done += sent
            waited = 0
        elif waited == 0:
            room = wait_writable(fd, _PATIENCE_MS)
            waited = 1
        else:
            if room > 0 and load(message + r.MMSG_IOVLEN) > 1:
                send_apart(port, fd, message)
            else:
                count(port + r.PORT_UNSENT, load(message + r.MMSG_IOVLEN))
            done += 1
            waited = 0
    store(port + r.PORT_OUT_COUNT, 0)
    store(port + r.PORT_MESSAGES, 0)
    return 1


@device
def send_apart(port: int, fd: int, message: int) -> int:
    """Send the frames of a message that the socket refuses one by one. If it takes one of them, form no more such messages.

    Older kernels refuse them if the network interface cannot compute UDP checksums.
    """
    number = load(message + r.MMSG_IOVLEN)
    store(message + r.MMSG_IOVLEN, 1)
    store(message + r.MMSG_CONTROLLEN, 0)
    for _ in range(number):
        if send_messages(fd, message, 1) > 0:
            store(port + r.PORT_SEGMENTS, 1)
        else:
            count(port + r.PORT_UNSENT, 1)
        store(message + r.MMSG_IOV, load(message + r.MMSG_IOV) + r.IOV_BYTES)
    return number
