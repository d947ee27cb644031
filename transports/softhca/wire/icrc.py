"""The invariant CRC of a packet (IBTA 7.8.1; annex A17.3.3 for RoCE v2).

It is the CRC-32 of Ethernet over 64 ones (the LRH of an InfiniBand packet), IP header, UDP header, and UDP payload without the ICRC. Fields
that routers change are ones: of IPv4 the type of service, time to live, and header checksum; of IPv6 the traffic class, flow label, and hop
limit; the UDP checksum; and bth.resv8a. Its bytes are in the packet with the least significant first.

A UDP socket does not show IP headers, so they are rebuilt (put_pseudo_header). An unconnected socket that forbids fragments sends
identification 0, with the flag DF, or numbers from 0 for the datagrams of one message (frames.py). Other devices, such as the kernel's
Soft-RoCE, send other identifications over IPv4. Because the CRC is linear, the identification follows from the difference of two CRCs:
identification().
"""

from typing import Any

import numpy as np

from pgas.transports.hostloop import carryless
from pgas.transports.hostloop.carryless import fold
from pgas.transports.hostloop.compiled import device
from pgas.transports.hostloop.memory_ops import stack_words
from pgas.transports.softhca.engine.ops import load, load_any, load_any_u32, load_be32, load_u8, store, store_u32
from pgas.transports.softhca.wire.packets import BTH_RESV8A, store_be32

#: Bytes before the BTH from which the CRC begins, over IPv4 and IPv6.
LRH_BYTES, IPV4_BYTES, IPV6_BYTES, UDP_BYTES = 8, 20, 40, 8
PSEUDO_V4, PSEUDO_V6 = LRH_BYTES + IPV4_BYTES + UDP_BYTES, LRH_BYTES + IPV6_BYTES + UDP_BYTES

#: End of the IPv4 identification, from the beginning of the masked headers.
ID_END = LRH_BYTES + 6

_ONES = 0xFFFF_FFFF
_POLYNOMIAL = 0xEDB8_8320
_SLICES = 8

#: With carry-less multiplication, four blocks of 16 bytes are folded into the next four; the factors of both halves are powers of x, modulo
#: the polynomial, for a distance of four blocks and of one (Gopal et al., Fast CRC Computation Using PCLMULQDQ, Intel 2009).
_BLOCK = 16
_FOLD_4, _FOLD_1 = (0x1_5444_2BD4, 0x1_C6E4_1596), (0x1_7519_97D0, 0x0_CCAA_009E)

# Words of the masked headers.
_IPV4_FIRST = 0x45FF_0000  # version, header length, and type of service; the total length is added
_IPV4_DF = 0x4000  # DF, no offset; the identification is above
_IPV4_TTL_UDP = 0xFF11_FFFF  # time to live, protocol, and checksum
_IPV6_FIRST = 0x6FFF_FFFF  # version, traffic class, and flow label
_IPV6_UDP_HOPS = 0x11FF  # next header and hop limit; the payload length is above


def tables() -> Any:
    """Return the tables: for each of 8 bytes of a word, the CRC that it adds; then the entry of the first table with an upper byte."""
    table = np.zeros((_SLICES + 1, 256), np.uint32)
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table[0, value] = crc
    for i in range(1, _SLICES):
        table[i] = table[i - 1] >> 8 ^ table[0, table[i - 1] & 0xFF]
    table[_SLICES, table[0] >> 24] = np.arange(256)
    return table


@device
def crc(table: int, at: int, nbytes: int) -> int:
    """Return the CRC of memory. table: address of tables()."""
    if not carryless.AVAILABLE or nbytes < 4 * _BLOCK:
        return divided(table, _ONES, at, nbytes) ^ _ONES
    first, second, third, fourth = stack_words(), stack_words(), stack_words(), stack_words()
    for place, state in enumerate((first, second, third, fourth)):
        store(state, load_any(at + place * _BLOCK))
        store(state + 8, load_any(at + place * _BLOCK + 8))
    store(first, load(first) ^ _ONES)
    done = 4 * _BLOCK
    while nbytes - done >= 4 * _BLOCK:
        fold(first, *_FOLD_4, at + done)
        fold(second, *_FOLD_4, at + done + _BLOCK)
        fold(third, *_FOLD_4, at + done + 2 * _BLOCK)
        fold(fourth, *_FOLD_4, at + done + 3 * _BLOCK)
        done += 4 * _BLOCK
    fold(first, *_FOLD_1, second)
    fold(first, *_FOLD_1, third)
    fold(first, *_FOLD_1, fourth)
    while nbytes - done >= _BLOCK:
        fold(first, *_FOLD_1, at + done)
        done += _BLOCK
    return divided(table, divided(table, 0, first, _BLOCK), at + done, nbytes - done) ^ _ONES


