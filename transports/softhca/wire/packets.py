"""Packets of RC: opcodes, headers, and their codec (IBTA 9.2 to 9.4, and annex A17 for RoCE v2).

The UDP payload of a packet is BTH, the extended headers of its opcode in the order of EXTENDED, the data, 0 to 3 bytes of padding, and the
ICRC. All fields are big-endian, except the ICRC (icrc.py).

The opcodes of masked atomics, which IBTA does not define, are in the range of manufacturers. Only software NICs of pgas know them.
"""

from enum import IntEnum

import numpy as np

from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5.fields import Explained, Field, Table
from pgas.transports.softhca.engine.ops import load_be32, load_u8, store_u32, swap32

#: UDP port of RoCE v2 (annex A17.3.1).
UDP_PORT = 4791


class Rc(IntEnum):
    """``bth.opcode`` of the RC transport (IBTA 9.2.1, OpCode)."""

    SEND_FIRST = 0x00
    SEND_MIDDLE = 0x01
    SEND_LAST = 0x02
    SEND_LAST_WITH_IMMEDIATE = 0x03
    SEND_ONLY = 0x04
    SEND_ONLY_WITH_IMMEDIATE = 0x05
    RDMA_WRITE_FIRST = 0x06
    RDMA_WRITE_MIDDLE = 0x07
    RDMA_WRITE_LAST = 0x08
    RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x09
    RDMA_WRITE_ONLY = 0x0A
    RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x0B
    RDMA_READ_REQUEST = 0x0C
    RDMA_READ_RESPONSE_FIRST = 0x0D
    RDMA_READ_RESPONSE_MIDDLE = 0x0E
    RDMA_READ_RESPONSE_LAST = 0x0F
    RDMA_READ_RESPONSE_ONLY = 0x10
    ACKNOWLEDGE = 0x11
    ATOMIC_ACKNOWLEDGE = 0x12
    COMPARE_SWAP = 0x13
    FETCH_ADD = 0x14
    SEND_LAST_WITH_INVALIDATE = 0x16
    SEND_ONLY_WITH_INVALIDATE = 0x17
    MASKED_COMPARE_SWAP = 0xD3  # of pgas
    MASKED_FETCH_ADD = 0xD4


class NakCode(Explained):
    """Low bits of the syndrome of a NAK (IBTA 9.7.5.2.8)."""

    PSN_SEQUENCE_ERROR = 0, "a packet is missing before this one"
    INVALID_REQUEST = 1, "the opcode, its place in the message, or its length is not valid, or the queue pair does not permit it"
    REMOTE_ACCESS_ERROR = 2, "the R_Key does not permit the access"
    REMOTE_OPERATIONAL_ERROR = 3, "the responder could not complete the request"


#: Kinds of ``aeth.syndrome``, its bits 5 and 6 (IBTA 9.7.5.2.1), and its low bits in an ACK without flow control.
ACK, RNR_NAK, NAK = 0, 1, 3
KIND_SHIFT, VALUE_MASK = 5, 0x1F
UNLIMITED = 0x1F

# --- headers (IBTA 9.2, 9.3) -------------------------------------------------------------------------------------------------------

BTH = Table(
    "bth",  # base transport header
    12,
    Field("opcode", 0, 8),
    Field("se", 8, 1),
    Field("m", 9, 1),
    Field("pad", 10, 2),
    Field("tver", 12, 4),
    Field("pkey", 16, 16),
    Field("resv8a", 32, 8),  # FECN and BECN are its upper bits; the ICRC does not cover it
    Field("dest_qp", 40, 24),
    Field("a", 64, 1),  # acknowledge request
    Field("psn", 72, 24),
)
RETH = Table("reth", 16, Field("va", 0, 64), Field("rkey", 64, 32), Field("dma_len", 96, 32))
ATOMICETH = Table("atomiceth", 28, Field("va", 0, 64), Field("rkey", 64, 32), Field("swap_add", 96, 64), Field("compare", 160, 64))
AETH = Table("aeth", 4, Field("syndrome", 0, 8), Field("msn", 8, 24))
ATOMICACKETH = Table("atomicacketh", 8, Field("original", 0, 64))
IMMDT = Table("immdt", 4, Field("imm", 0, 32))
IETH = Table("ieth", 4, Field("rkey", 0, 32))

