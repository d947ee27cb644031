"""WQEs: golden bytes both ways, ds and WQEBBs, the ring and its wrap, malformed WQEs."""

import inspect
import tomllib
from pathlib import Path

import pytest
import wqes as wqe
from hypothesis import given
from hypothesis import strategies as st

from pgas.transports.mlx5 import send_queue
from pgas.transports.mlx5.fields import fill
from pgas.transports.mlx5.send_queue import AtomicOperands, Data, Wait, Wqe, decode, fetch, store
from pgas.transports.mlx5.wqe import Ce, Fm, Opcode, Opmod

CASES = tomllib.loads((Path(__file__).parents[1] / "golden" / "mlx5_wqe.toml").read_text())
RADDR, RKEY, ADDR, LKEY = 0x6000_4000_1000, 0x01020304, 0x6000_0000_2000, 0x0A0B0C0D
IDX, QPN = 0x51234, 0xABCDEF
ONES = (1 << 64) - 1


def build(case):
    arguments = dict(case["arguments"])
    if case["builder"] in ("dump", "send"):
        arguments |= {"addr": ADDR, "lkey": LKEY}
    elif case["builder"] == "send_inline":
        arguments["payload"] = bytes.fromhex(arguments["payload"])
    elif case["builder"] not in ("nop", "wait"):
        arguments |= {"raddr": RADDR, "rkey": RKEY}
        if "payload" in arguments:
            arguments["payload"] = bytes.fromhex(arguments["payload"])
        else:
            arguments |= {"addr": ADDR, "lkey": LKEY}
    return getattr(wqe, case["builder"])(IDX, QPN, **arguments)


def golden(name):
    return bytes.fromhex(CASES[name]["bytes"])


def expected(opcode, ds, fm_ce_se=0, **more):
    return Wqe(opcode=opcode, opmod=more.pop("opmod", 0), wqe_idx=0x1234, qpn=QPN, ds=ds, fm_ce_se=fm_ce_se, **more)


REMOTE = {"raddr": RADDR, "rkey": RKEY}
BIG, SMALL = 0x5555666677778888, 0x1111222233334444
DECODED = {
    "nop": expected(Opcode.NOP, 1, 8),
    "wait": expected(Opcode.WAIT, 2, 8, wait=Wait(0x56789, 0x1234)),
    "dump_behind_reads": expected(Opcode.DUMP, 2, Fm.FENCE | Ce.ALWAYS, data=(Data(ADDR, LKEY, 1),)),
    "write": expected(Opcode.RDMA_WRITE, 3, **REMOTE, data=(Data(ADDR, LKEY, 1 << 30),)),
    "write_imm": expected(Opcode.RDMA_WRITE_IMM, 3, 0x0A, imm=0xFEEDBEEF, **REMOTE, data=(Data(ADDR, LKEY, 0x100),)),
    "send": expected(Opcode.SEND, 2, Fm.FENCE_AND_INITIATOR_SMALL_FENCE, data=(Data(ADDR, LKEY, 0x100),)),
    "send_imm_of_nothing": expected(Opcode.SEND_IMM, 1, 8, imm=0xFEEDBEEF),
    "send_inline_13": expected(Opcode.SEND_IMM, 3, imm=7, inline=bytes(range(1, 14))),
    "write_inline_1": expected(Opcode.RDMA_WRITE, 3, **REMOTE, inline=b"\x5a"),
    "write_inline_12": expected(Opcode.RDMA_WRITE, 3, 8, **REMOTE, inline=bytes(range(1, 13))),
    "write_inline_28": expected(Opcode.RDMA_WRITE, 4, **REMOTE, inline=bytes(range(1, 29))),
    "write_inline_29_in_two_wqebbs": expected(Opcode.RDMA_WRITE, 5, **REMOTE, inline=bytes(range(1, 30))),
    "read": expected(Opcode.RDMA_READ, 3, 8, **REMOTE, data=(Data(ADDR, LKEY, 0x20),)),
    "compare_swap": expected(
        Opcode.ATOMIC_CS,
        4,
        8,
        **REMOTE,
        atomic=AtomicOperands(8, compare=SMALL, compare_mask=ONES, swap=BIG, swap_mask=ONES),
        data=(Data(ADDR, LKEY, 8),),
    ),
    "fetch_add": expected(Opcode.ATOMIC_FA, 4, 8, **REMOTE, atomic=AtomicOperands(8, add=BIG), data=(Data(ADDR, LKEY, 8),)),
    "masked_fetch_add_4": expected(
        Opcode.ATOMIC_MASKED_FA,
        4,
        8,
        opmod=8,
        **REMOTE,
        atomic=AtomicOperands(4, add=0x55556666, field_boundary=0x80000001),
        data=(Data(ADDR, LKEY, 4),),
    ),
    "masked_fetch_add_8": expected(
        Opcode.ATOMIC_MASKED_FA,
        4,
        opmod=9,
        **REMOTE,
        atomic=AtomicOperands(8, add=BIG, field_boundary=1 << 63 | 1),
        data=(Data(ADDR, LKEY, 8),),
    ),
    "masked_compare_swap_4": expected(
        Opcode.ATOMIC_MASKED_CS,
        4,
        opmod=8,
        **REMOTE,
        atomic=AtomicOperands(4, compare=0x11112222, swap=0x55556666, compare_mask=0xFFFF, swap_mask=0xFF00FF00),
        data=(Data(ADDR, LKEY, 4),),
    ),
    "masked_compare_swap_8_in_two_wqebbs": expected(
        Opcode.ATOMIC_MASKED_CS,
        5,
        opmod=9,
        **REMOTE,
        atomic=AtomicOperands(8, compare=SMALL, swap=BIG, compare_mask=0xFFFFFFFF, swap_mask=0xFF00FF00FF00FF00),
        data=(Data(ADDR, LKEY, 8),),
    ),
}


