"""The records of the wire: the port, and for each queue pair with a peer on another card its connection and its posted WQEs.

Like the tables of contexts (softhca/tables.py), they are rows whose fields are all int64, in private memory of the card. Only engines on a
CPU have a wire. The firmware writes a connection's fields up to CONN_RETRIES, before the state of the queue pair allows the engine to read
them; the engine writes all others. PSNs are ever-growing here; packets have their low 24 bits.

A connection is both ends of RC. Its requester has posted WQEs in a ring, from REQ_TAIL to REQ_HEAD, each with the PSNs from ENTRY_FIRST to
ENTRY_LAST. These PSNs satisfy REQ_UNACKED <= REQ_SEND <= REQ_HIGH <= REQ_NEXT: acknowledged before REQ_UNACKED, sent before REQ_HIGH, and
sent since the last retransmission began before REQ_SEND (IBTA 9.7.3.1). Its responder expects RESP_EXPECTED (IBTA 9.7.1).
"""

from typing import Any

import numpy as np

from pgas.transports.softhca import layout
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.wire import icrc
from pgas.transports.softhca.wire.packets import OVERHEAD_MAX, PSN_BITS

#: Maximum number of bytes of data of a packet.
MTU_MAX = 4096

#: Added to first PSNs, so that no ever-growing PSN is 0 or below.
FIRST_PSN = 1 << PSN_BITS

#: A requester's window in PSNs, and its time until a retransmission, before anything was acknowledged.
WINDOW_FIRST, RESEND_FIRST_NS = 32, 20_000_000

# ------------------------------------------------------------------------------------------------------------------ connection
(
    CONN_UDP,  # the peer's UDP port if all of its packets come from it; 0: they may come from any
    CONN_GID,  # the peer's address, in network order: 4 bytes for IPv4, 16 for IPv6
    CONN_GID_END,
    CONN_SOCKADDR,  # the peer's socket address, 32 bytes
    CONN_SOCKADDR_1,
    CONN_SOCKADDR_2,
    CONN_SOCKADDR_3,
    CONN_ENTRIES,  # address of the ring of posted WQEs
    CONN_MTU,
    CONN_LOG_MSG_MAX,
    CONN_RNR_TIMER,  # min_rnr_nak, for RNR NAKs
    CONN_READS_MAX,  # maximum number of outstanding READs and atomics
    CONN_TIMEOUT_NS,  # time without progress that counts as one retry; 0: endless
    CONN_RETRIES,  # qpc.retry_count
    # requester
    REQ_CURSOR,  # next WQEBB to post, ever-growing
    REQ_HEAD,
    REQ_TAIL,
    REQ_CURRENT,  # posted WQE of REQ_SEND
    REQ_NEXT,  # PSN of the next WQE
    REQ_UNACKED,
    REQ_SEND,
    REQ_HIGH,
    REQ_FETCHES,  # posted READs and atomics
    REQ_READS,  # outstanding requests for data
    REQ_WINDOW,  # maximum number of PSNs from REQ_UNACKED to REQ_SEND
    REQ_PROGRESS_AT,  # time of the last progress
    REQ_RESEND_AT,  # time of the next retransmission
    REQ_BACKOFF_NS,
    REQ_RNR_UNTIL,  # time until which an RNR NAK forbids sending
    REQ_TIMED_PSN,  # PSN whose round trip is measured, 0: none
    REQ_TIMED_AT,
    REQ_ROUND_TRIP_NS,  # smoothed round trip, and its variation (RFC 6298)
    REQ_VARIATION_NS,
    REQ_RESENT,  # 1: retransmission has begun and nothing was acknowledged since
    REQ_STUCK,  # 1: data of the WQE at REQ_SEND cannot be read
    REQ_FOUND,  # address and number of bytes that locate() found
    REQ_ROOM,
    # responder
    RESP_EXPECTED,
    RESP_MSN,
    RESP_MESSAGE,  # kind of the message of which more packets follow; 0: none
    RESP_VA,
    RESP_RKEY,
    RESP_LENGTH,
    RESP_DONE,  # bytes of the message that have come
    RESP_NAKED,  # 1: a NAK was sent for RESP_EXPECTED, and other packets are dropped
    RESP_ACK,  # 1: an ACK is due
    RESP_FATAL,  # syndrome of the NAK that moved the queue pair to ERR; 0: none
    RESP_REPLAYS,  # atomics that were executed
    CONN_UNNUMBERED,  # packets that came in a row with identification 0, up to UNNUMBERED_ENOUGH
    CONN_NUMBER,  # identification of the last packet of a software NIC
) = range(0, 8 * 50, 8)

