"""Doorbell record, UAR word in both conventions."""

import pytest
import wqes as wqe

from pgas.transports.mlx5 import doorbell
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
    assert decode(doorbell.UAR_WORD, theirs) == {"opmod": 9, "wqe_idx": 0x1234, "opcode": 0x14, "qpn": 0xABCDEF, "ds": 5}


def test_impossible_words():
    with pytest.raises(ValueError, match=r"uar_word\.qpn: 0x1000000 does not fit in 24 bits"):
        doorbell.next_empty(0, 1 << 24)
    with pytest.raises(ValueError, match=r"uar_word\.ds must not be 0, because no WQE is that short"):
        doorbell.wqe_start(bytes(16))
    with pytest.raises(ValueError, match="uar_word: 8 bytes"):
        doorbell.wqe_start(bytes(7))
