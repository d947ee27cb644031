"""The data sheet of RC packets and the ICRC, against scapy's RoCE layer and captured packets."""

import ctypes
import ipaddress
import random
import struct
import zlib

import numpy as np
import pytest

from pgas.base.backend import SIMULATOR

if not SIMULATOR:
    pytest.skip("the wire is part of the cpu engine", allow_module_level=True)

from pgas.transports.mlx5.fields import decode
from pgas.transports.softhca.wire import icrc, packets
from pgas.transports.softhca.wire.packets import EXTENDED, Rc

#: Offset of the BTH in the buffer: before it is room for the masked headers; the data after a RETH is at a multiple of 8.
BTH = 60

CRC = icrc.tables()

#: Headers as IBTA draws them, independently of packets.py.
LAYOUTS = {"reth": ">QII", "atomiceth": ">QIQQ", "aeth": ">I", "atomicacketh": ">Q", "immdt": ">I", "ieth": ">I", "maskedeth": ">QII32s"}

ADDRESSES = [("10.0.0.1", "192.168.7.9"), ("fd00::1", "2001:db8::5:1")]


class Buffer:
    """Memory for one packet, for compiled functions."""

    def __init__(self, data=b""):
        self.raw = np.zeros(8192, np.uint8)
        self.begin = self.raw.ctypes.data + -self.raw.ctypes.data % 64
        self.bth = self.begin + BTH
        self.write(self.bth, data)

    def write(self, at, data):
        ctypes.memmove(at, bytes(data), len(data))

    def read(self, at, nbytes):
        return ctypes.string_at(at, nbytes)

    def place(self, address):
        """Return the address of an IP address in network order."""
        kept = np.frombuffer(ipaddress.ip_address(address).packed, np.uint8).copy()
        self.kept = (*getattr(self, "kept", ()), kept)
        return int(kept.ctypes.data)


def scapy():
    """Return scapy's layers."""
    pytest.importorskip("scapy", reason="capability missing: scapy")
    from scapy.all import IP, UDP, Ether, IPv6, Raw
    from scapy.contrib import roce

    return roce, Ether, IP, IPv6, UDP, Raw


def values_of(draw, header):
    fields = {">QII": 3, ">QIQQ": 4, ">I": 1, ">Q": 1, ">QII32s": 4}[LAYOUTS[header.name]]
    if header.name == "maskedeth":
        return draw.getrandbits(64), draw.getrandbits(32), 8, draw.randbytes(32)
    sizes = [field.width for field in header.fields.values()] if header.name != "aeth" else [32]
    return tuple(draw.getrandbits(size) for size in sizes[:fields])