#: Header of pgas's masked atomics: width of the operand in bytes, and the operands as in the WQE.
MASKEDETH = Table("maskedeth", 48, Field("va", 0, 64), Field("rkey", 64, 32), Field("width", 96, 32), Field("operands", 128, 256))

#: Extended headers, in their order in a packet, each with the opcodes that have it.
EXTENDED: tuple[tuple[Table, tuple[Rc, ...]], ...] = (
    (
        RETH,
        (
            Rc.RDMA_WRITE_FIRST,
            Rc.RDMA_WRITE_ONLY,
            Rc.RDMA_WRITE_ONLY_WITH_IMMEDIATE,
            Rc.RDMA_READ_REQUEST,
        ),
    ),
    (ATOMICETH, (Rc.COMPARE_SWAP, Rc.FETCH_ADD)),
    (MASKEDETH, (Rc.MASKED_COMPARE_SWAP, Rc.MASKED_FETCH_ADD)),
    (
        AETH,
        (
            Rc.RDMA_READ_RESPONSE_FIRST,
            Rc.RDMA_READ_RESPONSE_LAST,
            Rc.RDMA_READ_RESPONSE_ONLY,
            Rc.ACKNOWLEDGE,
            Rc.ATOMIC_ACKNOWLEDGE,
        ),
    ),
    (ATOMICACKETH, (Rc.ATOMIC_ACKNOWLEDGE,)),
    (
        IMMDT,
        (
            Rc.SEND_LAST_WITH_IMMEDIATE,
            Rc.SEND_ONLY_WITH_IMMEDIATE,
            Rc.RDMA_WRITE_LAST_WITH_IMMEDIATE,
            Rc.RDMA_WRITE_ONLY_WITH_IMMEDIATE,
        ),
    ),
    (IETH, (Rc.SEND_LAST_WITH_INVALIDATE, Rc.SEND_ONLY_WITH_INVALIDATE)),
)

ICRC_BYTES = 4
IMM_BYTES = IMMDT.size
PSN_BITS = 24
PSN_MASK = (1 << PSN_BITS) - 1

#: Default partition key. Its upper bit, full membership, is not compared.
PKEY, PKEY_MASK = 0xFFFF, 0x7FFF


def header_nbytes(opcode: Rc) -> int:
    """Return the number of bytes of all headers of an opcode."""
    return BTH.size + sum(header.size for header, having in EXTENDED if opcode in having)


#: Maximum number of bytes of headers, padding, and ICRC of a packet.
OVERHEAD_MAX = max(map(header_nbytes, Rc)) + 3 + ICRC_BYTES

# Words of the BTH, and offsets from its beginning of the extended headers that follow it directly.
BTH_OPCODE, BTH_RESV8A, BTH_DEST_QP, BTH_PSN = 0, BTH.byte("resv8a"), 4, 8
FIRST = BTH.size
RETH_VA, RETH_RKEY, RETH_LEN, RETH_END = FIRST, FIRST + RETH.byte("rkey"), FIRST + RETH.byte("dma_len"), FIRST + RETH.size
ATOMIC_OPERANDS, ATOMIC_END = FIRST + ATOMICETH.byte("swap_add"), FIRST + ATOMICETH.size
MASKED_WIDTH, MASKED_OPERANDS, MASKED_END = FIRST + MASKEDETH.byte("width"), FIRST + MASKEDETH.byte("operands"), FIRST + MASKEDETH.size
OPERANDS_BYTES, MASKED_OPERANDS_BYTES = 16, 32
AETH_END, ATOMIC_ORIGINAL, ATOMIC_ACK_END = FIRST + AETH.size, FIRST + AETH.size, FIRST + AETH.size + ATOMICACKETH.size