def test_every_builder_has_golden_bytes():
    builders = {name for name, value in vars(wqe).items() if inspect.isfunction(value) and not name.startswith("_")}
    builders -= {"ds_inline", "fill", "receive", "wqebbs"}
    assert {case["builder"] for case in CASES.values()} == builders
    assert CASES.keys() == DECODED.keys()


@pytest.mark.parametrize("name", CASES)
class TestGolden:
    def test_arguments_to_bytes(self, name):
        assert build(CASES[name]) == golden(name)

    def test_bytes_to_wqe(self, name):
        assert decode(golden(name)) == DECODED[name]
        assert decode(golden(name) + b"\xa5" * 32) == DECODED[name]

    def test_ring_of_a5(self, name):
        """A long WQE wraps. Nothing else changes, not even the rest of its last WQEBB."""
        data = golden(name)
        ring = bytearray(b"\xa5" * 256)
        store(ring, IDX | 3, data)
        tail = len(data) - 64
        assert ring[192:] == data[:64].ljust(64, b"\xa5")
        assert ring[:192] == (data[64:] if tail > 0 else b"").ljust(192, b"\xa5")
        assert fetch(ring, IDX | 3) == data

    def test_every_byte_counts(self, name):
        """A flipped bit decodes to another WQE, except reserved bits and the padding of inline data."""
        data, ignored = golden(name), set()
        for i in range(len(data)):
            flipped = data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]
            try:
                if decode(flipped) == DECODED[name]:
                    ignored.add(i)
            except ValueError:
                pass
        reserved = (
            {9, 10, *range(16, 24)} if name == "wait" else {9, 10} if name.startswith(("nop", "dump", "send")) else {9, 10, 28, 29, 30, 31}
        )
        padding = {
            "send_inline_13": set(range(33, 48)),
            "write_inline_1": set(range(37, 48)),
            "write_inline_29_in_two_wqebbs": set(range(65, 80)),
        }.get(name, set())
        second_half = set(range(40, 48))
        unused = {"fetch_add": second_half, "masked_fetch_add_4": second_half, "wait": set(range(16, 24))}.get(name, set())
        assert ignored == reserved | padding | unused


# --- sizes ---


