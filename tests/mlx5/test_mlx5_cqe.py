"""CQEs: golden bytes both ways, messages for syndromes, ownership, and the extension of a 16-bit counter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgas.transports.mlx5 import cqe
from pgas.transports.mlx5.cqe import CQE64, ERR_CQE, Cqe, CqeOpcode, Syndrome, extend
from pgas.transports.mlx5.fields import fill
from pgas.transports.mlx5.wqe import DEPTH_MAX, Opcode

OK = bytes.fromhex(
    "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000"
    "00000007 00000000 00000000 00000020 00000000 00000000 10abcdef 12340000"
)
FAILED = bytes.fromhex(
    "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000"
    "00000007 00000000 00000000 00000000 00000000 00008813 08abcdef ffff00d0"
)


def test_golden_completion():
    assert cqe.completed(0xABCDEF, Opcode.RDMA_READ, 0x71234, 0x20, 7) == OK
    assert cqe.decode(OK) == Cqe(CqeOpcode.REQ, 0, 0xABCDEF, Opcode.RDMA_READ, 0x1234, 7, 0x20)
    assert not cqe.decode(OK).is_error
    assert str(cqe.decode(OK)) == "0x0 REQ wqe_counter 0x1234 qpn 0xabcdef of 0x10 RDMA_READ, byte_cnt 32"


RECEIVED = bytes.fromhex(
    "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000"
    "00000007 feedbeef 00000000 00000020 00000000 00000000 00abcdef 12340031"
)


def test_golden_receive():
    assert cqe.received(0xABCDEF, CqeOpcode.RESP_SEND_IMM, 0x71234, 0x20, 0xFEEDBEEF, 7, owner=1) == RECEIVED
    got = cqe.decode(RECEIVED)
    assert got == Cqe(CqeOpcode.RESP_SEND_IMM, 1, 0xABCDEF, 0, 0x1234, 7, 0x20, imm=0xFEEDBEEF)
    assert str(got) == "0x3 RESP_SEND_IMM wqe_counter 0x1234 qpn 0xabcdef, byte_cnt 32, imm 0xfeedbeef"
    got = cqe.decode(cqe.error(0xABCDEF, 0, 3, Syndrome.WR_FLUSH_ERR, opcode=CqeOpcode.RESP_ERR))
    assert str(got) == "0xe RESP_ERR wqe_counter 0x0003 qpn 0xabcdef: work request flushed (0x05), vendor_err_synd 0x00"


def test_golden_error():
    assert cqe.error(0xABCDEF, Opcode.RDMA_WRITE, 0xFFFF, Syndrome.REMOTE_ACCESS_ERR, 0x88, 7) == FAILED
    got = cqe.decode(b"\xa5" * 64 + FAILED, 64)
    assert got == Cqe(CqeOpcode.REQ_ERR, 0, 0xABCDEF, Opcode.RDMA_WRITE, 0xFFFF, 7, 0, Syndrome.REMOTE_ACCESS_ERR, 0x88)
    assert got.is_error
    assert str(got) == ("0xd REQ_ERR wqe_counter 0xffff qpn 0xabcdef of 0x8 RDMA_WRITE: remote access error (0x13), vendor_err_synd 0x88")


@pytest.mark.parametrize(("table", "data"), [(CQE64, OK), (ERR_CQE, FAILED)])
def test_into_a_buffer_of_a5(table, data):
    buffer = bytearray(b"\xa5" * 192)
    fill(table, cqe.fields.decode(table, data), buffer, 64)
    assert cqe.fields.decode(table, buffer, 64) == cqe.fields.decode(table, data)
    assert buffer[cqe.CQE_TAIL + 64 : 128] == data[cqe.CQE_TAIL :]
    assert buffer[:64] == buffer[128:] == b"\xa5" * 64
    assert buffer[64:66] == b"\xa5\xa5"  # reserved


def test_impossible_values():
    with pytest.raises(ValueError, match=r"cqe64\.qpn: 0x1000000 does not fit in 24 bits"):
        cqe.completed(1 << 24, Opcode.NOP, 0)
    with pytest.raises(ValueError, match=r"err_cqe\.syndrome: 0x100 does not fit in 8 bits"):
        cqe.error(1, Opcode.NOP, 0, 0x100)
    with pytest.raises(ValueError, match="cqe64: 64 bytes at offset 1 of a buffer of 64 bytes"):
        cqe.decode(OK, 1)


def test_offsets():
    assert (cqe.CQE_SIZE, cqe.CQE_TAIL, cqe.CQE_WQE_COUNTER, cqe.CQE_OP_OWN) == (64, 56, 60, 63)
    assert (cqe.CQE_VENDOR_ERR_SYND, cqe.CQE_SYNDROME) == (54, 55)


def test_tail_as_a_word():
    tail = int.from_bytes(FAILED[cqe.CQE_TAIL :], "big")
    assert tail >> cqe.TAIL_OPCODE_SHIFT == Opcode.RDMA_WRITE
    assert tail >> cqe.TAIL_QPN_SHIFT & 0xFFFFFF == 0xABCDEF
    assert tail >> cqe.TAIL_WQE_COUNTER_SHIFT & 0xFFFF == 0xFFFF
    assert tail & 0xFF == CqeOpcode.REQ_ERR << cqe.OP_OWN_OPCODE_SHIFT == 0xD0


def test_empty_entry():
    got = cqe.decode(bytes([cqe.EMPTY]) * 64)
    assert got.opcode == CqeOpcode.INVALID
    assert extend(0, got.wqe_counter, DEPTH_MAX) == 0


@pytest.mark.parametrize(
    ("op_own", "consumer_idx", "valid"),
    [(0x00, 5, True), (0x01, 5, False), (0x01, 8, True), (0x00, 8, False), (0x00, 16, True), (0xF0, 0, False), (0xF1, 8, False)],
)
def test_owner_of_a_queue_of_8(op_own, consumer_idx, valid):
    assert cqe.valid(op_own, consumer_idx, 8) is valid


def test_messages():
    assert len({syndrome.text for syndrome in Syndrome} - {""}) == len(Syndrome)
    assert cqe.syndrome_words(5) == "work request flushed (0x05)"
    assert cqe.syndrome_words(0x77) == "unknown syndrome (0x77)"


# --- 16 bits to 64 ---


@pytest.mark.parametrize(
    ("cons_idx", "wqe_counter", "expected"),
    [
        (0, 0xFFFF, 0),  # nothing is complete yet
        (0, 0, 1),
        (5, 4, 5),
        (5, 3, 5),  # older than cons_idx
        (0xFFFD, 0xFFFF, 0x10000),
        (0xFFFD, 0x0002, 0x10003),
        (0xFFFFFFFD, 0x0002, 0x100000003),
        (0x10003, 0xFFFE, 0x10003),
        (7, 7 + 127, 135),
        (7, 7 + 128, 7),  # beyond a depth of 128
    ],
)
def test_extend(cons_idx, wqe_counter, expected):
    assert extend(cons_idx, wqe_counter, 128) == expected


@given(
    st.one_of(st.integers(0, 1 << 40), st.integers(-8, 8).map(lambda n: (1 << 16) + n), st.integers(-8, 8).map(lambda n: (1 << 32) + n)),
    st.integers(128, DEPTH_MAX),
    st.data(),
)
def test_extend_is_exact(cons_idx, depth, data):
    done = data.draw(st.integers(cons_idx, cons_idx + depth), "index behind the last completed WQEBB")
    assert extend(cons_idx, (done - 1) & 0xFFFF, depth) == done
    older = data.draw(st.integers(1, (1 << 16) - depth - 1), "how much older a CQE is than cons_idx")
    assert extend(cons_idx, (cons_idx - older - 1) & 0xFFFF, depth) == cons_idx


def test_extend_is_wrong_if_cons_idx_is_too_old():
    """This is why a waiter loads cons_idx again: with one that is 2^16 WQEBBs old the result is below the completed index."""
    old, done = 3, 3 + 65536 + 10
    assert extend(old, (done - 1) & 0xFFFF, 128) == old + 10