_OPCODE_SHIFT, _M, _PAD_SHIFT, _TVER_SHIFT, _TVER_MASK = 24, 1 << 22, 20, 16, 0xF
_ACKREQ = 1 << 31
_SYNDROME_SHIFT = 24

#: By opcode, the number of bytes of its headers; 0 if there is no such opcode.
_HEADERS = np.zeros(256, np.int64)
_HEADERS[list(Rc)] = [header_nbytes(opcode) for opcode in Rc]


@device
def headers_end(opcode: int) -> int:
    """Return the number of bytes of the headers of an opcode, 0 if there is no such opcode."""
    return int(_HEADERS[opcode])


@device
def packets_of(nbytes: int, mtu: int) -> int:
    """Return the number of packets of a message."""
    return max(1, (nbytes + mtu - 1) // mtu)


@device
def store_be32(at: int, value: int) -> int:
    """Store a word."""
    return store_u32(at, swap32(value))


@device
def store_be64(at: int, value: int) -> int:
    """Store two words."""
    store_be32(at, value >> 32)
    return store_be32(at + 4, value)


@device
def load_be64_words(at: int) -> int:
    """Load two words."""
    return load_be32(at) << 32 | load_be32(at + 4)


@device
def put_bth(at: int, opcode: int, pad: int, qpn: int, ackreq: int, psn: int) -> int:
    """Write a BTH of a connection in state Migrated."""
    store_be32(at + BTH_OPCODE, opcode << _OPCODE_SHIFT | _M | pad << _PAD_SHIFT | PKEY)
    store_be32(at + BTH_DEST_QP, qpn)
    return store_be32(at + BTH_PSN, (_ACKREQ if ackreq != 0 else 0) | (psn & PSN_MASK))


@device
def put_reth(at: int, va: int, rkey: int, nbytes: int) -> int:
    """Write the RETH of a packet. at: its BTH, here and below."""
    store_be64(at + RETH_VA, va)
    store_be32(at + RETH_RKEY, rkey)
    return store_be32(at + RETH_LEN, nbytes)


@device
def put_aeth(at: int, syndrome: int, msn: int) -> int:
    """Write the AETH of a packet."""
    return store_be32(at + FIRST, syndrome << _SYNDROME_SHIFT | (msn & PSN_MASK))


@device
def opcode_of(at: int) -> int:
    """Return bth.opcode."""
    return load_u8(at)


@device
def pad_of(at: int) -> int:
    """Return bth.pad."""
    return (load_be32(at) >> _PAD_SHIFT) & 3


@device
def valid_bth(at: int) -> int:
    """Whether version and partition key are those of this port (IBTA 9.6.1.1)."""
    word = load_be32(at)
    return 1 if (word >> _TVER_SHIFT) & _TVER_MASK == 0 and word & PKEY_MASK == PKEY & PKEY_MASK else 0


@device
def dest_qp(at: int) -> int:
    """Return bth.dest_qp."""
    return load_be32(at + BTH_DEST_QP) & PSN_MASK


@device
def psn_of(at: int) -> int:
    """Return bth.psn."""
    return load_be32(at + BTH_PSN) & PSN_MASK


@device
def ackreq_of(at: int) -> int:
    """Return bth.a."""
    return load_be32(at + BTH_PSN) >> 31


@device
def syndrome_of(at: int) -> int:
    """Return aeth.syndrome."""
    return load_u8(at + FIRST)


@device
def extend(psn: int, near: int) -> int:
    """Return the ever-growing PSN that has these 24 bits and is nearest to another one."""
    return near + (((psn - near) & PSN_MASK) ^ 0x80_0000) - 0x80_0000