def test_ds():
    assert (wqe.DS_NOP, wqe.DS_DUMP, wqe.DS_WRITE, wqe.DS_READ, wqe.DS_ATOMIC, wqe.DS_MASKED_CS_8) == (1, 2, 3, 3, 4, 5)
    assert [wqe.ds_inline(n) for n in (1, 12, 13, 28, 29)] == [3, 3, 4, 4, 5]
    assert [wqe.ds_inline(32 * n) for n in (1, 2, 4, 8)] == [5, 7, 11, 19]  # a warp of 1, 2, 4, 8 bytes
    assert [wqe.wqebbs(ds) for ds in (1, 2, 3, 4, 5, 8, 9, 19, 63)] == [1, 1, 1, 1, 2, 2, 3, 5, 16]
    assert [wqe.wqebbs(wqe.ds_inline(32 * n)) + 1 for n in (1, 2, 4, 8)] == [3, 3, 4, 6]  # with the NOP behind


def test_limits():
    assert (wqe.DEPTH_MIN, wqe.DEPTH_MAX, wqe.DS_MAX, wqe.INLINE_MAX_1_WQEBB, wqe.INLINE_MAX) == (128, 32768, 63, 28, 972)
    assert wqe.wqebbs(wqe.ds_inline(wqe.INLINE_MAX_1_WQEBB)) == 1
    assert wqe.wqebbs(wqe.ds_inline(wqe.INLINE_MAX_1_WQEBB + 1)) == 2
    assert wqe.ds_inline(wqe.INLINE_MAX) == wqe.DS_MAX


def test_offsets_of_segments():
    assert (wqe.WQE_RADDR, wqe.WQE_DATA, wqe.WQE_ATOMIC_DATA, wqe.WQE_MASKED_CS_8_DATA, wqe.DUMP_DATA) == (16, 32, 48, 64, 16)
    assert (wqe.CTRL_OPMOD_IDX_OPCODE, wqe.CTRL_QPN_DS, wqe.CTRL_FM_CE_SE, wqe.CTRL_IMM) == (0, 4, 11, 12)


def test_words_of_the_control_segment():
    ctrl = golden("masked_fetch_add_4")
    first = Opmod.MASKED_4 << wqe.OPMOD_SHIFT | (IDX & wqe.WQE_IDX_MASK) << wqe.WQE_IDX_SHIFT | Opcode.ATOMIC_MASKED_FA
    assert first.to_bytes(4, "big") == ctrl[:4]
    assert (QPN << wqe.QPN_SHIFT | 4).to_bytes(4, "big") == ctrl[4:8]
    assert QPN << wqe.QPN_SHIFT & wqe.DS_MASK == 0


def test_fence_names_differ_from_rdma_core():
    assert (Fm.FENCE, Fm.FENCE_AND_INITIATOR_SMALL_FENCE) == (0x40, 0x80)


# --- what builders refuse ---


@pytest.mark.parametrize("nbytes", [0, -1, (1 << 30) + 1])
def test_bad_nbytes(nbytes):
    for builder in (wqe.write, wqe.read):
        with pytest.raises(ValueError, match=f"nbytes must be 1 to 1073741824, not {nbytes}"):
            builder(0, 1, RADDR, RKEY, ADDR, LKEY, nbytes)
    with pytest.raises(ValueError, match="nbytes"):
        wqe.dump(0, 1, ADDR, LKEY, nbytes)


@pytest.mark.parametrize("nbytes", [0, 973])
def test_bad_payload(nbytes):
    with pytest.raises(ValueError, match=f"payload must have 1 to 972 bytes to be sent inline, not {nbytes}"):
        wqe.write_inline(0, 1, RADDR, RKEY, bytes(nbytes))


@pytest.mark.parametrize("nbytes", [0, 1, 2, 16])
def test_bad_operand_size(nbytes):
    with pytest.raises(ValueError, match=f"the operand sizes of masked atomics, not {nbytes}"):
        wqe.masked_fetch_add(0, 1, RADDR, RKEY, ADDR, LKEY, nbytes, 1)


def test_bad_fields():
    with pytest.raises(ValueError, match=r"ctrl\.qpn: 0x1000000 does not fit in 24 bits"):
        wqe.nop(0, 1 << 24)
    with pytest.raises(ValueError, match=r"raddr\.rkey: 0x100000000 does not fit in 32 bits"):
        wqe.read(0, 1, RADDR, 1 << 32, ADDR, LKEY, 1)
    with pytest.raises(ValueError, match=r"masked_fa_4\.add: 0x100000000 does not fit in 32 bits"):
        wqe.masked_fetch_add(0, 1, RADDR, RKEY, ADDR, LKEY, 4, 1 << 32)