@device
def divided(table: int, state: int, at: int, nbytes: int) -> int:
    """Return the remainder after some more bytes, by the tables of eight bytes at a time."""
    end = at + nbytes
    while end - at >= 8:
        word = load_any(at) ^ state
        state = (
            load_any_u32(table + 7168 + ((word << 2) & 0x3FC))
            ^ load_any_u32(table + 6144 + ((word >> 6) & 0x3FC))
            ^ load_any_u32(table + 5120 + ((word >> 14) & 0x3FC))
            ^ load_any_u32(table + 4096 + ((word >> 22) & 0x3FC))
            ^ load_any_u32(table + 3072 + ((word >> 30) & 0x3FC))
            ^ load_any_u32(table + 2048 + ((word >> 38) & 0x3FC))
            ^ load_any_u32(table + 1024 + ((word >> 46) & 0x3FC))
            ^ load_any_u32(table + ((word >> 54) & 0x3FC))
        )
        at += 8
    while at < end:
        state = load_any_u32(table + 4 * ((state ^ load_u8(at)) & 0xFF)) ^ (state >> 8)
        at += 1
    return state


@device
def put_pseudo_header(bth: int, v4: int, number: int, source: int, dest: int, source_port: int, dest_port: int, nbytes: int) -> int:
    """Write the masked headers before a BTH, and return where they begin.

    Args:
        bth: address of the BTH.
        v4: whether over IPv4.
        number: the IPv4 identification.
        source, dest: addresses of both addresses, in network order.
        source_port, dest_port: the UDP ports.
        nbytes: bytes of the UDP payload, with the ICRC.
    """
    udp = bth - UDP_BYTES
    length = nbytes + UDP_BYTES
    store_be32(udp, source_port << 16 | dest_port)
    store_be32(udp + 4, length << 16 | 0xFFFF)
    if v4 != 0:
        ip = udp - IPV4_BYTES
        store_be32(ip, _IPV4_FIRST + length + IPV4_BYTES)
        store_be32(ip + 4, number << 16 | _IPV4_DF)
        store_be32(ip + 8, _IPV4_TTL_UDP)
        store_be32(ip + 12, load_be32(source))
        store_be32(ip + 16, load_be32(dest))
    else:
        ip = udp - IPV6_BYTES
        store_be32(ip, _IPV6_FIRST)
        store_be32(ip + 4, length << 16 | _IPV6_UDP_HOPS)
        for offset in range(0, 16, 4):
            store_be32(ip + 8 + offset, load_be32(source + offset))
            store_be32(ip + 24 + offset, load_be32(dest + offset))
    store_u32(ip - 8, _ONES)
    store_u32(ip - 4, _ONES)
    return ip - LRH_BYTES


@device
def icrc(table: int, begin: int, bth: int, nbytes: int) -> int:
    """Return the ICRC of a packet whose masked headers begin at an address. nbytes: bytes of the UDP payload without the ICRC."""
    word = load_any_u32(bth + BTH_RESV8A)
    store_u32(bth + BTH_RESV8A, word | 0xFF)
    value = crc(table, begin, bth - begin + nbytes)
    store_u32(bth + BTH_RESV8A, word)
    return value


@device
def identification(table: int, difference: int, nbytes: int) -> int:
    """Return the IPv4 identification, in network order, that changes a CRC by a difference; -1 if there is none.

    Args:
        table: address of tables().
        difference: the CRC with the identification, exclusive or the CRC with identification 0.
        nbytes: bytes that the CRC covers after the identification.
    """
    state = difference
    for _ in range(nbytes + 2):  # undo the CRC's steps over zeros
        index = load_any_u32(table + 1024 * _SLICES + 4 * (state >> 24))
        state = ((state ^ load_any_u32(table + 4 * index)) << 8 | index) & _ONES
    return (state & 0xFF) << 8 | state >> 8 if state <= 0xFFFF else -1