_FIELDS = {name.removeprefix("CONN_"): place for name, place in list(globals().items()) if name.startswith(("CONN_", "REQ_", "RESP_"))}

#: Results of the last atomics, for duplicates (IBTA 9.4.5), as (PSN, original value): as many as a requester may have outstanding.
REPLAYS = 1 << layout.LOG_MAX_RA
REPLAY_BYTES = 16
CONN_REPLAYS = CONN_NUMBER + 8
CONN_ROW = -(-(CONN_REPLAYS + REPLAYS * REPLAY_BYTES) // 64) * 64

#: Number of packets with identification 0 in a row after which a peer's packets must all have it.
UNNUMBERED_ENOUGH = 2

# ------------------------------------------------------------------------------------------------------------------ posted WQE
#: The first fields are those of the work record, up to WORK_NBYTES.
ENTRY_WORK = t.WORK_NBYTES + 8
ENTRY_FIRST, ENTRY_LAST = ENTRY_WORK, ENTRY_WORK + 8
ENTRY_WQE = 128  # a copy of the WQE
ENTRY_ROW = ENTRY_WQE + t.WQE_BYTES
ENTRIES = 64

# ------------------------------------------------------------------------------------------------------------------------ port
(
    PORT_FD,  # the socket; -1: none, for tests
    PORT_GID,  # own address, like CONN_GID
    PORT_GID_END,
    PORT_V4,  # whether the address is IPv4
    PORT_UDP,  # own UDP port
    PORT_NOW,  # time of this pass
    PORT_CRC,  # address of icrc.tables()
    PORT_FRAMES,  # address of the frames to be sent
    PORT_OUT_COUNT,  # number of them
    PORT_OUT_IOV,  # address of their struct iovec
    PORT_OUT,  # address of the message headers (struct mmsghdr) that send them, and number of them
    PORT_MESSAGES,
    PORT_SEGMENTS,  # maximum number of frames of a message
    PORT_INBOUND,  # address of the frames that come
    PORT_IN,  # address of their message headers
    PORT_DUE,  # address of the connections with an ACK due, and number of them
    PORT_DUE_COUNT,
    PORT_DMA,  # CTL_DMA
    # counters
    PORT_SENT_PACKETS,
    PORT_SENT_NBYTES,
    PORT_RECEIVED_PACKETS,
    PORT_RECEIVED_NBYTES,
    PORT_RETRANSMISSIONS,  # times that a requester went back
    PORT_TIMEOUTS,  # of these, because nothing came
    PORT_DUPLICATES,  # requests that had been executed
    PORT_SEQUENCE_NAKS,  # NAKs that were sent because packets were missing
    PORT_RNR_NAKS,
    PORT_ERROR_NAKS,
    PORT_UNSENT,  # packets that the socket did not take
    PORT_BAD_FORMAT,  # packets that were dropped: no packet of RC
    PORT_BAD_QP,  # no such queue pair, or not in RTR or RTS, or without a peer elsewhere
    PORT_BAD_SOURCE,  # not from the peer
    PORT_BAD_ICRC,
    PORT_BAD_PSN,  # outside the window of PSNs
    PORT_BAD_RESPONSE,  # not an answer to an outstanding request
) = range(0, 8 * 35, 8)

#: Offset of the BTH in a frame, before which the masked headers of the ICRC have room. Data after a BTH, or a BTH and a RETH, is at a
#: multiple of 16.
FRAME_BTH = 68
FRAME_ROW = -(-(FRAME_BTH + OVERHEAD_MAX + MTU_MAX) // 64) * 64

#: Number of frames to be sent together, and of frames that are received together.
OUT_FRAMES, IN_FRAMES = 256, 64

#: Maximum number of frames of a message, which the kernel makes datagrams of (UDP_MAX_SEGMENTS), and of their bytes.
SEGMENTS_MAX, MESSAGE_NBYTES = 64, 65_507

#: struct mmsghdr: name, its length, iovec, its length, control message, its length; and the length that came.
MMSG_BYTES, MMSG_NAME, MMSG_NAMELEN, MMSG_IOV, MMSG_IOVLEN, MMSG_CONTROL, MMSG_CONTROLLEN, MMSG_LEN = 64, 0, 8, 16, 24, 32, 40, 56
IOV_BYTES, IOV_BASE, IOV_LEN = 16, 0, 8
SOCKADDR_BYTES = 32
#: struct cmsghdr with UDP_SEGMENT: length (CMSG_LEN), level and type, and the bytes of a segment; with padding (CMSG_SPACE).
CONTROL_BYTES, CONTROL_LEN, CONTROL_KIND, CONTROL_SEGMENT = 24, 0, 8, 16
SOL_UDP, UDP_SEGMENT, _CMSG_LEN = 17, 103, 18

#: Offset of the IP address in struct sockaddr_in and sockaddr_in6. In both, the UDP port is the lower half of the first big-endian word.
SOCKADDR_V4, SOCKADDR_V6 = 4, 8

CONN = t.record("", _FIELDS, CONN_ROW)
PORT = t.record("PORT_", globals())

#: Names of the counters of a port, in the order of printed tables.
PORT_COUNTERS: tuple[str, ...] = (PORT.names or ())[PORT_SENT_PACKETS // 8 :]


class Records:
    """The records of a card's wire, in memory of this process.

    Args:
        tables: contexts of the card, whose control record gets the address of the port's record.
    """

    def __init__(self, tables: t.Tables) -> None:
        self.connections = t.zeroed(1 << layout.LOG_MAX_QP, CONN)
        self.port = t.zeroed(1, PORT)
        bytes_ = np.dtype(np.uint8)
        self._entries = t.zeroed((1 << layout.LOG_MAX_QP) * ENTRIES * ENTRY_ROW, bytes_)
        self._crc = icrc.tables()
        self.out, self._out_iov, self.frames = (t.zeroed(OUT_FRAMES * n, bytes_) for n in (MMSG_BYTES, IOV_BYTES, FRAME_ROW))
        self._controls = t.zeroed(OUT_FRAMES * CONTROL_BYTES, bytes_)
        self._in, self._in_iov = (t.zeroed(IN_FRAMES * n, bytes_) for n in (MMSG_BYTES, IOV_BYTES))
        self._inbound = tables.page_locked(IN_FRAMES * FRAME_ROW)  # because the data of packets is written from there
        self._in_names, self._due = t.zeroed(IN_FRAMES * SOCKADDR_BYTES, bytes_), t.zeroed(OUT_FRAMES * 8, bytes_)
        port = self.port[0]
        port["fd"], port["dma"], port["segments"] = -1, tables.ring, 1
        for name, array in (
            ("crc", self._crc), ("frames", self.frames), ("out", self.out), ("out_iov", self._out_iov), ("inbound", self._inbound),
            ("in", self._in), ("due", self._due),
        ):  # fmt: skip
            port[name] = array.ctypes.data
        self._headers(self.out, self._out_iov, self.frames, None)
        headers, controls = (array.view("<i8").reshape(OUT_FRAMES, -1) for array in (self.out, self._controls))
        controls[:, CONTROL_LEN // 8], controls[:, CONTROL_KIND // 8] = _CMSG_LEN, UDP_SEGMENT << 32 | SOL_UDP
        headers[:, MMSG_CONTROL // 8] = controls.ctypes.data + CONTROL_BYTES * np.arange(OUT_FRAMES)
        self._headers(self._in, self._in_iov, self._inbound, self._in_names)
        tables.set(t.CTL_WIRE, self.port.ctypes.data)

    @staticmethod
    def _headers(headers: Any, iovs: Any, frames: Any, names: Any) -> None:
        """Fill the message headers of frames; those that come have all their room and a place for the sender's address."""
        for i in range(len(frames) // FRAME_ROW):
            iov = iovs[i * IOV_BYTES : (i + 1) * IOV_BYTES].view("<i8")
            iov[0], iov[1] = frames.ctypes.data + i * FRAME_ROW + FRAME_BTH, FRAME_ROW - FRAME_BTH
            header = headers[i * MMSG_BYTES : (i + 1) * MMSG_BYTES].view("<i8")
            header[MMSG_IOV // 8], header[MMSG_IOVLEN // 8] = iovs.ctypes.data + i * IOV_BYTES, 1
            if names is not None:
                header[MMSG_NAME // 8] = names.ctypes.data + i * SOCKADDR_BYTES

    @property
    def address(self) -> int:
        """The address of the port's record."""
        return int(self.port.ctypes.data)

    def connection(self, row: int) -> int:
        """Return the address of the connection of a queue pair, for QP_WIRE."""
        return int(self.connections.ctypes.data) + row * CONN_ROW

    def connect(
        self, row: int, gid: bytes, sockaddr: bytes, *, mtu: int, log_msg_max: int, rnr_timer: int, receive_psn: int, udp: int
    ) -> None:
        """Set the connection of a queue pair that becomes RTR.

        Args:
            row: row of the queue pair.
            gid: the peer's IP address in network order, 4 or 16 bytes.
            sockaddr: the peer's socket address.
            mtu: maximum number of bytes of data of a packet.
            log_msg_max: log2 of the maximum number of bytes of a message.
            rnr_timer: min_rnr_nak.
            receive_psn: PSN of the first request.
            udp: CONN_UDP.
        """
        raw = self.connections[row : row + 1].view(np.uint8)
        raw[:] = 0
        raw[CONN_GID : CONN_GID + len(gid)] = np.frombuffer(gid, np.uint8)
        self.connections[row]["udp"] = udp
        raw[CONN_SOCKADDR : CONN_SOCKADDR + len(sockaddr)] = np.frombuffer(sockaddr, np.uint8)
        record = self.connections[row]
        record["entries"] = self._entries.ctypes.data + row * ENTRIES * ENTRY_ROW
        record["mtu"], record["log_msg_max"], record["rnr_timer"] = mtu, log_msg_max, rnr_timer
        record["resp_expected"] = FIRST_PSN + receive_psn

    def start(self, row: int, *, send_psn: int, timeout_ns: int, retries: int, reads_max: int, cursor: int) -> None:
        """Set the requester of a queue pair that becomes RTS.

        Args:
            row: row of the queue pair.
            send_psn: PSN of the first request.
            timeout_ns: time of qpc.ack_timeout; 0: endless.
            retries: qpc.retry_count.
            reads_max: maximum number of outstanding READs and atomics.
            cursor: index of the first WQEBB.
        """
        record = self.connections[row]
        record["timeout_ns"], record["retries"], record["reads_max"], record["req_cursor"] = timeout_ns, retries, reads_max, cursor
        for name in ("req_next", "req_unacked", "req_send", "req_high"):
            record[name] = FIRST_PSN + send_psn
        record["req_window"], record["req_backoff_ns"] = WINDOW_FIRST, RESEND_FIRST_NS

    def counters(self) -> dict[str, int]:
        """Return the counters of the port."""
        return {name: int(self.port[0][name]) for name in PORT_COUNTERS}


def set_names(records: Records, nbytes: int) -> None:
    """Set the number of bytes of socket addresses in all message headers."""
    for headers in (records.out, records._in):
        for i in range(len(headers) // MMSG_BYTES):
            headers[i * MMSG_BYTES : (i + 1) * MMSG_BYTES].view("<i8")[MMSG_NAMELEN // 8] = nbytes