# --- the ring ---


@pytest.mark.parametrize("nbytes", [0, 63, 65, 3 * 64])
def test_bad_ring(nbytes):
    with pytest.raises(ValueError, match=f"ring: {nbytes} bytes are not 2\\^n WQEBBs"):
        store(bytearray(nbytes), 0, wqe.nop(0, 1))


def test_wqe_longer_than_the_ring():
    data = wqe.write_inline(0, 1, RADDR, RKEY, bytes(256))
    with pytest.raises(ValueError, match="a WQE of 5 WQEBBs is longer than the ring of 4"):
        store(bytearray(256), 0, data)
    ring = bytearray(256)
    ring[:8] = data[:8]
    with pytest.raises(ValueError, match="a WQE of 5 WQEBBs is longer than the ring of 4"):
        fetch(ring, 4)


def test_empty_slot():
    with pytest.raises(ValueError, match=r"ctrl\.ds: 0 in the WQE at index 131072"):
        fetch(bytearray(64), 1 << 17)


def test_longest_wqe_wraps():
    payload = bytes(i % 251 for i in range(wqe.INLINE_MAX))
    ring = bytearray(b"\xa5" * 16 * 64)
    store(ring, 0xFFFB, wqe.write_inline(0xFFFB, 1, RADDR, RKEY, payload))
    assert decode(fetch(ring, 0xFFFB)).inline == payload


# --- decode ---


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("00000008 00000100", r"ctrl\.ds: 0 octowords"),
        ("00000008 00000103 00000000 00000000", r"ctrl\.ds: 3 octowords, but there are 16 bytes"),
        ("000000ff 00000101 00000000 00000000", r"ctrl\.opcode: 0xff is not defined in pgas"),
        ("0000002f 00000101 00000000 00000000", r"ctrl\.opcode: 0x2f MMO is not defined in pgas"),
        ("0000000f 00000101 00000000 00000000", r"ctrl\.ds: 1 leaves no room for the wait segment of WAIT"),
        ("00000008 00000101 00000000 00000000", r"ctrl\.ds: 1 leaves no room for the raddr segment of RDMA_WRITE"),
        ("08000008 00000102 00000000 00000000" + " 00000000" * 4, r"ctrl\.opmod: 0x8 does not go with RDMA_WRITE"),
        ("08000012 00000102 00000000 00000000" + " 00000000" * 4, r"ctrl\.opmod: 0x8 does not go with ATOMIC_FA"),
        ("00000014 00000102 00000000 00000000" + " 00000000" * 4, r"ctrl\.opmod: 0x0 does not go with ATOMIC_MASKED_CS"),
        ("09000014 00000103 00000000 00000000" + " 00000000" * 8, r"ctrl\.ds: 3 leaves no room for the masked_cs_8 segment"),
        ("00000010 00000103 00000000 00000000" + " 00000000" * 4 + " 80000004" + " 00000000" * 3, r"RDMA_READ cannot have inline data"),
        ("00000008 00000103 00000000 00000000" + " 00000000" * 4 + " 8000000d" + " 00000000" * 3, r"inline\.byte_count: 13 bytes"),
        ("00000008 00000104 00000000 00000000" + " 00000000" * 4 + " 8000000c" + " 00000000" * 7, r"inline\.byte_count: 12 bytes"),
        (
            "00000008 00000104 00000000 00000000" + " 00000000" * 4 + " 00000004" + " 00000000" * 3 + " 80000004" + " 00000000" * 3,
            r"data\.byte_count: 0x80000004, an inline segment after a data segment",
        ),
    ],
)
def test_malformed(words, message):
    with pytest.raises(ValueError, match=message):
        decode(bytes.fromhex(words).ljust(16, b"\0"))


def test_nop_of_nvshmem_has_a_stale_second_octoword():
    data = fill(wqe.CTRL, {"opcode": Opcode.NOP, "ds": 2, "fm_ce_se": Ce.ALWAYS}) + b"\xff" * 16
    assert decode(data) == Wqe(Opcode.NOP, 0, 0, 0, 2, Ce.ALWAYS)


