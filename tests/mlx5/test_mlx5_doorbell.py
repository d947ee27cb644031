"""Doorbell record, UAR word in both conventions, register offsets, the card's producer index."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgas.transports.mlx5 import doorbell, wqe
from pgas.transports.mlx5.doorbell import UarType, advance, candidate
from pgas.transports.mlx5.fields import decode, fill


def test_golden_record():
    assert doorbell.dbr(0x54321) == bytes.fromhex("00004321")
    assert (doorbell.DBR_SIZE, doorbell.DBR_SND_OFFSET, doorbell.RCV_DBR, doorbell.SND_DBR) == (8, 4, 0, 1)
    buffer = bytearray(b"\xa5" * 8)
    fill(doorbell.DBR, {"send_counter": 0x4321}, buffer)
    assert buffer.hex() == "a5a5a5a500004321"
    assert decode(doorbell.CQ_DBR, bytes.fromhex("a5123456 01000000")) == {"consumer_index": 0x123456, "arm": 1 << 24}
    with pytest.raises(ValueError, match=r"cq_dbr\.consumer_index: 0x1000000 does not fit in 24 bits"):
        fill(doorbell.CQ_DBR, {"consumer_index": 1 << 24})


def test_golden_words():
    """The same doorbell in both conventions: a WQE of 2 WQEBBs at 0x1234, so 0x1236 is the next empty one."""
    ours = doorbell.next_empty(0x71236, 0xABCDEF)
    theirs = doorbell.wqe_start(wqe.masked_compare_swap(0x1234, 0xABCDEF, 0, 0, 0, 0, 8, 0, 0, 0, 0))
    assert ours == bytes.fromhex("00123600 abcdef00")
    assert theirs == bytes.fromhex("09123414 abcdef05")
    for data in (ours, theirs):
        first, second = doorbell.words(data)
        assert candidate(first, second) == 0x1236
    assert decode(doorbell.UAR_WORD, theirs) == {"opmod": 9, "wqe_idx": 0x1234, "opcode": 0x14, "qpn": 0xABCDEF, "ds": 5}


def test_opmod_of_a_doorbell_is_ignored():
    """NVSHMEM's CPU path: be32(prod_idx << 8) of a prod_idx beyond 16 bits."""
    assert candidate((0x71236 << 8) & 0xFFFFFFFF, 0xABCDEF00) == 0x1236


def test_candidate_wraps():
    assert candidate(0xFFFF << 8, 1 << 8 | 5) == 1


def test_impossible_words():
    with pytest.raises(ValueError, match=r"uar_word\.qpn: 0x1000000 does not fit in 24 bits"):
        doorbell.next_empty(0, 1 << 24)
    with pytest.raises(ValueError, match=r"uar_word\.ds must not be 0, because no WQE is that short"):
        doorbell.wqe_start(bytes(16))
    with pytest.raises(ValueError, match="uar_word: 8 bytes"):
        doorbell.wqe_start(bytes(7))


def test_registers():
    assert [doorbell.register_offset(UarType.BF, i) for i in range(2)] == [0x800, 0xA00]
    assert doorbell.register_offset(UarType.BF, 1, 8) == 0x900
    assert [doorbell.register_offset(UarType.NC, i) for i in range(4)] == [0x800, 0x900, 0xA00, 0xB00]
    with pytest.raises(ValueError, match="register must be 0 to 1 in a UAR page of type BF, not 2"):
        doorbell.register_offset(UarType.BF, 2)
    with pytest.raises(ValueError, match="register must be 0 to 3 in a UAR page of type NC, not -1"):
        doorbell.register_offset(UarType.NC, -1)


# --- the card's producer index ---


@pytest.mark.parametrize(
    ("producer", "announced", "record", "expected"),
    [
        (0, 0, 0, 0),
        (0, 5, 5, 5),
        (0, 5, 3, 5),  # the record is behind
        (0, 3, 5, 5),  # the record is ahead: another doorbell is to come
        (5, 3, 5, 5),  # an older doorbell
        (5, 3, 2, 5),
        (0xFFFE, 2, 2, 0x10002),
        (0x1FFFE, 0xFFFF, 0xFFFE, 0x1FFFF),
        (0, 128, 0, 128),
        (0, 0xFF80, 0, 0),  # the oldest possible doorbell
        (0, 7, 129, 7),
    ],
)
def test_advance(producer, announced, record, expected):
    assert advance(producer, 128, announced, record) == expected


@pytest.mark.parametrize("announced", [129, 0x8000, 0xFF7F])
def test_a_doorbell_beyond_the_depth_of_the_queue(announced):
    with pytest.raises(ValueError, match=f"{announced:#x} is {announced} WQEBBs ahead, but the send queue has only 128"):
        advance(0, 128, announced, 0)


@given(st.integers(0, 1 << 40), st.sampled_from([128 << i for i in range(9)]), st.data())
def test_advance_reaches_the_driver(producer, nwqebb, data):
    """Whatever doorbells the card has missed, one brings it to the larger of UAR index and DBR, if both are within one queue length."""
    rung = data.draw(st.integers(producer, producer + nwqebb))
    record = data.draw(st.integers(producer, producer + nwqebb))
    assert advance(producer, nwqebb, rung & 0xFFFF, record & 0xFFFF) == max(rung, record)
    older = data.draw(st.integers(1, min(producer, nwqebb, (1 << 16) - nwqebb - 1))) if producer else 0
    assert advance(producer, nwqebb, (producer - older) & 0xFFFF, (producer - older) & 0xFFFF) == producer


@given(st.integers(0, 1 << 20), st.integers(1, 63))
def test_both_conventions_agree(idx, ds):
    start = fill(wqe.CTRL, {"wqe_idx": idx & 0xFFFF, "qpn": 9, "ds": ds, "opcode": 8})
    end = idx + wqe.wqebbs(ds)
    assert candidate(*doorbell.words(doorbell.wqe_start(start))) == candidate(*doorbell.words(doorbell.next_empty(end, 9))) == end & 0xFFFF