@pytest.mark.parametrize(("source", "dest"), ADDRESSES, ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("opcode", Rc, ids=lambda opcode: opcode.name)
def test_packets_are_those_of_scapy(opcode, source, dest):
    """BTH, extended headers, padding, and ICRC of every opcode, byte for byte, with data of several lengths."""
    roce, _, IP, IPv6, UDP, Raw = scapy()
    draw = random.Random(int(opcode))
    having = [header for header, opcodes in EXTENDED if opcode in opcodes]
    for nbytes in (0, 1, 2, 3, 4, 61, 1024):
        extended = b"".join(struct.pack(LAYOUTS[header.name], *values_of(draw, header)) for header in having)
        assert packets.headers_end(opcode) == packets.header_nbytes(opcode) == 12 + len(extended)
        data, pad = draw.randbytes(nbytes), -nbytes % 4
        qpn, psn, ackreq, port = draw.getrandbits(24), draw.getrandbits(24), draw.getrandbits(1), 0xC000 + nbytes
        buffer = Buffer(bytes(12) + extended + data + bytes(pad))
        packets.put_bth(buffer.bth, opcode, pad, qpn, ackreq, psn)
        length = 12 + len(extended) + nbytes + pad
        v4 = ":" not in source
        begin = icrc.put_pseudo_header(buffer.bth, int(v4), 0, buffer.place(source), buffer.place(dest), port, 4791, length + 4)
        assert buffer.bth - begin == (icrc.PSEUDO_V4 if v4 else icrc.PSEUDO_V6)
        ours = buffer.read(buffer.bth, length)
        ours += icrc.icrc(CRC.ctypes.data, begin, buffer.bth, length).to_bytes(4, "little")

        network = IP(src=source, dst=dest, id=0, flags="DF") if v4 else IPv6(src=source, dst=dest)
        bth = roce.BTH(opcode=int(opcode), migreq=1, padcount=pad, pkey=0xFFFF, dqpn=qpn, ackreq=ackreq, psn=psn)
        theirs = bytes(network / UDP(sport=port, dport=4791) / bth / Raw(extended + data + bytes(pad)))
        assert ours.hex() == theirs[-len(ours) :].hex()


@pytest.mark.parametrize("opcode", Rc, ids=lambda opcode: opcode.name)
def test_fields_that_are_read(opcode):
    draw = random.Random(1000 + opcode)
    having = [header for header, opcodes in EXTENDED if opcode in opcodes]
    qpn, psn, pad = draw.getrandbits(24), draw.getrandbits(24), draw.getrandbits(2)
    values = [values_of(draw, header) for header in having]
    extended = b"".join(struct.pack(LAYOUTS[header.name], *value) for header, value in zip(having, values, strict=True))
    buffer = Buffer(struct.pack(">BBHII", opcode, 0x40 | pad << 4, 0x7FFF, 0xC000_0000 | qpn, 1 << 31 | psn) + extended)
    at = buffer.bth
    assert (packets.opcode_of(at), packets.pad_of(at), packets.dest_qp(at), packets.psn_of(at)) == (opcode, pad, qpn, psn)
    assert packets.ackreq_of(at) == 1
    assert packets.valid_bth(at) == 1, "the upper bit of a partition key is not compared"
    decoded = decode(packets.BTH, buffer.read(at, 12))
    assert (decoded["opcode"], decoded["psn"], decoded["a"], decoded["pkey"]) == (opcode, psn, 1, 0x7FFF)
    first = dict(zip((header.name for header in having), values, strict=True))
    for name in ("reth", "atomiceth", "maskedeth"):
        if name in first:
            assert packets.load_be64_words(at + packets.RETH_VA) % 2**64 == first[name][0]
            assert int.from_bytes(buffer.read(at + packets.RETH_RKEY, 4), "big") == first[name][1]
    if "aeth" in first:
        assert packets.syndrome_of(at) == first["aeth"][0] >> 24
    if "atomicacketh" in first:
        assert packets.load_be64_words(at + packets.ATOMIC_ORIGINAL) % 2**64 == first["atomicacketh"][0]


def test_what_is_no_packet():
    """Unknown opcodes, other versions, other partitions."""
    known = set(Rc)
    assert [opcode for opcode in range(256) if opcode not in known and packets.headers_end(opcode) != 0] == []
    for word in (0x0401_FFFF, 0x0400_FFFE, 0x0400_0001):
        assert packets.valid_bth(Buffer(word.to_bytes(4, "big") + bytes(8)).bth) == 0


#: A SEND, and a CNP captured on a ConnectX-4 Lx, both from scapy's tests: source, dest, identification, source port, payload, ICRC.
CAPTURED = [
    (
        "192.168.0.7", "192.168.0.7", 1144, 49152,
        "2460ffff000000d300cf1710" + b"F0\x81\x8b\xe2\x895\xd9\x0e\x9a\x95PT\x01\xbe\x88^P\x00\x00".hex(), 0x78F353F3,
    ),
    ("10.0.17.1", "10.0.18.1", 0x718C, 0, "8100ffff4000011800000000" + "00" * 16, 0x82FD002A),
]  # fmt: skip


@pytest.mark.parametrize(("source", "dest", "identification", "port", "payload", "expected"), CAPTURED, ids=["SEND", "CNP"])
def test_icrc_of_captured_packets(source, dest, identification, port, payload, expected):
    data = bytes.fromhex(payload)
    buffer = Buffer(data)
    begin = icrc.put_pseudo_header(buffer.bth, 1, identification, buffer.place(source), buffer.place(dest), port, 4791, len(data) + 4)
    found = icrc.icrc(CRC.ctypes.data, begin, buffer.bth, len(data))
    assert found.to_bytes(4, "little") == expected.to_bytes(4, "big")
    assert buffer.read(buffer.bth, len(data)) == data, "the masked byte was not restored"


@pytest.mark.parametrize(("source", "dest", "identification", "port", "payload", "expected"), CAPTURED, ids=["SEND", "CNP"])
def test_the_identification_follows_from_the_icrc(source, dest, identification, port, payload, expected):
    """A UDP socket does not show it. A damaged packet has none, or another one in one of 65,536 cases."""
    data, table = bytes.fromhex(payload), CRC.ctypes.data
    buffer = Buffer(data)
    begin = icrc.put_pseudo_header(buffer.bth, 1, 0, buffer.place(source), buffer.place(dest), port, 4791, len(data) + 4)
    difference = icrc.icrc(table, begin, buffer.bth, len(data)) ^ int.from_bytes(expected.to_bytes(4, "big"), "little")
    covered = buffer.bth + len(data) - begin - icrc.ID_END
    assert icrc.identification(table, difference, covered) == identification
    found = [icrc.identification(table, difference ^ 1 << bit, covered) for bit in range(32)]
    assert found == [-1] * 32


def test_crc_of_any_length_and_alignment():
    """By carry-less multiplication, if this CPU has it, and by tables alone."""
    draw = random.Random(7)
    data = draw.randbytes(4200)
    buffer = Buffer(data)
    for start in range(9):
        for nbytes in (*range(150), 4100):
            expected, ones = zlib.crc32(data[start : start + nbytes]), 0xFFFF_FFFF
            assert icrc.crc(CRC.ctypes.data, buffer.bth + start, nbytes) == expected
            assert icrc.divided(CRC.ctypes.data, ones, buffer.bth + start, nbytes) ^ ones == expected


def test_psns_are_extended_to_the_nearest():
    draw = random.Random(3)
    for near in (1 << 24, (1 << 24) + 5, (5 << 24) - 1, (9 << 24) + 0x80_0000):
        for distance in (0, 1, -1, 1000, -1000, (1 << 23) - 1, -(1 << 23), draw.randrange(1 << 22)):
            assert packets.extend((near + distance) & 0xFFFFFF, near) == near + distance