def test_several_data_segments():
    head = wqe.write(7, 1, RADDR, RKEY, ADDR, LKEY, 16)
    data = bytearray(head + fill(wqe.DATA, {"byte_count": 8, "lkey": 1, "addr": 2}))
    fill(wqe.CTRL, {"ds": 4}, data)
    assert decode(data).data == (Data(ADDR, LKEY, 16), Data(2, 1, 8))
    assert decode(data).nbytes == 24


def test_receive_wqes():
    """Data segments, followed by one with an invalid lkey unless the entry is full."""
    first, second = "00000100 0a0b0c0d 00006000 00002000", "00000001 00000002 00000000 00000003"
    end = "00000000 00000100 00000000 00000000"
    segments = (ADDR, LKEY, 0x100), (3, 2, 1)
    assert wqe.receive(*segments, stride=32) == bytes.fromhex(first + second)
    assert wqe.receive(*segments, stride=64) == bytes.fromhex(first + second + end).ljust(64, b"\0")
    assert wqe.receive() == bytes.fromhex(end)
    with pytest.raises(ValueError, match="2 do not fit in a receive WQE of 16 bytes"):
        wqe.receive(*segments)


def test_text():
    assert str(DECODED["write_imm"]) == (
        "RDMA_WRITE_IMM wqe_idx 0x1234 qpn 0xabcdef ds 3 ce ALWAYS, raddr 0x600040001000 rkey 0x1020304, "
        "256 bytes at 0x600000002000 lkey 0xa0b0c0d"
    )
    assert str(DECODED["dump_behind_reads"]).startswith("DUMP wqe_idx 0x1234 qpn 0xabcdef ds 2 ce ALWAYS, fm 0x40 FENCE, 1 bytes at")
    assert "4-byte add 0x55556666 field_boundary 0x80000001, 4 bytes at" in str(DECODED["masked_fetch_add_4"])
    assert str(DECODED["write_inline_1"]).endswith("1 bytes inline 5a")


def test_properties():
    two = DECODED["masked_compare_swap_8_in_two_wqebbs"]
    assert (two.wqebbs, two.nbytes, two.fm, two.ce) == (2, 8, Fm.NONE, Ce.ON_ERROR)
    assert DECODED["write_inline_28"].nbytes == 28
    assert decode(wqe.nop(0, 1, fm_ce_se=0xE0 | Ce.ALWAYS_AND_EQE)).fm == 0xE0  # undefined, and still decodes


u16, u24, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 24, 32, 64))


@given(st.binary(min_size=1, max_size=wqe.INLINE_MAX), u64, st.integers(4, 8))
def test_round_trip_inline_in_a_ring(payload, idx, log_depth):
    ring = bytearray(b"\xa5" * (64 << log_depth))
    store(ring, idx, wqe.write_inline(idx, 5, RADDR, RKEY, payload))
    got = decode(fetch(ring, idx))
    assert got.inline == payload
    assert got.wqe_idx == idx & 0xFFFF
    assert len(ring) == 64 << log_depth


@given(st.sampled_from([4, 8]), u64, u64, u64, u64)
def test_round_trip_masked(nbytes, a, b, c, d):
    a, b, c, d = (value & (1 << 8 * nbytes) - 1 for value in (a, b, c, d))
    got = decode(wqe.masked_compare_swap(0, 1, RADDR, RKEY, ADDR, LKEY, nbytes, a, b, c, d))
    assert got.atomic == AtomicOperands(nbytes, compare=a, swap=b, compare_mask=c, swap_mask=d)
    assert decode(wqe.masked_fetch_add(0, 1, RADDR, RKEY, ADDR, LKEY, nbytes, a, b)).atomic == AtomicOperands(
        nbytes, add=a, field_boundary=b
    )


@given(st.binary(min_size=16, max_size=128))
def test_noise_is_decoded_or_refused(data):
    try:
        got = decode(data)
    except ValueError:
        return
    assert send_queue.wqebbs(got.ds) == got.wqebbs
    assert str(got)
